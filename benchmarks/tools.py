"""What watches a training loop while it is measured: nothing, Backlight, or one of its peers.

Every tool is told to record every step, with what its own pages show as the way to do so. Each is
imported where it is used, because each peer lives in an environment of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from loops import Loop
from torch import nn


@dataclass
class Watched:
    """One training step under a tool, and what ends the tool's recording."""

    step: Callable[[], Any]
    finish: Callable[[], Any] = lambda: None


def bare(loop: Loop, root: Path) -> Watched:
    """Training alone; the loss is read, as everyone does."""
    return Watched(lambda: loop.step().item())


def backlight(loop: Loop, root: Path, every: int = 1) -> Watched:
    """Backlight with all that it records by default, storage included."""
    import backlight

    project = type(loop.model).__name__
    run = backlight.watch(loop.model, loop.optimizer, root=root, project=project, every=every)
    return Watched(lambda: run.log(loss=loop.step()), run.finish)


def wandb(loop: Loop, root: Path) -> Watched:
    """Histograms of parameters and their gradients, written to disk."""
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    run = wandb.init(mode="offline", dir=root, project="peers", settings=settings)
    run.watch(loop.model, log="all", log_freq=1)
    return Watched(lambda: run.log({"loss": loop.step().item()}), run.finish)


def torchexplorer(loop: Loop, root: Path) -> Watched:
    """Histograms of a sample of each tensor; nothing is stored."""
    import torchexplorer

    torchexplorer.watch(loop.model, log_freq=1, backend="none", verbose=False)
    return Watched(lambda: loop.step().item())


def comgra(loop: Loop, root: Path) -> Watched:
    """Statistics of parameters and of every childless module's output, which is named; stored."""
    sys.setrecursionlimit(20_000)  # it walks the graph by recursion
    from comgra.objects import DecisionMakerForRecordingsFrequencyPerType
    from comgra.recorder import ComgraRecorder

    recorder = ComgraRecorder(
        comgra_root_path=root,
        group="peers",
        trial_id=type(loop.model).__name__,
        decision_maker_for_recordings=DecisionMakerForRecordingsFrequencyPerType(1),
        max_num_batch_size_to_record=1,
    )
    recorder.track_module("model", loop.model)
    calls: Counter[str] = Counter()

    def register(name: str, output: torch.Tensor) -> None:
        if len(output) == loop.batch_size:  # it takes no other tensors
            recorder.register_tensor(name, output, recording_type="kpis")

    name_outputs(loop.model, register, calls)
    steps = iter(range(1_000_000_000))

    def step() -> None:
        calls.clear()
        loop.optimizer.zero_grad()
        recorder.start_batch(
            next(steps), loop.batch_size, record_all_tensors_per_batch_index_by_default=False
        )
        recorder.start_iteration()
        loss = loop.loss()
        recorder.register_tensor("loss", loss, is_loss=True)
        loss.backward()
        loop.optimizer.step()
        recorder.record_current_gradients("gradients")
        recorder.finish_iteration()
        recorder.finish_batch()
        loss.item()

    return Watched(step, recorder.finalize)


def name_outputs(
    model: nn.Module, register: Callable[[str, torch.Tensor], None], calls: Counter[str]
) -> None:
    """Name the output of every call of a module without children."""

    def hook(name: str) -> Callable[..., None]:
        def on_output(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            calls[name] += 1
            register(f"{name}_{calls[name]}", output)

        return on_output

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name.replace(".", "_")))


TOOLS: dict[str, Callable[[Loop, Path], Watched]] = {
    "bare": bare,
    "backlight": backlight,
    "wandb": wandb,
    "torchexplorer": torchexplorer,
    "comgra": comgra,
}


def watch(tool: str, loop: Loop, root: Path) -> Watched:
    """Let a tool watch a loop; `backlight:10` is Backlight at every 10th step."""
    name, _, every = tool.partition(":")
    return backlight(loop, root, int(every)) if every else TOOLS[name](loop, root)
