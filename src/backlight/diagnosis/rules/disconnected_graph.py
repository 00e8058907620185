"""Parameters that an optimizer holds and that the loss does not reach."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look for modules that ran, are to be trained, and never get a gradient."""
    modules = [m for m in facts.network.with_parameters() if m.is_called and _is_held(m)]
    modules.sort(key=lambda m: m.order)
    cut = [m for m in modules if not any(facts.has(p, "grad") for p in m.parameters)]
    if not cut or len(facts.steps) < 2:
        return
    reached = [m for m in modules if m not in cut]
    if _is_unused(facts, cut) and any(m.order < cut[-1].order for m in reached):
        return
    is_all = len(cut) == len(modules)
    detached = [c for c in facts.calls if c.name in ("detach", "data", "argmax", "argmin")]
    inside = [c for c in detached if c.module or len(detached) == 1]
    call = inside[0] if inside else None
    place = f" {call.name} cuts the graph at {call.source}." if call else ""
    yield Suspicion(
        where=facts.network.common_name([m.name for m in reversed(cut)]),
        strength=0.93 if not is_all else 0.8,
        step=int(facts.steps[0]),
        why=f"{', '.join(m.name for m in cut[:4])}{' and others' if len(cut) > 4 else ''} ran in "
        "each "
        "recorded step and their parameters are in an optimizer, but no gradient ever reached "
        f"them.{place}",
        try_this="Remove detach(), .data, .item(), argmax or torch.no_grad() between these "
        "modules and "
        f"the loss{': ' + call.place if call else '.'}",
        evidence=tuple(
            facts.evidence(site, "rms", text="it runs, and gets no gradient")
            for site in cut[-1].outputs[:1]
        ),
        source=call.source if call else "",
    )


def _is_held(module: Module) -> bool:
    own = [site.place for site in module.parameters]
    missing = {*module.told.get("untrained", ()), *module.told.get("frozen", ())}
    return any(place not in missing for place in own)


def _is_unused(facts: Facts, cut: list[Module]) -> bool:
    """Whether what these modules give is not used for the loss, as far as is known."""
    reached = _reaching_the_loss(facts)
    return bool(reached) and not any(s.site in reached for m in cut for s in m.outputs)


def _reaching_the_loss(facts: Facts) -> set[int]:
    """The sites that the loss was made from, by autograd or as data."""
    before: dict[int, list[int]] = {}
    for source, sinks in facts.successors.items():
        for sink in sinks:
            before.setdefault(sink, []).append(source)
    todo = [site for site, role in facts.graph.get("nodes", []) if role == "loss"]
    reached = set(todo)
    while todo:
        for source in before.get(todo.pop(), ()):
            if source not in reached:
                reached.add(source)
                todo.append(source)
    return reached


RULE = Rule(
    fault="disconnected_graph",
    meaning="The loss does not reach parameters that an optimizer holds.",
    check=check,
    thresholds={"gradients": Threshold(0, "a parameter that is trained has one")},
    causes=("frozen_parameters", "lr_too_low", "data_labels", "saturation"),
)
