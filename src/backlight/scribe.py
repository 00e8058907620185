"""A thread that writes where the disk is slow, so that training does not wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Scribe(Generic[Item]):
    """Hands items to `write` in a thread, in order, all that wait together.

    >>> pages = []
    >>> scribe = Scribe(pages.extend)
    >>> scribe.put("one"); scribe.put("two"); scribe.close()
    True
    >>> pages
    ['one', 'two']
    """

    def __init__(self, write: Callable[[list[Item]], Any]) -> None:
        self._write = write
        self._waiting: deque[tuple[Item, int]] = deque()
        self._thread: Thread | None = None
        self._has_work = Event()
        self._is_closed = False
        self._progress = Condition()
        self._put = self._done = 0
        self.is_idle = True  # all that was put is written
        self._put_bytes = self._done_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """How much was put and is not written yet."""
        return self._put_bytes - self._done_bytes

    def put(self, item: Item, size: int = 0) -> None:
        """Hand over an item that takes `size` bytes; this never waits for the disk."""
        with self._progress:
            self.is_idle = False
            self._put += 1
        self._put_bytes += size
        self._waiting.append((item, size))
        if self._thread is None:
            self._thread = Thread(target=self._run, name="backlight-scribe", daemon=True)
            self._thread.start()
        self._has_work.set()

    def flush(self, timeout_secs: float | None = None) -> bool:
        """Wait until all that was put is written, and say whether it is."""
        if self._thread is None:
            return True
        target = self._put
        self._has_work.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= target, timeout_secs)

    def close(self, timeout_secs: float | None = None) -> bool:
        """Write what is left and end the thread; False if that takes too long."""
        self._is_closed = True
        is_done = self.flush(timeout_secs)
        if self._thread is not None and is_done:
            self._thread.join()
        return is_done

    def _run(self) -> None:
        while not (self._is_closed and not self._waiting):
            self._has_work.wait()
            self._has_work.clear()
            self._drain()

    def _drain(self) -> None:
        items: list[Item] = []
        size = 0
        while self._waiting:
            item, item_size = self._waiting.popleft()
            items.append(item)
            size += item_size
        try:
            if items:
                self._write(items)
        finally:
            with self._progress:
                self._done += len(items)
                self._done_bytes += size
                self.is_idle = self._done == self._put
                self._progress.notify_all()
