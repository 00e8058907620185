"""Walks autograd's graph backwards, and copies it as numbers.

A value is a tensor under whatever names it is seen: an output of an operation of autograd, or,
where no gradients flow, the very tensor as long as nobody changes it in place.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

import torch

from backlight.capture.graph.lineage import Lineage, Ref

Place = tuple[Any, int, weakref.ref[torch.Tensor], int, int]
"""Where a tensor stands in autograd's graph; an in-place operation may move it on.

Its `grad_fn`, which output of that it is, itself, its version, and the thread.
"""


def place_of(tensor: torch.Tensor) -> Place:
    """Where a tensor stands now. This holds autograd's node, but never a tensor."""
    return tensor.grad_fn, tensor.output_nr, weakref.ref(tensor), _version(tensor), get_ident()


class AutogradWalk:
    """Gives every tensor the number of its value, and knows what the values were made from.

    >>> walk, x = AutogradWalk(), torch.ones(2, requires_grad=True)
    >>> y = x * 2
    >>> walk.value(place_of(x)), walk.value(place_of(y)), walk.value(place_of(x))
    (0, 1, 0)
    >>> walk.lineage.reached()[walk.origins[1][0]]
    frozenset({0})
    """

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.origins: list[Ref | None] = []  # of each value, the operation that made it
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self._operations: dict[tuple[int, type, int], int] = {}
        self._leaves: dict[int, int] = {}
        self.parameters: dict[int, tuple[int, ...]] = {}  # the values of parameters, and shapes

    def value(self, place: Place) -> int:
        """The value of the tensor that stood at a place."""
        grad_fn, output, tensor, version, thread = place
        if grad_fn is None:
            return self._tensor_value(tensor, version)
        ref = self._operation(grad_fn, thread), output
        value = self.lineage.values.get(ref)
        if value is None:
            # A checkpoint's output is the same tensor without gradients before.
            value = self._same_tensor(tensor, version)
            if value is None:
                value = self._new_value(ref)
            self.lineage.bind(ref, value)
        return value

    def content(self) -> tuple[object, ...]:
        """All that was found, hashable."""
        return tuple(self.lineage.inputs), tuple(self.lineage.values.items())

    def _new_value(self, origin: Ref | None) -> int:
        self.origins.append(origin)
        return len(self.origins) - 1

    def _tensor_value(self, tensor: weakref.ref[torch.Tensor], version: int) -> int:
        value = self._same_tensor(tensor, version)
        if value is None:
            value = self._new_value(None)
            self._tensors[id(tensor)] = tensor, version, value
        return value

    def _same_tensor(self, tensor: weakref.ref[torch.Tensor], version: int) -> int | None:
        # While a tensor has a weak reference, Python gives out the same one for it again.
        known = self._tensors.get(id(tensor))
        return known[2] if known is not None and known[1] == version else None

    def _operation(self, grad_fn: Any, thread: int) -> int:
        """The number of an operation of autograd, after those of all that it came from.

        Torch numbers operations itself, but each thread does so from 0.
        """
        todo = [grad_fn]
        while todo:
            key = todo[-1]._sequence_nr(), type(todo[-1]), thread
            if key not in self._operations:
                inputs = self._inputs(todo, thread)
                if inputs is None:
                    continue
                self._operations[key] = self.lineage.add(inputs)
            todo.pop()
        return self._operations[key]

    def _inputs(self, todo: list[Any], thread: int) -> tuple[Ref, ...] | None:
        """What the last operation of `todo` read, or None after adding what must come first."""
        inputs: list[Ref] = []
        count = len(todo)
        for source, output in todo[-1].next_functions:
            if source is None:
                continue
            kind = type(source)
            if kind.__name__ == "AccumulateGrad":
                number: int | None = self._leaf(source.variable)
            else:
                number = self._operations.get((source._sequence_nr(), kind, thread))
            if number is None:
                todo.append(source)
            else:
                inputs.append((number, output))
        return tuple(inputs) if len(todo) == count else None

    def _leaf(self, tensor: torch.Tensor) -> int:
        value = self._tensor_value(weakref.ref(tensor), _version(tensor))
        if value not in self._leaves:
            self._leaves[value] = self.lineage.add(())
            self.lineage.bind((self._leaves[value], 0), value)
            if isinstance(tensor, torch.nn.Parameter):
                self.parameters[value] = tuple(tensor.shape)
        return self._leaves[value]


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; an update of a leaf that is trained is no change."""
    if tensor.is_inference() or (tensor.requires_grad and tensor.grad_fn is None):
        return -1
    return tensor._version
