"""The statistics that a run was asked for besides its own: names, functions, what they are of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from backlight.capture.select import Pattern, Selection
from backlight.errors import BacklightError, Guard
from backlight.own.blocks import Blocks
from backlight.schema import QUANTITIES, Site, is_own_name

KINDS: Final = ("signed", "magnitude", "share")
Kind = Literal["signed", "magnitude", "share"]

BUILT_IN: Final = {
    "min_abs": "least magnitude of the finite elements",
    "rm4": "fourth root of the mean fourth power",
    "rm8": "eighth root of the mean eighth power",
}
"""What can be asked for by name alone: each framework computes it in its own way."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """A statistic of the tensors that are chosen.

    `function` is None of one that is built in; `blocks` says which part of those of blocks it is.
    """

    name: str
    function: Callable[[Any], Any] | None = None
    kind: str = "signed"
    about: str = ""
    selection: Selection = field(default_factory=Selection)
    quantities: frozenset[str] = frozenset(QUANTITIES)
    blocks: tuple[Blocks, str] | None = None

    def is_of(self, site: Site, quantity: str) -> bool:
        """Whether it is computed of a quantity at a site."""
        return quantity in self.quantities and self.selection.has(site)

    def told(self) -> dict[str, str]:
        """What `run.json` says of it."""
        return {"name": self.name, "kind": self.kind, "about": self.about}


def statistic_of(
    name: object,
    function: object = None,
    *,
    kind: str = "signed",
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    classes: Collection[str] | None = None,
    quantities: Collection[str] | None = None,
) -> Statistic:
    """A statistic as the user asks for it, or one sentence on what is wrong.

    >>> statistic_of("mean", len)
    Traceback (most recent call last):
    backlight.errors.BacklightError: A statistic cannot be called 'mean': choose another word, ...
    """
    if not isinstance(name, str) or not is_own_name(name):
        raise BacklightError(
            f"A statistic cannot be called {name!r}: choose another word, of letters, digits and "
            "underscores, that no column or function of a run is called."
        )
    if function is None and name not in BUILT_IN:
        raise BacklightError(
            f"run.statistic({name!r}) needs a function of a tensor; by name alone there are "
            f"{', '.join(BUILT_IN)}."
        )
    if function is not None and not callable(function):
        raise BacklightError(
            f"run.statistic({name!r}) got a {type(function).__name__}: "
            "pass a function of a tensor that returns a number."
        )
    if kind not in KINDS:
        raise BacklightError(f"run.statistic({name!r}) got kind={kind!r}: use {', '.join(KINDS)}.")
    return Statistic(
        name,
        function,
        kind if function is not None else "magnitude",
        BUILT_IN[name] if function is None else _first_line(function),
        Selection(include=include, exclude=exclude, classes=classes),
        _checked_quantities(quantities),
    )


def block_statistics(
    shape: object,
    format_name: str,
    *,
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    classes: Collection[str] | None = None,
    quantities: Collection[str] | None = None,
) -> list[Statistic]:
    """The statistics of blocks of a shape: how they spread, and what a format loses of them.

    >>> [each.name for each in block_statistics((1, 32), "float16")]
    ['block_spread_1x32', 'block_lost_1x32_float16', 'scale_lost_float16']
    """
    blocks = Blocks.of(shape, format_name)
    selection = Selection(include=include, exclude=exclude, classes=classes)
    chosen = _checked_quantities(quantities)
    size = f"{blocks.rows}x{blocks.columns}"
    words = f"{blocks.rows} × {blocks.columns}"
    lost = f"share that {format_name} rounds to 0"
    return [
        Statistic(name, None, kind, about, selection, chosen, (blocks, part))
        for name, kind, about, part in (
            (
                f"block_spread_{size}",
                "magnitude",
                f"standard deviation, in powers of two, of the maxima of blocks of {words}",
                "spread",
            ),
            (
                f"block_lost_{size}_{format_name}",
                "share",
                f"{lost} with a scale for each block of {words}",
                "block_lost",
            ),
            (f"scale_lost_{format_name}", "share", f"{lost} with one scale", "lost"),
        )
    ]


def _first_line(function: Any) -> str:
    text = str(getattr(function, "__doc__", None) or "").strip()
    return text.splitlines()[0] if text else "a statistic of your own"


def _checked_quantities(quantities: Collection[str] | None) -> frozenset[str]:
    if quantities is None:
        return frozenset(QUANTITIES)
    chosen = [quantities] if isinstance(quantities, str) else list(quantities)
    unknown = [each for each in chosen if each not in QUANTITIES]
    if unknown:
        raise BacklightError(
            f"There is no quantity {unknown[0]!r}: use one of {', '.join(QUANTITIES)}."
        )
    return frozenset(chosen)


class StatisticBook:
    """The statistics of a run in the order of its rows' lists, and where each is computed.

    >>> book = StatisticBook(Guard(strict=True))
    >>> book.add([statistic_of("kurtosis", lambda tensor: 3.0, quantities="grad")])
    >>> site = Site(0, "fc:out.0", "output", "fc", "Linear", "out.0")
    >>> book.of(site, "value"), book.of(site, "grad")
    ((), (0,))
    """

    def __init__(self, guard: Guard, earlier: Sequence[Mapping[str, str]] = ()) -> None:
        self._guard = guard
        self._told = [dict(each) for each in earlier]
        self._active: dict[int, Statistic] = {}
        self._said: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._told)

    def __getitem__(self, place: int) -> Statistic:
        return self._active[place]

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return [each["name"] for each in self._told]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed: what an earlier part of the run had counts for nothing."""
        return not self._active

    def add(self, statistics: Iterable[Statistic]) -> None:
        """Compute these too; one whose name is known takes that one's place."""
        for each in statistics:
            names = self.names
            place = names.index(each.name) if each.name in names else len(names)
            self._told[place : place + 1] = [each.told()]
            self._active[place] = each

    def told(self) -> list[dict[str, str]]:
        """What `run.json` says of them."""
        return list(self._told)

    def of(self, site: Site, quantity: str) -> tuple[int, ...]:
        """The places of those that are computed of a quantity at a site."""
        return tuple(p for p, each in sorted(self._active.items()) if each.is_of(site, quantity))

    def failed(self, name: str, where: str, error: Exception) -> None:
        """A function raised; of each statistic that is said once, and counted."""
        what = str(error).strip().splitlines()
        sentence = (
            f"The statistic {name!r} failed at {where!r} ({type(error).__name__}"
            f"{': ' + what[0][:160] if what else ''}): it is missing there, and training goes on."
        )
        self.say(name, sentence)

    def no_number(self, name: str, where: str, got: str) -> None:
        """A function returned no number."""
        self.say(
            name,
            f"The statistic {name!r} returned {got} at {where!r}: return one number; "
            "it is missing there, and training goes on.",
        )

    def say(self, name: str, sentence: str) -> None:
        """Say what is wrong with a statistic, in the words of the first time."""
        self._guard.mistake(self._said.setdefault(name, sentence))
