"""Trains the tutorial's two networks, `bugged` and `fixed`, with Backlight watching."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn.functional import binary_cross_entropy

import backlight
from backlight.demo.network import SumSigns
from backlight.demo.task import TEST_LENGTHS, TRAINING_LENGTHS, make_batch
from backlight.run import Run
from backlight.samples import highest_loss
from backlight.schedule import PerKind

STEPS = 1500
_SAMPLES = 128
_TEST_EVERY = 50
_VARIANTS = {
    "bugged": "An activation follows every layer of each sub-module, the last one too.",
    "fixed": "No activation follows the last layer of a sub-module.",
}


def run_demo(*, root: Path, steps: int | None = None, show_progress: bool = True) -> list[Path]:
    """Train both variants and return their runs' folders."""
    steps = STEPS if steps is None else steps
    # Tensors this small gain nothing from a second thread, and lose much on a busy machine.
    torch.set_num_threads(1)
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
        schedule=PerKind(gap=50),
        samples=highest_loss(2),
    ) as run:
        run.note(_VARIANTS[variant])
        loss = torch.tensor(0.0)
        for number in range(steps):
            length = lengths.choice(TRAINING_LENGTHS)
            numbers, targets = make_batch(length, _SAMPLES, generator)
            with run.step(kind=f"{length:02}_iterations", batch_size=_SAMPLES):
                loss = _loss(network, numbers, targets, run)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
            if (number + 1) % _TEST_EVERY == 0:
                _test(network, run)
            progress.update(bar, advance=1, loss=f"{loss.item():.3f}")
        run.note(f"Trained for {steps} steps; the last loss was {loss.item():.3f}.")
    return run.path


def _loss(
    network: SumSigns, numbers: torch.Tensor, targets: torch.Tensor, run: Run
) -> torch.Tensor:
    """Answer for a batch of sequences, one number of each at a time, and compare."""
    memory = run.tensor("memory", network.first_memory(numbers.shape[1]), is_initial=True)
    sums = torch.zeros_like(targets)
    answer = torch.empty(0)
    for number in numbers:
        with run.iteration():
            run.tensor("numbers", number, kind="input")
            answer, memory = network(number, memory)
            run.tensor("memory", memory)
            run.tensor("answer", answer)
            # The network never sees the sums; beside its answer they tell when it is mistaken.
            sums = sums + number
            _name_sums(sums, run)
    run.tensor("targets", targets, kind="target")
    losses = binary_cross_entropy(answer, targets, reduction="none").mean(dim=1)
    run.batch(losses=losses)
    run.tensor("loss per sample", losses, kind="helper")
    return run.tensor("loss", losses.mean(), kind="loss", batch_dim=None)


def _name_sums(sums: torch.Tensor, run: Run) -> None:
    for sequence, partial in enumerate(sums.split(1, dim=1)):
        name, role = f"partial sum {sequence}", f"sequence {sequence}"
        run.tensor(name, partial, node="partial sums", role=role, kind="helper")


@torch.no_grad()
def _test(network: SumSigns, run: Run) -> None:
    """How well it does on longer sequences than it is trained on, always on the same ones."""
    for length in TEST_LENGTHS:
        numbers, targets = make_batch(length, 512, torch.Generator().manual_seed(length))
        memory, answer = network.first_memory(512), torch.empty(0)
        for number in numbers:
            answer, memory = network(number, memory)
        loss = binary_cross_entropy(answer, targets)
        accuracy = ((answer > 0.5) == (targets > 0.5)).float().mean()
        run.log(**{f"test_loss_{length}": loss, f"test_accuracy_{length}": accuracy})
