"""Sigmoid or tanh units at the ends of their range, where they have no slope."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import BOUNDED, Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real, typical
from backlight.diagnosis.strength import percent, rising
from backlight.schema import Site

_SUSPECT, _SURE = 0.75, 0.93


def check(facts: Facts) -> Iterator[Suspicion]:
    """Measure how far from the middle the outputs of bounded activations are."""
    for module, site, low, high in _places(facts):
        extent = _extent(facts, site, low, high)
        amount = typical(extent[facts.learning])
        strength = rising(amount, _SUSPECT, _SURE)
        if strength:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=facts.first_step(extent > _SUSPECT),
                why=f"The outputs of {module.name} lie at {percent(np.sqrt(amount))} of the way "
                "from the "
                f"middle of their range to its ends ({low:g} and {high:g}), in the root mean "
                "square. "
                "There the activation has almost no slope, so little gradient passes.",
                try_this="Make what comes in smaller: normalise the inputs, use a smaller "
                "initialisation, "
                "or put a normalisation layer before the activation.",
                evidence=(facts.evidence(site, "rms"), facts.evidence(site, "std")),
            )


def _places(facts: Facts) -> Iterator[tuple[Module, Site, float, float]]:
    """Bounded activations that are not the network's answer."""
    answers = [typical(facts.stat(site, "rms")) for site in facts.model_outputs]
    for module in facts.network.activations:
        if module.module_class in BOUNDED:
            site = module.outputs[0]
            if not any(np.isclose(typical(facts.stat(site, "rms")), each) for each in answers):
                yield module, site, *BOUNDED[module.module_class]
    yield from _by_functions(facts)


def _by_functions(facts: Facts) -> Iterator[tuple[Module, Site, float, float]]:
    """What a layer reads that lies within -1 and 1 and touches both: a tanh without a module."""
    layers = facts.network.layers
    sources = {site.site: module for module in layers for site in module.outputs}
    for reader in layers:
        for site in reader.inputs[:1]:
            made_from = facts.predecessors.get(site.site, ())
            before = [sources[source] for source in made_from if source in sources]
            top = facts.stat(site, "abs_max")
            is_bound = np.nanmax(top, initial=0) <= 1.0 and typical(top) > 0.99
            if len(before) == 1 and is_bound:
                low = typical(facts.stat(site, "min"))
                wide = typical(facts.stat(before[0].outputs[0], "abs_max"))
                if wide > 1.5:
                    yield before[0], site, (-1.0 if low < -0.5 else 0.0), 1.0


def _extent(facts: Facts, site: Site, low: float, high: float) -> Real:
    middle, half = (low + high) / 2, (high - low) / 2
    mean, std = facts.stat(site, "mean"), facts.stat(site, "std")
    return np.asarray(((mean - middle) ** 2 + std**2) / half**2, np.float64)


RULE = Rule(
    fault="saturation",
    meaning="Bounded activations are at the ends of their range, where they pass no gradient.",
    check=check,
    thresholds={"extent": Threshold(_SUSPECT, "evenly spread outputs have 0.33, fresh ones less")},
    causes=("vanishing_gradient", "lr_too_low", "data_labels"),
)
