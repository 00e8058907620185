"""Sketches: histograms that add up, and what can be told from one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlight.schema import SKETCH_BIAS
from backlight.store.formats import Format, number_format

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FormatShares:
    """Which share of all elements a number format would not hold well.

    `uncertain` is the share of the elements in bins that a limit of the format goes through; of
    those each share counts a part, as if they were spread evenly.
    """

    overflow: float
    underflow: float
    subnormal: float
    uncertain: float


@dataclass(frozen=True)
class Sketch:
    """The elements of one or several tensors, counted by sign, power of two, and quarter of it.

    >>> sketch = Sketch.of_values([1.0, 1.1, -3.0, 0.0])
    >>> sketch.count, sketch.quantile(0.0), sketch.quantile(1.0)
    (4, -3.0, 1.1)
    >>> (sketch + sketch).count
    8
    """

    keys: Whole
    counts: Whole
    count: int
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    min: float | None = None
    max: float | None = None

    @classmethod
    def of_values(cls, values: Any) -> Sketch:
        """The sketch of plain numbers, by the definition in docs/format.md."""
        flat = np.asarray(values, np.float64).ravel()
        finite = flat[np.isfinite(flat)]
        mantissa, exponent = np.frexp(np.abs(finite[finite != 0]))
        magnitude = (exponent - 1 + SKETCH_BIAS) * 4 + (mantissa * 8).astype(np.int64) - 3
        signed = np.where(finite[finite != 0] > 0, magnitude, -magnitude)
        keys, counts = np.unique(signed, return_counts=True)
        ends = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
        zeros, nans = int((finite == 0).sum()), int(np.isnan(flat).sum())
        infs = len(flat) - len(finite) - nans
        return cls(keys.astype(np.int64), counts, len(flat), zeros, nans, infs, *ends)

    @classmethod
    def merged(cls, sketches: Iterable[Sketch]) -> Sketch:
        """One sketch of all elements: over steps, sites, ranks or runs.

        Those that are missing are left out, and so are not counted.
        """
        each = [sketch for sketch in sketches if not sketch.is_missing]
        if not each:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), 0)
        keys, position = np.unique(np.concatenate([s.keys for s in each]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, position, np.concatenate([s.counts for s in each]))
        return cls(
            keys,
            counts,
            count=sum(s.count for s in each),
            zeros=sum(s.zeros for s in each),
            nans=sum(s.nans for s in each),
            infs=sum(s.infs for s in each),
            min=min((s.min for s in each if s.min is not None), default=None),
            max=max((s.max for s in each if s.max is not None), default=None),
        )

    def __add__(self, other: Sketch) -> Sketch:
        return Sketch.merged([self, other])

    @property
    def is_missing(self) -> bool:
        """Whether it was given up for a slow disk: then nothing can be told from it.

        >>> none = np.empty(0, np.int64)
        >>> Sketch(none, none, count=5, zeros=2).is_missing, Sketch(none, none, 2, 2).is_missing
        (True, False)
        """
        return len(self.keys) == 0 and self.count > self.zeros + self.nans + self.infs

    @property
    def finite(self) -> int:
        """How many elements are neither NaN nor infinite."""
        return self.count - self.nans - self.infs

    def quantile(self, share: float) -> float | None:
        """The value below which a share of the finite elements lies, within 12%; None of none."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Iterable[float]) -> list[float | None]:
        """The values below which these shares of the finite elements lie."""
        wanted = list(shares)
        if self.finite <= 0 or self.min is None or self.max is None or self.is_missing:
            return [None] * len(wanted)
        low, high = bin_edges(self.keys)
        place = int(np.searchsorted(self.keys, 0))
        low, high = np.insert(low, place, 0.0), np.insert(high, place, 0.0)
        counts = np.insert(self.counts, place, self.zeros)
        ends = np.cumsum(counts)
        ranks = np.clip(np.asarray(wanted, np.float64), 0.0, 1.0) * ends[-1]
        found = np.minimum(np.searchsorted(ends, ranks, side="left"), len(counts) - 1)
        inside = (ranks - (ends[found] - counts[found])) / np.maximum(counts[found], 1)
        values = low[found] + np.clip(inside, 0.0, 1.0) * (high[found] - low[found])
        values = np.clip(values, self.min, self.max)
        values[ranks <= 0], values[ranks >= ends[-1]] = self.min, self.max
        return [float(value) for value in values]

    def exponents(self) -> pa.Table:
        """How many elements have each power of two: `exponent, negative, positive`.

        >>> Sketch.of_values([1.0, 1.5, -0.25]).exponents().to_pydict()
        {'exponent': [-2, 0], 'negative': [1, 0], 'positive': [0, 2]}
        """
        powers = (np.abs(self.keys) - 1) // 4 - SKETCH_BIAS
        exponents, position = np.unique(powers, return_inverse=True)
        columns = {"exponent": exponents}
        for name, chosen in (("negative", self.keys < 0), ("positive", self.keys > 0)):
            columns[name] = np.zeros(len(exponents), np.int64)
            np.add.at(columns[name], position[chosen], self.counts[chosen])
        return pa.table(columns)

    def shares(self, format_name: str, scale: int = 0) -> FormatShares:
        """What a number format, of `ml_dtypes` or NumPy, would not hold well.

        With a `scale`, of the elements times 2 to that power. NaN where the sketch is missing.

        >>> sketch = Sketch.of_values([1e-9, 1e-3, 1.0, 600.0])
        >>> shares = sketch.shares("float8_e4m3fn")
        >>> shares.underflow, shares.subnormal, shares.overflow
        (0.25, 0.25, 0.25)
        >>> sketch.shares("float8_e4m3fn", scale=-1).overflow
        0.0
        """
        limits = number_format(format_name).before_scaling(scale)
        if self.is_missing:
            return FormatShares(*[math.nan] * 4)
        least = -np.inf if self.min is None else self.min
        greatest = np.inf if self.max is None else self.max
        parts = parts_lost(self.keys, np.float64(least), np.float64(greatest), limits)
        total = max(1, self.count)
        overflow, underflow, subnormal, cut = (float(each @ self.counts) for each in parts)
        return FormatShares(
            overflow=(overflow + self.infs) / total,
            underflow=underflow / total,
            subnormal=subnormal / total,
            uncertain=cut / total,
        )


