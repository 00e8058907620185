"""Torch's stack of function modes: a mode of ours lies below those of the user."""

from __future__ import annotations

from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._device import DeviceContext


def enter(mode: TorchFunctionMode) -> None:
    """Put a mode below those of the user, each of which pops whatever is on top when it ends.

    One that lies there already is only moved.
    """
    stack = [each for each in _get_current_function_mode_stack() if each is not mode]
    place = 1 if stack and _is_default_device(stack[0]) else 0
    _rebuild([*stack[:place], mode, *stack[place:]])


def _is_default_device(mode: TorchFunctionMode) -> bool:
    """Whether this is the mode of `torch.set_default_device`, which insists on the bottom.

    `with torch.device(...)` makes one of the same class, but like others it pops what is on top;
    it is never entered by its own `__enter__`, and so has not noted an older device.
    """
    return isinstance(mode, DeviceContext) and {"old_device", "prev_mode"} <= vars(mode).keys()


def leave(mode: TorchFunctionMode) -> None:
    """Take a mode away from wherever it lies, and leave the others as they are."""
    stack = _get_current_function_mode_stack()
    if any(each is mode for each in stack):
        _rebuild([each for each in stack if each is not mode])


def _rebuild(stack: list[TorchFunctionMode]) -> None:
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in stack:
        _push_mode(mode)
