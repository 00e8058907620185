"""The task: five independent number sequences; for each, is its sum positive?"""

from __future__ import annotations

import torch

SEQUENCES = 5
TRAINING_LENGTHS = range(1, 11)
TEST_LENGTHS = (15, 20)


def make_batch(
    length: int, samples: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers between -1 and 1, `length × samples × 5`, and 1 where a sequence's sum is positive.

    >>> numbers, targets = make_batch(3, 2, torch.Generator().manual_seed(0))
    >>> numbers.shape, targets.shape
    (torch.Size([3, 2, 5]), torch.Size([2, 5]))
    """
    numbers = torch.rand(length, samples, SEQUENCES, generator=generator) * 2 - 1
    return numbers, (numbers.sum(dim=0) > 0).float()
