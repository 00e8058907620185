"""Two runs side by side: where they first differ, and by how much at each site and step.

Runs are compared at the steps that both recorded and at the sites that both have by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES
from backlight.store.heatmap import Columns
from backlight.store.iterations import of_iteration
from backlight.store.reader import RunReader
from backlight.store.snapshot import Snapshot
from backlight.store.tiles import UPDATE_RATIO, made_of, row_quantities, shown, with_ratios

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

_ROWS_AT_ONCE: Final = 200_000
_MOST_ROWS: Final = 2_000_000
_KEYS: Final = ("step", "iteration", "order", "site", "quantity", "backward")
_COUNTS: Final = ("count", "zeros", "nans", "infs")
_BY_RMS: Final = ("mean", "std", "abs_mean", "rms")
_BY_ABS_MAX: Final = ("min", "max", "abs_max")
_COMPARED: Final = (*_COUNTS, *_BY_RMS, *_BY_ABS_MAX)


@dataclass(frozen=True)
class Common:
    """What two runs have in common: recorded steps, and sites by their names."""

    steps: Whole
    sites: Whole  # of the first run, ascending
    other_sites: Whole  # of the second, in the same order


def common(one: Snapshot, other: Snapshot) -> Common:
    """The steps and sites that are in both."""
    steps = np.intersect1d(one.recorded_steps, other.recorded_steps)
    own, theirs = _sites_by_name(one), _sites_by_name(other)
    pairs = sorted((own[name], theirs[name]) for name in own.keys() & theirs.keys())
    sites = np.array(pairs, np.int64).reshape(-1, 2)
    return Common(steps, sites[:, 0].copy(), sites[:, 1].copy())


def _sites_by_name(snapshot: Snapshot) -> dict[str, int]:
    sites = snapshot.held["sites"]
    return dict(zip(sites["name"].to_pylist(), sites["site"].to_pylist(), strict=True))


@dataclass(frozen=True)
class Difference:
    """One quantity at one site and step that is not the same in both runs."""

    step: int
    iteration: int
    site: int
    quantity: str
    statistic: str
    one: float | None
    other: float | None
    relative: float


@dataclass(frozen=True)
class Parting:
    """The first difference of any size, and the first beyond a tolerance; None where there is none.

    First is the earliest step, and in it what was computed first.
    """

    common: Common
    exact: Difference | None
    beyond: Difference | None
    compared: int


def parting(one: RunReader, other: RunReader, *, tolerance: float = 1e-3) -> Parting:
    """Where two runs part.

    A statistic differs by |a - b|, relative to the larger root mean square of both; least, greatest
    and greatest magnitude relative to the larger magnitude. Other numbers of elements, or of NaN
    and infinity, are beyond any tolerance.
    """
    shared = common(one.snapshot, other.snapshot)
    exact = beyond = None
    compared = 0
    for rows, theirs in _matched(one.snapshot, other.snapshot, shared):
        differences = _Differences(rows, theirs)
        compared += rows.num_rows
        exact = exact or differences.first(differences.relative > 0)
        beyond = beyond or differences.first(differences.relative > tolerance)
        if beyond is not None:
            break
    return Parting(shared, exact, beyond, compared)


class _Differences:
    """How far each of some observations is from its counterpart."""

    def __init__(self, rows: pa.Table, theirs: pa.Table) -> None:
        self._rows, self._theirs = rows, theirs
        each = [self._relative(name) for name in _COMPARED]
        self._each = np.stack(each) if each else np.zeros((0, 0))
        self.relative = self._each.max(axis=0, initial=0.0)

    def _relative(self, name: str) -> Real:
        one, other = _real(self._rows[name]), _real(self._theirs[name])
        is_one_null, is_other_null = np.isnan(one), np.isnan(other)
        if name in _COUNTS:
            return np.where(one == other, 0.0, np.inf)
        of = "rms" if name in _BY_RMS else "abs_max"
        scale = np.fmax(_real(self._rows[of]), _real(self._theirs[of]))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.abs(one - other) / np.abs(scale)
        relative = np.where(one == other, 0.0, np.nan_to_num(relative, nan=np.inf))
        return np.where(is_one_null & is_other_null, 0.0, relative)

    def first(self, is_asked: npt.NDArray[np.bool_]) -> Difference | None:
        """The first of those that are asked for, in the order in which they were computed."""
        places = np.flatnonzero(is_asked)
        if len(places) == 0:
            return None
        keys = [self._rows[name].to_numpy()[places] for name in ("order", "step")]
        place = int(places[np.lexsort(keys)[0]])
        statistic = _COMPARED[int(np.argmax(self._each[:, place]))]
        row = self._rows.slice(place, 1).to_pylist()[0]
        other = self._theirs.slice(place, 1).to_pylist()[0]
        return Difference(
            step=row["step"],
            iteration=row["iteration"],
            site=row["site"],
            quantity=row["quantity"],
            statistic=statistic,
            one=row[statistic],
            other=other[statistic],
            relative=float(self.relative[place]),
        )


def _matched(one: Snapshot, other: Snapshot, shared: Common) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of both runs that are about the same, some steps at a time."""
    names = list(dict.fromkeys([*_KEYS, *_COMPARED]))
    for steps in _portions(one, shared.steps):
        rows = [
            _at_steps(each, steps, sites, names)
            for each, sites in ((one, shared.sites), (other, shared.other_sites))
        ]
        yield _aligned(rows[0], rows[1], shared)


