"""Attention that looks at one place alone, or at all alike."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.sequence import self_attention
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 50.0, 1000.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the scores before the softmax: a spread of hundreds leaves one place."""
    for call in self_attention(facts):
        told = call.tensor("input")
        low, high = told.get("min"), told.get("max")
        if call.name != "softmax" or low is None or high is None or low < -1e4:
            continue
        strength = rising_log(high - low, _SUSPECT, _SURE)
        if strength:
            yield Suspicion(
                where=call.module,
                strength=strength,
                step=call.step,
                why=f"The scores of attention go from {said(low)} to {said(high)} before the "
                "softmax, so that all "
                "weight falls on one place and no gradient reaches the others.",
                try_this=f"Divide the scores by the root of the head's size: {call.place}",
                evidence=(facts.call_evidence(call, _range, "range of the scores"),),
                source=call.source,
            )
            return


def _range(call: FunctionalCall) -> float | None:
    told = call.tensor("input")
    low, high = told.get("min"), told.get("max")
    return None if low is None or high is None else float(high) - float(low)


RULE = Rule(
    fault="attention_collapse",
    meaning="Attention scores are so large that each query looks at one place alone.",
    check=check,
    thresholds={"range of scores": Threshold(_SUSPECT, "scaled scores have a range of about 10")},
    causes=("vanishing_gradient", "lr_too_low", "data_labels"),
)
