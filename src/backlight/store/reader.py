"""Reads a run while it is written: pulls what is new, and answers questions with Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, RUN_FILE, SITES, TABLES, RunInfo
from backlight.store.follow import Change, GrowingTable, TableFollower
from backlight.store.heatmap import cells_of, columns_of, distinct, single_columns, step_columns
from backlight.store.iterations import of_iteration
from backlight.store.layout import Source
from backlight.store.merged_sketches import as_slices, slices_of
from backlight.store.own import own_names
from backlight.store.parts import Part
from backlight.store.queries import query
from backlight.store.ranks import RANK, SiteNumbers, with_rank
from backlight.store.runs import info_problem, read_info
from backlight.store.same_loss import same_losses
from backlight.store.snapshot import LARGE_TABLES, Snapshot
from backlight.store.summary import of_lowest_rank, summarize
from backlight.store.thinning import thinned
from backlight.store.tiles import SHOWN, UPDATE, UPDATE_RATIO, made_of, row_quantities, with_ratios

OVERVIEW_TABLES: Final = ("steps", "scalars", "notes")
"""The small tables: enough for a summary."""

_HISTORY_ROWS_PER_BUCKET: Final = 8  # about how many of the kept rows are different ones
_SCALAR_ROWS_PER_BUCKET: Final = 4
_HISTORY: Final = (
    *("step", "iteration", "dtype", "shape", "count", "zeros", "nans", "infs", "mean", "std"),
    *("min", "max", "abs_mean", "abs_max", "rms"),
    *("units", "dead_units", "constant_units", "batch_std"),
)
_IN_TIME: Final = ("step", "iteration", "order", "rank")
_NO_STEPS: Final = np.empty(0, np.int64)
# Not by `empty_table`, which loads pandas.
_NO_ROWS: Final = {
    name: pa.Table.from_batches([], schema.append(RANK)) for name, schema in TABLES.items()
}


class RunReader:
    """Reads one run. Any thread may ask while another refreshes.

    >>> RunReader(Path("no/such/run"))
    Traceback (most recent call last):
    backlight.errors.BacklightError: 'no/such/run' is not a run: run.json cannot be read ...
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo = read_info(path)
        self._info_problem = info_problem(path)
        self._info_stamp = _stamp(path / RUN_FILE)
        self._lock = Lock()
        self._start()

    def _start(self) -> None:
        self._complete: dict[str, int] = {}
        self._last_step: tuple[ref[Snapshot], int, pa.Table] | None = None
        self._last_summary: tuple[Snapshot, dict[str, Any]] | None = None
        self._last_same: tuple[tuple[int, int], dict[int, int]] | None = None
        self._sites = SiteNumbers()
        self._followers = {n: TableFollower(self.path / n, s) for n, s in TABLES.items()}
        self._growing: dict[str, dict[Source, GrowingTable]] = {name: {} for name in TABLES}
        self._waiting: dict[str, list[tuple[Source, pa.RecordBatch]]] = {"stats": [], "samples": []}
        self._parts: dict[str, dict[Source, Part]] = {name: {} for name in TABLES}
        self._snapshot = Snapshot(
            dict(_NO_ROWS), dict.fromkeys(TABLES, ()), _NO_STEPS, SiteNumbers()
        )

    def refresh(self, tables: Iterable[str] = tuple(TABLES), *, wait: bool = True) -> bool:
        """Read what is new in the tables, and say whether anything was.

        Without `wait`, nothing is read where another thread reads at this moment.
        """
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            return self._refresh([name for name in TABLES if name in set(tables)])
        finally:
            self._lock.release()

    def _refresh(self, wanted: list[str]) -> bool:
        changed = self._refresh_info()
        stamps = {name: _changed_at(self.path / name) for name in wanted}
        if not changed and stamps.items() <= self._complete.items():
            return False
        # Statistics before sites: a site is written before anything that is seen at it.
        taken = {name: self._followers[name].take() for name in wanted}
        new = {name: change for name, change in taken.items() if change}
        if new:
            self._adopt(new)
        if self.info.ended is not None:
            # Said after the last row: what was just read is all that there will be.
            self._complete |= stamps
        return changed or bool(new)

    def _adopt(self, new: dict[str, Change]) -> None:
        sites = self._snapshot.sites
        if "sites" in new:
            self._adopt_sites(new["sites"])
            sites = self._sites.copy()
        touched = {*new, *(name for name in self._waiting if self._waiting[name])} - {"sites"}
        for name in touched:
            self._adopt_rows(name, new.get(name, Change()))
        held, parts = dict(self._snapshot.held), dict(self._snapshot.parts)
        for name in {*touched, *new}:
            # In the order of their segments, so that most who ask need not sort a copy.
            growing = sorted(self._growing[name].items())
            pieces = [piece for _, each in growing for piece in each.pieces]
            held[name] = pa.Table.from_batches(pieces, TABLES[name].append(RANK))
            parts[name] = tuple(self._parts[name].values())
        recorded = self._recorded_steps(new.get("stats", Change()))
        self._snapshot = Snapshot(held, parts, recorded, sites, own_names(self.info))

    def _recorded_steps(self, change: Change) -> npt.NDArray[np.int64]:
        """The steps that have statistics: where files were replaced, some may have gone."""
        known, new = self._snapshot.recorded_steps, _steps_of(change.parts, change.batches)
        if change.gone:
            growing = self._growing["stats"].items()
            held = [(source, piece) for source, each in growing for piece in each.pieces]
            return _steps_of(self._parts["stats"].values(), [*held, *self._waiting["stats"]])
        if len(new) and len(known) and new[0] <= known[-1]:
            return np.union1d(known, new)
        return np.concatenate([known, new])

    def _adopt_sites(self, change: Change) -> None:
        """Number new sites. Rows that were compacted since are the ones that were read before."""
        found = [(part.source, part.rows_of(None, SITES.names)) for part in change.parts]
        batches = [(source, batch) for source, rows in found for batch in rows.to_batches()]
        for source, batch in sorted([*batches, *change.batches], key=lambda pair: pair[0]):
            numbered = self._sites.number(source.rank, batch)
            if numbered is not None:
                self._grow("sites", source, numbered)

    def _adopt_rows(self, name: str, change: Change) -> None:
        for source in change.gone:
            self._growing[name].pop(source, None)
            self._parts[name].pop(source, None)
        batches = list(change.batches)
        for part in change.parts:
            if name in LARGE_TABLES:
                self._parts[name][part.source] = part
            else:
                rows = part.rows_of(None, TABLES[name].names)
                batches += [(part.source, batch) for batch in rows.to_batches()]
        if name not in self._waiting:
            for source, batch in batches:
                self._grow(name, source, with_rank(source.rank, batch))
            return
        waiting = [each for each in self._waiting[name] if each[0] not in change.gone]
        self._waiting[name] = []
        for source, batch in [*waiting, *batches]:
            known, unknown = self._sites.renumber(source.rank, batch)
            if known.num_rows:
                self._grow(name, source, known)
            if unknown.num_rows:
                self._waiting[name].append((source, unknown))

    def _grow(self, name: str, source: Source, batch: pa.RecordBatch) -> None:
        growing = self._growing[name]
        if source not in growing:
            growing[source] = GrowingTable(TABLES[name].append(RANK))
        growing[source].append([batch])

    def _refresh_info(self) -> bool:
        stamp = _stamp(self.path / RUN_FILE)
        if stamp == self._info_stamp:
            return False
        self._info_stamp, self._info_problem = stamp, info_problem(self.path)
        try:
            info = read_info(self.path)
        except BacklightError as error:
            self._info_problem = str(error)
            return True
        if info.created_at != self.info.created_at:
            # Another run, in a folder that was removed and made anew.
            self._start()
        self.info = info
        self._snapshot = replace(self._snapshot, own=own_names(info))
        return True

    def prepare(self) -> None:
        """Do beforehand what the first questions would wait for; any thread may, and none must."""
        for part in self._snapshot.parts["stats"]:
            part.prepare()

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that cannot be read to its end."""
        followers = self._followers.values()
        problems = [problem for follower in followers for problem in follower.problems]
        if self.info.ended is not None:
            # A writer that closes a stream leaves no message unfinished.
            problems += [sentence for follower in followers for sentence in follower.torn]
        return [*([self._info_problem] if self._info_problem else []), *problems]

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return self._snapshot.rows

    @property
    def snapshot(self) -> Snapshot:
        """What was read so far."""
        return self._snapshot

    @property
    def statistics(self) -> tuple[str, ...]:
        """What a heatmap can show."""
        return (*SHOWN, *self._snapshot.own)

    def sites(self) -> pa.Table:
        """The sites in network order: by first output of a call, parameters after outputs."""
        return self._query("sites", {"sites"})

    def shown_sites(self) -> pa.Table:
        """The same, with a loss that is there twice told once, as the user named it."""
        sites, same = self.sites(), self.same_losses()
        return sites.filter(~pc.field("site").isin([*same])) if same else sites

    def same_losses(self) -> dict[int, int]:
        """Sites of losses that the user has named, each with the site of that name."""
        snapshot = self._snapshot
        # Looked at again when there is twice as much to compare.
        key = snapshot.held["sites"].num_rows, len(snapshot.recorded_steps).bit_length()
        if self._last_same is None or self._last_same[0] != key:
            self._last_same = key, same_losses(snapshot)
        return self._last_same[1]

    def steps(self) -> pa.Table:
        """The steps in their order, as the lowest rank saw them: the ranks step together."""
        rows = of_lowest_rank(self._snapshot.held["steps"])
        if (np.diff(rows["step"].to_numpy()) > 0).all():
            return rows
        return rows.sort_by([("step", "ascending"), ("started_at", "ascending")])

    def scalars(self, *, after: int = -1, points: int = 2000) -> pa.Table:
        """`step, name, value, logged_at`: about `points` of each name, every extreme and end too.

        Where no `loss` was logged, it is the one that the steps' backward passes started from.
        """
        check_positive("points", points)
        buckets = max(1, points // _SCALAR_ROWS_PER_BUCKET)
        tables = {"scalars", "steps"}
        return self._query("scalars", tables, after=after, points=points, buckets=buckets)

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
        sites: Collection[int] | None = None,
        iteration: int | None = None,
        kind: str | None = None,
    ) -> pa.Table:
        """`site, column, value, nans, infs` over recorded steps.

        The metadata has each column's steps, and how many recorded ones the fullest column holds.

        A screen shows a few hundred rows: `sites` says which, and makes the rest cost nothing. Of
        one iteration or one kind of steps nothing was aggregated before, so of a very long run some
        steps are read.
        """
        check_one_of("quantity", quantity, QUANTITIES)
        check_one_of("statistic", statistic, self.statistics)
        check_positive("columns", columns)
        snapshot = self._snapshot
        steps = self.steps_between(first, last, kind)
        rows_per_step = snapshot.rows["stats"] / max(1, len(snapshot.recorded_steps))
        choose = columns_of if iteration is None and kind is None else single_columns
        asked = choose(steps, columns, rows_per_step)
        sites = sites if row_quantities(quantity, statistic) else ()
        needed = ["site", "step", "quantity", "nans", "infs", *made_of(statistic)]
        needed += [] if iteration is None else ["iteration"]
        rows, tiles = snapshot.for_heatmap(
            quantity,
            statistic,
            list(dict.fromkeys(needed)),
            asked.steps,
            asked.cut_steps(first, last),
            asked.level,
            sites,
        )
        rows = rows if iteration is None else of_iteration(rows, iteration)
        table = cells_of(asked, rows, tiles, statistic=statistic)
        if statistic == UPDATE_RATIO:  # of what was 0 there is none
            told = pc.field("value").is_valid() | (pc.field("nans") > 0) | (pc.field("infs") > 0)
            table = table.filter(told)
        said = {"columns": json.dumps(asked.ranges), "fullest": json.dumps(asked.fullest)}
        return table.replace_schema_metadata(said)

    def steps_between(
        self, first: int | None, last: int | None, kind: str | None = None
    ) -> npt.NDArray[np.int64]:
        """The told steps from one to another, of a kind or of all."""
        steps = self.told_steps(kind)
        start = 0 if first is None else int(np.searchsorted(steps, first, side="left"))
        stop = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        return steps[start:stop]

    def told_steps(self, kind: str | None = None) -> npt.NDArray[np.int64]:
        """The steps that have statistics, and where some are damaged those that had.

        Of a run that is whole these are the same, but for a step that is just being written.
        """
        return self._of_kind(self._all_told_steps(), kind)

    def recorded_steps(self, kind: str | None = None) -> npt.NDArray[np.int64]:
        """The steps that have statistics, of a kind or of all."""
        return self._of_kind(self._snapshot.recorded_steps, kind)

    def _of_kind(self, steps: npt.NDArray[np.int64], kind: str | None) -> npt.NDArray[np.int64]:
        if kind is None:
            return steps
        known = self._snapshot.held["steps"]
        return steps[np.isin(steps, known["step"].filter(pc.equal(known["kind"], kind)).to_numpy())]

    def _all_told_steps(self) -> npt.NDArray[np.int64]:
        snapshot, follower = self._snapshot, self._followers["stats"]
        if not follower.problems and not (self.info.ended is not None and follower.torn):
            return snapshot.recorded_steps
        steps = snapshot.held["steps"]
        recorded = steps["step"].filter(steps["recorded"]).to_numpy()
        return np.union1d(snapshot.recorded_steps, recorded)

    def lost_steps(self) -> list[list[int]]:
        """The first and the last of each stretch of recorded steps that are damaged.

        Of those nothing can be read; of others, single tensors may be missing.
        """
        told = self.told_steps()
        places = np.flatnonzero(~np.isin(told, self._snapshot.recorded_steps))
        stretches = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        return [[int(told[each[0]]), int(told[each[-1]])] for each in stretches if len(each)]

    def history(self, site: int, *, quantity: str = "value", points: int = 2000) -> pa.Table:
        """Every statistic of one quantity at one site, about `points` rows of it.

        Values and updates have an `update_ratio` too, which is null where nothing was updated.
        """
        check_one_of("quantity", quantity, QUANTITIES)
        check_positive("points", points)
        buckets = max(1, points // _HISTORY_ROWS_PER_BUCKET)
        snapshot = self._snapshot
        needed = dict.fromkeys((*_IN_TIME[:-1], "site", "quantity", *_HISTORY, *snapshot.own))
        rows = snapshot.of_sites([site], needed)
        ratios = (UPDATE_RATIO,) if quantity in ("value", UPDATE) else ()
        if ratios:
            rows = with_ratios(rows, quantity)
        else:
            rows = rows.filter(pc.equal(rows["quantity"], quantity))
        # Of equals the first is kept: always the same one, wherever the rows came from.
        if (np.diff(rows["step"].to_numpy()) <= 0).any():
            rows = rows.sort_by([(name, "ascending") for name in _IN_TIME])
        if rows.num_rows > points:
            rows = thinned(rows, points, buckets, (*ratios, *snapshot.own))
        return rows.select([*_HISTORY, *ratios, *snapshot.own])

    def step(self, step: int) -> pa.Table:
        """Every statistic of one step at all sites, in the order in which they were seen."""
        snapshot, last = self._snapshot, self._last_step
        # One step is asked for again and again, for one statistic after another.
        if last is None or last[0]() is not snapshot or last[1] != step:
            rows = snapshot.at_steps(step, step, snapshot.statistics)
            # By a weak reference: the rows of long ago must not stay because of one answer.
            last = self._last_step = ref(snapshot), step, query("step", {"stats": rows})
        return last[2]

    def sketches(
        self,
        site: int,
        *,
        quantity: str = "value",
        columns: int = 200,
        iteration: int | None = None,
        kind: str | None = None,
    ) -> pa.Table:
        """The sketches of one quantity at one site, merged to at most `columns`.

        They are of all iterations and all kinds of steps, unless one is said.
        """
        check_one_of("quantity", quantity, QUANTITIES)
        check_positive("columns", columns)
        snapshot = self._snapshot
        seen = snapshot.of_sites([site], ["step", "site", "quantity", "iteration"])
        seen = seen.filter(pc.equal(seen["quantity"], quantity))
        is_single = iteration is not None or kind is not None
        seen = seen if iteration is None else of_iteration(seen, iteration)
        steps = self._of_kind(distinct(np.sort(seen["step"].to_numpy())), kind)
        # Blocks were merged of all that was seen in their steps.
        asked = step_columns(steps, columns) if is_single else slices_of(steps, columns)
        rows = snapshot.for_slices(site, quantity, asked.level)
        if iteration is not None:
            rows = [of_iteration(each, iteration) for each in rows]
        return as_slices(asked, rows)

    def summary(self) -> dict[str, Any]:
        """How far the run is, its loss, and what recording cost."""
        snapshot, last = self._snapshot, self._last_summary
        # A page that is open asks for it five times a second, whether or not there is anything new.
        if last is None or last[0] is not snapshot:
            tables = {name: snapshot.held[name] for name in OVERVIEW_TABLES}
            last = self._last_summary = snapshot, summarize(**tables)
        return dict(last[1])

    def scalar_names(self) -> list[str]:
        """The names under which scalars were logged, and `loss` where steps have one."""
        names = set(pc.unique(self._snapshot.held["scalars"]["name"]).to_pylist())
        losses = self._snapshot.held["steps"]["loss"]
        return sorted(names | ({"loss"} if losses.null_count < len(losses) else set()))

    def quantities(self) -> list[str]:
        """What was observed, in the order of the schema."""
        return self._snapshot.quantities

    def has_site(self, site: int) -> bool:
        """Whether a site of this number is known."""
        known = self._snapshot.held["sites"]["site"]
        return bool(pc.any(pc.equal(known, site)).as_py())

    def _query(self, name: str, tables: set[str], **parameters: Any) -> pa.Table:
        held = self._snapshot.held
        return query(name, {table: held[table] for table in tables}, **parameters)


def _steps_of(
    parts: Iterable[Part], batches: Iterable[tuple[Source, pa.RecordBatch]]
) -> npt.NDArray[np.int64]:
    steps = [np.unique(batch.column("step").to_numpy()) for _, batch in batches]
    return np.unique(np.concatenate([_NO_STEPS, *steps, *(part.steps for part in parts)]))


def _changed_at(folder: Path) -> int:
    """When a file of the folder last came or went; streams become parts even after a run's end."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes whenever a file is replaced."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_one_of(what: str, value: str, choices: Collection[str]) -> None:
    """Say which choices there are, where it is none of them."""
    if value not in choices:
        raise BacklightError(f"There is no {what} {value!r}: use one of {', '.join(choices)}.")


def check_positive(what: str, value: int) -> None:
    """Say which numbers can be asked for, where it is none of them."""
    if not 0 < value <= 1_000_000:
        raise BacklightError(f"{what!r} is {value}: use a number from 1 to 1000000.")
