"""Trains the tutorial's two networks, `bugged` and `fixed`, with Backlight watching."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn.functional import binary_cross_entropy

import backlight
from backlight.demo.network import SumSigns
from backlight.demo.task import TEST_LENGTHS, TRAINING_LENGTHS, make_batch
from backlight.recorder import Run

STEPS = 1500
_SAMPLES = 128
_RECORD_EVERY = 5
_TEST_EVERY = 50
_VARIANTS = {
    "bugged": "An activation follows every layer of each sub-module, the last one too.",
    "fixed": "No activation follows the last layer of a sub-module.",
}


def run_demo(*, root: Path, steps: int | None = None, show_progress: bool = True) -> list[Path]:
    """Train both variants and return their runs' folders."""
    steps = STEPS if steps is None else steps
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps · loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not show_progress) as progress:
        return [_train(variant, root, steps, progress) for variant in _VARIANTS]


def _train(variant: str, root: Path, steps: int, progress: Progress) -> Path:
    torch.manual_seed(0)
    network = SumSigns(activate_last=variant == "bugged")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    config = {"variant": variant, "steps": steps, "samples": _SAMPLES, "learning_rate": 1e-3}
    generator, lengths = torch.Generator().manual_seed(1), random.Random(1)
    bar = progress.add_task(variant, total=steps, loss="…")
    with backlight.watch(
        network,
        optimizer,
        project="demo",
        name=variant,
        root=root,
        config=config,
        every=_RECORD_EVERY,
    ) as run:
        run.note(_VARIANTS[variant])
        for step in range(steps):
            numbers, targets = make_batch(lengths.choice(TRAINING_LENGTHS), _SAMPLES, generator)
            loss = binary_cross_entropy(_answer(network, numbers, run), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if (step + 1) % _TEST_EVERY == 0:
                _test(network, run)
            progress.update(bar, advance=1, loss=f"{loss.item():.3f}")
        run.note(f"Trained for {steps} steps; the last loss was {loss.item():.3f}.")
    return run.path


def _answer(network: SumSigns, numbers: torch.Tensor, run: Run | None) -> torch.Tensor:
    memory = network.first_memory(numbers.shape[1])
    answer = torch.empty(0)
    for number in numbers:
        with run.iteration() if run is not None else nullcontext():
            answer, memory = network(number, memory)
    return answer


@torch.no_grad()
def _test(network: SumSigns, run: Run) -> None:
    """How well it does on longer sequences than it is trained on, always on the same ones."""
    for length in TEST_LENGTHS:
        numbers, targets = make_batch(length, 512, torch.Generator().manual_seed(length))
        answer = _answer(network, numbers, None)
        accuracy = ((answer > 0.5) == (targets > 0.5)).float().mean()
        run.log(
            **{
                f"test_loss_{length}": binary_cross_entropy(answer, targets),
                f"test_accuracy_{length}": accuracy,
            }
        )
