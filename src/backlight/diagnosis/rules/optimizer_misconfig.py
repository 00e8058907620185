"""Settings of the optimizer that cannot be meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import said
from backlight.diagnosis.updates import trained_weights


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at each group of parameters."""
    for optimizer in facts.info.optimizers:
        for group in optimizer.get("groups", ()):
            for strength, why, advice in _oddities(facts, group):
                yield Suspicion(
                    where="optimizer",
                    strength=strength,
                    step=int(facts.steps[0]),
                    why=f"{optimizer.get('class')} has {why}",
                    try_this=advice,
                    evidence=tuple(
                        facts.evidence(weight, "rms", quantity)
                        for weight in trained_weights(facts)[:1]
                        for quantity in ("update", "grad")
                    ),
                )


def _oddities(facts: Facts, group: dict[str, Any]) -> Iterator[tuple[float, str, str]]:
    momentum, betas = group.get("momentum"), group.get("betas")
    if isinstance(momentum, (int, float)) and momentum > 0.985:
        yield (
            0.9 if momentum > 0.992 else 0.6,
            (
                f"a momentum of {momentum}: a gradient goes on for "
                f"{1 / max(1 - momentum, 1e-9):.0f} "
                "steps and "
                "more. It overshoots and swings."
            ),
            "Use a momentum of 0.9.",
        )
    if isinstance(betas, list) and len(betas) == 2:
        first, second = betas
        if first > 0.985:
            yield (
                0.88,
                f"betas of {betas}: the mean of gradients lags far behind.",
                "Use (0.9, 0.999).",
            )
        elif second < 0.5 or second < first - 0.2:
            yield (
                0.88,
                (
                    f"betas of {betas}: the second is to average over longer than the first. Steps "
                    "become "
                    "erratic."
                ),
                "Use (0.9, 0.999); the first is for the mean, the second for the size.",
            )
    yield from _of_eps(facts, group)
    if group.get("maximize") is True and any(c.is_loss for c in facts.calls):
        yield 0.85, "maximize=True, so it raises the loss.", "Use maximize=False for a loss."


def _of_eps(facts: Facts, group: dict[str, Any]) -> Iterator[tuple[float, str, str]]:
    eps = group.get("eps")
    if not isinstance(eps, (int, float)) or eps < 1e-4:
        return
    sizes = [typical(facts.gradient(p)) for p in trained_weights(facts)]
    size = float(np.nanmedian(sizes)) if sizes else float("nan")
    if eps > 3 * size:
        yield (
            0.88 if eps > 20 * size else 0.7,
            (
                f"eps={eps:g}, while gradients are about {said(size)}: it, and not their size, "
                "divides each step. "
                "Steps are far smaller than the learning rate says."
            ),
            "Use eps=1e-8.",
        )


RULE = Rule(
    fault="optimizer_misconfig",
    meaning="Momentum, betas, eps or the direction of the optimizer cannot be meant.",
    check=check,
    thresholds={
        "momentum": Threshold(0.985, "0.9 is usual, 0.98 the most in use"),
        "eps to gradient": Threshold(3.0, "eps is there to avoid a division by 0"),
    },
    causes=(
        "lr_too_low",
        "lr_too_high",
        "divergence",
        "nonfinite",
        "loss_sign",
        "exploding_gradient",
        "data_labels",
        "activation_explosion",
    ),
)
