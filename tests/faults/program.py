"""How programs are written: one function with a parameter `bug` gives a program and its twin."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import backlight

Tensor = torch.Tensor
Step = Callable[[int], Any]


@dataclass
class Training:
    """What is trained, and one step of the loop."""

    model: nn.Module | dict[str, nn.Module]
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    step: Step
    steps: int = 120


@dataclass(frozen=True)
class Program:
    """A program; `fault` is "" where it is healthy whatever `bug` says."""

    name: str
    fault: str
    where: tuple[str, ...]
    make: Callable[..., Training]
    is_fast: bool

    @property
    def is_held_out(self) -> bool:
        """Whether it is kept for measuring, and not for choosing thresholds."""
        return hashlib.blake2b(self.name.encode()).digest()[0] % 2 == 1


FAULTY: dict[str, Program] = {}
HEALTHY: dict[str, Program] = {}


def faulty(fault: str, *where: str, is_fast: bool = False) -> Callable[[Any], Any]:
    """A program that has this fault at one of these places if `bug` is true."""

    def register(make: Callable[[bool], Training]) -> Callable[[bool], Training]:
        assert make.__name__ not in FAULTY
        FAULTY[make.__name__] = Program(make.__name__, fault, where, make, is_fast)
        return make

    return register


def healthy(make: Callable[[], Training]) -> Callable[[], Training]:
    """A program in which nothing is wrong."""
    assert make.__name__ not in HEALTHY
    HEALTHY[make.__name__] = Program(make.__name__, "", (), make, False)
    return make


def record(training: Training, root: Path, name: str, **options: Any) -> Path:
    """Train, with Backlight watching, and return the run's folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = backlight.watch(
            training.model, training.optimizer, root=root, project="faults", name=name, **options
        )
        with run:
            for number in range(training.steps):
                training.step(number)
    return run.path


# -- data, and the plain loop


def blobs(classes: int = 4, features: int = 10, spread: float = 0.7) -> Callable[[int], Any]:
    """Samples of classes around centres, as many as are asked for."""
    centres = torch.randn(classes, features)

    def draw(count: int = 64) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (count,))
        return centres[labels] + spread * torch.randn(count, features), labels

    return draw


def curve(features: int = 6, noise: float = 0.05) -> Callable[[int], Any]:
    """A smooth function of some features, which no linear layer can learn."""
    mix = torch.randn(features, 4) / features**0.5

    def draw(count: int = 64) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, features)
        hidden = x @ mix
        y = torch.sin(2 * hidden[:, :1]) + hidden[:, 1:2] * hidden[:, 2:3]
        return x, y + noise * torch.randn(count, 1)

    return draw


def images(classes: int = 4, size: int = 8) -> Callable[[int], Any]:
    """Noisy pictures of fixed patterns."""
    patterns = torch.randn(classes, 1, size, size)

    def draw(count: int = 32) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (count,))
        return patterns[labels] + 0.5 * torch.randn(count, 1, size, size), labels

    return draw


def tokens(vocabulary: int = 16, length: int = 12) -> Callable[[int], Tensor]:
    """Sequences in which each token mostly follows from the one before."""
    following = torch.randperm(vocabulary)

    def draw(count: int = 32) -> Tensor:
        rows = [torch.randint(0, vocabulary, (count,))]
        for _ in range(length - 1):
            noise = torch.randint(0, vocabulary, (count,))
            rows.append(torch.where(torch.rand(count) < 0.9, following[rows[-1]], noise))
        return torch.stack(rows, dim=1)

    return draw


def plain(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    draw: Callable[[int], Any],
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    *,
    batch: int = 64,
    steps: int = 120,
) -> Training:
    """The loop that everybody writes."""

    def step(_: int) -> None:
        x, y = draw(batch)
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, steps)


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(sizes):
        layers += [nn.Linear(one, other), act()]
    return nn.Sequential(*layers[:-1])
