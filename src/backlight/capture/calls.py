"""The loss functions and other functionals that the user's code calls, with their arguments.

A `TorchFunctionMode` stands on torch's stack of modes from the first forward pass of a recorded
step until the optimizer steps, and sees every call of torch's API in that thread. Nothing is
patched, so it does not matter how a function was imported. What runs inside `torch.compile`, in a
transform of `torch.func`, under tracing, on fake tensors, in another thread or inside a backward
pass is not looked at. A function that was compiled without the mode is compiled once more with it,
because the compiler guards on the stack of modes; its graph stays whole.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import grad_scaler
from torch.nn.utils import clip_grad
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._device import DeviceContext

from backlight.capture.call_arguments import (
    FUNCTIONS,
    Quiet,
    Watched,
    describe,
    form,
    merge,
    watched_functions,
)

MOST_CALLS: Final = 10_000
"""So many records are kept between two `take()`; further ones are dropped."""

MOST_CALLS_OF_A_LINE: Final = 50
"""Further calls of one line are folded where they differ in nothing but their values."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function. A folded one has the number of calls in `arguments["repeats"]`."""

    function: str  # torch.nn.functional.cross_entropy
    module: str  # the module whose forward it ran in; "" is the loop itself
    iteration: int
    arguments: dict[str, Any]
    result: Any
    source: str  # file:line
    code: str  # that line


