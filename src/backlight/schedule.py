"""Which steps are recorded: a schedule is a plain function from a step's number to yes or no."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from backlight.errors import BacklightError

Schedule: TypeAlias = Callable[[int], bool]


def every(n: int) -> Schedule:
    """Record each n-th step, the first one included.

    >>> [step for step in range(25) if every(10)(step)]
    [0, 10, 20]
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BacklightError(f"every={n!r} is not a whole number of steps: use 1 or more.")
    return lambda step: step % n == 0
