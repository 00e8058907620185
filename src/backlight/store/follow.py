"""Reads Arrow IPC streams while they are written: each call takes what is new and whole.

A message that is not all there yet is left for the next call, so a reader needs no word from the
writer, and a writer that was killed costs its reader nothing but the message under way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

_SEGMENT: Final = re.compile(r"(\d{1,9})-(\d{1,9})\.arrows")
_PREFIX: Final = struct.Struct("<II")
_CONTINUATION: Final = 0xFFFFFFFF
_LARGEST_METADATA_BYTES: Final = 1 << 26
_CHUNK_BYTES: Final = 1 << 26
_LARGEST_PIECE_ROWS: Final = 1 << 17


class DamagedError(Exception):
    """A message that no writer of ours wrote; what comes after it cannot be found."""


class TornError(Exception):
    """A message of which only the first bytes are there; says how many it has at least."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


class StreamFollower:
    """Follows one stream file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "0-0000.arrows"
    >>> schema = pa.schema([pa.field("step", pa.int64())])
    >>> follower = StreamFollower(path, schema)
    >>> follower.take()  # not written yet
    []
    >>> with pa.ipc.new_stream(path, schema) as stream:
    ...     stream.write_table(pa.table({"step": [1, 2]}))
    ...     stream.write_table(pa.table({"step": [3]}))
    >>> [batch.num_rows for batch in follower.take()], follower.take()
    ([3], [])
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.offset = 0
        self.problem: str | None = None
        self._stream_schema: pa.Schema | None = None
        self._size_seen = -1
        self._ended = False

    def take(self) -> list[pa.RecordBatch]:
        """The rows that have become whole since the last call, in few batches."""
        size = self._size()
        if size == self._size_seen or self._ended:
            return []
        self._size_seen = size
        self.problem = None
        try:
            return self._take_until(size)
        except OSError as error:
            self.problem = f"Cannot read {str(self.path)!r}: {error.strerror or error}."
            return []

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return -1

    def _take_until(self, size: int) -> list[pa.RecordBatch]:
        if size < self.offset:
            self.problem = f"{str(self.path)!r} became shorter: rows read before are still shown."
            return []
        batches: list[pa.RecordBatch] = []
        try:
            wanted = _CHUNK_BYTES
            while self.offset + wanted < size and not self._ended:
                wanted = max(_CHUNK_BYTES, self._take_chunk(wanted, batches))
            self._take_chunk(size - self.offset, batches)
        except DamagedError as damage:
            self.problem = (
                f"{str(self.path)!r} is damaged at byte {self.offset} ({damage}): "
                "the rows before that are shown."
            )
        return batches

    def _take_chunk(self, length: int, batches: list[pa.RecordBatch]) -> int:
        """Add the whole batches of the next bytes; the answer is how many the next one needs."""
        chunk = self._read(length)
        if chunk.size < length:
            raise DamagedError("the file became shorter while it was read")
        taken: list[pa.RecordBatch] = []
        needed_bytes = 0
        try:
            for batch in self._batches(chunk):
                taken.append(batch)
        except TornError as torn:
            needed_bytes = torn.needed_bytes
        finally:
            if taken:
                # Once for the chunk: a live run has a batch for each step, of few rows each.
                batches.append(conform(pa.concat_batches(taken), self.schema))
        return needed_bytes

    def _read(self, length: int) -> pa.Buffer:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return pa.py_buffer(file.read(length))

    def _batches(self, chunk: pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The whole batches of a chunk; `offset` moves on with each."""
        position = 0
        while position < chunk.size:
            length = message_length(chunk, position)
            if length == _PREFIX.size:
                self._ended = True
                return
            batch = self._decode(chunk.slice(position, length))
            position += length
            self.offset += length
            if batch is not None:
                yield batch

    def _decode(self, buffer: pa.Buffer) -> pa.RecordBatch | None:
        """The batch in a message, or None for the schema that opens the stream."""
        try:
            message = pa.ipc.read_message(buffer)
            if self._stream_schema is None:
                schema = pa.ipc.read_schema(message)
                conform(pa.RecordBatch.from_pylist([], schema=schema), self.schema)
                self._stream_schema = schema
                return None
            batch = pa.ipc.read_record_batch(message, self._stream_schema)
            # Wrong list offsets would otherwise be followed into memory that is not ours.
            batch.validate(full=True)
            return batch
        except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as error:
            raise DamagedError(str(error).strip().split("\n")[0]) from None


