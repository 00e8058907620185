"""Which conditions go with an anomaly more often than chance, corrected for all that were tried.

Every condition is counted together with the anomaly, and with the anomaly moved to places where it
did not happen: over steps it is shifted in a circle, which keeps what is slow about it; over
samples it is dealt out anew within each step. Shifting asks of a condition that it has no trend, so
that over steps a number is compared with its usual value and not with a constant. A condition
counts if it stands out further than the one that stands out most, of all that were tried, does by
such chance: that is the correction of Westfall and Young, which holds whatever the conditions have
to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Real = npt.NDArray[np.float64]

MOST_SHUFFLES: Final = 499
LAGS: Final = (0, 1, 2, 4, 8)
"""How many recorded steps before the anomaly a condition is looked for."""

_CHUNK: Final = 4096
_LEAST_SPREAD: Final = 0.5  # of a count, so that what never varies does not stand out


@dataclass(frozen=True)
class Counts:
    """How often a condition and an anomaly hold together, and each alone."""

    both: int
    condition: int
    anomaly: int
    total: int

    @property
    def share_with(self) -> float:
        """How often the condition holds where the anomaly does."""
        return self.both / max(1, self.anomaly)

    @property
    def share_without(self) -> float:
        """How often the condition holds where the anomaly does not."""
        return (self.condition - self.both) / max(1, self.total - self.anomaly)

    @property
    def lift(self) -> float:
        """How many times more often they are together than if they had nothing to do."""
        expected = self.condition * self.anomaly / max(1, self.total)
        return self.both / expected if expected else 0.0

    @property
    def mutual_information(self) -> float:
        """How many bits the condition tells of the anomaly.

        >>> Counts(5, 5, 5, 10).mutual_information, Counts(1, 2, 5, 10).mutual_information
        (1.0, 0.0)
        """
        cells = np.array(
            [
                [self.both, self.anomaly - self.both],
                [
                    self.condition - self.both,
                    self.total - self.condition - self.anomaly + self.both,
                ],
            ],
            np.float64,
        ) / max(1, self.total)
        alone = cells.sum(axis=1, keepdims=True) * cells.sum(axis=0, keepdims=True)
        seen = cells > 0
        bits = float((cells[seen] * np.log2(cells[seen] / alone[seen])).sum())
        return max(0.0, round(bits, 12))


def count_together(condition: Mask, known: Mask, anomaly: Mask) -> Counts:
    """Count where both are known."""
    return Counts(
        int((condition & anomaly & known).sum()),
        int((condition & known).sum()),
        int((anomaly & known).sum()),
        int(known.sum()),
    )


def shifted(anomaly: Mask, seed: int = 0) -> Mask:
    """The anomaly shifted in a circle by any number of steps: one row for each shuffle."""
    length = len(anomaly)
    shifts = np.random.default_rng(seed).integers(0, max(1, length), MOST_SHUFFLES)
    if length <= MOST_SHUFFLES:
        shifts = np.arange(length)
    return np.asarray(anomaly[(np.arange(length) - shifts[:, None]) % max(1, length)], bool)


def dealt_within(anomaly: Mask, groups: npt.NDArray[np.int64], seed: int = 0) -> Mask:
    """The anomaly dealt out anew among the members of each group: one row for each deal."""
    generator = np.random.default_rng(seed)
    order = np.argsort(groups, kind="stable")
    deals = np.empty((MOST_SHUFFLES, len(anomaly)), bool)
    for deal in deals:
        mixed = np.lexsort((generator.random(len(groups)), groups))
        deal[order] = anomaly[mixed]
    return deals


def late(mask: Mask, lag: int) -> Mask:
    """What held so many places before; False where there is no such place."""
    if lag == 0:
        return mask
    moved = np.zeros_like(mask)
    moved[..., lag:] = mask[..., :-lag]
    return moved


def standing_out(conditions: Mask, anomaly: Mask, shuffles: Mask) -> tuple[Real, Real]:
    """How far each condition stands out, and the furthest that one does in each shuffle."""
    furthest = np.full(len(shuffles), -np.inf)
    own = np.empty(len(conditions))
    for start, chunk in _chunks(conditions):
        by_chance = chunk @ shuffles.T.astype(np.float32)
        middle = by_chance.mean(axis=1)
        spread = np.maximum(by_chance.std(axis=1), _LEAST_SPREAD)
        own[start : start + len(chunk)] = (chunk @ anomaly.astype(np.float32) - middle) / spread
        scores = (by_chance - middle[:, None]) / spread[:, None]
        furthest = np.maximum(furthest, scores.max(axis=0, initial=-np.inf))
    return own, furthest


def _chunks(conditions: Mask) -> Iterator[tuple[int, Any]]:
    for start in range(0, len(conditions), _CHUNK):
        yield start, conditions[start : start + _CHUNK].astype(np.float32)


def chance_of(own: Real, furthest: Real) -> Real:
    """The probability that the most outstanding of all stands out so far by chance.

    >>> chance_of(np.array([0.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    array([1.  , 0.25])
    """
    ordered = np.sort(furthest)
    at_least = len(ordered) - np.searchsorted(ordered, own, "left")
    return np.asarray((1 + at_least) / (1 + len(ordered)), np.float64)
