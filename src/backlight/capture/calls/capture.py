"""Sees the functions that the user's code calls.

A `TorchFunctionMode` stands on torch's stack of modes from the first forward pass of a recorded
step until the optimizer steps, and sees every call of torch's API in that thread. Nothing is
patched, so it does not matter how a function was imported. What runs inside `torch.compile`, in a
transform of `torch.func`, under tracing, on fake tensors, in another thread, inside a backward pass
or in a module that has a fast path is not looked at. A function that was compiled without the mode
is compiled once more with it, because the compiler guards on the stack of modes; its graph stays
whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from backlight.capture.apart import is_apart
from backlight.capture.calls import mode_stack
from backlight.capture.calls.book import CallBook, FunctionCall
from backlight.capture.calls.clipping import CLIPPERS, CLIPPING, CLIPPING_CALLS, clipping_in
from backlight.capture.calls.describe import describe
from backlight.capture.calls.fast_paths import FastPaths
from backlight.capture.calls.functions import FUNCTIONS, Watched, watched_functions
from backlight.capture.calls.quiet import Quiet
from backlight.capture.calls.source import Line, find_caller, line_of
from backlight.capture.modules import is_in_backward


class CallCapture:
    """Sees the calls of watched functions between `attach()` and `detach()`.

    A backward pass runs inside of `around_backward()`.

    >>> from torch.nn import functional
    >>> capture = CallCapture(current_module=lambda: "")
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> capture.attach()
    >>> loss = functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
    >>> loss.backward()
    >>> capture.detach()
    >>> first, second = capture.take()
    >>> first.function, first.code, first.arguments["target"]["max"]
    ('torch.nn.functional.cross_entropy', 'loss = functional.cross_entropy(...)', 2)
    >>> second.function, second.arguments["input"]["made_by"]
    ('torch.Tensor.backward', 'NllLossBackward0')
    """

    def __init__(
        self,
        current_module: Callable[[], str],
        on_fault: Callable[[str, Exception], None] | None = None,
        *,
        around_backward: Callable[[], AbstractContextManager[None]] = nullcontext,
        functions: frozenset[str] = FUNCTIONS,
    ) -> None:
        self.iteration = 0
        self._current_module = current_module
        self._on_fault = on_fault
        self._around_backward = around_backward
        self._mode = _Mode(self, functions)
        self._fast_paths = FastPaths(self._step_aside, self._step_in)
        self._thread = 0  # the one in which it is attached
        self._book = CallBook()
        self._lines: dict[tuple[str, int], Line] = {}
        self._sees_clipping = not functions.isdisjoint(CLIPPERS)

    def attach(self) -> None:
        """Begin to look, in this thread. A second call does nothing."""
        self._step_in()
        self._fast_paths.attach()
        self._thread = get_ident()

    def detach(self) -> None:
        """Stop looking, whatever modes the user has entered since, and leave only theirs.

        Inside a backward pass, or in another thread, the mode cannot be taken off the stack: it is
        blind from then on, and the next call of this where it stands removes it.
        """
        self._thread = 0
        self._fast_paths.detach()
        self._step_aside()

    def take(self) -> list[FunctionCall]:
        """The calls since the last `take()`, in order."""
        if not self._book.calls:
            return []
        book, self._book = self._book, CallBook()
        return book.calls

    def call(
        self, watched: Watched, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a watched function and record the call."""
        begun = self._begin(watched, args, kwargs, sys._getframe(2))
        if begun is None:
            return function(*args, **kwargs)
        if watched.starts_backward:
            with self._around_backward():
                return begun.call(function, args, kwargs)
        result = begun.call(function, args, kwargs)
        self._end(begun, watched, result)
        return result

    def _step_in(self) -> None:
        try:
            mode_stack.enter(self._mode)
        except Exception as error:
            self._fault("entering the stack of modes", error)

    def _step_aside(self) -> None:
        try:
            mode_stack.leave(self._mode)
        except Exception as error:
            self._fault("leaving the stack of modes", error)

    def _begin(
        self, watched: Watched, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> _Begun | None:
        """What is known of a call before it runs, since it may change its arguments in place."""
        if self._thread != get_ident() or is_apart() or _is_unreal():
            return None
        try:
            with Quiet():
                if frame.f_globals is CLIPPING:
                    self._see_clipping(frame, args)
                    return None
                bound = watched.bind(args, kwargs)
                if not watched.is_worth(bound) or FakeTensor in map(type, bound.values()):
                    return None
                caller = find_caller(frame)
                if caller is None:
                    return None
                begun = self._new(watched.name, watched.describe(bound), caller)
                if watched.starts_backward:
                    self._book.add(begun.ended(None))
                return begun
        except Exception as error:
            self._fault(f"reading the arguments of {watched.name}", error)
            return None

    def _end(self, begun: _Begun, watched: Watched, result: Any) -> None:
        try:
            with Quiet():
                told = describe(result, is_measured=watched.measured is None)
            self._book.add(begun.ended(told))
        except Exception as error:
            self._fault(f"reading the result of {watched.name}", error)

    def _new(self, function: str, arguments: dict[str, Any], caller: FrameType) -> _Begun:
        key = (caller.f_code.co_filename, caller.f_lineno)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = line_of(caller)
        call = FunctionType(line.calling, caller.f_globals)
        return _Begun(function, self._current_module(), self.iteration, arguments, line, call)

    def _see_clipping(self, frame: FrameType, args: tuple[Any, ...]) -> None:
        seen = clipping_in(frame, args) if self._sees_clipping else None
        if seen is not None and (caller := find_caller(seen.caller)) is not None:
            begun = self._new(seen.function, seen.arguments, caller)
            self._book.add(begun.ended(seen.total_norm))

    def _fault(self, doing: str, error: Exception) -> None:
        if self._on_fault is not None:
            self._on_fault(doing, error)


class _Mode(TorchFunctionMode):
    def __init__(self, capture: CallCapture, functions: frozenset[str]) -> None:
        super().__init__()
        self._capture = capture
        self._watched = dict(watched_functions(functions))
        if not functions.isdisjoint(CLIPPERS):
            self._watched = {**CLIPPING_CALLS, **self._watched}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # First of all, so that the compiler traces through without a graph break.
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        try:
            watched = self._watched.get(func)
        except TypeError:  # other libraries' functions need not be hashable
            watched = None
        if watched is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._capture.call(watched, func, args, kwargs or {})


class _Begun(NamedTuple):
    """A call before its result is known."""

    function: str
    module: str
    iteration: int
    arguments: dict[str, Any]
    line: Line
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]  # calls a function from the line

    def ended(self, result: Any) -> FunctionCall:
        return FunctionCall(*self[:4], result, self.line.source, self.line.text)


def _is_unreal() -> bool:
    """Whether this is inside a backward pass, a trace, or a transform of `torch.func`."""
    return (
        is_in_backward()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
