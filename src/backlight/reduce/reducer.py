"""Chooses for each tensor how its statistics are computed, and collects a step's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import torch

from backlight.reduce import native
from backlight.reduce.spec import NO_UNITS
from backlight.reduce.torch_ops import TorchTable

Item: TypeAlias = tuple[torch.Tensor, int, int] | tuple[torch.Tensor, int, int, torch.Tensor]
"""A tensor, its site and its quantity; with a fourth, what the tensor differs from it by."""


class Reducer:
    """Turns tensors into rows of the `stats` table, at once: the tensor may change afterwards.

    >>> reducer = Reducer()
    >>> reducer.observe(torch.tensor([0.0, 2.0]), site=0, quantity=0)
    >>> batch = reducer.take(step=1)
    >>> batch["max"].to_pylist(), batch["zeros"].to_pylist()
    ([2.0], [1])
    """

    def __init__(self, *, use_native: bool = True) -> None:
        self._native = native.new_table() if use_native and native.is_available() else None
        self._other = TorchTable()
        self._order = 0
        self._last = 0  # a row of the kernel's table, or ~row of the other
        self.backwards = [""]  # the names of backward passes that quantities may speak of

    def __len__(self) -> int:
        return self._order

    def observe(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        iteration: int = 0,
        unit_dim: int = NO_UNITS,
    ) -> None:
        """Add one row. Nothing is kept of the tensor, and nothing of it is changed."""
        self._last = self._observe(tensor, site, quantity, self._order, iteration, unit_dim)
        self._order += 1

    def observe_difference(
        self, new: torch.Tensor, old: torch.Tensor, site: int, quantity: int, iteration: int = 0
    ) -> None:
        """Add the row that `new - old` would give, without making that tensor where it can.

        >>> reducer = Reducer()
        >>> reducer.observe_difference(torch.tensor([3.0]), torch.tensor([1.0]), site=0, quantity=3)
        >>> reducer.take(step=1)["max"].to_pylist()
        [2.0]
        """
        self.observe_many([(new, site, quantity, old)], iteration)

    def observe_many(self, items: Sequence[Item], iteration: int = 0) -> None:
        """Add a row for each item, in order, as `observe` and `observe_difference` would.

        Far cheaper than a call for each: the tensors are shared out among the threads together.

        >>> reducer = Reducer()
        >>> old, new = torch.tensor([1.0]), torch.tensor([3.0])
        >>> reducer.observe_many([(old, 0, 0), (new, 1, 0), (new, 1, 3, old)])
        >>> reducer.take(step=1)["mean"].to_pylist()
        [1.0, 3.0, 2.0]
        """
        left: Sequence[int] = range(len(items))
        if self._native is not None:
            left = self._native.observe_many(items, self._order, iteration)
            self._last = len(self._native) - 1
        for place in left:
            tensor, site, quantity, *old = items[place]
            seen = _difference(tensor, old[0]) if old else tensor
            row = self._observe(seen, site, quantity, self._order + place, iteration)
            if place == len(items) - 1:
                self._last = row
        self._order += len(items)

    @property
    def last_row(self) -> tuple[bool, int]:
        """Where the last row is, for `repeat`; it holds until the rows are taken."""
        return (True, self._last) if self._last >= 0 else (False, ~self._last)

    def repeat(self, row: tuple[bool, int], site: int, iteration: int = 0) -> None:
        """Add a row again for another site, where the very same tensor is seen."""
        is_native, place = row
        if is_native:
            self._native.repeat(place, self._order, iteration, site)  # type: ignore[union-attr]
        else:
            self._other.repeat(place, order=self._order, iteration=iteration, site=site)
        self._order += 1

    def _observe(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        order: int,
        iteration: int,
        unit_dim: int = NO_UNITS,
    ) -> int:
        """Add one row by whatever can read the tensor, and say where it is."""
        if self._native is not None:
            row = self._native.observe(tensor, site, quantity, order, iteration, unit_dim)
            if row >= 0:
                return row
        self._other.observe(
            tensor,
            order=order,
            iteration=iteration,
            site=site,
            quantity=quantity,
            unit_dim=unit_dim,
        )
        return -len(self._other)

    def take(self, step: int) -> pa.RecordBatch | None:
        """The rows since the last call as one batch, or None if there are none."""
        batches = []
        if self._native is not None and len(self._native):
            batches.append(native.to_batch(self._native, step, self.backwards))
        if len(self._other):
            batches.append(self._other.to_batch(step, self.backwards))
        self.clear()
        if len(batches) == 2:
            return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return batches[0] if batches else None

    def clear(self) -> None:
        """Forget the rows of a step that is not kept."""
        self._order = 0
        self._other.clear()
        if self._native is not None:
            self._native.clear()


def _difference(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return new.detach() - old.detach()
