"""Which samples of a batch have their raw values kept: what `backlight.watch(samples=)` takes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

from backlight.errors import BacklightError

Fact = Literal["losses", "categories", "data_indices"]


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """Which samples of a batch are kept; made by the functions below."""

    rule: Literal["first", "positions", "highest_loss", "balanced"]
    count: int
    places: tuple[int, ...] = ()
    categories: tuple[Hashable, ...] | None = None

    @property
    def needs(self) -> Fact | None:
        """What has to be known of the batch before samples can be chosen."""
        needed: dict[str, Fact] = {"highest_loss": "losses", "balanced": "categories"}
        return needed.get(self.rule)

    def choose(self, batch_size: int, known: Sequence[Any]) -> list[int]:
        """Positions in the batch, the first choice first; `known` is what the rule `needs`."""
        if self.rule == "highest_loss":
            places = sorted(range(batch_size), key=lambda place: _descending(known[place]))
        elif self.rule == "balanced":
            places = _in_turn(known[:batch_size], self.categories)
        elif self.rule == "positions":
            places = [place for place in self.places if place < batch_size]
        else:
            places = list(range(min(self.count, batch_size)))
        return places[: self.count]


def first(count: int) -> SampleSelection:
    """The first samples of each batch.

    >>> first(2).choose(batch_size=5, known=())
    [0, 1]
    """
    return SampleSelection("first", _count(count))


def positions(places: Iterable[int]) -> SampleSelection:
    """The samples at given positions of each batch; a smaller batch has fewer of them.

    >>> positions([0, 5]).choose(batch_size=4, known=())
    [0]
    """
    unique = tuple(dict.fromkeys(index(place) for place in places))
    if not unique or min(unique) < 0:
        raise BacklightError(
            f"positions() got {list(unique)}: give positions in the batch, counted from 0."
        )
    return SampleSelection("positions", len(unique), unique)


def highest_loss(count: int) -> SampleSelection:
    """The samples with the highest loss, where NaN is higher than any number.

    >>> highest_loss(2).choose(batch_size=3, known=[0.5, 2.0, 1.0])
    [1, 2]
    """
    return SampleSelection("highest_loss", _count(count))


def balanced(count: int, categories: Iterable[Hashable] | None = None) -> SampleSelection:
    """Samples spread evenly over the categories; without `categories`, over all in the batch.

    >>> balanced(3).choose(batch_size=4, known=["cat", "cat", "cat", "dog"])
    [0, 3, 1]
    >>> balanced(3, ["dog"]).choose(batch_size=4, known=["cat", "cat", "cat", "dog"])
    [3]
    """
    wanted = None if categories is None else tuple(dict.fromkeys(categories))
    return SampleSelection("balanced", _count(count), categories=wanted)


def _count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BacklightError(f"The number of samples to keep is {count!r}: give at least 1.")
    return count


def _descending(loss: float) -> float:
    return -float("inf") if loss != loss else -loss


def _in_turn(labels: Sequence[Hashable], wanted: tuple[Hashable, ...] | None) -> list[int]:
    """One sample of each category in turn, until there are no more."""
    members: dict[Hashable, list[int]] = {
        label: [] for label in (labels if wanted is None else wanted)
    }
    for place, label in enumerate(labels):
        if label in members:
            members[label].append(place)
    most = max(map(len, members.values()), default=0)
    return [
        places[turn] for turn in range(most) for places in members.values() if turn < len(places)
    ]


def as_selection(samples: object) -> SampleSelection | None:
    """What `watch(samples=…)` was given, as a selection: a number means that many of the first.

    >>> as_selection(2) == first(2), as_selection([0, 3]) == positions([0, 3]), as_selection(None)
    (True, True, None)
    """
    if samples is None or isinstance(samples, SampleSelection):
        return samples
    if isinstance(samples, int):
        return first(samples)
    if isinstance(samples, (Sequence, Set)) and not isinstance(samples, str):
        return positions(samples)
    raise BacklightError(
        f"samples={samples!r} chooses none: give a number, positions, or a rule of "
        "backlight.samples."
    )
