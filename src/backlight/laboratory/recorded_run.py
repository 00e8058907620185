"""Serves the lab's page from a run that recorded flows, with no model behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.interface import (
    Activity,
    Array,
    Description,
    FlowChunk,
    FlowEnd,
    FlowKind,
    Layer,
    Question,
    Span,
)
from backlight.laboratory.stored_flows import axes_of, interpolated, shares
from backlight.store.recorded_flows import RecordedFlows, files_of_steps, read_flows

_MOST_INTERPOLATED: Final = 4_000_000
_INTERPOLATED: Final = "Interpolated from the gradients at both ends: no flow was recorded here."


class RecordedRun:
    """The flows that `run.flow` recorded, step by step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = files_of_steps(path)
        if not self._files:
            raise BacklightError(
                f"{str(path)!r} has no recorded flows: call run.flow(source, sink) while it trains."
            )
        self._read = lru_cache(maxsize=4)(self._read_step)
        self._layers = self._find_layers()
        self._pairs: dict[tuple[str, str], RecordedFlows] = {}

    def describe(self) -> Description:
        """The layers that flows were recorded between, in the order of the forward pass."""
        return Description(
            self.path.name,
            tuple(self._layers.values()),
            tuple(self._layers),
            note="Recorded while training: there is no model to edit.",
            can_edit=False,
            has_activation_flow=False,
            steps=tuple(self._files),
        )

    def sample(self, number: int) -> dict[str, Array]:
        """There are no inputs to edit."""
        return {}

    def run(self, question: Question) -> Activity:
        """Values and gradients of a step; of the last one where none is chosen."""
        step = list(self._files)[-1] if question.step is None else int(question.step)
        if step not in self._files:
            raise BacklightError(f"No flows were recorded at step {step}.")
        self._pairs = self._read(step)
        values: dict[str, Array] = {}
        grads: dict[str, Array] = {}
        for (source, sink), read in self._pairs.items():
            values |= {source: read.source_value, sink: read.sink_value}
            grads |= {source: read.source_grad, sink: read.sink_grad}
        for name in question.layers:
            shape = self._layers[name].shape
            if name in grads and grads[name].shape != shape:
                raise BacklightError(
                    f"{name!r} is {grads[name].shape} at step {step} and {shape} at others."
                )
            values.setdefault(name, np.full(shape, np.nan, np.float32))
        any_read = next(iter(self._pairs.values()))
        loss = float("nan") if any_read.loss is None else any_read.loss
        return Activity(values, grads, loss, f"the loss of step {step}")

    def flow(
        self, source: str, sink: str, kind: FlowKind, check: Callable[[], None]
    ) -> Iterator[FlowChunk | FlowEnd]:
        """A flow of the step, or one that agrees with the gradients."""
        if kind == "activation":
            raise BacklightError("No activation flows were recorded, only those of gradients.")
        read = self._pairs.get((source, sink))
        if read is not None:
            yield FlowChunk(read.source_cells, read.sink_cells, read.flows)
            yield _end(read)
            return
        grads = [self._grad(name) for name in (source, sink)]
        if grads[0].size * grads[1].size > _MOST_INTERPOLATED:
            raise BacklightError(f"No flow was recorded from {source!r} to {sink!r}.")
        yield FlowChunk.dense(interpolated(*grads))
        yield FlowEnd(np.zeros_like(grads[0]), note=_INTERPOLATED, is_exact=False)

    def trace(self, layer: str, cells: Sequence[int]) -> dict[str, Array]:
        """What passes through some cells, along the flows that were recorded."""
        found: dict[str, Array] = {layer: np.zeros(self._grad(layer).size, np.float32)}
        found[layer][list(cells)] = self._grad(layer)[list(cells)]
        names = list(self._layers)
        at = names.index(layer)
        for source, sink in zip(names[at - 1 :: -1] if at else (), names[at:0:-1], strict=True):
            read = self._pairs.get((source, sink))
            if read is None:
                break
            passing = read.flows * shares(found[sink], self._grad(sink))[read.sink_cells]
            found[source] = np.bincount(read.source_cells, passing, self._grad(source).size)
        for source, sink in zip(names[at:-1], names[at + 1 :], strict=True):
            read = self._pairs.get((source, sink))
            if read is None:
                break
            passing = read.flows * shares(found[source], self._grad(source))[read.source_cells]
            found[sink] = np.bincount(read.sink_cells, passing, self._grad(sink).size)
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _read_step(self, step: int) -> dict[tuple[str, str], RecordedFlows]:
        return {(each.source, each.sink): each for each in read_flows(self._files[step])}

    def _grad(self, name: str) -> Array:
        for (source, sink), read in self._pairs.items():
            if name in (source, sink):
                grad: Array = (read.source_grad if name == source else read.sink_grad).reshape(-1)
                return grad
        raise BacklightError(f"Nothing was recorded of {name!r} at this step.")

    def _find_layers(self) -> dict[str, Layer]:
        """The layers of the last step, and what else earlier ones have, as they were seen."""
        found: dict[str, tuple[int, Layer]] = {}
        for step in (list(self._files)[-1], next(iter(self._files))):
            for read in self._read(step).values():
                shapes = read.source_grad.shape, read.sink_grad.shape
                ends = zip((read.source, read.sink), shapes, read.orders, read.classes, strict=True)
                for name, shape, order, module_class in ends:
                    own = Layer(name, shape, "hidden", module_class, axes=axes_of(len(shape)))
                    found.setdefault(name, (order, own))
        ordered = sorted(found.items(), key=lambda item: item[1][0])
        return {name: layer for name, (_, layer) in ordered}


def _end(read: RecordedFlows) -> FlowEnd:
    kept = float(np.abs(read.flows).sum(dtype=np.float64))
    notes = []
    if len(read.flows) < read.count:
        share = kept / read.size if read.size else 1.0
        notes.append(
            f"The {len(read.flows):,} largest of {read.count:,} flows, {share:.0%} of their size."
        )
    if read.products < read.products_wanted:
        notes.append(
            f"Of {read.products_wanted:,} products the {read.products:,} with the largest "
            "gradients were computed."
        )
    return FlowEnd(
        read.around,
        note=" ".join(notes),
        reach=None if read.reach is None else tuple(Span(*each) for each in read.reach),
        is_exact=not notes,
        left_out=read.left_out,
        residual=read.residual,
    )
