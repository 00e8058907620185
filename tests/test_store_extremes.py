"""Runs at the edge of what is usual: many, wide, empty, oddly named, pruned while they are read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sample_runs import SampleRun, stats_batch, write_sample_run

import backlight
from backlight.errors import BacklightError
from backlight.schema import STATS, TABLES, Site
from backlight.serve.library import Library
from backlight.store.compact import compact
from backlight.store.prune import plan, prune
from backlight.store.ranks import SiteNumbers
from backlight.store.reader import RunReader
from backlight.store.runs import find_runs


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backlight", *words], capture_output=True, text=True
    )


def test_what_is_pruned_while_it_is_read_goes_from_the_reader_too(root: Path) -> None:
    path = write_sample_run(root, steps=60, sites=6)
    reader = read(path)
    before = reader.heatmap().num_rows
    said = plan(path, 10)
    reader.refresh()
    assert reader.heatmap().num_rows == before
    prune(said)
    assert reader.heatmap().num_rows == before  # its files are still open
    assert reader.refresh()
    fresh = read(path)
    assert reader.snapshot.recorded_steps.tolist() == said.kept.tolist()
    assert reader.heatmap().to_pylist() == fresh.heatmap().to_pylist()
    assert reader.history(1).to_pylist() == fresh.history(1).to_pylist()
    assert reader.rows == fresh.rows
    assert reader.problems == []


def test_a_damaged_part_is_not_pruned(root: Path) -> None:
    path = write_sample_run(root, steps=40, sites=4)
    compact(path)
    (part,) = (path / "stats").glob("*.parquet")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(BacklightError, match="`backlight repair` it first"):
        prune(plan(path, 10))
    assert part.read_bytes() == bytes(content)


def test_steps_that_somebody_names_are_not_pruned(root: Path) -> None:
    path = write_sample_run(root, steps=50, sites=3)
    assert {0, 10, 17, 33, 49} <= set(plan(path, 10, also=[17, 33, 10**6]).kept.tolist())


def test_a_run_that_fails_keeps_no_other_from_being_looked_after(root: Path) -> None:
    good = write_sample_run(root, name="good", steps=5, sites=3)
    bad = write_sample_run(root, name="bad", steps=5, sites=3)
    (bad / "run.json").write_text('{"format": [9, 0]}')
    for name, more in (("compact", []), ("repair", []), ("prune", ["--every", "2", "--yes"])):
        done = command(name, str(root), *more)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and "newer than" in done.stderr
        assert "demo/good" in done.stdout
    assert list(good.glob("*/*.arrows")) == []


def test_a_run_without_a_step_is_a_run(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=0, seed=0)
    run.end("finished")
    for name, more in (("compact", []), ("du", []), ("repair", []), ("prune", ["--every", "2"])):
        done = command(name, str(run.path), *more, *(["--yes"] if more else []))
        assert (done.returncode, done.stderr) == (0, ""), name
    opened = backlight.open(run.path)
    assert len(opened.stats()) == len(opened.steps()) == len(opened.sketches()) == 0
    assert opened.sketches().merged().count == 0
    assert len(Library(root).summaries()[0]) == 1


def test_a_thousand_runs_are_listed_quickly(root: Path) -> None:
    path = write_sample_run(root, steps=3, sites=2)
    for number in range(1000):
        folder = root / f"p{number % 7}" / f"r{number}"
        folder.mkdir(parents=True)
        for file in (each for each in path.rglob("*") if each.is_file()):
            target = folder / file.relative_to(path)
            target.parent.mkdir(exist_ok=True)
            os.link(file, target)
    library = Library(root)
    started = time.process_time()
    summaries, problems = library.summaries()
    first_secs = time.process_time() - started
    assert (len(summaries), problems) == (1001, [])
    library.summaries()
    again_secs = time.process_time() - started - first_secs
    assert first_secs < 15.0
    assert again_secs < 2.0


SITES = 50_000


def test_fifty_thousand_sites_are_read_in_seconds(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=0, seed=0)
    kinds = (("output", "out.0"), ("parameter", "weight"), ("optimizer", "weight.exp_avg"))
    rows = []
    for number in range(SITES):
        layer, kind = divmod(number, 3)
        module = f"blocks.{layer // 10}.layer{layer % 10}"
        tensor_class, place = kinds[kind]
        site = Site(number, f"{module}:{place}", tensor_class, module, "Linear", place)
        rows.append(asdict(site))
    run.writer.append_rows("sites", rows)
    one = stats_batch(0, SampleRun(root, "p", "s", sites=1, seed=0).places, run.rng, False)
    row = one.to_pylist()[0] | {"sketch_keys": [1], "sketch_counts": [1]}
    observed = [{**row, "site": number, "order": number} for number in range(SITES)]
    run.writer.append("stats", pa.RecordBatch.from_pylist(observed, schema=STATS))
    run.end("finished")
    started = time.process_time()
    reader = read(run.path)
    sites = reader.sites()
    assert sites.num_rows == reader.heatmap().num_rows == reader.step(0).num_rows == SITES
    assert sites["name"][3].as_py() == "blocks.0.layer1:out.0"
    assert reader.history(SITES - 1).num_rows == 1
    assert time.process_time() - started < 15.0


def test_ranks_with_other_numbers_for_many_sites_cost_what_they_are() -> None:
    numbers = SiteNumbers()
    sites = [asdict(Site(i, f"s{i}", "output", "", "", "out.0")) for i in range(20_000)]
    numbers.number(0, pa.RecordBatch.from_pylist(sites, schema=TABLES["sites"]))
    others = [{**site, "name": f"other {site['site']}"} for site in sites]
    started = time.process_time()
    found = numbers.number(1, pa.RecordBatch.from_pylist(others, schema=TABLES["sites"]))
    assert time.process_time() - started < 5.0
    assert found is not None
    assert found["site"].to_pylist() == list(range(20_000, 40_000))
    assert numbers.own(1, {20_000, 0}) == [0]
    assert numbers.number_of(1, 7) == 20_007
    assert numbers.copy().own(0, {3, 9}) == [3, 9]


def test_names_that_only_look_the_same_are_different_runs(root: Path) -> None:
    names = ["Run", "run", "é", unicodedata.normalize("NFD", "é"), "ﬁ", "fi"]
    for steps, name in enumerate(names, start=1):
        write_sample_run(root, project="p", name=name, steps=steps, sites=2)
    found = find_runs(root)
    assert len(found) == len(names)  # a file system that mixes them up gives them numbers
    opened = backlight.open(root / "p")
    assert sorted(len(run.steps()) for run in opened) == list(range(1, len(names) + 1))
    library = Library(root)
    assert {library.find(run.id).path for run in found} == {run.path for run in found}


def test_a_clock_that_goes_backwards_changes_no_order(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=2, seed=0)
    times = {"kind": "train", "recorded": False, "reason": "", "iterations": 1, "graph": ""}
    for step in range(20):
        at = 1e9 - 100.0 * step
        row = {"step": step, **times, "batch_size": None, "started_at": at}
        run.writer.append_rows("steps", [{**row, "duration_secs": 0.1, "recording_secs": 0.0}])
        loss = {"step": step, "name": "loss", "value": float(step), "logged_at": at}
        run.writer.append_rows("scalars", [loss])
    run.info.created_at = time.time() + 10_000
    run.end("finished")
    for _ in range(2):
        reader = read(run.path)
        assert reader.steps()["step"].to_pylist() == list(range(20))
        assert reader.scalars()["value"].to_pylist() == [float(step) for step in range(20)]
        (summary,), _ = Library(root).summaries()
        assert (summary["step"], summary["loss"], summary["age_secs"]) == (19, 19.0, 0.0)
        compact(run.path)


@pytest.fixture
def read_only(root: Path, tmp_path: Path) -> Iterator[Path]:
    """A run on a file system that may not be written to."""
    write_sample_run(root, steps=20, sites=4)
    folder = tmp_path / "read-only"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    for more in (["--bind"], ["-o", "remount,ro,bind"]):
        done = subprocess.run(
            ["mount", *more, str(root), str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield folder / "demo" / "sample"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_run_on_a_read_only_disk_is_shown(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backlight.serve import compactor, library

    monkeypatch.setattr(library, "_COMPACT_FROM_BYTES", 1)
    with pytest.raises(OSError, match="Read-only"):
        (read_only / "new").touch()
    shared = library.Library(read_only.parent.parent)
    (folder,) = find_runs(read_only)
    reader = shared.reader(folder)
    compactor.compact_beside(folder.path)  # as the viewer does in the background
    assert reader.heatmap().num_rows > 0
    assert reader.problems == []
    assert len(backlight.open(read_only).stats()) > 0
    for name, more in (("compact", []), ("repair", []), ("prune", ["--every", "2", "--yes"])):
        done = command(name, str(read_only), *more)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and "Read-only" in done.stderr
    assert command("du", str(read_only)).returncode == 0


def history_of(root: Path, rows: list[dict[str, Any]], points: int) -> pa.Table:
    run = SampleRun(root, "p", "r", sites=1, seed=0)
    base = stats_batch(0, run.places, run.rng, False).to_pylist()[0]
    observed = [{**base, "order": i, **row} for i, row in enumerate(rows)]
    run.writer.append("stats", pa.RecordBatch.from_pylist(observed, schema=STATS))
    run.end("finished")
    return read(run.path).history(0, points=points)


def test_a_thinned_history_keeps_all_iterations_of_a_step(root: Path) -> None:
    rows = [
        {"step": step, "iteration": i, "mean": float(i) + (step % 37) * 0.01}
        for step in range(2000)
        for i in range(4)
    ]
    thin = history_of(root, rows, 400)
    assert 100 < thin.num_rows < 1200
    seen: dict[int, list[int]] = {}
    for step, iteration in zip(*(thin[n].to_pylist() for n in ("step", "iteration")), strict=True):
        seen.setdefault(step, []).append(iteration)
    assert all(iterations == [0, 1, 2, 3] for iterations in seen.values())


def test_a_thinned_history_keeps_gaps_and_every_extreme(root: Path) -> None:
    steps = [*range(1000), *range(5000, 6000), *range(6100, 7000)]
    rows = [{"step": step, "zeros": 0 if step == 5501 else 9, "max": 5.0} for step in steps]
    rows[313]["max"] = 2.0
    rows[777] |= dict.fromkeys(("mean", "std", "min", "max", "abs_max", "rms"))
    thin = history_of(root, rows, 200)
    assert thin.num_rows < 700
    assert {0, 313, 777, 999, 5000, 5501, 5999, 6100, 6999} <= set(thin["step"].to_pylist())


def test_a_thinned_series_keeps_every_gap_that_can_be_seen(root: Path) -> None:
    """However close they are to one another: here five of them are within one bucket."""
    steps = [*range(3000)]
    for number in range(1, 6):
        steps += [3000 + 100_000 * number + i for i in range(3)]
    steps += [steps[-1] + 1 + i for i in range(3000)]
    ends = {s for a, b in pairwise(steps) if b - a > 1 for s in (a, b)}
    assert len(ends) == 10
    thin = history_of(root, [{"step": step, "mean": step % 7.0} for step in steps], 200)
    assert thin.num_rows < 700
    assert ends <= set(thin["step"].to_pylist())
    run = SampleRun(root, "p", "scalars", sites=0, seed=0)
    logged = [{"step": s, "name": "x", "value": s % 7.0, "logged_at": 0.0} for s in steps]
    run.writer.append_rows("scalars", logged)
    run.end("finished")
    scalars = read(run.path).scalars(points=200)
    assert scalars.num_rows < 700
    assert ends <= set(scalars["step"].to_pylist())
