"""Compaction changes where rows are, and nothing that a reader answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from sample_runs import SampleRun, make_sites, write_sample_run

import backlight
from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, TABLES
from backlight.store import compact as compact_module
from backlight.store import heatmap, merge, part_writer, streams, tiles
from backlight.store.compact import compact, only_one
from backlight.store.layout import Source, arrange, list_sources
from backlight.store.reader import RunReader
from backlight.store.resume import read_progress
from backlight.store.writer import RunWriter


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def answers(reader: RunReader) -> dict[str, str]:
    """Everything that a reader can be asked, as text."""
    found: dict[str, Any] = {
        "rows": reader.rows,
        "sites": reader.sites().to_pylist(),
        "steps": reader.steps().to_pylist(),
        "scalars": reader.scalars().to_pylist(),
        "notes": reader.notes().to_pylist(),
        "summary": reader.summary(),
        "quantities": reader.quantities(),
        "problems": reader.problems,
    }
    for quantity in QUANTITIES:
        for statistic in ("abs_max", "mean", "zero_share", "dead_share", "norm", "update_ratio"):
            for columns, first, last in ((7, None, None), (500, 5, 90), (20, 3, 3)):
                table = reader.heatmap(
                    quantity=quantity, statistic=statistic, columns=columns, first=first, last=last
                )
                key = f"heatmap {quantity} {statistic} {columns}"
                found[key] = (table.to_pylist(), table.schema.metadata)
    for site in range(0, 12, 3):
        found[f"history {site}"] = reader.history(site).to_pylist()
        found[f"thin {site}"] = reader.history(site, points=16).to_pylist()
        found[f"sketches {site}"] = reader.sketches(site, columns=9).to_pylist()
    for step in (0, 17, 10**6):
        found[f"step {step}"] = reader.step(step).to_pylist()
    return {key: repr(value) for key, value in found.items()}  # NaN is not even equal to itself


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes at which a small run has many segments, parts, row groups and tiles."""
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 150_000)
    monkeypatch.setattr(part_writer, "GROUP_ROWS", 100)
    monkeypatch.setattr(merge, "_CHUNK_ROWS", 130)
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 200)
    monkeypatch.setattr(merge, "_TILES_FROM_ROWS", 500)
    monkeypatch.setattr(compact_module, "_BATCH_BYTES", 400_000)
    return


@pytest.mark.usefixtures("small")
def test_a_run_answers_the_same_before_and_after(root: Path) -> None:
    path = write_sample_run(root, steps=150, sites=12, with_nan=True)
    assert len(list((path / "stats").glob("*.arrows"))) > 5
    before = answers(read(path))
    done = compact(path)
    assert done.problems == []
    assert list(path.glob("*/*.arrows")) == []
    assert len(list((path / "by_step").iterdir())) >= 1
    assert len(list((path / "tiles").iterdir())) >= 4
    assert answers(read(path)) == before
    again = compact(path)
    assert (again.parts, again.streams) == (0, 0)


