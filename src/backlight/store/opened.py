"""What `backlight.open` gives: a run or a project of runs to ask questions, with no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, TABLES, RunInfo
from backlight.store.answer import Answer
from backlight.store.choose import Choice, choose, words
from backlight.store.graphs import read_graph
from backlight.store.merge import SKETCH_COLUMNS
from backlight.store.precision import has_sketch
from backlight.store.precision_table import DEFAULT_FORMATS, precision_table
from backlight.store.reader import RunReader
from backlight.store.runs import RunFolder, find_runs, status_of
from backlight.store.sketch import Sketch
from backlight.store.values import FOLDER, KeptValues, read_values

_IN_TIME: Final = [("step", "ascending")]
_STATS_ORDER: Final = [(name, "ascending") for name in ("step", "iteration", "order", "rank")]


class Sketches:
    """The sketches of some observations: one by one, or merged.

    `table` says what each is of. `merged()` is one of all; `by("name")` one for each site.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.table = Answer(rows.drop_columns(list(SKETCH_COLUMNS)))

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[Sketch]:
        return iter(_sketches(self._rows))

    def merged(self) -> Sketch:
        """One sketch of all of them."""
        return Sketch.merged(self)

    def by(self, column: str) -> dict[Any, Sketch]:
        """One sketch for each value of a column, such as `step`, `name`, `quantity` or `rank`."""
        keys = self.table[column].tolist()
        groups: dict[Any, list[Sketch]] = {}
        for key, sketch in zip(keys, self, strict=True):
            groups.setdefault(key, []).append(sketch)
        return {key: Sketch.merged(each) for key, each in groups.items()}


def _sketches(rows: pa.Table) -> list[Sketch]:
    found = []
    for batch in rows.to_batches():
        numbers = {name: batch.column(name).to_pylist() for name in _SKETCHED}
        keys, counts = (batch.column(name) for name in SKETCH_COLUMNS)
        for i in range(batch.num_rows):
            own = [each[i].values.to_numpy().astype(np.int64) for each in (keys, counts)]
            found.append(Sketch(*own, **{name: numbers[name][i] for name in _SKETCHED}))
    return found


_SKETCHED: Final = ("count", "zeros", "nans", "infs", "min", "max")


