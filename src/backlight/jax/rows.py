"""The words that a program returned become rows of the `stats` table.

What does not change from step to step is put together once, when the program is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from backlight.jax.shards import Sharding, first_bad_part, merge
from backlight.jax.words import COUNTS, FIRST_NUMBER, HEADER, NUMBERS, layout_of
from backlight.schema import PLAIN_STATS, STATISTICS, STATS
from backlight.store.own import lists_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor that a program observes: what is known of its rows beforehand."""

    site: int
    quantity: str
    dtype: str
    shape: tuple[int, ...]
    units: int | None
    block: int  # which of the program's blocks of words it is in
    loops: int = 1  # how many rows it has: one for each iteration
    asked: tuple[bool, ...] = ()  # which of the own statistics it has


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one observed tensor among all words: where they start, how long and how many."""

    start: int
    words: int
    rows: int
    lowest: int  # exponent of the dtype
    sharding: Sharding | None = None
    parts: int = 1  # of each row, one for each device

    def parts_in(self, words: Any) -> Any:
        """Its words, by row and device."""
        stop = self.start + self.rows * self.parts * self.words
        return words[self.start : stop].reshape(self.rows, self.parts, self.words)


@dataclass(frozen=True)
class RowPlan:
    """All that a program observes, in order."""

    entries: tuple[Entry, ...]
    blocks: tuple[Block, ...]
    own: int = 0  # the words at a row's end that are own statistics

    @cached_property
    def iterations(self) -> int:
        """How many iterations the step has."""
        return max((entry.loops for entry in self.entries), default=1)

    @cached_property
    def _first_rows(self) -> list[int]:
        """The number of each block's first row, if rows are counted block by block."""
        return [0, *np.cumsum([block.rows for block in self.blocks]).tolist()]

    @cached_property
    def _known(self) -> dict[str, pa.Array]:
        """The columns that are the same at every step."""
        each = [(entry, i) for entry in self.entries for i in range(entry.loops)]
        columns = {
            "iteration": [i for _, i in each],
            "order": list(range(len(each))),
            "site": [entry.site for entry, _ in each],
            "quantity": [entry.quantity for entry, _ in each],
            "backward": [""] * len(each),
            "dtype": [entry.dtype for entry, _ in each],
            "shape": [list(entry.shape) for entry, _ in each],
            "units": [entry.units for entry, _ in each],
        }
        return {name: pa.array(column, STATS.field(name).type) for name, column in columns.items()}

    @cached_property
    def _rows(self) -> Any:
        """Which of the blocks' rows each row of the table is."""
        first = self._first_rows
        return np.concatenate(
            [np.arange(first[e.block], first[e.block] + e.loops) for e in self.entries]
            or [np.zeros(0, int)]
        )

    def to_batch(self, words: Any, step: int) -> pa.RecordBatch | None:
        """The rows of one step; None if there are none."""
        if not self.entries:
            return None
        words = self._merged(words)
        headers, keys, counts, lengths = self._read(words)
        of = headers[self._rows]
        columns = {**self._known, **_numbers(of, self._known["units"])}
        columns["step"] = pa.array(np.full(len(of), step, np.int64))
        for name, values in (("sketch_keys", keys), ("sketch_counts", counts)):
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            lists = pa.ListArray.from_arrays(offsets, pa.array(values))
            columns[name] = lists.take(pa.array(self._rows))
        schema = STATS if self.own else PLAIN_STATS
        if self.own:
            columns["own"] = lists_of(np.where(self._asked, self._own_numbers(words), np.nan))
        batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        is_there = of[:, 0] > 0
        return batch if is_there.all() else batch.filter(pa.array(is_there))

    def _merged(self, words: Any) -> Any:
        """The words with one row where there was one for each device."""
        if all(block.sharding is None for block in self.blocks):
            return words
        return np.concatenate([self._rows_of(block, words).reshape(-1) for block in self.blocks])

    def _rows_of(self, block: Block, words: Any) -> Any:
        parts = block.parts_in(words)
        return parts[:, 0] if block.sharding is None else merge(parts, block.sharding, self.own)

    def shard_of(self, order: int, words: Any) -> str:
        """On which shard a row has its first value that is not finite, in words."""
        entry = [entry for entry in self.entries for _ in range(entry.loops)][order]
        block = self.blocks[entry.block]
        if block.sharding is None:
            return ""
        return first_bad_part(block.parts_in(words), block.sharding)

    @cached_property
    def _asked(self) -> Any:
        """Which own statistics each row has."""
        return np.array([entry.asked for entry in self.entries for _ in range(entry.loops)], bool)

    def _own_numbers(self, words: Any) -> Any:
        found = [
            words[start:stop].reshape(-1, length)[:, length - self.own :]
            for start, stop, length, _ in self._runs
        ]
        return np.ascontiguousarray(np.concatenate(found)[self._rows]).view(np.float64)

    def _read(self, words: Any) -> tuple[Any, Any, Any, Any]:
        """The headers of all rows, and their sketches, one after the other."""
        headers, keys, counts, lengths = [], [], [], []
        for start, stop, length, lowest in self._runs:
            rows = words[start:stop].reshape(-1, length)
            headers.append(rows[:, :HEADER])
            # Of truths in one dimension it is ten times faster than of rows of numbers.
            is_counted = np.ascontiguousarray(rows[:, HEADER : length - self.own] != 0)
            row, place = np.divmod(np.flatnonzero(is_counted), is_counted.shape[1])
            half, first = (length - self.own - HEADER) // 2, 4 * (lowest[row] + 1074) + 1
            keys.append(np.where(place < half, -(first + half - 1 - place), first + place - half))
            counts.append(rows[row, HEADER + place])
            lengths.append(np.bincount(row, minlength=len(rows)))
        join = [np.concatenate(each) for each in (headers, keys, counts, lengths)]
        return join[0], join[1].astype(np.int16), join[2].astype(np.uint32), join[3]

    @cached_property
    def _runs(self) -> list[tuple[int, int, int, Any]]:
        """Neighbouring blocks of rows of one length: start, stop, length, exponents by row."""
        runs: list[tuple[int, int, int, list[int]]] = []
        at = 0
        for block in self.blocks:
            stop = at + block.rows * block.words
            if runs and runs[-1][2] == block.words:
                start, _, length, lowest = runs.pop()
                runs.append((start, stop, length, lowest + [block.lowest] * block.rows))
            else:
                runs.append((at, stop, block.words, [block.lowest] * block.rows))
            at = stop
        return [(start, stop, length, np.array(lowest)) for start, stop, length, lowest in runs]