class CallCapture:
    """Sees the calls of watched functions between `attach()` and `detach()`.

    >>> from torch.nn import functional
    >>> losses = []
    >>> capture = CallCapture(current_module=lambda: "", on_loss=losses.append)
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> capture.attach()
    >>> loss = functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
    >>> loss.backward()
    >>> capture.detach()
    >>> losses[0] is loss
    True
    >>> first, second = capture.take()
    >>> first.function, first.code, first.arguments["target"]["max"]
    ('torch.nn.functional.cross_entropy', 'loss = functional.cross_entropy(...)', 2)
    >>> second.function, second.arguments["input"]["made_by"]
    ('torch.Tensor.backward', 'NllLossBackward0')
    """

    def __init__(
        self,
        current_module: Callable[[], str],
        on_loss: Callable[[torch.Tensor], None] | None = None,
        on_fault: Callable[[str, Exception], None] | None = None,
        *,
        functions: frozenset[str] = FUNCTIONS,
    ) -> None:
        self.iteration = 0
        self._current_module = current_module
        self._on_loss = on_loss
        self._on_fault = on_fault
        self._mode = _Mode(self, functions)
        self._thread = 0  # the one in which it is attached
        self._book = _CallBook()
        self._lines: dict[tuple[str, int], _Line] = {}
        self._sees_clipping = not functions.isdisjoint(_CLIPPERS)

    def attach(self) -> None:
        """Begin to look, in this thread. A second call does nothing."""
        try:
            _enter(self._mode)
            self._thread = get_ident()
        except Exception as error:
            self._fault("entering the stack of modes", error)

    def detach(self) -> None:
        """Stop looking, whatever modes the user has entered since, and leave only theirs.

        Inside a backward pass, or in another thread, the mode cannot be taken off the stack: it is
        blind from then on, and the next call of this where it stands removes it.
        """
        self._thread = 0
        try:
            _leave(self._mode)
        except Exception as error:
            self._fault("leaving the stack of modes", error)

    def take(self) -> list[FunctionCall]:
        """The calls since the last `take()`, in order."""
        book, self._book = self._book, _CallBook()
        return book.calls

    def call(
        self, watched: Watched, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a watched function and record the call."""
        begun = self._begin(watched, args, kwargs, sys._getframe(2))
        if begun is None:
            return function(*args, **kwargs)
        result = begun.call(function, args, kwargs)
        if not watched.starts_backward:
            self._end(begun, watched, result)
        return result

    def _begin(
        self, watched: Watched, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> _Begun | None:
        """What is known of a call before it runs, since it may change its arguments in place."""
        if self._thread != get_ident() or _is_unreal():
            return None
        try:
            with Quiet():
                if frame.f_globals is _CLIPPING:
                    self._see_clipping(frame, args)
                    return None
                bound = watched.bind(args, kwargs)
                if not watched.is_worth(bound) or FakeTensor in map(type, bound.values()):
                    return None
                caller = _find_caller(frame)
                if caller is None:
                    return None
                begun = self._new(watched.name, watched.describe(bound), caller)
                if watched.starts_backward:
                    self._book.add(begun.ended(None))
                    self._tell_loss(bound)
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
            line = self._lines[key] = _line_of(caller)
        call = FunctionType(line.calling, caller.f_globals)
        return _Begun(function, self._current_module(), self.iteration, arguments, line, call)

    def _tell_loss(self, bound: dict[str, Any]) -> None:
        roots = next(iter(bound.values()))
        for root in roots if isinstance(roots, (tuple, list)) else (roots,):
            if self._on_loss is not None and isinstance(root, torch.Tensor):
                self._on_loss(root)

    def _see_clipping(self, frame: FrameType, args: tuple[Any, ...]) -> None:
        seen = _clipping_in(frame, args) if self._sees_clipping else None
        if seen is not None and (caller := _find_caller(seen.caller)) is not None:
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
        if not functions.isdisjoint(_CLIPPERS):
            for function in _CLIPPING_CALLS:
                self._watched.setdefault(function, _ONLY_CLIPPING)

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


# -- the stack of modes


def _enter(mode: TorchFunctionMode) -> None:
    """Put a mode below those of the user, each of which pops whatever is on top when it ends."""
    stack = [each for each in _get_current_function_mode_stack() if each is not mode]
    place = 1 if stack and _is_default_device(stack[0]) else 0
    _rebuild([*stack[:place], mode, *stack[place:]])


def _is_default_device(mode: TorchFunctionMode) -> bool:
    """Whether this is the mode of `torch.set_default_device`, which insists on the bottom.

    `with torch.device(...)` makes one of the same class, but like others it pops what is on top;
    it is never entered by its own `__enter__`, and so has not noted an older device.
    """
    return isinstance(mode, DeviceContext) and {"old_device", "prev_mode"} <= vars(mode).keys()


def _leave(mode: TorchFunctionMode) -> None:
    stack = _get_current_function_mode_stack()
    if any(each is mode for each in stack):
        _rebuild([each for each in stack if each is not mode])


def _rebuild(stack: list[TorchFunctionMode]) -> None:
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in stack:
        _push_mode(mode)


def _is_unreal() -> bool:
    """Whether this is inside a backward pass, a trace, or a transform of `torch.func`."""
    return (
        torch._C._current_graph_task_id() != -1
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


# -- records


class _Begun(NamedTuple):
    """A call before its result is known."""

    function: str
    module: str
    iteration: int
    arguments: dict[str, Any]
    line: _Line
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]  # calls a function from the line

    def ended(self, result: Any) -> FunctionCall:
        line = self.line
        return FunctionCall(*self[:4], result, line.source, line.text)


class _CallBook:
    """The calls of a step. Those of a line that repeats itself are folded."""

    def __init__(self) -> None:
        self.calls: list[FunctionCall] = []
        self._of_line: Counter[str] = Counter()
        self._folded: dict[tuple[Any, ...], int] = {}

    def add(self, call: FunctionCall) -> None:
        self._of_line[call.source] += 1
        if self._of_line[call.source] > MOST_CALLS_OF_A_LINE:
            self._fold(call)
        elif len(self.calls) < MOST_CALLS:
            self.calls.append(call)

    def _fold(self, call: FunctionCall) -> None:
        key = (call.function, call.module, call.source, form([call.arguments, call.result]))
        place = self._folded.get(key)
        if place is not None:
            self.calls[place] = _both(self.calls[place], call)
        elif len(self.calls) < MOST_CALLS:
            self._folded[key] = len(self.calls)
            self.calls.append(replace(call, arguments={**call.arguments, "repeats": 1}))


def _both(folded: FunctionCall, call: FunctionCall) -> FunctionCall:
    repeats = folded.arguments["repeats"] + 1
    arguments = {key: merge(folded.arguments[key], told) for key, told in call.arguments.items()}
    result = merge(folded.result, call.result)
    return replace(folded, arguments={**arguments, "repeats": repeats}, result=result)


# -- the line of the user's code


class _Line(NamedTuple):
    source: str
    text: str
    calling: CodeType


def _line_of(frame: FrameType) -> _Line:
    file, number = frame.f_code.co_filename, frame.f_lineno or 1  # made-up code may have no line
    text = linecache.getline(file, number, frame.f_globals).strip()
    # Torch aims warnings, such as that of a loss that broadcasts, at its caller's line. Called from
    # here they would name this file, so the call is made in the name of the user's line.
    calling = _call.__code__.replace(co_filename=file, co_firstlineno=number - 1)
    return _Line(f"{file}:{number}", text, calling)


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _find_caller(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code, or else of a library; None if we called."""
    library = None
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner == "recorder" and library is None:
            return None
        # A mode of the user's only hands on what others called.
        if owner != "torch" and frame.f_code.co_name != "__torch_function__":
            if owner == "user":
                return frame
            library = library or frame
        frame = frame.f_back
    return library


@cache
def _owner(file: str) -> str:
    """Whose code a file is: the user's, a library's, the recorder's, or torch's and Python's."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    if "site-packages" in file or "dist-packages" in file:
        return "library"
    return "torch" if file.startswith((_STANDARD_LIBRARY, "<frozen ", _FX)) else "user"


_HERE: Final = str(Path(__file__).parents[1]) + os.sep
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib") + os.sep
_FX: Final = "<eval_with_key>"  # the code that torch.fx writes
_OWNERS: Final = (
    (_HERE + "demo", "user"),
    (_HERE, "recorder"),
    # What these compute for themselves is no call of the user's.
    (clip_grad.__file__, "recorder"),
    (grad_scaler.__file__, "recorder"),
    (_TORCH + "optim", "recorder"),
    (_TORCH, "torch"),
)


# -- gradient clipping
#
# It is a plain function that no mode sees, but it calls some that are seen, each once.

_CLIPPING: Final = vars(clip_grad)
_CLIPPERS: Final = frozenset(
    "clip_grad_norm_ clip_grad_norm clip_grad_value_ _clip_grads_with_norm_".split()
)
_CLIPPING_CALLS: Final = (
    torch.clamp,  # of the coefficient, by which norms are clipped
    torch.tensor,  # of 0, where there are no gradients
    torch._foreach_clamp_min_,  # of the values
    torch.Tensor.clamp_,
)
_ONLY_CLIPPING: Final = Watched("gradient clipping", (), {}, None, "", lambda bound: False, False)


@dataclass(frozen=True, slots=True)
class _Clipping:
    function: str
    arguments: dict[str, Any]
    total_norm: Any
    caller: FrameType | None


def _clipping_in(frame: FrameType | None, args: tuple[Any, ...]) -> _Clipping | None:
    """The clipping whose frames begin with this one, or None if it is not its first call."""
    known: dict[str, Any] = {}
    clipper = ""
    while frame is not None and frame.f_globals is _CLIPPING:
        if frame.f_code.co_name in _CLIPPERS:
            clipper = frame.f_code.co_name.lstrip("_")
            known |= frame.f_locals
        frame = frame.f_back
    if not clipper or ("clip_value" in known and not _is_first(known, args)):
        return None
    names = "max_norm norm_type error_if_nonfinite clip_value".split()
    arguments = {name: describe(known[name]) for name in names if name in known}
    arguments["gradients"] = len(_gradients(known))
    total_norm = None if "clip_value" in known else describe(known.get("total_norm", 0.0))
    return _Clipping(f"torch.nn.utils.{clipper}", arguments, total_norm, frame)


def _gradients(known: dict[str, Any]) -> list[torch.Tensor]:
    if "grouped_grads" not in known:
        return list(known.get("grads", ()))
    return [each for lists, _ in known["grouped_grads"].values() for each in lists[0]]


def _is_first(known: dict[str, Any], args: tuple[Any, ...]) -> bool:
    """Values are clipped group by group or tensor by tensor, and that is one call."""
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    return first is _gradients(known)[0]
