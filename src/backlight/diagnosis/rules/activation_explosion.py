"""Activations that grow from layer to layer, or over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import early, finite, typical
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 100.0, 10_000.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the size of what layers give with what the model is given and with the start."""
    given = [typical(facts.stat(s, "rms")) for s in facts.model_inputs if "float" in facts.dtype(s)]
    scale = max([1.0, *(size for size in given if np.isfinite(size))])
    outputs = [
        (m, max(m.outputs, key=lambda site: float(np.nanmax(facts.stat(site, "rms"), initial=0.0))))
        for m in facts.network.leaves
        if "float" in facts.dtype(m.outputs[0])
    ]
    sizes = [finite(facts.stat(site, "rms")) for _, site in outputs]
    large = [
        (module, site, size)
        for (module, site), size in zip(outputs, sizes, strict=True)
        if len(size) and size.max() > _SUSPECT * scale
    ]
    if not large:
        return
    module, site, size = large[0]
    most = float(max(each.max() for *_, each in large))
    before = early(facts.stat(site, "rms"))
    yield Suspicion(
        where=module.name,
        strength=rising_log(most / scale, _SUSPECT, _SURE),
        step=facts.first_step(facts.stat(site, "rms") > _SUSPECT * scale),
        why=f"What {module.name} gives grows to {said(float(size.max()))} in the root mean "
        "square, from "
        f"{said(before)} at the start and {said(scale)} going in. {len(large)} of "
        f"{len(outputs)} modules give numbers above {said(_SUSPECT * scale)}, up to {said(most)}.",
        try_this="Use a smaller initialisation, normalisation layers, or a lower learning rate.",
        evidence=(facts.evidence(site, "rms"),),
    )


RULE = Rule(
    fault="activation_explosion",
    meaning="Activations become very large from layer to layer, or over time.",
    check=check,
    thresholds={"growth": Threshold(_SUSPECT, "no healthy program of the suite reaches it")},
    causes=(
        "exploding_gradient",
        "divergence",
        "nonfinite",
        "saturation",
        "dead_units",
    ),
)
