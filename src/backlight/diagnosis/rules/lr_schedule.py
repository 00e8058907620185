"""A schedule that ends the training before it is over, or never lets it begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.losses import LossCurve
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, rising, rising_log, said
from backlight.diagnosis.updates import setting
from backlight.schema import Evidence

_SUSPECT, _SURE = 0.4, 0.75
_SPENT = 0.02
_COLD, _SURELY_COLD = 0.1, 0.02


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the learning rate over the steps."""
    steps, rates = facts.rates
    known = np.isfinite(rates)
    steps, rates = steps[known], rates[known]
    if len(rates) < 20:
        raise NotChecked("the learning rate is known at fewer than 20 steps")
    peak = float(rates.max())
    if peak <= 0 or rates.min() == peak:
        return
    spent = (rates < _SPENT * peak) & (np.arange(len(rates)) > int(np.argmax(rates)))
    share = float(spent.mean())
    first_spent = int(steps[np.argmax(spent)]) if spent.any() else 0
    shown = np.linspace(0, len(rates) - 1, min(64, len(rates))).astype(int)
    evidence = Evidence(
        "",
        "value",
        "learning_rate",
        tuple(int(steps[i]) for i in shown),
        tuple(float(rates[i]) for i in shown),
    )
    strength = rising(share, _SUSPECT, _SURE)
    if strength:
        yield Suspicion(
            where="optimizer",
            strength=strength * (0.75 if (facts.learned or 0) > 0.9 else 1.0),
            step=first_spent,
            why=f"The learning rate falls from {said(peak)} to {said(float(rates[-1]))}, and is "
            "below "
            f"{percent(_SPENT)} of its peak for {percent(share)} of the steps, from step "
            f"{first_spent} on. "
            "After that almost nothing is learned.",
            try_this="Step the scheduler once an epoch, not once a batch, or make its period "
            "longer.",
            evidence=(evidence,),
        )
    yield from _never_warm(facts, peak, float(rates[-1]), evidence)
    rise = float(rates[-1] / max(rates[0], 1e-30))
    is_rising = rise > 20 and rates[-1] >= 0.99 * peak and rates[0] > 0
    if is_rising and _lost_again(facts.loss):
        yield Suspicion(
            where="optimizer",
            strength=max(0.7, rising_log(rise, 20.0, 1e4)),
            step=int(steps[0]),
            why=f"The learning rate grows from {said(float(rates[0]))} to {said(peak)} and is "
            "highest at the "
            f"end. The loss rises with it, to {said(facts.loss.last)}.",
            try_this="Check the schedule's factor (below 1 to decay) and when it is stepped.",
            evidence=(evidence,),
        )


def _lost_again(loss: LossCurve) -> bool:
    """Whether the loss rose again, and by more than little of what it had fallen."""
    risen = loss.last - loss.best
    return risen > 0.5 * loss.best and risen > 0.1 * (loss.first - loss.best)


def _never_warm(facts: Facts, peak: float, last: float, evidence: Evidence) -> Iterator[Suspicion]:
    """A warm-up that is far from its end when the run ends."""
    meant = max([*setting(facts, "initial_lr"), *setting(facts, "max_lr")], default=0.0)
    reached = peak / meant if meant > 0 else 1.0
    strength = rising_log(reached, _COLD, _SURELY_COLD) if last >= 0.99 * peak else 0.0
    if strength and facts.last_step >= 20:
        yield Suspicion(
            where="optimizer",
            strength=strength,
            step=int(facts.steps[0]),
            why=f"The learning rate is meant to be {said(meant)}, and the schedule lets it reach "
            f"{said(peak)} in {facts.last_step + 1} steps, {percent(reached)} of that. It still "
            "rises at the end: the warm-up is longer than the training.",
            try_this="Make the warm-up shorter than the training, a few hundred steps say.",
            evidence=(evidence,),
        )


RULE = Rule(
    fault="lr_schedule",
    meaning="The schedule lets the learning rate go to nothing too early, or grow without end.",
    check=check,
    thresholds={
        "share of steps at under 2% of the peak": Threshold(_SUSPECT, "a cosine has 9%"),
        "peak to the rate that is meant": Threshold(_COLD, "a warm-up ends within the run"),
    },
    causes=(
        "lr_too_low",
        "lr_too_high",
        "divergence",
        "nonfinite",
        "data_labels",
        "exploding_gradient",
    ),
)