class OpenedRun:
    """One run. What it answers is what was written when it was opened or last refreshed.

    Every question takes what narrows it, where that makes sense: `name`, a regular expression for
    sites; `tensor_class`, `quantity` and `kind` (of steps), one or several; `steps`, a number, a
    range or (first, last); and `rank`.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._reader = RunReader(folder.path)
        self._reader.refresh()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def id(self) -> str:
        """`project/name`."""
        return self._folder.id

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.name

    @property
    def project(self) -> str:
        """The project's name."""
        return self._folder.project

    @property
    def info(self) -> RunInfo:
        """What `run.json` says: configuration, environment, modules."""
        return self._reader.info

    @property
    def status(self) -> str:
        """`live`, `finished`, `failed` or `stopped`."""
        return status_of(self.path, self.info)

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that could not be read, or not all of it."""
        return self._reader.problems

    def refresh(self) -> bool:
        """Read what was written since, and say whether there was anything."""
        return self._reader.refresh()

    def sites(self, name: str | None = None, **choice: Any) -> Answer:
        """The sites, in network order."""
        chosen = choose(name=name, **choice).sites(self._reader.snapshot)
        ordered = self._reader.sites()["site"].to_pylist()
        place = {site: position for position, site in enumerate(ordered)}
        order = np.argsort([place[site] for site in chosen["site"].to_pylist()], kind="stable")
        return Answer(chosen.take(pa.array(order, pa.int64())))

    def steps(self, **choice: Any) -> Answer:
        """The steps: their kind, whether and why they were recorded, and their times."""
        return self._rows("steps", _IN_TIME, choice)

    def stats(self, name: str | None = None, **choice: Any) -> Answer:
        """The statistics, by step and in the order in which they were observed."""
        snapshot = self._reader.snapshot
        rows = choose(name=name, **choice).rows(snapshot, "stats", snapshot.statistics)
        return Answer(rows.sort_by(_STATS_ORDER))

    def sketches(self, name: str | None = None, **choice: Any) -> Sketches:
        """The histograms, in the order of `stats`; without those that were left out."""
        return Sketches(self._sketched(name, choice))

    def _sketched(self, name: str | None, choice: dict[str, Any]) -> pa.Table:
        chosen, snapshot = choose(name=name, **choice), self._reader.snapshot
        rows = chosen.rows(snapshot, "stats", [*snapshot.statistics, *SKETCH_COLUMNS])
        return rows.filter(pa.array(has_sketch(rows))).sort_by(_STATS_ORDER)

    def values(self, name: str | None = None, **choice: Any) -> list[tuple[str, int, KeptValues]]:
        """The raw values that were kept: the site's name, the step, and the values."""
        chosen = choose(name=name, **choice)
        snapshot = self._reader.snapshot
        sites = chosen.sites(snapshot)
        names = dict(zip(sites["site"].to_pylist(), sites["name"].to_pylist(), strict=True))
        quantities = words("quantity", chosen.quantity, QUANTITIES)
        found = []
        for rank, step, file in self._value_files(chosen):
            for entry in read_values(file):
                number = snapshot.sites.number_of(rank, entry.site)
                if number in names and (quantities is None or entry.quantity in quantities):
                    found.append((names[number], step, entry))
        return found

    def _value_files(self, chosen: Choice) -> list[tuple[int, int, Path]]:
        first, last = chosen.bounds
        found = []
        for file in (self.path / FOLDER).glob("*-*.safetensors"):
            rank, _, step = file.stem.partition("-")
            is_ours = rank.isdigit() and step.isdigit() and not file.is_symlink()
            if is_ours and first <= int(step) <= last and chosen.rank in (None, int(rank)):
                found.append((int(rank), int(step), file))
        return sorted(found, key=lambda each: (each[1], each[0]))

    def scalars(self, **choice: Any) -> Answer:
        """What was logged."""
        return self._rows("scalars", [("name", "ascending"), *_IN_TIME], choice)

    def notes(self, **choice: Any) -> Answer:
        """What was noted."""
        return self._rows("notes", _IN_TIME, choice)

    def events(self, **choice: Any) -> Answer:
        """What happened: non-finite values, spikes, exceptions, the end."""
        return self._rows("events", _IN_TIME, choice)

    def samples(self, name: str | None = None, **choice: Any) -> Answer:
        """The statistics of single samples."""
        columns = TABLES["samples"].names
        rows = choose(name=name, **choice).rows(self._reader.snapshot, "samples", columns)
        return Answer(rows.sort_by([*_IN_TIME, ("sample", "ascending")]))

    def calls(self, **choice: Any) -> Answer:
        """The loss functions and other functionals that were called."""
        return self._rows("calls", [*_IN_TIME, ("order", "ascending")], choice)

    def anomalies(self, *expressions: str, by: str = "step", most: int = 10) -> list[Any]:
        """Where anomalies show, by step or sample, and what goes with each.

        Each is an expression or `name: expression`; without any, those that the run was told of.
        """
        room = import_module("backlight.diagnosis.anomalies")
        asked = [room.named(each) for each in expressions] or room.told_in(self.info)
        found: list[Any] = room.find_anomalies(self._reader.snapshot, asked, by=by, most=most)
        return found

    def graph(self, step: int | None = None) -> dict[str, Any]:
        """The dependency graph of a step, or of the last that has one.

        Of a step whose structure was not followed there is none, which is told as an error: that
        of another step might be a graph that this one never had.
        """
        steps = self.steps(steps=step).arrow()
        with_graph = [each for each in steps["graph"].to_pylist() if each]
        if not with_graph:
            raise BacklightError(self._no_graph(step, steps["recorded"].to_pylist()))
        return read_graph(self.path, with_graph[-1])

    def _no_graph(self, step: int | None, recorded: list[bool]) -> str:
        if step is None:
            return f"No step of {self.name!r} has a graph."
        if not recorded:
            return f"{self.name!r} has no step {step}, and so no graph of it."
        why = "its structure was new and not followed" if any(recorded) else "it was not recorded"
        return (
            f"Step {step} of {self.name!r} has no graph, because {why}: ask for a step that has "
            "one, by the column 'graph' of steps()."
        )

    def precision(
        self, formats: Sequence[str] = DEFAULT_FORMATS, name: str | None = None, **choice: Any
    ) -> Answer:
        """What number formats would lose of every observation, as it is and scaled."""
        chosen = choose(name=name, **choice)
        rows = chosen.rows(self._reader.snapshot, "stats", TABLES["stats"].names)
        rows = rows.sort_by(_STATS_ORDER)
        sites = self._reader.snapshot.held["sites"]
        place = pc.index_in(rows["site"], value_set=sites["site"].combine_chunks())
        rows = rows.append_column("tensor_class", sites["tensor_class"].take(place))
        sizes = self.stats(name, **{**choice, "quantity": "value", "tensor_class": "parameter"})
        return Answer(precision_table(rows, sizes.arrow(), formats))

    def frame(self, name: str | None = None, **choice: Any) -> Any:
        """A pandas frame of metadata, scalar_stats and exponent_counts; see docs/numerics.md."""
        return import_module("backlight.exchange.frame").frame_of(self, name, **choice)

    def show(self, view: str = "overview", **options: Any) -> Any:
        """The page on this run, in a notebook; see `backlight.notebook.show` for the options."""
        return _notebook().show(self.path.parent, self.id, view, **options)

    def _rows(self, table: str, order: list[tuple[str, str]], choice: dict[str, Any]) -> Answer:
        columns = TABLES[table].names
        rows = choose(**choice).rows(self._reader.snapshot, table, columns)
        return Answer(rows.sort_by(order))

    def __repr__(self) -> str:
        rows = self._reader.rows
        held = f"{rows['steps']} steps, {rows['sites']} sites, {rows['stats']} observations"
        return f"<run {self._folder.id}: {self.status}, {held}>"


