"""What a list of runs says about each: how far it is, how it fares, and what recording cost.

A list asks this of every run at once and again at every change, so it is plain array arithmetic:
planning a query would take a hundred times longer than the answer.
"""

from __future__ import annotations

import time
from math import fsum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.runs import RunFolder, status_of

if TYPE_CHECKING:
    from backlight.store.reader import RunReader

CURVE_POINTS: Final = 60


def describe(run: RunFolder, reader: RunReader) -> dict[str, Any]:
    """The Summary of a run, as the viewer and `backlight ls` show it."""
    info, numbers = reader.info, reader.summary()
    updated_at = max(info.created_at, numbers.pop("updated_at"))
    return {
        "id": run.id,
        "project": run.project,
        "name": run.name,
        "status": status_of(run.path, info),
        "created_at": info.created_at,
        "updated_at": updated_at,
        "ended_at": info.ended_at,
        "age_secs": max(0.0, time.time() - updated_at),
        **numbers,
        "faults": count_faults(info.recorder.get("faults")),
    }


def count_faults(faults: object) -> int:
    """How often the recorder failed, from what `Guard.as_dict` left in `run.json`.

    >>> count_faults({"hooking: ValueError: no": 3, "writing: OSError: full": 1})
    4
    """
    if not isinstance(faults, dict):
        return 0
    return sum(count for count in faults.values() if isinstance(count, int))


def summarize(*, steps: pa.Table, scalars: pa.Table, notes: pa.Table) -> dict[str, Any]:
    """The part of a Summary that the small tables tell."""
    lead = of_lowest_rank(steps)
    duration_secs = _total(lead["duration_secs"])
    losses = _losses(scalars)
    if not len(losses):  # none was logged; this is what backward passes started from
        losses = lead.sort_by("step")["loss"].drop_null().to_numpy()
    ended = pc.add(steps["started_at"], steps["duration_secs"])
    times = [ended, scalars["logged_at"], notes["written_at"]]
    return {
        "updated_at": max(pc.max(each).as_py() or 0.0 for each in times),
        "step": pc.max(lead["step"]).as_py(),
        "steps": lead.num_rows,
        "recorded_steps": pc.sum(lead["recorded"]).as_py() or 0,
        "recording_share": (
            _total(lead["recording_secs"]) / duration_secs if duration_secs else None
        ),
        "loss": float(losses[-1]) if len(losses) else None,
        "loss_curve": curve(losses),
    }


def of_lowest_rank(table: pa.Table) -> pa.Table:
    """The rows of the lowest rank that has any: the others saw the same steps."""
    bounds = pc.min_max(table["rank"])
    if bounds["min"] == bounds["max"]:
        return table
    return table.filter(pc.equal(table["rank"], bounds["min"]))


def _total(column: pa.ChunkedArray) -> float:
    """The sum, which is the same in whatever order the rows are."""
    return fsum(column.to_numpy())


def _losses(scalars: pa.Table) -> npt.NDArray[np.float64]:
    rows = of_lowest_rank(scalars.filter(pc.equal(scalars["name"], "loss")))
    order = np.lexsort((rows["logged_at"].to_numpy(), rows["step"].to_numpy()))
    values: npt.NDArray[np.float64] = rows["value"].to_numpy()[order]
    return values


def curve(values: npt.NDArray[np.float64]) -> list[float | None]:
    """At most 60 points that keep the extremes; None where there is NaN or infinity.

    >>> curve(np.array([3.0, 2.0, np.nan]))
    [3.0, 2.0, None]
    >>> len(curve(np.arange(1000.0))), max(curve(np.arange(1000.0)))
    (60, 999.0)
    """
    if len(values) <= CURVE_POINTS:
        return [float(value) if np.isfinite(value) else None for value in values]
    buckets = np.array_split(values, CURVE_POINTS // 2)
    return [point for bucket in buckets for point in _extremes(bucket)]


def _extremes(bucket: npt.NDArray[np.float64]) -> list[float | None]:
    """The least and the greatest value in the order in which they came."""
    if not np.isfinite(bucket).all():
        return [None]
    low, high = int(bucket.argmin()), int(bucket.argmax())
    return [float(bucket[min(low, high)]), float(bucket[max(low, high)])]
