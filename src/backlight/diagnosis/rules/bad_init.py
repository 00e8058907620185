"""Weights that start at a bad size, or all the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.series import early
from backlight.diagnosis.strength import rising_log, said
from backlight.schema import Site

_LARGE, _SURELY_LARGE = 4.0, 15.0
_SMALL, _SURELY_SMALL = 0.03, 0.003
_BIAS, _SURELY_BIAS = 2.5, 10.0
_MOST_ALIKE = 0.6


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the weights of the first recorded step with one over the root of what comes in."""
    if not len(facts.steps) or facts.steps[0] > 2:
        raise NotChecked("the first steps were not recorded")
    layers = [m for m in facts.network.layers if m.weight]
    yield from _alike(facts, layers)
    gains = {m.name: _gain(facts, m.weight) for m in layers if m.weight}
    yield from _sized(facts, layers, gains)
    for module in layers[:-1]:
        yield from _bias(facts, module)


def _gain(facts: Facts, weight: Site) -> float:
    """The size of a layer's weights times the root of what they add up."""
    shape = facts.shape(weight)
    inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    return float(facts.stat(weight, "rms")[0] * np.sqrt(inputs))


def _sized(facts: Facts, layers: list[Module], gains: dict[str, float]) -> Iterator[Suspicion]:
    large = [m for m in layers if gains[m.name] > _LARGE]
    small = [m for m in layers if 0 < gains[m.name] < _SMALL]
    # One small layer at the end is a usual start; several that shrink the signal are not.
    small = small if len(small) >= max(2, len(layers) // 2) else []
    for group, word in ((large, "large"), (small, "small")):
        if not group:
            continue
        worst = max(group, key=lambda m: abs(np.log(gains[m.name])))
        gain = gains[worst.name]
        ends = (_LARGE, _SURELY_LARGE) if word == "large" else (_SMALL, _SURELY_SMALL)
        assert worst.weight is not None
        yield Suspicion(
            where=worst.name if len(group) < len(layers) or len(layers) == 1 else group[0].name,
            strength=rising_log(gain, *ends),
            step=int(facts.steps[0]),
            why=f"The weights of {worst.name} start at "
            f"{said(early(facts.stat(worst.weight, 'rms'), 1))}, {said(gain)} "
            f"times one over the root of their inputs, where 0.5 to 1.5 is usual: too {word}. "
            f"So do {len(group)} of {len(layers)} layers.",
            try_this="Use the layers' own initialisation, or kaiming_normal_ / xavier_uniform_.",
            evidence=(facts.evidence(worst.weight, "rms"),),
        )


def _alike(facts: Facts, layers: list[Module]) -> Iterator[Suspicion]:
    """Weights that are all equal at the start: units that begin alike stay alike."""
    constant = [m for m in layers if m.weight and _is_constant(facts, m.weight)]
    stuck = [m for m in constant if m.weight and _is_stuck(facts, m.weight)]
    if len(constant) >= 2 and len(constant) >= _MOST_ALIKE * len(layers):
        stuck = constant  # a single layer may start at zero, not most of them
    if not stuck:
        return
    first = stuck[0]
    assert first.weight is not None
    value = float(facts.stat(first.weight, "mean")[0])
    yield Suspicion(
        where=first.name,
        strength=0.93,
        step=int(facts.steps[0]),
        why=f"All weights of {', '.join(m.name for m in stuck[:4])} start at {said(value)}. "
        "Units that start alike get the same gradients, and stay alike or at zero.",
        try_this="Initialise weights with random numbers: kaiming_normal_, xavier_uniform_, or "
        "the default.",
        evidence=(facts.evidence(first.weight, "std"),),
    )


def _is_constant(facts: Facts, weight: Site) -> bool:
    shape = facts.shape(weight)
    return len(shape) >= 2 and min(shape[:2]) > 1 and float(facts.stat(weight, "std")[0]) < 1e-9


def _is_stuck(facts: Facts, weight: Site) -> bool:
    """Whether it starts at a number other than 0, or at 0 and gets no gradient."""
    if abs(float(facts.stat(weight, "mean")[0])) > 0:
        return True
    return not np.nanmax(facts.stat(weight, "abs_max", "update"), initial=0.0) > 0


def _bias(facts: Facts, module: Module) -> Iterator[Suspicion]:
    if module.bias is None:
        return
    size = float(facts.stat(module.bias, "rms")[0])
    strength = rising_log(size, _BIAS, _SURELY_BIAS)
    if strength:
        yield Suspicion(
            where=module.name,
            strength=strength,
            step=int(facts.steps[0]),
            why=f"The bias of {module.name} starts at "
            f"{said(float(facts.stat(module.bias, 'mean')[0]))} on average, "
            f"{said(size)} in the root mean square. It outweighs all that comes in.",
            try_this="Start biases at 0.",
            evidence=(facts.evidence(module.bias, "rms"),),
        )


RULE = Rule(
    fault="bad_init",
    meaning="Weights start too large, too small, or all the same.",
    check=check,
    thresholds={
        "gain, large": Threshold(_LARGE, "kaiming has 1.4, the default 0.6"),
        "gain, small": Threshold(_SMALL, "0.02 times the root of 32 inputs is 0.11"),
        "bias": Threshold(_BIAS, "0 is usual"),
    },
    causes=(
        "saturation",
        "vanishing_gradient",
        "exploding_gradient",
        "activation_explosion",
        "dead_units",
        "lr_too_low",
        "lr_too_high",
        "divergence",
        "nonfinite",
        "data_labels",
        "over_regularisation",
        "disconnected_graph",
        "gradient_clipping",
        "output_range",
    ),
)
