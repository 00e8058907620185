"""Sees the outputs of every module's call and their gradients.

The hooks are torch's process-wide module hooks, set only while a step is recorded: a step that is
not recorded runs without any, a model of ten thousand modules costs no more to attach than one of
ten, and nothing is ever put on the user's modules, so copying, pickling and exporting them is as it
was. Gradients come from a hook on the output tensor itself; it goes when the graph goes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from backlight.capture.trees import tensors_in


class Call(NamedTuple):
    """One call of a module."""

    module: str
    module_class: str
    number: int  # 1 for the first call of this module in the iteration
    is_recomputed: bool  # run again inside the backward pass, by checkpointing


class ModuleListener(Protocol):
    """What a recorder wants to know of the modules."""

    def on_output(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """A call of a module has returned `tensor`, at `place` of what it returned."""

    def on_fault(self, doing: str, error: Exception) -> None:
        """The hook itself failed."""


class ModuleNames:
    """The qualified names of a model's modules, by identity, without keeping any alive."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._names: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.scan()

    def scan(self) -> None:
        """Read the names again: modules may have been added or replaced."""
        model = self._model()
        if model is None:
            return
        self._names = {
            id(module): (weakref.ref(module), name, type(module).__name__)
            for name, module in model.named_modules()
        }

    def find(self, module: nn.Module) -> tuple[str, str] | None:
        """The module's name and class, or None if it is no part of the model."""
        entry = self._names.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1], entry[2]
        if module in self._strangers:
            return None
        self.scan()
        entry = self._names.get(id(module))
        if entry is None:
            self._strangers.add(module)
            return None
        return entry[1], entry[2]


class ModuleCapture:
    """Tells a listener about every module call of a model while it is attached."""

    def __init__(self, model: nn.Module, listener: ModuleListener) -> None:
        self.names = ModuleNames(model)
        self._listener = listener
        self._handles: list[Any] = []
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[nn.Module, int]] = []

    def attach(self) -> None:
        """Start to listen; calls are counted from 1 again."""
        self.restart_calls()
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before_call),
                register_module_forward_hook(self._after_call),
            ]

    def restart_calls(self) -> None:
        """Count calls from 1 again."""
        self._calls.clear()
        self._open.clear()

    def detach(self) -> None:
        """Stop to listen and leave nothing behind."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _before_call(self, module: nn.Module, args: Any) -> None:
        try:
            found = self.names.find(module)
            if found is not None and not _is_recomputed():
                self._calls[found[0]] += 1
                self._open.append((module, self._calls[found[0]]))
        except Exception as error:
            self._listener.on_fault("entering a module", error)

    def _after_call(self, module: nn.Module, args: Any, output: Any) -> None:
        try:
            found = self.names.find(module)
            if found is None or _is_symbolic():
                return
            again = _is_recomputed()
            call = Call(*found, 1 if again else self._close(module), again)
            for place, tensor in tensors_in(output, "out"):
                self._listener.on_output(call, place, tensor)
        except Exception as error:
            self._listener.on_fault(f"reading the output of {type(module).__name__}", error)

    def _close(self, module: nn.Module) -> int:
        """The number of the call that ends; calls that an exception cut short are dropped."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] is module:
                call = self._open[place][1]
                del self._open[place:]
                return call
        return 1


class FirstForward:
    """Calls back once, when a module of the model next runs with gradients enabled.

    That is where a training step begins; an evaluation between two steps is not one.
    """

    def __init__(self, names: ModuleNames, then: Callable[[], None]) -> None:
        self._names = names
        self._then = then
        self._handle: Any = None

    def arm(self) -> None:
        """Wait for the next forward pass."""
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._on_call)

    def disarm(self) -> None:
        """Stop waiting."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _on_call(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and self._names.find(module) is not None:
            self.disarm()
            self._then()


def _is_recomputed() -> bool:
    """Whether this forward pass is run again inside the backward pass, by checkpointing."""
    return torch._C._current_graph_task_id() != -1


def _is_symbolic() -> bool:
    """Whether the model is being traced, so that its tensors have no values."""
    return torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
