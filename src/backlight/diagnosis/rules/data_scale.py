"""Inputs or targets of a size that the network was not made for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import NORMS
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import rising_log, said
from backlight.schema import Site

_LARGE, _SURELY_LARGE = 8.0, 40.0
_SMALL, _SURELY_SMALL = 0.02, 0.002


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare the inputs of the first layers, and the targets, with numbers around one."""
    for site in facts.model_inputs:
        if "float" in facts.dtype(site) and not _is_normalised(facts, site):
            yield from _of_input(facts, site)
    yield from _of_targets(facts)


def _is_normalised(facts: Facts, site: Site) -> bool:
    """Whether no layer with weights reads the input as it is."""
    rms = facts.stat(site, "rms")
    readers = [
        module
        for module in facts.network.leaves
        if module.inputs and np.allclose(facts.stat(module.inputs[0], "rms"), rms, equal_nan=True)
    ]
    weighted = [m for m in readers if m.weight is not None and not NORMS.search(m.module_class)]
    recurrent = [m for m in readers if m.module_class in ("LSTM", "GRU", "RNN")]
    return not weighted and not recurrent


def _of_input(facts: Facts, site: Site) -> Iterator[Suspicion]:
    size = typical(facts.stat(site, "rms"))
    spread = typical(facts.stat(site, "std"))
    large, small = rising_log(size, _LARGE, _SURELY_LARGE), rising_log(size, _SMALL, _SURELY_SMALL)
    if size == 0 or max(large, small) == 0:
        return
    low, high = typical(facts.stat(site, "min")), typical(facts.stat(site, "max"))
    word = "large" if large else "small"
    yield Suspicion(
        where="data",
        strength=max(large, small),
        step=int(facts.steps[0]),
        why=f"The input {site.name} has numbers from {said(low)} to {said(high)}, {said(size)} in "
        "the "
        f"root mean square (deviation {said(spread)}), and goes into a layer as it is. "
        f"Layers are made for numbers around 1, so this is too {word}.",
        try_this="Normalise the inputs: subtract their mean and divide by their deviation, feature "
        "by feature (for images, divide by 255 first).",
        evidence=(facts.evidence(site, "rms"),),
    )


def _of_targets(facts: Facts) -> Iterator[Suspicion]:
    for call in facts.comparisons[:1]:
        std, mean = call.target.get("std"), call.target.get("mean")
        if (
            std is None
            or mean is None
            or call.name not in ("mse_loss", "l1_loss", "sub", "smooth_l1_loss", "huber_loss")
        ):
            continue
        size = float(np.hypot(std, mean))
        learned = facts.learned
        strength = rising_log(size, 30.0, 300.0)
        if learned is not None and learned > 0.9:
            strength *= 0.5
        if strength:
            yield Suspicion(
                where="data",
                strength=strength,
                step=call.step,
                why=f"The targets have a mean of {said(mean)} and a deviation of {said(std)}. A "
                "network "
                "begins with answers around 0 and moves by small steps, so such targets are far "
                "away.",
                try_this=f"Normalise the targets, and undo it in the predictions: {call.place}",
                evidence=(
                    facts.call_evidence(call, lambda c: c.target.get("mean"), "mean target"),
                    facts.call_evidence(
                        call, lambda c: c.prediction.get("mean"), "mean prediction"
                    ),
                ),
                source=call.source,
            )


RULE = Rule(
    fault="data_scale",
    meaning="Inputs or targets are not normalised: far larger or smaller than one.",
    check=check,
    thresholds={
        "large input, rms": Threshold(_LARGE, "standardised data has 1; bytes of images have 150"),
        "small input, rms": Threshold(_SMALL, "a fiftieth of standardised data"),
        "large target": Threshold(30.0, "set by hand; the suite does not contradict it"),
    },
    causes=(
        "activation_explosion",
        "saturation",
        "exploding_gradient",
        "vanishing_gradient",
        "lr_too_high",
        "lr_too_low",
        "divergence",
        "nonfinite",
        "dead_units",
        "gradient_clipping",
        "loss_term_imbalance",
    ),
)
