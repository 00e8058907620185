"""Serves the lab's page from a file of flows, with no model behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.files import FlowInfo
from backlight.laboratory.interface import (
    Activity,
    Array,
    Description,
    FlowChunk,
    FlowEnd,
    FlowKind,
    Layer,
    Question,
)


class StoredFlows:
    """The flows of a `flow_info` file; those that are missing are interpolated, and said to be."""

    def __init__(self, info: FlowInfo, name: str = "flow_info") -> None:
        self.info, self.name = info, name
        self._order = _in_order(info)

    def describe(self) -> Description:
        """The layers of the file, in the order of the flows between them."""
        layers = tuple(
            Layer(each, self._shape(each), "hidden", axes=axes_of(len(self._shape(each))))
            for each in self._order
        )
        note = "Read from a file: there is no model to edit."
        return Description(
            self.name,
            layers,
            tuple(self._order),
            note=note,
            can_edit=False,
            has_activation_flow=False,
        )

    def sample(self, number: int) -> dict[str, Array]:
        """There are no inputs to edit."""
        return {}

    def run(self, question: Question) -> Activity:
        """The gradients of the file; activations are not part of the layout."""
        grads = {name: self._grad(name) for name in question.layers}
        values = {name: self._value(name) for name in question.layers}
        return Activity(values, grads, float("nan"), "as recorded", self.info.target_representation)

    def flow(
        self, source: str, sink: str, kind: FlowKind, check: Callable[[], None]
    ) -> Iterator[FlowChunk | FlowEnd]:
        """A flow of the file, or one that agrees with the gradients."""
        if kind == "activation":
            raise BacklightError("The file has no activations, so there are no activation flows.")
        matrix = self.info.gradient_flows.get((source, sink))
        grad = self._grad(source).reshape(-1)
        if matrix is None:
            yield FlowChunk.dense(interpolated(grad, self._grad(sink).reshape(-1)))
            note = "Interpolated from the gradients at both ends: the file has no flow here."
            yield FlowEnd(np.zeros_like(grad), note=note, is_exact=False)
        else:
            yield FlowChunk.dense(matrix)
            yield FlowEnd(np.zeros_like(grad))

    def trace(self, layer: str, cells: Sequence[int]) -> dict[str, Array]:
        """What passes through some cells, along the flows between neighbouring layers."""
        found = {layer: np.zeros(self._grad(layer).size, np.float32)}
        found[layer][list(cells)] = self._grad(layer).reshape(-1)[list(cells)]
        at = self._order.index(layer)
        for place in range(at, 0, -1):
            source, sink = self._order[place - 1], self._order[place]
            found[source] = self._matrix(source, sink) @ shares(found[sink], self._grad(sink))
        for source, sink in pairwise(self._order[at:]):
            found[sink] = self._matrix(source, sink).T @ shares(found[source], self._grad(source))
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.info.activation_gradients[name].shape)

    def _grad(self, name: str) -> Array:
        return np.asarray(self.info.activation_gradients[name], np.float32)

    def _value(self, name: str) -> Array:
        given = self.info.input_representation
        if name == self._order[0] and given is not None and given.shape == self._shape(name):
            return np.asarray(given, np.float32)
        return np.full(self._shape(name), np.nan, np.float32)

    def _matrix(self, source: str, sink: str) -> Array:
        matrix = self.info.gradient_flows.get((source, sink))
        if matrix is not None:
            return matrix
        return interpolated(self._grad(source).reshape(-1), self._grad(sink).reshape(-1))


def interpolated(source: Array, sink: Array) -> Array:
    """Flows whose sums are the source's gradient, shared out as the sink's magnitudes are.

    >>> interpolated(np.array([4.0, 2.0]), np.array([1.0, -3.0])).tolist()
    [[1.0, 3.0], [0.5, 1.5]]
    """
    share = np.abs(sink)
    total = share.sum()
    share = share / total if total > 0 else np.full_like(share, 1 / max(1, share.size))
    matrix: Array = source[:, None] * share[None, :]
    return matrix


def shares(part: Array, whole: Array) -> Array:
    """Each part as a share of its whole; 0 where that is 0."""
    flat = whole.reshape(-1)
    return np.divide(part, flat, out=np.zeros_like(part), where=flat != 0)


def axes_of(dims: int) -> tuple[str, ...]:
    """What the dimensions of a layer are, where nobody says it."""
    return {1: ("unit",), 2: ("y", "x"), 3: ("channel", "y", "x")}.get(dims, ())


def _in_order(info: FlowInfo) -> list[str]:
    """The layers from the first to the last, as the flows lead."""
    follows = dict(info.gradient_flows.keys())
    starts = [name for name in info.activation_gradients if name not in follows.values()]
    order: list[str] = []
    for start in starts:
        name: str | None = start
        while name is not None and name not in order:
            order.append(name)
            name = follows.get(name)
    return [*order, *(name for name in info.activation_gradients if name not in order)]
