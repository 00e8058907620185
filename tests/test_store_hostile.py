"""A run that somebody made to do harm is refused or shown harmlessly."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from sample_runs import SampleRun, stats_batch, write_sample_run

import backlight
from backlight.errors import BacklightError
from backlight.schema import SITES, STATS
from backlight.serve.library import Library
from backlight.store import compact as compact_module
from backlight.store import streams
from backlight.store.compact import compact
from backlight.store.graphs import read_graph
from backlight.store.manifest import manifest_text
from backlight.store.prune import plan, prune
from backlight.store.reader import RunReader
from backlight.store.repair import repair
from backlight.store.usage import measure
from backlight.store.values import KeptValues, StepValues, read_values, values_path, write_values


def ask_everything(path: Path) -> list[str]:
    """Ask all that a page and a notebook ask; what could not be read."""
    reader = RunReader(path)
    reader.refresh()
    reader.sites(), reader.steps(), reader.scalars(), reader.notes(), reader.step(2)
    for quantity in ("value", "grad"):
        reader.heatmap(quantity=quantity)
        reader.heatmap(quantity=quantity, first=2, last=3, sites=[0])
        reader.history(0, quantity=quantity, points=2)
        reader.sketches(0, quantity=quantity)
    opened = backlight.open(path)
    opened.stats().rows(), opened.sketches().merged(), opened.sketches().by("step")
    opened.values(), opened.events().rows(), opened.samples().rows(), repr(opened)
    measure(path)
    library = Library(path.parent.parent)
    told = library.state(library.find(f"{path.parent.name}/{path.name}"))
    json.dumps(told, allow_nan=False).encode()
    reader.quantities()
    return reader.problems


@pytest.fixture
def compacted(root: Path) -> Path:
    path = write_sample_run(root, steps=5, sites=4)
    compact(path)
    return path


def change(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def make(part: dict[str, Any]) -> None:
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = to

    return make


LIES = {
    "a trillion steps": change("steps", to=[[0, 10**12, 1]]),
    "a billion steps": change("steps", to=[[0, 10**9, 1]]),
    "fewer than none": change("steps", to=[[0, -5, 1]]),
    "backwards": change("steps", to=[[5, 3, -1]]),
    "beyond": change("steps", to=[[2**63 - 2, 5, 2**62]]),
    "many rows": change("rows", to=10**15),
    "few rows": change("rows", to=-1),
    "words in words": change("quantities", to=[["value"]]),
    "no words": change("quantities", to=None),
    "no levels": change("levels", to=None),
    "keys without groups": change("files", "rows", "low", to=[]),
    "footer beyond": change("files", "rows", "footer", to=2**62),
    "footer before": change("files", "rows", "footer", to=-5),
    "a large group": change("files", "rows", "rows", to=[2**40]),
    "no file": change("files", to={}),
    "no files": change("files", to=7),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_manifest_that_lies_costs_nothing(compacted: Path, lie: Any) -> None:
    (manifest,) = compacted.glob("parts/stats-*.json")
    part = json.loads(manifest.read_text())["part"]
    lie(part)
    manifest.write_text(manifest_text(part))
    assert len(ask_everything(compacted)) == 1
    assert len(repair(compacted)) == 1  # it can be made anew
    assert ask_everything(compacted) == []


def test_a_manifest_of_many_brackets_is_only_damaged(compacted: Path) -> None:
    (manifest,) = compacted.glob("parts/notes-*.json")
    deep = "[" * 100_000 + "]" * 100_000
    manifest.write_text(f'{{"crc32":{crc32(deep.encode())},"part":{deep}}}\n')
    assert len(ask_everything(compacted)) == 1


def test_a_part_that_is_gone_is_named(compacted: Path) -> None:
    (part,) = compacted.glob("stats/*.parquet")
    part.unlink()
    (problem,) = ask_everything(compacted)
    assert "is missing: its rows are lost" in problem
    assert len(repair(compacted)) == 1
    assert ask_everything(compacted) == []


@pytest.mark.parametrize("name", ["stats", "parts", ".compacting"])
def test_nothing_is_written_through_a_link(root: Path, tmp_path: Path, name: str) -> None:
    path = write_sample_run(root, steps=3, sites=3)
    other = write_sample_run(tmp_path / "elsewhere", steps=9, sites=3)
    target = tmp_path / "precious" if name == ".compacting" else other / name
    target.write_text("precious") if name == ".compacting" else target.mkdir(exist_ok=True)
    files = [target, *(tmp_path / "elsewhere").rglob("*")]
    before = {f: f.read_bytes() for f in files if f.is_file()}
    shutil.rmtree(path / name, ignore_errors=True)
    (path / name).symlink_to(target)
    for work in (compact, repair, lambda run: prune(plan(run, 2))):
        with pytest.raises(BacklightError, match="is a link"):
            work(path)
    problems = ask_everything(path)
    assert len(problems) == (name == "stats")
    assert set(backlight.open(path).stats()["step"].tolist()) <= {0, 1, 2}
    assert {f: f.read_bytes() for f in before} == before


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path) -> None:
    target = path.parent.parent.parent / path.name
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("make", [pipe, link])
@pytest.mark.parametrize("name", ["run.json", "parts/stats-0-0000-0000.json", "graphs/abc1.json"])
def test_what_is_no_file_is_not_waited_for(compacted: Path, name: str, make: Any) -> None:
    (compacted / "graphs").mkdir()
    (compacted / "graphs" / "abc1.json").write_text('{"nodes": [], "edges": {}}\n')
    make(compacted / name)
    if name.startswith("parts"):
        assert "it is" in ask_everything(compacted)[0]
        return
    with pytest.raises(BacklightError, match=r"it is (a link|no file)|No such device"):
        read_graph(compacted, "abc1")
        RunReader(compacted)


def written(path: Path, table: str, batch: pa.RecordBatch, **options: Any) -> int:
    """A stream of somebody else's making, and how many bytes it has."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)
    (path / table / "0-0007.arrows").write_bytes(sink.getvalue().to_pybytes())
    return int(sink.getvalue().size)


