"""An anomaly that is looked for while a run trains: step by step, with a short memory."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.anomaly.evaluate import USUAL_OVER, Real, Series, evaluate
from backlight.anomaly.patterns import is_found
from backlight.anomaly.pooling import needed_columns, pool
from backlight.anomaly.syntax import STEP_FACTS, Function, Scalar, Statistic, nodes_of, parse
from backlight.anomaly.tokens import fail
from backlight.store.own import matrix

_UNKNOWN = Series(np.array([np.nan]), np.array([False]))


class WatchedAnomaly:
    """An expression, asked of one step after another. It happens when it becomes true.

    >>> hot = WatchedAnomaly("hot", "loss > 1", str)
    >>> [hot.happens({"step": step, "loss": loss}, None, {}) for step, loss in enumerate([0, 2, 3])]
    [False, True, False]
    """

    length = 1

    def __init__(
        self, name: str, text: str, name_of: Callable[[int], str], own: Sequence[str] = ()
    ) -> None:
        self._own = list(own)
        self.name, self.expression = name, parse(text, own)
        for node in nodes_of(self.expression.root):
            if isinstance(node, Function) and node.name == "rank":
                fail("rank needs the whole run: use usual in a trainer", text, node.column)
        self._name_of = name_of
        self._is_matched: dict[str, dict[int, bool]] = {}
        self._before: dict[Function, deque[float]] = {}
        self._was_true = False

    def happens(
        self, row: Mapping[str, Any], stats: pa.RecordBatch | None, logged: Mapping[str, float]
    ) -> bool:
        """Whether it is true at this step and was not when it was last known."""
        self._row, self._stats, self._logged = row, stats, logged
        found = evaluate(self.expression, self)
        if not found.known[0]:
            return False
        was_true, self._was_true = self._was_true, bool(found.is_true[0])
        return self._was_true and not was_true

    def statistic(self, asked: Statistic) -> Series:
        """A statistic of the tensors whose names match, in this step."""
        if self._stats is None:
            return _UNKNOWN
        is_asked = self._matching(asked.pattern, self._stats.column("site").to_numpy())
        is_asked &= pc.equal(self._stats["quantity"], asked.quantity).to_numpy(zero_copy_only=False)
        iteration = self._stats["iteration"].to_numpy()
        is_asked &= iteration >= 0
        if asked.iteration and is_asked.any():
            own = iteration[is_asked]
            is_asked &= iteration == (own.max() if asked.iteration == "last" else own.min())
        at = np.flatnonzero(is_asked)
        rows = {name: self._numbers(name)[at] for name in needed_columns(asked.name)}
        return pool(asked, rows, np.zeros(len(at), np.int64), 1)

    def _numbers(self, name: str) -> Real:
        assert self._stats is not None
        if name not in self._own:
            return np.asarray(self._stats[name].to_numpy(zero_copy_only=False), np.float64)
        if "own" not in self._stats.schema.names:
            return np.full(self._stats.num_rows, np.nan)
        return matrix(pa.chunked_array([self._stats["own"]]), len(self._own))[
            :, self._own.index(name)
        ]

    def _matching(self, pattern: str, sites: Any) -> Any:
        known = self._is_matched.setdefault(pattern, {})
        numbers = sites.tolist()
        new = [*({*numbers} - known.keys())]
        if new:
            found = is_found(pattern, [self._name_of(site) for site in new])
            known.update(zip(new, found.tolist(), strict=True))
        return np.array([known[site] for site in numbers], bool)

    def scalar(self, asked: Scalar) -> Series:
        """A fact of this step, or what was logged last."""
        is_fact = asked.name in STEP_FACTS
        value = self._row.get(asked.name) if is_fact else self._logged.get(asked.name)
        if asked.name == "loss" and self._row.get("loss") is not None:
            value = self._row["loss"]
        return _UNKNOWN if value is None else Series(np.array([float(value)]), np.array([True]))

    def windowed(self, asked: Function, series: Series) -> Series:
        """`previous` or `usual` of what was seen so far."""
        before = self._before.setdefault(asked, deque(maxlen=USUAL_OVER))
        result = _UNKNOWN
        if before and series.known[0]:
            value = before[-1] if asked.name == "previous" else statistics.median(before)
            result = Series(np.array([value]), np.array([True]))
        if series.known[0]:
            before.append(float(series.values[0]))
        return result
