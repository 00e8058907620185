"""A viewer opens the newest run before anybody asks: sooner, and in nothing else different."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import environment
from sample_runs import write_sample_run

from backlight.serve.library import Library
from backlight.store.compact import compact
from backlight.store.reader import RunReader


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What any thread raised."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: found.append(str(raised.exc_value)))
    yield found
    assert found == []


def finish_threads(before: set[threading.Thread]) -> None:
    """Wait for what was begun in the background, all of which may be left behind."""
    for _ in range(2):  # one of them begins another
        for thread in set(threading.enumerate()) - before:
            assert thread.daemon
            thread.join(timeout=30)


def warmed(root: Path) -> Library:
    before = set(threading.enumerate())
    library = Library(root)
    library.warm_up()
    finish_threads(before)
    return library


@pytest.mark.usefixtures("failures")
def test_the_newest_run_is_open_and_answers_the_same(root: Path) -> None:
    old = write_sample_run(root, name="old", steps=5, sites=4)
    new = write_sample_run(root, name="new", steps=40, sites=4)
    os.utime(old / "run.json", (1, 1))
    compact(new)
    library = warmed(root)
    assert [path.name for path in library._open] == ["new"]
    (part,) = library._open[new].snapshot.parts["stats"]
    assert part._open.keys() == part._files.keys()  # so that nobody waits for it
    reader = library.reader(library.find("demo/new"))
    plain = RunReader(new)
    plain.refresh()
    assert reader.heatmap().equals(plain.heatmap())
    assert reader.history(1).equals(plain.history(1))
    assert reader.sketches(1).equals(plain.sketches(1))
    assert reader.problems == plain.problems == []


@pytest.mark.usefixtures("failures")
@pytest.mark.parametrize("damage", ["run.json", "manifest", "rows", "by nobody"])
def test_damage_is_for_who_asks(root: Path, damage: str) -> None:
    path = write_sample_run(root, name="run", steps=40, sites=4)
    compact(path)
    (manifest,) = (path / "parts").glob("stats-*.json")
    (rows,) = (path / "stats").glob("*.parquet")
    broken = {"run.json": path / "run.json", "manifest": manifest, "rows": rows}.get(damage)
    if broken is not None:
        broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    library = warmed(root)
    summaries, problems = library.summaries()
    assert len(summaries) + len(problems) == 1
    if damage != "run.json":
        reader = library.reader(library.find("demo/run"))
        assert bool(reader.problems) == (broken is not None)


@pytest.mark.usefixtures("failures")
def test_a_folder_without_runs_is_left_alone(tmp_path: Path) -> None:
    assert list(warmed(tmp_path)._open) == []
    assert list(warmed(tmp_path / "nowhere")._open) == []


def test_a_process_that_ends_meanwhile_ends_quietly(root: Path) -> None:
    compact(write_sample_run(root, name="run", steps=40, sites=4))
    script = f"""
from pathlib import Path
from backlight.serve.library import Library
Library(Path({str(root)!r})).warm_up()
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")