def _of_runs(tables: dict[str, pa.Table]) -> pa.Table:
    """The rows of several runs as one table, whose first column says of which each is."""
    named = []
    for key, table in tables.items():
        names = pa.repeat(pa.scalar(key), table.num_rows)
        named.append(table.add_column(0, pa.field("run", pa.utf8()), names))
    # A run may have statistics of its own, which the others have not.
    return pa.concat_tables(named, promote_options="default")


_NO_SKETCHES: Final = pa.Table.from_batches([], TABLES["stats"])


class OpenedProject:
    """Several runs. A question to all of them has one more column, `run`, that says of which."""

    def __init__(self, path: Path, folders: list[RunFolder]) -> None:
        self.path = path
        self.runs: dict[str, OpenedRun] = {}
        self._unopened: list[str] = []
        for folder in folders:
            try:
                self.runs[folder.id] = OpenedRun(folder)
            except BacklightError as error:  # it keeps no other from being read
                self._unopened.append(str(error))

    def __getitem__(self, run: str) -> OpenedRun:
        """A run by `project/name`, or by its name where only one has it."""
        found = [opened for key, opened in self.runs.items() if run in (key, opened.name)]
        if len(found) != 1:
            how = "no run" if not found else "more than one run"
            raise BacklightError(f"There is {how} {run!r}: use one of {', '.join(self.runs)}.")
        return found[0]

    def __iter__(self) -> Iterator[OpenedRun]:
        return iter(self.runs.values())

    def __len__(self) -> int:
        return len(self.runs)

    def sites(self, name: str | None = None, **choice: Any) -> Answer:
        """The sites of all runs."""
        return self._ask("sites", {"name": name, **choice})

    def steps(self, **choice: Any) -> Answer:
        """The steps of all runs."""
        return self._ask("steps", choice)

    def stats(self, name: str | None = None, **choice: Any) -> Answer:
        """The statistics of all runs."""
        return self._ask("stats", {"name": name, **choice})

    def sketches(self, name: str | None = None, **choice: Any) -> Sketches:
        """The histograms of all runs: to be merged over all of them, or `by("run")`."""
        found = {key: run._sketched(name, choice) for key, run in self.runs.items()}
        return Sketches(_of_runs(found) if found else _NO_SKETCHES)

    def values(
        self, name: str | None = None, **choice: Any
    ) -> dict[str, list[tuple[str, int, KeptValues]]]:
        """The raw values that each run kept."""
        return {key: run.values(name, **choice) for key, run in self.runs.items()}

    def samples(self, name: str | None = None, **choice: Any) -> Answer:
        """The statistics of single samples of all runs."""
        return self._ask("samples", {"name": name, **choice})

    def calls(self, **choice: Any) -> Answer:
        """The functionals that all runs called."""
        return self._ask("calls", choice)

    def graph(self, step: int | None = None) -> dict[str, dict[str, Any]]:
        """The dependency graph of a step, of each run that has one."""
        found = {}
        for key, run in self.runs.items():
            with suppress(BacklightError):
                found[key] = run.graph(step)
        return found

    @property
    def problems(self) -> list[str]:
        """One sentence for each run that could not be opened, and each file not all read."""
        return [*self._unopened, *(problem for run in self for problem in run.problems)]

    def refresh(self) -> bool:
        """Read what was written since to any run, and say whether there was anything."""
        return sum(run.refresh() for run in self) > 0

    def scalars(self, **choice: Any) -> Answer:
        """What all runs logged."""
        return self._ask("scalars", choice)

    def notes(self, **choice: Any) -> Answer:
        """What was noted in all runs."""
        return self._ask("notes", choice)

    def events(self, **choice: Any) -> Answer:
        """What happened in all runs."""
        return self._ask("events", choice)

    def show(self, run: str | None = None, view: str = "overview", **options: Any) -> Any:
        """The page on the list of runs, or on one of them, in a notebook."""
        return _notebook().show(self.path, run and self[run].id, view, **options)

    def _ask(self, question: str, choice: dict[str, Any]) -> Answer:
        answers = {key: getattr(run, question)(**choice) for key, run in self.runs.items()}
        tables = {key: answer.arrow() for key, answer in answers.items()}
        return Answer(_of_runs(tables) if tables else pa.table({}))

    def __repr__(self) -> str:
        return f"<{len(self)} runs in {str(self.path)!r}>"


def _notebook() -> Any:
    """What shows runs in a notebook: it builds on the viewer, which nothing here needs else."""
    return import_module("backlight.notebook")


def open_path(path: str | Path) -> OpenedRun | OpenedProject:
    """A run, where the path is one, or all runs under it."""
    folders = find_runs(Path(path))
    if len(folders) == 1 and folders[0].path == Path(path).resolve():
        return OpenedRun(folders[0])
    return OpenedProject(Path(path), folders)
