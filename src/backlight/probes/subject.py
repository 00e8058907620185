"""What probes are tried on: copies of a model, a batch and an optimizer, never the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from backlight.errors import BacklightError

LossFunction = Callable[[Any, Any], torch.Tensor]


@dataclass
class Subject:
    """A model to try things on, with a batch and a loss."""

    model: nn.Module
    inputs: Any
    target: Any
    loss_fn: LossFunction
    optimizer: torch.optim.Optimizer | None

    def fresh(self) -> nn.Module:
        """A copy of the model as the user has it."""
        return copy.deepcopy(self.model)

    def answer(self, model: nn.Module, inputs: Any = None) -> Any:
        """What a model says to the batch, or to other inputs."""
        given = self.inputs if inputs is None else inputs
        if isinstance(given, Mapping):
            return model(**given)
        return model(*given) if isinstance(given, (tuple, list)) else model(given)

    def loss(self, model: nn.Module) -> torch.Tensor:
        """The loss of a model on the batch."""
        return self.loss_fn(self.answer(model), self.target)

    def optimizer_for(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """An optimizer like the user's, for a copy of the model, without its state."""
        if self.optimizer is None:
            return None
        own = {id(p): name for name, p in self.model.named_parameters()}
        copies = dict(model.named_parameters())
        groups = []
        for group in self.optimizer.param_groups:
            named = [own[id(p)] for p in group["params"] if id(p) in own]
            if named:
                settings = {key: value for key, value in group.items() if key != "params"}
                groups.append({**settings, "params": [copies[name] for name in named]})
        if not groups:
            return None
        made = copy.copy(self.optimizer)
        made.__dict__ = {**self.optimizer.__dict__}
        made.param_groups, made.state = groups, type(self.optimizer.state)(dict)
        return made

    @property
    def tensor(self) -> torch.Tensor | None:
        """The first tensor of the inputs."""
        given = self.inputs
        if isinstance(given, Mapping):
            given = list(given.values())
        if isinstance(given, (tuple, list)):
            return next((each for each in given if isinstance(each, torch.Tensor)), None)
        return given if isinstance(given, torch.Tensor) else None

    def with_tensor(self, changed: torch.Tensor) -> Any:
        """The inputs, with another tensor in the place of their first one."""
        first, given = self.tensor, self.inputs
        if isinstance(given, Mapping):
            return {key: changed if each is first else each for key, each in given.items()}
        if isinstance(given, (tuple, list)):
            return [changed if each is first else each for each in given]
        return changed


def make_subject(
    model: nn.Module, batch: Any, loss_fn: LossFunction, optimizer: torch.optim.Optimizer | None
) -> Subject:
    """Check what was given, and copy it."""
    if not isinstance(model, nn.Module):
        raise BacklightError(f"check() got a {type(model).__name__} as model: pass a Module.")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise BacklightError("check() needs a batch of (inputs, targets).")
    if not callable(loss_fn):
        raise BacklightError("check() needs a loss function of (output, target).")
    inputs, target = (_copied(part) for part in batch)
    return Subject(model, inputs, target, loss_fn, optimizer)


def _copied(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.detach().clone()
    if isinstance(part, Mapping):
        return {key: _copied(each) for key, each in part.items()}
    if isinstance(part, (tuple, list)):
        return [_copied(each) for each in part]
    return part


def first_tensor(output: Any) -> torch.Tensor | None:
    """The first tensor of what a model returns."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return next((found for each in output if (found := first_tensor(each)) is not None), None)
    return None
