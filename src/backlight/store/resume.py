"""What a run that goes on after a restart has to know of what it wrote before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backlight.errors import BacklightError
from backlight.schema import TABLES, RunInfo
from backlight.store.follow import TableFollower
from backlight.store.runs import read_info, status_of


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run got: its last step, and its sites in the order of their numbers."""

    info: RunInfo
    last_step: int
    sites: list[dict[str, Any]]


def read_progress(path: Path) -> Progress:
    """Read how far the run in `path` got; a run that is being written cannot be resumed."""
    info = read_info(path)
    if status_of(path, info) == "live":
        raise BacklightError(
            f"The run {str(path)!r} is still being written by process {info.pid}: "
            "end it first, or leave resume= out to begin a new run."
        )
    sites = {row["site"]: row for row in _rows(path, "sites")}
    steps = (row["step"] for table in ("steps", "stats") for row in _rows(path, table, "step"))
    return Progress(info, max(steps, default=-1), [sites[number] for number in sorted(sites)])


def _rows(path: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    batches = TableFollower(path / table, TABLES[table]).take()
    chosen = [each.batch.select(list(columns)) if columns else each.batch for each in batches]
    return [row for batch in chosen for row in batch.to_pylist()]
