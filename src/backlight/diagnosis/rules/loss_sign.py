"""The loss has the wrong sign: training makes the network worse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import rising_log, said

_MIXED = frozenset({"nll_loss", "gaussian_nll_loss", "cosine_embedding_loss", "kl_div"})


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the loss that is differentiated with the loss functions that were called."""
    losses = [c for c in facts.calls if c.is_loss and c.name not in _MIXED and c.value is not None]
    root = facts.backward_root
    value = root.get("min")
    if losses and isinstance(value, (int, float)):
        same = [c for c in losses if c.step == losses[0].step]
        total = sum(c.value or 0.0 for c in same)
        if value < 0 < total and abs(value + total) < 0.5 * total:
            yield Suspicion(
                where="loss",
                strength=0.95,
                step=losses[0].step,
                why=f"{losses[0].name} gives {said(total)}, and the backward pass starts from "
                f"{said(value)}: "
                f"the loss is negated ({made_by(root)}). Each step makes it worse.",
                try_this=f"Remove the minus sign: {losses[0].place}",
                evidence=(facts.loss_evidence(),),
                source=losses[0].source,
            )
            return
    yield from _rewarded(facts)
    yield from _pushed_apart(facts)
    yield from _without_floor(facts, bool(losses))


def _rewarded(facts: Facts) -> Iterator[Suspicion]:
    groups = [g for each in facts.info.optimizers for g in each.get("groups", ())]
    if any(g.get("maximize") is True for g in groups) and any(c.is_loss for c in facts.calls):
        yield Suspicion(
            where="optimizer",
            strength=0.8,
            why="The optimizer has maximize=True and the network is trained with a loss function. "
            "Each step raises the loss.",
            try_this="Use maximize=False.",
            evidence=(facts.loss_evidence(),),
        )


def _pushed_apart(facts: Facts) -> Iterator[Suspicion]:
    """A similarity that is the loss itself: what should become alike becomes opposite."""
    calls = [c for c in facts.calls if c.name == "cosine_similarity"]
    has_others = any(c.is_comparison for c in facts.calls)
    if not calls or has_others or made_by(facts.backward_root) != "Mean":
        return
    loss = facts.loss
    if loss.is_known and loss.last < loss.first - 0.2 and loss.last < -0.5:
        yield Suspicion(
            where="loss",
            strength=0.8,
            step=calls[0].step,
            why=f"The loss is the mean of a cosine similarity, and falls from {said(loss.first)} "
            f"to {said(loss.last)}: what should be alike is made opposite.",
            try_this=f"Use 1 minus the similarity: {calls[0].place}",
            evidence=(facts.loss_evidence(),),
            source=calls[0].source,
        )


def _without_floor(facts: Facts, has_losses: bool) -> Iterator[Suspicion]:
    """A loss that falls below zero and faster and faster."""
    loss = facts.loss
    if len(loss.smooth) < 10 or len(facts.info.optimizers) > 1:
        return
    scale = max(abs(loss.first), 0.1)
    depth = -loss.last / scale
    is_falling = loss.last <= 0.3 * loss.best < 0
    half = float(loss.smooth[len(loss.smooth) // 2])
    is_speeding = loss.last < 0 and abs(loss.last) > 2.0 * abs(half)
    strength = rising_log(depth, 10.0, 1000.0) if is_falling and is_speeding else 0.0
    if strength:
        yield Suspicion(
            where="loss",
            strength=0.9 * strength,
            step=int(loss.steps[int(np.argmax(loss.values < 0))]),
            why=f"The loss falls from {said(loss.first)} through zero to {said(loss.last)}, "
            "faster and faster. "
            "It has no floor, so a term of it has the wrong sign.",
            try_this="Check the signs of the loss's terms: what is to become small has to be "
            "positive.",
            evidence=(facts.loss_evidence(),),
        )


RULE = Rule(
    fault="loss_sign",
    meaning="The loss, or a term of it, has the wrong sign.",
    check=check,
    thresholds={"depth": Threshold(10.0, "a loss far below zero, next to its first value")},
    causes=(
        "divergence",
        "exploding_gradient",
        "activation_explosion",
        "nonfinite",
        "saturation",
        "lr_too_high",
        "data_labels",
        "vanishing_gradient",
        "dead_units",
    ),
)
