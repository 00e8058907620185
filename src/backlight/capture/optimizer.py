"""Sees an optimizer's steps: where one training step ends, and what it did."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from backlight.errors import BacklightError


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A parameter of the model under its first name; tied ones have `aliases`."""

    module: str
    module_class: str
    place: str
    aliases: tuple[str, ...]
    parameter: weakref.ref[nn.Parameter]


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Every parameter once, in the model's order, with all its names.

    >>> layer = nn.Linear(2, 2)
    >>> model = nn.Sequential(layer, layer)
    >>> [(p.module, p.place, p.aliases) for p in named_parameters(model)]
    [('0', 'weight', ('1.weight',)), ('0', 'bias', ('1.bias',))]
    """
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    return [_named(model, names[key], parameters[key]) for key in names]


def _named(model: nn.Module, names: list[str], parameter: nn.Parameter) -> NamedParameter:
    module, _, place = names[0].rpartition(".")
    module_class = type(model.get_submodule(module)).__name__
    return NamedParameter(module, module_class, place, tuple(names[1:]), weakref.ref(parameter))


def check_belongs(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a model that cannot be trained, and an optimizer that trains something else."""
    if not isinstance(model, nn.Module):
        raise BacklightError(
            f"watch() got a {type(model).__name__} as model: "
            "pass the torch.nn.Module that you train."
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BacklightError(
            f"watch() got a {type(optimizer).__name__} as optimizer: "
            "pass the torch.optim.Optimizer whose step() ends a training step."
        )
    own = {id(parameter) for parameter in model.parameters()}
    if not own:
        raise BacklightError(
            f"The model {type(model).__name__} has no parameters, so there is nothing to train: "
            "watch the module that holds the layers (are they kept in a plain list or dict?)."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not own & held:
        raise BacklightError(
            f"The {type(optimizer).__name__} optimizer holds none of the parameters of "
            f"{type(model).__name__}: make it from this model's parameters() and watch both."
        )


class OptimizerCapture:
    """Calls back before and after each step of an optimizer, until it is detached."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: before()),
            optimizer.register_step_post_hook(lambda *_: after()),
        ]

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def states(self, parameter: nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that the optimizer keeps for a parameter, but for its step counter."""
        optimizer = self._optimizer()
        state: dict[str, Any] = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and key != "step":
                yield str(key), value
