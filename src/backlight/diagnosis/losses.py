"""The course of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LossCurve:
    """The loss at each step, and what can be told from it.

    >>> curve = LossCurve.of(np.arange(4), np.array([4.0, 3.0, 2.0, 1.0]))
    >>> curve.first, curve.last, curve.is_known
    (4.0, 1.0, True)
    """

    steps: npt.NDArray[np.int64]
    values: Real  # may be infinite or NaN
    smooth: Real  # running median of the finite ones

    @classmethod
    def of(cls, steps: npt.NDArray[np.int64], values: Real) -> LossCurve:
        """The loss at the steps at which it was read."""
        values = np.asarray(values, np.float64)
        return cls(np.asarray(steps, np.int64), values, _smooth(values[np.isfinite(values)]))

    @property
    def is_known(self) -> bool:
        """Whether there is enough of it to say something."""
        return len(self.smooth) >= 3

    @property
    def finite(self) -> Real:
        """The values that are numbers."""
        return self.values[np.isfinite(self.values)]

    @property
    def first(self) -> float:
        """The loss at the start: the median of the first values."""
        count = 1 if len(self.finite) < 10 else 3
        return float(np.median(self.finite[:count])) if len(self.finite) else float("nan")

    @property
    def last(self) -> float:
        """The loss at the end: the median of the last tenth."""
        if not len(self.finite):
            return float("nan")
        count = max(1, min(len(self.finite) // 10, 50))
        return float(np.median(self.finite[-count:]))

    @property
    def best(self) -> float:
        """The lowest loss, smoothed."""
        return float(self.smooth.min()) if len(self.smooth) else float("nan")

    @property
    def highest(self) -> float:
        """The highest loss."""
        return float(self.finite.max()) if len(self.finite) else float("nan")

    @property
    def gain(self) -> float:
        """By which part of its first value the loss fell; negative if it rose."""
        scale = max(abs(self.first), 1e-12)
        return (self.first - self.last) / scale if self.is_known else float("nan")

    @property
    def noise(self) -> float:
        """The typical change from one value to the next, as a part of the loss's own size."""
        if len(self.finite) < 4:
            return float("nan")
        changes = np.abs(np.diff(self.finite))
        return float(np.median(changes) / max(float(np.median(np.abs(self.finite))), 1e-12))

    @property
    def broke_at(self) -> int | None:
        """The first step at which it was infinite or NaN."""
        lost = np.flatnonzero(~np.isfinite(self.values))
        return int(self.steps[lost[0]]) if len(lost) else None


def _smooth(values: Real) -> Real:
    """A running median over about a tenth of the values."""
    width = max(1, min(len(values) // 10, 25))
    if width == 1 or len(values) < 3:
        return values
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return np.asarray(np.median(windows, axis=1), np.float64)
