"""Long runs to be diagnosed: one that is made, as fast as it can be written, and one trained."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

STEPS, SITES = 10_000, 500


def write_made_run(root: Path) -> Path:
    """A finished run in streams, a batch for each step, as a trainer leaves it."""
    from store_data import made_site, rows

    from backlight.schema import FORMAT_VERSION, RunInfo
    from backlight.store.writer import RunWriter, create_run_folder

    path = create_run_folder(root, "bench", "long")
    writer = RunWriter(path)
    now = time.time()
    info = RunInfo(FORMAT_VERSION, "bench", "bench", "long", now, "bench", os.getpid(), 0.0)
    writer.write_info(info)
    writer.append_rows("sites", [asdict(made_site(number)) for number in range(SITES)])
    sites = np.arange(SITES)
    for step in range(STEPS):
        table = rows(sites, np.full(SITES, step), with_sketches=True)
        writer.append("stats", table.combine_chunks().to_batches()[0])
        told = {"kind": "train", "recorded": True, "reason": "every step", "iterations": 1}
        times = {"started_at": now + step, "duration_secs": 0.1, "recording_secs": 0.01}
        loss = {"batch_size": 32, "graph": "", "loss": 4 / (1 + step / 100), "learning_rate": 1e-3}
        writer.append_rows("steps", [{"step": step, **told, **times, **loss}])
    writer.close()
    info.ended, info.ended_at = "finished", now + STEPS
    writer.write_info(info)
    return path


def record_trained_run(root: Path) -> Path:
    """A small GPT that learns a rule, each of its steps recorded: graph, calls, all classes."""
    import torch
    from loops import GPT
    from torch.nn import functional

    import backlight

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(tokens=32, length=16, width=32, blocks=9)  # 527 sites
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with backlight.watch(
        model, optimizer, root=root, project="bench", name="trained", every=1
    ) as run:
        for _ in range(STEPS):
            tokens = _counted(torch.randint(0, 32, (8, 1)), torch.randint(1, 4, (8, 1)))
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Path(run.path)


def _counted(first: torch.Tensor, stride: torch.Tensor) -> torch.Tensor:
    """Sequences that count up in strides, which the second token tells."""
    import torch

    return (first + stride * torch.arange(17)) % 32
