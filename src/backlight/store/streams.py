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
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import pyarrow as pa

from backlight.reduce import native
from backlight.store.messages import END, batch_message, schema_message
from backlight.store.packed import Heading, Packed, as_batch

if TYPE_CHECKING:
    from backlight.reduce._kernel import Sink as KernelSink

SEGMENT_BYTES: Final = 64 << 20
"""A segment that is larger is full."""


_LOOK_SECS: Final = 0.5
"""So often, at most, a file is looked at whether it is still there: that takes a while."""


class PlainSink:
    """The file that a series writes to, where there is no kernel that does so."""

    def __init__(self) -> None:
        self.descriptor = -1  # none
        self.has_links = False
        self.looked_at = 0.0
        self.size_bytes = self.messages = 0  # that the file has

    def let_go(self) -> tuple[int, int]:
        """The file, which is written to no longer, and how many bytes it has."""
        found = self.descriptor, self.size_bytes
        self.descriptor, self.size_bytes = -1, 0
        return found


Sink: TypeAlias = "PlainSink | KernelSink"


class StreamSeries:
    """Appends batches to `<folder>/<rank>-<segment>.arrows`, and begins a new one when it is full.

    >>> import tempfile
    >>> schema = pa.schema([pa.field("step", pa.int64())])
    >>> series = StreamSeries(Path(tempfile.mkdtemp()), schema, rank=0, segment=3)
    >>> series.append(pa.record_batch({"step": [7]}, schema=schema))
    >>> series.close()
    >>> pa.ipc.open_stream(series.folder / "0-0003.arrows").read_all()["step"].to_pylist()
    [7]
    """

    def __init__(self, folder: Path, schema: pa.Schema, *, rank: int, segment: int) -> None:
        self.folder = folder
        self._ended_bytes = 0  # of the batches in segments that have ended
        self._begin_schema(schema)
        self._rank = rank
        self._next_segment = segment

    @property
    def written_bytes(self) -> int:
        """How much all batches took so far."""
        return self._ended_bytes + self.sink.size_bytes

    def append(self, batch: pa.RecordBatch | Packed) -> None:
        """Append a batch."""
        if len(batch.schema) != self._columns:
            # A column that need not be there came or went.
            self._end_segment(is_last=False)
            self._begin_schema(batch.schema)
        sink = self.sink
        if sink.size_bytes >= SEGMENT_BYTES:
            self._end_segment(is_last=False)
        if sink.descriptor < 0:
            self._begin_segment()
        if sink.has_links and time.monotonic() - sink.looked_at > _LOOK_SECS:
            self._look_for_file()
        if isinstance(sink, PlainSink) or not isinstance(batch, Packed):
            self._write(as_batch(batch))
        else:
            sink.write(batch[1:5])

    def _write(self, batch: pa.RecordBatch) -> None:
        sink = self.sink
        message = batch_message(batch, schema_crc=self._schema_crc, number=sink.messages)
        try:
            written_bytes = _write_all(sink.descriptor, message)
        except BaseException:
            # All or nothing of it, also where the user interrupts: what comes later must not stand
            # behind half a message.
            with suppress(OSError):
                os.ftruncate(sink.descriptor, sink.size_bytes)
                os.lseek(sink.descriptor, sink.size_bytes, os.SEEK_SET)
            raise
        sink.size_bytes += written_bytes
        sink.messages += 1

    def _look_for_file(self) -> None:
        """Raise where the file was deleted: what is written to it would be lost without a word."""
        self.sink.looked_at = time.monotonic()
        if not os.fstat(self.sink.descriptor).st_nlink:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.folder))

    def _begin_schema(self, schema: pa.Schema) -> None:
        self._columns = len(schema)
        self._opening = schema_message(schema)
        self._schema_crc = crc32(self._opening)
        self.sink: Sink = PlainSink()
        if native.can_write:
            heading = Heading(schema)
            self.sink = native.new_sink(
                heading.pattern, heading.places, self._schema_crc, SEGMENT_BYTES
            )

    def close(self) -> None:
        """End the stream. What was appended stays readable whether or not this is called."""
        self._end_segment(is_last=True)

    def _begin_segment(self) -> None:
        self.folder.mkdir(exist_ok=True)
        name = self.folder / f"{self._rank}-{self._next_segment:04}.arrows"
        # Never into a file that exists.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._next_segment += 1
        descriptor = os.open(name, flags, 0o666)
        try:
            _say_open(descriptor)
            size_bytes = _write_all(descriptor, [self._opening])
            has_links = os.fstat(descriptor).st_nlink > 0
        except BaseException:
            # What comes later begins a segment of its own, and not behind half an opening.
            os.close(descriptor)
            with suppress(OSError):
                name.unlink()
            raise
        sink = self.sink
        # As files have wherever they can be told to be deleted.
        sink.has_links = has_links
        sink.size_bytes, sink.messages = size_bytes, 0
        self._ended_bytes -= size_bytes  # of no batch
        sink.descriptor = descriptor

    def _end_segment(self, *, is_last: bool) -> None:
        descriptor, size_bytes = self.sink.let_go()  # when no thread writes to it
        self._ended_bytes += size_bytes
        if descriptor < 0:
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
