"""Makes a run smaller by forgetting steps: says what would go, and then lets it go.

Kept are the first and the last recorded step, every n-th, each step at which something happened or
was noted, and those that the caller names. Scalars, notes, events and the list of steps stay whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import TABLES
from backlight.store.compact import compact, only_one
from backlight.store.follow import TableFollower, read_table
from backlight.store.merge import Tell, merge, nobody
from backlight.store.messages import DamagedError
from backlight.store.part_writer import remove_part
from backlight.store.parts import Part
from backlight.store.recorded_flows import FOLDER as FLOWS_FOLDER
from backlight.store.runs import read_info, size_bytes, status_of
from backlight.store.values import FOLDER as VALUES_FOLDER

THINNED: Final = ("stats", "samples", "calls")
"""The tables that lose the rows of steps that go."""

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What goes and what stays."""

    path: Path
    kept: Steps
    gone: Steps
    observations_gone: int
    values_gone: tuple[Path, ...]
    flows_gone: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return (
            f"{len(self.gone)} of {len(self.gone) + len(self.kept)} recorded steps go, with "
            f"{self.observations_gone} observations, the raw values of {len(self.values_gone)} "
            f"and the flows of {len(self.flows_gone)} steps; {len(self.kept)} steps stay, and all "
            "scalars, notes and events."
        )


class _Thinned:
    """The rows of a part at the steps that stay."""

    def __init__(self, part: Part, kept: Steps) -> None:
        self._part = part
        self.steps = np.intersect1d(part.steps, kept)
        self._condition = pc.field("step").isin(self.steps)
        self.rows = part.rows_of(None, ["step"]).filter(self._condition).num_rows

    @property
    def problems(self) -> list[str]:
        """One sentence for each file of which not all could be read."""
        return self._part.problems

    def rows_of(self, keys: list[int] | None, columns: list[str]) -> pa.Table:
        """At least all rows that have one of the keys."""
        rows = self._part.rows_of(keys, [*columns, *({"step"} - set(columns))])
        return rows.filter(self._condition).select(columns)

    def rows_at(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """At least all rows of some steps."""
        return self._part.rows_at(first, last, columns).filter(self._condition)


def plan(path: Path, every: int, *, also: Collection[int] = (), tell: Tell = nobody) -> Plan:
    """What would go if of each `every` recorded steps one stayed, and `also` these."""
    if every < 2:
        raise BacklightError(f"Keeping each {every}th step keeps all: use a number from 2 on.")
    if status_of(path, read_info(path)) == "live":
        raise BacklightError(f"The run {str(path)!r} is still being written: end it first.")
    compact(path, tell=tell)
    change = TableFollower(path / "stats", TABLES["stats"]).take()
    if change.batches:
        raise _damaged(path)
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(p.steps for p in change.parts)]))
    is_kept = np.zeros(len(steps), bool)
    is_kept[::every] = True
    is_kept[-1:] = True
    told = [read_table(path / name, TABLES[name], ["step"])["step"] for name in ("events", "notes")]
    is_kept |= np.isin(steps, np.concatenate([column.to_numpy() for column in told]))
    is_kept |= np.isin(steps, np.array(sorted(also), np.int64))
    kept, gone = steps[is_kept], steps[~is_kept]
    stays = sum(_Thinned(part, kept).rows for part in change.parts)
    total = sum(part.rows for part in change.parts)
    if any(part.problems for part in change.parts):
        raise _damaged(path)
    values, flows = (_files_of(path / each, gone) for each in (VALUES_FOLDER, FLOWS_FOLDER))
    return Plan(path, kept, gone, total - stays, values, flows)


def _files_of(folder: Path, steps: Steps) -> tuple[Path, ...]:
    """The files of a folder that are of these steps."""
    gone = set(steps.tolist())
    files = folder.glob("*-*.safetensors")
    found = [
        file
        for file in files
        if (step := file.stem.partition("-")[2]).isdigit() and int(step) in gone
    ]
    return tuple(sorted(found))


def prune(what: Plan, *, tell: Tell = nobody) -> int:
    """Let it go, and say how many bytes that freed."""
    before = size_bytes(what.path)
    try:
        with only_one(what.path):
            for table in THINNED:
                _thin(what, what.path / table, tell)
            for file in (*what.values_gone, *what.flows_gone):
                file.unlink(missing_ok=True)
    except DamagedError:
        raise _damaged(what.path) from None
    except OSError as error:
        raise BacklightError(
            f"Cannot prune {str(what.path)!r} ({error.strerror or error}): what stays is whole; "
            "make room or ask for the right to write there, and try again."
        ) from None
    return before - size_bytes(what.path)


def _thin(what: Plan, folder: Path, tell: Tell) -> None:
    for part in TableFollower(folder, TABLES[folder.name]).take().parts:
        if np.isin(part.steps, what.gone).any():
            merge(folder, part.source.renewed(), [_Thinned(part, what.kept)], tell=tell)
            remove_part(folder, part.source)


def _damaged(path: Path) -> BacklightError:
    return BacklightError(f"{str(path)!r} is damaged: `backlight repair` it first.")
