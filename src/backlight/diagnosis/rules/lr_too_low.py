"""Steps so small that nothing is learned in the time there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, rising_log, said
from backlight.diagnosis.updates import relative_updates, trained_weights, typical_update

_SUSPECT, _SURE = 2e-4, 1e-6


def check(facts: Facts) -> Iterator[Suspicion]:
    """Small updates, and a loss that has hardly moved from that of guessing."""
    if not facts.loss.is_known or facts.last_step < 20:
        raise NotChecked("the loss is not known for at least 20 steps")
    size = typical_update(facts)
    if not size > 0 or not trained_weights(facts):
        return
    strength = rising_log(size, _SUSPECT, _SURE) * _stands_still(facts)
    rate = float(np.nanmax(facts.rates[1], initial=0.0))
    if strength < 0.2:
        return
    yield Suspicion(
        where="optimizer",
        strength=strength,
        step=facts.first_step(relative_updates(facts) < _SUSPECT),
        why=f"A step changes the weights by {said(size)} of their size, at a learning rate of "
        f"{said(rate)}; a thousandth is usual. In {facts.last_step + 1} steps the loss fell by "
        f"{percent(max(facts.loss.gain, 0.0))}, from {said(facts.loss.first)} to "
        f"{said(facts.loss.last)}.",
        try_this="Multiply the learning rate by 10, and again, until the loss falls faster.",
        evidence=tuple(facts.evidence(p, "rms", "update") for p in trained_weights(facts)[:1]),
    )


def _stands_still(facts: Facts) -> float:
    """From 0 to 1: how little was learned; less where that may be because all is learned."""
    gain = facts.loss.gain - 2 * facts.loss.noise / max(1.0, len(facts.loss.finite) / 10) ** 0.5
    if gain > 0.25:
        return 0.0
    moved = 1.0 if gain < 0.1 else 0.6
    if facts.learned is None:
        return 0.75 * moved
    return 0.0 if facts.learned > 0.35 else moved


RULE = Rule(
    fault="lr_too_low",
    meaning="The learning rate is so small that the loss hardly moves.",
    check=check,
    thresholds={"update to weight": Threshold(_SUSPECT, "a thousandth is usual")},
    causes=("data_labels",),
)
