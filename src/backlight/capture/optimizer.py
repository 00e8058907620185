"""Sees the steps of optimizers: where a training step ends, and what it did."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from backlight.errors import BacklightError


def check_models(models: Mapping[str, object]) -> None:
    """Refuse what is no model, and a model that has nothing to train."""
    for model in models.values():
        if not isinstance(model, nn.Module):
            raise BacklightError(
                f"watch() got a {type(model).__name__} as model: "
                "pass the torch.nn.Module that you train."
            )
        if next(model.parameters(), None) is None:
            raise BacklightError(
                f"The model {type(model).__name__} has no parameters, so there is nothing to "
                "train: watch the module that holds the layers (are they kept in a plain list or "
                "dict?)."
            )


def check_optimizers(models: Mapping[str, nn.Module], optimizers: list[object]) -> None:
    """Refuse what is no optimizer, and an optimizer that trains something else."""
    own = {id(p) for model in models.values() for p in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BacklightError(
                f"watch() got a {type(optimizer).__name__} as optimizer: "
                "pass the torch.optim.Optimizer whose step() ends a training step."
            )
        if own.isdisjoint(id(p) for group in optimizer.param_groups for p in group["params"]):
            names = ", ".join(type(model).__name__ for model in models.values())
            raise BacklightError(
                f"The {type(optimizer).__name__} optimizer holds none of the parameters of "
                f"{names}: make it from this model's parameters() and watch both."
            )


class OptimizerCapture:
    """Calls back before and after each step of an optimizer, until it is detached."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        before: Callable[[OptimizerCapture], None],
        after: Callable[[OptimizerCapture], None],
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: before(self)),
            optimizer.register_step_post_hook(lambda *_: after(self)),
        ]

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def held(self) -> set[int]:
        """The identities of the parameters that the optimizer trains now."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return {id(parameter) for group in groups for parameter in group["params"]}

    def states(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that the optimizer keeps for a parameter, but for its step counter."""
        optimizer = self._optimizer()
        state: dict[str, Any] = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and key != "step":
                yield str(key), value