def test_few_bytes_do_not_become_many_rows(root: Path) -> None:
    path = write_sample_run(root, steps=3, sites=3)
    zeros = np.zeros(10**7, np.int64)
    many = pa.record_batch({"step": zeros, "text": pa.repeat("", 10**7), "written_at": zeros})
    assert written(path, "notes", many, compression="zstd") < 100_000
    (problem,) = ask_everything(path)
    assert "compressed" in problem
    written(path, "notes", pa.record_batch([pa.nulls(10**9)] * 3, ["step", "text", "written_at"]))
    (problem,) = ask_everything(path)
    assert "fewer bytes than rows" in problem
    assert len(backlight.open(path).notes()) == 1  # that of the sample run


IMPOSSIBLE = [
    {"step": -(2**63)},
    {"step": 2**63 - 1},
    {"count": 2**63 - 1},
    {"zeros": -5},
    {"sketch_keys": [1, 2, 3], "sketch_counts": [1]},
]


@pytest.mark.parametrize("numbers", IMPOSSIBLE, ids=str)
def test_numbers_that_cannot_be_are_left_out_and_named(root: Path, numbers: Any) -> None:
    path = write_sample_run(root, steps=3, sites=3)
    places = SampleRun(root, "p", "spare", sites=3, seed=0)
    rows = stats_batch(7, places.places, places.rng, False).to_pylist()
    written(path, "stats", pa.RecordBatch.from_pylist([{**rows[0], **numbers}, *rows], STATS))
    (problem,) = ask_everything(path)
    assert "numbers that cannot be" in problem
    found = backlight.open(path).stats(steps=7)
    assert len(found) == len(rows)
    assert set(backlight.open(path).stats()["step"].tolist()) == {0, 1, 2, 7}


def test_a_site_of_no_number_harms_no_other(root: Path) -> None:
    path = write_sample_run(root, steps=3, sites=3)
    before = backlight.open(path).stats().rows()
    site = backlight.open(path).sites().arrow().select(SITES.names).to_pylist()[0]
    sites = [{**site, "site": -5, "name": "below"}, {**site, "site": 2**31 - 1, "name": "above"}]
    deep = {**site, "site": 77, "name": "deep", "module": ".".join("a" * 50_000)}
    written(path, "sites", pa.RecordBatch.from_pylist([*sites, deep], SITES))
    rows = pa.ipc.open_stream(path / "stats" / "0-0000.arrows").read_next_batch().to_pylist()
    more = [{**rows[0], "site": number} for number in (-5, 2**31 - 1)]
    written(path, "stats", pa.RecordBatch.from_pylist(more, STATS))
    for _ in range(2):
        assert ask_everything(path) == []
        found = backlight.open(path).stats().rows()
        assert [row for row in found if row["name"] != "above"] == before
        compact(path)


