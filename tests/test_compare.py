"""Two runs: where they part, how far apart they are, and what is only in one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sample_runs import write_sample_run
from torch import nn

import backlight
from backlight.errors import BacklightError
from backlight.serve.compare import differences_of, parting_of, structure_of
from backlight.serve.graphs import Graphs
from backlight.store.compact import compact
from backlight.store.reader import RunReader

STEPS, CHANGED = 12, 7


def record(
    root: Path, name: str, *, later_lr: float = 0.1, deeper: bool = False, every: int = 1
) -> RunReader:
    torch.manual_seed(0)
    extra = [nn.Linear(6, 6)] if deeper else []
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *extra, nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    with backlight.watch(
        model,
        optimizer,
        root=root,
        project="pair",
        name=name,
        schedule=lambda step: step % every == 0,
    ) as run:
        for step in range(STEPS):
            if step == CHANGED:
                optimizer.param_groups[0]["lr"] = later_lr
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4, generator=data)).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    reader = RunReader(run.path)
    reader.refresh()
    return reader


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def base(root: Path) -> RunReader:
    return record(root, "base")


@pytest.fixture(scope="module")
def hot(root: Path) -> RunReader:
    return record(root, "hot", later_lr=0.1 * (1 + 1e-4))


def test_equal_runs_never_part(base: RunReader, root: Path) -> None:
    twin = record(root, "twin")
    answer = parting_of(base, twin)
    assert answer["exact"] is None and answer["beyond"] is None
    assert answer["compared"] == base.rows["stats"]


def test_the_first_difference_is_what_was_changed(base: RunReader, hot: RunReader) -> None:
    exact = parting_of(base, hot, tolerance=0.5)["exact"]
    # The step's forward and backward passes are still the same: the update is not.
    assert (exact["step"], exact["quantity"]) == (CHANGED, "update")
    assert exact["site"] == "0.weight"
    assert exact["one"] != exact["other"]


def test_beyond_a_tolerance_is_later(base: RunReader, hot: RunReader) -> None:
    loose = parting_of(base, hot, tolerance=10.0)
    assert loose["beyond"] is None and loose["exact"] is not None
    small = parting_of(base, hot, tolerance=1e-9)
    assert small["beyond"]["step"] == CHANGED
    assert small["beyond"]["relative"] == pytest.approx(1e-4, rel=0.05)


def test_runs_are_compared_at_common_steps(base: RunReader, root: Path) -> None:
    rare = record(root, "rare", every=3)
    answer = parting_of(base, rare)
    assert (answer["steps"], answer["recorded"]) == (4, [12, 4])
    table = differences_of(base, rare, statistic="rms")
    assert table.schema.metadata[b"columns"] == b"[[0, 0], [3, 3], [6, 6], [9, 9]]"
    assert table["one"].to_pylist() == table["other"].to_pylist()


def test_compacting_changes_nothing(base: RunReader, root: Path) -> None:
    hot = record(root, "packed", later_lr=0.2)
    before = parting_of(base, hot), differences_of(base, hot, quantity="update").to_pydict()
    compact(hot.path)
    again = RunReader(hot.path)
    again.refresh()
    after = parting_of(base, again), differences_of(base, again, quantity="update").to_pydict()
    assert after == before


def test_differences_are_those_of_the_statistics(base: RunReader, root: Path) -> None:
    hot = record(root, "hotter", later_lr=0.2)
    rows = differences_of(base, hot, quantity="update", statistic="rms").to_pylist()
    ratios = {
        row["column"]: row["other"] / row["one"] for row in rows if row["site"] == rows[0]["site"]
    }
    assert [ratios[step] for step in range(CHANGED)] == [1.0] * CHANGED
    assert ratios[CHANGED] == pytest.approx(2.0, rel=1e-4)
    merged = differences_of(base, hot, quantity="update", columns=1).to_pylist()
    furthest = max(abs(np.log(ratio)) for ratio in ratios.values())
    assert abs(np.log(merged[0]["other"] / merged[0]["one"])) == pytest.approx(furthest)


def test_what_is_only_in_one(base: RunReader, root: Path) -> None:
    deep = record(root, "deep", deeper=True)
    found = structure_of(base, deep, Graphs(), None)
    assert [row["name"] for row in found["modules"]["rows"]] == ["2", "3"]
    assert ["3.weight", "parameter"] in found["sites"]["other"]
    assert found["sites"]["one"] == []
    assert ["2:out.0", "3:in.0", "autograd"] in found["edges"]["other"]
    assert structure_of(base, base, Graphs())["edges"]["one"] == []
    last = [int(run.snapshot.recorded_steps[-1]) for run in (base, deep)]
    assert found["graphs"] == last
    assert structure_of(base, deep, Graphs(), 1)["graphs"] == [1, 1]
    assert structure_of(base, deep, Graphs(), 10**6)["graphs"] == last


def test_other_numbers_of_nan_are_beyond_any_tolerance(tmp_path: Path) -> None:
    runs = [
        RunReader(write_sample_run(tmp_path, name=name, steps=10, sites=12, with_nan=bad))
        for name, bad in (("good", False), ("bad", True))
    ]
    for run in runs:
        run.refresh()
    beyond = parting_of(*runs, tolerance=1e30)["beyond"]
    assert beyond["step"] == 6 and beyond["relative"] == np.inf
    found = structure_of(*runs, Graphs())
    assert (found["edges"], found["graphs"]) == (None, [None, None])


def test_bad_questions_are_one_sentence(base: RunReader) -> None:
    with pytest.raises(BacklightError, match="There is no statistic 'size'"):
        differences_of(base, base, statistic="size")
    with pytest.raises(BacklightError, match="use a number from 0"):
        parting_of(base, base, tolerance=-1.0)
