"""A small network, really trained and recorded, for tests of what shows a run."""

from __future__ import annotations

from pathlib import Path

import torch

import backlight

HOSTILE = "</script><img src=x onerror=alert(1)>"


def record(root: Path, *, name: str = "small", steps: int = 12) -> Path:
    """Train, with a tensor whose name would be markup, a note of the same, and raw values."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    options = {"project": "tests", "name": name, "root": root, "every": 1, "samples": 2}
    with backlight.watch(model, optimizer, **options) as run:
        run.note(f"{HOSTILE} is a note")
        for _ in range(steps):
            loss = run.tensor(HOSTILE, model(torch.randn(6, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    return run.path
