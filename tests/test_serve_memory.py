"""A viewer answers for days: what it needed for moments goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import numpy as np
import pyarrow as pa
import pytest
from browser import environment, serving
from sample_runs import SampleRun, stats_batch, write_sample_run

import backlight
from backlight.schema import STATS
from backlight.serve import library
from backlight.serve.library import Library
from backlight.store import queries, streams
from backlight.store.compact import compact
from backlight.store.layout import list_sources
from backlight.store.reader import RunReader
from backlight.store.runs import find_runs

STEPS, SITES, PAGES = 600, 60, 10
MOST_MB = 160.0
WAIT_SECS = 30.0
QUESTIONS = (
    "heatmap?quantity=grad&statistic=rms&columns=1000",
    "sites/2/history?quantity=value&points=1000",
    "sites/2/sketches?quantity=value&columns=600",
)


def write_long_run(root: Path) -> Path:
    """A run whose steps are all alike but for their numbers, which is quick to write."""
    run = SampleRun(root, "demo", "long", sites=SITES, seed=0)
    rows = stats_batch(0, run.places, run.rng, False)
    place = STATS.get_field_index("step")
    for step in range(STEPS):
        numbers = pa.array(np.full(rows.num_rows, step))
        run.writer.append("stats", rows.set_column(place, STATS.field(place), numbers))
    run.end("finished")
    return run.path


def resident_mb(process: int) -> float:
    """What a process has in memory, without the files that it maps."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def comes_to_hold(condition: Callable[[], bool]) -> bool:
    """Whether something is so, at the latest after a while."""
    ends_at = time.monotonic() + WAIT_SECS
    while not condition() and time.monotonic() < ends_at:
        time.sleep(0.2)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has in memory")
def test_what_many_questions_needed_goes_back_to_the_system(root: Path) -> None:
    path = write_long_run(root)
    rows_mb = sum(file.stat().st_size for file in path.rglob("*.arrows")) / 2**20
    with serving(root) as (address, server):
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(address).close()
        start = f"{address.partition('?')[0]}api/runs/demo/long/"

        def ask(question: str) -> int:
            with opener.open(start + question) as answer:
                return len(answer.read())

        with ThreadPoolExecutor(PAGES) as pages:
            assert min(pages.map(ask, QUESTIONS * PAGES)) > 1000
        assert comes_to_hold(lambda: resident_mb(server.pid) < rows_mb + MOST_MB)


class MallocInfo(ctypes.Structure):
    """What malloc.h calls `mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "free", "_", "_", "mapped", "_", "_", "used", "_", "_")
    ]


def in_use_kb() -> float:
    """What was taken from the C library, and not given back to it."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallocInfo
    info = ask()
    return float(info.used + info.mapped) / 1024


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="only the C library of GNU says what is in use",
)
def test_the_database_does_not_remember_all_questions(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RunReader(write_sample_run(root, steps=20, sites=4))
    reader.refresh()

    def grown_kb(questions: int) -> float:
        before = in_use_kb()
        for _ in range(questions):
            reader.scalars()
        return in_use_kb() - before

    def take_a_new_one_after(questions: int) -> None:
        monkeypatch.setattr(queries, "QUESTIONS_PER_DATABASE", questions)
        monkeypatch.setattr(queries, "_databases", queries._Databases())
        reader.scalars()

    most_kb = 8 * 1024 / queries.QUESTIONS_PER_DATABASE
    take_a_new_one_after(1000)
    remembered_kb = grown_kb(25) / 25
    assert 1 < remembered_kb < most_kb  # where it is nothing, no new ones need be taken
    take_a_new_one_after(5)
    grown_kb(10)  # what a database takes for itself is there from then on
    assert grown_kb(25) < 10 * remembered_kb


def test_compaction_is_done_by_a_process_of_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sample_run(root, steps=20, sites=6)
    (folder,) = find_runs(path)
    monkeypatch.setattr(library, "_COMPACT_FROM_BYTES", 1)
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    own = set(threading.enumerate())
    Library(root).reader(folder)
    for thread in set(threading.enumerate()) - own:
        thread.join(timeout=WAIT_SECS)
    assert list_sources(path / "stats").streams == []
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > taken + 0.1


def test_compaction_ends_with_the_viewer(root: Path) -> None:
    path = write_long_run(root)
    words = [sys.executable, "-m", "backlight.serve.compactor", str(path)]
    # Its input is at its end already, as if who started it were gone.
    done = subprocess.run(words, stdin=subprocess.DEVNULL, env=environment())
    assert done.returncode == 1
    assert list_sources(path / "stats").parts == []
    assert backlight.open(path).problems == []


def test_the_list_of_runs_holds_no_second_copy_of_a_run_that_is_open(root: Path) -> None:
    write_sample_run(root, name="open", steps=20, sites=4)
    write_sample_run(root, name="closed", steps=30, sites=4)
    shared = Library(root)
    before = shared.summaries()[0]
    reader = shared.reader(shared.find("demo/open"))
    after = shared.summaries()[0]
    for each in (*before, *after):
        assert each.pop("age_secs") >= 0
    assert after == before
    held = {path.name: reader for path, reader in shared._overviews.items()}
    assert held["open"] is reader and held["closed"] is not reader


def test_the_list_does_not_wait_for_a_run_that_is_being_read(root: Path) -> None:
    write_sample_run(root, name="open", steps=20, sites=4)
    shared = Library(root)
    reader = shared.reader(shared.find("demo/open"))
    with ThreadPoolExecutor(1) as elsewhere, reader._lock:  # as while it reads
        (told,), problems = elsewhere.submit(shared.summaries).result(timeout=WAIT_SECS)
    assert (told["steps"], problems) == (20, [])


def test_steps_are_not_held_twice_where_some_were_compacted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 20_000)
    run = SampleRun(root, "demo", "live", sites=4, seed=0)
    for step in range(60):
        run.append_step(step)
    reader = RunReader(run.path)
    reader.refresh()
    compact(run.path)
    run.append_step(60)
    reader.refresh()
    sources = list_sources(run.path / "steps")
    assert sources.parts and sources.streams
    assert reader.steps() is reader.snapshot.held["steps"]
    assert reader.steps()["step"].to_pylist() == list(range(61))
    run.end("finished")


def test_an_answer_about_one_step_keeps_no_rows_that_were_replaced(root: Path) -> None:
    run = SampleRun(root, "demo", "live", sites=4, seed=0)
    run.append_step(0)
    shared = Library(root)
    reader = shared.reader(shared.find("demo/live"))
    before = ref(reader.snapshot)
    assert reader.step(0).num_rows == len(run.places)
    run.append_step(1)
    reader.refresh()
    reader.summary()
    gc.collect()
    assert before() is None
    assert reader.step(0).num_rows == len(run.places)
    run.end("finished")


def test_the_list_goes_on_when_a_run_is_closed_for_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_OPEN_RUNS", 1)
    for name in ("first", "second"):
        write_sample_run(root, name=name, steps=5, sites=4)
    shared = Library(root)
    first = shared.reader(shared.find("demo/first"))
    second = shared.reader(shared.find("demo/second"))
    assert {each["steps"] for each in shared.summaries()[0]} == {5}
    held = {path.name: reader for path, reader in shared._overviews.items()}
    assert held["second"] is second and held["first"] is not first
    assert held["first"].rows["stats"] == 0  # the small tables alone
