"""The network: it reads one number of each sequence at a time and keeps a memory of 64 numbers."""

from __future__ import annotations

import torch
from torch import nn

from backlight.demo.task import SEQUENCES

MEMORY = 64


class Subnet(nn.Sequential):
    """Two layers. The fault of the tutorial is an activation after the last one as well."""

    def __init__(self, inputs: int, outputs: int, *, activate_last: bool) -> None:
        layers: list[nn.Module] = [
            nn.Linear(inputs, MEMORY),
            nn.LeakyReLU(),
            nn.Linear(MEMORY, outputs),
        ]
        super().__init__(*layers, *([nn.LeakyReLU()] if activate_last else []))


class SumSigns(nn.Module):
    """Three sub-modules in a recurrent network: read the input, update the memory, decide.

    >>> network = SumSigns(activate_last=False)
    >>> answer, memory = network(torch.zeros(2, 5), network.first_memory(2))
    >>> answer.shape, memory.shape
    (torch.Size([2, 5]), torch.Size([2, 64]))
    """

    def __init__(self, *, activate_last: bool) -> None:
        super().__init__()
        self.read = Subnet(SEQUENCES, MEMORY, activate_last=activate_last)
        self.update = Subnet(2 * MEMORY, MEMORY, activate_last=activate_last)
        self.decide = Subnet(MEMORY, SEQUENCES, activate_last=activate_last)

    def first_memory(self, samples: int) -> torch.Tensor:
        """The memory before the first number: zeros."""
        return torch.zeros(samples, MEMORY)

    def forward(
        self, numbers: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The probability that each sum is positive so far, and the new memory."""
        heard = self.read(numbers)
        memory = memory + self.update(torch.cat([heard, memory], dim=1))
        return torch.sigmoid(self.decide(memory)), memory
