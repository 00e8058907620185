"""Sketches merged over steps: for a site's distribution over time.

A large part has the sketches of each site once more, merged over blocks of steps: what a screen
shows of a long history is read from those, and not from as many sketches as there are steps. Blocks
are those of tiles, so that blocks of several parts and ranks, and rows of streams, fit together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.heatmap import Columns, Steps, block_columns, step_columns
from backlight.store.precision import has_sketch

LEVELS: Final = (16, 64, 256, 1024, 4096)

GROUP_ROWS: Final = 1 << 11
"""The rows of a row group: a site has a few hundred."""

TOTALS: Final = ("count", "zeros", "nans", "infs")

MERGED: Final = pa.schema(
    [
        pa.field("site", pa.int32(), nullable=False),
        pa.field("quantity", pa.utf8(), nullable=False),
        pa.field("block", pa.int64(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in TOTALS),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("sketch_keys", pa.list_(pa.int16()), nullable=False),
        pa.field("sketch_counts", pa.list_(pa.int64()), nullable=False),
    ]
)

SLICES: Final = pa.schema(
    [
        pa.field("column", pa.int32()),
        *(pa.field(name, pa.int64()) for name in ("first_step", "last_step", *TOTALS)),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("keys", pa.list_(pa.int16())),
        pa.field("counts", pa.list_(pa.int64())),
    ]
)

_DENSE: Final = 1 << 20
_FEWEST_BLOCKS: Final = 32
_EXACT_STEPS: Final = 2048
Numbers = npt.NDArray[Any]


def slices_of(steps: Steps, wanted: int) -> Columns:
    """At most `wanted` columns of about equal numbers of steps; of a long history, of whole blocks.

    What is shown of a column is shares, which do not depend on how many blocks it is made of.

    >>> slices_of(np.arange(1000), 600).level, slices_of(np.arange(25_000), 600).level
    (1, 16)
    >>> [len(slices_of(np.arange(steps), 300).ranges) for steps in (250, 2500, 25_000, 26_000)]
    [250, 300, 300, 300]
    """
    if len(steps) > max(2 * wanted, _EXACT_STEPS):
        columns = block_columns(steps, wanted, LEVELS)
        if columns.count == wanted:
            return columns
    return step_columns(steps, wanted)


def levels_for(steps: Steps) -> list[int]:
    """The levels that are worth having for some steps.

    >>> levels_for(np.arange(1000))
    [16]
    """
    return [level for level in LEVELS if len(np.unique(steps // level)) >= _FEWEST_BLOCKS]


def by_levels(rows: pa.Table, levels: list[int]) -> Iterator[tuple[int, pa.Table]]:
    """The level and the merged sketches of rows, which are sorted by site, quantity and step."""
    step = rows["step"].to_numpy()
    for level in levels:
        rows = by_block(rows, step // level)
        step = rows["block"].to_numpy() * level
        yield level, rows


def by_block(rows: pa.Table, block: Numbers) -> pa.Table:
    """Sketches that are sorted by site, quantity and step, those of the same block made one.

    What was left out because the disk was slow is in none.
    """
    is_there = has_sketch(rows)
    if not is_there.any():
        return pa.Table.from_batches([], MERGED)
    rows, block = rows.filter(pa.array(is_there)), block[is_there]
    site = rows["site"].to_numpy()
    quantity = rows["quantity"].combine_chunks().dictionary_encode().indices.to_numpy()
    is_new = (np.diff(site) != 0) | (np.diff(quantity) != 0) | (np.diff(block) != 0)
    starts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
    merged = _merged(rows, np.concatenate([[0], np.cumsum(is_new)]), len(starts))
    ids = [rows[name].take(pa.array(starts)).combine_chunks() for name in ("site", "quantity")]
    return pa.Table.from_arrays([*ids, pa.array(block[starts]), *merged], schema=MERGED)


_NONE: Final = np.empty(0, np.int64)


def as_slices(columns: Columns, pieces: list[pa.Table]) -> pa.Table:
    """The sketches of a history as `SLICES`: of rows with a `step`, or of blocks with a `block`."""
    found = [_placed(columns, each) for each in pieces if each.num_rows and len(columns.steps)]
    if not found:
        return pa.Table.from_batches([], SLICES)
    # Columns of which nothing is left are none.
    seen, numbers = np.unique(np.concatenate([each for each, _ in found]), return_inverse=True)
    rows = pa.concat_tables([table for _, table in found])
    ranges = np.array(columns.ranges, np.int64).reshape(-1, 2)[seen]
    merged = _merged(rows, numbers, len(ranges))
    arrays = [pa.array(np.arange(len(ranges))), *map(pa.array, ranges.T), *merged]
    return pa.Table.from_arrays(
        [each.cast(field.type) for each, field in zip(arrays, SLICES, strict=True)], schema=SLICES
    )


def _placed(columns: Columns, rows: pa.Table) -> tuple[Numbers, pa.Table]:
    """The number of each row's column, and what is merged of it."""
    if "block" in rows.schema.names:
        blocks = columns.steps // columns.level
        first = np.flatnonzero(np.diff(blocks, prepend=-1))
        known, keys, numbers = blocks[first], rows["block"].to_numpy(), columns.numbers[first]
    else:
        known, keys, numbers = columns.steps, rows["step"].to_numpy(), columns.numbers
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    is_known = (known[places] == keys) & has_sketch(rows)
    wanted = rows.select(MERGED.names[3:]).cast(pa.schema(list(MERGED)[3:]))
    return numbers[places[is_known]], wanted.filter(pa.array(is_known))


