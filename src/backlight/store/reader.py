"""Reads a run while it is written: pulls what is new, and answers questions with Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight import schema
from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, RUN_FILE, TABLES, RunInfo
from backlight.store.follow import GrowingTable, RankBatch, TableFollower
from backlight.store.queries import query
from backlight.store.ranks import RANK, SiteNumbers, with_rank
from backlight.store.runs import read_info
from backlight.store.summary import summarize

STATISTICS: Final[dict[str, str]] = {
    **{name: f'"{name}"' for name in (*schema.STATISTICS, "batch_std")},
    "zero_share": "zeros / nullif(count, 0)",
    "nan_share": "nans / nullif(count, 0)",
    "inf_share": "infs / nullif(count, 0)",
    "dead_share": "dead_units / nullif(units, 0)",
    "constant_share": "constant_units / nullif(units, 0)",
}
"""What a heatmap can show, and how SQL says it."""

OVERVIEW_TABLES: Final = ("steps", "scalars", "notes")
"""The small tables: enough for a summary."""

_HISTORY_ROWS_PER_BUCKET: Final = 8  # about how many of the kept rows are different ones
_SCALAR_ROWS_PER_BUCKET: Final = 4


@dataclass(frozen=True)
class Snapshot:
    """What was read up to a moment: queries see one, however much is read meanwhile."""

    tables: dict[str, pa.Table]
    recorded_steps: npt.NDArray[np.int64]


class RunReader:
    """Reads one run. Any thread may ask while another refreshes.

    >>> RunReader(Path("no/such/run"))
    Traceback (most recent call last):
    backlight.errors.BacklightError: 'no/such/run' is not a run: run.json cannot be read ...
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo = read_info(path)
        self._info_problem: str | None = None
        self._info_stamp = _stamp(path / RUN_FILE)
        self._lock = Lock()
        self._start()

    def _start(self) -> None:
        self._complete: set[str] = set()
        self._sites = SiteNumbers()
        self._followers = {n: TableFollower(self.path / n, s) for n, s in TABLES.items()}
        self._growing = {n: GrowingTable(s.append(RANK)) for n, s in TABLES.items()}
        tables = {name: growing.read() for name, growing in self._growing.items()}
        self._snapshot = Snapshot(tables, np.empty(0, np.int64))

    def refresh(self, tables: Iterable[str] = tuple(TABLES)) -> bool:
        """Read what is new in the tables, and say whether anything was."""
        wanted = set(tables)
        with self._lock:
            changed = self._refresh_info()
            if not changed and wanted <= self._complete:
                return False
            # Statistics before sites: a site is written before anything that is seen at it.
            taken = {name: self._followers[name].take() for name in TABLES if name in wanted}
            new = self._convert({name: batches for name, batches in taken.items() if batches})
            if new:
                self._adopt(new)
            if self.info.ended is not None:
                # Said after the last row: what was just read is all that there will be.
                self._complete |= wanted
        return changed or bool(new)

    def _convert(self, taken: dict[str, list[RankBatch]]) -> dict[str, list[pa.RecordBatch]]:
        new = {name: [with_rank(each) for each in taken[name]] for name in taken}
        if "sites" in taken:
            new["sites"] = self._sites.number(taken["sites"])
        if "sites" in taken or "stats" in taken:
            new["stats"] = self._sites.renumber(taken.get("stats", []))
        return {name: batches for name, batches in new.items() if batches}

    def _adopt(self, new: dict[str, list[pa.RecordBatch]]) -> None:
        for name, batches in new.items():
            self._growing[name].append(batches)
        tables = {**self._snapshot.tables, **{name: self._growing[name].read() for name in new}}
        steps = [batch.column("step").to_numpy() for batch in new.get("stats", ())]
        recorded = np.unique(np.concatenate([self._snapshot.recorded_steps, *steps]))
        self._snapshot = Snapshot(tables, recorded)

    def _refresh_info(self) -> bool:
        stamp = _stamp(self.path / RUN_FILE)
        if stamp == self._info_stamp:
            return False
        self._info_stamp, self._info_problem = stamp, None
        try:
            info = read_info(self.path)
        except BacklightError as error:
            self._info_problem = str(error)
            return True
        if info.created_at != self.info.created_at:
            # Another run, in a folder that was removed and made anew.
            self._start()
        self.info = info
        return True

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that cannot be read to its end."""
        problems = [p for follower in self._followers.values() for p in follower.problems]
        return [*([self._info_problem] if self._info_problem else []), *problems]

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        tables = self._snapshot.tables
        return {name: tables[name].num_rows for name in TABLES}

    def sites(self) -> pa.Table:
        """The sites in network order: by first output of a call, parameters after outputs."""
        return self._query("sites", {"sites"})

    def steps(self, *, after: int = -1) -> pa.Table:
        """The steps later than one."""
        return self._query("steps", {"steps"}, after=after)

    def scalars(self, *, after: int = -1, points: int = 2000) -> pa.Table:
        """`step, name, value`: about `points` for each name, with every extreme and end."""
        _check_positive("points", points)
        buckets = max(1, points // _SCALAR_ROWS_PER_BUCKET)
        return self._query("scalars", {"scalars"}, after=after, points=points, buckets=buckets)

    def notes(self) -> pa.Table:
        """The notes in the order of steps."""
        return self._query("notes", {"notes"})

    def heatmap(
        self,
        *,
        quantity: str = "value",
        statistic: str = "abs_max",
        columns: int = 500,
        first: int | None = None,
        last: int | None = None,
    ) -> pa.Table:
        """`site, column, value, nans, infs` over recorded steps; metadata: each column's steps."""
        _check_one_of("quantity", quantity, QUANTITIES)
        _check_one_of("statistic", statistic, STATISTICS)
        _check_positive("columns", columns)
        snapshot = self._snapshot
        steps = _between(snapshot.recorded_steps, first, last)
        numbers = np.arange(len(steps)) * min(columns, len(steps)) // max(1, len(steps))
        numbered = pa.table({"step": steps, "column": numbers.astype(np.int32)})
        table = query(
            "heatmap",
            {"stats": snapshot.tables["stats"], "columns": numbered},
            value=STATISTICS[statistic],
            quantity=quantity,
        )
        return table.replace_schema_metadata({"columns": json.dumps(_ranges(steps, numbers))})

    def history(self, site: int, *, quantity: str = "value", points: int = 2000) -> pa.Table:
        """Every statistic of one quantity at one site, about `points` rows of it."""
        _check_one_of("quantity", quantity, QUANTITIES)
        _check_positive("points", points)
        buckets = max(1, points // _HISTORY_ROWS_PER_BUCKET)
        asked = {"site": site, "quantity": quantity, "points": points, "buckets": buckets}
        return self._query("history", {"stats"}, **asked)

    def sketches(self, site: int, *, quantity: str = "value", columns: int = 200) -> pa.Table:
        """The sketches of one quantity at one site, merged to at most `columns`."""
        _check_one_of("quantity", quantity, QUANTITIES)
        _check_positive("columns", columns)
        return self._query("sketches", {"stats"}, site=site, quantity=quantity, columns=columns)

    def summary(self) -> dict[str, Any]:
        """How far the run is, its loss, and what recording cost."""
        tables = self._snapshot.tables
        return summarize(**{name: tables[name] for name in OVERVIEW_TABLES})

    def scalar_names(self) -> list[str]:
        """The names under which scalars were logged."""
        return sorted(pc.unique(self._snapshot.tables["scalars"]["name"]).to_pylist())

    def quantities(self) -> list[str]:
        """What was observed, in the order of the schema."""
        seen = set(pc.unique(self._snapshot.tables["stats"]["quantity"]).to_pylist())
        return [quantity for quantity in QUANTITIES if quantity in seen]

    def has_site(self, site: int) -> bool:
        """Whether a site of this number is known."""
        known = self._snapshot.tables["sites"]["site"]
        return bool(pc.any(pc.equal(known, site)).as_py())

    def _query(self, name: str, tables: set[str], **parameters: Any) -> pa.Table:
        snapshot = self._snapshot
        return query(name, {table: snapshot.tables[table] for table in tables}, **parameters)


def _between(
    steps: npt.NDArray[np.int64], first: int | None, last: int | None
) -> npt.NDArray[np.int64]:
    start = 0 if first is None else int(np.searchsorted(steps, first, side="left"))
    stop = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
    return steps[start:stop]


def _ranges(steps: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> list[list[int]]:
    """The first and the last step of each column.

    >>> _ranges(np.array([0, 10, 20]), np.array([0, 0, 1]))
    [[0, 10], [20, 20]]
    """
    starts = np.unique(numbers, return_index=True)[1]
    stops = np.append(starts, len(steps))[1:] - 1
    return [[int(a), int(b)] for a, b in zip(steps[starts], steps[stops], strict=True)]


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes whenever a file is replaced."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _check_one_of(what: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise BacklightError(f"There is no {what} {value!r}: use one of {', '.join(choices)}.")


def _check_positive(what: str, value: int) -> None:
    if not 0 < value <= 1_000_000:
        raise BacklightError(f"{what!r} is {value}: use a number from 1 to 1000000.")
