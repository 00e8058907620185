"""A loss for another kind of task."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall, label_counts
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import said

_REGRESSIONS = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub"})


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the targets: are they classes, shares or amounts?"""
    for call in _first_of_each(facts):
        found = _as_classes(call) or _as_amounts(facts, call) or _as_binary(facts, call)
        if found is not None:
            strength, why, advice = found
            yield Suspicion(
                where="loss",
                strength=strength,
                step=call.step,
                why=why,
                try_this=f"{advice} {call.place}",
                evidence=(
                    facts.call_evidence(call, lambda c: c.target.get("max"), "largest target"),
                    facts.loss_evidence(),
                ),
                source=call.source,
            )


def _first_of_each(facts: Facts) -> list[FunctionalCall]:
    calls = reversed(facts.comparisons)
    return list({(call.source, call.name): call for call in calls}.values())


def _as_classes(call: FunctionalCall) -> tuple[float, str, str] | None:
    """Cross-entropy of what are no classes."""
    if call.name != "cross_entropy":
        return None
    told, shape = call.target, call.prediction.get("shape", [])
    low, high = float(told.get("min") or 0.0), float(told.get("max") or 0.0)
    if "float" in str(told.get("dtype")) and (low < 0 or high > 1.0):
        return (
            0.93,
            (
                f"cross_entropy is given real numbers from {said(low)} to {said(high)} as targets, "
                "which are "
                "neither classes nor probabilities. This is a regression."
            ),
            "Use mse_loss or smooth_l1_loss.",
        )
    if "float" in str(told.get("dtype")) and len(shape) == 2 and shape[1] > 1:
        each = float(told.get("mean") or 0.0) * shape[1]
        if abs(each - 1) > 0.05:
            return (
                0.85,
                (
                    f"cross_entropy is given {said(each)} as the sum of a sample's targets, on "
                    "average; it expects the probabilities of one class each, which add up to 1. "
                    "Several labels may be true at once."
                ),
                "Use binary_cross_entropy_with_logits.",
            )
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        return (
            0.9,
            (
                f"cross_entropy is given predictions of shape {shape}: there is one class, so that "
                "its softmax is "
                "always 1 or runs over the batch."
            ),
            "Use binary_cross_entropy_with_logits for one unit, mse_loss for an amount.",
        )
    return None


def _as_amounts(facts: Facts, call: FunctionalCall) -> tuple[float, str, str] | None:
    """A regression on the numbers of classes."""
    if call.name not in _REGRESSIONS:
        return None
    own = call.source, call.name  # one line may have several losses
    counts = label_counts([c for c in facts.comparisons if (c.source, c.name) == own])
    values = sorted(counts)
    shape = call.prediction.get("shape", [])
    is_classes = len(values) >= 3 and values == list(range(values[0], values[0] + len(values)))
    if not is_classes or values[0] not in (0, 1) or (shape and len(shape) > 2):
        return None
    is_whole = "int" in str(call.target.get("dtype"))
    return (
        0.8 if is_whole or len(values) <= 12 else 0.5,
        (
            f"{call.name} compares predictions with the whole numbers {values[0]} to {values[-1]}, "
            "which look like "
            "the numbers of classes. Class 2 is not twice class 1."
        ),
        "Use cross_entropy with one output for each class.",
    )


def _as_binary(facts: Facts, call: FunctionalCall) -> tuple[float, str, str] | None:
    """Binary cross-entropy of what is neither 0 nor 1."""
    if not call.name.startswith("binary_cross_entropy"):
        return None
    low, high = float(call.target.get("min") or 0.0), float(call.target.get("max") or 0.0)
    if low >= 0 and high <= 1:
        return None
    return (
        0.9,
        (
            f"{call.name} is given targets from {said(low)} to {said(high)}; it knows only 0 to 1. "
            "Its loss has no floor for such targets."
        ),
        "Use cross_entropy for several classes, mse_loss for amounts, or 0 and 1 as labels.",
    )


RULE = Rule(
    fault="wrong_loss",
    meaning="The loss is one for another kind of task: classes, amounts, or yes and no.",
    check=check,
    thresholds={
        "values": Threshold(3, "three or more whole numbers from 0 or 1 on look like classes")
    },
    causes=(
        "loss_sign",
        "divergence",
        "loss_output_mismatch",
        "lr_too_low",
        "exploding_gradient",
        "data_labels",
        "loss_shape_mismatch",
        "data_scale",
        "output_range",
        "lr_too_high",
    ),
)
