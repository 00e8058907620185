"""Runs that have little to go by: what can be found is found, the rest says why not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from sample_runs import write_sample_run
from torch import Tensor, nn

import backlight
from backlight.demo.main import run_demo
from backlight.diagnosis.cause import SURE


def run(root: Path, steps: int, forward: object = None, **options: object) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with backlight.watch(model, optimizer, root=root, name="odd", **options) as watched:
        for _ in range(steps):
            loss = _loss(model, torch.randn(16, 3), forward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return watched.path


def _loss(model: nn.Module, x: Tensor, forward: object) -> Tensor:
    return forward(model, x) if callable(forward) else (model(x) - x[:, :1]).square().mean()


def test_three_steps_are_diagnosed_and_what_needs_more_says_so(tmp_path: Path) -> None:
    found = backlight.diagnose(run(tmp_path, 3))
    assert [each for each in found if each.score >= SURE] == []
    assert "fewer than 20 steps" in found.skipped["lr_schedule"]


def test_a_run_without_any_step(tmp_path: Path) -> None:
    found = backlight.diagnose(run(tmp_path, 0))
    assert list(found) == []
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped


def test_one_site_alone(tmp_path: Path) -> None:
    path = run(tmp_path, 12, every=1, include="0:out.0", classes=["output"])
    found = backlight.diagnose(path)
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped


def test_a_run_that_is_nan_throughout(tmp_path: Path) -> None:
    def lost(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * float("nan")).mean()

    found = backlight.diagnose(run(tmp_path, 6, lost, every=1))
    assert found[0].fault == "nonfinite" and found[0].where == "loss"
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped


def test_a_run_that_another_tool_wrote_without_modules_or_loss(root: Path) -> None:
    found = backlight.diagnose(write_sample_run(root, steps=5, sites=6))
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped


@pytest.mark.parametrize("version", ["1.0", "1.1-streams", "1.1-parts", "1.2"])
def test_runs_of_every_version_are_diagnosed(version: str) -> None:
    found = backlight.diagnose(Path(__file__).parent / "golden" / version)
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped


def test_the_demo(tmp_path: Path) -> None:
    bugged, fixed = run_demo(root=tmp_path, steps=250, show_progress=False)
    first = backlight.diagnose(bugged)[0]
    assert (first.fault, first.where) == ("one_directional_growth", "update.3")
    assert first.score >= SURE
    assert [each for each in backlight.diagnose(fixed) if each.score >= SURE] == []


def test_a_long_run_takes_seconds(root: Path) -> None:
    path = write_sample_run(root, steps=1000, sites=100)
    started = time.perf_counter()
    backlight.diagnose(path)
    # A tenth of 10,000 steps of 500 sites; a busy machine may be slow.
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("is_left_out", [True, False])
def test_an_update_that_is_left_out_is_no_fault(is_left_out: bool, tmp_path: Path) -> None:
    """As a scaler of gradients does where they overflow, or a loop that looks at its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with backlight.watch(model, optimizer, root=tmp_path, name="r", every=1) as run:
        for step in range(40):
            x = torch.randn(16, 3)
            loss = (model(x) - x[:, :1]).square().mean() * (torch.inf if step == 5 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            if loss.isfinite() or not is_left_out:
                optimizer.step()
    found = backlight.diagnose(run.path)
    told = {each.fault for each in found if each.score >= SURE}
    assert told == (set() if is_left_out else {"nonfinite"}), found


def test_a_scale_of_gradients_that_changes_is_no_clipping(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with backlight.watch(model, optimizer, root=tmp_path, name="r", every=1) as run:
        for step in range(40):
            x, scale = torch.randn(16, 3), 2.0 ** (12 - step // 10)
            optimizer.zero_grad()
            ((model(x) - x[:, :1]).square().mean() * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
    found = backlight.diagnose(run.path)
    assert [each for each in found if each.score >= SURE] == []
