"""Samples of a batch that leak into each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look for reshapes that swap dimensions, and for sequence modules that take time for batch."""
    batches = _batches(facts)
    yield from _turned(facts, batches)
    yield from _batch_as_time(facts, batches)


def _batches(facts: Facts) -> set[int]:
    shapes = [c.target.get("shape") for c in facts.comparisons]
    firsts = {shape[0] for shape in shapes if shape and isinstance(shape[0], int)}
    return {size for size in {facts.batch_size, *firsts} if size and size > 1}


def _turned(facts: Facts, batches: set[int]) -> Iterator[Suspicion]:
    for call in facts.calls:
        if call.name not in ("view", "reshape"):
            continue
        before, after = call.tensor("input").get("shape", []), (call.result or {}).get("shape", [])
        if len(before) < 2 or not after or not batches & set(before[:2]):
            continue
        if before[0] in accumulate(after, mul):
            continue  # the first dimension is split in several, which keeps samples together
        yield Suspicion(
            where=call.module or _root(facts),
            strength=0.88,
            step=call.step,
            why=f"{call.name} makes a tensor of shape {before} one of shape {after}, which reads "
            "the numbers in the "
            "same order: it does not swap dimensions. Values of one sample end up in others.",
            try_this=f"Use transpose or permute to swap dimensions, then reshape: {call.place}",
            evidence=(
                facts.call_evidence(call, _first_size, f"first dimension that {call.name} gives"),
            ),
            source=call.source,
        )
        return


def _first_size(call: FunctionalCall) -> float | None:
    shape = (call.result or {}).get("shape", [])
    return shape[0] if shape and isinstance(shape[0], int) else None


def _root(facts: Facts) -> str:
    return next(iter(facts.network.modules), "")


def _batch_as_time(facts: Facts, batches: set[int]) -> Iterator[Suspicion]:
    targets = {
        shape[0]
        for c in facts.comparisons
        if (shape := c.target.get("shape")) and isinstance(shape[0], int)
    }
    for module in facts.network.called:
        if module.told.get("batch_first") is not False or not module.inputs:
            continue
        around = [
            m
            for m in facts.network.modules.values()
            if m.name and module.name.startswith(m.name + ".")
        ]
        if any(m.told.get("batch_first") is not None for m in around):
            continue
        shape = facts.shape(module.inputs[0])
        if len(shape) == 3 and shape[0] in batches & targets and shape[1] not in targets:
            yield Suspicion(
                where=module.name,
                strength=0.88,
                step=int(facts.steps[0]),
                why=f"{module.name} has batch_first=False and reads {list(shape)}, of which the "
                "first dimension, "
                f"{shape[0]}, is the batch. It takes the batch for time, and mixes the samples.",
                try_this="Use batch_first=True, or transpose(0, 1) the input.",
                evidence=(facts.evidence(module.inputs[0], "batch_std"),),
            )
            return


RULE = Rule(
    fault="cross_sample_mixing",
    meaning="The answer for one sample depends on the other samples of its batch.",
    check=check,
    thresholds={"dimension": Threshold(0, "a reshape keeps the batch where it is")},
    causes=("lr_too_low", "data_labels", "missing_nonlinearity"),
)
