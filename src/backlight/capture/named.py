"""The tensors that the user has named in a step: which of them a backward pass then starts from."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from backlight.reduce.readable import State, mark_of


class NamedTensors:
    """The sites of named tensors, as long as these are as they were.

    >>> named, loss = NamedTensors(), torch.ones((), requires_grad=True) * 2
    >>> named.add(loss, site=7)
    >>> named.site_of(loss), named.site_of(loss * 1)
    (7, None)
    >>> _ = loss.data.add_(1)
    >>> named.site_of(loss)
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[torch.Tensor], State | None, int]] = {}

    def clear(self) -> None:
        """Another step begins."""
        self.known.clear()

    def add(self, tensor: torch.Tensor, site: int) -> None:
        """The user has named a tensor, which is recorded at a site."""
        # No backward pass starts from another.
        if tensor.requires_grad and site >= 0:
            self.known[id(tensor)] = weakref.ref(tensor), mark_of(tensor), site

    def site_of(self, tensor: torch.Tensor) -> int | None:
        """The site under which this tensor was recorded as it is now; None if it was not."""
        reference, mark, site = self.known.get(id(tensor), (None, None, -1))
        if reference is None or reference() is not tensor or mark_of(tensor) != mark:
            return None
        return site


class EarlyNames:
    """What is named where gradients are disabled and no step is under way: it may be the next's.

    It is, unless a forward pass without gradients comes first: then an evaluation has named it. And
    what an evaluation names after its forward pass is not waited for, but for initial values.

    >>> early, zeros, ones = EarlyNames(), torch.zeros(2), torch.ones(2)
    >>> early.put("a", zeros, is_initial=True)
    >>> early.put("b", ones)
    >>> _ = zeros.add_(1)
    >>> early.take() == [("b", ones, {"is_initial": False})]
    True
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[weakref.ref[torch.Tensor], State | None, dict[str, Any]]]
        self._waiting = {}
        self._is_evaluation = False

    def put(
        self, name: str, tensor: torch.Tensor, *, is_initial: bool = False, **told: Any
    ) -> None:
        """The user has named a tensor."""
        if is_initial or not self._is_evaluation:
            told["is_initial"] = is_initial
            self._waiting[name] = weakref.ref(tensor), mark_of(tensor), told

    def see_evaluation(self) -> None:
        """A forward pass begins that is part of no step."""
        self._is_evaluation = True
        self._waiting.clear()

    def take(self) -> list[tuple[str, torch.Tensor, dict[str, Any]]]:
        """A step begins: what is there, and as it was when it was named."""
        self._is_evaluation = False
        waiting, self._waiting = self._waiting, {}
        found = [
            (name, reference(), mark, told) for name, (reference, mark, told) in waiting.items()
        ]
        return [
            (name, tensor, told)
            for name, tensor, mark, told in found
            if tensor is not None and mark == mark_of(tensor)
        ]
