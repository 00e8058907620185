"""Shapes that meet in the loss without being meant to: silent broadcasting."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold

_ELEMENTWISE = frozenset(
    {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub", "subtract", "poisson_nll_loss"}
    | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss"}
)


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the shapes of what a loss is given."""
    for call in facts.calls:
        if call.name in _ELEMENTWISE and not (call.name in ("sub", "subtract") and call.module):
            one, other = call.prediction.get("shape"), call.target.get("shape")
            if one and other and _broadcasts(one, other):
                yield _found(facts, call, one, other)
                return


def _broadcasts(one: list[Any], other: list[Any]) -> bool:
    """Whether the result is larger than what the network says."""
    if one == other:
        return False
    if len(one) != len(other):
        return True
    return any(a == 1 and isinstance(b, int) and b > 1 for a, b in zip(one, other, strict=True))


def _compared(call: FunctionalCall) -> float | None:
    """With how many targets each prediction is compared."""
    one, other = call.prediction.get("shape", []), call.target.get("shape", [])
    wide = max(len(one), len(other))
    padded = [[1] * (wide - len(each)) + each for each in (one, other)]
    if not all(isinstance(size, int) for each in padded for size in each):
        return None
    return prod(map(max, *padded)) / max(1, prod(one)) if wide else None


def _found(facts: Facts, call: FunctionalCall, one: list[Any], other: list[Any]) -> Suspicion:
    return Suspicion(
        where="loss",
        strength=0.95,
        step=call.step,
        why=f"{call.name} compares predictions of shape {one} with targets of shape {other}. "
        "They are broadcast, so each prediction is compared with the targets of other samples.",
        try_this=f"Give both the same shape, with squeeze(-1) or unsqueeze(-1): {call.place}",
        evidence=(
            facts.call_evidence(call, _compared, "targets for each prediction"),
            facts.loss_evidence(),
        ),
        source=call.source,
    )


RULE = Rule(
    fault="loss_shape_mismatch",
    meaning="Predictions and targets have different shapes and are broadcast against each other.",
    check=check,
    thresholds={"difference": Threshold(0, "both must have the same shape")},
    causes=("data_labels", "lr_too_low", "output_range", "posterior_collapse", "dead_units"),
)
