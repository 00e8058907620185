"""Where an anomaly shows in a run that was recorded: over its steps, or over single samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.anomaly.evaluate import Series, windowed
from backlight.anomaly.patterns import is_found
from backlight.anomaly.pooling import needed_columns, pool
from backlight.anomaly.syntax import STEP_FACTS, Expression, Function, Scalar, Statistic
from backlight.anomaly.tokens import fail
from backlight.store.snapshot import Snapshot

Whole = npt.NDArray[np.int64]

SAMPLE_STATISTICS: Final = ("mean", "abs_mean", "std", "abs_max")
"""What is kept of single samples."""


@dataclass(frozen=True)
class Axis:
    """What an anomaly is looked for over: steps, or samples of steps (-1 where it is the step)."""

    steps: Whole
    samples: Whole

    def places(self, steps: Whole, samples: Whole | None) -> Whole:
        """Where these are; -1 for those that are not here."""
        mine = _joined(self.steps, self.samples)
        asked = _joined(steps, np.full(len(steps), -1) if samples is None else samples)
        found = np.minimum(np.searchsorted(mine, asked), max(0, len(mine) - 1))
        is_here = mine[found] == asked if len(mine) else np.zeros(len(asked), bool)
        return np.where(is_here, found, -1)


def _joined(steps: Whole, samples: Whole) -> Whole:
    return steps.astype(np.int64) * (1 << 32) + samples.astype(np.int64) + 1


class RunSource:
    """The numbers of a run that was read, for expressions."""

    def __init__(self, snapshot: Snapshot, expression: Expression, *, by: str, axis: Axis) -> None:
        self._snapshot, self._text = snapshot, expression.text
        self._table = "samples" if by == "sample" else "stats"
        self.axis = axis

    @property
    def length(self) -> int:
        """How many steps or samples there are."""
        return len(self.axis.steps)

    def statistic(self, asked: Statistic) -> Series:
        """A statistic of the tensors whose names match."""
        if self._table == "samples" and asked.name not in SAMPLE_STATISTICS:
            self._fail(f"Of samples there are {', '.join(SAMPLE_STATISTICS)}", asked.column)
        sites = matching_sites(self._snapshot, asked.pattern)
        if not sites:
            self._fail(f"No site's name matches {asked.pattern!r}", asked.column)
        names = needed_columns(asked.name)
        if self._table == "samples":
            names = [name for name in names if name in SAMPLE_STATISTICS]
        keys = ["step", "iteration", "quantity", *(["sample"] if self._table == "samples" else [])]
        rows = self._snapshot.of_sites(sites, [*keys, *names], table=self._table)
        return pooled(asked, rows, names, self.axis)

    def scalar(self, asked: Scalar) -> Series:
        """What was logged, the last value of a step; the loss may have been seen instead."""
        steps, values = self._scalar_values(asked)
        by_step = dict(zip(steps.tolist(), values.tolist(), strict=True))
        known = np.array([step in by_step for step in self.axis.steps.tolist()], bool)
        found = [by_step.get(step, np.nan) for step in self.axis.steps.tolist()]
        return Series(np.array(found, np.float64), known)

    def _scalar_values(self, asked: Scalar) -> tuple[Any, Any]:
        if asked.name in STEP_FACTS:
            return _of_steps(self._snapshot, asked.name)
        table = lowest_rank(self._snapshot.held["scalars"])
        rows = table.filter(pc.equal(table["name"], asked.name)).sort_by("logged_at")
        if rows.num_rows:
            return rows["step"].to_numpy(), rows["value"].to_numpy()
        if asked.name == "loss":
            steps, values = _of_steps(self._snapshot, "loss")
            if len(steps):
                return steps, values
        logged = sorted(pc.unique(table["name"]).to_pylist())
        known = ", ".join(logged[:20]) or "nothing"
        return self._fail(f"{asked.name!r} was not logged, but {known}", asked.column)

    def windowed(self, asked: Function, series: Series) -> Series:
        """`previous`, `usual` or `rank` of a number."""
        if self._table == "samples" and asked.name != "rank":
            self._fail(f"Samples have no order in time: {asked.name} is for steps", asked.column)
        return windowed(asked.name, series)

    def _fail(self, sentence: str, column: int) -> NoReturn:
        fail(sentence, self._text, column)


def pooled(asked: Statistic, rows: pa.Table, names: Iterable[str], axis: Axis) -> Series:
    """A statistic of some rows, over an axis."""
    rows = lowest_rank(rows.filter(pc.field("quantity") == asked.quantity))
    rows = rows.filter(pc.field("iteration") >= 0)
    samples = rows["sample"].to_numpy() if "sample" in rows.schema.names else None
    place = axis.places(rows["step"].to_numpy(), samples)
    is_here = place >= 0
    if asked.iteration:
        is_here &= _is_at_end(place, rows["iteration"].to_numpy(), asked.iteration)
    numbers = {name: floats(rows[name])[is_here] for name in names}
    return pool(asked, numbers, place[is_here], len(axis.steps))


def _is_at_end(place: Whole, iteration: Whole, which: str) -> npt.NDArray[np.bool_]:
    """Whether a row is of the first or last iteration that its step or sample has."""
    signed = iteration if which == "last" else -iteration
    most = np.full(int(place.max(initial=-1)) + 2, np.iinfo(np.int64).min)
    np.maximum.at(most, place + 1, signed)
    return np.asarray(signed == most[place + 1], bool)


def matching_sites(snapshot: Snapshot, pattern: str) -> list[int]:
    """The sites in whose names the pattern is found."""
    sites = snapshot.held["sites"]
    is_asked = is_found(pattern, sites["name"].to_pylist())
    found: list[int] = sites["site"].to_numpy()[is_asked].tolist()
    return found


def step_axis(snapshot: Snapshot) -> Axis:
    """Every step of the run."""
    told = snapshot.held["steps"]["step"].to_numpy()
    steps = np.unique(np.concatenate([told, snapshot.recorded_steps]))
    return Axis(steps, np.full(len(steps), -1))


def sample_axis(snapshot: Snapshot, expression: Expression) -> Axis:
    """Every sample that was kept of a tensor that the expression names."""
    sites = {
        site for each in expression.statistics for site in matching_sites(snapshot, each.pattern)
    }
    if not expression.statistics:
        fail("Over samples, a statistic of a tensor is needed", expression.text, 1)
    rows = lowest_rank(snapshot.of_sites(sorted(sites), ["step", "sample"], table="samples"))
    pairs = np.unique(_joined(rows["step"].to_numpy(), rows["sample"].to_numpy()))
    return Axis(pairs >> 32, (pairs & ((1 << 32) - 1)) - 1)


def lowest_rank(table: pa.Table) -> pa.Table:
    """The rows of the lowest rank that has any."""
    lowest = pc.min(table["rank"]).as_py()
    return table.filter(pc.field("rank") == lowest) if lowest is not None else table


def _of_steps(snapshot: Snapshot, name: str) -> tuple[Any, Any]:
    table = lowest_rank(snapshot.held["steps"])
    table = table.filter(pc.is_valid(table[name])) if table.num_rows else table
    return table["step"].to_numpy(), floats(table[name])


def floats(column: Any) -> npt.NDArray[np.float64]:
    """A column as floats; NaN where it has none."""
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)
