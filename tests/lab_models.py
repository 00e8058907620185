"""Small networks of every kind for the tests of the lab, and a Jacobian computed the plain way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def seeded(make: Any) -> Any:
    torch.manual_seed(7)
    return make()


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3),
        nn.Flatten(),
        nn.Linear(144, 3),
    )


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 2, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        nn.Sigmoid(),
        nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


def pooling() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(3),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Flatten(),
        nn.LazyLinear(2),
    ).eval()


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 2))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x).relu()
        second = first + self.second(first).relu()
        third = second + self.third(second)
        return self.head(third.mean((2, 3)) + first.amax((2, 3)))


class Attention(nn.Module):
    def __init__(self, *, gives_weights: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.feed = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)
        self.gives_weights = gives_weights

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=self.gives_weights)[0]
        x = x + self.feed(x).relu()
        return self.head(x[:, -1])


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, *, batch_first: bool = True) -> None:
        super().__init__()
        self.rnn = kind(3, 4, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(x)
        return self.head(out[:, -1] if self.rnn.batch_first else out[-1])


def jacobian(model: nn.Module, x: torch.Tensor, source: str, sink: str) -> torch.Tensor:
    """∂sink/∂source, sink cells by source cells, with no help from the lab."""
    modules = dict(model.named_modules())
    held: dict[str, torch.Tensor] = {}

    def hold(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            held[name] = tensor.detach().clone()

        return modules[name].register_forward_hook(hook)

    def replaced(value: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def put(_: nn.Module, __: Any, output: Any) -> Any:
            copy = value.clone()
            return (copy, *output[1:]) if isinstance(output, tuple) else copy

        def take(_: nn.Module, __: Any, output: Any) -> None:
            seen.append((output[0] if isinstance(output, tuple) else output).clone())

        handles = [modules[sink].register_forward_hook(take)]
        if source != "input":
            handles.append(modules[source].register_forward_hook(put))
        model(value if source == "input" else x)
        for handle in handles:
            handle.remove()
        return seen[0]

    if source == "input":
        at = x
    else:
        handle = hold(source)
        model(x)
        handle.remove()
        at = held[source]
    matrix = torch.autograd.functional.jacobian(replaced, at)
    return matrix.reshape(-1, at.numel()).detach()
