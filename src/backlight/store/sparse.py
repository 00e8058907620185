"""Reads of a run only the statistics of chosen steps.

Whoever looks at few steps of a long run need not read the others, and a run that has just ended may
not be compacted yet. Of a stream, the header of each batch is read and the steps that it is of;
the batch itself, most of which are sketches, only where it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import STATS, TABLES
from backlight.store.layout import Source, list_sources
from backlight.store.messages import (
    DamagedError,
    Outline,
    TornError,
    check,
    find_checked,
    has_trailer,
    is_checked,
    outline,
)
from backlight.store.parts import Part
from backlight.store.reader import RunReader
from backlight.store.stream_follower import StreamFollower, batch_of, conform, possible_rows

_HEADER_BYTES: Final = 1 << 12
_MOST_HEADER_BYTES: Final = 1 << 16
_STREAMS_AT_ONCE: Final = 16
"""A disk that is asked for many places at once finds them far sooner than one after the other."""

_LOOKS: Final = 10
_HELD: Final = tuple(name for name in TABLES if name not in ("stats", "samples"))
_DAMAGE: Final = (DamagedError, pa.ArrowException, ValueError, TypeError, EOFError)

Whole = npt.NDArray[np.int64]


class SparseStream:
    """Where the batches of a stream are, and of which steps.

    A stream that is damaged, or not of our making, is read as a whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._size_bytes = self._offset = 0
        self._schema: pa.Schema | None = None
        self._schema_crc = 0
        self._head_bytes = _HEADER_BYTES
        self._places: list[tuple[int, int, Whole]] = []  # offset, bytes, steps
        self._follower: StreamFollower | None = None
        self._followed: list[pa.RecordBatch] = []

    @property
    def steps(self) -> Whole:
        """The steps that it has rows of."""
        followed = [batch.column("step").to_numpy() for batch in self._followed]
        every = [np.empty(0, np.int64), *(steps for *_, steps in self._places), *followed]
        return np.unique(np.concatenate(every))

    def refresh(self) -> bool:
        """Look for what is new; whether there was anything."""
        size_bytes = self._path.stat().st_size
        if size_bytes == self._size_bytes:
            return False
        if size_bytes < self._size_bytes:
            self._begin()  # another run's, in a folder that was made anew
        self._size_bytes = size_bytes
        if self._follower is None:
            try:
                with self._path.open("rb", buffering=0) as file:
                    _advise(file, "POSIX_FADV_RANDOM", 0, 0)  # what lies between is not wanted
                    for place in self._new_places(file):
                        self._places.append(place)
            except _DAMAGE:
                self._follower, self._places = StreamFollower(self._path, STATS), []
        if self._follower is not None:
            self._followed += self._follower.take()
        return True

    def rows(self, steps: Whole, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows of some steps."""
        wanted = pa.array(steps, pa.int64())
        schema = pa.schema([STATS.field(name) for name in {"step": None, **dict.fromkeys(columns)}])
        for batch in [*self._followed, *self._asked(steps, schema)]:
            possible = possible_rows(batch)
            batch = batch if possible is None else batch.filter(possible)
            yield batch.select(columns).filter(pc.is_in(batch.column("step"), wanted))

    def _asked(self, steps: Whole, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        asked = set(steps.tolist())
        places = [each for each in self._places if not asked.isdisjoint(each[2].tolist())]
        if not places:
            return
        with self._path.open("rb", buffering=0) as file:
            for offset, length, _ in places:
                _advise(file, "POSIX_FADV_WILLNEED", offset, length)
            for offset, length, _ in places:
                try:
                    yield self._batch(pa.py_buffer(_read(file, offset, length)), schema)
                except (*_DAMAGE, OSError):
                    continue  # the others are as good as they were

    def _batch(self, message: pa.Buffer, schema: pa.Schema = STATS) -> pa.RecordBatch:
        assert self._schema is not None
        if is_checked(self._schema) or has_trailer(message):
            schema_crc, _ = check(message)
            if schema_crc != self._schema_crc:
                raise DamagedError("a batch belongs to another stream")
        try:
            return conform(batch_of(message, self._schema, schema.names), schema)
        except OSError as error:  # Arrow's word for a header that makes no sense
            raise DamagedError(str(error)) from None

    def _new_places(self, file: BinaryIO) -> Iterator[tuple[int, int, Whole]]:
        """The batches behind those that are known, up to one that is not all there."""
        while self._offset < self._size_bytes:
            try:
                head, told = self._head(file)
            except TornError:
                self._check_end(file)
                return
            if self._offset + told.length > self._size_bytes:
                self._check_end(file)
                return
            if self._schema is None:
                self._begin_schema(_read(file, 0, told.length))
            elif told.rows:
                if not self._places:
                    self._batch(pa.py_buffer(_read(file, self._offset, told.length)))
                yield self._offset, told.length, self._steps_of(file, head, told)
            self._offset += told.length

    def _begin_schema(self, message: bytes) -> None:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(message))
        except OSError:
            raise DamagedError("the stream's schema is damaged") from None
        if schema.names[:1] != ["step"] or schema.types[0] != pa.int64():
            raise DamagedError("steps are not its first column")
        self._schema, self._schema_crc = schema, crc32(message)

    def _check_end(self, file: BinaryIO) -> None:
        """Behind a message that is not all there is no other: else its length is wrong."""
        rest = pa.py_buffer(_read(file, self._offset, self._size_bytes - self._offset))
        if find_checked(rest, 1) is not None:
            raise DamagedError("a message's length is wrong")

    def _head(self, file: BinaryIO) -> tuple[bytes, Outline]:
        head = _read(file, self._offset, self._head_bytes)
        try:
            return head, outline(head)
        except TornError as torn:
            head = _read(file, self._offset, torn.needed_bytes)
            return head, outline(head)

    def _steps_of(self, file: BinaryIO, head: bytes, told: Outline) -> Whole:
        """The steps of a batch: nearly always one, which its ends tell."""
        start, size_bytes = told.first_column
        if not 0 < told.rows * 8 <= size_bytes or start + size_bytes > told.length:
            raise DamagedError("it has fewer bytes than rows")
        size_bytes = told.rows * 8
        # The next batch is much like this one: its head may reach to the column's end at once.
        self._head_bytes = min(max(start + size_bytes, _HEADER_BYTES), _MOST_HEADER_BYTES)
        first = head[start : start + 8]
        last = head[start + size_bytes - 8 : start + size_bytes]
        last = last if len(last) == 8 else _read(file, self._offset + start + size_bytes - 8, 8)
        if first == last and len(first) == 8:
            return np.frombuffer(first, "<i8")
        first = _read(file, self._offset + start, size_bytes)
        return np.unique(np.frombuffer(first, "<i8"))


class SparseStats:
    """The statistics of a run, of which only those of chosen steps are read.

    `reader` has the other tables, but for samples, which are as large. The run may still be
    written.
    """

    def __init__(self, path: Path) -> None:
        self.reader = RunReader(path)
        self._folder = path / "stats"
        self._streams: dict[Source, SparseStream] = {}
        self._parts: dict[Source, Part | None] = {}

    def refresh(self) -> bool:
        """Look for what is new; whether there was anything."""
        # Statistics before sites: a site is written before anything that is seen at it.
        is_new = self._refresh_stats()
        return self.reader.refresh(_HELD) or is_new

    def _refresh_stats(self) -> bool:
        is_new = False
        for _ in range(_LOOKS):
            try:
                return self._look() or is_new
            except FileNotFoundError:
                is_new = True  # compacted at this moment
        return is_new

    @property
    def recorded_steps(self) -> Whole:
        """The steps that have statistics."""
        parts = [part.steps for part in self._parts.values() if part is not None]
        streams = [stream.steps for stream in self._streams.values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts, *streams]))

    def of_steps(self, steps: Whole, columns: list[str]) -> pa.Table:
        """The statistics of some steps, with their rank and the run's numbers of their sites."""
        for _ in range(_LOOKS):
            try:
                return pa.concat_tables(list(self._pieces(steps, columns)))
            except FileNotFoundError:
                self._refresh_stats()  # compacted at this moment
        return pa.concat_tables(list(self._pieces(steps, columns)))

    def _pieces(self, steps: Whole, columns: list[str]) -> Iterator[pa.Table]:
        schema = pa.schema([STATS.field(name) for name in columns])
        found: list[tuple[int, Any]] = [(0, pa.Table.from_batches([], schema))]
        for source, part in self._parts.items():
            if part is not None:
                found.append((source.rank, part.rows_of_steps(steps.tolist(), columns)))
        with ThreadPoolExecutor(_STREAMS_AT_ONCE) as pool:
            read = pool.map(lambda each: list(each.rows(steps, columns)), self._streams.values())
            for source, batches in zip(self._streams, read, strict=True):
                found.append((source.rank, pa.Table.from_batches(batches, schema)))
        for rank, rows in found:
            known, _ = self.reader.snapshot.sites.renumber(rank, rows)
            yield known

    def _look(self) -> bool:
        listing = list_sources(self._folder)
        sources = {*listing.parts, *listing.streams}
        is_new = sources != {*self._parts, *self._streams}
        self._parts = {source: self._part(source) for source in listing.parts}
        self._streams = {
            source: self._streams.get(source) or SparseStream(self._folder / source.name)
            for source in listing.streams
        }
        with ThreadPoolExecutor(_STREAMS_AT_ONCE) as pool:
            return any([is_new, *pool.map(SparseStream.refresh, self._streams.values())])

    def _part(self, source: Source) -> Part | None:
        if source in self._parts:
            return self._parts[source]
        try:
            return Part(self._folder, source)
        except DamagedError:
            if not (self._folder / source.name).exists():
                raise FileNotFoundError(source.name) from None
            return None


def _advise(file: BinaryIO, advice: str, offset: int, length: int) -> None:
    """Tell the system what will be read: a disk takes long for what is not."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), offset, length, getattr(os, advice))


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
