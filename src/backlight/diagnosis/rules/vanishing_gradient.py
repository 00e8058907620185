"""Gradients that shrink on their way back, so that the first layers do not learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real, typical
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 1e-3, 1e-5
_LEAST_LAYERS = 3


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the gradients of the weights of the first layers with those of the last ones."""
    layers = [m for m in facts.network.layers if _is_learning(facts, m)]
    if len(layers) >= _LEAST_LAYERS:
        yield from _along_depth(facts, layers)
    yield from _along_time(facts)


def _is_learning(facts: Facts, module: Module) -> bool:
    return module.weight is not None and facts.has(module.weight, "grad")


def _sizes(facts: Facts, layers: list[Module]) -> list[float]:
    """The gradient of each layer's output, without the first steps, which may start from zeros."""
    found = [facts.gradient(m.weight)[facts.learning] for m in layers if m.weight]
    return [typical(values[min(2, len(values) - 1) :]) for values in found]


def _along_depth(facts: Facts, layers: list[Module]) -> Iterator[Suspicion]:
    sizes = np.array(_sizes(facts, layers))
    last = float(np.nanmax(sizes[-max(1, len(sizes) // 3) :]))
    first = float(np.nanmedian(sizes[: max(1, len(sizes) // 3)]))
    if not last > 0 or not np.isfinite(first) or not _falls(sizes):
        return
    strength = rising_log(first / last, _SUSPECT, _SURE)
    if strength:
        weight = layers[0].weight
        assert weight is not None
        yield Suspicion(
            where=layers[0].name,
            strength=strength,
            step=int(facts.steps[0]),
            why=f"The gradient of the weights of {layers[0].name} is {said(first)} in the root "
            "mean square, "
            f"and {said(last)} at {layers[-1].name}: {said(first / last)} of it arrives after "
            f"{len(layers)} layers. The first layers hardly learn.",
            try_this="Use ReLU-like activations instead of sigmoid or tanh, an initialisation for "
            "the "
            "activation (kaiming, xavier), normalisation layers, or residual connections.",
            evidence=(facts.evidence(weight, "rms", "grad"),),
        )


def _falls(sizes: Real) -> bool:
    """Whether gradients shrink step by step, and are not just zero at one place."""
    logs = np.log10(np.maximum(sizes[np.isfinite(sizes)], 1e-40))
    places = np.arange(len(logs))
    return len(logs) >= _LEAST_LAYERS and float(np.corrcoef(places, logs)[0, 1]) > 0.6


def _along_time(facts: Facts) -> Iterator[Suspicion]:
    """Of a cell that is called again and again, compare the first call with the last."""
    for module in facts.network.called:
        calls = sorted(module.outputs, key=lambda site: site.call)
        calls = [site for site in calls if site.place == calls[0].place and facts.has(site, "grad")]
        if len(calls) < 8 or not module.parameters:
            continue
        first, last = (typical(facts.stat(site, "rms", "grad")) for site in (calls[0], calls[-1]))
        strength = rising_log(first / last, 1e-4, 1e-7) if last > 0 else 0.0
        if strength:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"The gradient at the first call of {module.name} is {said(first)}, at the "
                "last "
                f"{said(last)}, after {len(calls)} calls. What came early cannot be learned.",
                try_this="Use an LSTM or GRU, a better initialisation (orthogonal), or shorter "
                "sequences.",
                evidence=(facts.evidence(calls[0], "rms", "grad"),),
            )


RULE = Rule(
    fault="vanishing_gradient",
    meaning="Gradients become smaller from layer to layer, and the first layers do not learn.",
    check=check,
    thresholds={
        "first to last layer": Threshold(_SUSPECT, "no healthy program of the suite reaches it"),
    },
    causes=("lr_too_low", "data_labels"),
)
