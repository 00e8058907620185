"""The loss rises instead of falling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 2.0, 50.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the loss at the end with the lowest, and with the first."""
    loss = facts.loss
    if len(loss.smooth) < 5:
        raise NotChecked("the loss is known at fewer than 5 steps")
    if loss.first <= 0 or len(facts.info.optimizers) > 1:
        return
    # Where batches differ much, the last value alone says little.
    end = loss.last if loss.noise > 0.3 else max(loss.last, float(loss.finite[-1]))
    ratio = end / max(loss.first, 1e-9)
    from_best = end / max(loss.best, 1e-9)
    strength = rising_log(ratio, _SUSPECT, _SURE)
    if loss.last > 0.9 * loss.first:
        strength = max(strength, 0.75 * rising_log(from_best, 3.0, 100.0))
    at = int(np.argmin(loss.smooth))
    if strength:
        yield Suspicion(
            where="loss",
            strength=strength,
            step=int(loss.steps[min(at, len(loss.steps) - 1)]),
            why=f"The loss was {said(loss.first)} at first, {said(loss.best)} at best, and is "
            f"{said(end)} at "
            "the end. It rises.",
            try_this="Lower the learning rate, and look at the findings above this one.",
            evidence=(facts.loss_evidence(),),
        )


RULE = Rule(
    fault="divergence",
    meaning="The loss rises over the run.",
    check=check,
    thresholds={"end to start": Threshold(_SUSPECT, "no healthy program of the suite reaches it")},
    causes=("nonfinite",),
)
