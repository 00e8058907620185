"""Passes of a model that are Backlight's own, such as the lab's: no run records them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

_threads: Counter[int] = Counter()


@contextmanager
def apart() -> Iterator[None]:
    """What this thread runs inside is no part of a training step.

    >>> with apart():
    ...     is_apart()
    True
    >>> is_apart()
    False
    """
    thread = get_ident()
    _threads[thread] += 1
    try:
        yield
    finally:
        _threads[thread] -= 1
        if not _threads[thread]:
            del _threads[thread]


def threads_apart() -> Counter[int]:
    """The threads that run such passes: always the same object."""
    return _threads


def is_apart() -> bool:
    """Whether this thread runs a pass of Backlight's own."""
    return bool(_threads) and get_ident() in _threads
