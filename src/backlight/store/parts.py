"""Reads the parts that a table was compacted to, a few row groups at a time.

A part's manifest, `parts/<table>-<part>.json`, says which rows are in which row group of which
file, and has a checksum for each column of each row group: nothing is shown that was not checked.
Row groups are chosen by the manifest, so a question costs what its answer is made of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import TABLES
from backlight.store.files import check_plain
from backlight.store.layout import Source
from backlight.store.manifest import (
    BY_STEP,
    ROWS,
    SKETCHES,
    from_runs,
    manifest_path,
    part_path,
    read_manifest,
)
from backlight.store.messages import DamagedError
from backlight.store.stream_follower import conform, possible_rows

_FOOTER_BYTES: Final = 8
_GROUPS_AT_ONCE: Final = 8

_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError)


class PartFile:
    """One Parquet file of a part, read by whole row groups. Any thread may ask."""

    def __init__(self, file: pa.NativeFile, described: dict[str, Any]) -> None:
        import pyarrow.parquet as pq

        self._file = file
        self.low = np.array(described["low"], np.int64)
        self.high = np.array(described["high"], np.int64)
        self.rows = np.array(described["rows"], np.int64)
        self._crcs: list[list[int]] = described["crcs"]
        self._lock = Lock()
        try:
            self._check_footer(described)
            self._parquet = pq.ParquetFile(self._file)
            self._metadata = self._parquet.metadata
            leaves = self._parquet.schema
            # A list has one leaf, under a name of its own.
            self._leaf_of = {leaves.column(i).path.split(".")[0]: i for i in range(len(leaves))}
            self._check_groups()
        except _DAMAGE as error:
            raise DamagedError(_reason(error)) from None

    def _check_footer(self, described: dict[str, Any]) -> None:
        size = self._file.size()
        if size != described["bytes"]:
            raise DamagedError(f"it has {size} bytes instead of {described['bytes']}")
        start = described["footer"]
        if crc32(self._file.read_at(size - start, start)) != described["footer_crc"]:
            raise DamagedError("its footer is not as it was written")

    def _check_groups(self) -> None:
        found = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        if found != self.rows.tolist() or len(self._crcs) != len(found):
            raise DamagedError("its row groups are not those of its manifest")

    def check(self, report: Callable[[str], None]) -> None:
        """Read all of it, and report what is not as it was written."""
        with self._lock:
            for group in range(len(self.rows)):
                self._is_whole(group, list(self._leaf_of), report)

    def has(self, columns: Iterable[str]) -> bool:
        """Whether it has all these columns."""
        return self._leaf_of.keys() >= set(columns)

    def groups_between(self, low: int, high: int) -> list[int]:
        """The row groups that can hold keys from low to high."""
        groups: list[int] = np.flatnonzero((self.low <= high) & (self.high >= low)).tolist()
        return groups

    def groups_with(self, keys: Sequence[int]) -> list[int]:
        """The row groups that can hold any of some keys."""
        wanted = np.sort(np.asarray(keys, np.int64))
        first = np.searchsorted(wanted, self.low, side="left")
        stop = np.searchsorted(wanted, self.high, side="right")
        groups: list[int] = np.flatnonzero(first < stop).tolist()
        return groups

    def read(
        self, groups: Sequence[int], schema: pa.Schema, report: Callable[[str], None]
    ) -> pa.Table:
        """Some columns of row groups; those that are damaged are left out and reported."""
        with self._lock:
            try:
                columns = [name for name in schema.names if name in self._leaf_of]
                self._prefetch(groups, columns)
                whole = [group for group in groups if self._is_whole(group, columns, report)]
                rows = _conform(self._parquet.read_row_groups(whole, columns=columns), schema)
            except (*_DAMAGE, DamagedError) as error:
                report(_reason(error))
                return schema.empty_table()
            is_possible = possible_rows(rows)
            if is_possible is not None:
                report("it has numbers that cannot be")
                rows = rows.filter(is_possible)
            return rows

    def _prefetch(self, groups: Sequence[int], columns: list[str]) -> None:
        """Have the system read what is needed at once: a disk takes longer for one by one."""
        if not hasattr(os, "posix_fadvise"):
            return
        leaves = [self._leaf_of[name] for name in columns]
        for group in map(self._metadata.row_group, groups):
            for index in leaves:
                start, size = chunk_range(group.column(index))
                os.posix_fadvise(self._file.fileno(), start, size, os.POSIX_FADV_WILLNEED)

    def _is_whole(self, group: int, columns: list[str], report: Callable[[str], None]) -> bool:
        metadata = self._metadata.row_group(group)
        for index in (self._leaf_of[name] for name in columns):
            column = metadata.column(index)
            start, size = chunk_range(column)
            if crc32(self._file.read_at(size, start)) != self._crcs[group][index]:
                report(f"row group {group} is not as it was written")
                return False
        return True


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`: an older or newer minor version differs."""
    if table.schema.equals(schema):
        return table
    batches = [conform(batch, schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def _sorted_between(rows: pa.Table, column: str, first: int, last: int) -> pa.Table:
    """The rows between two keys of a table that is sorted by them: not even a copy."""
    start = stop = 0
    for piece in rows[column].chunks:
        keys = piece.to_numpy()
        start += int(np.searchsorted(keys, first, "left"))
        stop += int(np.searchsorted(keys, last, "right"))
    return rows.slice(start, max(0, stop - start))


def _between(rows: pa.Table, column: str, first: int, last: int) -> pa.Table:
    keys = rows[column]
    return rows.filter(pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last)))


