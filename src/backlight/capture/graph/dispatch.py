"""A mode that tells of every operation below autograd, and lies below the user's modes.

Theirs are entered and left above it, in whatever order, and take no notice; a mode on top would be
popped in place of the user's by their `with` block.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

import torch
from torch.utils import _python_dispatch as dispatch

from backlight.capture.compiling import is_in_compiled_call

_KEYS: Final = torch._C._TorchDispatchModeKey
_FAKE, _PROXY, _FUNCTIONAL = _KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL


class Listener(Protocol):
    """Who wants to know of operations."""

    def is_listening(self) -> bool:
        """Whether an operation that has run now is of interest."""

    def note(
        self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
    ) -> None:
        """An operation has run."""


class Mode(dispatch.TorchDispatchMode):
    """Tells a listener of every operation, and changes none; does nothing once that is gone."""

    supports_higher_order_operators = True  # without it, torch refuses to run them under a mode

    def __init__(self, listener: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = weakref.ref(listener)
        self._is_entered = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile as if the mode were not there."""
        return True

    def enter(self) -> None:
        """Go to the bottom of this thread's stack of modes."""
        self._is_entered = True
        _put([self, *_take()])

    def leave(self) -> None:
        """Leave the stack, wherever this lies in it, or wait for `sweep` where that cannot be."""
        was_entered, self._is_entered = self._is_entered, False
        is_here = any(mode is self for mode in dispatch._get_current_dispatch_mode_stack())
        if is_here and not is_in_compiled_call():
            _put([mode for mode in _take() if mode is not self])
        elif was_entered:
            _stranded.add(self)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        listener = self._listener()
        if listener is not None and listener.is_listening():
            listener.note(func, args, kwargs or {}, result)
        return result


_stranded: weakref.WeakSet[Mode] = weakref.WeakSet()
"""Modes that lie on a stack still: they ended in another thread, or in a compiled function."""


def is_swept() -> bool:
    """Whether there are none."""
    return not _stranded


def stranded() -> Collection[object]:
    """Those that could not be taken away, and maybe such as are gone by now."""
    data: set[object] = vars(_stranded)["data"]
    return data


def sweep(*, is_last: bool = False) -> None:
    """Take those away that lie on this thread's stack.

    The last time, look also for such as nobody listens to: an interrupt came in between.
    """
    if not (_stranded or is_last) or is_in_compiled_call():
        return
    here = [mode for mode in dispatch._get_current_dispatch_mode_stack() if _is_over(mode)]
    if here:
        _put([mode for mode in _take() if mode not in here])
        _stranded.difference_update(here)


def _is_over(mode: dispatch.TorchDispatchMode) -> bool:
    return isinstance(mode, Mode) and (mode in _stranded or mode._listener() is None)


def is_supported() -> bool:
    """Whether this torch can run every operation under a mode of ours."""
    return hasattr(dispatch.TorchDispatchMode, "supports_higher_order_operators")


def is_symbolic() -> bool:
    """Whether tensors have no values now: they are being traced, compiled or faked."""
    mode_of = torch._C._get_dispatch_mode
    return (
        torch.compiler.is_compiling()
        or mode_of(_FAKE) is not None
        or mode_of(_PROXY) is not None
        or mode_of(_FUNCTIONAL) is not None
    )


def _take() -> list[dispatch.TorchDispatchMode]:
    """Take all modes off this thread's stack; the lowest comes first."""
    count = len(dispatch._get_current_dispatch_mode_stack())
    return [dispatch._pop_mode() for _ in range(count)][::-1]


def _put(modes: list[dispatch.TorchDispatchMode]) -> None:
    for mode in modes:
        dispatch._push_mode(mode)
