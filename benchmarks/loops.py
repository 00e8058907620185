"""The training loops that recording is measured on: a small MLP, a small GPT, a small ResNet.

Each goes through many batches, made beforehand, of what cannot be learned by heart within the steps
that are measured. A single batch would be: then losses go to 0, gradients become subnormal, and
what is measured is no longer training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional

NOISE = 0.3
"""This share of what is to be told apart has a label that says nothing."""


@dataclass
class Loop:
    """A model, its optimizer, and the loss of one step on data that was made beforehand."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    batch_size: int

    def step(self) -> torch.Tensor:
        """One training step as a user would write it."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def mlp() -> Loop:
    """Four linear layers of 256 units, batches of 128."""
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Loop(model, optimizer, classifying(model, torch.randn(512, 128, 64)), 128)


def classifying(model: nn.Module, inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The loss of each batch of inputs in turn: which of ten directions it lies in, or others."""
    flat = inputs.flatten(2)
    targets = (flat @ torch.randn(flat.shape[2], 10)).argmax(2)
    is_other = torch.rand(targets.shape) < NOISE
    targets[is_other] = torch.randint(0, 10, (int(is_other.sum()),))
    batches = cycle(zip(inputs, targets, strict=True))

    def loss() -> torch.Tensor:
        x, y = next(batches)
        return functional.cross_entropy(model(x), y)

    return loss


class Attention(nn.Module):
    """Causal self-attention with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class GPTBlock(nn.Module):
    """Attention and a feed-forward net, each behind a norm and beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """A decoder of six blocks with tied embeddings."""

    def __init__(self, tokens: int, length: int, width: int, blocks: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GPTBlock(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt() -> Loop:
    """Six blocks of width 256, eight sequences of 128 tokens."""
    model = GPT(tokens=512, length=128, width=256, blocks=6)
    batches = cycle(torch.randint(0, 512, (128, 8, 129)))

    def loss() -> torch.Tensor:
        tokens = next(batches)
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Loop(model, torch.optim.AdamW(model.parameters(), lr=3e-4), loss, 8)


class ResidualBlock(nn.Module):
    """Two convolutions; the ReLU and the residual's addition work in place."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


def resnet() -> Loop:
    """Six residual blocks of 32, 64 and 128 channels, sixteen images of 32 × 32."""
    channels = [(32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        *(ResidualBlock(*block) for block in channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Loop(model, optimizer, classifying(model, torch.randn(128, 16, 3, 32, 32)), 16)


LOOPS: dict[str, Callable[[], Loop]] = {"MLP": mlp, "GPT": gpt, "ResNet": resnet}
