"""Passes of a model that are Backlight's own, such as the lab's: no run records them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

threads: Counter[int] = Counter()
"""Those that run such passes now, each with how many it is inside of."""


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
    threads[thread] += 1
    try:
        yield
    finally:
        threads[thread] -= 1
        if not threads[thread]:
            del threads[thread]


def is_apart() -> bool:
    """Whether this thread runs a pass of Backlight's own."""
    return bool(threads) and get_ident() in threads
