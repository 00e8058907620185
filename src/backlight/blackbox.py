"""The black box: the last steps, held in memory, and written when something happens."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import STATS
from backlight.store.packed import Packed, as_batch
from backlight.store.recorded_flows import RecordedFlows
from backlight.store.values import StepValues

_NANS, _INFS = STATS.names.index("nans"), STATS.names.index("infs")


@dataclass(slots=True)
class StepRecord:
    """A step that has ended: its row of the `steps` table, and what was captured of it."""

    row: dict[str, Any]
    stats: Packed | pa.RecordBatch | None = None
    samples: pa.RecordBatch | None = None
    values: StepValues | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    flows: tuple[RecordedFlows, ...] | None = None


class BlackBox:
    """Holds the last steps that were captured but are not to be kept, unless something happens.

    >>> box = BlackBox(2)
    >>> [box.hold(StepRecord({"step": step})) for step in range(3)][-1].row
    {'step': 0}
    >>> [record.row["step"] for record in box.open("a spike")]
    [1, 2]
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._held: deque[StepRecord] = deque()

    def hold(self, record: StepRecord) -> StepRecord | None:
        """Take a step in; the one that leaves for it, if any, is not kept."""
        self._held.append(record)
        return self._held.popleft() if len(self._held) > self.steps else None

    def open(self, why: str) -> list[StepRecord]:
        """Hand over every step that is held, oldest first, each with why it is kept."""
        records = list(self._held)
        self._held.clear()
        for record in records:
            record.row = {**record.row, "recorded": True, "reason": f"black box: {why}"}
        return records


def first_nonfinite(rows: Packed | pa.RecordBatch | None) -> dict[str, Any] | None:
    """The first observation of a step that has a NaN or an infinity, or None."""
    if rows is None:
        return None
    stats = as_batch(rows)
    # It is asked at every step: where all bytes are 0 there is nothing to find.
    if not any(_has_bits(stats.column(place)) for place in (_NANS, _INFS)):
        return None
    is_bad = stats.column(_NANS).to_numpy() + stats.column(_INFS).to_numpy() > 0
    if not is_bad.any():
        return None
    bad = stats.filter(pa.array(is_bad))
    first = pc.index(bad["order"], pc.min(bad["order"])).as_py()
    names = ("site", "quantity", "nans", "infs", "count", "order")
    return {name: bad[name][first].as_py() for name in names}


def _has_bits(column: pa.Array) -> bool:
    return bool(column.buffers()[1].to_pybytes().strip(b"\0"))


def gradient_norm(rows: Packed | pa.RecordBatch | None) -> float | None:
    """The norm of all gradients in a step's statistics together, or None if there are none."""
    if rows is None:
        return None
    stats = as_batch(rows)
    grads = stats.filter(pc.equal(stats["quantity"], "grad"))
    squares = pc.multiply(pc.multiply(grads["rms"], grads["rms"]), grads["count"])
    total = pc.sum(squares).as_py()
    return None if total is None else float(total) ** 0.5


@dataclass(slots=True)
class SpikeDetector:
    """Tells a value that stands far out from those before it.

    >>> detector = SpikeDetector()
    >>> any(detector.is_spike(1.0 + 0.01 * (step % 7)) for step in range(40))
    False
    >>> detector.is_spike(9.0)
    True
    """

    memory: int = 64
    least: int = 16
    values: deque[float] = field(default_factory=deque)

    def is_spike(self, value: float) -> bool:
        """Whether the value is an outlier, by the median and its absolute deviation."""
        found = len(self.values) >= self.least and self._stands_out(value)
        self.remember([value])
        return found

    def remember(self, values: list[float]) -> None:
        """Compare what comes with these values too."""
        self.values.extend(values)
        while len(self.values) > self.memory:
            self.values.popleft()

    def _stands_out(self, value: float) -> bool:
        if 0 < value <= 2 * min(self.values):
            return False  # whatever the median is, as for most losses: it is asked at every step
        middle = statistics.median(self.values)
        if value - middle <= max(abs(middle), 1e-12):
            return False
        spread = statistics.median(abs(other - middle) for other in self.values)
        return value - middle > 10 * spread