ODD = {
    "not a number": lambda told: json.dumps({**told, "config": {"a": float("nan")}}),
    "beyond": lambda told: json.dumps({**told, "config": {"a": 7}}).replace("7}", "1e400}"),
    "half a character": lambda told: json.dumps({**told, "config": {"\udfff": "\ud800"}}),
    "deep": lambda told: json.dumps({**told, "config": {"a": "x"}}).replace(
        '"x"', "[" * 800 + "]" * 800
    ),
    "twice": lambda told: json.dumps(told)[:-1] + ',"pid": 1}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_run_json_is_shown_harmlessly(compacted: Path, odd: Any) -> None:
    file = compacted / "run.json"
    file.write_text(odd(json.loads(file.read_text())))
    (problem,) = ask_everything(compacted)
    assert "run.json" in problem
    json.dumps(RunReader(compacted).info.config, allow_nan=False, ensure_ascii=False).encode()


def kept() -> StepValues:
    entry = KeptValues(
        site=1, quantity="value", backward="", iteration=0, dtype="float32", shape=(4, 3),
        batch_dim=0, samples=(0, 2), data_indices=(5, None), neurons=3, neuron_step=1,
        array=np.arange(6, dtype=np.float32).reshape(2, 3),
    )  # fmt: skip
    return StepValues((entry,))


def flips(path: Path, count: int, read: Callable[[], str]) -> None:
    """Flip bits one by one: what is read is what was written, or one sentence."""
    whole, content = read(), path.read_bytes()
    generator = random.Random(0)
    noticed = 0
    for _ in range(count):
        bit = generator.randrange(len(content) * 8)
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert read() == whole, bit
        except BacklightError as error:
            noticed += "\n" not in str(error)
    assert noticed > 0.95 * count
    path.write_bytes(content)
    assert read() == whole


def test_a_flipped_bit_of_raw_values_is_never_a_number(tmp_path: Path) -> None:
    write_values(tmp_path, 0, 3, kept())
    file = values_path(tmp_path, 0, 3)
    flips(file, 1000, lambda: repr([(e, e.array.tolist()) for e in read_values(file)]))


def test_a_flipped_bit_of_a_graph_is_never_an_edge(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=1, seed=0)
    run.writer.write_graph("abc1", {"nodes": [[0, "x"], [1, "y"]], "edges": {"0": [1]}})
    run.end("finished")
    file = run.path / "graphs" / "abc1.json"
    flips(file, 500, lambda: repr(read_graph(run.path, "abc1")))


def test_a_run_json_that_is_broken_is_made_anew(compacted: Path) -> None:
    file = compacted / "run.json"
    content = file.read_text()
    whole, told = backlight.open(compacted), json.loads(content)
    rows = whole.stats().rows()
    assert told["config"]
    for damaged in (content.replace('"config"', '"config', 1), content.replace("{", "(", 1), ""):
        file.write_text(damaged)
        with pytest.raises(BacklightError, match=r"`backlight repair`"):
            backlight.open(compacted)
        assert "run.json was damaged" in repair(compacted)[0]
        opened = backlight.open(compacted)
        assert (opened.problems, opened.name) == ([], compacted.name)
        assert opened.stats().rows() == rows
        assert (compacted / "damaged" / "run.json").read_text() == damaged
        assert repair(compacted) == []
        if "modules" in damaged:
            assert opened.info.modules == whole.info.modules
            assert opened.info.ended == whole.info.ended


def test_a_newer_run_is_not_made_anew(compacted: Path) -> None:
    file = compacted / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": [9, 0]}))
    before = file.read_bytes()
    with pytest.raises(BacklightError, match="install a newer Backlight"):
        repair(compacted)
    assert file.read_bytes() == before


def test_a_part_of_which_nothing_is_left_is_a_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 60_000)
    monkeypatch.setattr(compact_module, "_BATCH_BYTES", 10)
    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "_merge_parts", lambda *_, **__: None)
        path = write_sample_run(root, steps=60, sites=6)
        compact(path)
        assert len(list(path.glob("stats/*.parquet"))) > 4
        said = plan(path, 1000)
        prune(said)
        assert ask_everything(path) == []
    compact(path)
    assert ask_everything(path) == []
    assert set(backlight.open(path).stats()["step"].tolist()) == set(said.kept.tolist())


def test_a_stream_of_which_nothing_can_be_saved_is_repaired(root: Path) -> None:
    path = write_sample_run(root, steps=1, sites=3)
    stream = path / "stats" / "0-0000.arrows"
    content = bytearray(stream.read_bytes())
    content[-200] ^= 4
    stream.write_bytes(content)
    (said,) = repair(path)
    assert "0 rows were saved" in said
    assert ask_everything(path) == []
