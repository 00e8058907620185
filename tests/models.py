"""Small models and loops, each of a different kind, for tests that compare runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass
class Problem:
    """A model, its optimizer, and a function that gives the loss of one step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]


def train(problem: Problem, steps: int, after_step: Callable[[torch.Tensor], None] | None = None):
    for step in range(steps):
        problem.optimizer.zero_grad()
        loss = problem.loss(step)
        loss.backward()
        problem.optimizer.step()
        if after_step is not None:
            after_step(loss)


def wanted(x: torch.Tensor, width: int) -> torch.Tensor:
    """What is to be learned: of each sample, fixed mixtures of its numbers, of about their size."""
    samples = x.flatten(1)
    rows, columns = torch.arange(samples.shape[1]), torch.arange(1, width + 1)
    mixtures = torch.cos(1.0 + torch.outer(rows, columns)) * (2 / len(rows)) ** 0.5
    return samples @ mixtures.to(x.dtype)


def error(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """How far outputs are from what is to be learned."""
    return functional.mse_loss(out, wanted(x, out.shape[1]))


def counted(tokens: int, shape: tuple[int, int]) -> torch.Tensor:
    """Sequences that count up by three from somewhere, and begin anew."""
    return (torch.randint(0, tokens, (shape[0], 1)) + 3 * torch.arange(shape[1])) % tokens


def marked_images(labels: torch.Tensor, *shape: int) -> torch.Tensor:
    """Noise, in which the channel that the label says is brighter."""
    images = torch.randn(len(labels), *shape)
    images[torch.arange(len(labels)), labels] += 1.0
    return images


def mlp() -> Problem:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(16, 12)
        return functional.cross_entropy(model(x), wanted(x, 4).argmax(1))

    return Problem(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss)


class InPlaceBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu(out)


def in_place_resnet() -> Problem:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        InPlaceBlock(8),
        InPlaceBlock(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )

    def loss(_: int) -> torch.Tensor:
        labels = torch.randint(0, 3, (8,))
        return functional.cross_entropy(model(marked_images(labels, 3, 10, 10)), labels)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    return Problem(model, optimizer, loss)


class SequenceTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.head.weight.data.normal_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def lstm() -> Problem:
    model = SequenceTagger()

    def loss(_: int) -> torch.Tensor:
        tokens = counted(20, (6, 8))
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    return Problem(model, torch.optim.RMSprop(model.parameters(), lr=1e-2), loss)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(30, 16), nn.Embedding(9, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight
        mask = nn.Transformer.generate_square_subsequent_mask(9)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.encoder(x, mask=self.mask, is_causal=True))


def tied_transformer() -> Problem:
    model = Transformer()

    def loss(_: int) -> torch.Tensor:
        tokens = counted(30, (4, 10))
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    return Problem(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Splitter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> Pair:
        out = self.layer(x) if scale is None else self.layer(x) * scale
        return Pair(*out.chunk(2, dim=1))


class Changing(nn.Module):
    """Calls its parts a different number of times each step, with keywords and named tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.split = Splitter()
        self.join = nn.Linear(6, 6)
        self.rare = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, times: int) -> dict[str, torch.Tensor | None]:
        for _ in range(times):
            pair = self.split(x, scale=torch.ones(6))
            x = torch.relu(self.join(torch.cat([pair.right, pair.left], dim=1)))
        if times > 2:
            x = self.rare(x)
        return {"out": x, "nothing": None}


def changing() -> Problem:
    model = Changing()

    def loss(step: int) -> torch.Tensor:
        x = torch.randn(5, 6)
        return functional.mse_loss(model(x, 1 + step % 4)["out"], wanted(x, 6).relu())

    return Problem(model, torch.optim.Adagrad(model.parameters(), lr=0.03), loss)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2))
        self.last = nn.Linear(6, 1)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(checkpoint(self.inner, hidden, use_reentrant=self.use_reentrant))


def _checkpointed(use_reentrant: bool) -> Problem:
    model = Checkpointed(use_reentrant)

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(5, 6)
        return error(model(x), x)

    return Problem(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


def checkpointed() -> Problem:
    return _checkpointed(use_reentrant=False)


def checkpointed_reentrant() -> Problem:
    return _checkpointed(use_reentrant=True)


ALL = [mlp, in_place_resnet, lstm, tied_transformer, changing, checkpointed, checkpointed_reentrant]
