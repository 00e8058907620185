"""Which steps a page is told of: however many a run has, it holds a few thousand of them."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError

NEAR: Final = 200
"""So many on each side of the step that is asked for, and as many of the newest."""
_MOST_POINTS: Final = 1_000_000
_TOLD: Final = ("step", "kind", "iterations", "graph")

Places = npt.NDArray[np.int64]


def recorded_steps(
    steps: pa.Table,
    *,
    kind: str | None = None,
    around: int | None = None,
    after: int = -1,
    points: int = 2000,
) -> pa.Table:
    """Recorded steps of a kind, or of all: every one near a step and near the end, some elsewhere.

    `place` counts them from the first: between rows whose places follow each other, none was left
    out. The first and the last are always there. Metadata: what is to be said of all steps.
    """
    if not 0 < points <= _MOST_POINTS:
        raise BacklightError(f"'points' is {points}: use a number from 1 to {_MOST_POINTS}.")
    is_asked = (
        steps["recorded"]
        if kind is None
        else pc.and_(steps["recorded"], pc.equal(steps["kind"], kind))
    )
    rows = np.flatnonzero(is_asked.to_numpy())
    step = steps["step"].to_numpy()[rows]
    # A run that was resumed may have done a step again: the last time counts.
    is_last = np.append(step[1:] != step[:-1], True)[: len(step)]
    rows, step = rows[is_last], step[is_last]
    place = _thinned(step, around, points)
    place = place[step[place] > after]
    table = steps.select(list(_TOLD)).take(pa.array(rows[place]))
    told = table.append_column("place", pa.array(place))
    return told.replace_schema_metadata({"steps": json.dumps(_facts(steps))})


def _thinned(step: Places, around: int | None, points: int) -> Places:
    """The places of those that are told of.

    >>> _thinned(np.arange(0, 5000, 5), None, 250)[[0, 1, 2, -2, -1]].tolist()
    [0, 4, 8, 998, 999]
    """
    count = len(step)
    evenly = np.arange(min(count, points)) * count // max(1, min(count, points))
    ends = [np.arange(max(0, count - NEAR), count)]
    if around is not None:
        middle = int(np.searchsorted(step, around))
        ends.append(np.arange(max(0, middle - NEAR), min(count, middle + NEAR)))
    return np.unique(np.concatenate([evenly, *ends]))


def _facts(steps: pa.Table) -> dict[str, Any]:
    """The first and last step, how many were recorded of each kind, and what a step takes."""
    is_recorded = steps["recorded"].to_numpy()
    step = steps["step"].to_numpy()
    counts = steps.group_by("kind").aggregate([("recorded", "sum")])
    kinds = zip(counts["kind"].to_pylist(), counts["recorded_sum"].to_pylist(), strict=True)
    return {
        "first": int(step[0]) if len(step) else None,
        "last": int(step[-1]) if len(step) else None,
        "kinds": {kind: int(count) for kind, count in sorted(kinds)},
        "step_secs": _median(steps["duration_secs"].to_numpy()),
        "recording_secs": _median(steps["recording_secs"].to_numpy()[is_recorded]),
    }


def _median(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) else None


def with_kinds(steps: pa.Table, rows: pa.Table) -> pa.Table:
    """Rows with the kind of the step that each is of.

    A step is told of when it ends: one that is under way has the kind of the last before. The
    metadata has `settled`: up to which step kinds stay what they are.

    >>> steps = pa.table({"step": [3, 4], "kind": ["a", "b"]})
    >>> with_kinds(steps, pa.table({"step": [4, 3, 5]}))["kind"].to_pylist()
    ['b', 'a', 'b']
    """
    known = steps["step"].to_numpy()
    settled = int(known[-1]) if len(known) else None
    if len(known):
        place = np.searchsorted(known, rows["step"].to_numpy(), side="right") - 1
        kinds = steps["kind"].take(pa.array(np.maximum(place, 0)))
    else:
        kinds = pa.repeat("", rows.num_rows)
    said = {**(rows.schema.metadata or {}), "settled": json.dumps(settled)}
    return rows.append_column("kind", kinds).replace_schema_metadata(said)
