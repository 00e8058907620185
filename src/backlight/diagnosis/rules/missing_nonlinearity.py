"""Layers that follow each other without an activation: together they are one layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.schema import Site

_SAME = ("mean", "rms", "min", "max")


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look for layers that read exactly what another layer gave."""
    pairs = [pair for pair in _pairs(facts) if not _is_deliberate(facts, *pair)]
    if not pairs:
        return
    layers = facts.network.layers
    is_all = len(pairs) >= len(layers) - 1
    share = len(pairs) / max(1, len(layers) - 1)
    first, second = pairs[0]
    yield Suspicion(
        where=first.name,
        strength=0.88 if is_all else 0.72 if share > 0.6 else 0.62 if share >= 0.5 else 0.45,
        step=int(facts.steps[0]),
        why=f"{second.name} reads exactly what {first.name} gives, with no activation between "
        "them. "
        f"{len(pairs)} of {len(layers) - 1} pairs of layers are such, and each is no more than "
        "one layer.",
        try_this=f"Put an activation, such as nn.ReLU(), after {first.name}.",
        evidence=(facts.evidence(first.outputs[0], "rms"), facts.evidence(second.inputs[0], "rms")),
    )


def _pairs(facts: Facts) -> Iterator[tuple[Module, Module]]:
    """Layers whose input has all statistics of another layer's output, in each step."""
    layers = facts.network.layers
    givers: dict[bytes, list[Module]] = {}
    for layer in layers:
        if any(np.isfinite(facts.stat(layer.outputs[0], name)).any() for name in _SAME):
            givers.setdefault(_print(facts, layer.outputs[0]), []).append(layer)
    for second in layers:
        # A layer that is called again and again is a recurrence, whose first call tells little.
        alike = givers.get(_print(facts, second.inputs[0]), []) if len(second.inputs) == 1 else []
        before = [m for m in alike if m.order < second.order and m is not second]
        if before:
            yield before[-1], second


def _print(facts: Facts, site: Site) -> bytes:
    """What tensors have in common that are the same in every step."""
    return np.stack([facts.stat(site, name) for name in _SAME]).tobytes()


def _is_deliberate(facts: Facts, first: Module, second: Module) -> bool:
    """A bottleneck, or a convolution of each channel followed by one of all."""
    if first.weight is None or second.weight is None:
        return True
    one, other = facts.shape(first.weight), facts.shape(second.weight)
    if "Conv" in first.module_class:
        return (first.number("groups") or 1) > 1 or (second.number("groups") or 1) > 1
    narrow = one[0]
    words = f"{first.name} {second.name}".lower()
    is_adapter = any(word in words for word in ("lora", "adapter", "down", "up_proj", "embed"))
    return is_adapter or (narrow < one[1] and narrow < other[0])


RULE = Rule(
    fault="missing_nonlinearity",
    meaning="Layers with weights follow each other without an activation.",
    check=check,
    thresholds={"difference": Threshold(0, "an activation changes what passes through it")},
    causes=("lr_too_low", "data_labels", "vanishing_gradient"),
)
