"""Parameters that should learn and that nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.schema import Site


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look for parameters without an optimizer, without a module, or without a learning rate."""
    yield from _unheld(facts)
    yield from _strangers(facts)
    yield from _loose(facts)
    yield from _without_rate(facts)
    yield from _switched_off(facts)


def _gets_gradient(facts: Facts, site: Site) -> bool:
    grads = facts.stat(site, "rms", "grad")
    return bool(np.nanmax(grads, initial=0.0) > 0)


def _unheld(facts: Facts) -> Iterator[Suspicion]:
    """Parameters that get gradients and that no optimizer holds."""
    forgotten = [
        module.name
        for module in facts.network.with_parameters()
        for site in module.parameters
        if site.place in module.told.get("untrained", ())
        and _gets_gradient(facts, site)
        and not facts.has(site, "update")
    ]
    names = list(dict.fromkeys(forgotten))
    if not names:
        return
    strangers = sum(g["parameters"] - g["own_parameters"] for g in _groups(facts))
    stale = (
        f" The optimizer holds {strangers} parameters that the model does not have."
        if strangers
        else ""
    )
    yield Suspicion(
        where=facts.network.common_name(names),
        strength=0.93,
        step=int(facts.steps[0]),
        why=f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''} get gradients, but "
        "no "
        f"optimizer holds their parameters, so they stay as they were made.{stale}",
        try_this="Make the optimizer from all parameters of the final model, after its layers were "
        "replaced or added.",
        evidence=tuple(facts.evidence(p, "rms", "grad") for p in _parameters(facts, names[0])[:1]),
    )


def _groups(facts: Facts) -> list[dict[str, int]]:
    return [group for each in facts.info.optimizers for group in each.get("groups", ())]


def _parameters(facts: Facts, name: str) -> list[Site]:
    return facts.network.modules[name].parameters


def _strangers(facts: Facts) -> Iterator[Suspicion]:
    """Parameters that the network uses and that belong to none of its modules."""
    strangers = facts.graph.get("strangers", [])
    held = sum(group["parameters"] - group["own_parameters"] for group in _groups(facts))
    if not strangers or held >= len(strangers) or _are_copies(facts, strangers):
        return
    site = facts.sites.get(strangers[0][0])
    where = "" if site is None else site.module
    if site is not None and site.tensor_class == "input":
        where = where.rpartition(".")[0]
    shapes = ", ".join(str(shape) for _, shape in strangers[:3])
    yield Suspicion(
        where=where,
        strength=0.92,
        step=int(facts.steps[0]),
        why=f"The network uses {len(strangers)} parameters (of shapes {shapes}) that belong to "
        "none of its "
        "modules, so parameters() does not list them and no optimizer trains them.",
        try_this="Keep layers in nn.ModuleList, nn.ModuleDict or as attributes, not in a plain "
        "list or "
        "dict, and parameters as nn.Parameter of the module.",
        evidence=() if site is None else (facts.evidence(site, "rms"),),
    )


def _are_copies(facts: Facts, strangers: list[Any]) -> bool:
    """Whether they stand for the model's own parameters, which train, as in a functional call."""
    own = [p for m in facts.network.with_parameters() for p in m.parameters]
    shapes = Counter(facts.shape(p) for p in own)
    is_trained = all(facts.has(p, "update") for p in own)
    return is_trained and shapes == Counter(tuple(shape) for _, shape in strangers)


def _loose(facts: Facts) -> Iterator[Suspicion]:
    """Tensors of a module that ask for gradients and are no parameters."""
    for module in facts.network.modules.values():
        if module.told.get("loose") and module.is_called:
            names = ", ".join(module.told["loose"])
            yield Suspicion(
                where=module.name,
                strength=0.9,
                step=int(facts.steps[0]),
                why=f"{names} of {module.name or 'the model'} asks for gradients, but is a plain "
                "tensor, so parameters() does not list it and no optimizer trains it.",
                try_this=f"Make it a parameter: self.{module.told['loose'][0]} = nn.Parameter(…).",
                evidence=tuple(facts.evidence(site, "rms") for site in module.outputs[:1]),
            )


