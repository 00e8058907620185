"""Labels that do not fit the inputs."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall, label_counts
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.sequence import vocabularies
from backlight.diagnosis.strength import said
from backlight.diagnosis.updates import typical_update
from backlight.schema import Evidence

_CLASSES = frozenset({"cross_entropy", "nll_loss"})


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at which labels there are, and whether anything at all is learned from them."""
    losses = [c for c in facts.comparisons if c.name in _CLASSES]
    counts = label_counts(losses)
    total = sum(counts.values())
    if losses and total >= 32:
        shape = losses[0].prediction.get("shape", [0, 0])
        classes = shape[1] if len(shape) > 1 else 0
        present = sorted(v for v in counts if v >= 0)
        if len(present) == 1 and classes > 1:
            yield _found(
                0.85,
                losses[0].step,
                f"All {total} labels that were seen are {present[0]}, of {classes} "
                "classes. There is nothing to tell apart.",
                "Check how labels are read, and that the data is shuffled: it may begin with them.",
                facts.call_evidence(losses[0], _lowest, "lowest label"),
            )
        elif classes not in vocabularies(facts) and _is_shifted(present, classes, total):
            # Of tokens, the first is often one that is never asked for, such as padding.
            yield _found(
                0.8,
                losses[0].step,
                f"The labels that were seen go from {present[0]} to {present[-1]} for "
                f"{classes} outputs; 0 is never among them. They seem to be counted from 1.",
                "Subtract 1 from the labels, and use one output for each class.",
                facts.call_evidence(losses[0], _lowest, "lowest label"),
            )
    yield from _unlearnable(facts)


def _is_shifted(present: list[int], classes: int, total: int) -> bool:
    complete = present == list(range(1, len(present) + 1))
    return complete and len(present) == classes - 1 and 2 <= classes <= 64 and total >= 8 * classes


def _lowest(call: FunctionalCall) -> float | None:
    return min((value for value, _ in call.target.get("counts", ()) if value >= 0), default=None)


def _found(strength: float, step: int, why: str, advice: str, evidence: Evidence) -> Suspicion:
    return Suspicion(
        where="data",
        strength=strength,
        step=step,
        why=why,
        try_this=advice,
        evidence=(evidence,),
    )


def _unlearnable(facts: Facts) -> Iterator[Suspicion]:
    """Everything moves, and the loss stays at that of guessing."""
    is_lost = facts.loss.broke_at is not None
    if facts.chance is None or facts.last_step < 60 or not facts.loss.is_known or is_lost:
        return
    learned = facts.learned
    update = typical_update(facts)
    steady = facts.loss.noise < 0.4
    half = facts.loss.smooth[len(facts.loss.smooth) // 2 :]
    third = max(1, len(half) // 3)
    is_flat = abs(float(half[:third].mean() / half[-third:].mean()) - 1) < 0.02
    if learned is not None and -0.4 < learned < 0.04 and 5e-4 < update < 0.05 and steady:
        yield Suspicion(
            where="data",
            strength=0.56 if learned < 0.03 and is_flat and facts.last_step >= 149 else 0.4,
            step=int(facts.steps[-1]),
            why=f"After {facts.last_step + 1} steps the loss is {said(facts.loss.last)}, and "
            f"{said(facts.chance)} "
            "for one who guesses without looking at the input, though gradients flow and weights "
            "move. "
            "The labels seem to have nothing to do with the inputs.",
            try_this="Check that inputs and labels stay together when they are shuffled, and "
            "train on a "
            "handful of samples until they are learned by heart.",
            evidence=(facts.loss_evidence(),),
        )


RULE = Rule(
    fault="data_labels",
    meaning="Labels are wrong: shifted, all the same, or not those of their inputs.",
    check=check,
    thresholds={
        "loss to that of guessing": Threshold(0.96, "set by hand; the suite does not contradict it")
    },
)
