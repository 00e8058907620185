"""Sees where backward passes start: that is the loss, whatever it is called.

While a run is recorded, `torch.autograd.backward`, which `Tensor.backward` calls, is replaced by a
function that tells of the tensors and then calls it. Gradients that are asked for by
`torch.autograd.grad` start from no loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import get_ident
from typing import Any

import torch

from backlight.reduce import native

Listener = Callable[[torch.Tensor], None]
_listeners: dict[Listener, int] = {}  # with the thread that each listens in
_original: Callable[..., Any] | None = None


def listen(listener: Listener) -> None:
    """Tell `listener` of every tensor that a backward pass in this thread starts from."""
    global _original
    if not _listeners:
        _original = torch.autograd.backward
        torch.autograd.backward = _telling(_original)
    _listeners[listener] = get_ident()


def ignore(listener: Listener) -> None:
    """Tell it no more; the last one leaves torch as it was."""
    global _original
    was_listening = _listeners.pop(listener, None) is not None
    replaced = torch.autograd.backward
    if was_listening and not _listeners and getattr(replaced, "_is_backlights", False):
        torch.autograd.backward = _original  # type: ignore[assignment]
        _original = None


def number_of(tensor: torch.Tensor) -> float | None:
    """A loss as a number, if it is one and reading it waits for no device.

    >>> number_of(torch.tensor(0.5)), number_of(torch.ones(2))
    (0.5, None)
    """
    is_plain = type(tensor) is torch.Tensor and tensor.is_cpu and tensor.numel() == 1
    return float(tensor.item()) if is_plain and not tensor.is_complex() else None


def _telling(original: Callable[..., Any]) -> Any:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(tensors)
        return original(tensors, *args, **kwargs)

    # By the kernel, because there is one in every step, recorded or not.
    by_kernel = native.is_available()
    telling: Any = native.new_ear(original, _listeners, _tell) if by_kernel else backward
    update_wrapper(telling, original)
    telling._is_backlights = True
    return telling


def _tell(tensors: Any) -> None:
    roots = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    for listener, thread in tuple(_listeners.items()):
        if thread == get_ident() and isinstance(roots, (tuple, list)):
            for root in roots:
                if isinstance(root, torch.Tensor):
                    listener(root)
