"""Gradients that grow on their way back or over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import rising_log, said
from backlight.schema import Site

_SUSPECT, _SURE = 30.0, 3000.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the norm of all gradients as autograd made them, and at how layers differ."""
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    seen = [p for p in parameters if facts.has(p, "grad")]
    if not seen or _is_scaled(facts, seen):
        return
    sizes = np.array([facts.stat(p, "rms", "grad") for p in seen])
    at = np.nanmax(sizes, axis=1)
    worst = int(np.nanargmax(at))
    column = int(np.nanargmax(sizes[worst]))
    strength = max(
        rising_log(float(at[worst]), _SUSPECT, _SURE),
        rising_log(_growth(facts, seen), 1e3, 1e6) if at[worst] > 1 else 0.0,
    )
    if strength:
        yield Suspicion(
            where=seen[worst].module,
            strength=strength,
            step=facts.first_step(sizes[worst] > _SUSPECT),
            why=f"The gradient of {seen[worst].name} reaches {said(float(at[worst]))} in the root "
            "mean "
            f"square at step {facts.steps[column]}, {said(typical(sizes[worst]))} typically. "
            "Gradients of a network that trains well are far below 1.",
            try_this="Clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate, "
            "or look "
            "for a large input, weight or loss further up.",
            evidence=(facts.evidence(seen[worst], "rms", "grad"),),
        )


def _is_scaled(facts: Facts, parameters: list[Site]) -> bool:
    """Whether the loss is scaled for mixed precision, and gradients are unscaled afterwards."""
    made = np.array([typical(facts.stat(p, "rms", "grad")) for p in parameters])
    applied = np.array([typical(facts.stat(p, "rms", "grad_applied")) for p in parameters])
    return bool(np.nanmedian(made / applied) > 200)


def _growth(facts: Facts, parameters: list[Site]) -> float:
    """How much larger the gradients of the first layers are than those of the last ones."""
    sizes = np.array(
        [typical(facts.stat(p, "rms", "grad")) for p in parameters if p.place == "weight"]
    )
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    third = max(1, len(sizes) // 3)
    return float(np.median(sizes[:third]) / np.median(sizes[-third:])) if len(sizes) > 3 else 1.0


RULE = Rule(
    fault="exploding_gradient",
    meaning="Gradients become very large.",
    check=check,
    thresholds={
        "rms of a gradient": Threshold(_SUSPECT, "no healthy program of the suite reaches it")
    },
    causes=("divergence", "nonfinite", "dead_units", "gradient_clipping"),
)
