"""Units that are 0 for every sample, and so learn nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import RELUS, Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import late
from backlight.diagnosis.strength import percent, rising
from backlight.schema import Site

_SUSPECT, _SURE = 0.6, 0.9
_LEAST_UNITS = 4


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at activations, and at what layers read that a function has activated."""
    for module, site in _places(facts):
        units = facts.stat(site, "units")
        share = facts.stat(site, "dead_units") / units
        batch = facts.shape(site)[0] if facts.shape(site) else 0
        if not np.nanmax(units, initial=0) >= _LEAST_UNITS or batch < 4:
            continue
        at_end = late(share)
        strength = rising(at_end, _SUSPECT, _SURE) * min(1.0, 0.5 + batch / 32)
        if strength:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=facts.first_step(share > _SUSPECT),
                why=f"{percent(at_end)} of the {int(np.nanmax(units))} units of {module.name} are "
                "0 for "
                f"every sample of a batch of {batch}, over the last third of the recorded steps. "
                "No gradient passes through such a unit, so it stays as it is.",
                try_this="Lower the learning rate, check the bias and the scale of what comes in, "
                "or "
                "use LeakyReLU or GELU.",
                evidence=(facts.evidence(site, "dead_units"),),
            )


def _places(facts: Facts) -> Iterator[tuple[Module, Site]]:
    for module in facts.network.activations:
        if module.module_class in RELUS:
            yield module, module.outputs[0]
    yield from relu_inputs(facts)


def relu_inputs(facts: Facts) -> Iterator[tuple[Module, Site]]:
    """Layers after which a function cut off what is negative: the layer, and what came of it."""
    layers = facts.network.layers
    sources = {site.site: module for module in layers for site in module.outputs}
    for reader in layers:
        for site in reader.inputs[:1]:
            made_from = facts.predecessors.get(site.site, ())
            before = [sources[source] for source in made_from if source in sources]
            low = facts.stat(site, "min")
            if len(before) == 1 and np.nanmin(low, initial=1.0) == 0.0:
                yield before[0], site


RULE = Rule(
    fault="dead_units",
    meaning="Most units of a ReLU layer are 0 for every sample.",
    check=check,
    thresholds={
        "dead share": Threshold(
            _SUSPECT, "a fresh ReLU layer has none; sparse ones stay below a half"
        ),
    },
    causes=("vanishing_gradient", "lr_too_low", "data_labels"),
)
