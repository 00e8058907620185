"""Heatmaps: which steps make a column, from which blocks it is put together, and its cells.

A tile is half a million cells or more. Those are a few passes over arrays; a database, which first
joins and then hashes them, takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.tiles import LEVELS, Numbers, extreme, shown

_EXACT_ROWS: Final = 1 << 20
"""So many rows are aggregated at once without being felt."""

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
        starts = np.unique(self.numbers, return_index=True)[1]
        stops = np.append(starts, len(self.steps))[1:] - 1
        return [
            [int(a), int(b)] for a, b in zip(self.steps[starts], self.steps[stops], strict=True)
        ]

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

    Where that would be too many rows to aggregate, columns are made of whole blocks of steps, and
    there are at least half as many columns as were wanted.

    >>> columns_of(np.arange(10), 3, rows_per_step=1.0).ranges
    [[0, 3], [4, 6], [7, 9]]
    >>> columns_of(np.arange(10_000), 300, rows_per_step=1000.0).ranges[:2]
    [[0, 63], [64, 127]]
    """
    count = len(steps)
    if count * rows_per_step <= _EXACT_ROWS or count <= 2 * wanted:
        return Columns(steps, np.arange(count) * min(wanted, count) // max(1, count))
    for level in LEVELS:
        blocks = np.unique(steps // level)
        if len(blocks) <= 2 * wanted:
            break
    per_column = -(-len(blocks) // wanted)
    return Columns(steps, np.searchsorted(blocks, steps // level) // per_column, level)


def cells_of(
    columns: Columns, rows: pa.Table, tiles: pa.Table, *, quantity: str, statistic: str
) -> pa.Table:
    """For each site and column the value of greatest magnitude, and the sums of `nans` and `infs`.

    They come from rows of single steps, and from blocks of steps that were aggregated before.
    """
    rows = rows.filter(pc.field("quantity") == quantity)
    blocks, numbers = np.unique(columns.steps // columns.level, return_index=True)
    pieces = [
        (rows, columns.numbers, columns.steps, rows["step"], shown(rows, statistic)),
        (tiles, columns.numbers[numbers], blocks, tiles["block"], shown(tiles, "value")),
    ]
    found = [_placed(table, *rest) for table, *rest in pieces if table.num_rows]
    if not found:
        return CELLS.empty_table()
    if len(found) == 1:  # most often, and a copy of this is felt
        return _aggregated(*found[0])
    return _aggregated(*(np.concatenate(each) for each in zip(*found, strict=True)))


def _placed(
    table: pa.Table, numbers: Steps, known: Steps, key: pa.ChunkedArray, value: Numbers
) -> list[Numbers]:
    """The site, column, value, NaNs and infinities of the rows whose key is a known one."""
    places, is_known = _places(known, key.to_numpy())
    arrays = [
        table["site"].to_numpy(),
        numbers[places],
        value,
        *(_counts(table[name]) for name in ("nans", "infs")),
    ]
    return arrays if is_known.all() else [each[is_known] for each in arrays]


def _counts(column: pa.ChunkedArray) -> Numbers:
    """Counts, which are mostly 0: such an array takes no memory until it is written to."""
    if pc.max(column).as_py() == 0:
        return np.broadcast_to(np.int64(0), len(column))
    return np.asarray(column.to_numpy())


def _picked(values: Numbers, places: Numbers) -> Numbers:
    return values[: len(places)] if values.strides == (0,) else values[places]


def _places(known: Steps, keys: Steps) -> tuple[Steps, npt.NDArray[np.bool_]]:
    """Where each key is among the known ones, which ascend, and whether it is there at all.

    >>> places, is_known = _places(np.array([3, 5]), np.array([5, 4, 3, 9]))
    >>> places[is_known].tolist(), is_known.tolist()
    ([1, 0], [True, False, True, False])
    """
    width = int(known[-1] - known[0]) + 1
    if width > 4 * len(keys) + 1024:
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return places, known[places] == keys
    table = np.full(width + 2, -1)  # the ends are for keys that lie outside
    table[known - known[0] + 1] = np.arange(len(known))
    places = table[np.clip(keys - (known[0] - 1), 0, width + 1)]
    return places, places >= 0


def _aggregated(
    site: Numbers, column: Numbers, value: Numbers, nans: Numbers, infs: Numbers
) -> pa.Table:
    if len(site) == 0:
        return CELLS.empty_table()
    key = column.astype(np.int64)
    key += site * np.int64(int(column.max()) + 1)
    if (key[1:] < key[:-1]).any():
        order = _order(key)
        key, site, column, value = key[order], site[order], column[order], value[order]
        nans, infs = _picked(nans, order), _picked(infs, order)
    is_new = key[1:] != key[:-1]
    if not is_new.all():
        starts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
        site, column, value = site[starts], column[starts], extreme(value, starts)
        nans, infs = (
            _picked(each, starts) if each.strides == (0,) else np.add.reduceat(each, starts)
            for each in (nans, infs)
        )
    arrays = [
        pa.array(site, pa.int32()),
        pa.array(column.astype(np.int32), pa.int32()),
        pa.array(value, pa.float64(), from_pandas=True),
        pa.array(nans, pa.int64()),
        pa.array(infs, pa.int64()),
    ]
    return pa.Table.from_arrays(arrays, schema=CELLS)


def _order(key: Numbers) -> Numbers:
    """The order that sorts keys; without comparing them where each is there once.

    >>> _order(np.array([5, 2, 9])).tolist(), _order(np.array([5, 2, 5])).tolist()
    ([1, 0, 2], [1, 0, 2])
    """
    if int(key.max()) <= 8 * len(key):
        place = np.full(int(key.max()) + 1, -1)
        place[key] = np.arange(len(key))
        order: Numbers = place[place >= 0]
        if len(order) == len(key):
            return order
    return np.argsort(key, kind="stable")
