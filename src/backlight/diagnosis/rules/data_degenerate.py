"""Data that does not differ: constant inputs, the same sample again, one class at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import label_counts
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import percent, rising
from backlight.schema import Site

_SUSPECT, _SURE = 0.6, 0.9


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at what differs between samples, and at the labels of each batch."""
    for site in facts.model_inputs:
        if "float" in facts.dtype(site):
            yield from _of_input(facts, site)
    yield from _of_labels(facts)


def _of_input(facts: Facts, site: Site) -> Iterator[Suspicion]:
    batch = facts.shape(site)[0] if facts.shape(site) else 0
    units = facts.stat(site, "units")
    constant = typical(facts.stat(site, "constant_units") / units)
    is_zero = typical(facts.stat(site, "rms")) == 0
    spread = typical(facts.stat(site, "batch_std")) / max(typical(facts.stat(site, "rms")), 1e-12)
    if batch < 4 or is_recurrent_state(facts, site):
        return
    strength = rising(constant, _SUSPECT, _SURE)
    if strength:
        what = "are 0" if is_zero else "are the same for every sample of a batch"
        yield Suspicion(
            where="data",
            strength=strength,
            step=int(facts.steps[0]),
            why=f"{percent(constant)} of the {int(np.nanmax(units))} features of {site.name} "
            f"{what}. "
            "There is little to tell samples apart by.",
            try_this="Check how batches are made: is the same sample repeated, or a column read "
            "wrongly?",
            evidence=(facts.evidence(site, "constant_units"), facts.evidence(site, "batch_std")),
        )
    elif 0 <= spread < 2e-3 and not is_zero:
        yield Suspicion(
            where="data",
            strength=0.8,
            step=int(facts.steps[0]),
            why=f"Samples of {site.name} differ by {spread:.1e} of their size: they are almost "
            "the same. "
            "There is little to tell them apart by.",
            try_this="Subtract the mean of the data, and check how batches are made.",
            evidence=(facts.evidence(site, "batch_std"),),
        )


def is_recurrent_state(facts: Facts, site: Site) -> bool:
    """Whether an input is a state that starts at zero."""
    return (
        float(np.nanmin(facts.stat(site, "rms"), initial=1.0)) == 0.0
        and len(facts.model_inputs) > 1
    )


def _of_labels(facts: Facts) -> Iterator[Suspicion]:
    """Batches of one class each, while there are several classes."""
    losses = [c for c in facts.comparisons if c.name in ("cross_entropy", "nll_loss")]
    batches: dict[tuple[int, int, str], Counter[int]] = {}
    for call in losses:
        batches[call.step, call.iteration, call.source] = label_counts([call])
    full = [counts for counts in batches.values() if sum(counts.values()) >= 8]
    present: set[int] = set().union(*(set(counts) for counts in full)) if full else set()
    single = [counts for counts in full if len(counts) == 1]
    shape = losses[0].prediction.get("shape", [0, 0]) if losses else [0, 0]
    classes = shape[1] if len(shape) > 1 else 0
    if len(full) >= 3 and len(single) >= 0.8 * len(full) and classes > 1 and len(present) > 1:
        yield Suspicion(
            where="data",
            strength=0.85,
            step=losses[0].step,
            why=f"{len(single)} of {len(full)} batches that were looked at have samples of one "
            "class alone, of "
            f"{len(present)} classes that were seen. Each batch pulls the network to another "
            "answer.",
            try_this="Shuffle the data: DataLoader(…, shuffle=True).",
            evidence=(
                facts.call_evidence(
                    losses[0], lambda c: len(label_counts([c])), "classes in a batch"
                ),
            ),
        )


RULE = Rule(
    fault="data_degenerate",
    meaning="Samples hardly differ: constant features, repeated samples, batches of one class.",
    check=check,
    thresholds={
        "share of constant features": Threshold(_SUSPECT, "borders of images have up to a half")
    },
    causes=(
        "data_labels",
        "lr_too_low",
        "dead_units",
        "class_imbalance",
        "divergence",
        "lr_too_high",
    ),
)
