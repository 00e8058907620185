"""Follows data where autograd cannot see: detach, argmax, integer tensors, parts without gradients.

While a step is traced, a dispatch mode sees every operation below autograd and writes down which
tensors it read and which it made. Only numbers are kept: tensors are known by weak references, and
storages by weak references that let their memory go.

The mode lies at the bottom of torch's stack of modes, below any of the user's. Theirs are entered
and left above it, in whatever order, and take no notice; a mode on top would be popped in place of
the user's by their `with` block.

Limits: what passes through Python numbers (`item()`, `tolist()`) or NumPy is lost; writes into
parameters and buffers are not followed, so that a batch norm's running mean does not tie one call
to the next; torch before 2.9 has no modes that let higher-order operators through, and is not
traced. Whenever something is not understood, the tracing is given up for the step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch as dispatch

_MOST_OPERATIONS = 100_000  # some 50 MB of numbers and weak references
_INFRASTRUCTURE = ("FAKE", "PROXY", "FUNCTIONAL")
_OVERWRITING = frozenset(
    "copy_ zero_ fill_ normal_ uniform_ bernoulli_ random_ exponential_ geometric_ cauchy_"
    " log_normal_".split()
)


Ref = tuple[int, int]
"""An operation, and which of its outputs."""


class Lineage:
    """Which operation read the output of which others, in numbers; some outputs have a value.

    Operations are added after those whose outputs they read.

    >>> lineage = Lineage()
    >>> first = lineage.add(()), 0
    >>> second = lineage.add((first,)), 0
    >>> lineage.bind(first, value=7)
    >>> third = lineage.add((second,))
    >>> lineage.reached()[third]
    frozenset({7})
    """

    def __init__(self) -> None:
        self.inputs: list[tuple[Ref, ...]] = []
        self.values: dict[Ref, int] = {}

    def add(self, inputs: tuple[Ref, ...]) -> int:
        """The number of a new operation that read `inputs`."""
        self.inputs.append(inputs)
        return len(self.inputs) - 1

    def bind(self, ref: Ref, value: int) -> None:
        """Say which value an output is; the first to say so is right."""
        self.values.setdefault(ref, value)

    def reached(self) -> list[frozenset[int]]:
        """For each operation, the values that it was made from without another in between."""
        reached: list[frozenset[int]] = []
        for inputs in self.inputs:
            values: set[int] = set()
            for ref in inputs:
                value = self.values.get(ref)
                values.update(reached[ref[0]] if value is None else (value,))
            reached.append(frozenset(values))
        return reached


class DataFlow:
    """Writes down the lineage of every tensor that this thread computes, from start to stop.

    >>> flow = DataFlow()
    >>> flow.start()
    >>> logits = torch.randn(2, 3)
    >>> flow.lineage.bind(flow.ref(logits), value=7)
    >>> choice = flow.ref(logits.detach().argmax(dim=1))
    >>> flow.stop()
    True
    >>> flow.lineage.reached()[choice[0]]
    frozenset({7})
    """

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.is_sure = True
        self._mode = _Mode(self)
        self._thread = threading.get_ident()
        self._tensors: dict[int, _Tracked] = {}
        self._storages: dict[int, _Storage] = {}

    def start(self) -> None:
        """Start to follow, below the user's modes; give up at once where that is not safe."""
        self.is_sure = _is_supported() and not _is_symbolic()
        if self.is_sure:
            _put_modes([self._mode, *_take_modes()])

    def stop(self) -> bool:
        """Stop to follow, whatever came onto the stack or left it since; True if all is known.

        A stack belongs to its thread: from another, the mode cannot be taken away, only stilled.
        """
        was_sure = self.is_sure
        self.give_up()
        if any(mode is self._mode for mode in dispatch._get_current_dispatch_mode_stack()):
            _put_modes([mode for mode in _take_modes() if mode is not self._mode])
        return was_sure

    def give_up(self) -> None:
        """Follow nothing more."""
        self.is_sure = False
        self._tensors.clear()
        self._storages.clear()

    def ref(self, tensor: torch.Tensor, *, is_pinned: bool = False) -> Ref | None:
        """Which output of which operation a tensor is now, if that is known.

        What is written into a pinned one, a parameter or a buffer, is not followed.
        """
        if self.is_listening():
            try:
                ref = self._ref(tensor)
                self._storage(tensor).is_pinned |= is_pinned
                return ref
            except Exception:  # a tensor without a storage, say
                self.give_up()
        return None

    def is_listening(self) -> bool:
        """Whether what happens now, in this thread, is followed."""
        return (
            self.is_sure
            and threading.get_ident() == self._thread
            and torch._C._current_graph_task_id() == -1  # gradients are not data
            and not _is_symbolic()
        )

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
    ) -> None:
        """An operation has run."""
        try:
            self._note(_rule(func), args, kwargs, made)
        except Exception:  # whatever it is, it must not reach the user's training
            self.give_up()
        if len(self.lineage.inputs) > _MOST_OPERATIONS:
            self.give_up()

    def _note(
        self, rule: _Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
    ) -> None:
        given = {**dict(zip(rule.arguments, args, strict=False)), **kwargs}
        written = [t for name in rule.written for t in _tensors_in(given.get(name))]
        read = (t for name, value in given.items() if rule.reads(name) for t in _tensors_in(value))
        operation = self.lineage.add(tuple(dict.fromkeys(map(self._ref, read))))
        changed = {id(tensor) for tensor in written}
        for output, tensor in enumerate(_tensors_in(made)):
            if id(tensor) not in changed:
                self._put(tensor, (operation, output), self._storage(tensor))
        for output, tensor in enumerate(written, start=1):
            self._write(tensor, (operation, -output))

    def _ref(self, tensor: torch.Tensor) -> Ref:
        storage = self._storage(tensor)
        known = self._tensors.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            made_from: tuple[Ref, ...] = () if storage.latest is None else (storage.latest,)
        elif storage.written is not None and storage.written_at > known.at:
            made_from = (known.ref, storage.written)
        else:
            return known.ref
        ref = self.lineage.add(made_from), 0
        self._put(tensor, ref, storage)
        return ref

    def _put(self, tensor: torch.Tensor, ref: Ref, storage: _Storage) -> None:
        if not storage.is_pinned:
            storage.latest = ref
        at = len(self.lineage.inputs)
        self._tensors[id(tensor)] = _Tracked(weakref.ref(tensor), ref, at)

    def _write(self, tensor: torch.Tensor, ref: Ref) -> None:
        storage = self._storage(tensor)
        if storage.is_pinned:
            return
        # Others may look at the same memory, and an earlier write elsewhere in it still holds.
        before = (ref,) if storage.written is None else (storage.written, ref)
        storage.written = self.lineage.add(before), 0
        storage.written_at = len(self.lineage.inputs)
        self._put(tensor, ref, storage)

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        found = self._storages.get(storage._cdata)
        if found is None:
            # The weak reference keeps the address from being given to another storage.
            found = self._storages[storage._cdata] = _Storage(StorageWeakRef(storage))
        return found


