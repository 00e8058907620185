"""Runs a model and leaves it as it was: buffers, mode and the random numbers are put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

SEED = 0


@contextmanager
def untouched(model: nn.Module, *, seed: int | None = SEED) -> Iterator[None]:
    """Put everything back that a forward pass may change.

    Inside, random numbers begin with the same seed each time, so that of two passes only what was
    edited differs; with None they go on as they would outside.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> before = torch.get_rng_state(), model[0].running_mean.clone()
    >>> with untouched(model):
    ...     _ = model(torch.randn(8, 2))
    >>> torch.equal(before[0], torch.get_rng_state()), torch.equal(before[1], model[0].running_mean)
    (True, True)
    """
    buffers = [(each, each.detach().clone()) for each in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    state = _random_state()
    try:
        if seed is not None:
            torch.manual_seed(seed)
        yield
    finally:
        _restore_random_state(state)
        for buffer, copy in buffers:
            if not torch.equal(buffer, copy):
                # Past the version counter: the graph of the pass may hold the buffer.
                buffer.data.copy_(copy)
        for module, is_training in modes:
            module.training = is_training


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the random numbers back to where they were."""
    state = _random_state()
    try:
        yield
    finally:
        _restore_random_state(state)


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
