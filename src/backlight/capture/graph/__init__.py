"""The dependency graph of a step: which site's tensor was made from which other sites' tensors."""

from backlight.capture.graph.capture import GraphCapture as GraphCapture
from backlight.capture.graph.dispatch import is_swept as is_swept
from backlight.capture.graph.dispatch import stranded as stranded
from backlight.capture.graph.dispatch import sweep as sweep
from backlight.capture.graph.watch import StructureWatch as StructureWatch
from backlight.capture.structure import Edge as Edge
from backlight.capture.structure import Graph as Graph