def parts_lost(
    keys: Whole, least: Real | np.float64, greatest: Real | np.float64, limits: Format
) -> tuple[Real, Real, Real, npt.NDArray[np.bool_]]:
    """Which part of each bin overflows, underflows or is subnormal, and whether a limit cuts it.

    `least` and `greatest` are the ends of what was counted: one for all bins, or one for each.
    """
    low, high = bin_edges(keys)
    below, above = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
    furthest = np.where(keys > 0, np.maximum(greatest, 0.0), np.maximum(-least, 0.0))
    above = np.maximum(np.minimum(above, furthest), below)
    beyond = np.where(keys > 0, limits.overflow, limits.negative_overflow)
    overflow, cut_high = _share_above(below, above, beyond)
    not_normal, cut_normal = _share_above(below, above, np.full(len(below), limits.normal))
    not_zero, cut_low = _share_above(below, above, np.full(len(below), limits.underflow))
    held = np.maximum(not_normal, overflow)  # a format may have no normal negative number
    return (
        overflow,
        np.minimum(1 - not_zero, 1 - overflow),
        np.clip(not_zero - held, 0.0, 1.0),
        cut_high | cut_normal | cut_low,
    )


def _share_above(below: Real, above: Real, limit: Real) -> tuple[Real, npt.NDArray[np.bool_]]:
    """Which share of each bin lies above a limit, and whether the limit goes through it."""
    is_cut = (below < limit) & (limit < above)
    width = np.where(is_cut, above - below, 1.0)
    share = np.where(is_cut, (above - limit) / width, np.where(below >= limit, 1.0, 0.0))
    return share, is_cut


def bin_edges(keys: Whole) -> tuple[Real, Real]:
    """The bounds of bins: `schema.sketch_edges` for many keys at once.

    >>> low, high = bin_edges(np.array([-4298, 4298]))
    >>> low.tolist(), high.tolist()
    ([-1.5, 1.25], [-1.25, 1.5])
    """
    exponent, quarter = np.divmod(np.abs(keys) - 1, 4)
    with np.errstate(over="ignore"):  # the last bin ends at infinity
        near = np.ldexp(1 + quarter / 4, exponent - SKETCH_BIAS)
        far = np.ldexp(1 + (quarter + 1) / 4, exponent - SKETCH_BIAS)
    return np.where(keys > 0, near, -far), np.where(keys > 0, far, -near)