def message_length(buffer: pa.Buffer, position: int) -> int:
    """The bytes of the message at `position`, its prefix and body included.

    Raises TornError where the buffer ends before the message does. Arrow itself would answer a
    damaged message and an unfinished one with the same error.
    """
    there = buffer.size - position
    if there < _PREFIX.size:
        raise TornError(_PREFIX.size)
    marker, metadata_bytes = _PREFIX.unpack_from(buffer, position)
    if marker != _CONTINUATION:
        raise DamagedError("no message starts there")
    if metadata_bytes > _LARGEST_METADATA_BYTES:
        raise DamagedError("a message cannot be that long")
    length: int = _PREFIX.size + metadata_bytes
    if metadata_bytes == 0:
        return length
    if there < length:
        raise TornError(length)
    length += _body_bytes(buffer.slice(position + _PREFIX.size, metadata_bytes))
    if there < length:
        raise TornError(length)
    return length


def _body_bytes(metadata: pa.Buffer) -> int:
    """The field `bodyLength` of a message's flatbuffer: the fourth of its root table."""
    try:
        (root,) = struct.unpack_from("<I", metadata, 0)
        vtable = root - struct.unpack_from("<i", metadata, root)[0]
        (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
        field = struct.unpack_from("<H", metadata, vtable + 10)[0] if vtable_bytes >= 12 else 0
        body = struct.unpack_from("<q", metadata, root + field)[0] if field else 0
    except struct.error:
        raise DamagedError("a message's header points outside of it") from None
    if not 0 <= body < 1 << 40:
        raise DamagedError("a message cannot be that long")
    return int(body)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns of `schema`: an older or newer minor version differs.

    >>> schema = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.utf8())])
    >>> conform(pa.record_batch({"c": [0], "a": [1]}), schema).to_pylist()
    [{'a': 1, 'b': None}]
    """
    columns = [_column(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.schema.get_field_index(field.name)
    if index < 0 and field.nullable:
        return pa.nulls(batch.num_rows, field.type)
    if index < 0 or (not field.nullable and batch.column(index).null_count):
        raise DamagedError(f"the column {field.name!r} is missing")
    column = batch.column(index)
    return column if column.type.equals(field.type) else _cast(column, field)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowException:
        raise DamagedError(f"the column {field.name!r} has the wrong type") from None


@dataclass(frozen=True)
class RankBatch:
    """A batch and the rank that wrote it."""

    rank: int
    batch: pa.RecordBatch


class TableFollower:
    """Follows every segment of every rank of one table: `<folder>/<rank>-<segment>.arrows`."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        self.schema = schema
        self._streams: dict[tuple[int, int], StreamFollower] = {}

    def take(self) -> list[RankBatch]:
        """Every batch that has become whole since the last call, by rank and segment."""
        self._find_segments()
        return [
            RankBatch(rank, batch)
            for (rank, _), stream in self._streams.items()
            for batch in stream.take()
        ]

    @property
    def problems(self) -> list[str]:
        """One sentence for each stream that cannot be read to its end."""
        return [stream.problem for stream in self._streams.values() if stream.problem]

    def _find_segments(self) -> None:
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return
        found = {
            (int(match[1]), int(match[2])): name
            for name in names
            if (match := _SEGMENT.fullmatch(name))
        }
        for key in found.keys() - self._streams.keys():
            self._streams[key] = StreamFollower(self.folder / found[key], self.schema)
            self._streams = dict(sorted(self._streams.items()))


class GrowingTable:
    """Rows that only ever grow, in few pieces however many batches they came in.

    Queries pay for each piece. A piece is merged with the one before it while that is not much
    larger, so a row is copied a few times at most; and never past a size that would be felt.

    >>> table = GrowingTable(pa.schema([pa.field("step", pa.int64())]))
    >>> for step in range(1000):
    ...     table.append([pa.record_batch({"step": [step]})])
    >>> table.read().num_rows, table.read()["step"].num_chunks < 12
    (1000, True)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._pieces: list[pa.RecordBatch] = []

    def append(self, batches: list[pa.RecordBatch]) -> None:
        """Add rows at the end."""
        for batch in batches:
            self._pieces.append(batch)
            while len(self._pieces) > 1 and self._is_worth_merging(*self._pieces[-2:]):
                self._pieces[-2:] = [pa.concat_batches(self._pieces[-2:])]

    def read(self) -> pa.Table:
        """The rows so far; what is appended later does not change it."""
        return pa.Table.from_batches(self._pieces, self.schema)

    @staticmethod
    def _is_worth_merging(older: pa.RecordBatch, newer: pa.RecordBatch) -> bool:
        is_small: bool = older.num_rows + newer.num_rows <= _LARGEST_PIECE_ROWS
        return is_small and bool(older.num_rows <= 2 * newer.num_rows)
