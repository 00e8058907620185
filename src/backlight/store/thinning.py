"""Which steps of a long history are shown: few, and every extreme, gap and broken step among them.

A click waits for this. It is a few passes over arrays; a database takes ten times as long to join
and to window the same rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

EXTREMES: Final = (
    *("mean", "std", "min", "max", "abs_mean", "abs_max", "rms", "zeros"),
    *("dead_units", "constant_units", "batch_std"),
)
FAULTS: Final = ("nans", "infs")

Steps = npt.NDArray[np.int64]


def thinned(rows: pa.Table, points: int, buckets: int, own: tuple[str, ...] = ()) -> pa.Table:
    """The rows of the steps that are kept: about so many, however long the history is.

    The longer a bucket is, the fewer of its extremes are at the same step. Where that makes too
    many rows, there are fewer buckets.
    """
    is_kept = pc.is_in(rows["step"], pa.array(kept_steps(rows, buckets, own)))
    count = pc.sum(is_kept).as_py()
    if count > points and buckets > 1:
        fewer = max(1, buckets * points // count)
        is_kept = pc.is_in(rows["step"], pa.array(kept_steps(rows, fewer, own)))
    return rows.filter(is_kept)


def kept_steps(rows: pa.Table, buckets: int, own: tuple[str, ...] = ()) -> Steps:
    """The steps that stand for rows of one site, which are in the order of steps.

    Each of about `buckets` buckets keeps its ends, the steps where a statistic is least or greatest
    and the ends of its widest gap; each gap that is as wide as a bucket keeps its ends, and so does
    each run of steps with NaN, infinity or nothing finite. The run's own statistics count too.
    """
    step = rows["step"].to_numpy()
    steps, first = np.unique(step, return_index=True)
    # As many buckets of steps as make about so many rows.
    count = max(1, min(len(steps), buckets * len(steps) // len(step)))
    starts = -(-np.arange(count) * len(steps) // count)
    gaps = np.diff(steps)
    is_wide = gaps > (steps[-1] - steps[0]) / buckets
    kept = [steps[starts], steps[np.append(starts[1:], len(steps)) - 1], *_ends(steps, is_wide)]
    widest = _first_greatest(np.append(np.nan, gaps), starts)
    kept += [steps[widest], steps[np.maximum(widest, 1) - 1], steps[_boundaries(rows, first)]]
    for name in (*EXTREMES, *own):
        column = _floats(rows[name])
        kept.append(step[_first_greatest(column, first[starts])])
        kept.append(step[_first_greatest(-column, first[starts])])
    for name in FAULTS:
        kept.append(step[_first_greatest(_floats(rows[name]), first[starts])])
    found: Steps = np.unique(np.concatenate(kept))
    return found


def _ends(steps: Steps, is_wide: npt.NDArray[np.bool_]) -> tuple[Steps, Steps]:
    return steps[:-1][is_wide], steps[1:][is_wide]


def _boundaries(rows: pa.Table, first: Steps) -> Steps:
    """The places of steps that are broken and not between two others that are."""
    broken = np.isnan(_floats(rows["mean"]))
    for name in FAULTS:
        broken |= rows[name].to_numpy() > 0
    is_broken = np.logical_or.reduceat(broken, first)
    around = np.concatenate([[False], is_broken, [False]])
    return np.flatnonzero(is_broken & ~(around[:-2] & around[2:]))


def _first_greatest(values: npt.NDArray[np.float64], starts: Steps) -> Steps:
    """Where numbers are first greatest in each bucket that begins at `starts`; NaN never is.

    >>> _first_greatest(np.array([1.0, 3.0, 3.0, np.nan, 2.0]), np.array([0, 3])).tolist()
    [1, 4]
    """
    greatest = np.fmax.reduceat(values, starts)
    lengths = np.diff(np.append(starts, len(values)))
    place = np.flatnonzero(values == np.repeat(greatest, lengths))
    bucket = np.searchsorted(starts, place, side="right")
    found: Steps = place[np.diff(bucket, prepend=-1) != 0]
    return found


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
