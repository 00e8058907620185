"""Findings while a run trains: the user's function hears of them, and can stop training."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

import backlight
from backlight.schema import Finding
from backlight.store.opened import OpenedRun


def test_it_stops_training_and_opens_the_black_box(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    heard: list[Finding] = []

    def stop(finding: Finding) -> None:
        heard.append(finding)
        raise backlight.StopTraining

    def endless(run: backlight.run.Run) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            inputs = torch.randn(32, 4)
            # The gradients add up: they are never set to zero.
            (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)

    schedule = range(0, 10_000, 2)
    with backlight.watch(
        model, optimizer, root=tmp_path, project="p", name="r", schedule=schedule, blackbox=3
    ) as run:
        run.on_finding(stop)
        with pytest.raises(backlight.StopTraining):
            endless(run)
    # Which of its faults shows first depends on how far training is when it is first looked at.
    assert len(heard) == 1
    assert heard[0].score >= 0.5
    opened = backlight.open(run.path)
    assert isinstance(opened, OpenedRun)
    events = opened.events().arrow().to_pylist()
    told = [each["text"].split()[0] for each in events if each["kind"] == "finding"]
    assert told == [heard[0].fault]
    last = opened.steps().arrow().to_pylist()[-3:]
    assert all(each["recorded"] for each in last)
    # Opened by the finding, or a spike before it; else the exception that ends the run would.
    assert "black box: exception" not in [each["reason"] for each in last]


def test_what_diagnoses_steps_back_behind_everything_else(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=tmp_path) as run:
        run.on_finding(lambda _: None)
        process = run._watches[0]._process
        assert process is not None
        until = time.monotonic() + 60
        while os.getpriority(os.PRIO_PROCESS, process.pid) < 19 and time.monotonic() < until:
            time.sleep(0.05)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        group = Path(f"/proc/{process.pid}/autogroup")
        while group.exists() and "nice 19" not in group.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        assert not group.exists() or "nice 19" in group.read_text()
