"""Which samples of a batch have their raw values kept, and of them which neurons.

It is what `backlight.watch(samples=, neurons=, value_bytes=)` takes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Literal, NamedTuple

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
    unique = _places(places)
    if not unique:
        raise BacklightError(
            f"positions() got {_shown(places)}: give positions in the batch, counted from 0."
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


def _places(places: object) -> tuple[int, ...] | None:
    """Positions, each once; None if they are not whole numbers from 0 on."""
    if not isinstance(places, Iterable) or isinstance(places, (str, bytes, Mapping)):
        return None
    try:
        listed = list(places)  # a tensor of one number has none
        unique = tuple(dict.fromkeys(map(index, listed)))
    except TypeError:
        return None
    if any(isinstance(place, bool) for place in listed):
        return None
    return unique if min(unique, default=0) >= 0 else None


def _shown(value: object) -> str:
    """What was given, short and in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


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
    if isinstance(samples, Iterable) and not isinstance(samples, (str, bytes, Mapping)):
        return positions(samples)
    raise BacklightError(
        f"samples={_shown(samples)} chooses none: give a number, positions, or a rule of "
        "backlight.samples."
    )


@dataclass(frozen=True, slots=True)
class NeuronSelection:
    """Which neurons are kept of each sample; `as_neurons` makes one.

    A neuron is a position in the flattened sample: of activations with one dimension besides the
    batch, it is the unit's number.
    """

    most: int = 4096  # this many, evenly spread
    places: tuple[int, ...] | None = None  # or these
    by_site: tuple[tuple[str, NeuronSelection], ...] = ()  # the first pattern that is found counts

    def at(self, site_name: str) -> NeuronSelection:
        """The selection for a site, by its name; that of everyone else, if no pattern is found.

        >>> chosen = as_neurons({"^encoder": [3, 5]})
        >>> chosen.at("encoder.0:out.0").places, chosen.at("decoder:out.0").most
        ((3, 5), 4096)
        """
        for pattern, selection in self.by_site:
            if re.search(pattern, site_name):
                return selection
        return NeuronSelection() if self.by_site else self

    def columns(self, neurons: int) -> tuple[int, ...] | None:
        """The chosen ones of that many; None if they are evenly spread."""
        if self.places is None:
            return None
        return tuple(place for place in self.places if place < neurons)


def as_neurons(neurons: object) -> NeuronSelection:
    """What `watch(neurons=…)` was given: at most so many, which ones, or either for some sites.

    Sites are given by regular expressions that are looked for in their names. A tensor that has
    fewer neurons has fewer of the chosen ones; no neurons are chosen by `{"pattern": []}`.

    >>> as_neurons(None) == as_neurons(4096), as_neurons([7, 0, 7]).places
    (True, (7, 0))
    >>> as_neurons({r"attn.*:out": [0, 1], "": 16}).at("mlp:out.0").most
    16
    """
    if neurons is None:
        return NeuronSelection()
    if isinstance(neurons, NeuronSelection):
        return neurons
    if isinstance(neurons, Mapping) and neurons:
        pairs = ((_pattern(key), _neurons(value)) for key, value in neurons.items())
        return NeuronSelection(by_site=tuple(pairs))
    chosen = _neurons(neurons)
    if chosen.places == ():
        raise _no_neurons(neurons)
    return chosen


def _neurons(neurons: object) -> NeuronSelection:
    if isinstance(neurons, int) and not isinstance(neurons, bool) and neurons > 0:
        return NeuronSelection(most=neurons)
    places = _places(neurons)
    if places is None:
        raise _no_neurons(neurons)
    return NeuronSelection(places=places)


class ValueBytes(NamedTuple):
    """How many bytes the raw values of a step may take, and those of the run."""

    step: int = 4 << 20
    run: int = 1 << 30


USUAL_BYTES: Final = ValueBytes()


def as_value_bytes(given: object) -> ValueBytes:
    """What `watch(value_bytes=…)` was given: for each step, or a pair, also for the run.

    >>> as_value_bytes(None).step, as_value_bytes((1 << 20, 1 << 24)).run
    (4194304, 16777216)
    >>> as_value_bytes(2 << 30)
    ValueBytes(step=2147483648, run=2147483648)
    """
    if given is None:
        return USUAL_BYTES
    numbers = given if isinstance(given, (tuple, list)) else (given,)
    are_whole = all(isinstance(each, int) and not isinstance(each, bool) for each in numbers)
    if not are_whole or len(numbers) not in (1, 2) or min(numbers) <= 0:
        raise BacklightError(
            f"value_bytes={_shown(given)} is no number of bytes: give how many the raw values of a "
            "step may take, or a pair, for a step and for the run."
        )
    return ValueBytes(
        numbers[0], numbers[1] if len(numbers) == 2 else max(USUAL_BYTES.run, numbers[0])
    )


def _pattern(pattern: object) -> str:
    try:
        if isinstance(pattern, str):
            re.compile(pattern)
            return pattern
        why = f"it is a {type(pattern).__name__}"
    except re.error as error:
        why = str(error)
    raise BacklightError(
        f"neurons has the key {_shown(pattern)}, which is no regular expression ({why}): "
        "give one that is found in the names of sites."
    )


def _no_neurons(neurons: object) -> BacklightError:
    return BacklightError(
        f"neurons={_shown(neurons)} chooses none: give a number, positions counted from 0, or a "
        "dict from regular expressions of site names to either."
    )
