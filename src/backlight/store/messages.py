"""The messages of an Arrow IPC stream, each with a checksum that other readers do not notice.

Arrow's own format has no checksums, so a flipped bit would be a wrong number. Each batch's message
therefore ends with 16 bytes more than its buffers need, which its header counts as a part of its
body: a mark, the checksum of the stream's schema message, the batch's number in the stream, and the
checksum of the whole message before that. Any reader of Arrow skips them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from backlight.store.flatbuffer import PREFIX, field_at

CHECKED: Final = {b"backlight.checksums": b"crc32"}
"""What a stream's schema says where its batches have checksums."""

END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends a stream that was closed."""

_TRAILER: Final = struct.Struct("<4sIII")
_MARK: Final = b"BLc1"
_CONTINUATION: Final = 0xFFFFFFFF
_LARGEST_METADATA_BYTES: Final = 1 << 26
_RECORD_BATCH: Final = 3  # of the kinds of messages
_START: Final = re.compile(b"\xff\xff\xff\xff")


class DamagedError(Exception):
    """A message that no writer of ours wrote; what comes after it cannot be found."""


class TornError(Exception):
    """A message of which only the first bytes are there; says how many it has at least."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


def schema_message(schema: pa.Schema) -> bytes:
    """The message that opens a stream whose batches have checksums."""
    content: bytes = schema.with_metadata(CHECKED).serialize().to_pybytes()
    return content


def batch_message(batch: pa.RecordBatch, *, schema_crc: int, number: int) -> list[Any]:
    """The pieces of a batch's message, to be written one after the other.

    >>> schema = pa.schema([pa.field("step", pa.int64())])
    >>> opening = schema_message(schema)
    >>> batch = pa.record_batch({"step": [7]}, schema=schema)
    >>> pieces = batch_message(batch, schema_crc=crc32(opening), number=0)
    >>> pa.ipc.open_stream(opening + b"".join(pieces) + END).read_all()["step"].to_pylist()
    [7]
    """
    message = memoryview(batch.serialize())
    header_bytes = PREFIX.size + PREFIX.unpack_from(message)[1]
    header, body = bytearray(message[:header_bytes]), message[header_bytes:]
    struct.pack_into("<q", header, _body_field(header), len(body) + _TRAILER.size)
    known = struct.pack("<4sII", _MARK, schema_crc, number & 0xFFFFFFFF)
    crc = crc32(known, crc32(body, crc32(header)))
    return [header, body, known + struct.pack("<I", crc)]


def message_length(buffer: pa.Buffer, position: int) -> int:
    """The bytes of the message at `position`, its prefix and body included.

    Raises TornError where the buffer ends before the message does. Arrow itself would answer a
    damaged message and an unfinished one with the same error.
    """
    there = buffer.size - position
    if there < PREFIX.size:
        raise TornError(PREFIX.size)
    marker, metadata_bytes = PREFIX.unpack_from(buffer, position)
    if marker != _CONTINUATION:
        raise DamagedError("no message starts there")
    if metadata_bytes > _LARGEST_METADATA_BYTES:
        raise DamagedError("a message cannot be that long")
    length: int = PREFIX.size + metadata_bytes
    if metadata_bytes == 0:
        return length
    if there < length:
        raise TornError(length)
    length += _body_bytes(buffer.slice(position, length))
    if there < length:
        raise TornError(length)
    return length


def _body_field(message: Any) -> int:
    """Where a message says its body's length: the fourth field of its flatbuffer's root table."""
    root = PREFIX.size + struct.unpack_from("<I", message, PREFIX.size)[0]
    return field_at(message, root, 3)


def _body_bytes(message: pa.Buffer) -> int:
    try:
        field = _body_field(message)
        body = struct.unpack_from("<q", message, field)[0] if field else 0
    except struct.error:
        raise DamagedError("a message's header points outside of it") from None
    if not 0 <= body < 1 << 40:
        raise DamagedError("a message cannot be that long")
    return int(body)


class Outline(NamedTuple):
    """What a message's header says of it."""

    length: int  # in bytes, its prefix and body included
    rows: int
    first_column: tuple[int, int]  # where that column's numbers are in the message, and their bytes


