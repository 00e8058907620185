"""The loss is not the one for what the network's last operation gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from backlight.diagnosis.calls import FunctionalCall, made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.schema import Evidence

_SQUASHED = {"Softmax": "probabilities of a softmax", "Sigmoid": "outputs of a sigmoid"}


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at what made the input of each loss, and at its range."""
    losses = [call for call in facts.calls if call.is_loss]
    seen: set[tuple[str, str]] = set()
    for call in losses:
        found = _mismatch(call, [c for c in losses if c.source == call.source])
        if found is not None and (call.source, call.name) not in seen:
            seen.add((call.source, call.name))
            yield replace(found, evidence=_given(facts, call))
    yield from _single_unit(facts)


def _given(facts: Facts, call: FunctionalCall) -> tuple[Evidence, ...]:
    """The ends of what a loss is given."""
    given = f"number that {call.name} is given"
    return (
        facts.call_evidence(call, lambda c: c.prediction.get("max"), f"largest {given}"),
        facts.call_evidence(call, lambda c: c.prediction.get("min"), f"lowest {given}"),
    )


def _mismatch(call: FunctionalCall, same: list[FunctionalCall]) -> Suspicion | None:
    told = call.prediction
    maker, low, high = made_by(told), _least(same), _most(same)
    is_share = low is not None and high is not None and low >= 0.0 and high <= 1.0
    is_share = is_share and all(_adds_up_to_one(c.prediction) for c in same)
    if call.name == "cross_entropy" and (maker in _SQUASHED or (is_share and _is_wide(told))):
        given = _SQUASHED.get(maker, "numbers between 0 and 1")
        return _found(
            call,
            0.95 if maker in _SQUASHED else 0.75,
            given,
            "cross_entropy applies a softmax of its own, so there are two of them",
            "Give cross_entropy the logits: remove the softmax or sigmoid before it.",
        )
    if call.name == "binary_cross_entropy_with_logits" and maker in _SQUASHED:
        return _found(
            call,
            0.95,
            _SQUASHED[maker],
            "binary_cross_entropy_with_logits applies a sigmoid of its own, so there are "
            "two of them",
            "Give it the logits, or use binary_cross_entropy.",
        )
    if call.name == "nll_loss" and maker != "LogSoftmax" and high is not None and high > 0:
        return _found(
            call,
            0.95,
            f"numbers from {low:.3g} to {high:.3g}",
            "nll_loss expects logarithms of probabilities, which are never above 0",
            "Apply log_softmax first, or use cross_entropy on the logits.",
        )
    if call.name == "kl_div" and low is not None and low >= 0 and maker != "LogSoftmax":
        return _found(
            call,
            0.85,
            f"numbers from {low:.3g} to {high:.3g}",
            "kl_div expects logarithms of probabilities as its input",
            "Give kl_div log_softmax(...) as input.",
        )
    return None


def _adds_up_to_one(told: dict[str, Any]) -> bool:
    """Whether the mean over classes is that of probabilities."""
    shape, mean = told.get("shape", []), told.get("mean")
    return len(shape) > 1 and mean is not None and abs(mean * shape[1] - 1) < 1e-3


def _least(calls: list[FunctionalCall]) -> float | None:
    found = [c.prediction["min"] for c in calls if c.prediction.get("min") is not None]
    return min(found, default=None)


def _most(calls: list[FunctionalCall]) -> float | None:
    found = [c.prediction["max"] for c in calls if c.prediction.get("max") is not None]
    return max(found, default=None)


def _is_wide(told: dict[str, Any]) -> bool:
    """Whether there are enough numbers for their range to mean something."""
    size = 1
    for each in told.get("shape", ()):
        size *= each if isinstance(each, int) else 1
    return size >= 32


def _found(call: FunctionalCall, strength: float, given: str, why: str, advice: str) -> Suspicion:
    return Suspicion(
        where="loss",
        strength=strength,
        step=call.step,
        why=f"{call.name} is given {given}. {why[0].upper()}{why[1:]}, and the gradients are "
        "small.",
        try_this=f"{advice} {call.place}",
        source=call.source,
    )


def _single_unit(facts: Facts) -> Iterator[Suspicion]:
    for call in facts.calls:
        if call.name not in ("softmax", "log_softmax"):
            continue
        shape, dim = call.tensor("input").get("shape", []), call.arguments.get("dim")
        if isinstance(dim, int) and shape and -len(shape) <= dim < len(shape) and shape[dim] == 1:
            yield Suspicion(
                where=call.module or "loss",
                strength=0.93,
                step=call.step,
                why=f"{call.name} runs over dimension {dim} of a tensor of shape {shape}, which "
                "has one "
                "element. Its result is the same whatever the network says.",
                try_this=f"Use a sigmoid for one unit, or one unit for each class: {call.place}",
                evidence=(facts.loss_evidence(),),
                source=call.source,
            )
            return


RULE = Rule(
    fault="loss_output_mismatch",
    meaning="The loss expects logits and is given probabilities, or the other way round.",
    check=check,
    thresholds={
        "range": Threshold(1.0, "probabilities are between 0 and 1, log-probabilities below")
    },
    causes=(
        "vanishing_gradient",
        "lr_too_low",
        "loss_sign",
        "data_labels",
        "divergence",
        "saturation",
        "output_range",
    ),
)
