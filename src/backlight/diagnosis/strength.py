"""How strongly a number speaks for a fault, and how it is said."""

from __future__ import annotations

import math
from typing import Final

_LEAST: Final = 0.3
_MOST: Final = 0.95


def rising(value: float, suspect: float, sure: float) -> float:
    """0 up to `suspect`, then from 0.3 to 0.95 at `sure`. Where `sure` is less, falling values.

    >>> rising(0.5, 0.6, 0.9), rising(0.9, 0.6, 0.9), round(rising(0.75, 0.6, 0.9), 3)
    (0.0, 0.95, 0.625)
    >>> rising(0.01, 0.1, 0.01)
    0.95
    """
    if math.isnan(value):
        return 0.0
    share = (value - suspect) / (sure - suspect)
    return 0.0 if share < 0 else min(_MOST, _LEAST + (_MOST - _LEAST) * share)


def rising_log(value: float, suspect: float, sure: float) -> float:
    """As `rising`, on a scale of orders of magnitude.

    >>> round(rising_log(100.0, 10.0, 1000.0), 3), rising_log(0.0, 1e-3, 1e-6)
    (0.625, 0.95)
    """
    if math.isnan(value):
        return 0.0
    logs = [math.log10(max(each, 1e-45)) for each in (value, suspect, sure)]
    return rising(*logs)


def said(value: float) -> str:
    """A number in three digits.

    >>> said(0.123456), said(1e-9), said(12.0)
    ('0.123', '1e-09', '12')
    """
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.123), percent(0.9999)
    ('12%', '100%')
    """
    return f"{share:.0%}"
