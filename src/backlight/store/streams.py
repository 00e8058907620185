"""Writes one series of Arrow IPC streams: a table's segments, of one rank.

Each batch is handed to the operating system in one call before `append` returns: a trainer that is
killed loses nothing that was appended. It is not forced to the disk, for that could stall training:
a machine that loses its power can lose the last half minute, and checksums tell what it did lose. A
segment that is full is closed, forced to the disk by a thread, and the next one begun.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from threading import Thread
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from backlight.reduce import native
from backlight.store.messages import END, batch_message, schema_message
from backlight.store.packed import Heading, Packed, as_batch

SEGMENT_BYTES: Final = 64 << 20
"""A segment that is larger is full."""


_LOOK_SECS: Final = 0.5
"""So often, at most, a file is looked at whether it is still there: that takes a while."""


class StreamSeries:
    """Appends batches to `<folder>/<rank>-<segment>.arrows`, and begins a new one when it is full.

    >>> import tempfile
    >>> schema = pa.schema([pa.field("step", pa.int64())])
    >>> series = StreamSeries(Path(tempfile.mkdtemp()), schema, rank=0, segment=3)
    >>> size_bytes = series.append(pa.record_batch({"step": [7]}, schema=schema))
    >>> series.close()
    >>> pa.ipc.open_stream(series.folder / "0-0003.arrows").read_all()["step"].to_pylist()
    [7]
    """

    def __init__(self, folder: Path, schema: pa.Schema, *, rank: int, segment: int) -> None:
        self.folder = folder
        self._begin_schema(schema)
        self._rank = rank
        self._next_segment = segment
        self._descriptor: int | None = None
        self._has_links = False  # as files have wherever they can be told to be deleted
        self._looked_at = 0.0
        self._size_bytes = 0
        self._batches = 0

    def append(self, batch: pa.RecordBatch | Packed) -> int:
        """Append a batch, and say how many bytes that took."""
        if len(batch.schema) != self._columns:
            # A column that need not be there came or went.
            self._end_segment(is_last=False)
            self._begin_schema(batch.schema)
        if self._size_bytes >= SEGMENT_BYTES:
            self._end_segment(is_last=False)
        descriptor = self._begin_segment() if self._descriptor is None else self._descriptor
        if self._has_links and time.monotonic() - self._looked_at > _LOOK_SECS:
            self._look_for(descriptor)
        place = self._schema_crc, self._batches
        try:
            if native.can_write and isinstance(batch, Packed):
                heading = self._heading
                written_bytes = native.write_message(
                    descriptor, heading.pattern, heading.places, batch[1:5], *place
                )
            else:
                message = batch_message(as_batch(batch), schema_crc=place[0], number=place[1])
                written_bytes = _write_all(descriptor, message)
        except BaseException:
            # All or nothing of it, also where the user interrupts: what comes later must not stand
            # behind half a message.
            with suppress(OSError):
                os.ftruncate(descriptor, self._size_bytes)
                os.lseek(descriptor, self._size_bytes, os.SEEK_SET)
            raise
        self._size_bytes += written_bytes
        self._batches += 1
        return written_bytes

    def _look_for(self, descriptor: int) -> None:
        """Raise where the file was deleted: what is written to it would be lost without a word."""
        self._looked_at = time.monotonic()
        if not os.fstat(descriptor).st_nlink:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.folder))

    def _begin_schema(self, schema: pa.Schema) -> None:
        self._columns = len(schema)
        self._heading = Heading(schema)
        self._opening = schema_message(schema)
        self._schema_crc = crc32(self._opening)

    def close(self) -> None:
        """End the stream. What was appended stays readable whether or not this is called."""
        self._end_segment(is_last=True)

    def _begin_segment(self) -> int:
        self.folder.mkdir(exist_ok=True)
        name = self.folder / f"{self._rank}-{self._next_segment:04}.arrows"
        # Never into a file that exists.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._next_segment += 1
        descriptor = os.open(name, flags, 0o666)
        try:
            _say_open(descriptor)
            self._size_bytes = _write_all(descriptor, [self._opening])
            self._has_links = os.fstat(descriptor).st_nlink > 0
        except BaseException:
            # What comes later begins a segment of its own, and not behind half an opening.
            os.close(descriptor)
            with suppress(OSError):
                name.unlink()
            raise
        self._descriptor = descriptor
        self._batches = 0
        return descriptor

    def _end_segment(self, *, is_last: bool) -> None:
        descriptor, self._descriptor = self._descriptor, None
        self._size_bytes = 0
        if descriptor is None:
            return
        try:
            _write_all(descriptor, [END])
        finally:
            if is_last:
                _sync_and_close(descriptor)
            else:
                Thread(target=_sync_and_close, args=(descriptor,), daemon=True).start()


def _write_all(descriptor: int, pieces: list[Any]) -> int:
    views = [memoryview(piece).cast("B") for piece in pieces]
    total = sum(map(len, views))
    written = os.writev(descriptor, views) if hasattr(os, "writev") else 0
    rest = b"".join(views)[written:] if written < total else b""
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return total


def _sync_and_close(descriptor: int) -> None:
    with suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)


def _say_open(descriptor: int) -> None:
    """Hold a lock for as long as the file is open: whoever compacts must not take it for ended."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_open_elsewhere(path: Path) -> bool:
    """Whether a writer on this machine still has the stream open."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
