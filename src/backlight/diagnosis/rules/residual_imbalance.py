"""A residual branch that drowns its shortcut, or has no say beside it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import typical
from backlight.diagnosis.strength import rising_log, said


def check(facts: Facts) -> Iterator[Suspicion]:
    """Of blocks that add to what they are given, compare what is added with what is given."""
    for module in facts.network.called:
        if (
            module.is_leaf
            or not module.inputs
            or not module.name
            or "float" not in facts.dtype(module.inputs[0])
        ):
            continue
        into, out = module.inputs[0], module.outputs[0]
        if facts.shape(into) != facts.shape(out) or not _adds(
            facts, module.name, into.site, out.site
        ):
            continue
        yield from _silent(facts, module)
        before, after = typical(facts.stat(into, "rms")), typical(facts.stat(out, "rms"))
        strength = 0.85 * rising_log(after / max(before, 1e-12), 15.0, 300.0)
        if strength and before > 1e-3:
            yield Suspicion(
                where=module.name,
                strength=strength,
                step=int(facts.steps[0]),
                why=f"{module.name} adds to what it is given: {said(before)} goes in and "
                f"{said(after)} comes out. "
                "The shortcut is drowned by the branch.",
                try_this="Scale the branch down, or start its last layer at zero.",
                evidence=(facts.evidence(out, "rms"),),
            )


def _silent(facts: Facts, module: Module) -> Iterator[Suspicion]:
    """A branch that changes nothing from the first step to the last, and has no way to grow."""
    into, out = module.inputs[0], module.outputs[0]
    size = facts.stat(into, "rms")
    added = np.maximum(
        np.abs(facts.stat(out, "rms") - size),
        np.abs(facts.stat(out, "mean") - facts.stat(into, "mean")),
    )
    share = float(np.nanmax(added / size, initial=0.0))
    inside = [m for m in facts.network.modules.values() if m.name.startswith(f"{module.name}.")]
    parameters = [p for m in (module, *inside) for p in m.parameters]
    gates = [p for p in parameters if float(np.nanmin(facts.stat(p, "rms"), initial=1.0)) < 1e-3]
    strength = 0.9 * rising_log(share, 1e-3, 1e-4)
    if strength and parameters and not gates and facts.last_step >= 20:
        yield Suspicion(
            where=module.name,
            strength=strength,
            step=int(facts.steps[0]),
            why=f"{module.name} adds to what it is given, but never more than {said(share)} of "
            "it, in any recorded step. The branch has no say, and its layers hardly learn.",
            try_this="Check the factor of the branch; to start small, make it a parameter.",
            evidence=(facts.evidence(into, "rms"), facts.evidence(out, "rms")),
        )


def _adds(facts: Facts, name: str, into: int, out: int) -> bool:
    """Whether the output was made from the input itself beside what is inside."""
    behind = facts.predecessors.get(out, [])
    return into in behind and len(behind) > 1


RULE = Rule(
    fault="residual_imbalance",
    meaning="The branch of a residual block is far larger than its shortcut, or next to nothing.",
    check=check,
    thresholds={
        "growth over a block": Threshold(15.0, "healthy blocks have 1 to 2"),
        "change over a block": Threshold(1e-3, "a branch that is used adds a tenth and more"),
    },
    causes=("activation_explosion", "exploding_gradient"),
)
