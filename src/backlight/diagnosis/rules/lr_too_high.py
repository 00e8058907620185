"""Steps so large that they jump over what they aim for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.losses import LossCurve
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.rules.nonfinite import singular_call
from backlight.diagnosis.series import finite
from backlight.diagnosis.strength import percent, rising_log, said
from backlight.diagnosis.updates import (
    optimizer_classes,
    relative_updates,
    setting,
    trained_weights,
)

_SUSPECT, _SURE, _VAST = 0.05, 0.6, 0.35
_ADAPTIVE = ("Adam", "RMSprop", "NAdam", "RAdam", "Adamax", "Lion")


def check(facts: Facts) -> Iterator[Suspicion]:
    """Large updates, together with a loss that is unsteady or does not fall."""
    if not facts.loss.is_known:
        raise NotChecked("the loss is not known")
    ratios = finite(relative_updates(facts))
    if not len(ratios):
        raise NotChecked("no update was recorded")
    size = max(
        float(np.quantile(part, 0.75)) for part in (ratios[:8], ratios[: len(ratios) // 2 + 1])
    )
    rate = float(np.nanmax(facts.rates[1], initial=0.0))
    is_vast = size > _VAST and _by_custom(facts, rate) > 0.5
    trouble = max(_trouble(facts), 0.6 if is_vast else 0.0)
    strength = rising_log(size, _SUSPECT, _SURE) * trouble
    strength = max(strength, _by_custom(facts, rate) * trouble)
    if _is_large_at_once(facts):
        strength *= 0.5
    if strength < 0.2:
        return
    weights = trained_weights(facts)
    yield Suspicion(
        where="optimizer",
        strength=min(strength, 0.95),
        step=facts.first_step(relative_updates(facts) > _SUSPECT),
        why=f"{_told(size, rate)} The loss goes from "
        f"{said(facts.loss.first)} to {said(facts.loss.last)}, at times up to "
        f"{said(facts.loss.highest)}.",
        try_this="Divide the learning rate by 10, or by more; warm it up.",
        evidence=tuple(facts.evidence(p, "rms", "update") for p in weights[:1]),
    )


def _told(size: float, rate: float) -> str:
    """What is large: the steps, or the rate alone where it rose only later."""
    if size < _SUSPECT:
        return f"The learning rate is up to {said(rate)}, far above what is usual."
    return (
        f"A step changes the weights by {percent(size)} of their size, at a learning rate of "
        f"{said(rate)}; a thousandth to a hundredth is usual."
    )


def _is_large_at_once(facts: Facts) -> bool:
    """Whether what the layers give is huge before any step was made."""
    sizes = [facts.stat(m.outputs[0], "rms")[0] for m in facts.network.leaves]
    return bool(facts.steps[0] == 0 and float(np.nanmax(sizes, initial=0.0)) > 100)


def _by_custom(facts: Facts, rate: float) -> float:
    """How far a learning rate is above what is customary for the optimizer."""
    if "Adagrad" in optimizer_classes(facts):
        return rising_log(rate, 0.3, 5.0)  # what it adds up makes its steps ever smaller
    is_adaptive = any(name.startswith(_ADAPTIVE) for name in optimizer_classes(facts))
    momentum = min(max(setting(facts, "momentum"), default=0.0), 0.99)
    # With momentum a gradient is applied again and again: 1 / (1 - momentum) times in all.
    return rising_log(rate, 0.03, 0.5) if is_adaptive else _by_sgd(rate / (1 - momentum))


def _by_sgd(rate: float) -> float:
    return rising_log(rate, 1.5, 15.0)


def _trouble(facts: Facts) -> float:
    """From 0 to 1: how badly the loss goes."""
    loss = facts.loss
    if facts.last_step == 0 or (loss.broke_at is not None and singular_call(facts) is None):
        return 1.0
    if len(facts.info.optimizers) > 1 or "LBFGS" in optimizer_classes(facts):
        return 0.3  # their losses rise and fall against each other, or steps are found by search
    scale = max(abs(loss.first), 1e-9)
    spike = (loss.highest - loss.first) / scale
    if loss.last > 1.2 * loss.first and loss.last > 0:
        return 1.0
    fell_far = loss.gain > 0.7 or (facts.learned is not None and facts.learned > 0.6)
    if spike > 5:
        return 0.7 if fell_far else 1.0
    if fell_far:
        return 0.6 if spike > 1 else 0.35 if loss.noise > 0.5 else 0.15
    is_at_chance = facts.learned is not None and facts.learned < 0.15
    if loss.gain < 0.1 or (is_at_chance and not (spike < 0.1 and _is_still_falling(loss))):
        return 0.95
    return 0.6 if spike > 1 else 0.45


def _is_still_falling(loss: LossCurve) -> bool:
    """Whether the loss is lowest at the end, and fell in the second half as it did in the first."""
    half, last = float(loss.smooth[len(loss.smooth) // 2]), float(loss.smooth[-1])
    fallen = loss.first - last
    return last - loss.best < 0.1 * fallen and half - last > 0.25 * fallen


RULE = Rule(
    fault="lr_too_high",
    meaning="The learning rate is so large that steps jump over what they aim for.",
    check=check,
    thresholds={
        "update to weight": Threshold(
            _SUSPECT,
            "a thousandth is usual, Adam's first steps on small networks reach a few hundredths",
        ),
        "Adam's rate": Threshold(0.03, "thirty times its default"),
        "SGD's rate, over 1 - momentum": Threshold(1.5, "0.1 with a momentum of 0.9 is 1"),
    },
    causes=(
        "divergence",
        "nonfinite",
        "exploding_gradient",
        "activation_explosion",
        "dead_units",
        "saturation",
        "vanishing_gradient",
        "data_labels",
    ),
)
