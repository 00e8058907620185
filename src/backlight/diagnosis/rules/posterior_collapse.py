"""A variational autoencoder whose code says nothing of its input."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import late
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 0.12, 0.03
_MEAN = re.compile(r"(^|[._])(mu|mean|z_mean|fc_mu|to_mu|loc)$|mu$", re.IGNORECASE)
_SPREAD = re.compile(r"log_?var|log_?sigma|log_?std|logv$|(^|[._])(sigma|var)$", re.IGNORECASE)


def check(facts: Facts) -> Iterator[Suspicion]:
    """Does the code's mean differ between samples, and is its variance other than one?"""
    means = [m for m in facts.network.called if _MEAN.search(m.name) and m.weight]
    spreads = [m for m in facts.network.called if _SPREAD.search(m.name) and m.weight]
    if not means or not spreads or facts.last_step < 30:
        return
    mean, spread = means[0], spreads[0]
    differs = late(facts.stat(mean.outputs[0], "batch_std"))
    log_size = late(facts.stat(spread.outputs[0], "rms"))
    strength = rising_log(max(differs, log_size * 0.5), _SUSPECT, _SURE)
    if strength:
        yield _found(facts, mean, differs, log_size, strength)


def _found(facts: Facts, mean: Module, differs: float, spread: float, strength: float) -> Suspicion:
    return Suspicion(
        where=mean.name,
        strength=strength,
        step=facts.first_step(facts.stat(mean.outputs[0], "batch_std") < _SUSPECT),
        why=f"The mean of the code, {mean.name}, differs by {said(differs)} between samples, and "
        "the log of its "
        f"variance is {said(spread)}: the code is the prior whatever the input. The decoder "
        "learns to do "
        "without it.",
        try_this="Weigh the KL term less, and raise its weight slowly from 0.",
        evidence=(facts.evidence(mean.outputs[0], "batch_std"),),
    )


RULE = Rule(
    fault="posterior_collapse",
    meaning="The code of a variational autoencoder is the same for every input.",
    check=check,
    thresholds={
        "deviation of the code's mean": Threshold(_SUSPECT, "a code that is used has about 1")
    },
)
