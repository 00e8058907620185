"""The tensors that the user has named in a step: which of them a backward pass then starts from."""

from __future__ import annotations

import weakref

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
