"""Asks one tool what a viewer asks, and times it: run in a process of its own for each tool."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Times = dict[str, list[tuple[float, float]]]

QUESTIONS = (
    *("open", "site's history", "site's sketches", "step, all sites"),
    *("heatmap", "tile", "newest 100 steps"),
)


def answer(tool: str, path: Path, sites: int, times: int) -> dict[str, Any]:
    """How long each question took, and the memory: from a cold start, with no file in memory."""
    forget(path)
    ask = {"backlight": ask_backlight, "sqlite": ask_sqlite, "tensorboard": ask_tensorboard}[tool]
    return {"times": ask(path, sites, times), "peak_mb": peak_mb()}


def forget(path: Path) -> None:
    """Have the system drop what it holds of the files, so that the first call reads the disk."""
    for file in (each for each in path.rglob("*") if each.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work: Callable[[], Any], times: int) -> list[tuple[float, float]]:
    """Milliseconds of each call: by the clock, and of the processor, which others may use too."""
    found = []
    for _ in range(times):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        found.append((wall * 1000, cpu * 1000))
    return found


def peak_mb() -> float:
    """The most memory that this process has had; `getrusage` would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) / 1e3


def ask_backlight(path: Path, sites: int, times: int) -> Times:
    import duckdb  # noqa: F401  (as in a viewer, which has loaded it before it is asked)
    import pyarrow as pa
    import pyarrow.parquet

    from backlight.serve.library import Library
    from backlight.serve.server import warm_up
    from backlight.store.merge import WITHOUT_SKETCHES
    from backlight.store.reader import RunReader
    from backlight.store.runs import find_runs

    warm_up()  # as the viewer does while the browser loads the page
    random = np.random.default_rng(0)
    library, (folder,) = Library(path), find_runs(path)
    readers: list[RunReader] = []

    def open_run() -> list[pa.Table]:
        reader = library.reader(folder)  # as the viewer does: it goes on in the background
        readers.append(reader)
        reader.summary()
        return [reader.sites(), reader.steps(), reader.scalars(), reader.notes()]

    opened = timed(open_run, 1)
    reader = readers[0]
    last = int(reader.snapshot.recorded_steps[-1])

    def tile() -> None:
        first, wide = int(random.integers(last // 2)), int(random.integers(last // 2))
        shown = range(site := int(random.integers(sites - 256)), site + 256)
        reader.heatmap(columns=256, first=first, last=first + wide, sites=shown)

    return {
        "open": opened,
        "heatmap": timed(reader.heatmap, times),
        "site's history": timed(lambda: reader.history(int(random.integers(sites))), times),
        "site's sketches": timed(lambda: reader.sketches(int(random.integers(sites))), times),
        "step, all sites": timed(lambda: reader.step(int(random.integers(last))), times),
        "tile": timed(tile, times),
        "newest 100 steps": timed(
            lambda: reader.snapshot.at_steps(last - 99, last, WITHOUT_SKETCHES), times
        ),
    }


def ask_sqlite(path: Path, sites: int, times: int) -> Times:
    import sqlite3

    random = np.random.default_rng(0)
    connections: list[sqlite3.Connection] = []
    opened = timed(lambda: connections.append(sqlite3.connect(path / "stats.sqlite")), 1)
    ask = connections[0].execute
    (last,) = ask("SELECT max(step) FROM stats").fetchone()
    columns = "step / ? AS c, max(abs_max), sum(nans)"
    between = "FROM stats WHERE step BETWEEN ? AND ?"
    heatmap = f"SELECT site, {columns} {between} GROUP BY site, c"
    of_sites = f"SELECT site, {columns} {between} AND site BETWEEN ? AND ? GROUP BY site, c"

    def tile() -> None:
        first, wide = int(random.integers(last // 2)), int(random.integers(last // 2))
        site = int(random.integers(sites - 256))
        asked = (max(1, wide // 256), first, first + wide, site, site + 255)
        ask(of_sites, asked).fetchall()

    def one(column: str, limit: int) -> list[Any]:
        where = f"SELECT * FROM stats WHERE {column} = ?"
        return ask(where, (int(random.integers(limit)),)).fetchall()

    return {
        "open": opened,
        "heatmap": timed(lambda: ask(heatmap, (max(1, last // 500), 0, last)).fetchall(), 2),
        "site's history": timed(lambda: one("site", sites), times),
        "step, all sites": timed(lambda: one("step", last), times),
        "tile": timed(tile, 5),
        "newest 100 steps": timed(
            lambda: ask("SELECT * FROM stats WHERE step > ?", (last - 100,)).fetchall(), 5
        ),
    }


def ask_tensorboard(path: Path, sites: int, times: int) -> Times:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulators: list[Any] = []

    def load() -> None:
        accumulators.append(EventAccumulator(str(path), size_guidance={"tensors": 0, "scalars": 0}))
        accumulators[0].Reload()

    opened = timed(load, 1)
    tags = accumulators[0].Tags()["scalars"]
    per_site: dict[str, list[str]] = {}
    for tag in tags:
        per_site.setdefault(tag.split("/")[0], []).append(tag)
    names = list(per_site)
    assert len(names) == sites
    random = np.random.default_rng(0)

    def history() -> None:
        for tag in per_site[names[int(random.integers(sites))]]:
            accumulators[0].Scalars(tag)

    def everything() -> None:
        for tag in tags:
            accumulators[0].Scalars(tag)

    whole = timed(everything, 3)  # it has no other way to ask for a step
    return {
        "open": opened,
        "site's history": timed(history, times),
        "step, all sites": whole,
        "heatmap": whole,
        "tile": whole,
        "newest 100 steps": whole,
    }
