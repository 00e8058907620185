"""Reads Arrow IPC streams while they are written: each call takes what is new and whole.

A message that is not all there yet is left for the next call, so a reader needs no word from the
writer, and a writer that was killed costs its reader nothing but the message under way. A message
that is not as it was written is left out, and the next whole one is looked for behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.flatbuffer import PREFIX
from backlight.store.messages import (
    DamagedError,
    TornError,
    check,
    find_checked,
    has_trailer,
    is_checked,
    is_compressed,
    message_length,
    schema_message,
)

_CHUNK_BYTES: Final = 1 << 26


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
        self.has_ended = False  # by the mark that a writer leaves when it closes the stream
        self._problem: str | None = None
        self._damage: tuple[int, str] | None = None  # where the first was, behind which we read on
        self._lost_batches = 0
        self._stream_schema: pa.Schema | None = None
        self._is_checked = False
        self._schema_crc = 0
        self._batches_seen = 0
        self._size_seen = -1

    @property
    def problem(self) -> str | None:
        """One sentence, where the stream cannot be read to its end or not all of it."""
        if self._problem is not None or self._damage is None:
            return self._problem
        offset, reason = self._damage
        lost = f"{self._lost_batches} of its batches" if self._lost_batches else "some bytes"
        return (
            f"{str(self.path)!r} is damaged at byte {offset} ({reason}): "
            f"{lost} cannot be read, the others are shown."
        )

    @property
    def is_missing(self) -> bool:
        """Whether the file was not there when it was looked for."""
        return self._size_seen < 0

    @property
    def torn_bytes(self) -> int:
        """The bytes of the message that is not all there."""
        return 0 if self.has_ended else max(0, self._size_seen - self.offset)

    @property
    def is_empty(self) -> bool:
        """Whether it has no byte: a stream that was begun says first what it holds."""
        return self._size_seen == 0

    def take(self) -> list[pa.RecordBatch]:
        """The rows that have become whole since the last call, in few batches."""
        size = self._size()
        if size == self._size_seen or self.has_ended:
            return []
        self._size_seen = size
        self._problem = None
        try:
            return self._take_until(size)
        except FileNotFoundError:
            self._size_seen = -1  # compacted at this moment
            return []
        except OSError as error:
            self._problem = f"Cannot read {str(self.path)!r}: {error.strerror or error}."
            return []

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return -1

    def _take_until(self, size: int) -> list[pa.RecordBatch]:
        if size < 0:
            return []  # compacted meanwhile: its part holds all its rows
        if size < self.offset:
            self._problem = f"{str(self.path)!r} became shorter: rows read before are still shown."
            return []
        batches: list[pa.RecordBatch] = []
        wanted = _CHUNK_BYTES
        while self.offset < size and not self.has_ended:
            length = min(wanted, size - self.offset)
            is_end = self.offset + length == size
            chunk = self._read(length)
            if chunk.size < length:
                self._say_damaged("the file became shorter while it was read")
                break
            try:
                needed_bytes = self._take_chunk(chunk, batches, is_end=is_end)
            except DamagedError as damage:
                self._say_damaged(str(damage))
                break
            if is_end:
                break
            wanted = max(_CHUNK_BYTES, needed_bytes)
        return batches

    def _read(self, length: int) -> pa.Buffer:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return pa.py_buffer(file.read(length))

    def _take_chunk(self, chunk: pa.Buffer, batches: list[pa.RecordBatch], *, is_end: bool) -> int:
        """Add the whole batches of a chunk; the answer is how many bytes the next one needs."""
        taken: list[pa.RecordBatch] = []
        needed_bytes, position, is_over = 0, 0, False
        while position < chunk.size and not is_over:
            start = self.offset
            try:
                for batch in self._batches(chunk, position):
                    taken.append(batch)
                is_over = True
            except TornError as torn:
                needed_bytes = torn.needed_bytes
                is_over = not is_end or not self._skip_to(
                    chunk, position + self.offset - start, "a message's length is wrong"
                )
            except DamagedError as damage:
                is_over = not self._skip_to(chunk, position + self.offset - start, str(damage))
                if is_over and is_end:
                    self._say_damaged(str(damage))
                elif is_over:
                    self._note_damage(self.offset, str(damage))
                    self.offset += max(1, chunk.size - position - (self.offset - start) - 7)
            position += self.offset - start
        if taken:
            # Once for the chunk: a live run has a batch for each step, of few rows each.
            batches.append(self._possible(conform(pa.concat_batches(taken), self.schema)))
        return needed_bytes

    def _possible(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that can be; numbers beyond all reason would make others wrong."""
        is_possible = possible_rows(batch)
        if is_possible is None:
            return batch
        self._note_damage(self.offset, "it has numbers that cannot be")
        return batch.filter(is_possible)

    def _skip_to(self, chunk: pa.Buffer, position: int, reason: str) -> bool:
        """Go on behind damage, at the next message with a right checksum; whether there is one."""
        found = find_checked(chunk, position + 1)
        if found is None:
            return False
        self._note_damage(self.offset, reason)
        self.offset += found[0] - position
        return True

    def _note_damage(self, offset: int, reason: str) -> None:
        self._damage = self._damage or (offset, reason)

    def _say_damaged(self, reason: str) -> None:
        self._problem = (
            f"{str(self.path)!r} is damaged at byte {self.offset} ({reason}): "
            "the rows before that are shown."
        )

    def _batches(self, chunk: pa.Buffer, position: int) -> Iterator[pa.RecordBatch]:
        """The whole batches of a chunk from a position on; `offset` moves on with each."""
        while position < chunk.size:
            length = message_length(chunk, position)
            if length == PREFIX.size:
                self.has_ended = True
                return
            batch = self._decode(chunk.slice(position, length))
            position += length
            self.offset += length
            if batch is not None:
                yield batch

    def _decode(self, buffer: pa.Buffer) -> pa.RecordBatch | None:
        """The batch in a message, or None for the schema that opens the stream."""
        try:
            if self._stream_schema is None and not has_trailer(buffer):
                schema = pa.ipc.read_schema(pa.ipc.read_message(buffer))
                conform(pa.RecordBatch.from_pylist([], schema=schema), self.schema)
                self._stream_schema, self._schema_crc = schema, crc32(buffer)
                self._is_checked = is_checked(schema)
                return None
            schema, is_new = self._checked_schema(buffer)
            batch = batch_of(buffer, schema)
            return batch if is_new else None
        except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as error:
            raise DamagedError(str(error).strip().split("\n")[0]) from None

    def _checked_schema(self, buffer: pa.Buffer) -> tuple[pa.Schema, bool]:
        """The schema that a batch was written with, and whether it was not had before."""
        schema = self._stream_schema
        if schema is not None and not self._is_checked and not has_trailer(buffer):
            return schema, True
        schema_crc, number = check(buffer)
        if schema is None or (schema_crc != self._schema_crc and not self._batches_seen):
            # The schema itself is damaged. It most likely was what this version writes.
            known = (each for each in _written(self.schema) if schema_crc == _crc(each))
            schema = self._stream_schema = next(known, None)
            if schema is None:
                raise DamagedError("the stream's schema is damaged")
            self._schema_crc = schema_crc
            self._note_damage(0, "its schema cannot be read")
        if schema_crc != self._schema_crc:
            raise DamagedError("a batch belongs to another stream")
        is_new = number >= self._batches_seen
        if number != self._batches_seen:
            self._note_damage(self.offset, "its batches are not in order")
            self._lost_batches += max(0, number - self._batches_seen)
        self._batches_seen = max(self._batches_seen, number + 1)
        return schema, is_new