def _portions(snapshot: Snapshot, steps: Whole) -> Iterator[Whole]:
    """The steps in portions that are soon read; the first ones small, for runs part early."""
    per_step = snapshot.rows["stats"] / max(1, len(snapshot.recorded_steps))
    most = int(max(1, _ROWS_AT_ONCE / max(1.0, per_step)))
    start, size = 0, 1
    while start < len(steps):
        yield steps[start : start + size]
        start, size = start + size, min(most, size * 4)


def _at_steps(snapshot: Snapshot, steps: Whole, sites: Whole, names: list[str]) -> pa.Table:
    rows = snapshot.at_steps(int(steps[0]), int(steps[-1]), names)
    return rows.filter(
        pc.field("step").isin(pa.array(steps)) & pc.field("site").isin(pa.array(sites, pa.int32()))
    )


def _aligned(rows: pa.Table, theirs: pa.Table, shared: Common) -> tuple[pa.Table, pa.Table]:
    """The rows of both that are about the same step, iteration, site, quantity, pass and rank."""
    places = (
        np.searchsorted(shared.sites, rows["site"].to_numpy()),
        _place_of(shared.other_sites)[theirs["site"].to_numpy()],
    )
    passes = pa.array(
        pc.unique(pa.concat_tables([t.select(["backward"]) for t in (rows, theirs)])["backward"])
    )
    parts = [_parts(*each, passes) for each in zip((rows, theirs), places, strict=True)]
    keys = _numbered(*parts)
    _, own, other = np.intersect1d(*keys, return_indices=True)
    return rows.take(pa.array(own)), theirs.take(pa.array(other))


def _place_of(sites: Whole) -> Whole:
    """For each site's number its place among these."""
    table = np.zeros(int(sites.max(initial=0)) + 1, np.int64)
    table[sites] = np.arange(len(sites))
    return table


def _parts(rows: pa.Table, place: Whole, passes: pa.Array) -> list[Whole]:
    """What a row is about, as numbers."""
    texts = (("quantity", pa.array(QUANTITIES)), ("backward", passes))
    codes = [pc.index_in(rows[name], known).to_numpy() for name, known in texts]
    numbers = [rows[name].to_numpy() for name in ("step", "iteration", "rank")]
    return [np.asarray(each, np.int64) for each in (*numbers, place, *codes)]


def _numbered(one: list[Whole], other: list[Whole]) -> tuple[Whole, Whole]:
    """One number for each row of both, the same for what is about the same.

    >>> one, other = _numbered([np.array([3, 4]), np.array([0, 1])], [np.array([4]), np.array([1])])
    >>> one.tolist().index(other[0])
    1
    """
    keys = [np.zeros(len(each[0]), np.int64) for each in (one, other)]
    for own, theirs in zip(one, other, strict=True):
        low = min(own.min(initial=0), theirs.min(initial=0))
        width = int(max(own.max(initial=0), theirs.max(initial=0)) - low) + 1
        for key, part in zip(keys, (own, theirs), strict=True):
            key *= width
            key += part - low
    return keys[0], keys[1]


def _real(column: pa.ChunkedArray) -> Real:
    return np.asarray(column.to_numpy(), np.float64)


