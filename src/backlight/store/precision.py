"""What a number format would lose of many tensors at once, and by which scale less."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import SKETCH_BIAS
from backlight.store.formats import Format, number_format
from backlight.store.sketch import Real, Sketch, Whole, parts_lost

_LARGEST_KEY: Final = 8392
"""The bin of the largest float64."""

_ABOVE: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 31)
"""So many powers of two above the greatest without overflow are tried."""

_NO_ENDS: Final = (np.float64(-np.inf), np.float64(np.inf))
SKETCHED: Final = ("count", "zeros", "nans", "infs", "min", "max", "sketch_keys", "sketch_counts")
"""The columns of `stats` that say what a format would lose."""


def best_scale(sketch: Sketch, format_name: str) -> int:
    """The power of two to multiply by, so that a format loses least to overflow and underflow.

    The nearest to 0 of those that lose equally little; 0 where no scale helps.

    >>> best_scale(Sketch.of_values([1e-9, 1e-8, 1e-7]), "float16")
    16
    >>> best_scale(Sketch.of_values([0.5, 2.0, 0.0]), "float16")
    0
    >>> best_scale(Sketch.of_values([1e-4] * 9 + [1e9]), "float8_e4m3fn")  # one is lost, not nine
    8
    """
    as_it_is = sketch.shares(format_name)
    lost = as_it_is.overflow - sketch.infs / max(1, sketch.count) + as_it_is.underflow
    if not len(sketch.keys) or lost + as_it_is.subnormal <= 1e-12:
        return 0
    losses = {power: _loss(sketch, format_name, power) for power in _tried(sketch, format_name)}
    return min(losses, key=lambda power: (losses[power], abs(power)))


def _tried(sketch: Sketch, format_name: str) -> range:
    """From where the largest is held to where the smallest is normal, and 0."""
    limits = number_format(format_name)
    exponents = (np.abs(sketch.keys) - 1) // 4 - SKETCH_BIAS
    highest = highest_scale(sketch, format_name) or 0
    lowest = int(np.ceil(np.log2(limits.normal))) - int(exponents.min())
    return range(min(0, highest, lowest), max(0, highest, lowest) + 1)


def highest_scale(sketch: Sketch, format_name: str) -> int | None:
    """The greatest power of two by which nothing finite overflows; None where all is 0.

    >>> highest_scale(Sketch.of_values([1.0, -460.0]), "float8_e4m3fn")
    0
    """
    limits = number_format(format_name)
    room = [
        limit / end
        for end, limit in (
            (sketch.max or 0.0, limits.overflow),
            (-(sketch.min or 0.0), limits.negative_overflow),
        )
        if end > 0 and limit > 0
    ]
    if not room or min(room) == 0:
        return None
    return floor(log2(min(room)) - 1e-12) if np.isfinite(min(room)) else None


def _loss(sketch: Sketch, format_name: str, power: int) -> tuple[float, float]:
    shares = sketch.shares(format_name, power)
    return round(shares.overflow + shares.underflow, 12), round(shares.subnormal, 12)


@dataclass(frozen=True)
class Losses:
    """How many elements of each tensor a format would not hold well; with parts of cut bins."""

    overflow: Real
    underflow: Real
    subnormal: Real


def has_sketch(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of `stats` have their sketch: it is left out where the disk is too slow.

    >>> rows = rows_of([Sketch.of_values([0.0]), Sketch.of_values([2.0])])
    >>> has_sketch(rows).tolist()
    [True, True]
    >>> empty = pa.array([[], []], pa.list_(pa.int16()))
    >>> has_sketch(rows.set_column(6, "sketch_keys", empty)).tolist()  # zeros are not in it anyway
    [True, False]
    """
    lengths = pc.list_value_length(rows["sketch_keys"]).to_numpy()
    others = sum(_numbers(rows, name) for name in ("zeros", "nans", "infs"))
    return np.asarray((lengths > 0) | (_numbers(rows, "count") == others))


def losses(rows: pa.Table, format_name: str, scale: int | Whole = 0) -> Losses:
    """What a format would lose of each row of `stats`: as `Sketch.shares`, for many rows at once.

    `scale` is one power of two for all, or one for each row. Of a row whose sketch was left out,
    because the disk was too slow, nothing is known: NaN.

    >>> one = Sketch.of_values([1e-9, 1e-3, 1.0, 600.0])
    >>> rows = rows_of([one, one])
    >>> losses(rows, "float8_e4m3fn").underflow.tolist()
    [1.0, 1.0]
    >>> losses(rows, "float8_e4m3fn", np.array([0, 30])).underflow.tolist()
    [1.0, 0.0]
    """
    limits = number_format(format_name)
    keys, counts, starts = _flat(rows)
    scales = np.broadcast_to(np.asarray(scale, np.int64), rows.num_rows)
    lengths = np.diff(np.append(starts, len(keys)))
    unknown = np.where(has_sketch(rows), 0.0, np.nan)
    infs = _numbers(rows, "infs") + unknown
    if len(keys) == 0:
        return Losses(infs, unknown, unknown)
    moved = _moved(keys, np.repeat(4 * scales, lengths) if scales.any() else None)
    tables = _tables(limits)
    places = moved + _LARGEST_KEY
    # Of most bins all elements fare alike; the ends of a tensor matter where a limit cuts a bin.
    cut = np.flatnonzero(tables[3][places])
    owner = np.searchsorted(starts, cut, side="right") - 1
    with np.errstate(over="ignore"):
        ends = [np.ldexp(_numbers(rows, name), scales)[owner] for name in ("min", "max")]
    exact = parts_lost(moved[cut], ends[0], ends[1], limits)
    found = []
    for table, parts in zip(tables[:3], exact[:3], strict=True):
        weighted = table[places] * counts
        weighted[cut] = parts * counts[cut]
        found.append(_sums(weighted, starts))
    return Losses(found[0] + infs, found[1] + unknown, found[2] + unknown)


