"""Sees the inputs and outputs of every module's call.

The hooks are torch's process-wide module hooks, set only while a step is recorded: a step that is
not recorded runs without any, a model of ten thousand modules costs no more to attach than one of
ten, and nothing is ever put on the user's modules, so copying, pickling and exporting them is as it
was. Only a model that is compiled gets hooks of its own, because a compiler has to meet them when
it compiles, and keeps them.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from threading import Thread, current_thread, get_ident
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.nn.modules.module import (
    _global_forward_hooks,
    _global_forward_hooks_always_called,
    _global_forward_hooks_with_kwargs,
    _global_forward_pre_hooks,
)

from backlight.capture import apart
from backlight.capture.apart import is_apart
from backlight.capture.names import ModelNames, is_compiled, unwrap
from backlight.capture.sights import Call, Callee, CallHooks, Sights
from backlight.capture.trees import inputs_in, outputs_in
from backlight.reduce.readable import version_of

_graph_task = torch._C._current_graph_task_id
_tracing_state = torch._C._get_tracing_state
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_perf = time.perf_counter

MOST_CALLS: Final = 512
"""How many calls of a module are told apart in an iteration. Forward passes that no optimizer ends,
such as an evaluation with gradients enabled, would otherwise gather for ever."""

UNKNOWN: Final = -1
"""Whether a module's calls have keywords, before its first one."""


class ModuleListener(Protocol):
    """What a recorder wants to know of the modules."""

    @property
    def is_in_iteration(self) -> bool:
        """Whether the user has said that an iteration is under way."""

    def on_pass(self) -> bool:
        """A call begins that no other call is around; answer whether it is part of a step."""

    def on_enter(self, module: str, number: int, /) -> None:
        """A call of a module begins."""

    def on_tensor(self, tensor_class: str, call: Call, place: str, tensor: torch.Tensor, /) -> None:
        """A call is given a tensor, at `place` of its `input`, or has returned it as `output`."""

    def on_leave(self, call: Call) -> None:
        """A call has ended, after its outputs."""

    def on_names(self) -> None:
        """A module was called that was not there before: others may have other names since."""

    def on_compiled(self) -> None:
        """A compiled model is about to run for the first time."""

    def on_fault(self, doing: str, error: Exception) -> None:
        """A hook itself failed."""