def _merged(rows: pa.Table, group: Numbers, groups: int) -> list[pa.Array]:
    """The totals, extremes, keys and counts of groups of rows."""
    totals = [_sums(rows[name].to_numpy(), group, groups) for name in TOTALS]
    low, high = np.full(groups, np.nan), np.full(groups, np.nan)
    np.fmin.at(low, group, _floats(rows["min"]))
    np.fmax.at(high, group, _floats(rows["max"]))
    extremes = [pa.array(each, from_pandas=True) for each in (low, high)]
    return [*map(pa.array, totals), *extremes, *_histograms(rows, group, groups)]


def _floats(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.to_numpy(), np.float64)


def _sums(values: Numbers, group: Numbers, groups: int) -> Numbers:
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def _histograms(rows: pa.Table, group: Numbers, groups: int) -> tuple[pa.Array, pa.Array]:
    """The sketches of each group, added up."""
    lists = rows["sketch_keys"]
    keys = pc.list_flatten(lists).to_numpy().astype(np.int64)
    counts = pc.list_flatten(rows["sketch_counts"]).to_numpy()
    if len(keys) == 0:
        return _lists(_NONE, _NONE, np.zeros(groups, np.int64))
    low = int(keys.min())
    width = int(keys.max()) - low + 1
    place = np.repeat(group * width - low, pc.list_value_length(lists).to_numpy())
    place += keys
    if groups * width <= _DENSE + 2 * len(keys):
        sums = np.bincount(place, weights=counts, minlength=groups * width)
        filled = np.flatnonzero(sums)
        sums = sums[filled]
    else:  # few bins of very many, as where exponents of every size are seen
        filled, inverse = np.unique(place, return_inverse=True)
        sums = np.bincount(inverse, weights=counts)
    lengths = np.bincount(filled // width, minlength=groups)
    return _lists(filled % width + low, sums.astype(np.int64), lengths)


def _lists(keys: Numbers, counts: Numbers, lengths: Numbers) -> tuple[pa.Array, pa.Array]:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return (
        pa.ListArray.from_arrays(offsets, keys.astype(np.int16)),
        pa.ListArray.from_arrays(offsets, counts),
    )