def outline(header: bytes) -> Outline:
    """What a message's first bytes say of it; of an end or a schema, that it has no rows.

    Raises TornError where more of them are needed.

    >>> message = pa.record_batch({"step": [7, 8]}).serialize().to_pybytes()
    >>> length, rows, (start, size) = outline(message)
    >>> rows, length == len(message), struct.unpack("<2q", message[start : start + size])
    (2, True, (7, 8))
    """
    buffer = pa.py_buffer(header)
    if buffer.size < PREFIX.size:
        raise TornError(PREFIX.size)
    head_bytes = PREFIX.size + PREFIX.unpack_from(buffer)[1]
    if PREFIX.unpack_from(buffer)[0] != _CONTINUATION or head_bytes > _LARGEST_METADATA_BYTES:
        raise DamagedError("no message starts there")
    if head_bytes == PREFIX.size:
        return Outline(head_bytes, 0, (0, 0))
    if buffer.size < head_bytes:
        raise TornError(head_bytes)
    buffer = buffer.slice(0, head_bytes)
    length = head_bytes + _body_bytes(buffer)
    try:
        return Outline(length, *_first_column(buffer, head_bytes))
    except struct.error:
        raise DamagedError("a message's header points outside of it") from None


def _first_column(message: pa.Buffer, head_bytes: int) -> tuple[int, tuple[int, int]]:
    root = PREFIX.size + struct.unpack_from("<I", message, PREFIX.size)[0]
    kind, header = field_at(message, root, 1), field_at(message, root, 2)
    if not kind or not header or struct.unpack_from("<B", message, kind)[0] != _RECORD_BATCH:
        return 0, (0, 0)
    header += struct.unpack_from("<I", message, header)[0]
    rows, buffers = field_at(message, header, 0), field_at(message, header, 2)
    if not rows or not buffers:
        return 0, (0, 0)
    buffers += struct.unpack_from("<I", message, buffers)[0] + 4  # behind the vector's length
    # A column's first buffer says which of its numbers are there, the second one has them.
    start, size = struct.unpack_from("<2q", message, buffers + 16)
    return struct.unpack_from("<q", message, rows)[0], (head_bytes + start, size)


def is_compressed(message: pa.Buffer) -> bool:
    """Whether a batch's buffers are compressed, as ours never are: few bytes could become many.

    >>> batch = pa.record_batch({"step": [7] * 1000})
    >>> options = pa.ipc.IpcWriteOptions(compression="zstd")
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
    ...     stream.write_batch(batch)
    >>> start = batch.schema.serialize().size
    >>> is_compressed(sink.getvalue().slice(start)), is_compressed(batch.serialize())
    (True, False)
    """
    try:
        root = PREFIX.size + struct.unpack_from("<I", message, PREFIX.size)[0]
        header = field_at(message, root, 2)
        if not header:
            return False
        header += struct.unpack_from("<I", message, header)[0]
        return bool(field_at(message, header, 3))
    except struct.error:
        raise DamagedError("a message's header points outside of it") from None


def is_checked(schema: pa.Schema) -> bool:
    """Whether the batches of a stream have checksums."""
    return CHECKED.items() <= (schema.metadata or {}).items()


def has_trailer(message: pa.Buffer) -> bool:
    """Whether a message ends like one that has a checksum."""
    mark = message[-_TRAILER.size :].to_pybytes()[:4] if message.size > _TRAILER.size else b""
    return mark == _MARK


def check(message: pa.Buffer) -> tuple[int, int]:
    """The schema's checksum and the batch's number; a message that is not as written is damaged."""
    if not has_trailer(message):
        raise DamagedError("a checksum is missing")
    _, schema_crc, number, crc = _TRAILER.unpack(message[-_TRAILER.size :].to_pybytes())
    if crc32(message[:-4]) != crc:
        raise DamagedError("a checksum is wrong")
    return schema_crc, number


def find_checked(buffer: pa.Buffer, position: int) -> tuple[int, int] | None:
    """Where the next message that has a right checksum starts, and its length.

    >>> schema = pa.schema([pa.field("step", pa.int64())])
    >>> pieces = batch_message(pa.record_batch({"step": [7]}), schema_crc=0, number=0)
    >>> message = b"".join(pieces)
    >>> find_checked(pa.py_buffer(b"damaged!" + message), 0) == (8, len(message))
    True
    """
    for start in _starts(buffer, position):
        try:
            length = message_length(buffer, start)
            if length > PREFIX.size:
                check(buffer.slice(start, length))
                return start, length
        except (DamagedError, TornError):
            continue
    return None


def _starts(buffer: pa.Buffer, position: int) -> Iterator[int]:
    return (match.start() for match in _START.finditer(memoryview(buffer), position))
