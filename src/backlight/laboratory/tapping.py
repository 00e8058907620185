"""Sees the tensors of one forward pass, and changes those that are pinned.

The hooks are torch's process-wide module hooks, set only while the pass runs and only heard in its
thread. A tensor that is wanted goes on as a copy, so that what happens to it in place later does
not change what was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import checkpoint

from backlight.laboratory.unroll import RecurrentCall, can_unroll, unrolled

OUTPUT: Final = "output"
"""The name of what the whole model returns."""

_FUNCTIONS: Final[tuple[tuple[Any, str, str], ...]] = (
    (F, "scaled_dot_product_attention", "heads"),
    (F, "softmax", "weights"),
    (torch, "softmax", "weights"),
    (torch.Tensor, "softmax", "weights"),
)
"""Functions whose results are layers too: attention has no modules inside."""


@dataclass
class Seen:
    """A tensor that was seen in a pass."""

    tensor: torch.Tensor
    module_class: str
    place: str


class Taps(AbstractContextManager["Taps"]):
    """Listens to one forward pass of a model.

    `wanted` names the layers to keep a hold of; None looks at all of them and changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        wanted: Iterable[str] | None,
        pins: Mapping[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> None:
        self.seen: dict[str, Seen] = {}
        self.aliases: dict[str, str] = {}
        self._names = {id(module): name for name, module in reversed([*model.named_modules()])}
        self._pins = dict(pins or {})
        self._wanted = None if wanted is None else {*wanted, *self._pins}
        self._by_identity: dict[tuple[int, int], str] = {}
        self._calls: Counter[str] = Counter()
        self._open: list[str] = []
        self._thread = 0
        self._undo: list[Callable[[], None]] = []
        self._kernel: Any = None
        self._is_in_function = False

    def __enter__(self) -> Taps:
        global current
        self._thread = get_ident()
        before = register_module_forward_pre_hook(self._before)
        after = register_module_forward_hook(self._after, with_kwargs=True)
        self._undo = [partial(_forget, after.id), after.remove, before.remove]
        for owner, name, place in _FUNCTIONS:
            self._undo.append(self._watch_function(owner, name, place))
        self._undo += _without_checkpoints()
        self._undo.append(_without_fast_path())
        # The fused kernels can be differentiated only once.
        self._kernel = sdpa_kernel(SDPBackend.MATH)
        self._kernel.__enter__()
        current = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global current
        current = None
        self._kernel.__exit__(None, None, None)
        for undo in reversed(self._undo):
            undo()

    def tap(self, name: str, tensor: torch.Tensor, module_class: str, place: str) -> torch.Tensor:
        """See a tensor; the answer is what goes on in its place."""
        if not isinstance(tensor, torch.Tensor) or not torch.is_grad_enabled():
            return tensor
        if self._wanted is None:
            self._note(name, tensor, module_class, place)
            return tensor
        if name not in self._wanted or name in self.seen or not tensor.is_floating_point():
            return tensor
        if name in self._pins:
            mask, values = self._pins[name]
            tensor = torch.where(mask, values, tensor)
        if not tensor.requires_grad:
            own = tensor.clone() if tensor.is_inference() else tensor
            tensor = own.detach().requires_grad_()
        self.seen[name] = Seen(tensor, module_class, place)
        return tensor.clone()

    def named(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that the user names inside a forward, after the module that runs."""
        if get_ident() != self._thread:
            return tensor
        module = self._open[-1] if self._open else OUTPUT
        return self.tap(name if module == OUTPUT else f"{module}:{name}", tensor, "", name)

    def _note(self, name: str, tensor: torch.Tensor, module_class: str, place: str) -> None:
        # A module that works in place returns the same object, in a later version.
        identity = id(tensor), 0 if tensor.is_inference() else tensor._version
        known = self._by_identity.setdefault(identity, name)
        if known != name:
            self.aliases[name] = known
        else:
            self.seen.setdefault(name, Seen(tensor, module_class, place))

    def _before(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is None or get_ident() != self._thread:
            return
        self._calls[name] += 1
        number = self._calls[name]
        self._open.append((name or OUTPUT) + ("" if number == 1 else f"#{number}"))

    def _after(self, module: nn.Module, args: Any, keywords: Any, output: Any) -> Any:
        if id(module) not in self._names or get_ident() != self._thread:
            return None
        name = self._open.pop()
        call = RecurrentCall.of(args, keywords) if isinstance(module, nn.RNNBase) else None
        if call is not None and can_unroll(module, call):
            output = self._unroll(name, module, call, output)
        kind = type(module).__name__
        return _mapped(
            output,
            lambda place, tensor: self.tap(
                name if place == "out.0" else f"{name}:{place}", tensor, kind, place
            ),
        )

    def _unroll(self, name: str, module: Any, call: RecurrentCall, output: Any) -> Any:
        def tap(moment: int, tensor: torch.Tensor) -> torch.Tensor:
            return self.tap(f"{name}:t{moment}", tensor, type(module).__name__, f"t{moment}")

        moments = {f"{name}:t{n}" for n in range(call.moments(module))}
        if self._wanted is not None and self._wanted.isdisjoint(moments):
            return output
        result = unrolled(module, call, tap)
        return output if self._wanted is None else result

    def _watch_function(self, owner: Any, function: str, place: str) -> Callable[[], None]:
        original = getattr(owner, function)
        is_inherited = function not in vars(owner)

        def watched(*args: Any, **keywords: Any) -> Any:
            if get_ident() != self._thread or not self._open or self._is_in_function:
                return original(*args, **keywords)
            self._is_in_function = True  # one of these functions may call another
            try:
                result = original(*args, **keywords)
            finally:
                self._is_in_function = False
            module = self._open[-1]
            self._calls[f"{module}:{place}"] += 1
            number = self._calls[f"{module}:{place}"]
            name = f"{module}:{place}" + ("" if number == 1 else f"#{number}")
            return self.tap(name, result, function, place)

        setattr(owner, function, watched)
        if is_inherited:
            return lambda: delattr(owner, function)
        return lambda: setattr(owner, function, original)


def _forget(hook: int) -> None:
    """Torch clears the hook, and forgets that it took keywords."""
    _global_forward_hooks_with_kwargs.pop(hook, None)


def _without_fast_path() -> Callable[[], None]:
    """Run every module of a transformer: frozen and in evaluation, one kernel does them all."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return partial(torch.backends.mha.set_fastpath_enabled, was_enabled)


def _without_checkpoints() -> list[Callable[[], None]]:
    """Keep what checkpointing would run again: later nobody would see or pin what is inside."""

    class Plain:
        @staticmethod
        def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
            return function(*args)

    def plain(*_: Any, **__: Any) -> Iterator[None]:
        yield

    undo: list[Callable[[], None]] = []
    parts = {"CheckpointFunction": Plain, "_checkpoint_without_reentrant_generator": plain}
    for name, part in parts.items():
        original = getattr(checkpoint, name, None)
        if original is not None:
            setattr(checkpoint, name, part)
            undo.append(partial(setattr, checkpoint, name, original))
    return undo


current: Taps | None = None
"""The taps that listen now, for `backlight.tap`."""


def _mapped(
    value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], place: str = "out"
) -> Any:
    """The same nested value with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change("out.0" if place == "out" else place, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return type(value)(*(_mapped(each, change, f"{place}.{key}") for key, each in pairs))
    if isinstance(value, (tuple, list)):
        changed = [_mapped(each, change, f"{place}.{n}") for n, each in enumerate(value)]
        return type(value)(changed)
    if isinstance(value, dict):
        for key in list(value):
            value[key] = _mapped(value[key], change, f"{place}.{key}")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
        return replace(
            value, **{key: _mapped(getattr(value, key), change, f"{place}.{key}") for key in names}
        )
    return value
