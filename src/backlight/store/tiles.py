"""Each statistic's extreme over blocks of steps: what a heatmap of a long run is made of.

A block of level L holds the steps from n*L to n*L + L - 1, for every rank and part alike, so blocks
of several parts fit together, and four blocks make one of the next level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight import schema
from backlight.store.own import lists_of, matrix

LEVELS: Final = (4, 16, 64, 256, 1024, 4096)

WIDTH: Final = 64
"""The blocks of the finest levels that stand together in a file cover so many steps."""

SHARES: Final = {
    "zero_share": ("zeros", "count"),
    "nan_share": ("nans", "count"),
    "inf_share": ("infs", "count"),
    "dead_share": ("dead_units", "units"),
    "constant_share": ("constant_units", "units"),
}
"""What a heatmap shows besides the statistics: parts of a whole."""

NORM: Final = "norm"
UPDATE_RATIO: Final = "update_ratio"
UPDATE: Final = "update"
"""The quantity that has update ratios: others have none."""

SHOWN: Final = (*schema.STATISTICS, "batch_std", *SHARES, NORM, UPDATE_RATIO)

_MADE_OF: Final = {**SHARES, NORM: ("rms", "count"), UPDATE_RATIO: ("rms",)}

TILES: Final = pa.schema(
    [
        pa.field("site", pa.int32(), nullable=False),
        pa.field("block", pa.int64(), nullable=False),
        *(pa.field(name, pa.float64()) for name in SHOWN),
        pa.field("nans", pa.int64(), nullable=False),
        pa.field("infs", pa.int64(), nullable=False),
        pa.field("own", pa.list_(pa.float64())),
    ]
)

Numbers = npt.NDArray[Any]


def levels_for(steps: npt.NDArray[np.int64]) -> list[int]:
    """The levels that are worth having for some steps.

    >>> levels_for(np.arange(1000))
    [4, 16, 64]
    """
    return [level for level in LEVELS if len(np.unique(steps // level)) >= 8]


def tiles_of(rows: pa.Table, levels: Iterable[int]) -> Iterator[tuple[str, int, pa.Table]]:
    """The quantity, the level and the blocks of rows that are sorted by site and step."""
    for quantity in schema.QUANTITIES:
        mine = rows.filter(pc.equal(rows["quantity"], quantity))
        if mine.num_rows == 0:
            continue
        mine = with_ratios(rows) if quantity == UPDATE else mine
        step = mine["step"].to_numpy()
        columns = {name: shown(mine, name) for name in SHOWN}
        blocks = _table(mine["site"].to_numpy(), step, columns, mine, matrix(mine["own"]))
        for level in levels:
            blocks = coarser(blocks, step // level)
            step = blocks["block"].to_numpy() * level
            yield quantity, level, blocks


def coarser(blocks: pa.Table, numbers: Numbers) -> pa.Table:
    """Blocks that are sorted by site, made larger: those of the same site and number become one."""
    site = blocks["site"].to_numpy()
    is_new = (np.diff(site) != 0) | (np.diff(numbers) != 0)
    starts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
    columns = {name: extreme(floats(blocks[name]), starts) for name in SHOWN}
    sums = {name: np.add.reduceat(blocks[name].to_numpy(), starts) for name in ("nans", "infs")}
    own = matrix(blocks["own"])
    own = np.stack([extreme(each, starts) for each in own.T], 1) if own.size else own[starts]
    return _table(site[starts], numbers[starts], columns, sums, own)


def made_of(statistic: str) -> tuple[str, ...]:
    """The columns of `stats` that a statistic is made of.

    >>> made_of("mean"), made_of("norm")
    (('mean',), ('rms', 'count'))
    """
    return _MADE_OF.get(statistic, (statistic,))


def row_quantities(quantity: str, statistic: str) -> tuple[str, ...]:
    """The quantities whose rows tell a statistic of one of them; none where it has none.

    >>> row_quantities("grad", "norm"), row_quantities("update", "update_ratio")
    (('grad',), ('update', 'value'))
    >>> row_quantities("value", "update_ratio")
    ()
    """
    if statistic != UPDATE_RATIO:
        return (quantity,)
    return (UPDATE, "value") if quantity == UPDATE else ()


def with_ratios(rows: pa.Table, quantity: str = UPDATE) -> pa.Table:
    """Those of updates and values that are one of these, with the `update_ratio` of each.

    It is the norm of the update over that of the parameter at the same step; both have the same
    number of elements, so it is the ratio of their root mean squares. None where that is of 0.

    >>> rows = {"site": [1, 1, 2], "step": [5, 5, 5], "quantity": ["value", "update", "update"]}
    >>> table = pa.table({**rows, "rms": [2.0, 0.5, 1.0]})
    >>> with_ratios(table)["update_ratio"].to_pylist()
    [0.25, None]
    >>> with_ratios(table, "value")["update_ratio"].to_pylist()
    [0.25]
    """
    beside = "value" if quantity == UPDATE else UPDATE
    mine, others = (rows.filter(pc.equal(rows["quantity"], each)) for each in (quantity, beside))
    if others.num_rows == 0:
        return mine.append_column(UPDATE_RATIO, pa.nulls(mine.num_rows, pa.float64()))
    # The last of equals: what was seen last is what was changed.
    names = [name for name in ("site", "step", "rank") if name in mine.column_names]
    theirs = np.append(floats(others["rms"]), np.nan)[matching(mine, others, names)]
    pair = floats(mine["rms"]), theirs
    update, value = pair if quantity == UPDATE else pair[::-1]
    ratios = update / np.where(value == 0, np.nan, value)
    return mine.append_column(UPDATE_RATIO, pa.array(ratios, pa.float64(), from_pandas=True))


def matching(one: pa.Table, other: pa.Table, names: Iterable[str]) -> Numbers:
    """For each row of one table the last row of another that is the same by these columns, or -1.

    >>> one, other = pa.table({"site": [1, 2, 3]}), pa.table({"site": [3, 1, 1]})
    >>> matching(one, other, ["site"]).tolist()
    [2, -1, 0]
    """
    key = np.zeros(one.num_rows + other.num_rows, np.int64)
    for name in names:
        both = pa.chunked_array([*one[name].chunks, *other[name].chunks], one[name].type)
        codes = both.combine_chunks().dictionary_encode()
        key = key * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    keys, known = key[: one.num_rows], key[one.num_rows :]
    order = np.argsort(known, kind="stable")
    places = np.searchsorted(known[order], keys, side="right") - 1
    is_same = np.append(known[order], -1)[places] == keys
    return np.where(is_same, np.append(order, -1)[places], -1)


def shown(rows: pa.Table, name: str) -> Numbers:
    """A statistic of rows as a heatmap shows it, with NaN where there is none."""
    if name == NORM:
        return floats(rows["rms"]) * np.sqrt(floats(rows["count"]))
    if name == UPDATE_RATIO and name not in rows.column_names:
        return np.full(rows.num_rows, np.nan)
    if name not in SHARES:
        return floats(rows[name])
    part, whole = (floats(rows[each]) for each in SHARES[name])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole == 0, np.nan, part / whole)


def floats(column: pa.ChunkedArray) -> Numbers:
    """Numbers as float64, with NaN where there is none."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)