def highest_scales(rows: pa.Table, format_name: str) -> Whole:
    """`highest_scale` of each row of `stats`; 0 where all is 0.

    >>> sketches = [Sketch.of_values(values) for values in ([1.0, -460.0], [0.0], [3.0])]
    >>> highest_scales(rows_of(sketches), "float8_e4m3fn").tolist()
    [0, 0, 7]
    """
    limits = number_format(format_name)
    room = np.full(rows.num_rows, np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # float64 has all room
        for end, limit in (
            (_numbers(rows, "max"), limits.overflow),
            (-_numbers(rows, "min"), limits.negative_overflow),
        ):
            has_room = (end > 0) & (limit > 0)
            room = np.where(has_room, np.minimum(room, limit / end), room)
        powers = np.floor(np.log2(room) - 1e-12)
    return np.where(np.isfinite(powers), powers, 0).astype(np.int64)


def best_scales(rows: pa.Table, format_name: str) -> Whole:
    """For each row of `stats` a scale that loses about least: never more than none does.

    Tried are none, the greatest by which nothing finite overflows, and, of what still loses
    something by that, some above it.

    >>> wide = Sketch.of_values([1e-4] * 9 + [1e9])
    >>> rows = rows_of([Sketch.of_values([3.0]), wide, Sketch.of_values([1e-6])])
    >>> best_scales(rows, "float8_e4m3fn").tolist(), highest_scales(rows, "float8_e4m3fn").tolist()
    ([0, 9, 28], [7, -22, 28])
    """
    best = np.zeros(rows.num_rows, np.int64)
    least = _lost(rows, format_name, best)
    open_rows = np.flatnonzero(least > 0)
    highest = highest_scales(rows, format_name)
    for above in (0, *_ABOVE):
        if not len(open_rows):
            break
        scales = highest[open_rows] + above
        lost = _lost(rows.take(pa.array(open_rows)), format_name, scales)
        is_better = lost < least[open_rows]
        best[open_rows[is_better]] = scales[is_better]
        least[open_rows[is_better]] = lost[is_better]
        if above == 0:
            # What is held whole by a scale without overflow needs no other.
            open_rows = open_rows[lost > 0]
    return best


def _lost(rows: pa.Table, format_name: str, scale: Whole) -> Real:
    """How much of each row is lost; where that is the same, fewer digits tell them apart."""
    found = losses(rows, format_name, scale)
    finite = np.maximum(found.overflow - _numbers(rows, "infs"), 0.0)
    whole = np.maximum(_numbers(rows, "count"), 1.0)
    return np.nan_to_num(finite + found.underflow + 1e-6 * found.subnormal / whole)


def _moved(keys: npt.NDArray[np.int16], by: Whole | None) -> Whole:
    """The bins after multiplying by powers of two; what leaves float64's range stays at its end."""
    wide = keys.astype(np.int64)
    if by is None:
        return wide
    return np.asarray(np.sign(wide) * np.clip(np.abs(wide) + by, 1, _LARGEST_KEY))


def _tables(limits: Format) -> tuple[npt.NDArray[np.float32], ...]:
    """For every key which part of its bin is lost in each way, and whether a limit cuts it."""
    keys = np.arange(-_LARGEST_KEY, _LARGEST_KEY + 1)
    keys[_LARGEST_KEY] = 1  # no bin has the number 0
    with np.errstate(invalid="ignore"):  # the last bin has no end, and is not read from a table
        return tuple(each.astype(np.float32) for each in parts_lost(keys, *_NO_ENDS, limits))


def _flat(rows: pa.Table) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint32], Whole]:
    """All keys and counts one after another, and where each row's begin."""
    lists = [rows[name].combine_chunks() for name in ("sketch_keys", "sketch_counts")]
    keys, counts = (each.flatten().to_numpy(zero_copy_only=False) for each in lists)
    lengths = lists[0].value_lengths().to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return keys.astype(np.int16), counts.astype(np.uint32), starts


def _sums(values: npt.NDArray[np.floating[Any]], starts: Whole) -> Real:
    """The sum of each row's values; 0 of a row that has none."""
    totals = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    stops = np.append(starts[1:], len(values))
    return np.asarray(totals[stops] - totals[starts])


def _numbers(rows: pa.Table, name: str) -> Real:
    return np.asarray(rows[name].to_numpy(), np.float64)


def rows_of(sketches: list[Sketch]) -> pa.Table:
    """Sketches as rows of `stats` have them."""
    columns = {name: [getattr(each, name) for each in sketches] for name in SKETCHED[:6]}
    lists = {
        "sketch_keys": pa.array([each.keys for each in sketches], pa.list_(pa.int16())),
        "sketch_counts": pa.array([each.counts for each in sketches], pa.list_(pa.uint32())),
    }
    return pa.table({**columns, **lists})
