"""A small convolutional network to open the lab on; an input above 50 makes it fail."""

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, padding=1)
        self.second = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.head = nn.Linear(3 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 50).any()):
            raise ValueError("too bright")
        return self.head(self.second(self.first(x).relu()).relu().flatten(1))


torch.manual_seed(11)
model = Small()
inputs = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(2)).round(decimals=2)
target = torch.tensor([1, 3])
loss = nn.functional.cross_entropy
layers = ["input", "first", "second", "head"]
