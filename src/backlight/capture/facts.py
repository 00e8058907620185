"""What the user tells of a batch, sample by sample: losses, categories, places in the data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from operator import index
from typing import Any, Final

import numpy as np
import torch

from backlight.errors import BacklightError
from backlight.samples import Fact, SampleSelection


class BatchFacts:
    """What is known of a step's samples: for one iteration, or for all of a part of the step.

    A part is what a step has one of, or gradient accumulation one for each micro-batch.

    >>> facts = BatchFacts()
    >>> facts.give("data_indices", [0, 1], None)
    >>> facts.give("data_indices", [2, 3], None, is_ahead=True)
    >>> facts.begin_part(1)
    >>> [facts.get("data_indices", iteration, may_wait=True) for iteration in (0, 1)]
    [[0, 1], [2, 3]]
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._batch_size = batch_size
        self._known: dict[tuple[Fact, int | None], Any] = {}
        self._ahead: dict[Fact, Any] = {}
        self._first = -1  # iteration of the part under way, with what was before it

    def give(
        self, fact: Fact, values: Any, iteration: int | None, *, is_ahead: bool = False
    ) -> None:
        """Take one number or label for each sample, of one iteration or of the part under way.

        What `is_ahead` is of the next forward pass, whichever iteration that turns out to be.
        """
        listed = _listed(fact, values)
        if is_ahead:
            self._ahead[fact] = listed
            return
        if iteration is None and self._batch_size not in (None, len(listed)):
            raise BacklightError(
                f"{_argument(fact)} got {len(listed)} values for a batch of {self._batch_size}: "
                "give one for each sample."
            )
        self._known[fact, iteration] = listed

    def begin_part(self, iteration: int) -> None:
        """Another part begins, with this iteration: nothing that was told is of it."""
        shared = [(fact, values) for (fact, at), values in self._known.items() if at is None]
        for fact, values in shared:
            del self._known[fact, None]
            for earlier in range(self._first, iteration):
                self._known.setdefault((fact, earlier), values)
        self._first = iteration
        self.reach(None)

    def reach(self, iteration: int | None) -> None:
        """The forward pass has come that something was told ahead of; None: for all of a part."""
        for fact, values in self._ahead.items():
            self._known[fact, iteration] = values
        self._ahead.clear()

    def settle(self) -> None:
        """The step ends: what no forward pass followed is of the last one, if that lacks it."""
        for fact, values in self._ahead.items():
            self._known.setdefault((fact, None), values)
        self._ahead.clear()

    def get(self, fact: Fact, iteration: int, *, may_wait: bool) -> list[Any] | None:
        """What was given; None if nothing was, or if it is on a device and we may not wait."""
        key = (fact, iteration) if (fact, iteration) in self._known else (fact, None)
        known = self._known.get(key)
        if isinstance(known, torch.Tensor):
            if not may_wait:
                return None
            known = self._known[key] = known.tolist()
        return known

    def is_batch(self, size: int, iteration: int) -> bool:
        """Whether a dimension of this size can be the iteration's batch."""
        own = [len(known) for (_, at), known in self._known.items() if at == iteration]
        shared = [len(known) for (_, at), known in self._known.items() if at is None]
        if self._batch_size is not None:
            shared = [self._batch_size]
        return all(size == known for known in own or shared)

    def misfit(self, shapes: Collection[tuple[int, ...]]) -> str | None:
        """What is wrong where something was told of more or fewer samples than any tensor has."""
        for (fact, _), known in self._known.items():
            if shapes and not any(len(known) in shape for shape in shapes):
                return (
                    f"{_argument(fact)} got {len(known)} values, and no tensor of the step has so "
                    "many samples: give one for each sample."
                )
        return None

    def choose(
        self, selection: SampleSelection, size: int, iteration: int, *, may_wait: bool
    ) -> list[int] | None:
        """The chosen samples, or None if that is not known."""
        if selection.needs is None:
            return selection.choose(size, ())
        known = self.get(selection.needs, iteration, may_wait=may_wait)
        if known is None or len(known) != size:
            return None
        return selection.choose(size, known)


def _listed(fact: Fact, values: Any) -> Any:
    """A list, or a tensor if the values are on a device: reading them would wait for it."""
    try:
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            values = torch.tensor(values)
        if isinstance(values, torch.Tensor):
            values = _one_each(fact, values.detach())
            if not values.is_cpu:
                return values.clone()
            values = values.tolist()
        return [_ITEM[fact][1](item.item() if hasattr(item, "item") else item) for item in values]
    except (TypeError, ValueError, RuntimeError):
        raise BacklightError(
            f"{_argument(fact)} got a {type(values).__name__} that cannot be read as one "
            f"{_ITEM[fact][0]} for each sample: give a list or a tensor as long as the batch."
        ) from None


def _argument(fact: Fact) -> str:
    """Where the user tells it."""
    return f"run.batch({fact.removeprefix('data_')}=…)"


def _one_each(fact: Fact, values: torch.Tensor) -> torch.Tensor:
    if fact == "losses" and values.dim() > 1:
        values = values.flatten(1).mean(1, dtype=torch.float32)
    if values.dim() != 1 or (fact == "data_indices" and values.is_floating_point()):
        raise ValueError
    return values


def _place(value: Any) -> int:
    place = index(value)
    if not -(1 << 63) <= place < 1 << 63:  # what the tables can hold
        raise ValueError
    return place


def _label(label: Hashable) -> Hashable:
    hash(label)
    return label


_ITEM: Final[dict[Fact, tuple[str, Callable[[Any], Any]]]] = {
    "losses": ("number", float),
    "categories": ("label", _label),
    "data_indices": ("whole number of 64 bits", _place),
}
