"""Gradients of earlier steps are still there: `zero_grad` is missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, rising, said
from backlight.schema import Site

_TOLERANCE = 1e-3
_MORE = 1.5


def check(facts: Facts) -> Iterator[Suspicion]:
    """Is the gradient that was applied the one before it plus the new one?

    The mean of a tensor is linear, so the means tell.
    """
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    pairs = np.flatnonzero(np.diff(facts.steps) == 1)
    if not len(pairs):
        yield from _more_than_made(facts, parameters)
        return
    told = [_pairs(facts, parameter, pairs) for parameter in parameters]
    summed, seen = sum(each[0] for each in told), sum(each[1] for each in told)
    if seen < 2 or facts.iterations > 1:
        return
    share = summed / seen
    parameter = max(parameters, key=lambda p: np.nansum(facts.stat(p, "rms", "grad_applied")))
    yield Suspicion(
        where="optimizer",
        strength=rising(share, 0.5, 0.9),
        step=int(facts.steps[pairs[0] + 1]),
        why=f"In {percent(share)} of the pairs of steps that follow each other, the gradient that "
        "the optimizer applied is the one it applied before plus the new one. "
        "Gradients add up over steps, so the network is trained on a growing sum of old ones.",
        try_this="Call optimizer.zero_grad() in each step, before loss.backward().",
        evidence=(
            facts.evidence(parameter, "rms", "grad_applied"),
            facts.evidence(parameter, "rms", "grad"),
        ),
    )


def _more_than_made(facts: Facts, parameters: list[Site]) -> Iterator[Suspicion]:
    """Where no two steps in a row were recorded: more is applied than one backward pass made."""
    seen = [p for p in parameters if facts.has(p, "grad") and facts.has(p, "grad_applied")]
    if len(facts.steps) < 3 or facts.iterations > 1 or not seen:
        raise NotChecked("no two steps in a row were recorded")
    made = np.array([facts.stat(p, "rms", "grad") for p in seen])
    applied = np.array([facts.stat(p, "rms", "grad_applied") for p in seen])
    ratios = np.nanmedian(applied / made, axis=0)
    later = ratios[1:][np.isfinite(ratios[1:])]
    # A factor that is the same at every step is no sum of old gradients.
    if len(later) < 2 or np.ptp(np.log(np.maximum(later, 1e-12))) < 0.1:
        return
    share = float((later > _MORE).mean())
    yield Suspicion(
        where="optimizer",
        strength=0.85 * rising(share, 0.6, 0.95),
        step=int(facts.steps[1]),
        why=f"In {percent(share)} of the recorded steps the optimizer applied more than "
        f"{_MORE:g} times the gradient that the step's backward pass made, "
        f"{said(float(np.median(later)))} times typically. Gradients of earlier steps are "
        "still there.",
        try_this="Call optimizer.zero_grad() in each step, before loss.backward().",
        evidence=(
            facts.evidence(seen[0], "rms", "grad_applied"),
            facts.evidence(seen[0], "rms", "grad"),
        ),
    )


def _pairs(facts: Facts, parameter: Site, pairs: np.ndarray) -> tuple[int, int]:
    """In how many pairs of steps the gradients add up, and in how many one can tell."""
    grad = facts.stat(parameter, "mean", "grad")
    applied = facts.stat(parameter, "mean", "grad_applied")
    before = np.where(np.isfinite(applied), applied, grad)[pairs]
    scale = np.abs(before) + np.abs(grad[pairs + 1])
    gap = np.abs(applied[pairs + 1] - before - grad[pairs + 1])
    # A mean that is 0 but for rounding, as that of a softmax's gradient, tells nothing.
    size = facts.stat(parameter, "rms", "grad")[pairs + 1]
    can_tell = np.isfinite(grad[pairs + 1]) & np.isfinite(before) & (scale > 1e-3 * size)
    adds_up = can_tell & (gap <= _TOLERANCE * scale)
    return int(adds_up.sum()), int(can_tell.sum())


RULE = Rule(
    fault="stale_gradients",
    meaning="Gradients of earlier steps were not set to zero, and add up.",
    check=check,
    thresholds={
        "share of steps": Threshold(
            0.5,
            "an accumulated gradient is the sum exactly, so any share above a half is no accident",
        ),
        "applied to made": Threshold(_MORE, "without old gradients it is 1, or less if clipped"),
    },
    causes=("exploding_gradient", "divergence", "lr_too_high", "nonfinite", "activation_explosion"),
)
