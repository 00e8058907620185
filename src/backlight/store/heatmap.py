"""Heatmaps: which steps make a column, from which blocks it is put together, and its cells.

A tile is half a million cells or more. Those are a few passes over arrays; a database, which first
joins and then hashes them, takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.tiles import LEVELS, Numbers, extreme, shown

_EXACT_ROWS: Final = 1 << 20
"""So many rows are aggregated at once without being felt."""
_MOST_ROWS: Final = 2 * _EXACT_ROWS

Steps = npt.NDArray[np.int64]

CELLS: Final = pa.schema(
    [
        ("site", pa.int32()),
        ("column", pa.int32()),
        ("value", pa.float64()),
        ("nans", pa.int64()),
        ("infs", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Columns:
    """The columns of a heatmap: which each step belongs to, and in blocks of how many steps."""

    steps: Steps
    numbers: Steps
    level: int = 1

    @property
    def ranges(self) -> list[list[int]]:
        """The first and the last step of each column.

        >>> Columns(np.array([0, 10, 20]), np.array([0, 0, 1])).ranges
        [[0, 10], [20, 20]]
        """
        starts = np.flatnonzero(np.diff(self.numbers, prepend=-1))
        stops = np.append(starts, len(self.steps))[1:] - 1
        found: list[list[int]] = np.stack([self.steps[starts], self.steps[stops]], 1).tolist()
        return found

    @property
    def count(self) -> int:
        """How many columns there are.

        >>> Columns(np.array([0, 10, 20]), np.array([0, 0, 1])).count
        2
        """
        return int(self.numbers[-1]) + 1 if len(self.numbers) else 0

    @property
    def fullest(self) -> int:
        """How many steps the column of most steps holds.

        >>> Columns(np.array([0, 10, 20]), np.array([0, 0, 1])).fullest
        2
        """
        return int(np.bincount(self.numbers).max(initial=0))

    def cut_steps(self, first: int | None, last: int | None) -> Steps:
        """The steps of those blocks that lie only partly between two steps."""
        blocks = self.steps // self.level
        is_cut = np.zeros(len(blocks), bool)
        if first is not None:
            is_cut |= blocks * self.level < first
        if last is not None:
            is_cut |= blocks * self.level + self.level - 1 > last
        return self.steps[is_cut]


def columns_of(steps: Steps, wanted: int, rows_per_step: float) -> Columns:
    """At most `wanted` columns of equal numbers of steps.

    Where that would be too many rows to aggregate, columns are made of whole blocks of steps: as
    many as were wanted, or half of them if a step has very many rows.

    >>> columns_of(np.arange(10), 3, rows_per_step=1.0).ranges
    [[0, 3], [4, 6], [7, 9]]
    >>> columns_of(np.arange(10_000), 300, rows_per_step=1000.0).ranges[:2]
    [[0, 47], [48, 79]]
    >>> columns_of(np.arange(10_000), 300, rows_per_step=10_000.0).ranges[:2]
    [[0, 127], [128, 191]]
    """
    # There are up to four times as many blocks as columns.
    is_large = 4 * wanted * rows_per_step > _MOST_ROWS
    fewer = -(-wanted // 2) if is_large else wanted
    if len(steps) * rows_per_step <= _EXACT_ROWS or len(steps) <= 4 * fewer:
        return step_columns(steps, wanted)
    return block_columns(steps, fewer, LEVELS)


def single_columns(steps: Steps, wanted: int, rows_per_step: float) -> Columns:
    """The same of single steps alone: where those are too many, of some that are spread evenly.

    >>> single_columns(np.arange(10_000), 300, rows_per_step=1e5).ranges[:3]
    [[0, 0], [1000, 1000], [2000, 2000]]
    """
    most = max(1, round(_EXACT_ROWS / max(1.0, rows_per_step)))
    if len(steps) > most:
        steps = steps[np.arange(most) * len(steps) // most]
    return step_columns(steps, wanted)


def distinct(values: Steps) -> Steps:
    """What there is of values that ascend.

    >>> distinct(np.array([1, 1, 4, 7, 7])).tolist()
    [1, 4, 7]
    """
    found: Steps = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return found


def step_columns(steps: Steps, wanted: int) -> Columns:
    """At most `wanted` columns of equal numbers of steps."""
    count = len(steps)
    return Columns(steps, np.arange(count) * min(wanted, count) // max(1, count))


def block_columns(steps: Steps, wanted: int, levels: Sequence[int]) -> Columns:
    """Columns of about equal numbers of blocks, as many as are wanted, however long a run is.

    The blocks are the longest of which there are enough. So a run that grows never has fewer
    columns than before, and whoever holds them never more than were wanted.
    """
    for level in reversed(levels):
        blocks = distinct(steps // level)
        if len(blocks) >= wanted:
            break
    of_blocks = step_columns(blocks, wanted)
    return Columns(steps, of_blocks.numbers[np.searchsorted(blocks, steps // level)], level)


def cells_of(columns: Columns, rows: pa.Table, tiles: pa.Table, *, statistic: str) -> pa.Table:
    """For each site and column the value of greatest magnitude, and the sums of `nans` and `infs`.

    They come from rows of single steps, and from blocks of steps that were aggregated before.
    """
    blocks, first = np.unique(columns.steps // columns.level, return_index=True)
    pieces = [
        (rows, columns.steps, columns.numbers, rows["step"], shown(rows, statistic)),
        (tiles, blocks, columns.numbers[first], tiles["block"], shown(tiles, "value")),
    ]
    found = [_placed(table, *rest) for table, *rest in pieces if table.num_rows]
    cells = (
        found[0] if len(found) == 1 else [np.concatenate(each) for each in zip(*found, strict=True)]
    )
    return _aggregated(cells) if cells and len(cells[0]) else CELLS.empty_table()


def _placed(
    table: pa.Table, known: Steps, numbers: Steps, key: pa.ChunkedArray, value: Numbers
) -> list[Numbers]:
    """The site, column, value, NaNs and infinities of the rows whose key is a known one."""
    # Piece by piece, in memory that is used again: fresh memory is what a first heatmap waits for.
    column = np.concatenate([_numbers_of(known, numbers, each.to_numpy()) for each in key.chunks])
    counts = [_counts(table[name]) for name in ("nans", "infs")]
    arrays = [table["site"].to_numpy(), column, value, *counts]
    is_known = column >= 0
    return arrays if is_known.all() else [each[is_known] for each in arrays]


def _counts(column: pa.ChunkedArray) -> Numbers:
    """Counts, which are mostly 0: such an array takes no memory until it is written to."""
    if pc.max(column).as_py() == 0:
        return np.broadcast_to(np.int64(0), len(column))
    return np.asarray(column.to_numpy())


def _numbers_of(known: Steps, numbers: Steps, keys: Steps) -> npt.NDArray[np.int32]:
    """The number of each key that is among the known ones, which ascend, and -1 of the others.

    >>> _numbers_of(np.array([3, 5]), np.array([7, 8]), np.array([5, 4, 3, 9])).tolist()
    [8, -1, 7, -1]
    """
    first, last = int(known[0]), int(known[-1])
    if last - first > 4 * len(keys) + 1024:
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[places] == keys, numbers[places], -1).astype(np.int32)
    table = np.full(last - first + 3, -1, np.int32)  # the ends are for keys that lie outside
    table[known - first + 1] = numbers
    # Clipped before anything is taken away from it: a key can be as small as a number can be.
    places = np.clip(keys, first - 1, last + 1)
    places -= first - 1
    return table[places]


def _aggregated(cells: list[Numbers]) -> pa.Table:
    """One cell for each site and column, in their order, from any number of them in any order."""
    site, column = cells[:2]
    key = site.astype(np.int64)
    key *= int(column.max()) + 1
    key += column
    if (key[1:] < key[:-1]).any():
        if _are_once(key):
            return _table([_put(each, key) for each in cells])
        order = np.argsort(key, kind="stable")
        key, cells = key[order], [_picked(each, order) for each in cells]
    is_new = key[1:] != key[:-1]
    if is_new.all():
        return _table(cells)
    starts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
    site, column, value, *counts = cells
    sums = [_picked(n, starts) if _is_zero(n) else np.add.reduceat(n, starts) for n in counts]
    return _table([site[starts], column[starts], extreme(value, starts), *sums])


def _table(cells: list[Numbers]) -> pa.Table:
    arrays = [
        pa.array(each, field.type, from_pandas=True)
        for each, field in zip(cells, CELLS, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=CELLS)


def _is_zero(counts: Numbers) -> bool:
    return counts.strides == (0,)


def _picked(values: Numbers, places: Numbers) -> Numbers:
    return values[: len(places)] if _is_zero(values) else values[places]


def _are_once(key: Numbers) -> bool:
    """Whether all keys up to the greatest are there, and each of them once.

    >>> _are_once(np.array([2, 0, 1])), _are_once(np.array([2, 0, 0]))
    (True, False)
    """
    if int(key.max()) + 1 != len(key):
        return False
    is_there = np.zeros(len(key), bool)
    is_there[key] = True
    return bool(is_there.all())


def _put(values: Numbers, places: Numbers) -> Numbers:
    """Values in the order of their places: no sorting, and one copy."""
    if _is_zero(values):
        return values
    ordered = np.empty_like(values)
    ordered[places] = values
    return ordered
