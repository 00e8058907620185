"""What a run that goes on after a restart has to know of what it wrote before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from backlight.errors import BacklightError
from backlight.schema import SITES, STEPS, TABLES, RunInfo
from backlight.store.follow import latest_step, read_table
from backlight.store.runs import read_info, status_of
from backlight.store.values import FOLDER

_NUMBERED: Final = ("steps", "stats", "scalars", "notes", "events")
"""The tables that name steps: those that a black box held may be known by what was logged alone."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run got: its last step, its sites by their numbers, what its raw values take."""

    info: RunInfo
    last_step: int
    sites: list[dict[str, Any]]
    value_bytes: int


def read_progress(path: Path) -> Progress:
    """Read how far the run in `path` got; a run that is being written cannot be resumed."""
    info = read_info(path)
    if status_of(path, info) == "live":
        raise BacklightError(
            f"The run {str(path)!r} is still being written by process {info.pid}: "
            "end it first, or leave resume= out to begin a new run."
        )
    if info.ended_at is None:
        info.recorder = {**info.recorder, **_account_of(path)}
    sites = {row["site"]: row for row in read_table(path / "sites", SITES, SITES.names).to_pylist()}
    last_step = max(latest_step(path / table, TABLES[table]) for table in _NUMBERED)
    in_order = [sites[number] for number in sorted(sites)]
    value_bytes = sum(file.lstat().st_size for file in (path / FOLDER).glob("*.safetensors"))
    return Progress(info, last_step, in_order, value_bytes)


def _account_of(path: Path) -> dict[str, Any]:
    """What recording took of a run that was killed before it could say so, by its steps."""
    names = ["recorded", "duration_secs", "recording_secs"]
    steps = read_table(path / "steps", STEPS, names)
    recorded, training, recording = (np.array(steps[name].to_pylist()) for name in names)
    return {
        "steps": steps.num_rows,
        "recorded_steps": int(recorded.sum()),
        "training_secs": float(training.sum()),
        "recording_secs": float(recording.sum()),
    }