class _Mode(dispatch.TorchDispatchMode):
    """Tells a DataFlow of every operation, and changes none; it does nothing once that is gone."""

    supports_higher_order_operators = True  # without it, torch refuses to run them under a mode

    def __init__(self, flow: DataFlow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flow = weakref.ref(flow)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile as if the mode were not there."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flow = self._flow()
        if flow is not None and flow.is_listening():
            flow.note(func, args, kwargs or {}, result)
        return result


class _Tracked(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    ref: Ref
    at: int


@dataclass(slots=True)
class _Storage:
    address: StorageWeakRef
    latest: Ref | None = None
    written: Ref | None = None  # all that was written into it in place
    written_at: int = -1
    is_pinned: bool = False


class _Rule(NamedTuple):
    """What an operation does with its arguments."""

    arguments: tuple[str, ...]
    written: tuple[str, ...]
    unread: frozenset[str]
    reads_any: bool

    def reads(self, name: str) -> bool:
        return self.reads_any and name not in self.unread


@lru_cache(maxsize=4096)
def _rule(func: Any) -> _Rule:
    schema = func._schema
    name = schema.name.split("::")[-1]
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    unread = {a.name for a in written if a.kwarg_only or name in _OVERWRITING}
    # `zeros_like(x)` and `x.new_ones()` take a shape from x, and none of its values.
    takes_shape = name.endswith("_like") or name.startswith("new_")
    return _Rule(
        tuple(a.name for a in schema.arguments),
        tuple(a.name for a in written),
        frozenset(unread),
        not takes_shape,
    )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _is_supported() -> bool:
    """Whether this torch can run every operation under a mode of ours."""
    return hasattr(dispatch.TorchDispatchMode, "supports_higher_order_operators")


def _is_symbolic() -> bool:
    """Whether tensors have no values now: they are being traced, compiled or faked."""
    keys = torch._C._TorchDispatchModeKey
    return torch.compiler.is_compiling() or any(
        torch._C._get_dispatch_mode(getattr(keys, name)) is not None for name in _INFRASTRUCTURE
    )


def _take_modes() -> list[dispatch.TorchDispatchMode]:
    """Take all modes off this thread's stack; the lowest comes first."""
    count = len(dispatch._get_current_dispatch_mode_stack())
    return [dispatch._pop_mode() for _ in range(count)][::-1]


def _put_modes(modes: list[dispatch.TorchDispatchMode]) -> None:
    for mode in modes:
        dispatch._push_mode(mode)
