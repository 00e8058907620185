"""A state that is added to again and again by what can hardly be negative."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import late
from backlight.diagnosis.strength import percent, rising, said
from backlight.schema import Site

_CUTTING = frozenset({"ReLU", "LeakyReLU", "Softplus", "ELU", "ReLU6", "PReLU"})


def check(facts: Facts) -> Iterator[Suspicion]:
    """Activations at the end of a sub-module that give numbers of one sign."""
    ends = _ends(facts)
    found = [(m, site, _onesidedness(facts, site)) for m, site in ends]
    strong = [each for each in found if each[2] > 0.8]
    loops = [each for each in strong if _is_repeated(facts, each[0])]
    chosen = loops or strong
    if not chosen or not (loops or len(strong) > 1):
        return
    module, site, share = max(chosen, key=lambda each: (_feeds_back(facts, each[0]), each[2]))
    mean, size = late(facts.stat(site, "mean")), late(facts.stat(site, "rms"))
    yield Suspicion(
        where=module.name,
        strength=0.8 * (1.0 if loops else 0.45) + 0.1 * rising(share, 0.8, 0.97),
        step=int(facts.steps[0]),
        why=f"{module.name}, the last layer of {module.name.rpartition('.')[0] or 'the model'}, "
        "is an activation "
        f"({module.module_class}): {percent(share)} of what it gives points one way (mean "
        f"{said(mean)}, root "
        f"mean square {said(size)}). What is added up from it over iterations can only grow.",
        try_this=f"Remove the activation after the last layer of the sub-module ({module.name}).",
        evidence=(
            facts.evidence(site, "mean"),
            facts.evidence(site, "min"),
            facts.evidence(site, "max"),
        ),
    )


def _ends(facts: Facts) -> list[tuple[Module, Site]]:
    """Activations that are the last thing that a sub-module with layers does."""
    modules = facts.network.modules
    found = []
    for module in facts.network.activations:
        around = modules.get(module.name.rpartition(".")[0])
        if module.module_class not in _CUTTING or around is None or not around.name:
            continue
        inside = [m for m in facts.network.called if m.name.startswith(f"{around.name}.")]
        if inside and inside[-1] is module and around.module_class != "ModuleList":
            found.append((module, module.outputs[-1]))
    return found


def _onesidedness(facts: Facts, site: Site) -> float:
    """How much of the mass of a tensor has one sign: from 0.5 to 1."""
    mean, size = late(facts.stat(site, "mean")), late(facts.stat(site, "abs_mean"))
    return 0.5 + 0.5 * abs(mean) / size if size > 0 else 0.0


def _is_repeated(facts: Facts, module: Module) -> bool:
    """Whether it runs several times in a step, as in a recurrence."""
    return len(module.outputs) > 2 or (facts.iterations > 2 and not _has_several_losses(facts))


def _has_several_losses(facts: Facts) -> bool:
    """Whether iterations are micro-batches, each with a backward pass of its own."""
    passes = [c for c in facts.calls if c.name == "backward"]
    return len({(c.step, c.iteration) for c in passes}) > len({c.step for c in passes})


def _feeds_back(facts: Facts, module: Module) -> bool:
    """Whether what it gives comes back to the module around it, by way of a state."""
    around = module.name.rpartition(".")[0]
    own = {s.site for s in facts.network.modules[around].inputs} if around else set()
    todo = [s.site for s in module.outputs]
    seen = set(todo)
    while todo:
        for sink in facts.successors.get(todo.pop(), ()):
            if sink in own:
                return True
            if sink not in seen:
                seen.add(sink)
                todo.append(sink)
    return False


RULE = Rule(
    fault="one_directional_growth",
    meaning="A state is added to by an activation that gives numbers of one sign, and can only "
    "grow.",
    check=check,
    thresholds={"share of one sign": Threshold(0.8, "a linear layer has about 0.5")},
    causes=(
        "activation_explosion",
        "saturation",
        "dead_units",
        "vanishing_gradient",
        "output_range",
    ),
)