def batch_of(
    message: pa.Buffer, schema: pa.Schema, columns: Collection[str] | None = None
) -> pa.RecordBatch:
    """The batch in a message, or some of its columns, where they can be read without harm."""
    if is_compressed(message):
        raise DamagedError("its rows are compressed, as no writer of ours does")
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(message), schema)
    if columns is not None:
        batch = batch.select([name for name in schema.names if name in columns])
    # Wrong list offsets would otherwise be followed into memory that is not ours.
    batch.validate(full=True)
    if batch.num_rows > message.size:
        raise DamagedError("it has fewer bytes than rows")
    return batch


_COUNTS: Final = {"step": 1 << 53, "count": 1 << 48, "zeros": 1 << 48, "nans": 1 << 48} | {
    "infs": 1 << 48
}


def possible_rows(rows: pa.RecordBatch | pa.Table) -> pa.Array | None:
    """Which rows have numbers that can be; None where all have, which is told without a mask.

    >>> possible_rows(pa.table({"step": [1, -1, 1 << 60]})).to_pylist()
    [True, False, False]
    """
    mask: Any = None
    for name, most in _COUNTS.items():
        if name not in rows.schema.names:
            continue
        column = rows.column(name)
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None and (ends["min"] < 0 or ends["max"] >= most):
            fits = pc.and_(pc.greater_equal(column, 0), pc.less(column, most))
            mask = fits if mask is None else pc.and_(mask, fits)
    if {"sketch_keys", "sketch_counts"} <= set(rows.schema.names):
        lengths = [pc.list_value_length(rows.column(n)) for n in ("sketch_keys", "sketch_counts")]
        fits = pc.equal(*lengths)
        if pc.all(fits).as_py() is False:
            mask = fits if mask is None else pc.and_(mask, fits)
    return mask


def _written(schema: pa.Schema) -> list[pa.Schema]:
    """The schemas that this version writes for a table: with the user's own statistics, without."""
    return [schema, pa.schema([field for field in schema if field.name != "own"])]


def _crc(schema: pa.Schema) -> int:
    return crc32(schema_message(schema))


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
