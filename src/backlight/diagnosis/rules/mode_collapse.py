"""A generator that makes the same thing for every input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import early, late
from backlight.diagnosis.strength import rising_log, said


def check(facts: Facts) -> Iterator[Suspicion]:
    """Of several models that train together, does what one gives lose its variety?"""
    if len(facts.info.optimizers) < 2:
        return
    for site in facts.model_outputs:
        shape = facts.shape(site)
        values = facts.stat(site, "batch_std")
        size = late(facts.stat(site, "rms"))
        if len(shape) < 2 or shape[-1] < 2 or facts.last_step < 50 or not size > 0:
            continue
        before, after = early(values), late(values, 0.2)
        strength = 0.9 * rising_log(after / size, 0.03, 0.003) if after < 0.3 * before else 0.0
        if after < 0.5 * float(np.nanmax(values)):
            strength = max(strength, 0.9 * rising_log(after / _real(facts, shape), 0.1, 0.01))
        if strength:
            yield Suspicion(
                where=site.module,
                strength=strength,
                step=facts.first_step(values < 0.3 * before),
                why=f"What {site.module or 'the model'} gives differed by {said(before)} between "
                "the samples of a "
                f"batch at the start, and by {said(after)} at the end. It makes almost the same "
                "for every input.",
                try_this="Lower the generator's learning rate, train the critic more, or use a "
                "loss that "
                "rewards variety (minibatch discrimination, WGAN-GP).",
                evidence=(facts.evidence(site, "batch_std"),),
            )


def _real(facts: Facts, shape: tuple[int, ...]) -> float:
    """By how much samples of this shape differ that models are given: the real ones, at most."""
    alike = [site for site in facts.model_inputs if facts.shape(site)[1:] == shape[1:]]
    return max((late(facts.stat(site, "batch_std"), 0.2) for site in alike), default=float("nan"))


RULE = Rule(
    fault="mode_collapse",
    meaning="A generator's samples become all the same.",
    check=check,
    thresholds={
        "variety": Threshold(0.03, "deviation over the batch next to the size"),
        "variety next to the real samples'": Threshold(0.1, "a generator that works has about 1"),
    },
)
