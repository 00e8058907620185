"""A residual branch that drowns its shortcut."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.facts import Facts
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


def _adds(facts: Facts, name: str, into: int, out: int) -> bool:
    """Whether the output was made from the input itself beside what is inside."""
    behind = facts.predecessors.get(out, [])
    return into in behind and len(behind) > 1


RULE = Rule(
    fault="residual_imbalance",
    meaning="The branch of a residual block is far larger than its shortcut.",
    check=check,
    thresholds={"growth over a block": Threshold(15.0, "healthy blocks have 1 to 2")},
    causes=("activation_explosion", "exploding_gradient"),
)
