"""A trainer that is killed has lost nothing that it flushed, and all who read it are right."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_runs import SampleRun

from backlight.schema import STATS
from backlight.store import streams
from backlight.store.columns import batch_of
from backlight.store.compact import compact
from backlight.store.reader import RunReader
from backlight.store.resume import read_progress
from backlight.store.writer import RunWriter

TESTS = Path(__file__).parent
KILLS = 50
# A minute says more: `BACKLIGHT_TEST_SECS=60`.
SECS = float(os.environ.get("BACKLIGHT_TEST_SECS", "6"))
SITES = 6

WRITER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sample_runs import SampleRun
from test_store_crash import append, small_segments
small_segments()
run = SampleRun(Path(sys.argv[2]), "p", "r", sites=6, seed=0)
print(run.path, flush=True)
pause = float(sys.argv[3])
stop = time.monotonic() + float(sys.argv[4])
step = 0
while time.monotonic() < stop:
    append(run.writer, run.places, step)
    print(step, flush=True)
    step += 1
    time.sleep(pause)
run.end("finished")
"""


def small_segments() -> None:
    streams.SEGMENT_BYTES = 40_000  # type: ignore[misc]


def number(step: Any, order: Any) -> Any:
    """What the mean of an observation has to be, so that a made-up one is noticed."""
    return ((step * 7919 + order * 104729) % 100_003) / 7.0


def append(writer: RunWriter, places: list[Any], step: int) -> None:
    """Append a step whose every number can be foretold."""
    rows = [
        {
            "step": step,
            "iteration": 0,
            "order": order,
            "site": place.site.site,
            "quantity": place.quantity,
            "backward": "",
            "dtype": "float32",
            "shape": [2, 3],
            "count": 6,
            "zeros": 0,
            "nans": 0,
            "infs": 0,
            "mean": number(step, order),
            "min": -1.0,
            "max": 1.0,
            "sketch_keys": [-4297, 4297],
            "sketch_counts": [3, 3],
        }
        for order, place in enumerate(places)
    ]
    writer.append("stats", batch_of(rows, STATS))
    times = {"started_at": 0.0, "duration_secs": 0.1, "recording_secs": 0.01}
    what = {"kind": "train", "recorded": True, "reason": "", "iterations": 1, "batch_size": None}
    writer.append_rows("steps", [{"step": step, **what, "graph": "", **times}])


def check(reader: RunReader, places: int) -> int:
    """Every step is there, whole, once, and as it was written; how many there are."""
    rows = reader.snapshot.all_rows("stats", ["step", "order", "mean"])
    step, order, mean = (rows[name].to_numpy() for name in ("step", "order", "mean"))
    count = len(step) // places
    assert np.sort(step * places + order).tolist() == list(range(count * places))
    assert (mean == number(step, order)).all()
    return count


def start(root: Path, pause: float, secs: float) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", WRITER, str(TESTS), str(root), str(pause), str(secs)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_has_lost_nothing_that_it_flushed(tmp_path: Path) -> None:
    generator = random.Random(0)
    places = SampleRun(tmp_path / "spare", "p", "r", sites=SITES, seed=0).places
    flushed_steps = []
    for kill in range(KILLS):
        child, path = start(tmp_path / str(kill), 0.0, 60.0)
        time.sleep(generator.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        assert child.stdout is not None
        # Not by `communicate`, which would leave out what was read together with the first line.
        printed = child.stdout.read().split("\n")[:-1]
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        reader = RunReader(path)
        reader.refresh()
        assert reader.problems == []
        count = check(reader, len(places))
        assert len(printed) <= count <= len(printed) + 1
        flushed_steps.append(count)
        if kill % 5 == 0:
            go_on(path, places, count)
    assert max(flushed_steps) > 20
    assert len(set(flushed_steps)) > 5


def go_on(path: Path, places: list[Any], count: int) -> None:
    """Resume the run as the recorder does, and read it."""
    progress = read_progress(path)
    assert progress.last_step in (count - 1, count)
    writer = RunWriter(path)
    append(writer, places, count)
    writer.close()
    compact(path)
    reader = RunReader(path)
    reader.refresh()
    assert reader.problems == []
    assert check(reader, len(places)) == count + 1


@pytest.mark.slow
def test_a_writer_two_readers_and_a_compaction_at_once(tmp_path: Path) -> None:
    child, path = start(tmp_path, 0.002, SECS)
    places = len(SampleRun(tmp_path / "spare", "p", "r", sites=SITES, seed=0).places)
    failures: list[BaseException] = []
    seen: dict[str, list[int]] = {"old": [], "new": []}
    compactions = 0

    def follow() -> None:
        reader = RunReader(path)
        while child.poll() is None:
            reader.refresh()
            seen["old"].append(check(reader, places))
            assert reader.problems == []
        reader.refresh()
        seen["old"].append(check(reader, places))

    def open_anew() -> None:
        while child.poll() is None:
            reader = RunReader(path)
            reader.refresh()
            seen["new"].append(check(reader, places))
            heatmap = reader.heatmap(statistic="mean", columns=10**6)
            assert heatmap.num_rows % reader.rows["sites"] in (0, heatmap.num_rows)

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    printed: list[str] = []

    def listen() -> None:
        assert child.stdout is not None
        printed.extend(child.stdout)  # a full pipe would stop the writer

    works = (follow, open_anew, listen)
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    while child.poll() is None:
        compactions += compact(path).parts
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    child.communicate()
    assert failures == []
    assert compactions > 3
    assert seen["old"] == sorted(seen["old"])
    assert seen["new"] == sorted(seen["new"])
    assert seen["old"][-1] == len(printed) > 20
    compact(path)
    reader = RunReader(path)
    reader.refresh()
    assert check(reader, places) == len(printed)


@pytest.mark.slow
def test_a_step_is_seen_within_half_a_second_of_its_flush(tmp_path: Path) -> None:
    child, path = start(tmp_path, 0.05, 2.0)
    assert child.stdout is not None
    reader = RunReader(path)
    delays = []
    for line in child.stdout:
        flushed_at = time.monotonic()
        reader.refresh()
        assert reader.snapshot.recorded_steps[-1] >= int(line)
        delays.append(time.monotonic() - flushed_at)
    child.communicate()
    assert len(delays) > 5
    assert statistics.median(delays) < 0.5  # one of them alone may be a busy machine's


def test_following_costs_what_is_new(tmp_path: Path) -> None:
    """Not what is there: a look at a long run reads the bytes of its last step alone."""
    sample = SampleRun(tmp_path, "p", "r", sites=SITES, seed=0)
    reader = RunReader(sample.path)
    for step in range(300):
        append(sample.writer, sample.places, step)
    reader.refresh()
    stream = sample.path / "stats" / "0-0000.arrows"
    before = stream.stat().st_size
    follower = reader._followers["stats"]
    (streamed,) = follower._streams.values()
    assert streamed.offset == before
    append(sample.writer, sample.places, 300)
    read_bytes = []
    original = type(streamed)._read
    try:
        type(streamed)._read = lambda self, length: (
            read_bytes.append(length) or original(self, length)
        )  # type: ignore[method-assign,func-returns-value]
        reader.refresh()
    finally:
        type(streamed)._read = original  # type: ignore[method-assign]
    assert sum(read_bytes) < 40_000 < before
    assert check(reader, len(sample.places)) == 301
    sample.end(None)
