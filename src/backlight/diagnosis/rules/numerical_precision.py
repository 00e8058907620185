"""Numbers that the format cannot hold: updates lost in rounding, gradients that become 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import percent, rising, said
from backlight.schema import Site

_SUSPECT, _SURE = 0.4, 0.8
_SHORT = ("float16", "bfloat16", "float8")


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at updates and gradients in short formats, and at logarithms of what may be 0."""
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    short = [p for p in parameters if facts.dtype(p).startswith(_SHORT)]
    yield from _lost(facts, short, "update", "updates are lost in rounding")
    yield from _lost(
        facts,
        [p for p in parameters if facts.dtype(p, "grad") == "float16"],
        "grad",
        "gradients become 0",
    )
    yield from _overflow(facts)
    yield from _unstable(facts)


def _lost(facts: Facts, places: list[Site], quantity: str, what: str) -> Iterator[Suspicion]:
    shares = {
        p: typical(facts.stat(p, "zeros", quantity) / facts.stat(p, "count", quantity))
        for p in places
        if facts.has(p, quantity)
        and np.nanmax(facts.stat(p, "abs_max", "grad"), initial=0.0) > 0
        and len(facts.shape(p)) >= 2
    }
    if not shares:
        return
    worst, share = max(shares.items(), key=lambda pair: pair[1])
    middle = float(np.median(list(shares.values())))
    strength = rising(max(middle, share - 0.2), _SUSPECT, _SURE)
    if strength:
        yield Suspicion(
            where=worst.module,
            strength=strength,
            step=int(facts.steps[0]),
            why=f"In {worst.name} ({facts.dtype(worst)}), {percent(share)} of the elements have "
            f"an {quantity} of "
            f"exactly 0, {percent(middle)} in the middle of {len(shares)} parameters: {what}.",
            try_this="Keep parameters in float32 and compute in short formats with torch.autocast "
            "(and "
            "a GradScaler for float16).",
            evidence=(facts.evidence(worst, "zeros", quantity),),
        )


def _overflow(facts: Facts) -> Iterator[Suspicion]:
    """Infinity in a format that ends at 65504."""
    for module in facts.network.leaves:
        site = module.outputs[0]
        infs = facts.stat(site, "infs")
        if facts.dtype(site) == "float16" and np.nanmax(infs, initial=0) > 0:
            yield Suspicion(
                where=module.name,
                strength=0.9,
                step=facts.first_step(infs > 0),
                why=f"What {module.name} gives is in float16, which ends at 65504, and has "
                "infinite elements. "
                f"The largest finite one is {said(float(np.nanmax(facts.stat(site, 'abs_max'))))}.",
                try_this="Use bfloat16, or keep this part in float32.",
                evidence=(facts.evidence(site, "infs"),),
            )
            return


def _unstable(facts: Facts) -> Iterator[Suspicion]:
    for call in facts.calls:
        told = call.tensor("input")
        is_log = call.name in ("log", "log2", "log10") and made_by(told) in ("Softmax", "Sigmoid")
        if is_log and told.get("min") is not None:
            lost = bool(told.get("zeros")) or told["min"] < 1e-12
            yield Suspicion(
                where=call.module or "loss",
                strength=0.85 if lost else 0.52,
                step=call.step,
                why=f"{call.name} is taken of what {made_by(told).lower()} gave, from "
                f"{said(told['min'])} to "
                f"{said(told['max'])}. A small probability is rounded to 0, and its logarithm is "
                "lost.",
                try_this=f"Use log_softmax, logsigmoid or a loss that takes logits: {call.place}",
                evidence=(
                    facts.call_evidence(
                        call,
                        lambda c: c.tensor("input").get("min"),
                        f"lowest that {call.name} gets",
                    ),
                ),
                source=call.source,
            )
            return


RULE = Rule(
    fault="numerical_precision",
    meaning="The number format loses what matters: small updates, small gradients, large values.",
    check=check,
    thresholds={
        "share of zeros": Threshold(_SUSPECT, "updates in float32 are almost never exactly 0")
    },
    causes=("nonfinite", "lr_too_low", "frozen_parameters", "data_labels"),
)
