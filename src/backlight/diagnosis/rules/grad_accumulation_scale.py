"""Micro-batches whose losses are added up instead of averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from backlight.diagnosis.calls import made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion, Threshold
from backlight.diagnosis.updates import trained_weights

_DIVIDED = ("Div", "Mul")


def check(facts: Facts) -> Iterator[Suspicion]:
    """Several backward passes of one line in a step, of losses that are not divided."""
    passes = [c for c in facts.calls if c.name == "backward"]
    times = Counter((c.step, c.source) for c in passes)
    if not times or facts.iterations < 2:
        return
    if len(facts.info.optimizers) > 1:
        raise NotChecked("several optimizers may step in turn, each after a pass of its own")
    (_, source), count = times.most_common(1)[0]
    own = [c for c in passes if c.source == source]
    told = own[-1].arguments.get("input", {})
    maker = made_by(told) if isinstance(told, dict) else ""
    if count < 2 or maker in _DIVIDED or not maker or own[-1].arguments.get("gradient"):
        return
    losses = [c for c in facts.calls if c.is_loss]
    if losses and all(c.arguments.get("reduction") not in (None, "mean") for c in losses):
        return
    yield Suspicion(
        where="loss",
        strength=min(0.9, 0.62 + 0.04 * count),
        step=own[0].step,
        why=f"Each step has {count} backward passes, and none of their losses is divided by "
        f"{count}: the last "
        f"operation is {maker}. The gradient is {count} times that of one batch.",
        try_this="Divide the loss by the number of micro-batches before backward(): "
        f"{own[-1].place}",
        evidence=tuple(facts.evidence(p, "rms", "grad") for p in trained_weights(facts)[:1]),
        source=source,
    )


RULE = Rule(
    fault="grad_accumulation_scale",
    meaning="Gradients of micro-batches are added up without dividing by their number.",
    check=check,
    thresholds={"backward passes": Threshold(2, "one loss, several passes, one step")},
    causes=("lr_too_high", "exploding_gradient", "divergence", "gradient_clipping", "nonfinite"),
)
