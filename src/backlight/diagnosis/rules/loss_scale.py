"""A loss that is multiplied by far too much or too little."""

from __future__ import annotations

import math
from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import rising_log, said
from backlight.diagnosis.updates import optimizer_classes, typical_update

_SUSPECT, _SURE = 50.0, 1000.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the loss that is differentiated with the loss functions that were called."""
    losses = [c for c in facts.calls if c.is_loss and c.value and _is_mean(c)]
    value = facts.backward_root.get("min")
    if losses and isinstance(value, (int, float)) and value:
        same = [c for c in losses if (c.step, c.iteration) == (losses[0].step, losses[0].iteration)]
        ratio = abs(value) / max(sum(abs(c.value or 0.0) for c in same), 1e-30)
        if not _is_mixed_precision(ratio) and _is_one_factor(facts, losses):
            strength = max(
                rising_log(ratio, _SUSPECT, _SURE), rising_log(ratio, 1 / _SUSPECT, 1 / _SURE)
            )
            if strength:
                is_borne = ratio > 1 and _is_adaptive(facts) and facts.loss.gain > 0.3
                yield Suspicion(
                    where="loss",
                    # Adam and its kin divide by the size of gradients, and so by the factor.
                    strength=max(strength, 0.6) * (0.6 if is_borne else 1.0),
                    step=losses[0].step,
                    why=f"{losses[0].name} gives {said(losses[0].value or 0)}, and the backward "
                    "pass starts from "
                    f"{said(value)}, {said(ratio)} times as much. All gradients are scaled by "
                    "that.",
                    try_this="Remove the factor, or change the learning rate for it: "
                    f"{losses[0].place}",
                    evidence=(facts.loss_evidence(),),
                    source=losses[0].source,
                )
                return
    yield from _summed(facts)


def _is_one_factor(facts: Facts, losses: list[FunctionalCall]) -> bool:
    """Whether the loss is the same multiple of its parts at every step; otherwise terms differ."""
    parts: dict[tuple[int, int], float] = {}
    for call in losses:
        key = call.step, call.iteration
        parts[key] = parts.get(key, 0.0) + abs(call.value or 0.0)
    roots = {
        (call.step, call.iteration): float(told["min"])
        for call in facts.calls
        if call.name == "backward"
        and isinstance(told := call.arguments.get("input"), dict)
        and isinstance(told.get("min"), (int, float))
    }
    ratios = [abs(roots[key]) / parts[key] for key in parts.keys() & roots.keys() if parts[key]]
    known = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    return not known or max(known) < 1.5 * min(known)


def _is_mean(call: FunctionalCall) -> bool:
    return bool(call.arguments.get("reduction", "mean") == "mean")


def _is_mixed_precision(ratio: float) -> bool:
    """A power of two, as a gradient scaler has."""
    power = math.log2(ratio) if ratio > 0 else 0.0
    return power >= 7.5 and abs(power - round(power)) < 0.01


def _is_adaptive(facts: Facts) -> bool:
    return any("Adam" in name or "RMS" in name for name in optimizer_classes(facts))


def _summed(facts: Facts) -> Iterator[Suspicion]:
    """A loss that is a sum over a large batch, where that makes steps too large."""
    sums = [c for c in facts.calls if c.is_loss and c.arguments.get("reduction") == "sum"]
    if not sums or _is_adaptive(facts):
        return
    size = math.prod(s for s in sums[0].target.get("shape", [1]) if isinstance(s, int))
    is_unhealthy = (
        facts.loss.broke_at is not None or facts.loss.gain < 0.1 or typical_update(facts) > 0.05
    )
    if size >= 32 and is_unhealthy:
        yield Suspicion(
            where="loss",
            strength=0.8,
            step=sums[0].step,
            why=f"{sums[0].name} adds up {size} elements instead of taking their mean "
            "(reduction='sum'), so "
            f"gradients are {size} times as large. At this learning rate that is too much.",
            try_this=f"Use reduction='mean', or divide the learning rate: {sums[0].place}",
            evidence=(facts.loss_evidence(),),
            source=sums[0].source,
        )


RULE = Rule(
    fault="loss_scale",
    meaning="The loss is multiplied by far too much or too little, or summed instead of averaged.",
    check=check,
    thresholds={"factor": Threshold(_SUSPECT, "weights of losses are seldom beyond it")},
    causes=(
        "lr_too_high",
        "lr_too_low",
        "exploding_gradient",
        "divergence",
        "nonfinite",
        "gradient_clipping",
        "vanishing_gradient",
        "numerical_precision",
        "data_labels",
        "optimizer_misconfig",
        "activation_explosion",
        "dead_units",
    ),
)
