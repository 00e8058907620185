"""One page's questions to a model: edits applied, flows gathered into the picture's links.

Everything here is NumPy, so that any adapter serves the same page. A question says all that the
answer depends on; what was computed for the question before is used again where it can be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.edits import apply
from backlight.laboratory.grouping import Nodes, nodes_of, usual_way, ways
from backlight.laboratory.interface import (
    Activity,
    Adapter,
    Array,
    FlowChunk,
    FlowEnd,
    Objective,
    Question,
)

MOST_KEPT: Final = 8_000_000
"""How many flows between two layers are kept, at 12 bytes each; of more only the sums by node."""
MOST_LINKS: Final = 6000
"""How many links between two layers are sent to the page, the largest ones."""
_MOST_PAIRS_OF_NODES: Final = 4_000_000

_SIGNS: Final = {" ": "␣", "\n": "⏎", "\t": "⇥"}
"""What would not be seen in a label."""

Message = tuple[dict[str, Any], list[Array]]


@dataclass
class PairOfLayers:
    """The flows between two layers, as they were computed once."""

    end: FlowEnd
    sums: Array  # of the flows out of each source cell
    source: Array | None = None  # None where there were too many to keep
    sink: Array | None = None
    value: Array | None = None


@dataclass
class Asked:
    """What was answered last, and what of it can be used again."""

    key: str
    activity: Activity
    pairs: dict[tuple[str, str, str], PairOfLayers] = field(default_factory=dict)


class Session:
    """Answers a page's questions about one model."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.description = adapter.describe()
        self.layers = {layer.name: layer for layer in self.description.layers}
        self._asked: Asked | None = None

    def describe(self) -> dict[str, Any]:
        """The model, for the page."""
        described = asdict(self.description)
        for layer, own in zip(described["layers"], self.description.layers, strict=True):
            layer["ways"], layer["usual"] = ways(own), usual_way(own)
            layer["size"] = own.size
        return described

    def picture(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """Values and gradients of the chosen layers, then the links between each two of them."""
        started = time.perf_counter()
        question = self.question(asked)
        done = self._run(question, asked)
        nodes = self._nodes(question, asked, done.activity)
        yield self._layers_message(question, done.activity, nodes)
        kind = str(asked.get("flow", "gradient"))
        real = [name for name in question.layers if name in done.activity.grads]
        for number, (source, sink) in enumerate(self._pairs(real)):
            check()
            if self._asked is not done:  # another page has asked in between
                done = self._run(question, asked)
            pair = {"pair": number, "source": source, "sink": sink}
            try:
                yield from self._links(done, pair, kind, nodes, check)
            except BacklightError as error:
                yield {"event": "no_links", **pair, "error": str(error)}, []
        yield {"event": "done", "secs": time.perf_counter() - started}, []

    def _pairs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Each layer and the next one; inputs stand beside each other, all before the first."""
        inputs = [name for name in names if self.layers[name].kind == "input"]
        others = [name for name in names if name not in inputs]
        return [*((each, others[0]) for each in inputs if others), *pairwise(others)]

    def trace(self, asked: Mapping[str, Any]) -> Message:
        """What of each layer's gradient passes through some cells of one layer."""
        question = self.question(asked)
        self._run(question, asked)
        found = self.adapter.trace(str(asked["layer"]), [int(n) for n in asked["cells"]])
        names = [name for name in question.layers if name in found]
        arrays = [_floats(found[name]) for name in names]
        return {"event": "trace", "layers": names, "layer": asked["layer"]}, arrays

    def inputs(self, number: int) -> dict[str, Array]:
        """The inputs of a sample before any edit."""
        if not 0 <= number < self.description.samples:
            raise BacklightError(
                f"There is no sample {number}: there are {self.description.samples}."
            )
        return self.adapter.sample(number)

    def question(self, asked: Mapping[str, Any]) -> Question:
        """What is asked of the model, in its own words."""
        sample = int(asked.get("sample", 0))
        names = tuple(str(name) for name in asked.get("layers") or self.description.chosen)
        unknown = [name for name in names if name not in self.layers]
        if unknown:
            raise BacklightError(f"There is no layer {unknown[0]!r}.")
        order = list(self.layers)
        names = tuple(sorted(dict.fromkeys(names), key=order.index))
        objective = asked.get("objective") or {}
        cells = tuple(int(n) for n in objective.get("cells") or ())
        changed, pins = apply(
            asked.get("edits") or [], self.layers, self.inputs(sample), self.inputs
        )
        return Question(
            sample,
            names,
            Objective(objective.get("layer"), cells),
            changed,
            pins,
            asked.get("step"),
        )

    def flow_matrix(self, source: str, sink: str, check: Callable[[], None]) -> Array:
        """All flows between two layers of the last run, as a matrix."""
        matrix = np.zeros((self.layers[source].size, self.layers[sink].size), np.float32)
        for part in self.adapter.flow(source, sink, "gradient", check):
            if isinstance(part, FlowChunk):
                if part.done < 0:
                    matrix[:] = 0
                np.add.at(matrix, (part.source, part.sink), part.value)
        return matrix

    @property
    def last(self) -> Activity | None:
        """What the last run gave."""
        return self._asked.activity if self._asked else None

    def _run(self, question: Question, asked: Mapping[str, Any]) -> Asked:
        parts = ("sample", "layers", "objective", "edits", "step")
        key = json.dumps([question.layers, *(asked.get(part) for part in parts)], sort_keys=True)
        if self._asked is None or self._asked.key != key:
            self._asked = None
            self._asked = Asked(key, self.adapter.run(question))
        return self._asked

    def _nodes(
        self, question: Question, asked: Mapping[str, Any], activity: Activity
    ) -> dict[str, Nodes]:
        wanted = asked.get("groups") or {}
        found = {}
        for name in question.layers:
            layer, own = self.layers[name], wanted.get(name) or {}
            by = own.get("by") or usual_way(layer)
            opened = tuple(int(n) for n in own.get("open") or ())
            found[name] = nodes_of(layer, by, opened, activity.grads.get(name))
        return found

    def _layers_message(
        self, question: Question, activity: Activity, nodes: Mapping[str, Nodes]
    ) -> Message:
        arrays: list[Array] = []

        def put(array: Array) -> int:
            arrays.append(array)
            return len(arrays) - 1

        words = self._words(activity)
        layers = []
        for name in question.layers:
            grad = activity.grads.get(name)
            layers.append(
                {
                    "name": name,
                    "shape": self.layers[name].shape,
                    "by": nodes[name].by,
                    "labels": self._labels(name, nodes[name], words),
                    "values": put(_floats(activity.values[name])),
                    "grads": None if grad is None else put(_floats(grad)),
                    "nodes": put(nodes[name].node_of),
                    "pinned": None
                    if name not in question.pins
                    else put(question.pins[name].mask.reshape(-1).astype(np.int32)),
                }
            )
        target = activity.target
        header = {
            "event": "layers",
            "layers": layers,
            "objective": activity.objective,
            "objective_name": activity.objective_name,
            "target": None if target is None else put(_floats(target)),
            "target_shape": None if target is None else target.shape,
        }
        return header, arrays

    def _words(self, activity: Activity) -> list[str]:
        """The words of a sequence of token ids, if there is one."""
        known = self.description.tokens
        ids: list[int] = next(
            (
                activity.values[each.name].astype(np.int64).tolist()
                for each in self.description.layers
                if not each.is_real and len(each.shape) == 1 and each.name in activity.values
            ),
            [],
        )
        words = [known[n] if 0 <= n < len(known) else str(n) for n in ids]
        return [_SIGNS.get(word, word) for word in words]

    def _labels(self, name: str, nodes: Nodes, words: Sequence[str]) -> list[str]:
        """What the nodes are called; positions by their words, and outputs may have names."""
        layer, names = self.layers[name], self.description.labels
        if nodes.by in ("position", "query") and words:
            by_position = {f"{nodes.by} {n}": f"{n} {word}" for n, word in enumerate(words)}
            return [by_position.get(label, label) for label in nodes.labels]
        if layer.kind != "output" or len(names) != layer.size or nodes.by != "cell":
            return nodes.labels
        cells = np.bincount(nodes.node_of, minlength=len(nodes.labels)) == 1
        named = dict(zip(nodes.node_of.tolist(), names, strict=True))
        return [named[n] if cells[n] else label for n, label in enumerate(nodes.labels)]

    def _links(
        self,
        done: Asked,
        pair: dict[str, Any],
        kind: str,
        nodes: Mapping[str, Nodes],
        check: Callable[[], None],
    ) -> Iterator[Message]:
        source, sink = pair["source"], pair["sink"]
        if kind not in ("gradient", "activation"):
            raise BacklightError(f"There is no flow {kind!r}: use gradient or activation.")
        ends = nodes[source], nodes[sink]
        key = (source, sink, kind)
        known = done.pairs.get(key)
        gathered = Gathered(*ends)
        if known is None or known.source is None:
            parts: list[FlowChunk] = []
            sums = np.zeros(self.layers[source].size)
            end, kept = None, 0
            for part in self.adapter.flow(source, sink, kind, check):  # type: ignore[arg-type]
                if isinstance(part, FlowEnd):
                    end = part
                    continue
                if part.done < 0:
                    parts, kept, gathered = [], 0, Gathered(*ends)
                    sums[:] = 0
                    continue
                gathered.add(part)
                sums += np.bincount(part.source, part.value, len(sums))
                kept += len(part.value)
                parts = [*parts, part] if kept <= MOST_KEPT else []
                yield {"event": "progress", **pair, "done": part.done, "total": part.total}, []
            assert end is not None
            known = _kept(end, sums, parts, kept)
            done.pairs[key] = known
        else:
            gathered.add(FlowChunk(known.source, known.sink, known.value))  # type: ignore[arg-type]
        yield self._links_message(done.activity, pair, kind, gathered, known, ends[0])

    def _links_message(
        self,
        activity: Activity,
        pair: dict[str, Any],
        kind: str,
        gathered: Gathered,
        known: PairOfLayers,
        source: Nodes,
    ) -> Message:
        start, stop, positive, negative = gathered.links()
        total, dropped = float(positive.sum() - negative.sum()), 0
        if len(start) > MOST_LINKS:
            largest = np.argsort(negative - positive, kind="stable")[:MOST_LINKS]
            dropped = len(start) - MOST_LINKS
            start, stop, positive, negative = (
                each[largest] for each in (start, stop, positive, negative)
            )
        around = known.end.around.reshape(-1)
        around_by_node = [
            np.bincount(source.node_of, part, len(source.labels)).astype(np.float32)
            for part in (around.clip(min=0), around.clip(max=0))
        ]
        header = {
            "event": "links",
            **pair,
            "count": gathered.count,
            "dropped": dropped,
            "total": total,
            "residual": _residual(activity, pair, known) if kind == "gradient" else None,
            "note": known.end.note,
            "is_exact": known.end.is_exact,
            "reach": None if known.end.reach is None else [asdict(s) for s in known.end.reach],
        }
        links = [start.astype(np.int32), stop.astype(np.int32)]
        sizes = [positive.astype(np.float32), negative.astype(np.float32)]
        return header, [*links, *sizes, *around_by_node]


class Gathered:
    """Flows summed up by the nodes at their ends, positive and negative ones apart."""

    def __init__(self, source: Nodes, sink: Nodes) -> None:
        self.source, self.sink = source, sink
        self.count = 0
        self._columns = len(sink.labels)
        pairs = len(source.labels) * self._columns
        self._dense = np.zeros((2, pairs)) if pairs <= _MOST_PAIRS_OF_NODES else None
        self._sparse: list[tuple[Array, Array, Array]] = []

    def add(self, part: FlowChunk) -> None:
        """Add some flows."""
        self.count += len(part.value)
        key = self.source.node_of[part.source].astype(np.int64) * self._columns
        key += self.sink.node_of[part.sink]
        signed = part.value.clip(min=0), part.value.clip(max=0)
        if self._dense is not None:
            for row, value in zip(self._dense, signed, strict=True):
                row += np.bincount(key, value, self._dense.shape[1])
            return
        keys, place = np.unique(key, return_inverse=True)
        sums = [np.bincount(place, value, len(keys)) for value in signed]
        self._sparse.append((keys, sums[0], sums[1]))

    def links(self) -> tuple[Array, Array, Array, Array]:
        """From which node, to which, how much of it positive, how much negative."""
        if self._dense is not None:
            keys = np.flatnonzero(self._dense.any(0))
            positive, negative = self._dense[:, keys]
        elif not self._sparse:
            keys, positive, negative = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        else:
            all_keys = np.concatenate([each[0] for each in self._sparse])
            keys, place = np.unique(all_keys, return_inverse=True)
            positive, negative = (
                np.bincount(place, np.concatenate([each[n] for each in self._sparse]), len(keys))
                for n in (1, 2)
            )
        return keys // self._columns, keys % self._columns, positive, negative


def _kept(end: FlowEnd, sums: Array, parts: Sequence[FlowChunk], count: int) -> PairOfLayers:
    if count > MOST_KEPT:
        return PairOfLayers(end, sums)
    empty = FlowChunk(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    whole = [*parts, empty]
    return PairOfLayers(
        end,
        sums,
        np.concatenate([each.source for each in whole]),
        np.concatenate([each.sink for each in whole]),
        np.concatenate([each.value for each in whole]),
    )


def _residual(activity: Activity, pair: Mapping[str, Any], known: PairOfLayers) -> float:
    """How far the flows and what goes around are from the gradient, as a share of its largest."""
    if known.end.residual is not None:
        return known.end.residual
    left_out = 0.0 if known.end.left_out is None else known.end.left_out.reshape(-1)
    grad = activity.grads[pair["source"]].reshape(-1).astype(np.float64)
    largest = np.abs(grad).max(initial=0.0)
    off = np.abs(known.sums + left_out + known.end.around.reshape(-1) - grad).max(initial=0.0)
    return float(off / largest) if largest > 0 else float(off)


def _floats(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32).reshape(-1)