def _numbers(headers: Any, units: pa.Array) -> dict[str, pa.Array]:
    counts = {name: headers[:, place] for place, name in enumerate(COUNTS)}
    wide = np.ascontiguousarray(headers[:, FIRST_NUMBER:HEADER]).view(np.float64)
    numbers = {name: wide[:, place] for place, name in enumerate(NUMBERS)}
    has_none, no_units = counts["finite"] == 0, np.asarray(units.is_null())
    columns = {name: pa.array(counts[name].astype(np.int64)) for name in ("zeros", "nans", "infs")}
    every = sum(counts[name].astype(np.int64) for name in ("finite", "nans", "infs"))
    columns["count"] = pa.array(every)
    for name in STATISTICS:
        columns[name] = pa.array(numbers[name], mask=has_none)
    for name in ("dead_units", "constant_units"):
        columns[name] = pa.array(counts[name].astype(np.int32), mask=no_units)
    columns["batch_std"] = pa.array(numbers["batch_std"], mask=no_units)
    return columns


def block_of(
    dtype: str,
    start: int,
    rows: int,
    sharding: Sharding | None = None,
    *,
    parts: int = 1,
    own: int = 0,
) -> Block:
    """The block of an observed tensor's rows."""
    layout = layout_of(dtype)
    return Block(start, layout.words + own, rows, layout.lowest, sharding, parts)