def _without_rate(facts: Facts) -> Iterator[Suspicion]:
    """Gradients, an optimizer, and no change."""
    rates = facts.rates[1][np.isfinite(facts.rates[1])]
    held = [
        (module, site)
        for module in facts.network.with_parameters()
        for site in module.parameters
        if _gets_gradient(facts, site) and site.place not in module.told.get("untrained", ())
    ]
    still = [
        (module, site)
        for module, site in held
        if not facts.has(site, "update")
        or np.nanmax(facts.stat(site, "abs_max", "update"), initial=0.0) == 0.0
    ]
    if not held or not still or len(facts.steps) < 3:
        return
    names = list(dict.fromkeys(module.name for module, _ in still))
    is_all = len(still) == len(held)
    is_zero = len(rates) > 0 and rates.max() == 0.0
    if not is_all and not any(group.get("lr") == 0 for group in _groups(facts)):
        return
    yield Suspicion(
        where="optimizer" if is_all else facts.network.common_name(names),
        strength=0.93,
        step=int(facts.steps[0]),
        why=f"{len(still)} of {len(held)} parameters that have gradients were changed in no "
        "recorded step. "
        + ("The learning rate is 0." if is_zero else "The optimizer's step does nothing to them."),
        try_this="Set a learning rate above 0, and call zero_grad() before backward(), not between "
        "backward() and step().",
        evidence=(facts.evidence(still[0][1], "rms", "grad"),),
    )


def _switched_off(facts: Facts) -> Iterator[Suspicion]:
    """`requires_grad` off in single layers among others that train."""
    modules = [m for m in facts.network.with_parameters() if m.is_called]
    modules.sort(key=lambda m: m.order)
    frozen = [m for m in modules if _is_frozen(facts, m)]
    trained = [m for m in modules if facts.is_trained(m)]
    if not frozen or not trained:
        return
    size = {m.name: m.told.get("parameters", 0) for m in modules}
    share = sum(size[m.name] for m in frozen) / max(1, sum(size.values()))
    behind = [m for m in frozen if m.order > trained[0].order]
    behind = [m for m in behind if not _has_adapter(facts, m, trained)]
    if share > 0.8 or not behind or _is_deliberate(behind, trained):
        return
    yield Suspicion(
        where=facts.network.common_name([m.name for m in behind]),
        strength=0.7 if len(behind) <= 2 else 0.55,
        step=int(facts.steps[0]),
        why=f"requires_grad is off in {', '.join(m.name for m in behind[:4])}, while layers "
        "before and "
        "beside them train. They stay as they were made.",
        try_this="Set requires_grad_(True) where a layer should learn.",
        evidence=tuple(facts.evidence(p, "rms") for p in behind[0].parameters[:1]),
    )


def _has_adapter(facts: Facts, module: Module, trained: list[Module]) -> bool:
    """Whether a layer that trains stands beside it in one wrapper, and reads the same."""
    around = module.name.rpartition(".")[0]
    beside = [m for m in trained if m.name.rpartition(".")[0] == around]
    given = _reads(facts, module)
    return given is not None and any(_reads(facts, m) == given for m in beside)


def _reads(facts: Facts, module: Module) -> tuple[float, float] | None:
    """What a module is given first, told from two statistics."""
    if not module.inputs:
        return None
    site = module.inputs[0]
    first = float(facts.stat(site, "mean")[0]), float(facts.stat(site, "rms")[0])
    return None if np.isnan(first).any() else first


def _is_frozen(facts: Facts, module: Module) -> bool:
    """Whether its weight was made without a gradient, and was not let go later."""
    is_off = module.weight is not None and "weight" in module.told.get("frozen", ())
    return is_off and not facts.is_trained(module)


def _is_deliberate(frozen: list[Module], trained: list[Module]) -> bool:
    """Whether a whole part of the model is frozen, or small adapters sit beside frozen layers."""
    words = (
        "lora",
        "adapter",
        "teacher",
        "target",
        "backbone",
        "encoder",
        "pretrained",
        "base",
        "ema",
    )
    if any(word in m.name.lower() for m in [*frozen, *trained] for word in words):
        return True
    leaves = {m.name.rpartition(".")[2] for m in frozen}
    if len(frozen) > 1 and len(leaves) == 1 and not leaves.pop().isdigit():
        return True  # the same part of several wrappers
    tops = {m.name.partition(".")[0] for m in frozen}
    return len(frozen) > 2 and not tops & {m.name.partition(".")[0] for m in trained}


RULE = Rule(
    fault="frozen_parameters",
    meaning="Parameters that should learn are in no optimizer or module, or have no learning rate.",
    check=check,
    thresholds={"changed elements": Threshold(0, "a parameter that is trained changes")},
    causes=("lr_too_low", "data_labels", "vanishing_gradient"),
)
