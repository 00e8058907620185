"""Anomalies looked for while a run trains: events, the black box, and the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import backlight
from backlight.errors import BacklightError
from backlight.store.opened import OpenedRun


def train(root: Path, anomalies: dict[str, str], **options: Any) -> tuple[OpenedRun, Any]:
    """Twenty steps, of which those from 12 to 14 have inputs a hundred times as large."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with backlight.watch(model, optimizer, root=root, project="p", name="run", **options) as run:
        for name, expression in anomalies.items():
            run.anomaly(name, expression)
        for step in range(20):
            inputs = torch.randn(16, 4) * (100 if 12 <= step < 15 else 1)
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    opened = backlight.open(run.path)
    assert isinstance(opened, OpenedRun)
    return opened, model.state_dict()


def happened(run: OpenedRun) -> list[tuple[int, str]]:
    rows = run.events().arrow().to_pylist()
    return [(row["step"], row["text"]) for row in rows if row["kind"] == "anomaly"]


def test_it_happens_once_where_it_begins_and_opens_the_black_box(tmp_path: Path) -> None:
    hot, jump = "abs_max('0:in') > 50", "loss > 10 * usual(loss)"
    run, state = train(tmp_path / "a", {"hot": hot, "jump": jump}, schedule=[0], blackbox=3)
    assert happened(run) == [(12, f"hot: {hot}"), (12, f"jump: {jump}")]
    assert run.info.anomalies == {"hot": hot, "jump": jump}
    reasons = {row["step"]: row["reason"] for row in run.steps().arrow().to_pylist()}
    assert [reasons[step] for step in (10, 11, 12)] == ["black box: anomaly"] * 3
    _, bare = train(tmp_path / "b", {}, schedule=[0], blackbox=3)
    assert all(torch.equal(state[name], bare[name]) for name in bare)


def test_trainer_and_reader_agree(tmp_path: Path) -> None:
    expressions = {
        "hot": "abs_max('0:in') > 50",
        "grad": "rms('weight', grad, highest) > 3 * previous(rms('weight', grad, highest))",
        "never": "nans('.') > 0 or not is_finite(loss)",
    }
    run, _ = train(tmp_path, expressions, every=1)
    for name, expression in expressions.items():
        (found,) = [each for each in run.anomalies() if each.name == name]
        begins = [step for step in found.steps if step - 1 not in found.steps]
        told = [step for step, text in happened(run) if text == f"{name}: {expression}"]
        assert told == begins
    assert {name for name in expressions if any(name in t for _, t in happened(run))} == {
        "hot",
        "grad",
    }


@pytest.mark.parametrize("expression", ["loss >", "rank(loss) > 0.5", "loss"])
def test_what_is_no_anomaly_is_said(tmp_path: Path, expression: str) -> None:
    with pytest.raises(BacklightError, match="at column"):
        train(tmp_path, {"wrong": expression})
