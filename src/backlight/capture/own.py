"""The user's own statistics of the tensors of a step: computed when a tensor is read.

A function is given a copy, in float32 or float64, outside of autograd and of any autocast, and the
random numbers that it draws are put back. So whatever it does, training is the same.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from backlight.capture.calls.quiet import Quiet
from backlight.own.statistic import Statistic, StatisticBook
from backlight.reduce.extras import as_numbers, built_in
from backlight.reduce.readable import has_values
from backlight.reduce.reducer import Item
from backlight.schema import QUANTITIES, STATS, Site
from backlight.store.own import lists_of

Values = dict[int, Any]
"""The numbers of one tensor, by their places; on their device until the step ends."""


@dataclass(slots=True)
class _Read:
    """A tensor that was read, without keeping it alive."""

    tensor: weakref.ref[torch.Tensor]
    quantity: int
    values: Values


class OwnStatistics:
    """Computes them tensor by tensor, and adds their column to a step's rows."""

    def __init__(self, book: StatisticBook, site_of: Callable[[int], Site]) -> None:
        self.book = book
        self._site_of = site_of
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}
        self._size = 0
        self._by_order: dict[int, Values] = {}
        self._by_row: dict[int, _Read] = {}

    def observe(self, tensor: torch.Tensor, row: int, site: int, quantity: int, order: int) -> None:
        """A tensor was read, as the row of this order."""
        values = self._compute(tensor, site, quantity, {})
        self._by_row[row] = _Read(weakref.ref(tensor), quantity, values)
        self._by_order[order] = values

    def observe_many(self, items: Sequence[Item], order: int, unread: Iterable[int]) -> None:
        """Tensors were read, or differences of two; from this order on, in their order."""
        left_out = set(unread)
        for place, item in enumerate(items):
            if place not in left_out:
                tensor, site, quantity, old = (*item, None)[:4]
                self._by_order[order + place] = self._compute(tensor, site, quantity, {}, old)

    def repeat(self, row: int, site: int, order: int) -> None:
        """The row of a tensor was repeated for another site, at which others may be asked for."""
        read = self._by_row.get(row)
        tensor = None if read is None else read.tensor()
        if read is not None and tensor is not None:
            read.values = self._compute(tensor, site, read.quantity, read.values)
            wanted = self._places(site, read.quantity)
            self._by_order[order] = {p: v for p, v in read.values.items() if p in wanted}

    def join(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the column of own statistics."""
        numbers = np.full((batch.num_rows, len(self.book)), np.nan)
        rows = {order: row for row, order in enumerate(batch.column("order").to_pylist())}
        found = [
            (rows[order], place, value)
            for order, values in self._by_order.items()
            for place, value in values.items()
            if order in rows
        ]
        for row, place, number in _on_host(found):
            numbers[row, place] = number
        return pa.RecordBatch.from_arrays([*batch.columns, lists_of(numbers)], schema=STATS)

    def clear(self) -> None:
        """Forget the tensors of a step."""
        self._by_order.clear()
        self._by_row.clear()

    def _places(self, site: int, quantity: int) -> tuple[int, ...]:
        if self._size != len(self.book):
            self._known.clear()
            self._size = len(self.book)
        key = site, quantity % len(QUANTITIES)
        places = self._known.get(key)
        if places is None:
            places = self.book.of(self._site_of(site), QUANTITIES[key[1]])
            self._known[key] = places
        return places

    def _compute(
        self, tensor: torch.Tensor, site: int, quantity: int, known: Values, old: Any = None
    ) -> Values:
        missing = [place for place in self._places(site, quantity) if place not in known]
        if not missing or not has_values(tensor):
            return known
        with Quiet(), _without_autocast(tensor.device.type):
            seen = tensor.detach() if old is None else _difference(tensor, old)
            found = {place: self._number(self.book[place], seen, site) for place in missing}
        return {**known, **{place: each for place, each in found.items() if each is not None}}

    def _number(self, statistic: Statistic, tensor: torch.Tensor, site: int) -> Any:
        where = self._site_of(site).name
        try:
            if statistic.function is None:
                return built_in(statistic, tensor)
            with _random_numbers_kept(tensor.device.type):
                number = statistic.function(as_numbers(tensor).clone())
        except Exception as error:
            self.book.failed(statistic.name, where, error)
            return None
        if isinstance(number, torch.Tensor) and number.numel() == 1 and not number.is_complex():
            return number.detach().reshape(()).to(torch.float64)
        try:
            return float(number)
        except (TypeError, ValueError, RuntimeError):
            self.book.no_number(statistic.name, where, _described(number))
            return None


def _difference(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return new.detach().to(torch.float64) - old.detach().to(torch.float64)


def _described(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return f"a tensor of {result.numel()} elements"
    return f"a {type(result).__name__}"


def _on_host(found: list[tuple[int, int, Any]]) -> Iterator[tuple[int, int, float]]:
    """Bring all numbers over, those of one device in one copy."""
    devices: dict[Any, list[tuple[int, int, Any]]] = {}
    for row, place, value in found:
        if isinstance(value, torch.Tensor):
            devices.setdefault(value.device, []).append((row, place, value))
        else:
            yield row, place, value
    for same in devices.values():
        numbers = torch.stack([value for _, _, value in same]).tolist()
        yield from ((row, place, n) for (row, place, _), n in zip(same, numbers, strict=True))


@contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


@contextmanager
def _random_numbers_kept(device: str) -> Iterator[None]:
    """Put back what a function draws from the generators of torch, NumPy and Python."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    on_device = torch.cuda.get_rng_state() if device == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
        if on_device is not None:
            torch.cuda.set_rng_state(on_device)
