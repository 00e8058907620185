"""Runs a model and leaves it as it was: what a forward pass changes is put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from backlight.capture.apart import apart

SEED = 0


class Copies:
    """What a pass ran on instead of the parameters themselves."""

    def __init__(self, model: nn.Module) -> None:
        self._pairs: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        for module in model.modules():
            for name, own in module._parameters.items():
                if type(own) is nn.Parameter:
                    module._parameters[name] = self._copy_of(own)

    def _copy_of(self, own: nn.Parameter) -> nn.Parameter:
        if id(own) not in self._pairs:
            copy = nn.Parameter(own.detach().clone(), own.requires_grad)
            self._pairs[id(own)] = own, copy
        return self._pairs[id(own)][1]

    def have_changed(self) -> bool:
        """Whether the pass changed any of them."""
        return not all(_is_same(own.detach(), copy.detach()) for own, copy in self._pairs.values())


@contextmanager
def untouched(
    model: nn.Module, *, seed: int | None = SEED, on_copies: bool = False
) -> Iterator[Copies | None]:
    """Put everything back that a forward pass may change; no run records it.

    Inside, random numbers begin with the same seed each time, so that of two passes only what was
    edited differs; with None they go on as they would outside. A model that changes its own
    parameters while it runs is to be run `on_copies` of them: their gradient needs them changed.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> before = torch.get_rng_state(), model[0].running_mean.clone()
    >>> with untouched(model):
    ...     _ = model(torch.randn(8, 2))
    >>> torch.equal(before[0], torch.get_rng_state()), torch.equal(before[1], model[0].running_mean)
    (True, True)
    """
    buffers = [(each, each.detach().clone()) for each in model.buffers()]
    modules = [(each, each.training, _tables(each)) for each in model.modules()]
    state = _random_state()
    try:
        if seed is not None:
            torch.manual_seed(seed)
        with apart():
            yield Copies(model) if on_copies else None
    finally:
        _restore_random_state(state)
        for buffer, copy in buffers:
            if not _is_same(buffer, copy):
                # Past the version counter: the graph of the pass may hold the buffer.
                buffer.data.copy_(copy)
        for module, is_training, tables in modules:
            module.training = is_training
            for table, before in tables:
                table.clear()
                table.update(before)


def _tables(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Which tensors a module holds, now and later: a pass may put others in their place."""
    held: list[dict[str, Any]] = [module._parameters, module._buffers]
    return [(table, dict(table)) for table in held]


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, or NaN in both."""
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


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