@pytest.mark.usefixtures("small")
def test_blocks_of_steps_give_the_same_heatmap(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sample_run(root, steps=300, sites=8, with_nan=True)
    monkeypatch.setattr(heatmap, "_EXACT_ROWS", 10)
    before, asked = read(path), [(7, None, None), (12, 3, 201), (5, 17, 250), (30, 0, 299)]
    compact(path)
    after = read(path)
    levels = {level for part in after.snapshot.parts["stats"] for level in part.levels["value"]}
    assert {4, 16} <= levels
    statistics = ["mean", "abs_max", "dead_share", "zero_share", "inf_share", "batch_std", "norm"]
    shown = [*(("value", name) for name in statistics), ("update", "update_ratio")]
    for quantity, statistic in shown:
        for columns, first, last in asked:
            options: dict[str, Any] = {"quantity": quantity, "statistic": statistic}
            options |= {"columns": columns, "first": first, "last": last}
            expected, found = before.heatmap(**options), after.heatmap(**options)
            assert found.to_pylist() == expected.to_pylist()
            ranges = json.loads(found.schema.metadata[b"columns"])
            assert found.schema.metadata == expected.schema.metadata
            assert columns / 2 <= len(ranges) <= columns
            steps = before.snapshot.recorded_steps
            recorded = [step for step in steps if (first or 0) <= step <= (last or 999)]
            assert (ranges[0][0], ranges[-1][1]) == (recorded[0], recorded[-1])


@pytest.mark.usefixtures("small")
def test_what_earlier_blocks_lack_is_told_from_rows(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sample_run(root, steps=300, sites=8)
    monkeypatch.setattr(heatmap, "_EXACT_ROWS", 10)
    asked: list[dict[str, Any]] = [
        {"statistic": "norm"},
        {"quantity": "update", "statistic": "update_ratio"},
    ]
    before = [read(path).heatmap(columns=7, **each).to_pylist() for each in asked]
    assert all(before)
    earlier = pa.schema([each for each in tiles.TILES if each.name not in ("norm", "update_ratio")])
    with monkeypatch.context() as patched:
        patched.setattr(tiles, "SHOWN", [name for name in tiles.SHOWN if name in earlier.names])
        patched.setattr(tiles, "TILES", earlier)
        patched.setattr(merge, "TILES", earlier)
        compact(path)
    assert [read(path).heatmap(columns=7, **each).to_pylist() for each in asked] == before


@pytest.mark.usefixtures("small")
def test_a_reader_that_is_open_sees_no_difference(root: Path) -> None:
    path = write_sample_run(root, steps=150, sites=12)
    reader = read(path)
    before = answers(reader)
    compact(path)
    assert answers(reader) == before  # it has not looked again
    reader.refresh()
    assert reader.snapshot.held["stats"].num_rows == 0
    assert answers(reader) == before


@pytest.mark.usefixtures("small")
def test_a_live_run_is_compacted_but_for_what_is_written(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=12, seed=0)
    reader = read(run.path)
    for step in range(120):
        run.append_step(step)
        if step % 30 == 29:
            compact(run.path)
            listing = list_sources(run.path / "stats")
            assert listing.parts
            assert len(listing.streams) == 1
            reader.refresh()
            assert reader.rows["stats"] == read(run.path).rows["stats"]
            assert reader.rows["steps"] == step + 1
    before = answers(reader)
    run.end("finished")
    compact(run.path)
    assert answers(read(run.path)) == before
    assert list(run.path.glob("*/*.arrows")) == []
    assert len(list_sources(run.path / "stats").parts) <= 2


@pytest.mark.usefixtures("small")
def test_ranks_are_one_run_after_compaction_too(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=9, seed=0)
    other = RunWriter(run.path, rank=1)
    theirs = [{**asdict(s), "site": 8 - s.site} for s in make_sites(9)]
    theirs.append({**theirs[0], "site": 9, "name": "only here"})
    other.append_rows("sites", theirs)
    for step in range(60):
        run.append_step(step)
        mine = pa.ipc.open_stream(run.path / "stats" / "0-0000.arrows").read_next_batch()
        rows = [{**row, "step": step, "site": 9 - row["site"]} for row in mine.to_pylist()]
        other.append_rows("stats", rows)
    other.close()
    run.end("finished")
    before = answers(read(run.path))
    assert read(run.path).rows["sites"] == 10
    compact(run.path)
    assert {s.rank for s in list_sources(run.path / "stats").parts} == {0, 1}
    assert answers(read(run.path)) == before


@pytest.mark.usefixtures("small")
def test_a_compacted_run_goes_on(root: Path) -> None:
    path = write_sample_run(root, steps=50, sites=12)
    compact(path)
    progress = read_progress(path)
    assert progress.last_step == 49
    assert [site["site"] for site in progress.sites] == list(range(12))
    taken = {source.last for table in TABLES for source in list_sources(path / table).current}
    writer = RunWriter(path)
    assert writer.segment > max(taken)


KILLED = """
import os, signal, sys
from pathlib import Path
from backlight.store import compact, merge, part_writer, streams
merge._CHUNK_ROWS = 130
part_writer.GROUP_ROWS = 100
merge._BY_STEP_FROM_ROWS, merge._TILES_FROM_ROWS = 200, 500
compact._BATCH_BYTES = 400_000
moments = int(sys.argv[2])
def trace(frame, event, argument):
    global moments
    if "/backlight/store/" not in frame.f_code.co_filename:
        return None
    if event == "line":
        moments -= 1
        if moments == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
compact.compact(Path(sys.argv[1]))
sys.settrace(None)
print(int(sys.argv[2]) - moments)
"""


def compact_and_die(path: Path, moments: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(moments)], capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_compaction_that_is_killed_loses_and_doubles_nothing(root: Path, tmp_path: Path) -> None:
    path = write_sample_run(root, steps=60, sites=9)
    before = answers(read(path))
    trial = tmp_path / "trial"
    shutil.copytree(path, trial)
    lines = int(compact_and_die(trial, 10**9).stdout)
    shutil.rmtree(trial)
    deaths = 0
    shutil.copytree(path, trial)
    for number in range(12):
        result = compact_and_die(trial, 1 + lines * (number + 1) // 14)
        deaths += result.returncode == -signal.SIGKILL
        assert answers(read(trial)) == before, number
    assert deaths >= 6
    compact(trial)
    assert answers(read(trial)) == before
    assert [f for f in trial.rglob("*") if ".draft" in f.name] == []
    assert list(trial.glob("*/*.arrows")) == []


@pytest.mark.usefixtures("small")
def test_two_compactions_at_once_are_one(root: Path) -> None:
    path = write_sample_run(root, steps=100, sites=12)
    before = answers(read(path))
    failures: list[BaseException] = []
    refused: list[str] = []

    def go() -> None:
        try:
            compact(path)
        except BacklightError as error:
            refused.append(str(error))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all("being compacted by another" in sentence for sentence in refused)
    assert answers(read(path)) == before


def test_a_stream_that_is_still_open_is_left_alone(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=4, seed=0)
    for step in range(5):
        run.append_step(step)
    run.info.ended = "finished"  # as one rank may say while another still writes
    run.writer.write_info(run.info)
    compact(run.path)
    assert list_sources(run.path / "stats").parts == []
    run.append_step(5)
    assert read(run.path).rows["steps"] == 6
    run.writer.close()
    compact(run.path)
    assert list_sources(run.path / "stats").streams == []
    assert read(run.path).rows["steps"] == 6


@pytest.mark.parametrize("ended", [None, "finished"])
def test_a_torn_tail_is_dropped_where_the_writer_was_killed(root: Path, ended: str | None) -> None:
    run = SampleRun(root, "p", "r", sites=4, seed=0)
    for step in range(20):
        run.append_step(step)
    run.writer.close()
    run.info.ended, run.info.pid = ended, 2**31 - 1
    run.writer.write_info(run.info)
    stream = run.path / "stats" / "0-0000.arrows"
    os.truncate(stream, stream.stat().st_size - 1000)
    before = answers(read(run.path))
    assert len(compact(run.path).problems) == (ended is not None)
    assert stream.exists() == (ended is not None)
    assert answers(read(run.path)) == before
    assert read(run.path).rows["stats"] > 0


def test_a_damaged_stream_is_left_for_repair(root: Path) -> None:
    path = write_sample_run(root, steps=20, sites=4)
    stream = path / "stats" / "0-0000.arrows"
    content = bytearray(stream.read_bytes())
    content[len(content) // 2] ^= 4
    stream.write_bytes(content)
    before = answers(read(path))
    assert len(read(path).problems) == 1
    done = compact(path)
    assert len(done.problems) == 1
    assert stream.exists()
    assert answers(read(path)) == before


def test_what_a_larger_part_holds_counts_no_more() -> None:
    old, new = Source(0, 0, 1, is_part=True), Source(0, 0, 1, is_part=True, generation=1)
    streams_ = [Source(0, number, number) for number in range(4)]
    listing = arrange([*streams_, old, new, Source(1, 0, 0)])
    assert [source.name for source in listing.current] == [
        "0-0000-0001.1.parquet",
        "0-0002.arrows",
        "0-0003.arrows",
        "1-0000.arrows",
    ]


def test_a_folder_that_may_not_be_written_to_is_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sample_run(root, steps=3, sites=4)
    before = answers(read(path))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compact_module, "merge", full)
    with pytest.raises(BacklightError, match=r"No space left.*nothing is lost"):
        compact(path)
    assert answers(read(path)) == before


def test_the_viewer_compacts_a_large_run_that_nobody_compacts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backlight.serve import library
    from backlight.store.runs import find_runs

    path = write_sample_run(root, steps=20, sites=6)
    (folder,) = find_runs(path)
    before = answers(read(path))
    library.Library(root).reader(folder)
    assert list_sources(path / "stats").parts == []  # small runs are left as they are
    monkeypatch.setattr(library, "_COMPACT_FROM_BYTES", 1000)
    shared = library.Library(root)
    others = threading.enumerate()
    shared.reader(folder)
    for thread in set(threading.enumerate()) - set(others):
        thread.join(timeout=30)
    assert list_sources(path / "stats").streams == []
    reader = shared.reader(folder)
    assert reader.snapshot.held["stats"].num_rows == 0
    assert answers(reader) == before


def test_finish_compacts_if_asked(tmp_path: Path) -> None:
    def train(name: str, *, compact: bool) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = backlight.watch(model, optimizer, root=tmp_path, project="p", name=name, every=1)
        for _ in range(5):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        run.finish(compact=compact)
        return run.path

    small, plain = train("small", compact=True), train("plain", compact=False)
    assert list(small.glob("stats/*.parquet")) and not list(small.glob("stats/*.arrows"))
    assert list(plain.glob("stats/*.arrows")) and not list(plain.glob("stats/*.parquet"))
    answers = [backlight.open(path).stats().rows() for path in (small, plain)]
    assert answers[0] == answers[1] != []


def test_what_cannot_be_compacted_is_a_warning(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = backlight.watch(model, optimizer, root=tmp_path, every=1)
    with only_one(run.path), pytest.warns(backlight.BacklightWarning, match="compact"):
        run.finish(compact=True)
    assert backlight.open(run.path).name == run.path.name
