"""Damage is named, and never becomes a number; what is not damaged is shown."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sample_runs import SampleRun, write_sample_run

from backlight.errors import BacklightError
from backlight.schema import SCALARS, TABLES
from backlight.store import merge, messages, part_writer
from backlight.store.compact import compact
from backlight.store.follow import TableFollower
from backlight.store.reader import RunReader
from backlight.store.runs import find_runs, read_info
from backlight.store.stream_follower import StreamFollower
from backlight.store.summary import describe

FLIPS = 1000


def rows_of(path: Path, table: str) -> tuple[list[str], list[str]]:
    """Every row that a reader shows, as text, and what it says is wrong."""
    follower = TableFollower(path / table, TABLES[table])
    rows = [repr(row) for each in follower.take() for row in each.batch.to_pylist()]
    return sorted(rows), [*follower.problems, *follower.torn]


def flip(file: Path, bit: int) -> None:
    with file.open("r+b", buffering=0) as handle:
        handle.seek(bit // 8)
        byte = handle.read(1)[0]
        handle.seek(bit // 8)
        handle.write(bytes([byte ^ (1 << bit % 8)]))


@pytest.fixture
def run(root: Path) -> Path:
    sample = SampleRun(root, "p", "r", sites=3, seed=0)
    for step in range(4):
        sample.append_step(step)
    sample.append_note(0, "a note")
    sample.end("finished")
    return sample.path


@pytest.fixture
def compacted(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(part_writer, "GROUP_ROWS", 8)
    monkeypatch.setattr(merge, "_CHUNK_ROWS", 10)
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 1)
    compact(run)
    return run


def check_flips(path: Path, files: list[Path], flips: int) -> tuple[int, int]:
    """Flip bits one by one; how many were noticed, and in how many cases rows were saved."""
    whole = {table: rows_of(path, table)[0] for table in TABLES}
    generator = random.Random(0)
    noticed = saved = 0
    for _ in range(flips):
        file = generator.choice(files)
        bit = generator.randrange(file.stat().st_size * 8)
        table = file.parent.name if file.parent.name in TABLES else file.name.split("-")[0]
        flip(file, bit)
        rows, problems = rows_of(path, table)
        for row in rows:
            assert row in whole[table], f"bit {bit} of {file.name} made up {row}"
        assert problems or rows == whole[table], f"bit {bit} of {file.name} lost rows silently"
        assert len(rows) <= len(whole[table])
        assert all("\n" not in problem and problem.endswith(".") for problem in problems)
        noticed += bool(problems)
        saved += bool(rows) and len(rows) < len(whole[table])
        flip(file, bit)
    for table in TABLES:
        assert rows_of(path, table) == (whole[table], [])
    return noticed, saved


def test_a_flipped_bit_of_a_stream_is_never_a_number(run: Path) -> None:
    noticed, saved = check_flips(run, sorted(run.glob("*/*.arrows")), FLIPS)
    assert noticed > 0.99 * FLIPS
    assert saved > 0.2 * FLIPS  # what is before the damage, and what is behind it


def test_a_flipped_bit_of_a_part_is_never_a_number(compacted: Path) -> None:
    parts = [file for table in TABLES for file in (compacted / table).glob("*.parquet")]
    noticed, saved = check_flips(compacted, [*parts, *(compacted / "parts").iterdir()], FLIPS)
    # Between the columns of a Parquet file there are a few bytes that nobody reads.
    assert noticed > 0.9 * FLIPS
    assert saved > 0.02 * FLIPS


def test_every_question_survives_a_flipped_bit(compacted: Path) -> None:
    whole = RunReader(compacted)
    whole.refresh()
    cells = {tuple(row.items()) for row in whole.heatmap(statistic="mean").to_pylist()}
    at_two = {repr(row) for row in whole.step(2).to_pylist()}
    files = [*compacted.glob("stats/*.parquet"), *compacted.glob("by_step/*.parquet")]
    generator = random.Random(1)
    for _ in range(60):
        file = generator.choice(files)
        bit = generator.randrange(file.stat().st_size * 8)
        flip(file, bit)
        reader = RunReader(compacted)
        reader.refresh()
        for site in range(3):
            assert reader.history(site).num_rows == 4 or reader.problems
            assert reader.sketches(site).num_rows == 4 or reader.problems
        step = {repr(row) for row in reader.step(2).to_pylist()}
        found = {tuple(row.items()) for row in reader.heatmap(statistic="mean").to_pylist()}
        assert step <= at_two
        assert found <= cells
        assert (step == at_two and found == cells) or reader.problems
        flip(file, bit)


def test_a_flipped_bit_of_run_json_is_named(run: Path) -> None:
    file = run / "run.json"
    generator = random.Random(0)
    for _ in range(300):
        bit = generator.randrange(file.stat().st_size * 8)
        flip(file, bit)
        try:
            reader = RunReader(run)
        except BacklightError as error:
            assert str(file) in str(error)  # noqa: PT017
        else:
            assert any("run.json" in problem for problem in reader.problems), bit
        flip(file, bit)
    assert RunReader(run).problems == []


def test_a_stream_cut_at_any_byte_shows_what_was_flushed(run: Path, tmp_path: Path) -> None:
    content = (run / "scalars" / "0-0000.arrows").read_bytes()
    whole = StreamFollower(run / "scalars" / "0-0000.arrows", SCALARS).take()[0]
    per_step = whole.num_rows // 4
    ends = []
    for cut in range(len(content)):
        path = tmp_path / "cut.arrows"
        path.write_bytes(content[:cut])
        follower = StreamFollower(path, SCALARS)
        taken = sum(batch.num_rows for batch in follower.take())
        assert follower.problem is None
        assert taken % per_step == 0
        ends.append(taken // per_step)
        if cut % 50 == 0:
            with path.open("ab") as file:
                file.write(content[cut:])
            assert sum(batch.num_rows for batch in follower.take()) == whole.num_rows - taken
    assert ends == sorted(ends)
    assert set(ends) == {0, 1, 2, 3, 4}


def test_batches_that_are_lost_are_counted(run: Path) -> None:
    file = run / "stats" / "0-0000.arrows"
    whole, _ = rows_of(run, "stats")
    content = file.read_bytes()
    second = content.index(b"\xff\xff\xff\xff", content.index(b"\xff\xff\xff\xff", 8) + 8)
    flip(file, (second + 900) * 8)
    rows, problems = rows_of(run, "stats")
    assert len(rows) == len(whole) * 3 // 4
    assert len(problems) == 1
    assert "1 of its batches cannot be read, the others are shown." in problems[0]


def test_a_batch_that_is_there_twice_counts_once(run: Path) -> None:
    file = run / "notes" / "0-0000.arrows"
    content = file.read_bytes().removesuffix(messages.END)
    start = content.index(b"\xff\xff\xff\xff", 8)
    file.write_bytes(content + content[start:])
    rows, problems = rows_of(run, "notes")
    assert len(rows) == 1
    assert len(problems) == 1


def test_a_damaged_by_step_file_only_makes_it_slower(compacted: Path) -> None:
    whole = RunReader(compacted)
    whole.refresh()
    (file,) = (compacted / "by_step").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    reader = RunReader(compacted)
    reader.refresh()
    assert reader.step(2).to_pylist() == whole.step(2).to_pylist()
    assert len(reader.problems) == 1
    assert reader.heatmap().to_pylist() == whole.heatmap().to_pylist()


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "a\nb",
    "\u202egnp.exe",
    "x" * 10_000,
    "🙈" * 500,
    "<script>alert(1)</script>",
    "'; DROP TABLE stats; --",
    "\x00\x1b[31m",
    "",
]


def test_hostile_names_are_only_names(root: Path) -> None:
    import backlight

    sample = SampleRun(root, "p", "r", sites=0, seed=0)
    kinds = {"tensor_class": "tensor", "module": "", "module_class": "", "place": "x", "call": 1}
    rest = {**kinds, "node": "", "role": "", "kind": "", "aliases": [], "first_step": 0}
    rows = [{"site": i, "name": name, **rest} for i, name in enumerate(HOSTILE)]
    sample.writer.append_rows("sites", rows)
    logged = [{"step": 0, "name": n, "value": 1.0, "logged_at": 0.0} for n in HOSTILE]
    sample.writer.append_rows("scalars", logged)
    sample.append_note(0, "\n".join(HOSTILE))
    sample.end("finished")
    before = sorted(path.name for path in root.rglob("*"))
    reader = RunReader(sample.path)
    reader.refresh()
    assert sorted(reader.sites()["name"].to_pylist()) == sorted(HOSTILE)
    assert reader.scalar_names() == sorted(HOSTILE)
    compact(sample.path)
    opened = backlight.open(sample.path)
    assert sorted(opened.sites()["name"].tolist()) == sorted(HOSTILE)
    assert len(opened.stats(name="^/etc")) == 0
    assert sorted(opened.scalars()["name"].tolist()) == sorted(HOSTILE)
    assert {p.name for p in root.rglob("*")} - set(before) < {
        "parts", ".compacting",
        *(f"{t}-0-0000-0000.json" for t in TABLES), "0-0000-0000.parquet",
    }  # fmt: skip


def test_links_out_of_the_folder_are_not_followed(root: Path, tmp_path: Path) -> None:
    other = write_sample_run(tmp_path / "elsewhere", steps=5, sites=3)
    path = write_sample_run(root, steps=2, sites=3)
    (path / "stats" / "0-0001.arrows").symlink_to(other / "stats" / "0-0000.arrows")
    compact(other)
    (path / "stats" / "0-0005-0005.parquet").symlink_to(next((other / "stats").glob("*.parquet")))
    shutil.copy(next((other / "parts").glob("stats-*")), tmp_path / "manifest.json")
    (path / "parts").mkdir()
    (path / "parts" / "stats-0-0005-0005.json").symlink_to(tmp_path / "manifest.json")
    reader = RunReader(path)
    reader.refresh()
    assert set(reader.snapshot.recorded_steps.tolist()) == {0, 1}


def test_a_run_json_of_a_gigabyte_is_refused_at_once(root: Path) -> None:
    path = write_sample_run(root, steps=1, sites=1)
    os.truncate(path / "run.json", 1 << 30)
    with pytest.raises(BacklightError, match="too large"):
        read_info(path)
    assert [run.name for run in find_runs(root)] == ["sample"]


def test_a_run_json_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(BacklightError, match="is no file"):
        read_info(tmp_path)


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_a_claim_of_a_billion_rows_is_refused(run: Path) -> None:
    notes = pa.record_batch({"step": [1], "text": ["x"], "written_at": [0.0]})
    content = bytearray(stream_of(notes))
    length = (1).to_bytes(8, "little")
    claimed = 0
    for position in range(0, len(content) - 8, 8):
        if content[position : position + 8] == length:
            changed = bytearray(content)
            changed[position : position + 8] = (10**9).to_bytes(8, "little")
            (run / "notes" / "0-0007.arrows").write_bytes(changed)
            rows, _ = rows_of(run, "notes")
            assert len(rows) <= 2
            claimed += 1
    assert claimed > 2


@pytest.mark.parametrize(
    "columns",
    [
        {"step": ["one"], "text": ["x"], "written_at": [0.0]},
        {"step": [[1]], "text": ["x"], "written_at": [0.0]},
        {"step": [1.5], "text": ["x"], "written_at": [0.0]},
        {"step": [None], "text": ["x"], "written_at": [0.0]},
        {"text": ["x"], "written_at": [0.0]},
    ],
    ids=["text", "list", "fraction", "null", "missing"],
)
def test_wrong_types_are_named(run: Path, columns: dict[str, Any]) -> None:
    (run / "notes" / "0-0007.arrows").write_bytes(stream_of(pa.record_batch(columns)))
    rows, problems = rows_of(run, "notes")
    assert len(rows) == 1
    assert len(problems) == 1
    assert "'step'" in problems[0]


def test_a_manifest_of_somebody_elses_making_leads_nowhere(compacted: Path) -> None:
    (manifest,) = compacted.glob("parts/stats-*.json")
    part = messages_part(manifest)
    for files in (
        {"../../../etc.4": part["files"]["rows"]},
        {"rows": {**part["files"]["rows"], "rows": [10**12]}},
        {"rows": []},
        {"rows": {}},
        [],
    ):
        from backlight.store.manifest import manifest_text

        manifest.write_text(manifest_text({**part, "files": files}))
        reader = RunReader(compacted)
        reader.refresh()
        reader.history(0)
        reader.heatmap()
        describe(find_runs(compacted)[0], reader)
        assert reader.problems


def messages_part(manifest: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(manifest.read_text())["part"]
    return content


def test_without_a_manifest_a_part_is_named_and_not_shown(compacted: Path) -> None:
    (manifest,) = compacted.glob("parts/stats-*.json")
    manifest.unlink()
    reader = RunReader(compacted)
    reader.refresh()
    assert reader.rows["stats"] == 0
    assert any("backlight repair" in problem for problem in reader.problems)
    assert np.isfinite(reader.summary()["loss"])


def test_steps_whose_statistics_are_lost_are_empty_columns(root: Path) -> None:
    sample = SampleRun(root, "p", "r", sites=3, seed=0)
    for step in range(9):
        sample.append_step(step)
    sample.end("finished")
    whole = RunReader(sample.path)
    whole.refresh()
    columns = whole.heatmap().schema.metadata[b"columns"]
    recorded = whole.snapshot.recorded_steps.tolist()
    stats = sample.path / "stats" / "0-0000.arrows"
    content = bytearray(stats.read_bytes())
    start = len(content) // 3
    content[start : start + len(content) // 3] = b"x" * (len(content) // 3)
    stats.write_bytes(content)
    reader = RunReader(sample.path)
    reader.refresh()
    readable = reader.snapshot.recorded_steps.tolist()
    assert 0 < len(readable) < len(recorded)
    table = reader.heatmap()
    assert table.schema.metadata[b"columns"] == columns
    assert sorted(set(table["column"].to_pylist())) == [recorded.index(step) for step in readable]


@pytest.mark.parametrize("table", ["steps", "stats"])
def test_a_stream_of_an_ended_run_that_is_empty_is_named(run: Path, table: str) -> None:
    stream = run / table / "0-0000.arrows"
    stream.write_bytes(b"")
    reader = RunReader(run)
    reader.refresh()
    assert reader.problems == [f"{str(stream)!r} is empty: what was written to it is lost."]
