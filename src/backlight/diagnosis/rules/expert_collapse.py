"""A mixture of experts in which one expert does all the work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, rising

_EXPERT = re.compile(r"^(.*expert[^.]*)\.(\d+)$", re.IGNORECASE)


def check(facts: Facts) -> Iterator[Suspicion]:
    """Compare how many samples each expert is given."""
    experts: dict[str, dict[str, float]] = defaultdict(dict)
    for module in facts.network.modules.values():
        match = _EXPERT.match(module.name)
        if match:
            counts = [np.nansum(facts.stat(s, "count")) for s in module.inputs]
            experts[match[1]][module.name] = float(np.sum(counts))
    for name, given in experts.items():
        total, busiest = sum(given.values()), max(given, key=lambda each: given[each])
        share = given[busiest] / total if total else 0.0
        strength = 0.85 * rising(share, 0.9, 0.99)
        if len(given) >= 3 and strength:
            yield Suspicion(
                where=name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"{busiest} gets {percent(share)} of all that the {len(given)} experts of "
                f"{name} are given. "
                "The others are hardly trained.",
                try_this="Add a loss for load balance, or noise to the router.",
                evidence=tuple(
                    facts.evidence(site, "count", text=f"numbers that {busiest} is given")
                    for site in facts.network.modules[busiest].inputs[:1]
                ),
            )


RULE = Rule(
    fault="expert_collapse",
    meaning="Of a mixture of experts, one gets almost everything.",
    check=check,
    thresholds={
        "share of the busiest": Threshold(0.9, "idle experts are usual, a single busy one is not")
    },
)
