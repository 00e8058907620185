"""Makes a score of a strength: of the findings at 0.9, nine in ten should be right."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

POINTS: Final[tuple[tuple[float, float], ...]] = ((0.0, 0.0), (1.0, 1.0))
"""(strength, share of findings of that strength that are right), measured by the benchmark."""


def score_of(fault: str, strength: float) -> float:
    """The score of a strength, between 0 and 1.

    >>> score_of("dead_units", 2.0), score_of("dead_units", float("nan"))
    (1.0, 0.0)
    """
    if not math.isfinite(strength):
        return 0.0
    strengths, shares = zip(*POINTS, strict=True)
    return float(np.interp(min(max(strength, 0.0), 1.0), strengths, shares))
