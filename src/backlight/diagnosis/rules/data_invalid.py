"""NaN or infinity in what the network is given, or in what it should say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.schema import Site


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the model's inputs and at the targets of its losses."""
    for site in facts.model_inputs:
        yield from _of_input(facts, site)
    for call in facts.comparisons:
        told = call.target
        count = told.get("nans", 0) + told.get("infs", 0)
        if count and not told.get("requires_grad") and not _ran_away(facts, call.step):
            yield Suspicion(
                where="data",
                strength=0.96,
                step=call.step,
                why=f"The target of {call.name} has {count} values that are not finite at step "
                f"{call.step}. The loss and every gradient of that step are lost with it.",
                try_this=f"Clean the targets, or leave such samples out: {call.place}",
                evidence=(
                    facts.call_evidence(
                        call,
                        lambda c: c.target.get("nans", 0) + c.target.get("infs", 0),
                        "targets that are not finite",
                    ),
                ),
                source=call.source,
            )


def _ran_away(facts: Facts, step: int) -> bool:
    """Whether the loss was huge before: then the targets are what the network made of them."""
    before = facts.loss.values[facts.loss.steps < step]
    before = np.abs(before[np.isfinite(before)])
    return len(before) > 0 and float(before.max()) > 1e6 * max(float(before[0]), 1e-6)


def _of_input(facts: Facts, site: Site) -> Iterator[Suspicion]:
    bad = np.nan_to_num(facts.stat(site, "nans")) + np.nan_to_num(facts.stat(site, "infs"))
    at = np.flatnonzero(bad > 0)
    if not len(at) or _fed_back(facts, at[0]):
        return
    yield Suspicion(
        where="data",
        strength=0.97,
        step=int(facts.steps[at[0]]),
        why=f"The input {site.name} has {int(bad[at[0]])} values that are not finite at step "
        f"{facts.steps[at[0]]}, in {len(at)} of {len(facts.steps)} recorded steps in all. "
        "They come from the data: nothing that the network computed is before them.",
        try_this="Check the data for missing values and divisions by zero before batches are made.",
        evidence=(facts.evidence(site, "nans"), facts.evidence(site, "infs")),
    )


def _fed_back(facts: Facts, column: int) -> bool:
    """Whether the parameters were lost already, so that a recurrent input may be a consequence."""
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    lost = [np.nan_to_num(facts.stat(p, "nans"))[: column + 1].max(initial=0) for p in parameters]
    return max(lost, default=0) > 0 and column > 0


RULE = Rule(
    fault="data_invalid",
    meaning="NaN or infinity in the inputs or the targets.",
    check=check,
    thresholds={"elements": Threshold(1, "none is right")},
    causes=("nonfinite", "divergence", "exploding_gradient"),
)
