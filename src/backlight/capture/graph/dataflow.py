"""Follows data where autograd cannot see: detach, argmax, integer tensors, parts without gradients.

While a step is traced, a dispatch mode sees every operation below autograd and writes down which
tensors it read and which it made. Only numbers are kept: tensors are known by weak references, and
storages by weak references that let their memory go.

Limits: what passes through Python numbers (`item()`, `tolist()`) or NumPy is lost; writes into
parameters and buffers are not followed, so that a batch norm's running mean does not tie one call
to the next; torch before 2.9 has no modes that let higher-order operators through, and is not
traced. Whenever something is not understood, the tracing is given up for the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backlight.capture.compiling import is_in_compiled_call
from backlight.capture.graph.dispatch import Mode, is_supported, is_symbolic
from backlight.capture.graph.lineage import Lineage, Ref
from backlight.capture.graph.operators import rule_of, tensors_in
from backlight.capture.modules import is_in_backward

_MOST_OPERATIONS: Final = 100_000  # some 50 MB of numbers and weak references


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
        self._mode = Mode(self)
        self._thread = get_ident()
        self._tensors: dict[int, _Tracked] = {}
        self._storages: dict[int, _Storage] = {}

    def start(self) -> None:
        """Start to follow, below the user's modes; give up at once where that is not safe."""
        self.is_sure = is_supported() and not is_symbolic() and not is_in_compiled_call()
        if self.is_sure:
            self._mode.enter()

    def stop(self) -> bool:
        """Stop to follow, whatever came onto the stack or left it since; True if all is known.

        A stack belongs to its thread: from another, the mode cannot be taken away, only stilled,
        and `sweep` in that thread takes it away; so it is inside of a compiled function.
        """
        was_sure = self.is_sure
        self.give_up()
        self._mode.leave()
        return was_sure

    def give_up(self) -> None:
        """Follow nothing more."""
        self.is_sure = False
        self._tensors.clear()
        self._storages.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let a backward pass run without the mode: gradients are not data."""
        is_here = self.is_listening()
        if is_here and is_in_compiled_call():
            self.give_up()  # the mode cannot leave, nor come back
        elif is_here:
            self._try(self._mode.leave)
        try:
            yield
        finally:
            if is_here and self.is_sure:
                self._try(self._mode.enter)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # whatever it is, it must not reach the user's training
            self.give_up()

    def ref(self, tensor: torch.Tensor, *, is_pinned: bool = False) -> Ref | None:
        """Which output of which operation a tensor is now, if that is known.

        What is written into a pinned one, a parameter or a buffer, is not followed.
        """
        if self.is_listening():
            try:
                ref = self._ref(tensor)
                if is_pinned:
                    self._storage(tensor).is_pinned = True
                return ref
            except Exception:  # a tensor without a storage, say
                self.give_up()
        return None

    def is_listening(self) -> bool:
        """Whether what happens now, in this thread, is followed."""
        return (
            self.is_sure
            and get_ident() == self._thread
            and not is_in_backward()  # gradients are not data
            and not is_symbolic()
        )

    def note(
        self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any
    ) -> None:
        """An operation has run."""
        try:
            read, written = rule_of(operator).split(args, kwargs)
            self._note(read, written, tensors_in((made,)))
        except Exception:  # an operator without a schema, say
            self.give_up()
        if len(self.lineage.inputs) > _MOST_OPERATIONS:
            self.give_up()

    def _note(
        self, read: list[torch.Tensor], written: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        operation = self.lineage.add(tuple(dict.fromkeys(map(self._ref, read))))
        changed = {id(tensor) for tensor in written}
        for output, tensor in enumerate(made):
            if id(tensor) not in changed:
                self._put(tensor, (operation, output), self._storage(tensor))
        for output, tensor in enumerate(written, start=1):
            self._write(tensor, (operation, -output))

    def _ref(self, tensor: torch.Tensor) -> Ref:
        known = self._tensors.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            storage = self._storage(tensor)
            made_from: tuple[Ref, ...] = () if storage.latest is None else (storage.latest,)
        elif known.storage.written is not None and known.storage.written_at > known.at:
            storage = known.storage
            made_from = (known.ref, known.storage.written)
        else:
            return known.ref
        ref = self.lineage.add(made_from), 0
        self._put(tensor, ref, storage)
        return ref

    def _put(self, tensor: torch.Tensor, ref: Ref, storage: _Storage) -> None:
        if not storage.is_pinned:
            storage.latest = ref
        at = len(self.lineage.inputs)
        self._tensors[id(tensor)] = _Tracked(weakref.ref(tensor), ref, at, storage)

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


class _Tracked(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    ref: Ref
    at: int
    storage: _Storage


@dataclass(slots=True)
class _Storage:
    address: StorageWeakRef
    latest: Ref | None = None
    written: Ref | None = None  # all that was written into it in place
    written_at: int = -1
    is_pinned: bool = False
