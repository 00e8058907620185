"""What `backlight.open` answers is what was written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from sample_runs import SampleRun, write_sample_run

import backlight
from backlight.errors import BacklightError
from backlight.store.compact import compact
from backlight.store.opened import OpenedProject, OpenedRun
from backlight.store.sketch import Sketch
from backlight.store.values import KeptValues, StepValues


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    run = SampleRun(root, "demo", "sample", sites=20, seed=0)
    for step in range(40):
        run.append_step(step)
    run.append_note(3, "hello")
    event = {"step": 7, "kind": "spike", "site": 2, "text": "high", "happened_at": 1.0}
    run.writer.append_rows("events", [event, {**event, "step": 9, "kind": "end", "site": -1}])
    kept = KeptValues(
        site=2, quantity="value", backward="", iteration=0, dtype="float32", shape=(8, 2),
        batch_dim=0, samples=(5,), data_indices=(None,), neurons=2, neuron_step=1,
        array=np.array([[1.0, 2.0]], np.float32),
    )  # fmt: skip
    run.writer.write_values(4, StepValues((kept,)))
    run.writer.write_graph("abc1", {"nodes": [[0, ""]], "edges": []})
    extra = {"kind": "eval", "recorded": False, "reason": "", "iterations": 1, "batch_size": None}
    times = {"started_at": 0.0, "duration_secs": 0.1, "recording_secs": 0.0, "graph": "abc1"}
    run.writer.append_rows("steps", [{"step": 40, **extra, **times}])
    run.end("finished")
    return run.path


@pytest.fixture(scope="module", params=["streams", "parts"])
def run(folder: Path, request: pytest.FixtureRequest, tmp_path_factory: Any) -> OpenedRun:
    import shutil

    copy = tmp_path_factory.mktemp("copy") / "sample"
    shutil.copytree(folder, copy)
    if request.param == "parts":
        compact(copy)
    opened = backlight.open(copy)
    assert isinstance(opened, OpenedRun)
    return opened


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    """The statistics as any other tool reads them, with the names of their sites."""
    names = pa.ipc.open_stream(folder / "sites" / "0-0000.arrows").read_all().to_pylist()
    stats = pa.ipc.open_stream(folder / "stats" / "0-0000.arrows").read_all().to_pylist()
    return [{**names[row["site"]], **row} for row in stats]


CHOICES: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    ({}, lambda row: True),
    ({"steps": 7}, lambda row: row["step"] == 7),
    ({"steps": (30, None)}, lambda row: row["step"] >= 30),
    ({"steps": (None, 3)}, lambda row: row["step"] <= 3),
    ({"steps": range(5, 9)}, lambda row: 5 <= row["step"] < 9),
    ({"steps": range(9, 5)}, lambda row: False),
    ({"quantity": "grad"}, lambda row: row["quantity"] == "grad"),
    ({"quantity": ["grad", "update"]}, lambda row: row["quantity"] in ("grad", "update")),
    ({"name": r"^blocks\.0"}, lambda row: row["name"].startswith("blocks.0")),
    ({"name": "weight$", "steps": (2, 4)},
     lambda row: row["name"].endswith("weight") and 2 <= row["step"] <= 4),
    ({"tensor_class": "parameter"}, lambda row: row["tensor_class"] == "parameter"),
    ({"tensor_class": {"output"}, "quantity": "value", "steps": 0},
     lambda r: (r["tensor_class"], r["quantity"], r["step"]) == ("output", "value", 0)),
    ({"kind": "train"}, lambda row: True),
    ({"kind": "eval"}, lambda row: False),
    ({"rank": 0}, lambda row: True),
    ({"rank": 3}, lambda row: False),
    ({"name": "no such site"}, lambda row: False),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "is_chosen"), CHOICES, ids=[str(c) for c, _ in CHOICES])
def test_statistics_are_chosen(
    run: OpenedRun, rows: list[dict[str, Any]], choice: dict[str, Any], is_chosen: Any
) -> None:
    expected = [row for row in rows if is_chosen(row)]
    found = run.stats(**choice)
    names = [name for name in found.columns if name != "rank"]
    assert found.rows() == [{**{n: row[n] for n in names}, "rank": 0} for row in expected]
    sketches = run.sketches(**choice)
    assert [s.keys.tolist() for s in sketches] == [row["sketch_keys"] for row in expected]
    assert [s.counts.tolist() for s in sketches] == [row["sketch_counts"] for row in expected]
    assert len(sketches) == len(sketches.table) == len(expected)


def test_sketches_merge(run: OpenedRun, rows: list[dict[str, Any]]) -> None:
    chosen = run.sketches("embed", quantity="grad")
    by_step = chosen.by("step")
    assert len(by_step) == 40
    assert chosen.merged().count == sum(s.count for s in by_step.values())
    again = Sketch.merged(by_step.values())
    assert again.counts.tolist() == chosen.merged().counts.tolist()
    own = [row for row in rows if row["step"] == 3 and row["quantity"] == "grad"]
    own = [row for row in own if "embed" in row["name"]]
    assert by_step[3].count == sum(row["count"] for row in own)
    shares = chosen.merged().shares("float8_e5m2")
    assert 0 <= shares.underflow <= 1


def test_the_rest_is_answered_too(run: OpenedRun) -> None:
    assert run.sites("^embed")["name"].tolist()[0] == "embed:out.0"
    assert len(run.sites(tensor_class="optimizer")) > 0
    assert run.steps(kind="eval")["step"].tolist() == [40]
    assert run.scalars(steps=5).rows()[0]["name"] == "loss"
    assert run.notes()["text"].tolist() == ["hello"]
    assert run.events()["kind"].tolist() == ["spike", "end"]
    assert run.events()["name"].tolist() == ["blocks.0.attn:out.0", None]
    assert run.events(kind="spike")["step"].tolist() == [7]
    assert run.graph() == run.graph(40) == {"nodes": [[0, ""]], "edges": []}
    with pytest.raises(BacklightError, match=r"Step 3 .* has no graph, because its structure was"):
        run.graph(3)
    with pytest.raises(BacklightError, match="has no step 41"):
        run.graph(41)
    ((name, step, kept),) = run.values()
    assert (name, step, kept.array.tolist()) == ("blocks.0.attn:out.0", 4, [[1.0, 2.0]])
    assert run.values(steps=5) == run.values(quantity="grad") == run.values("head") == []
    assert (run.name, run.status, run.problems) == ("sample", "finished", [])
    assert "40 steps" not in repr(run) and "41 steps" in repr(run)
    assert len(run.samples()) == len(run.calls()) == 0


def test_an_answer_turns_into_what_people_use(run: OpenedRun) -> None:
    answer = run.scalars(steps=(0, 3))
    frame = answer.df()
    assert frame["value"].tolist() == answer["value"].tolist()
    assert frame["value"].tolist() == answer.arrow()["value"].to_pylist()
    assert [row["value"] for row in answer] == frame["value"].tolist()
    assert len(answer) == len(frame) == 8
    with pytest.raises(BacklightError, match="There is no column 'nope': use step"):
        answer["nope"]
    assert isinstance(answer.pl(), polars.DataFrame)
    assert answer.pl()["value"].to_list() == frame["value"].tolist()


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"quantity": "gradient"}, "There is no quantity 'gradient': use one of value"),
        ({"tensor_class": "weights"}, "There is no tensor_class 'weights': use one of input"),
        ({"steps": "all"}, "steps='all' is no choice of steps"),
        ({"step": 4}, "There is no choice 'step': use name"),
        ({"name": "("}, "is no regular expression"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(
    run: OpenedRun, choice: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BacklightError, match=re.escape(sentence)):
        run.stats(**choice)


def test_a_project_is_asked_as_one(root: Path) -> None:
    for name in ("one", "two"):
        write_sample_run(root, project="p", name=name, steps=5, sites=4)
    project = backlight.open(root / "p")
    assert isinstance(project, OpenedProject)
    assert (len(project), [run.name for run in project]) == (2, ["one", "two"])
    losses = project.scalars(steps=4).df()
    assert losses[losses["name"] == "loss"]["run"].tolist() == ["p/one", "p/two"]
    assert len(project.stats(steps=0)) == 2 * len(project["one"].stats(steps=0))
    assert len(project.sites()) == 8
    assert len(project.steps()) == 10 and len(project.notes()) == 2 and len(project.events()) == 0
    with pytest.raises(BacklightError, match=r"There is no run 'three': use one of p/one, p/two"):
        project["three"]
    assert isinstance(backlight.open(root / "p" / "one"), OpenedRun)
    (root / "empty").mkdir()
    assert len(backlight.open(root / "empty").stats()) == 0


def test_a_live_run_is_refreshed(root: Path) -> None:
    live = SampleRun(root, "p", "r", sites=4, seed=0)
    opened = backlight.open(live.path)
    assert len(opened.steps()) == 0
    live.append_step(0)
    assert opened.refresh()
    assert not opened.refresh()
    assert len(opened.steps()) == 1
    live.end(None)


def test_reading_needs_no_framework_and_no_server() -> None:
    code = (
        "import sys, backlight, backlight.store.opened;"
        "print([m for m in ('torch', 'starlette', 'pandas', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert json.loads(done.stdout.replace("'", '"')) == [], done.stderr


def test_a_project_has_all_that_a_run_has(root: Path) -> None:
    for name in ("one", "two"):
        run = SampleRun(root, "p", name, sites=4, seed=0)
        run.append_step(0)
        if name == "two":
            run.writer.write_graph("abc1", {"nodes": [], "edges": {}})
            times = {"started_at": 0.0, "duration_secs": 0.1, "recording_secs": 0.0}
            what = {"kind": "train", "recorded": False, "reason": "", "iterations": 1}
            row = {"step": 1, **what, **times, "graph": "abc1", "batch_size": None}
            run.writer.append_rows("steps", [row])
        run.end("finished")
    project = backlight.open(root / "p")
    questions = ("sites", "steps", "stats", "sketches", "values", "samples", "calls", "scalars")
    for question in (*questions, "notes", "graph", "events", "refresh"):
        assert callable(getattr(project, question))
    sketches = project.sketches(quantity="value")
    assert len(sketches) == 2 * len(project["one"].sketches(quantity="value"))
    by_run = sketches.by("run")
    assert by_run.keys() == {"p/one", "p/two"}
    assert sketches.merged().count == sum(each.count for each in by_run.values())
    assert project.values() == {"p/one": [], "p/two": []}
    assert project.graph() == {"p/two": {"nodes": [], "edges": {}}}
    assert len(project.samples()) == len(project.calls()) == 0
    assert not project.refresh()


def test_a_run_that_cannot_be_opened_keeps_no_other_from_it(root: Path) -> None:
    good, bad = (write_sample_run(root, project="p", name=n, steps=3, sites=3) for n in "gb")
    (bad / "run.json").write_text("{")
    project = backlight.open(root / "p")
    assert [run.path for run in project] == [good.resolve()]
    assert len(project.problems) == 1 and str(bad) in project.problems[0]
