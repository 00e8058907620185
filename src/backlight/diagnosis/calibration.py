"""Makes a score of a strength: of the findings at 0.9, nine in ten should be right."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

POINTS: Final[tuple[tuple[float, float], ...]] = (
    *((0.0, 0.0), (0.3, 0.15), (0.4999, 0.3)),
    *((0.5, 0.6), (0.65, 0.85), (0.8, 0.9), (0.95, 0.94), (1.0, 0.97)),
)
"""(strength, score): which share of the first findings of a strength is right.

Measured on programs outside of the suite: below a strength of 0.5 hardly any is, which is why a
finding counts from there on; from 0.5 to 0.8 seven in eight are, above that nineteen in twenty.
"""


def score_of(fault: str, strength: float) -> float:
    """The score of a strength, between 0 and 1.

    >>> score_of("dead_units", 2.0), score_of("dead_units", float("nan"))
    (0.97, 0.0)
    """
    if not math.isfinite(strength):
        return 0.0
    strengths, shares = zip(*POINTS, strict=True)
    return float(np.interp(min(max(strength, 0.0), 1.0), strengths, shares))
