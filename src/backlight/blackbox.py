"""The black box: the last steps, held in memory, and written when something happens."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES, STATS
from backlight.store.columns import column, elements
from backlight.store.packed import Packed, as_batch
from backlight.store.recorded_flows import RecordedFlows
from backlight.store.values import StepValues

_QUANTITIES, _GRAD = column(QUANTITIES, pa.utf8()), column(["grad"], pa.utf8())
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
    tell_written: Callable[[bool], None] | None = None  # whether it was, once that is known
    scale: float = 1.0  # of the loss, and so of its gradients
    left_out: int = 0  # updates in a row, as gradients were not finite; 0 if the step made them


class BlackBox:
    """Holds the last steps that were captured but are not to be kept, unless something happens.

    >>> box = BlackBox(2)
    >>> for step in range(3):
    ...     leaving = box.make_room()
    ...     box.hold(StepRecord({"step": step}))
    >>> leaving.row
    {'step': 0}
    >>> [record.row["step"] for record in box.open("a spike")]
    [1, 2]
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._held: deque[StepRecord] = deque()

    def make_room(self) -> StepRecord | None:
        """Let the oldest step go if there is no room for another; it is not kept."""
        return self._held.popleft() if len(self._held) >= self.steps else None

    def hold(self, record: StepRecord) -> None:
        """Take a step in, for which there is room."""
        self._held.append(record)

    def open(self, why: str) -> list[StepRecord]:
        """Hand over every step that is held, oldest first, each with why it is kept."""
        records = list(self._held)
        self._held.clear()
        for record in records:
            record.row = {**record.row, "recorded": True, "reason": f"black box: {why}"}
        return records


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """Where a step has NaN and infinities. A place is a site and a quantity, as one number."""

    kinds: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    """The places with NaN, and those with infinity."""
    seen: set[int] = field(default_factory=set)
    """Of the places that were known to be not finite, those that this step has seen again."""
    rows: pa.RecordBatch | None = None
    place_of: Any = None  # of each row

    def without_gradients(self) -> Nonfinite:
        """The same, as if no gradient were known."""
        nans, infs = (set(filterfalse(_is_gradient, places)) for places in self.kinds)
        seen = set(filterfalse(_is_gradient, self.seen))
        return Nonfinite((nans, infs), seen, self.rows, self.place_of)

    def first_of(self, places: Iterable[int]) -> dict[str, Any]:
        """The first row, in the order of the step, that is not finite at one of these places."""
        assert self.rows is not None
        nans, infs = (elements(self.rows.column(name)) for name in ("nans", "infs"))
        at = np.flatnonzero(np.isin(self.place_of, list(places)) & (nans + infs > 0))
        orders = elements(self.rows.column("order"))
        first = int(at[np.argmin(orders[at])])
        names = ("site", "quantity", "nans", "infs", "count", "order")
        return {name: self.rows.column(name)[first].as_py() for name in names}


def nonfinite_in(rows: Packed | pa.RecordBatch, known: Iterable[set[int]]) -> Nonfinite:
    """Where a step has NaN and infinities, and which of the places that are known it has seen."""
    places = set().union(*known)
    stats = as_batch(rows)
    # It is asked at every step: where all bytes are 0 there is nothing to find.
    columns = [stats.column(place) for place in (_NANS, _INFS)]
    if not places and not any(map(_has_bits, columns)):
        return Nonfinite()
    quantities = pc.index_in(stats.column("quantity"), value_set=_QUANTITIES)
    place_of = elements(stats.column("site")) * len(QUANTITIES) + elements(quantities)
    nans, infs = ({*place_of[elements(column) > 0].tolist()} for column in columns)
    again = place_of[np.isin(place_of, list(places))]
    return Nonfinite((nans, infs), {*again.tolist()}, stats, place_of)


def _is_gradient(place: int) -> bool:
    return QUANTITIES[place % len(QUANTITIES)] == "grad"


def _has_bits(column: pa.Array) -> bool:
    return bool(column.buffers()[1].to_pybytes().strip(b"\0"))


def gradient_norm(rows: Packed | pa.RecordBatch | None) -> float | None:
    """The norm of all gradients in a step's statistics together, or None if there are none."""
    if rows is None:
        return None
    stats = as_batch(rows)
    grads = stats.filter(pc.is_in(stats.column("quantity"), value_set=_GRAD))
    rms = grads.column("rms")
    squares = pc.multiply(pc.multiply(rms, rms), grads.column("count"))
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
