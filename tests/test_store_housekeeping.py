"""The commands that look after runs on disk say what they do, and do it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_runs import SampleRun, write_sample_run
from torch import nn

import backlight
from backlight.errors import BacklightError
from backlight.store.prune import plan, prune
from backlight.store.reader import RunReader
from backlight.store.repair import repair
from backlight.store.usage import KINDS, measure
from backlight.store.values import KeptValues, StepValues


def command(*words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backlight", *words], capture_output=True, text=True, input=answer
    )


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


@pytest.mark.parametrize("name", ["compact", "du", "prune", "repair"])
def test_help_has_examples(name: str) -> None:
    done = command(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Examples:" in done.stdout


@pytest.mark.parametrize("name", ["compact", "du", "repair"])
def test_a_folder_without_runs_is_one_sentence(tmp_path: Path, name: str) -> None:
    for where in (tmp_path, tmp_path / "nowhere"):
        done = command(name, str(where))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("backlight: There ")
        assert done.stderr.count("\n") == 1


def test_compact_and_du_say_what_became_of_a_run(root: Path) -> None:
    path = write_sample_run(root, steps=60, sites=20)
    before = measure(path)
    done = command("compact", str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("demo/sample: ") and " became " in done.stdout
    assert list(path.glob("*/*.arrows")) == []
    (row,) = json.loads(command("du", str(root), "--json").stdout)["runs"]
    assert row["observations"] == before.observations == read(path).rows["stats"]
    assert row["streams"] == 0
    assert row["bytes_per_observation"] < 400 < (before.bytes_per_observation or 0)
    assert row["total_bytes"] == sum(row[kind] for kind in KINDS)
    assert row["total_bytes"] == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    table = command("du", str(root)).stdout
    assert "demo/sample" in table and "statistics" in table


def test_prune_keeps_ends_and_what_happened(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=6, seed=0)
    kept = KeptValues(
        site=0, quantity="value", backward="", iteration=0, dtype="float32", shape=(1, 1),
        batch_dim=0, samples=(0,), data_indices=(None,), neurons=1, neuron_step=1,
        array=np.zeros((1, 1), np.float32),
    )  # fmt: skip
    for step in range(50):
        run.append_step(step)
        run.writer.write_values(step, StepValues((kept,)))
    run.append_note(13, "look here")
    event = {"step": 27, "kind": "spike", "site": 1, "text": "high", "happened_at": 0.0}
    run.writer.append_rows("events", [event])
    run.end("finished")
    flows = run.path / "flows"
    flows.mkdir()
    for step in (5, 10):
        (flows / f"0-{step}.safetensors").touch()
    before = backlight.open(run.path)
    histories = {row["step"]: row for row in before.stats("embed:out", quantity="value")}
    said = plan(run.path, 10)
    assert said.kept.tolist() == [0, 10, 13, 20, 27, 30, 40, 49]
    assert "42 of 50 recorded steps go" in str(said) and "flows of 1 steps" in str(said)
    assert len(read(run.path).snapshot.recorded_steps) == 50  # nothing was done yet
    assert prune(said) > 0
    after = backlight.open(run.path)
    rows = after.stats("embed:out", quantity="value").rows()
    assert rows == [histories[step] for step in said.kept.tolist()]
    assert len(after.scalars()) == len(before.scalars())
    assert len(after.steps()) == 50
    assert len(after.notes()) == len(after.events()) == 1
    assert {step for _, step, _ in after.values()} == set(said.kept.tolist())
    assert [file.name for file in flows.iterdir()] == ["0-10.safetensors"]
    assert after.problems == []
    assert prune(plan(run.path, 10**6)) > 0
    assert set(backlight.open(run.path).stats()["step"]) == {0, 13, 27, 49}


def test_prune_keeps_what_findings_are_about(root: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with backlight.watch(model, optimizer, root=root, project="p", name="r", every=1) as run:
        for step in range(200):
            if step == 63:
                torch.nn.init.constant_(model[2].bias, -100.0)  # from here on all units are dead
            optimizer.zero_grad()
            (model(torch.randn(64, 4)) - 1).square().mean().backward()
            optimizer.step()
    before = backlight.diagnose(run.path)[0]
    assert (before.fault, before.step) == ("dead_units", 63)
    done = command("prune", str(run.path), "--every", "150", "--yes")
    assert done.returncode == 0, done.stderr
    left = set(backlight.open(run.path).stats()["step"].tolist())
    assert {before.step, *(s for each in before.evidence for s in each.steps)} <= left
    assert len(left) < 150
    after = backlight.diagnose(run.path)[0]
    assert (after.fault, after.where, after.step) == (before.fault, before.where, before.step)


def test_prune_asks_first(root: Path) -> None:
    path = write_sample_run(root, steps=30, sites=4)
    done = command("prune", str(path), "--every", "10", answer="n\n")
    assert "recorded steps go" in done.stdout and "Nothing was forgotten." in done.stdout
    assert len(read(path).snapshot.recorded_steps) == 30
    done = command("prune", str(path), "--every", "10", "--yes")
    assert "were freed" in done.stdout
    assert read(path).snapshot.recorded_steps.tolist() == [0, 10, 20, 29]


def test_a_run_that_is_written_is_left_alone(root: Path) -> None:
    path = write_sample_run(root, steps=3, sites=3, end=None)
    with pytest.raises(BacklightError, match="still being written"):
        plan(path, 2)
    with pytest.raises(BacklightError, match="still being written"):
        repair(path)


@pytest.mark.parametrize("what", ["stream", "part", "manifest", "by_step"])
def test_repair_saves_what_can_be_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from backlight.store import merge, part_writer
    from backlight.store.compact import compact

    monkeypatch.setattr(part_writer, "GROUP_ROWS", 50)
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 100)
    path = write_sample_run(root, steps=40, sites=6)
    whole = read(path).rows["stats"]
    if what != "stream":
        compact(path)
    patterns = {"stream": "stats/*.arrows", "part": "stats/*.parquet", "by_step": "by_step/*"}
    (file,) = path.glob(patterns.get(what, "parts/stats-*.json"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    damaged = read(path)
    damaged.history(0)
    damaged.step(3)
    shown = damaged.rows["stats"]
    (said,) = repair(path)
    assert "rows were saved" in said
    repaired = read(path)
    total = repaired.snapshot.all_rows("stats", ["step"]).num_rows
    assert repaired.rows["stats"] == total
    assert repaired.step(3).num_rows > 0
    assert repaired.problems == []
    assert len(list((path / "damaged" / "stats").iterdir())) == 1
    if what in ("manifest", "by_step"):
        assert total == whole
    else:
        assert whole * 0.7 < total < whole
    assert total >= shown or what == "part"
    assert repair(path) == []
    assert command("repair", str(path)).stdout == "demo/sample: nothing is damaged.\n"
