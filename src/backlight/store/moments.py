"""Statistics that are not recorded, told from a sketch: the least magnitude, means of powers."""

from __future__ import annotations

import numpy as np

from backlight.store.sketch import Sketch, bin_edges


def least_magnitude(sketch: Sketch) -> float | None:
    """The least magnitude of the finite elements; None of none.

    Exact where an element is 0 or all have the same sign; otherwise the lower edge of its bin,
    which is at most a fifth too low.

    >>> least_magnitude(Sketch.of_values([3.0, 1.7])), least_magnitude(Sketch.of_values([0.0, 2.0]))
    (1.7, 0.0)
    >>> least_magnitude(Sketch.of_values([-1.7, 3.0]))
    1.5
    """
    if sketch.min is None or sketch.max is None or not len(sketch.keys):
        return 0.0 if sketch.zeros else None
    if sketch.zeros:
        return 0.0
    if sketch.min > 0 or sketch.max < 0:
        return min(abs(sketch.min), abs(sketch.max))
    nearest = np.abs(sketch.keys).min(keepdims=True)
    return float(bin_edges(nearest)[0][0])


def power_mean(sketch: Sketch, power: int) -> float | None:
    """(mean |x|^power)^(1/power) of the finite elements; None of none.

    As if elements were spread evenly over their bins: within 25%, and in practice within 1% or
    two. The largest magnitude, which is exact, bounds the last bin.

    >>> round(power_mean(Sketch.of_values(np.linspace(-1, 1, 10001)), 4), 2)  # 0.2 ** 0.25
    0.67
    """
    if sketch.finite <= 0 or sketch.min is None or sketch.max is None:
        return None
    if not len(sketch.keys):
        return 0.0
    largest = max(abs(sketch.min), abs(sketch.max))
    low, high = np.sort(np.abs(bin_edges(sketch.keys)), axis=0)
    # Relative to the largest: no power of it overflows.
    low, high = low / largest, np.minimum(high / largest, 1.0)
    width = np.maximum(high - low, 1e-300)
    grown = power + 1
    spread = (high**grown - low**grown) / (grown * width)
    inside = np.where(high - low > 1e-6, spread, high**power)
    total = float(np.clip(inside, low**power, high**power) @ sketch.counts)
    return float(largest * (total / sketch.finite) ** (1 / power))