class ModuleCapture(CallHooks):
    """Tells a listener about every module call of the models while it is attached.

    Plain calls may be seen by the kernel without telling anyone, where `is_quick` says so.
    """

    def __init__(
        self, names: ModelNames, listener: ModuleListener, sights: Sights | None = None
    ) -> None:
        self.names = names
        self._listener = listener
        self._sights = sights
        self._handles: list[Any] = []
        self._callees: dict[int, Callee] = {}
        self.generation = names.generation
        self._modules: list[nn.Module] = []
        self._open: list[Call] = []
        self.entered: list[tuple[str, int]] = []
        self._known: dict[tuple[str, str], list[Call]] = {}  # by number; [0] where it is unknown
        self._recomputed: dict[tuple[str, str], list[Call]] = {}
        self._of_others: dict[tuple[str, str], list[Call]] = {}
        self.of_other_iterations: set[Call] = set()  # maybe: calls that run again
        self._is_listening = self._is_settled = self._is_set = False
        self._first_round = 0
        self._hooks = (
            (_global_forward_pre_hooks, self.before),
            (_global_forward_hooks_with_kwargs, True),
            # An exception in a forward must not leave its calls open.
            (_global_forward_hooks_always_called, True),
            (_global_forward_hooks, self.after),
        )
        self._trainer: Thread | None = None  # that `_thread` is the number of; none before a step

    @property
    def current_module(self) -> str:
        """The qualified name of the innermost module that is running; empty outside of all."""
        return self._open[-1].module if self._open else ""

    @property
    def is_inside(self) -> bool:
        """Whether a module is running."""
        return bool(self._open)

    @property
    def current_call(self) -> int:
        """The number of that module's call: 1 for the first, 0 where unknown."""
        return self._open[-1].number if self._open else 1

    def attach(self) -> None:
        """Start to listen; calls are counted from 1 again."""
        self._round += 1
        self.begin_part()
        self._modules.clear()
        self._open.clear()
        self._is_listening = True
        if not self._handles and not self._is_set:
            # As torch registers a hook, without a handle, which would be made anew time and again.
            self._is_set = True
            for places, hook in self._hooks:
                places[self] = hook

    def restart_calls(self) -> None:
        """Count calls from 1 again: another iteration begins."""
        if self._rounds_since == 0:
            self._first_round = self._round
        self._rounds_since += 1
        self._round += 1

    def begin_part(self) -> None:
        """No call before this one may run again: a backward pass has been, or a step begins."""
        self._rounds_since = 0

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that trains, as far as is known."""
        return get_ident() == self._thread

    def train_here(self) -> None:
        """Look at the calls of this thread, and of no other for as long as it lives."""
        self._thread, self._trainer = get_ident(), current_thread()

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the one that trains, which still lives."""
        return not self.is_here and self._trainer is not None and self._trainer.is_alive()

    def settle(self) -> None:
        """Put hooks on the modules themselves, for good: the compiler ends its graphs at them."""
        self.remove()
        self._is_settled = True
        self.is_quick = False
        before = torch.compiler.disable(self._before_call)
        after = torch.compiler.disable(self._after_call)
        for module in self.names.modules():
            self._handles += [
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after, with_kwargs=True, always_call=True),
            ]

    def detach(self) -> None:
        """Stop to listen, and leave nothing behind unless the model is compiled."""
        self._is_listening = False
        if not self._is_settled:
            self.remove()

    def remove(self) -> None:
        """Remove every hook."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._is_set = False
        for places, _ in self._hooks:
            places.pop(self, None)

    def _before_call(self, module: nn.Module, args: Any, keywords: Any = None) -> None:
        started = _perf()
        try:
            # First, because tracers put their own tensors into the model for a while.
            if self.is_elsewhere() or is_apart() or is_symbolic():
                return
            found = self.names.find(module)
            if found is None:
                self._look_for_compiled(module)
                return
            if not self._open and not self._listener.on_pass():
                return
            if not self._is_listening:
                return
            callee = self._callee(module, found)
            call = self._begin(callee, found)
            self._modules.append(module)
            self._open.append(call)
            self._listener.on_enter(call.module, call.number)
            if keywords is None:
                keywords = _keywords_of_caller()
            if keywords or callee.takes_keywords == UNKNOWN:
                callee.takes_keywords = bool(keywords)
            for place, tensor in inputs_in(args, keywords):
                self._listener.on_tensor("input", call, place, tensor)
        except Exception as error:
            self._listener.on_fault("entering a module", error)
        self.hooks_secs += _perf() - started

    def _begin_pass(self) -> bool:
        """A call begins that no other is around; whether the kernel may see calls by itself."""
        return (
            not _is_compiling()
            and self._listener.on_pass()
            and self._is_listening
            and self.generation == self.names.generation
        )

    def _look_for_compiled(self, module: nn.Module) -> None:
        if not self._is_settled and is_compiled(module) and self.names.has(unwrap(module)):
            self._listener.on_compiled()

    def _callee(self, module: nn.Module, found: tuple[str, str]) -> Callee:
        if self.generation != self.names.generation:
            self.generation = self.names.generation
            self._forget_old_names()
            self._listener.on_names()
        callee = self._callees.get(id(module))
        if callee is None or callee.reference() is not module:
            calls = self._known.setdefault(found, [])
            callee = self._callees[id(module)] = Callee(weakref.ref(module), calls)
        return callee

    def _forget_old_names(self) -> None:
        """The names were read again: forget modules that are gone or have other ones."""
        for identity, callee in list(self._callees.items()):
            module = callee.reference()
            found = None if module is None else self.names.find(module)
            if found is None or self._known.get(found) is not callee.calls:
                del self._callees[identity]

    def _begin(self, callee: Callee, found: tuple[str, str]) -> Call:
        times = callee.times if callee.round == self._round else 0
        if _graph_task() != -1:
            # Of several calls, nothing tells which one is run again.
            number = 1 if times <= 1 else 0
            if self._has_iteration(callee):
                known = self._recomputed.setdefault(found, [])
                return _call(known, found, number, is_recomputed=True)
            call = _call(self._of_others.setdefault(found, []), found, number, is_recomputed=True)
            self.of_other_iterations.add(call)
            return call
        callee.round, callee.times = self._round, times + 1
        number = times + 1 if times < MOST_CALLS else 0
        return _call(callee.calls, found, number)

    def _has_iteration(self, callee: Callee) -> bool:
        """Whether a call that runs again can only be one of the iteration under way."""
        if self._rounds_since == 0:
            return True
        is_only = callee.round == self._first_round and callee.times == 1
        return is_only and not self._listener.is_in_iteration

    def _after_call(self, module: nn.Module, args: Any, *rest: Any) -> None:
        started = _perf()
        # After an exception torch leaves the keywords out, and there is no output.
        keywords, output = rest if len(rest) == 2 else ({}, None)
        try:
            call = self._close(module)
            if call is None:
                return
            if keywords:
                self._learn_keywords(module, call, keywords)
            for place, tensor in outputs_in(output):
                self._listener.on_tensor("output", call, place, tensor)
            self._listener.on_leave(call)
        except Exception as error:
            self._listener.on_fault(f"reading the output of {type(module).__name__}", error)
        self.hooks_secs += _perf() - started

    def _learn_keywords(self, module: nn.Module, call: Call, keywords: Any) -> None:
        """Look keywords up before the call from now on, if that was not done at this one.

        The kernel does not look for any in a plain call of a module that never had one. Such a call
        may have changed them, so of these only those are read that were never changed in place.
        """
        callee = self._callees.get(id(module))
        if callee is None or callee.takes_keywords == 1:
            return
        callee.takes_keywords = 1
        for place, tensor in inputs_in((), keywords):
            if version_of(tensor) == 0:
                self._listener.on_tensor("input", call, place, tensor)

    def _close(self, module: nn.Module) -> Call | None:
        """The call that ends; calls inside it that an exception cut short are dropped."""
        for place in range(len(self._modules) - 1, -1, -1):
            if self._modules[place] is module:
                call = self._open[place]
                del self._modules[place:], self._open[place:]
                return call
        return None

    def _fail(self, doing: str, error: Exception) -> None:
        """The kernel failed."""
        self._listener.on_fault(doing, error)


def _call(
    calls: list[Call], found: tuple[str, str], number: int, *, is_recomputed: bool = False
) -> Call:
    """The call of that number, the same object each time."""
    while len(calls) <= number:
        calls.append(Call(*found, len(calls), is_recomputed))
    return calls[number]


class FirstForward:
    """Calls back once, when a module of the models next runs with gradients enabled.

    That is where a training step begins that is not captured; an evaluation between two steps is
    not one.
    """

    def __init__(
        self,
        names: ModelNames,
        then: Callable[[nn.Module], None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self._names = names
        self._then = then
        self._on_fault = on_fault
        self.hook: Callable[..., None] = self._on_call
        self._hooks: Any = _global_forward_pre_hooks
        self._key_in_checkpoint = object()
        self._thread_of_checkpoint = 0

    def arm(self) -> None:
        """Wait for the next forward pass."""
        # As torch registers a hook, without a handle, which would be made anew for each step.
        self._hooks[self] = self.hook

    def disarm(self) -> None:
        """Stop waiting."""
        self._hooks.pop(self, None)
        self.leave_checkpoint()

    def enter_checkpoint(self) -> None:
        """Wait for a forward pass without gradients, too: it is run again to have them."""
        if self in self._hooks:
            self._thread_of_checkpoint = get_ident()
            self._hooks[self._key_in_checkpoint] = self._on_call_in_checkpoint

    def leave_checkpoint(self) -> None:
        """Those that come now are no part of a step."""
        self._hooks.pop(self._key_in_checkpoint, None)

    def places(self) -> dict[str, Any]:
        """All that another hook needs which stands in for this one's where it can."""
        return {
            "on_forward": self._on_call,
            "hooks": self._hooks,
            "key": self,
            "apart": apart.threads,
            "flags": vars(torch.compiler),
            "is_grad_enabled": _is_grad_enabled,
            "graph_task": _graph_task,
            "tracing_state": _tracing_state,
            "function_modes": torch._C._len_torch_function_stack,
        }

    def _on_call(self, module: nn.Module, args: Any) -> None:
        if _is_grad_enabled():
            self._begin_with(module)

    def _on_call_in_checkpoint(self, module: nn.Module, args: Any) -> None:
        if get_ident() == self._thread_of_checkpoint:
            self._begin_with(module)

    def _begin_with(self, module: nn.Module) -> None:
        try:
            if is_symbolic() or is_apart():
                return
            if self._names.has(module) or self._names.find(unwrap(module)) is not None:
                self.disarm()
                self._then(module)
        except Exception as error:
            self._on_fault("waiting for a forward pass", error)


def is_in_backward() -> bool:
    """Whether this runs inside the backward pass: a forward there is a checkpoint's."""
    return _graph_task() != -1


def is_symbolic() -> bool:
    """Whether the model is being traced, so that its tensors have no values."""
    return _is_compiling() or _tracing_state() is not None


def _keywords_of_caller() -> dict[str, Any]:
    """The keywords of the call whose hook runs now, out of the frame that calls the hook.

    Torch's process-wide hook before a call is not told of them.
    """
    keywords = sys._getframe(2).f_locals.get("kwargs")
    return keywords if isinstance(keywords, dict) else {}
