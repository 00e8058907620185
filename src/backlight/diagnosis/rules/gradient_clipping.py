"""Gradients that are clipped far below their size, all the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 0.05, 0.003


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the limit with the norm, or with the largest element, before clipping."""
    calls = [c for c in facts.calls if c.name.startswith("clip_grad")]
    if not calls:
        yield from _by_hand(facts)
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
            step=calls[0].step,
            why=f"{call.name} cuts gradients to {said(float(limit or 0))}, which is {said(ratio)} "
            "of what "
            f"they are, in {len(ratios)} of {len(calls)} recorded calls. Almost nothing of them "
            "is left.",
            try_this=f"Raise the limit to about the usual norm of the gradients: {call.place}",
            evidence=(
                facts.call_evidence(
                    call, lambda c: _ratio(facts, c), "limit next to what is limited"
                ),
            ),
            source=call.source,
        )


def _by_hand(facts: Facts) -> Iterator[Suspicion]:
    """No call was seen, and yet less of the gradients is applied than backward passes made."""
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    cut = [p for p in parameters if facts.has(p, "grad") and facts.has(p, "grad_applied")]
    if not cut:
        return
    left = np.array(
        [facts.stat(p, "rms", "grad_applied") / facts.stat(p, "rms", "grad") for p in cut]
    )
    if _is_scale(left):
        return
    left = left[np.isfinite(left) & (left > 0)]
    if len(left) < 3:
        return
    ratio = float(np.median(left))
    limit = float(np.nanmax([facts.stat(p, "abs_max", "grad_applied") for p in cut]))
    strength = rising_log(ratio, _SUSPECT, _SURE)
    if strength:
        yield Suspicion(
            where="optimizer",
            strength=strength,
            step=int(facts.steps[0]),
            why=f"The gradients that the optimizer applies are {said(ratio)} of those that "
            f"backward() made, and none of their elements is above {said(limit)}. They are cut "
            "in between, and almost nothing of them is left.",
            try_this="Raise the limit at which gradients are clamped, to about their usual size.",
            evidence=(
                facts.evidence(cut[0], "rms", "grad"),
                facts.evidence(cut[0], "rms", "grad_applied"),
            ),
        )


def _is_scale(left: Real) -> bool:
    """Whether it is a scale that is undone: one factor for all, that seldom changes over steps.

    A scaler halves its scale where gradients overflow, and doubles it now and then.
    """
    logs = np.log(np.where(left > 0, left, np.nan))
    logs = logs[:, np.isfinite(logs).all(axis=0)]
    if not logs.size or np.median(np.ptp(logs, axis=0)) > 0.1:
        return False
    changes = np.abs(np.diff(np.median(logs, axis=0))) > 0.01
    return not len(changes) or bool(changes.mean() < 0.2)


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
