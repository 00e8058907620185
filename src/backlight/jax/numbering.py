"""Which site each tensor that was seen in a program belongs to: its module's call, or its name."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from backlight.capture.sites import LEFT_OUT, SiteBook
from backlight.errors import BacklightError
from backlight.jax.hoist import Sight
from backlight.jax.taps import Label

Occurrence = tuple[int, int]
"""The token of a call, and which of the times it is that a program has it: JAX traces a function
that is called twice in the same way only once."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A sight and its site; for a parameter's gradient the site is found later, by its name."""

    sight: Sight
    site: int
    call: int


def number(sights: list[Sight], sites: SiteBook, step: int, mistakes: list[str]) -> list[Placed]:
    """Give each activation and each named tensor its site, in the order of the program."""
    occurrences = _occurrences(sights)
    calls: defaultdict[str, dict[Occurrence, int]] = defaultdict(dict)
    names: dict[tuple[str, str], Occurrence] = {}
    placed = []
    for sight, occurrence in zip(sights, occurrences, strict=True):
        label = sight.label
        if label.tensor_class in ("input", "output"):
            known = calls[label.module]
            call = known.setdefault(occurrence, len(known) + 1)
            placed.append(Placed(sight, _activation(sites, label, call, step), call))
        elif names.setdefault((label.module, label.place), occurrence) == occurrence:
            placed.append(Placed(sight, _named(sites, label, step, mistakes), 1))
        else:
            mistakes.append(
                f"Two tensors are named {label.place!r} in one step: name the second one "
                "otherwise; only the first is recorded."
            )
    return placed


def _occurrences(sights: list[Sight]) -> list[Occurrence]:
    """Values count up, in the order of the program; gradients come in the opposite order."""
    totals = Counter(sight.label for sight in sights if sight.quantity == "value")
    seen: Counter[tuple[Label, str]] = Counter()
    found = []
    for sight in sights:
        times = seen[sight.label, sight.quantity]
        seen[sight.label, sight.quantity] += 1
        if sight.quantity == "grad":
            times = max(totals[sight.label] - 1 - times, 0)
        found.append((sight.label.token, times))
    return found


def _activation(sites: SiteBook, label: Label, call: int, step: int) -> int:
    return sites.activation(
        label.tensor_class, label.module, label.module_class, label.place, call=call, step=step
    )


def _named(sites: SiteBook, label: Label, step: int, mistakes: list[str]) -> int:
    options: dict[str, Any] = {"module": label.module, "role": label.place, "kind": "hidden"}
    try:
        return sites.named(label.place, node=label.module or label.place, step=step, **options)
    except BacklightError as error:
        mistakes.append(str(error))
        return LEFT_OUT
