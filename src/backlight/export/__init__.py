"""A run as one HTML file that opens offline."""

from backlight.export.file import DEFAULT_BYTES as DEFAULT_BYTES
from backlight.export.file import DEFAULT_STEPS as DEFAULT_STEPS
from backlight.export.file import Exported as Exported
from backlight.export.file import export_run as export_run
