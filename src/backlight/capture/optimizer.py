"""Sees the steps of optimizers: where a training step ends, and what it did."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from backlight.capture.calls.describe import describe
from backlight.errors import BacklightError


def check_models(models: Mapping[str, object]) -> None:
    """Refuse what is no model, and a model that has nothing to train."""
    if not models:
        raise BacklightError("watch() got no model: pass the torch.nn.Module that you train.")
    names = list(models)
    for name in names:
        if not isinstance(name, str):
            raise BacklightError(f"watch() got {name!r} as the name of a model: use a text.")
        if any(other.startswith(f"{name}.") for other in names):
            raise BacklightError(
                f"The names of models {', '.join(map(repr, names))} cannot be told from those of "
                f"modules inside of {name!r}: use names of which none begins another one."
            )
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
    if not optimizers:
        raise BacklightError(
            "watch() got no optimizer: pass the torch.optim.Optimizer whose step() ends a "
            "training step."
        )
    if len(set(map(id, optimizers))) < len(optimizers):
        raise BacklightError("watch() got one optimizer twice: pass each once.")
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
        self.has_closure = False  # the step under way makes its gradients itself
        self._before, self._after = before, after
        self._handles = [
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(lambda *_: self._after(self)),
        ]

    def _on_step(self, optimizer: object, args: Any, kwargs: Any) -> None:
        # Torch passes the optimizer itself on as the first argument.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self.has_closure = callable(closure)
        self._before(self)

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def held(self) -> list[int]:
        """The identities of the parameters that the optimizer trains now."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [id(parameter) for group in groups for parameter in group["params"]]

    def learning_rate(self) -> float | None:
        """That of the first group of parameters, if it can be read without waiting."""
        optimizer = self._optimizer()
        rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
        if isinstance(rate, torch.Tensor):
            return float(rate.item()) if rate.is_cpu and rate.numel() == 1 else None
        return float(rate) if isinstance(rate, (int, float)) else None

    def describe(self, own: Collection[int]) -> dict[str, Any]:
        """The class and the settings of each group, for `run.json`.

        A group says how many parameters it holds, and how many of those are `own`, the models'.
        """
        optimizer = self._optimizer()
        if optimizer is None:
            return {}
        groups = [_settings(group, own) for group in optimizer.param_groups]
        return {"class": type(optimizer).__name__, "groups": groups}

    def states(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """What the optimizer keeps for each parameter: tensors, and its step counter."""
        optimizer = self._optimizer()
        return {} if optimizer is None else optimizer.state


def _settings(group: Mapping[str, Any], own: Collection[int]) -> dict[str, Any]:
    held = [id(parameter) for parameter in group["params"]]
    told = {key: describe(value) for key, value in group.items() if key != "params"}
    return {**told, "parameters": len(held), "own_parameters": len(set(held) & set(own))}
