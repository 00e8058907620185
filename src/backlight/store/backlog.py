"""Keeps training going where the disk is slow: what waits to be written, and what is given up.

Writing is direct, and costs less than a thread would, until one write takes long. From then on a
thread writes, until nothing has waited for some seconds. What waits is limited: past half of the
limit steps are written without their sketches, past all of it without their statistics. Steps
themselves, scalars, notes and events always wait their turn.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

import pyarrow as pa

SLOW_SECS: Final = 0.05
"""A write that takes longer is slow: the next ones are left to a thread."""

LIMIT_BYTES: Final = 64 << 20
"""What may wait in memory."""

_CALM_SECS: Final = 5.0
_CLOSE_SECS: Final = 30.0
_DETAIL: Final = ("sketch_keys", "sketch_counts")
_LARGE: Final = ("stats", "samples", "calls")

Write = Callable[[str, pa.RecordBatch], None]


class Backlog:
    """Writes batches in their order: at once, or by a thread while the disk is behind.

    >>> written = []
    >>> backlog = Backlog(lambda table, batch: written.append(table))
    >>> backlog.append("notes", pa.record_batch({"text": ["hello"]}))
    >>> written, backlog.dropped
    (['notes'], Counter())
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: deque[tuple[str, pa.RecordBatch]] = deque()
        self._waiting_bytes = 0
        self._changed = Condition()
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._is_closing = False
        self.dropped: Counter[str] = Counter()

    def append(self, table: str, batch: pa.RecordBatch) -> None:
        """Write a batch, or let it wait; an error of the thread is raised here."""
        with self._changed:
            self._raise_error()
            if self._thread is not None:
                self._let_wait(table, batch)
                return
        started = time.perf_counter()
        self._write(table, batch)
        if time.perf_counter() - started > SLOW_SECS:
            self._thread = Thread(target=self._work, name="backlight-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for what waits, for a while."""
        thread = self._thread
        if thread is not None:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            thread.join(_CLOSE_SECS)
            if self._waiting:
                self.dropped["batches at the end"] += len(self._waiting)
        self._raise_error()

    def _let_wait(self, table: str, batch: pa.RecordBatch) -> None:
        kept = self._affordable(table, batch)
        if kept is not None:
            self._waiting.append((table, kept))
            self._waiting_bytes += kept.nbytes
            self._changed.notify_all()

    def _affordable(self, table: str, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """As much of a batch as may wait: all, all but its sketches, or nothing."""
        if table not in _LARGE or self._waiting_bytes + batch.nbytes <= LIMIT_BYTES // 2:
            return batch
        if table == "stats" and self._waiting_bytes <= LIMIT_BYTES:
            self.dropped["sketches"] += batch.num_rows
            return without_sketches(batch)
        self.dropped[table] += batch.num_rows
        return None

    def _work(self) -> None:
        """Write what waits, until nothing has waited for some seconds."""
        while (following := self._next()) is not None:
            try:
                self._write(*following)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._thread = None
                return
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= following[1].nbytes

    def _next(self) -> tuple[str, pa.RecordBatch] | None:
        with self._changed:
            if not self._waiting and not self._is_closing:
                self._changed.wait(_CALM_SECS)
            if self._waiting:
                return self._waiting[0]
            self._thread = None
            return None

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def without_sketches(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step's statistics with empty sketches.

    >>> counts = pa.array([[1]], pa.list_(pa.uint32()))
    >>> batch = pa.record_batch({"sketch_keys": [[5]], "sketch_counts": counts})
    >>> without_sketches(batch).to_pylist()
    [{'sketch_keys': [], 'sketch_counts': []}]
    """
    columns = [
        pa.array([[]] * batch.num_rows, field.type) if field.name in _DETAIL else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
