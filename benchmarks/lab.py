"""What the lab costs: an edit on a small network, and the flows of a large pair of layers.

Prints milliseconds from the question to the last link, as the session answers them, and the
memory that the process grew by; the limits are what the page promises.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

from backlight.laboratory.session import Session
from backlight.laboratory.torch_model import TorchModel

EDIT_LIMIT_MS = 150
PAIR_LIMIT_MS = 2000
MEMORY_LIMIT_MB = 1500


def three_layers() -> Session:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 49, 10),
    )
    options: dict[str, Any] = {"loss": nn.functional.cross_entropy, "target": torch.tensor([3])}
    return Session(TorchModel(model, torch.rand(1, 1, 28, 28), **options))


def wide_pair() -> Session:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
    )
    model.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()).append(nn.Linear(64, 10))
    return Session(TorchModel(model, torch.rand(1, 3, 32, 32), layers=["0", "2"]))


def answer_ms(session: Session, cell: int) -> tuple[float, float, int]:
    """Milliseconds to the maps and to the last link, and how many times progress was told."""
    started, maps, told = time.perf_counter(), 0.0, 0
    edits = [{"op": "set", "layer": "input", "cells": [cell], "value": 1.0}]
    for header, _ in session.picture({"edits": edits}, lambda: None):
        if header["event"] == "layers":
            maps = time.perf_counter() - started
        told += header["event"] == "progress"
    return 1000 * maps, 1000 * (time.perf_counter() - started), told


def main() -> int:
    small = three_layers()
    times = [answer_ms(small, cell) for cell in range(12)][2:]
    maps, edit = (statistics.median(each[n] for each in times) for n in (0, 1))
    print(f"edit, 3 convolutions of 28 × 28: maps {maps:.0f} ms, all flows {edit:.0f} ms")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wide = wide_pair()
    pair = [answer_ms(wide, cell) for cell in range(3)][1:]
    best = min(each[1] for each in pair)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"64 × 32 × 32 to 64 × 32 × 32: {best:.0f} ms in {pair[0][2]} parts, {grown:.0f} MB more")
    is_good = edit <= EDIT_LIMIT_MS and best <= PAIR_LIMIT_MS and grown <= MEMORY_LIMIT_MB
    print("within the limits" if is_good else "OVER THE LIMITS", end=": ")
    print(f"{EDIT_LIMIT_MS} ms, {PAIR_LIMIT_MS} ms, {MEMORY_LIMIT_MB} MB")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
