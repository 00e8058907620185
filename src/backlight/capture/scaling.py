"""Sees scalers of gradients step optimizers, or leave that out where gradients are not finite.

While a run is recorded, `torch.amp.GradScaler.step`, which all scalers of torch have, is replaced
by a method that tells of the optimizer before and after it calls the one that was there: of an
update that is left out, no hook on the optimizer is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, Final, Protocol

import torch
from torch.amp import GradScaler

_TOLD_AT_ONCE: Final = 8
"""So many updates in a row that are left out are told one by one, then each time they double."""


class Listener(Protocol):
    """What a recorder wants to know of scalers."""

    def before_scaled(self, optimizer: torch.optim.Optimizer, scaler: GradScaler) -> None:
        """A scaler is to step an optimizer, unless gradients are not finite."""

    def after_scaled(self, optimizer: torch.optim.Optimizer) -> None:
        """It has done so, or left it out."""


_listeners: dict[Listener, int] = {}  # with the thread that each listens in
_original: Callable[..., Any] | None = None


def listen(listener: Listener) -> None:
    """Tell `listener` of every step of an optimizer that a scaler makes in this thread."""
    global _original
    if not _listeners:
        _original = GradScaler.step
        GradScaler.step = _telling(_original)  # type: ignore[method-assign]
    _listeners[listener] = get_ident()


def ignore(listener: Listener) -> None:
    """Tell it no more; the last one leaves torch as it was."""
    global _original
    was_listening = _listeners.pop(listener, None) is not None
    if was_listening and not _listeners and hasattr(GradScaler.step, "_is_backlights"):
        GradScaler.step = _original  # type: ignore[method-assign,assignment]
        _original = None


def is_told(times: int) -> bool:
    """Whether it is told that an update was left out, so many times in a row.

    >>> [times for times in range(1, 40) if is_told(times)]
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    """
    return times <= _TOLD_AT_ONCE or times & (times - 1) == 0


def _telling(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def step(
        scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        told = [each for each, thread in _listeners.items() if thread == get_ident()]
        for listener in told:
            listener.before_scaled(optimizer, scaler)
        answer = original(scaler, optimizer, *args, **kwargs)
        for listener in told:
            listener.after_scaled(optimizer)
        return answer

    step._is_backlights = True  # type: ignore[attr-defined]
    return step
