"""Gradients that are clipped far below their size, all the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 0.05, 0.003


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the limit with the norm, or with the largest element, before clipping."""
    calls = [c for c in facts.calls if c.name.startswith("clip_grad")]
    if not calls:
        return
    ratios = [ratio for c in calls if (ratio := _ratio(facts, c)) is not None]
    if not ratios:
        return
    ratio, call = float(np.median(ratios)), calls[-1]
    limit = call.arguments.get("max_norm", call.arguments.get("clip_value"))
    strength = rising_log(ratio, _SUSPECT, _SURE)
    if isinstance(limit, (int, float)) and limit >= 0.2:
        strength *= 0.6  # a usual limit: the gradients are what is unusual
    if strength:
        yield Suspicion(
            where="optimizer",
            strength=strength,
            step=call.step,
            why=f"{call.name} cuts gradients to {said(float(limit or 0))}, which is {said(ratio)} "
            "of what "
            f"they are, in {len(ratios)} of {len(calls)} recorded calls. Almost nothing of them "
            "is left.",
            try_this=f"Raise the limit to about the usual norm of the gradients: {call.place}",
            source=call.source,
        )


def _ratio(facts: Facts, call: FunctionalCall) -> float | None:
    """The limit next to what is limited."""
    limit = call.arguments.get("max_norm")
    if isinstance(limit, (int, float)):
        norm = call.value
        return float(limit) / norm if norm else None
    limit = call.arguments.get("clip_value")
    if not isinstance(limit, (int, float)):
        return None
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    sizes = [facts.stat(p, "abs_max", "grad") for p in parameters]
    most = float(np.nanmedian([np.nanmedian(each) for each in sizes])) if sizes else 0.0
    return float(limit) / most if most else None


RULE = Rule(
    fault="gradient_clipping",
    meaning="Gradients are clipped so far that little is left of them.",
    check=check,
    thresholds={"limit to norm": Threshold(_SUSPECT, "clipping is meant for rare peaks")},
    causes=("lr_too_low", "data_labels"),
)
