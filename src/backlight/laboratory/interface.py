"""What the lab's page needs of a model, whoever runs it: inputs in, activations and flows out.

A model of any framework, in this process or in another one, serves the page through an `Adapter`.
Everything that passes here is NumPy. A *layer* is a tensor with a name; its *cells* are numbered
in the order of the flattened sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FlowKind = Literal["gradient", "activation"]


class CancelledError(Exception):
    """The question was withdrawn while it was answered."""


@dataclass(frozen=True)
class Layer:
    """A tensor of the network that the page can show."""

    name: str
    shape: tuple[int, ...]  # of one sample
    kind: str = "hidden"  # input, hidden or output
    module_class: str = ""
    is_real: bool = True  # token ids have no gradient
    axes: tuple[str, ...] = ()  # what the dimensions are, such as channel, y, x

    @property
    def size(self) -> int:
        """The number of cells."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Description:
    """A model as the page introduces it."""

    name: str
    layers: tuple[Layer, ...]  # in network order, inputs first
    chosen: tuple[str, ...]  # the layers that are shown at first
    samples: int = 1
    has_loss: bool = False
    tokens: tuple[str, ...] = ()  # the words of token ids, where there are any
    labels: tuple[str, ...] = ()  # the names of the outputs
    note: str = ""
    can_edit: bool = True
    has_activation_flow: bool = True
    steps: tuple[int, ...] = ()  # of a recorded run


@dataclass(frozen=True)
class Pin:
    """Cells of a layer that are held at a value, whatever comes into them."""

    mask: Array  # of the layer's shape, true where held
    values: Array


@dataclass(frozen=True)
class Objective:
    """What gradients are of: the loss, or the sum of some cells of a layer.

    Without cells it is the largest cell of the layer; without a layer it is the loss.
    """

    layer: str | None = None
    cells: tuple[int, ...] = ()


@dataclass(frozen=True)
class Question:
    """One run of the model: on which sample, changed in which way, and what is asked of it."""

    sample: int
    layers: tuple[str, ...]
    objective: Objective
    inputs: Mapping[str, Array] = field(default_factory=dict)  # inputs that were edited
    pins: Mapping[str, Pin] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True)
class Activity:
    """What a run of the model gave: for each layer its values, and its gradient if there is one."""

    values: Mapping[str, Array]
    grads: Mapping[str, Array]
    objective: float
    objective_name: str
    target: Array | None = None


@dataclass(frozen=True)
class FlowChunk:
    """Some of the flows between two layers: from cell `source` to cell `sink`."""

    source: Array
    sink: Array
    value: Array
    done: int = 1
    total: int = 1

    @staticmethod
    def dense(matrix: Array) -> FlowChunk:
        """All flows at once, as a matrix of source cells by sink cells.

        >>> chunk = FlowChunk.dense(np.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> chunk.source.tolist(), chunk.sink.tolist(), chunk.value.tolist()
        ([0, 1], [1, 0], [2.0, 3.0])
        """
        source, sink = np.nonzero(matrix)
        value = np.asarray(matrix)[source, sink].astype(np.float32)
        return FlowChunk(source.astype(np.int32), sink.astype(np.int32), value)


@dataclass(frozen=True)
class Span:
    """Along one dimension: cell `o` of the sink reads `scale * o + low` to `scale * o + high`."""

    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class FlowEnd:
    """What is known once all flows between two layers are: what goes around the sink.

    `around` has a number for each source cell. With it, the flows out of a cell are its gradient.
    `note` says what the flows are, where they are not the exact ones. `reach` is the geometry
    between the layers, or None where every cell may read every other. Where not all flows are
    given, `left_out` is what the others add to each source cell; and `residual` says how far all
    of them were from their sum, where that was measured.
    """

    around: Array
    note: str = ""
    reach: tuple[Span, ...] | None = None
    is_exact: bool = True
    left_out: Array | None = None
    residual: float | None = None


class Adapter(Protocol):
    """A model that serves the lab's page.

    `run` comes first; `flow` and `trace` ask about the run before them. A long answer calls
    `check()` now and then, which raises where nobody waits for it any more.
    """

    def describe(self) -> Description:
        """What the model is made of."""

    def sample(self, number: int) -> dict[str, Array]:
        """The inputs of a sample, by the names of their layers, before any edit."""

    def run(self, question: Question) -> Activity:
        """Run the model."""

    def flow(
        self, source: str, sink: str, kind: FlowKind, check: Callable[[], None]
    ) -> Iterator[FlowChunk | FlowEnd]:
        """The flows between two layers in chunks, and at last what goes around the sink."""

    def trace(self, layer: str, cells: Sequence[int]) -> dict[str, Array]:
        """How much of each cell's gradient, in each layer, passes through these cells."""

    def close(self) -> None:
        """Let go of the model."""
