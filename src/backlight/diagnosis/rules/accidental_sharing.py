"""One layer under several names, where several layers were meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.schema import Site


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at parameters that have more than one name."""
    shared = [p for m in facts.network.with_parameters() for p in m.parameters if p.aliases]
    suspected: dict[float, list[Site]] = {}
    for site in {p.module: p for p in reversed(shared)}.values():
        suspected.setdefault(_strength(facts, site), []).insert(0, site)
    for strength, sites in suspected.items():
        site = sites[0]
        if strength:
            names = [each.module for each in sites]
            name = facts.network.common_name(names) if len(names) > 1 else names[0]
            inner = facts.network.modules[site.module]
            depth = site.module.count(".") - name.count(".")
            others = ", ".join(_around(alias, depth + 1) for alias in site.aliases)
            yield Suspicion(
                where=name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"{name} and {others} are the same module: they share {site.place} and all "
                "else. "
                f"It runs {len(inner.outputs)} times in a step.",
                try_this="Make a module for each place, [make() for _ in range(n)] instead of "
                "[module] * n, or copy.deepcopy; say so in a comment if sharing is meant.",
                evidence=(facts.evidence(site, "rms", "grad", "its gradient, from all places"),),
            )


def _around(name: str, levels: int) -> str:
    return ".".join(name.split(".")[:-levels])


def _strength(facts: Facts, site: Site) -> float:
    own, others = site.module, [alias.rpartition(".")[0] for alias in site.aliases]
    if any(_place(site.name) != _place(alias) for alias in site.aliases):
        return 0.0  # tied weights of two kinds of layers
    pattern = re.compile(r"(?:^|\.)\d+(?=\.|$)")
    if all(pattern.sub("#", other) == pattern.sub("#", own) for other in others):
        return 0.92
    around = {name.rpartition(".")[0] for name in (own, *others)}
    tops = {name.partition(".")[0] for name in (own, *others)}
    if len(tops) > 1 and len(around) > 1 and _is_pair_of_models(facts, tops):
        return 0.85
    if len(around) != 1:
        return 0.0
    # Two attributes of one module that are the same layer; one that runs once is but an alias.
    return 0.7 if len(facts.network.modules[own].outputs) > 1 or _is_in_series(facts, own) else 0.0


def _place(name: str) -> str:
    return name.rpartition(".")[2]


def _is_pair_of_models(facts: Facts, tops: set[str]) -> bool:
    return "" not in facts.network.modules and len(tops) > 1


def _is_in_series(facts: Facts, name: str) -> bool:
    """Whether a call of the module reads what an earlier call of it gave."""
    module = facts.network.modules[name]
    outputs = {site.site for site in module.outputs}
    inputs = {site.site for site in module.inputs}
    todo, seen = list(outputs), set(outputs)
    while todo:
        for sink in facts.successors.get(todo.pop(), ()):
            if sink in inputs:
                return True
            if sink not in seen:
                seen.add(sink)
                todo.append(sink)
    return False


RULE = Rule(
    fault="accidental_sharing",
    meaning="The same layer stands in several places that were meant for several layers.",
    check=check,
    thresholds={"names": Threshold(1, "a layer that is not tied on purpose has one name")},
    causes=("lr_too_low", "vanishing_gradient", "exploding_gradient", "stale_gradients"),
)
