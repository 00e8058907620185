"""Chooses for each tensor how its statistics are computed, and collects a step's rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from backlight.reduce import native
from backlight.reduce.spec import NO_UNITS
from backlight.reduce.torch_ops import TorchTable

_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
        self._codes: dict[Any, int] = native.dtype_codes() if self._native is not None else {}
        self._other = TorchTable()
        self._order = 0
        self._is_last_native = False

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
        code = self._codes.get(tensor.dtype)
        if code is not None and _lies_in_memory(tensor):
            self._is_last_native = True
            self._native.observe(  # type: ignore[union-attr]
                self._order,
                iteration,
                site,
                quantity,
                unit_dim,
                code,
                tensor.data_ptr(),
                tensor.shape,
                tensor.stride(),
                torch.get_num_threads(),
            )
        else:
            self._is_last_native = False
            self._other.observe(
                tensor,
                order=self._order,
                iteration=iteration,
                site=site,
                quantity=quantity,
                unit_dim=unit_dim,
            )
        self._order += 1

    def repeat(self, site: int) -> None:
        """Add the last row again for another site, where the very same tensor was seen."""
        if self._is_last_native:
            self._native.repeat(self._order, site)  # type: ignore[union-attr]
        else:
            self._other.repeat(order=self._order, site=site)
        self._order += 1

    def take(self, step: int) -> pa.RecordBatch | None:
        """The rows since the last call as one batch, or None if there are none."""
        batches = []
        if self._native is not None and len(self._native):
            batches.append(native.to_batch(self._native, step))
        if len(self._other):
            batches.append(self._other.to_batch(step))
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


def _lies_in_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements can be read at `data_ptr()` by shape and stride, as they are."""
    return (
        tensor.is_cpu
        and type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_neg()
    )
