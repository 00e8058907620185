"""What happened in a run besides its numbers: events, and the functions that were called."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backlight.schema import CALLS
from backlight.store.reader import RunReader

MOST_ROWS: Final = 1000
_EVENT: Final = ("step", "kind", "site", "text", "happened_at")


def event_log(reader: RunReader) -> list[dict[str, Any]]:
    """The events in the order of steps; those that several ranks saw alike, once."""
    rows = reader.snapshot.all_rows("events", _EVENT).sort_by(
        [("step", "ascending"), ("happened_at", "ascending")]
    )
    told: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows.select(list(_EVENT)).to_pylist():
        told.setdefault((row["step"], row["kind"], row["site"], row["text"]), row)
    return list(told.values())


def ends(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows under their name; of very many, only those with which it began and the newest.

    >>> told = ends("notes", [{"step": step} for step in range(1003)])
    >>> len(told["notes"]), told["left_out"], told["notes"][500]
    (1000, 3, {'step': 503})
    """
    left_out = max(0, len(rows) - MOST_ROWS)
    if left_out:
        rows = [*rows[: MOST_ROWS // 2], *rows[-MOST_ROWS // 2 :]]
    return {name: rows, "left_out": left_out}


def calls_at(reader: RunReader, step: int) -> pa.Table:
    """The functional calls of a step in their order; metadata: the nearest steps with any."""
    names = [name for name in CALLS.names if name != "step"]
    rows = reader.snapshot.at_steps(step, step, names, table="calls")
    rows = rows.sort_by([("rank", "ascending"), ("iteration", "ascending"), ("order", "ascending")])
    beside = json.dumps(_beside(reader, step))
    return rows.select([*names, "rank"]).replace_schema_metadata({"beside": beside})


def _beside(reader: RunReader, step: int) -> list[int | None]:
    """The last step before and the first after one for which there are calls."""
    snapshot = reader.snapshot
    found = [snapshot.held["calls"]["step"].to_numpy(), *(p.steps for p in snapshot.parts["calls"])]
    steps = np.unique(np.concatenate(found))
    before, after = steps[steps < step], steps[steps > step]
    return [int(before[-1]) if len(before) else None, int(after[0]) if len(after) else None]
