"""Modules in the wrong mode: evaluation while training, or training while evaluating."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts, thinned
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real
from backlight.diagnosis.strength import percent


def check(facts: Facts) -> Iterator[Suspicion]:
    """Which modules were in evaluation mode in training steps, and for how long?"""
    yield from _left_in_evaluation(facts)
    yield from _always_dropping(facts)


def _left_in_evaluation(facts: Facts) -> Iterator[Suspicion]:
    spans = [
        (
            step,
            names,
            (facts.modes[at + 1][0] if at + 1 < len(facts.modes) else facts.last_step + 1),
        )
        for at, (step, names) in enumerate(facts.modes)
    ]
    total = facts.last_step + 1
    affected: dict[str, tuple[int, int]] = {}
    for start, names, end in spans:
        for name in names:
            first, length = affected.get(name, (start, 0))
            affected[name] = first, length + end - start
    live = {n: v for n, v in affected.items() if _matters(facts, n)}
    if not live:
        return
    name = max(live, key=lambda n: live[n][1])
    start, length = live[name]
    share = length / max(1, total)
    if share < 0.1:
        return
    told = ", ".join(list(live)[:4])
    yield Suspicion(
        where=name,
        strength=0.9 if share > 0.4 else 0.7,
        step=start,
        why=f"{told} {'are' if len(live) > 1 else 'is'} in evaluation mode in {percent(share)} "
        "of the training "
        f"steps, from step {start} on. Dropout does nothing there, and batch norm uses its old "
        "statistics.",
        try_this="Call model.train() before training goes on after an evaluation.",
        evidence=(
            thinned("", facts.steps, _is_off(facts, name), f"whether {name} is in evaluation mode"),
        ),
    )


def _is_off(facts: Facts, name: str) -> Real:
    """1 at the steps at which a module is in evaluation mode, else 0."""
    starts = np.array([step for step, _ in facts.modes])
    flags = np.array([0.0, *(float(name in names) for _, names in facts.modes)])
    return flags[np.searchsorted(starts, facts.steps, side="right")]


def _matters(facts: Facts, name: str) -> bool:
    """Dropout among what trains, or batch norm whose own weights are trained."""
    module = facts.network.modules.get(name)
    if module is None or not module.is_called:
        return False
    if "Norm" in module.module_class:
        return facts.is_trained(module) or not module.parameters
    around = name.rpartition(".")[0]
    beside = [m for m in facts.network.with_parameters() if m.name.startswith(around)]
    return any(facts.is_trained(m) for m in beside)


def _always_dropping(facts: Facts) -> Iterator[Suspicion]:
    for call in facts.calls:
        is_plain = call.name.endswith("dropout") and "dropout(" in call.code
        own = facts.network.modules.get(call.module)
        is_functional = own is not None and "Drop" not in own.module_class
        is_said = (
            "training" in call.code or "self.dropout(" in call.code or "self.drop" in call.code
        )
        is_open = call.code.count("(") > call.code.count(")")  # goes on in the next line
        if (
            is_plain
            and is_functional
            and not is_said
            and not is_open
            and call.arguments.get("training")
        ):
            yield Suspicion(
                where=call.module,
                strength=0.68,
                step=call.step,
                why=f"{call.name} is called in {call.module or 'the model'} without "
                "training=self.training. "
                "It drops in evaluation too.",
                try_this=f"Pass training=self.training, or use nn.Dropout: {call.place}",
                evidence=(
                    facts.call_evidence(
                        call, lambda c: float(bool(c.arguments.get("training"))), "whether it drops"
                    ),
                ),
                source=call.source,
            )
            return


RULE = Rule(
    fault="mode_misuse",
    meaning="Modules are in evaluation mode while training, or drop while evaluating.",
    check=check,
    thresholds={"share of steps": Threshold(0.1, "a single step may be an accident of recording")},
    causes=("nonfinite", "divergence", "activation_explosion"),
)
