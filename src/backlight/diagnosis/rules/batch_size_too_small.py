"""Batches too small for what is done with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at how many values batch norm averages, and at batches of one."""
    for module in facts.network.of_class(r"^(Sync)?BatchNorm\dd$"):
        if not module.inputs or not facts.is_trained(module):
            continue
        shape = facts.shape(module.inputs[0])
        values = int(np.prod(shape)) // max(1, shape[1]) if len(shape) > 1 else 0
        strength = _strength(shape[0], values)
        if strength:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"{module.name} takes the mean and deviation of {values} values, of a batch "
                f"of {shape[0]}. "
                "They are little more than noise, and differ from those used in evaluation.",
                try_this="Use batches of 16 or more, or GroupNorm or LayerNorm.",
                evidence=(facts.evidence(module.inputs[0], "batch_std"),),
            )
            return
    size = facts.batch_size
    noisy = facts.loss.is_known and facts.loss.noise > 0.6 and facts.loss.gain < 0.5
    if size == 1 and noisy and facts.iterations == 1 and len(facts.info.optimizers) == 1:
        yield Suspicion(
            where="data",
            strength=0.62,
            step=int(facts.steps[0]),
            why="Each step is made from one sample, and the loss changes by "
            f"{facts.loss.noise:.0%} of its size "
            "from one step to the next. Gradients are mostly noise.",
            try_this="Use larger batches, or accumulate gradients over several.",
            evidence=(facts.loss_evidence(),),
        )


def _strength(batch: int, values: int) -> float:
    """Pixels of one picture are much alike, so that many of them make up for few samples badly."""
    if not 0 < batch <= 4 or (batch > 2 and values > 64):
        return 0.0
    return 0.85 if values <= 4 else 0.65 if values <= 8 else 0.6 if batch <= 2 else 0.45


RULE = Rule(
    fault="batch_size_too_small",
    meaning="Batches are too small for batch norm, or for steady gradients.",
    check=check,
    thresholds={"batch": Threshold(4, "batch norm needs 16 and more")},
    causes=("lr_too_high", "divergence", "data_labels"),
)
