"""Chooses for each tensor how its statistics are computed, and collects a step's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import torch

from backlight.reduce import native
from backlight.reduce.readable import State, has_values, local_part, state_of, version_of
from backlight.reduce.spec import NO_UNITS
from backlight.reduce.torch_ops import TorchTable
from backlight.store.packed import Packed, as_batch

if TYPE_CHECKING:
    from backlight.capture.own import OwnStatistics

Item: TypeAlias = (
    tuple[torch.Tensor, int, int]
    | tuple[torch.Tensor, int, int, torch.Tensor]
    | tuple[torch.Tensor, int, int, None, torch.Tensor]
)
"""A tensor, its site and its quantity; with a fourth, what the tensor differs from it by; with a
fifth, memory that it is copied to while it is read."""


class Reducer:
    """Turns tensors into rows of the `stats` table, at once: the tensor may change afterwards.

    >>> reducer = Reducer()
    >>> row = reducer.observe(torch.tensor([0.0, 2.0]), site=0, quantity=0)
    >>> batch = reducer.take(step=1)
    >>> batch["max"].to_pylist(), batch["zeros"].to_pylist()
    ([2.0], [1])
    """

    def __init__(self, *, use_native: bool = True) -> None:
        self.table = native.new_table() if use_native and native.is_available() else None
        self._other = TorchTable()
        self._count = 0  # of rows, where there is no table that counts them
        self.own: OwnStatistics | None = None  # where the user asked for some
        self.backwards = [""]  # the names of backward passes that quantities may speak of

    def __len__(self) -> int:
        return self._order

    @property
    def _order(self) -> int:
        """Of the next row; the kernel adds some without asking."""
        return self._count if self.table is None else self.table.order

    @_order.setter
    def _order(self, order: int) -> None:
        if self.table is None:
            self._count = order
        else:
            self.table.order = order

    def observe(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        iteration: int = 0,
        unit_dim: int = NO_UNITS,
        batch_dim: int = 0,
    ) -> int | None:
        """Add one row. Nothing is kept of the tensor, and nothing of it is changed.

        `unit_dim` is counted with `batch_dim`, that of the samples, before all others.

        The answer is the row, for `repeat`, until the rows are taken; None if the tensor has no
        values to read.
        """
        row: int | None = -1
        if self.table is not None:
            row = self.table.observe(
                tensor, site, quantity, self._order, iteration, unit_dim, batch_dim
            )
        if row == -1:
            row = self._observe_by_torch(
                tensor, site, quantity, self._order, iteration, unit_dim, batch_dim
            )
        if self.own is not None and row is not None:
            self.own.observe(tensor, row, site, quantity, self._order)
        self._order += row is not None
        return row

    def observe_marked(
        self, tensor: torch.Tensor, site: int, quantity: int, iteration: int = 0
    ) -> State | None:
        """Add one row of a tensor without units; the answer is its state, as `state_of` says it.

        >>> reducer, numbers = Reducer(), torch.ones(3)
        >>> reducer.observe_marked(numbers, 0, 1) == state_of(numbers)
        True
        """
        if self.table is not None and self.own is None:
            row, number = self.table.observe_marked(tensor, site, quantity, self._order, iteration)
            if row >= 0:
                self._order += 1
                return (number, version_of(tensor)) if number else None
        self.observe(tensor, site, quantity, iteration)
        return state_of(tensor)

    def observe_many(self, items: Sequence[Item], iteration: int = 0) -> list[int]:
        """Add a row for each item, in order, as `observe` would; `new - old` for a difference.

        Far cheaper than a call for each: the tensors are shared out among the threads together.
        The answer is the places of items that have no values to read.

        >>> reducer = Reducer()
        >>> old, new = torch.tensor([1.0]), torch.tensor([3.0])
        >>> reducer.observe_many([(old, 0, 0), (new, 1, 0), (new, 1, 3, old)])
        []
        >>> reducer.take(step=1)["mean"].to_pylist()
        [1.0, 3.0, 2.0]
        """
        left: Sequence[int] = range(len(items))
        if self.table is not None:
            left = self.table.observe_many(items, self._order, iteration)
        unread = [] if not left else [p for p in left if not self._read(items[p], p, iteration)]
        if self.own is not None:
            self.own.observe_many(items, self._order, unread)
        self._order += len(items)
        return unread

    def _read(self, item: Item, place: int, iteration: int) -> bool:
        _, site, quantity, old, copy = (*item, None, None)[:5]
        tensor = local_part(item[0])
        old, copy = (None if each is None else local_part(each) for each in (old, copy))
        if not all(has_values(each) for each in (tensor, old, copy) if each is not None):
            return False
        with torch.no_grad():
            seen = tensor if old is None else tensor.detach() - old.detach()
            if copy is not None:
                copy.copy_(tensor)
        row, order = -1, self._order + place
        if self.table is not None:
            row = self.table.observe(seen, site, quantity, order, iteration, NO_UNITS)
        if row >= 0:
            return True
        return self._observe_by_torch(seen, site, quantity, order, iteration) is not None

    def repeat(self, row: int, site: int, iteration: int = 0) -> None:
        """Add a row again for another site, where the very same tensor is seen."""
        if row >= 0:
            self.table.repeat(row, self._order, iteration, site)  # type: ignore[union-attr]
        else:
            self._other.repeat(~row, order=self._order, iteration=iteration, site=site)
        if self.own is not None:
            self.own.repeat(row, site, self._order)
        self._order += 1

    def _observe_by_torch(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        order: int,
        iteration: int,
        unit_dim: int = NO_UNITS,
        batch_dim: int = 0,
    ) -> int | None:
        """A row of the other table, counted below 0 from its front."""
        tensor = local_part(tensor)
        if not has_values(tensor):
            return None
        self._other.observe(
            tensor,
            order=order,
            iteration=iteration,
            site=site,
            quantity=quantity,
            unit_dim=unit_dim,
            batch_dim=batch_dim,
        )
        return -len(self._other)

    def take(self, step: int) -> pa.RecordBatch | None:
        """The rows since the last call as one batch, or None if there are none."""
        packed = self.take_packed(step)
        return None if packed is None else as_batch(packed)

    def take_packed(self, step: int) -> Packed | pa.RecordBatch | None:
        """The same, as they are written if they are all of the kernel's making."""
        rows: list[Packed | pa.RecordBatch] = []
        if self.table is not None and len(self.table):
            rows.append(native.pack(self.table, step, self.backwards))
        if self._other.known:
            rows.append(self._other.to_batch(step, self.backwards))
        if self.own is not None:
            rows = [self.own.join(as_batch(batch)) for batch in rows]
        self.clear()
        if len(rows) == 2:
            return pa.Table.from_batches(map(as_batch, rows)).combine_chunks().to_batches()[0]
        return rows[0] if rows else None

    @property
    def other_rows(self) -> list[dict[str, Any]]:
        """The rows that are not of the kernel's making, always in the same list."""
        return self._other.known

    def clear(self) -> None:
        """Forget the rows of a step that is not kept."""
        if self.own is not None:
            self.own.clear()
        if self._other.known:
            self._other.clear()
        if self.table is None:
            self._count = 0
        else:
            self.table.clear()