def extreme(values: Numbers, starts: Numbers) -> Numbers:
    """The value of greatest magnitude of each piece; of a pair the positive, and never NaN.

    >>> extreme(np.array([1.0, -3.0, np.nan, 2.0, -2.0]), np.array([0, 3])).tolist()
    [-3.0, 2.0]
    """
    high, low = np.fmax.reduceat(values, starts), np.fmin.reduceat(values, starts)
    return np.where(high >= -low, high, low)


def _table(
    site: Numbers, block: Numbers, columns: dict[str, Numbers], sums: Any, own: Numbers
) -> pa.Table:
    numbers = [pa.array(columns[name], pa.float64(), from_pandas=True) for name in SHOWN]
    counted = [pa.array(np.asarray(sums[name]), pa.int64()) for name in ("nans", "infs")]
    arrays = [pa.array(site, pa.int32()), pa.array(block, pa.int64()), *numbers, *counted]
    arrays.append(lists_of(own))
    return pa.Table.from_arrays(arrays, schema=TILES)


class TileMaker:
    """Makes the blocks of all levels from rows that come a few steps at a time.

    What is given at once must begin and end at multiples of `WIDTH`. Of every `WIDTH` steps the
    blocks of the fine levels stand together, so that a tile is read without the rest of the run.
    """

    def __init__(self, levels: list[int]) -> None:
        self._fine = [level for level in levels if level <= WIDTH]
        self._coarse = [level for level in levels if level > WIDTH]
        self._held: dict[str, list[pa.Table]] = {}

    def add(self, rows: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
        """The blocks of the fine levels."""
        order = [("site", "ascending"), ("step", "ascending")]
        for quantity, level, blocks in tiles_of(rows.sort_by(order), self._fine):
            yield quantity, level, blocks
            if level == WIDTH and self._coarse:
                self._held.setdefault(quantity, []).append(blocks)

    def finish(self) -> Iterator[tuple[str, int, pa.Table]]:
        """The blocks of the coarse levels."""
        for quantity, held in self._held.items():
            order = [("site", "ascending"), ("block", "ascending")]
            blocks, finer = pa.concat_tables(held).sort_by(order), WIDTH
            for level in self._coarse:
                blocks = coarser(blocks, blocks["block"].to_numpy() * finer // level)
                finer = level
                yield quantity, level, blocks.sort_by([("block", "ascending")])