def differences(
    one: RunReader,
    other: RunReader,
    *,
    quantity: str,
    statistic: str,
    columns: int,
    iteration: int | None = None,
    kind: str | None = None,
) -> tuple[pa.Table, list[list[int]], list[int]]:
    """One statistic of both runs over common steps: `site, column, one, other, nans, infs`.

    It is about one iteration, the last unless another is said, and about steps of one kind of the
    first run, if one is said. Where a column holds several steps, it shows the one at which both
    differ most, relatively. Also each column's first and last step, and how many of how many common
    steps were read.
    """
    shared = common(one.snapshot, other.snapshot)
    asked = shared.steps[np.isin(shared.steps, one.recorded_steps(kind))]
    most = max(1, _MOST_ROWS // max(1, len(shared.sites)))
    steps = asked[_evenly(len(asked), most)]
    width = min(columns, len(steps))
    placed = Columns(steps, np.arange(len(steps)) * width // max(1, len(steps)))
    needed = ["step", "iteration", "site", "quantity", "nans", "infs"]
    needed = list(dict.fromkeys([*needed, *made_of(statistic)]))
    found = []
    for run, sites in ((one, shared.sites), (other, shared.other_sites)):
        matrix = _matrix(run.snapshot, steps, sites, needed, quantity, statistic, iteration)
        found.append(matrix)
    table = _cells(found, shared.sites, placed)
    return table, placed.ranges, [len(steps), len(asked)]


def _matrix(
    snapshot: Snapshot,
    steps: Whole,
    sites: Whole,
    names: list[str],
    quantity: str,
    statistic: str,
    iteration: int | None,
) -> tuple[Real, Real, Real, npt.NDArray[np.bool_]]:
    """An iteration's value, NaNs and infinities at each site and step; and if it has one."""
    shape = (len(sites), len(steps))
    value, nans, infs = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
    is_there = np.zeros(shape, bool)
    order = np.argsort(sites)
    for portion in _portions(snapshot, steps):
        rows = _at_steps(snapshot, portion, sites, names)
        quantities = pa.array(row_quantities(quantity, statistic), pa.string())
        rows = rows.filter(pc.field("quantity").isin(quantities))
        rows = with_ratios(rows) if statistic == UPDATE_RATIO else rows
        rows = of_iteration(rows, iteration)
        if rows.num_rows == 0:
            continue
        # The last written wins: that of the lowest rank.
        rows = rows.sort_by([("rank", "descending"), ("iteration", "ascending")])
        row = order[np.searchsorted(sites[order], rows["site"].to_numpy())]
        column = np.searchsorted(steps, rows["step"].to_numpy())
        value[row, column] = shown(rows, statistic)
        nans[row, column] = rows["nans"].to_numpy()
        infs[row, column] = rows["infs"].to_numpy()
        is_there[row, column] = True
    return value, nans, infs, is_there


def _cells(found: list[Any], sites: Whole, placed: Columns) -> pa.Table:
    (a, a_nans, a_infs, a_there), (b, b_nans, b_infs, b_there) = found
    is_there = a_there & b_there
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(a - b) / np.fmax(np.abs(a), np.abs(b))
    apart = np.where(is_there, np.nan_to_num(apart, nan=0.0), -1.0)
    row, step = np.nonzero(is_there)
    key = row * (int(placed.numbers.max(initial=0)) + 1) + placed.numbers[step]
    order = np.lexsort([apart[row, step], key])
    is_last = (
        np.append(key[order][1:] != key[order][:-1], True) if len(order) else order.astype(bool)
    )
    row, step = row[order][is_last], step[order][is_last]
    return pa.table(
        {
            "site": pa.array(sites[row], pa.int32()),
            "column": pa.array(placed.numbers[step], pa.int32()),
            "one": pa.array(a[row, step], pa.float64(), from_pandas=True),
            "other": pa.array(b[row, step], pa.float64(), from_pandas=True),
            "nans": pa.array((a_nans + b_nans)[row, step], pa.int64()),
            "infs": pa.array((a_infs + b_infs)[row, step], pa.int64()),
        }
    )


def _evenly(count: int, most: int) -> Whole:
    """At most so many places of `count`, evenly, the last always."""
    if count <= most:
        return np.arange(count)
    return np.sort(count - 1 - np.arange(most) * count // most)
