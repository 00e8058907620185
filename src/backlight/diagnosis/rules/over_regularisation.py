"""Weight decay or dropout that leaves nothing to learn with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real, early, finite, typical
from backlight.diagnosis.strength import percent, rising, rising_log, said
from backlight.diagnosis.updates import optimizer_classes, setting, trained_weights

_DROPOUT, _SURELY_DROPOUT = 0.75, 0.92


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at weight decay next to the gradients, at weights that shrink, and at dropout."""
    yield from _dropout(facts)
    yield from _decay(facts)


def _dropout(facts: Facts) -> Iterator[Suspicion]:
    for module in facts.network.of_class(r"Dropout\dd$|Dropout$"):
        share = module.number("p")
        strength = rising(share or 0.0, _DROPOUT, _SURELY_DROPOUT)
        if strength and module.outputs:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"{module.name} drops {percent(share or 0.0)} of what comes in. What is left "
                "is multiplied "
                f"by {said(1 / max(1 - (share or 0), 1e-9))}, and is mostly noise.",
                try_this="Use a dropout of 0.1 to 0.5; p is the share that is dropped, not kept.",
                evidence=(facts.evidence(module.outputs[0], "zeros"),),
            )


def _decay(facts: Facts) -> Iterator[Suspicion]:
    weights = trained_weights(facts)
    decay, rate = (
        max(setting(facts, "weight_decay"), default=0.0),
        max(setting(facts, "lr"), default=0.0),
    )
    if not weights:
        return
    shrunk = [_left(facts.stat(p, "rms")) for p in weights]
    shrinking = float(np.median(shrunk))
    is_decoupled = any(name in ("AdamW", "SGDW", "Lion") for name in optimizer_classes(facts))
    pulls = [
        decay * typical(facts.stat(p, "rms")) / max(typical(facts.stat(p, "rms", "grad")), 1e-12)
        for p in weights
    ]
    pull = float(np.median(pulls)) if not is_decoupled else decay * rate * 300
    # Where that of guessing is unknown: a penalty leaves something of the loss, or all of it.
    learned = facts.loss.gain - 0.29 if facts.learned is None else facts.learned
    not_learned = 0.5 if learned >= 0.7 else 1.0
    strength = 0.0
    if decay > 0:
        least = 0.3 if is_decoupled else 0.02
        strength = rising_log(decay, least, 30 * least) * (
            1.0 if pull > 0.7 or shrinking < 0.6 else 0.3
        )
    strength = max(strength, rising_log(shrinking, 0.25, 0.03) * (1.0 if decay > 0 else 0.85))
    if strength * not_learned >= 0.2:
        worst = weights[int(np.argmin(shrunk))]
        decays = (
            f"The weight decay is {said(decay)}, and it pulls at the weights with {said(pull)} of "
            "the force of their gradients."
        )
        yield Suspicion(
            where="optimizer" if decay > 0 else "loss",
            strength=strength * not_learned,
            step=facts.first_step(facts.stat(worst, "rms") < 0.5 * early(facts.stat(worst, "rms"))),
            why=f"{decays if decay > 0 else 'The loss pulls all weights towards 0.'} "
            f"The weights are {percent(shrinking)} of what they were at the start.",
            try_this="Use a weight decay of 1e-4 (Adam, SGD) or 1e-2 (AdamW), or a smaller "
            "penalty.",
            evidence=(facts.evidence(worst, "rms"),),
        )


def _left(sizes: Real) -> float:
    """What is left of a weight's size at the end."""
    known = finite(sizes)
    return float(known[-1] / max(known[0], 1e-12)) if len(known) else 1.0


RULE = Rule(
    fault="over_regularisation",
    meaning="Weight decay, a penalty or dropout is so strong that the network cannot learn.",
    check=check,
    thresholds={
        "dropout": Threshold(_DROPOUT, "0.5 is the most that is usual"),
        "weight decay": Threshold(0.02, "1e-4 is usual for SGD and Adam"),
        "decoupled weight decay": Threshold(0.3, "0.01 to 0.1 is usual for AdamW"),
    },
    causes=(
        "vanishing_gradient",
        "lr_too_low",
        "data_labels",
        "dead_units",
        "posterior_collapse",
        "lr_too_high",
    ),
)
