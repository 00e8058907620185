"""The runs under one root, each read once and shared by all who ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread, Timer
from typing import Any, Final

from backlight.errors import BacklightError
from backlight.schema import RUN_FILE
from backlight.serve.compactor import compact_beside
from backlight.store.compact import uncompacted_bytes
from backlight.store.reader import OVERVIEW_TABLES, RunReader
from backlight.store.runs import RunFolder, find_runs
from backlight.store.summary import describe

# A run that is open holds what is not compacted; a list of runs holds a few rows of each.
_OPEN_RUNS: Final = 6
_PREPARE_AFTER_SECS: Final = 0.6
"""Not before what a page asks at once: that needs the processor."""
_COMPACT_FROM_BYTES: Final = 64 << 20
"""What one segment has: of a rank, at most that and the segment under way are held for long."""
_COMPACT_EVERY_SECS: Final = 60.0


class NotFoundError(BacklightError):
    """What was asked for is not there."""


class Library:
    """Finds runs by their ids, and keeps their readers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = Lock()
        self._known: dict[str, RunFolder] = {}
        self._open: OrderedDict[Path, RunReader] = OrderedDict()
        # For the list: of a run that is open its reader, of another one that reads small tables.
        self._overviews: dict[Path, RunReader] = {}
        self._compacted_at: dict[Path, float] = {}

    def find(self, run_id: str) -> RunFolder:
        """The run of an id. Ids are looked up, never joined to a path."""
        known = self._known.get(run_id)
        if known is None or not (known.path / RUN_FILE).is_file():
            self._known = {run.id: run for run in find_runs(self.root)}
            known = self._known.get(run_id)
        if known is None:
            raise NotFoundError(f"There is no run {run_id!r} under {str(self.root)!r}.")
        return known

    def reader(self, run: RunFolder) -> RunReader:
        """A reader of the whole run, up to date."""
        reader = self._reader(run)
        self._compact_if_large(run.path)
        return reader

    def _reader(self, run: RunFolder) -> RunReader:
        with self._lock:
            known = self._open.pop(run.path, None)
            reader = known or RunReader(run.path)
            self._open[run.path] = reader
            while len(self._open) > _OPEN_RUNS:
                self._overviews.pop(self._open.popitem(last=False)[0], None)
        reader.refresh()
        with self._lock:
            if self._open.get(run.path) is reader:
                self._overviews[run.path] = reader  # the same rows are not held twice
        if known is None:
            later = Timer(_PREPARE_AFTER_SECS, reader.prepare)
            later.daemon = True
            later.start()
        return reader

    def warm_up(self) -> None:
        """Open the newest run, in the background: it is what most who start a viewer look at."""
        Thread(target=self._open_newest, daemon=True).start()

    def _open_newest(self) -> None:
        with suppress(BacklightError, OSError):  # who asks for that run is told what is wrong
            runs = find_runs(self.root)
            newest = max(runs, key=lambda run: (run.path / RUN_FILE).stat().st_mtime, default=None)
            if newest is not None:
                self._reader(newest)

    def _compact_if_large(self, path: Path) -> None:
        """Compact, in the background, what would otherwise be held in memory for long."""
        now = time.monotonic()
        with self._lock:
            if now - self._compacted_at.get(path, -_COMPACT_EVERY_SECS) < _COMPACT_EVERY_SECS:
                return
            self._compacted_at[path] = now
        if uncompacted_bytes(path) >= _COMPACT_FROM_BYTES:
            Thread(target=compact_beside, args=(path,), daemon=True).start()

    def state(self, run: RunFolder) -> dict[str, Any]:
        """The Summary of a run and how many rows each of its tables has."""
        reader = self.reader(run)
        return {"summary": describe(run, reader), "rows": reader.rows}

    def summaries(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The Summary of every run, newest first, and one sentence for each that has none."""
        runs = find_runs(self.root)
        with self._lock:
            self._forget({run.path for run in runs})
            summaries, problems = _partition(runs, self._summary)
        return sorted(summaries, key=lambda each: -each["created_at"]), problems

    def _forget(self, paths: set[Path]) -> None:
        for path in self._overviews.keys() - paths:
            del self._overviews[path]

    def _summary(self, run: RunFolder) -> dict[str, Any]:
        reader = self._overviews.get(run.path) or RunReader(run.path)
        self._overviews[run.path] = reader
        reader.refresh(OVERVIEW_TABLES, wait=False)  # a list does not wait for one long run
        return describe(run, reader)


def _partition(
    runs: list[RunFolder], ask: Callable[[RunFolder], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    answers, problems = [], []
    for run in runs:
        try:
            answers.append(ask(run))
        except BacklightError as error:
            problems.append(str(error))
    return answers, problems
