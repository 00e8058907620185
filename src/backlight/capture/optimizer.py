"""Sees the steps of optimizers: where a training step ends, and what it did."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from backlight.capture.calls.describe import describe
from backlight.errors import BacklightError, Guard

Hook: TypeAlias = Callable[[torch.optim.Optimizer, Any, Any], None]

MOST_UPDATES: Final = 128
"""So often may others step while an optimizer does not, before it is waited for no longer."""


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


def that_steps(optimizer: object) -> object:
    """The optimizer whose steps can be seen: itself, or the one that it wraps.

    One that does not call torch's own `__init__`, such as that of Accelerate, has no hooks.

    >>> class Wrapper(torch.optim.Optimizer):
    ...     def __init__(self, inside: torch.optim.Optimizer) -> None:
    ...         self.inside = inside
    >>> inside = torch.optim.SGD(nn.Linear(1, 1).parameters())
    >>> that_steps(Wrapper(inside)) is that_steps(inside) is inside
    True
    """
    while isinstance(optimizer, torch.optim.Optimizer) and not _has_hooks(optimizer):
        inside = [each for each in vars(optimizer).values() if _is_other(each, optimizer)]
        if len(inside) != 1:
            raise BacklightError(
                f"The {type(optimizer).__name__} optimizer does not call the __init__ of "
                "torch.optim.Optimizer, so its steps cannot be seen: pass the one that it wraps."
            )
        optimizer = inside[0]
    return optimizer


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def _is_other(value: object, optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(value, torch.optim.Optimizer) and value is not optimizer


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
    """An optimizer whose steps are hooked, before and after, until it is detached."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, before: Hook, after: Hook) -> None:
        self.reference = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.has_closure = False  # the step under way makes its gradients itself
        self.depth = 0  # of its steps that are under way: one may call that of its base class
        self.passes = 0  # that the step had when the outermost of them began
        self.last_step = -1  # that it made an update in, or was to make one
        self.left_out = 0  # updates in a row that a scaler of gradients did not make
        self._handles = [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        ]

    def begin(self, args: Any, kwargs: Any) -> None:
        """Its step begins, which is given these arguments."""
        # Torch passes the optimizer itself on as the first argument.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self.has_closure = callable(closure)

    def watches(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is this optimizer."""
        return self.reference() is optimizer

    @property
    def is_gone(self) -> bool:
        """Whether the user has let go of the optimizer."""
        return self.reference() is None

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            _take_off(handle)

    def held(self) -> list[int]:
        """The identities of the parameters that the optimizer trains now."""
        optimizer = self.reference()
        groups = [] if optimizer is None else optimizer.param_groups
        return [id(parameter) for group in groups for parameter in group["params"]]

    def learning_rate(self) -> float | None:
        """That of the first group of parameters, if it can be read without waiting."""
        optimizer = self.reference()
        rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
        if isinstance(rate, torch.Tensor):
            return float(rate.item()) if rate.is_cpu and rate.numel() == 1 else None
        return float(rate) if isinstance(rate, (int, float)) else None

    def describe(self, own: Collection[int]) -> dict[str, Any]:
        """The class and the settings of each group, for `run.json`.

        A group says how many parameters it holds, and how many of those are `own`, the models'.
        """
        optimizer = self.reference()
        if optimizer is None:
            return {}
        groups = [_settings(group, own) for group in optimizer.param_groups]
        return {"class": type(optimizer).__name__, "groups": groups}

    def states(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """What the optimizer keeps for each parameter: tensors, and its step counter."""
        optimizer = self.reference()
        return {} if optimizer is None else optimizer.state


class Optimizers:
    """Those that are watched: a step ends when each has stepped that is there and not idle.

    One that the user lets go of is replaced by the next that steps and trains the models.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        before: Hook,
        after: Hook,
        own: Callable[[], Collection[int]],
        on_change: Callable[[str], None],
        guard: Guard,
    ) -> None:
        self._before, self._after = before, after
        self._own = own  # the identities of the models' parameters
        self._on_change = on_change
        self._guard = guard
        self._updates: Counter[OptimizerCapture] = Counter()  # in the step under way
        self._idle: set[OptimizerCapture] = set()
        self._looking: Any = None
        self.all = [OptimizerCapture(each, before=before, after=after) for each in optimizers]

    def begin(self) -> None:
        """A step begins: all that are there are waited for."""
        for each in self.all:
            each.depth = 0  # what an exception cut short is over
            if each.reference() is None and self._looking is None:
                self._looking = register_optimizer_step_pre_hook(self._on_any_step)

    def find(self, optimizer: torch.optim.Optimizer) -> OptimizerCapture | None:
        """The one of them that is this optimizer."""
        for each in self.all:
            if each.reference() is optimizer:
                return each
        return None

    def sole(self) -> weakref.ref[torch.optim.Optimizer] | None:
        """The only one, where it is."""
        return self.all[0].reference if len(self.all) == 1 else None

    def has_ended(self, optimizer: OptimizerCapture) -> bool:
        """An optimizer has stepped; the answer is whether the training step ends with that."""
        if len(self.all) == 1:
            return True
        self._updates[optimizer] += 1
        self._idle.discard(optimizer)
        missing = [each for each in self._waited_for() if not self._updates[each]]
        if missing and self._updates[optimizer] >= MOST_UPDATES:
            self._idle.update(missing)
            names = ", ".join(each.name for each in missing)
            self._on_change(
                f"steps end without {names}, which stayed idle for {MOST_UPDATES} updates"
            )
            return True
        return not missing

    def end(self) -> None:
        """The step has ended."""
        self._updates.clear()
        if self._looking is not None and not any(each.is_gone for each in self.all):
            self._looking.remove()  # torch is through with the hooks before a step
            self._looking = None

    def detach(self) -> None:
        """Remove every hook."""
        for each in self.all:
            each.detach()
        if self._looking is not None:
            _take_off(self._looking)
            self._looking = None

    def _waited_for(self) -> list[OptimizerCapture]:
        return [each for each in self.all if each not in self._idle and not each.is_gone]

    def _on_any_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take an optimizer that steps for one that is gone; its own hooks are then called too."""
        with self._guard("looking for another optimizer"):
            self._look_at(optimizer)

    def _look_at(self, optimizer: torch.optim.Optimizer) -> None:
        gone = [place for place, each in enumerate(self.all) if each.is_gone]
        if not gone or any(each.watches(optimizer) for each in self.all):
            return
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if not set(self._own()).isdisjoint(held):
            new = OptimizerCapture(optimizer, before=self._before, after=self._after)
            old, self.all[gone[0]] = self.all[gone[0]], new
            self._idle.discard(old)
            # The hook stays until the step ends: torch is going through the dict that holds it.
            self._on_change(f"{new.name} steps in place of {old.name}, which is gone")


def _take_off(handle: RemovableHandle) -> None:
    """Remove a hook, or put nothing in its place where torch is going through the hooks.

    So it does where a hook of the user's ends the run inside of an optimizer's step.
    """
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks and _is_in_step():
        hooks[handle.id] = _pass_over
    else:
        handle.remove()


def _is_in_step() -> bool:
    """Whether an optimizer's step is under way in this thread."""
    frame = sys._getframe(1)
    source = torch_optimizer.__file__
    while frame.f_code.co_filename != source and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename == source


def _pass_over(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """A hook that was taken off."""


def _settings(group: Mapping[str, Any], own: Collection[int]) -> dict[str, Any]:
    held = [id(parameter) for parameter in group["params"]]
    told = {key: describe(value) for key, value in group.items() if key != "params"}
    return {**told, "parameters": len(held), "own_parameters": len(set(held) & set(own))}
