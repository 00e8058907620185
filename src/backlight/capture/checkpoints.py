"""Sees where reentrant checkpointing runs something: without gradients at first, yet to train it.

While a run is recorded, `CheckpointFunction.apply`, which `torch.utils.checkpoint` calls for that,
is replaced by a function that tells of it before and after it calls the one that was there. An
evaluation, which has no gradients around the checkpoint either, is not told of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import torch
from torch.utils.checkpoint import CheckpointFunction


class Listener(Protocol):
    """What a recorder wants to know of checkpoints."""

    def before_checkpoint(self) -> bool:
        """Something is run that is run again in the backward pass, to have gradients then.

        The answer is whether to tell when it has run.
        """

    def after_checkpoint(self) -> None:
        """It has run."""


_listeners: dict[Listener, None] = {}


def listen(listener: Listener) -> None:
    """Tell `listener` of every such checkpoint, in whichever thread."""
    if not _listeners:
        CheckpointFunction.apply = _telling(CheckpointFunction.apply)  # type: ignore[method-assign]
    _listeners[listener] = None


def ignore(listener: Listener) -> None:
    """Tell it no more; the last one leaves torch as it was."""
    was_listening = listener in _listeners
    _listeners.pop(listener, None)
    replaced = vars(CheckpointFunction).get("apply")
    if was_listening and not _listeners and hasattr(replaced, "_is_backlights"):
        del CheckpointFunction.apply  # the class has it from the one that it is derived from


def _telling(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def apply(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, **keywords)
        told = [each for each in tuple(_listeners) if each.before_checkpoint()]
        try:
            return original(*args, **keywords)
        finally:
            for listener in told:
                listener.after_checkpoint()

    apply._is_backlights = True  # type: ignore[attr-defined]
    return apply
