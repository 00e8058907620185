"""How large the steps of the optimizer are next to the weights that they change."""

from __future__ import annotations

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.series import Real, finite
from backlight.schema import Site


def trained_weights(facts: Facts) -> list[Site]:
    """The parameters of at least two dimensions that optimizers change."""
    parameters = [p for m in facts.network.with_parameters() for p in m.parameters]
    return [p for p in parameters if len(facts.shape(p)) >= 2 and facts.has(p, "update")]


def relative_updates(facts: Facts) -> Real:
    """For each step, the median over the weights of an update's size next to the weight's."""
    ratios = [
        facts.stat(p, "rms", "update") / np.maximum(facts.stat(p, "rms"), 1e-12)
        for p in trained_weights(facts)
        if not float(facts.stat(p, "rms")[0]) < 1e-6  # what starts at zero has no size yet
    ]
    if not ratios:
        return np.full(len(facts.steps), np.nan)
    return np.asarray(np.nanmedian(np.array(ratios), axis=0), np.float64)


def typical_update(facts: Facts) -> float:
    """The middle of all relative updates; NaN if there are none."""
    found = finite(relative_updates(facts))
    return float(np.median(found)) if len(found) else float("nan")


def setting(facts: Facts, name: str) -> list[float]:
    """A setting of every group of every optimizer that has it as a number."""
    groups = [group for each in facts.info.optimizers for group in each.get("groups", ())]
    found = [group.get(name) for group in groups]
    return [float(each) for each in found if isinstance(each, (int, float))]


def optimizer_classes(facts: Facts) -> list[str]:
    """The classes of the optimizers."""
    return [str(each.get("class", "")) for each in facts.info.optimizers]
