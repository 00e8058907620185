"""What a rule is: one fault, what it means, and how strongly a run speaks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from backlight.diagnosis.facts import Facts
from backlight.schema import Evidence


@dataclass(frozen=True)
class Suspicion:
    """That a run has a fault, as one rule sees it.

    `strength` is how much speaks for it, from 0 to 1; the engine makes a score of it.
    """

    where: str
    strength: float
    why: str
    try_this: str
    step: int = 0
    evidence: tuple[Evidence, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Threshold:
    """A number that a rule compares with, and where it comes from."""

    value: float
    origin: str


@dataclass(frozen=True)
class NotChecked(Exception):  # noqa: N818
    """Raised by a rule that cannot look: the run does not have what it needs."""

    reason: str


Check = Callable[[Facts], Iterable[Suspicion]]


@dataclass(frozen=True)
class Rule:
    """How one fault is found.

    >>> Rule("too_long", "The run is long.", lambda facts: []).fault
    'too_long'
    """

    fault: str
    meaning: str
    check: Check
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    """The faults that this one may bring about: they hang under it where both are found."""