def chunk_range(column: Any) -> tuple[int, int]:
    """Where a column's bytes of a row group start, and how many they are."""
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, column.total_compressed_size


def footer_start(path: Path) -> int:
    """Where a Parquet file's footer starts."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(size - _FOOTER_BYTES)
        return size - _FOOTER_BYTES - int.from_bytes(file.read(4), "little")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class Part:
    """One part of a table: its rows by key, and for `stats` by step and by blocks of steps too.

    Raises DamagedError where what it holds cannot be told.
    """

    def __init__(self, table_folder: Path, source: Source) -> None:
        self.source = source
        self.table = table_folder.name
        self._folder = table_folder
        self._problems: dict[str, str] = {}
        self._open: dict[str, PartFile | None] = {}
        try:
            described = read_manifest(manifest_path(table_folder, source))
            self._files: dict[str, dict[str, Any]]
            self._files = {**described["files"], **described.get(SKETCHES, {})}
            self.rows = int(described["rows"])
            self.steps = from_runs(described["steps"])
            self.quantities: list[str] = described["quantities"]
            self.levels: dict[str, list[int]] = described["levels"]
            # One for each: who waits for a small file does not wait for a large one.
            self._locks = {name: Lock() for name in self._files}
            self._handles = self._open_all()
        except _DAMAGE as error:
            raise DamagedError(_reason(error)) from None

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that is damaged."""
        return list(self._problems.values())

    def is_whole(self) -> bool:
        """Whether all its files are as they were written; reads them all."""
        for name in self._files:
            file = self._file(name)
            if file is not None:
                file.check(self._reporter(name))
        return not self._problems

    def prepare(self) -> None:
        """Read what tells where things are in its files, before anybody waits for that."""
        for name in sorted(self._files, key=lambda name: len(self._files[name]["rows"])):
            self._file(name)

    def rows_of(self, keys: Sequence[int] | None, columns: list[str]) -> pa.Table:
        """The row groups that hold any of some keys (sites, for `stats`), or all of them."""
        file = self._file(ROWS)
        if file is None:
            return self._schema(columns).empty_table()
        groups = range(len(file.rows)) if keys is None else file.groups_with(keys)
        return file.read(groups, self._schema(columns), self._reporter(ROWS))

    def rows_at(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """The rows of the steps from first to last, and no others."""
        name, file = self._in_time(columns)
        if file is None:
            return self._schema(columns).empty_table()
        needed = self._schema(columns if "step" in columns else [*columns, "step"])
        if name == BY_STEP:
            rows = file.read(file.groups_between(first, last), needed, self._reporter(name))
            return _sorted_between(rows, "step", first, last).select(columns)
        # One row group after the other: what is held is what is asked for.
        found = [needed.empty_table()]
        for group in range(len(file.rows)):
            rows = file.read([group], needed, self._reporter(name))
            found.append(_between(rows, "step", first, last))
        return pa.concat_tables(found).select(columns)

    def _in_time(self, columns: Sequence[str]) -> tuple[str, PartFile | None]:
        """The file to ask for steps: the one that is sorted by them, where it has the columns."""
        has_all = BY_STEP in self._files and not {"sketch_keys", "sketch_counts"} & {*columns}
        name = BY_STEP if has_all else ROWS
        file = self._file(name)
        if file is None and name == BY_STEP:
            name, file = ROWS, self._file(ROWS)  # slower, and as right
        return name, file

    def rows_of_steps(self, steps: Sequence[int], columns: list[str]) -> pa.Table:
        """The rows of some steps, and no others: few row groups at a time, so in little memory."""
        name, file = self._in_time(columns)
        pieces = [self._schema(columns).empty_table()]
        if file is not None:
            needed = self._schema(columns if "step" in columns else [*columns, "step"])
            groups = file.groups_with(steps) if name == BY_STEP else list(range(len(file.rows)))
            wanted = pa.array(steps, pa.int64())
            for start in range(0, len(groups), _GROUPS_AT_ONCE):
                some = groups[start : start + _GROUPS_AT_ONCE]
                rows = file.read(some, needed, self._reporter(name))
                pieces.append(rows.filter(pc.is_in(rows["step"], wanted)).select(columns))
        return pa.concat_tables(pieces)

    def _schema(self, columns: list[str]) -> pa.Schema:
        schema = TABLES[self._folder.name]
        return pa.schema([schema.field(name) for name in columns])

    def tiles(
        self, quantity: str, level: int, first: int, last: int, schema: pa.Schema
    ) -> pa.Table | None:
        """The row groups that hold blocks from first to last.

        None where there are none, or none of all these columns: an earlier version wrote fewer.
        """
        name = f"{quantity}.{level}"
        file = self._file(name) if name in self._files else None
        if file is None or not file.has(schema.names):
            return None
        return file.read(file.groups_between(first, last), schema, self._reporter(name))

    def merged_sketches(
        self, keys: Sequence[int], level: int, schema: pa.Schema
    ) -> pa.Table | None:
        """The row groups with blocks of some sites' sketches.

        None where there are none, or not all can be read: then the rows themselves tell.
        """
        name = f"{SKETCHES}.{level}"
        file = self._file(name) if name in self._files else None
        if file is None:
            return None
        damage: list[str] = []
        blocks = file.read(file.groups_with(keys), schema, damage.append)
        for reason in damage:
            self._reporter(name)(reason)
        return None if damage else blocks

    def _open_all(self) -> dict[str, pa.NativeFile]:
        """All files, held open: a part that is merged into a larger one stays readable.

        The file with the rows, which is removed before the others, is opened after them.
        """
        handles = {}
        for name in sorted(self._files, key=lambda name: name == ROWS):
            path = part_path(self._folder, self.source, name)
            try:
                check_plain(path)
                handles[name] = pa.OSFile(str(path), "rb")
            except OSError as error:
                self._reporter(name)(_reason(error))
        return handles

    def _file(self, name: str) -> PartFile | None:
        """A file, opened once; None where it cannot be read."""
        with self._locks[name]:
            if name not in self._open:
                try:
                    self._open[name] = PartFile(self._handles[name], self._files[name])
                except (DamagedError, *_DAMAGE) as error:
                    self._reporter(name)(_reason(error))
                    self._open[name] = None
            return self._open[name]

    def _reporter(self, name: str) -> Callable[[str], None]:
        def report(reason: str) -> None:
            path = part_path(self._folder, self.source, name)
            self._problems[name] = (
                f"{str(path)!r} is damaged ({reason}): what can be read of it is shown."
            )

        return report
