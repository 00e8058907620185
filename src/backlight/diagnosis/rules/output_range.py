"""The last activation cannot give what the targets ask for."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall, made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, said
from backlight.schema import Evidence

_BOUNDS = {
    "Relu": (0.0, None),
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, None),
    "LeakyRelu": (0.0, None),
    "Hardtanh": (-1.0, 1.0),
    "Relu6": (0.0, 6.0),
}


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the range of the targets with that of the operation that made the predictions."""
    seen = set()
    for call in facts.comparisons:
        if call.source not in seen and (found := _check(facts, call)) is not None:
            seen.add(call.source)
            yield found


def _check(facts: Facts, call: FunctionalCall) -> Suspicion | None:
    maker = made_by(call.prediction)
    if call.name in ("cross_entropy", "binary_cross_entropy_with_logits"):
        return _of_logits(facts, call, maker)
    if maker not in _BOUNDS or call.name in ("nll_loss", "kl_div", "binary_cross_entropy"):
        return None
    low, high = _BOUNDS[maker]
    least, most = call.target.get("min"), call.target.get("max")
    mean, std = call.target.get("mean"), call.target.get("std")
    if least is None or most is None or mean is None or std is None:
        return None
    below = max(0.0, low - least)
    above = 0.0 if high is None else max(0.0, most - high)
    missed = max(below, above) / max(most - least, 1e-9)
    if missed < 0.1:
        return None
    where = _last_module(facts, maker)
    return Suspicion(
        where=where,
        strength=0.92 if missed > 0.2 and maker != "LeakyRelu" else 0.7,
        step=call.step,
        why=f"The predictions come out of {maker.lower()}, which gives {_said_range(low, high)}, "
        "while the targets "
        f"go from {said(least)} to {said(most)}: {percent(missed)} of their range cannot be "
        "reached.",
        try_this="Remove the activation after the last layer, or scale the targets into its "
        f"range: {call.place}",
        evidence=_ends(facts, call),
        source=call.source,
    )


def _of_logits(facts: Facts, call: FunctionalCall, maker: str) -> Suspicion | None:
    """Logits that cannot be negative."""
    if maker not in ("Relu", "Relu6", "Softplus", "Tanh", "LeakyRelu", "Hardtanh"):
        return None
    return Suspicion(
        where=_last_module(facts, maker),
        strength=0.85 if maker in ("Relu", "Relu6", "Softplus") else 0.62,
        step=call.step,
        why=f"The logits of {call.name} come out of {maker.lower()}, which gives "
        f"{_said_range(*_BOUNDS[maker])}. "
        "Logits have to be free to take any sign and size.",
        try_this=f"Remove the activation after the last layer: {call.place}",
        evidence=_ends(facts, call),
        source=call.source,
    )


def _ends(facts: Facts, call: FunctionalCall) -> tuple[Evidence, ...]:
    """How large predictions and targets become."""
    return (
        facts.call_evidence(call, lambda c: c.prediction.get("max"), "largest prediction"),
        facts.call_evidence(call, lambda c: c.target.get("max"), "largest target"),
    )


def _said_range(low: float, high: float | None) -> str:
    return f"numbers from {low:g} on" if high is None else f"numbers from {low:g} to {high:g}"


def _last_module(facts: Facts, maker: str) -> str:
    """The activation that made the predictions, where it is a module; else the last layer."""
    names = {"Relu": "ReLU", "LeakyRelu": "LeakyReLU", "Relu6": "ReLU6"}
    own = [m for m in facts.network.activations if m.module_class == names.get(maker, maker)]
    layers = facts.network.layers
    if own and (not layers or own[-1].order > layers[-1].order):
        return own[-1].name
    return layers[-1].name if layers else "loss"


RULE = Rule(
    fault="output_range",
    meaning="The network's last activation cannot reach the targets.",
    check=check,
    thresholds={
        "part of the targets' range": Threshold(0.1, "noise may pass the end of a range a little")
    },
    causes=(
        "dead_units",
        "saturation",
        "vanishing_gradient",
        "lr_too_low",
        "data_labels",
        "data_scale",
    ),
)
