"""`backlight follow` shows a run that another process writes, until that process ends."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from backlight.cli import app
from backlight.diagnosis.follow import follow, sparkline
from backlight.store.runs import find_runs

TRAINER = """
import sys, time, torch, backlight
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with backlight.watch(model, optimizer, root=sys.argv[1], project="p", name="r", every=1):
    for step in range(150):
        inputs = torch.randn(16, 8)
        # The gradients add up: they are never set to zero.
        torch.nn.functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path)])
    until = time.monotonic() + 120
    while not (tmp_path / "p" / "r" / "run.json").exists() and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def test_it_tells_findings_as_they_come_up_and_ends_with_the_run(
    training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    told = CliRunner().invoke(app, ["follow", str(tmp_path)])
    assert told.exit_code == 3, told.output
    early, _, end = told.output.partition("finished p/r")
    assert "stale_gradients in optimizer" in early
    assert int(early.split("at step ")[1].split(":")[0]) < 149
    assert "step 149," in end
    assert "recording takes" in end
    assert "Try: Call optimizer.zero_grad()" in " ".join(end.split())
    assert training.wait(20) == 0
    again = CliRunner().invoke(app, ["follow", str(tmp_path / "p" / "r"), "--once"])
    assert again.exit_code == 3
    assert again.output.startswith("finished p/r")


def test_in_a_terminal_the_screen_is_drawn_again_while_it_trains(
    training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=90, height=30, color_system=None)
    follower = follow(find_runs(tmp_path)[0], console)
    assert not follower.is_live
    drawn = screen.getvalue()
    assert drawn.count("live p/r") > 1
    assert "steps a second" in drawn
    assert "finished p/r" in drawn.rpartition("live p/r")[2]


def test_a_folder_without_runs_is_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["follow", str(tmp_path)])
    assert told.exit_code == 1
    assert "There are no runs" in told.output


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([None, None], "!!"), ([1.0, 1.0], "▁▁"), ([-1.0, 0.0, 1.0], "▁▅█")],
)
def test_a_sparkline_of_anything(values: list[float | None], bars: str) -> None:
    assert sparkline(values, 10) == bars
