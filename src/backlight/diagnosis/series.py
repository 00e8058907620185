"""Statistics of a run as compact arrays: one row for each site and quantity, one column a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES, STATISTICS

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

MOST_STEPS: Final = 256
"""Of a longer run, so many recorded steps are looked at: all at the start, then pairs, evenly."""

_NUMBERS: Final = (
    *STATISTICS,
    *("count", "zeros", "units", "dead_units", "constant_units", "batch_std"),
)
_SUMS: Final = ("nans", "infs")
_KEYS: Final = ("step", "site", "quantity", "order")


@dataclass(frozen=True)
class SeriesTable:
    """Every statistic of every site and quantity over the chosen steps; NaN where there is none."""

    steps: Whole
    sites: Whole  # of each row
    quantities: Whole  # of each row, a position in QUANTITIES
    orders: Whole  # of each row, its place in the step where it was first seen
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    values: dict[str, Real]
    rows: dict[tuple[int, int], int]

    def get(self, site: int, quantity: str, statistic: str) -> Real:
        """One statistic over the steps."""
        row = self.rows.get((site, QUANTITIES.index(quantity)))
        if row is None:
            return np.full(len(self.steps), np.nan)
        found: Real = self.values[statistic][row]
        return found

    def has(self, site: int, quantity: str) -> bool:
        """Whether a quantity was ever observed at a site."""
        return (site, QUANTITIES.index(quantity)) in self.rows


def chosen_steps(recorded: Whole, most: int = MOST_STEPS) -> Whole:
    """The steps that are looked at: a quarter of them at the start, the others evenly.

    These are pairs of steps that follow each other: what stands together is read together.

    >>> chosen_steps(np.arange(1000), most=8).tolist()
    [0, 1, 2, 499, 500, 998, 999]
    """
    if len(recorded) <= most:
        return recorded
    pairs = np.linspace(1, len(recorded) - 1, most // 4 + 1).round().astype(np.int64)
    chosen: Whole = recorded[
        np.unique(np.concatenate([np.arange(most // 4 + 1), pairs - 1, pairs]))
    ]
    return chosen


class Statistics(Protocol):
    """Where the statistics of a run come from."""

    @property
    def recorded_steps(self) -> Whole:
        """The steps that have any."""

    def of_steps(self, steps: Whole, columns: list[str]) -> pa.Table:
        """Those of some steps, with their rank."""


def load_series(stats: Statistics, steps: Whole) -> SeriesTable:
    """Read the statistics of the chosen steps."""
    rows = _rows(stats, steps)
    step, site, order = (rows[name].to_numpy() for name in ("step", "site", "order"))
    names = pa.array(QUANTITIES)
    quantity = pc.index_in(rows["quantity"], value_set=names).to_numpy().astype(np.int64)
    keys = site.astype(np.int64) * len(QUANTITIES) + quantity
    unique, first, row = np.unique(keys, return_index=True, return_inverse=True)
    column = np.searchsorted(steps, step)
    orders = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(orders, row, order)
    table = rows.select(["dtype", "shape"]).take(pa.array(first))
    return SeriesTable(
        steps=steps,
        sites=unique // len(QUANTITIES),
        quantities=unique % len(QUANTITIES),
        orders=orders,
        dtypes=table["dtype"].to_pylist(),
        shapes=[tuple(shape) for shape in table["shape"].to_pylist()],
        values=_values(rows, row, column, (len(unique), len(steps))),
        rows={
            (int(key) // len(QUANTITIES), int(key) % len(QUANTITIES)): place
            for place, key in enumerate(unique)
        },
    )


def _rows(stats: Statistics, steps: Whole) -> pa.Table:
    columns = [*_KEYS, "dtype", "shape", *_NUMBERS, *_SUMS]
    table = stats.of_steps(steps, columns)
    lowest = pc.min(table["rank"]).as_py()
    return table.filter(pc.field("rank") == lowest).combine_chunks()


def _values(rows: pa.Table, row: Whole, column: Whole, shape: tuple[int, int]) -> dict[str, Real]:
    values: dict[str, Real] = {}
    for name in _NUMBERS:
        filled = np.full(shape, np.nan)
        # Of several iterations of a step, the last one is kept.
        filled[row, column] = _floats(rows[name])
        values[name] = filled
    for name in _SUMS:
        filled = np.zeros(shape)
        np.add.at(filled, (row, column), _floats(rows[name]))
        seen = np.isnan(values["count"])
        values[name] = np.where(seen, np.nan, filled)
    return values


def _floats(column: Any) -> Real:
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)


def finite(values: Real | Sequence[float]) -> Real:
    """The values that are numbers."""
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]


def early(values: Real, steps: int = 3) -> float:
    """The median of the first values that there are; NaN of none.

    >>> early(np.array([np.nan, 1.0, 2.0, 3.0, 100.0]))
    2.0
    """
    found = finite(values)[:steps]
    return float(np.median(found)) if len(found) else float("nan")


def late(values: Real, share: float = 1 / 3) -> float:
    """The median of the last third of the values that there are; NaN of none.

    >>> late(np.array([9.0, 9.0, 1.0, np.nan]))
    1.0
    """
    found = finite(values)
    count = max(1, int(len(found) * share))
    return float(np.median(found[-count:])) if len(found) else float("nan")


def typical(values: Real) -> float:
    """The median of the values that there are; NaN of none."""
    found = finite(values)
    return float(np.median(found)) if len(found) else float("nan")
