"""A softmax over the wrong dimension, that of cross-entropy included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.calls import FunctionalCall, made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the dimension and the shape of each softmax, that of cross-entropy included."""
    yield from _over_time(facts)
    sizes = {facts.batch_size, *(_first(c.target) for c in facts.comparisons)} - {None}
    for call in facts.calls:
        if call.name not in ("softmax", "log_softmax", "normalize", "softmin", "gumbel_softmax"):
            continue
        found = _check(call, sizes)
        if found is not None:
            strength, why = found
            yield Suspicion(
                where=call.module or "loss",
                strength=strength,
                step=call.step,
                why=why,
                try_this=f"Use dim=-1: {call.place}",
                evidence=(
                    facts.call_evidence(call, _added, f"numbers that {call.name} runs over"),
                ),
                source=call.source,
            )
            return


def _over_time(facts: Facts) -> Iterator[Suspicion]:
    """Cross-entropy takes dimension 1 for the classes; a linear layer has them in the last one.

    Only where there are as many positions as classes can that go wrong without an error.
    """
    for call in facts.calls:
        shape, target = call.prediction.get("shape", []), call.target.get("shape", [])
        is_square = len(shape) == 3 and shape[1] == shape[2] > 1 and target == shape[:2]
        if call.name != "cross_entropy" or not is_square:
            continue
        layer = next((m for m in facts.network.layers if _made(facts, m, call)), None)
        if layer is not None:
            yield Suspicion(
                where="loss",
                strength=0.85,
                step=call.step,
                why=f"cross_entropy is given what {layer.name} made, of shape {shape}, and takes "
                "dimension 1 for the classes; a linear layer has them in the last one. There "
                f"happen to be {shape[1]} of both, so nothing complained.",
                try_this=f"Give it logits.transpose(1, 2): {call.place}",
                evidence=(facts.loss_evidence(),),
                source=call.source,
            )
            return


def _made(facts: Facts, layer: Module, call: FunctionalCall) -> bool:
    """Whether a loss is given a linear layer's output as it is: not transposed."""
    is_as_made = call.prediction.get("is_turned") is False
    if layer.module_class != "Linear" or not is_as_made or made_by(call.prediction) == "Clone":
        return False
    column = np.flatnonzero(facts.steps == call.step)
    for site in layer.outputs if len(column) else ():
        seen = [facts.stat(site, name)[column[0]] for name in ("min", "max", "mean")]
        told = [call.prediction.get(name) for name in ("min", "max", "mean")]
        if None not in told and np.allclose(seen, np.array(told, np.float64), rtol=1e-4):
            return True
    return False


def _added(call: FunctionalCall) -> float | None:
    """How many numbers a softmax runs over."""
    shape, dim = call.tensor("input").get("shape", []), call.arguments.get("dim")
    dim = 0 if dim is None and len(shape) == 3 else dim
    is_inside = isinstance(dim, int) and -len(shape) <= dim < len(shape)
    return shape[dim] if is_inside else None


def _first(told: dict[str, list[int]]) -> int | None:
    shape = told.get("shape")
    return shape[0] if shape else None


def _check(call: FunctionalCall, batches: set[int | None]) -> tuple[float, str] | None:
    shape, dim = call.tensor("input").get("shape", []), call.arguments.get("dim")
    if dim is None and call.name != "normalize" and len(shape) == 3:
        dim = 0  # what torch takes where nothing is said
    if not isinstance(dim, int) or len(shape) < 2 or not -len(shape) <= dim < len(shape):
        return None
    place = dim % len(shape)
    if place == 0 and shape[0] in batches and shape[0] > 1:
        return (
            0.92,
            (
                f"{call.name} runs over dimension 0 of a tensor of shape {shape}, which is the "
                "batch. "
                "Each sample's result depends on the other samples."
            ),
        )
    is_square = len(shape) >= 3 and shape[-1] == shape[-2] and shape[-1] > 1
    if is_square and place == len(shape) - 2 and call.name == "softmax":
        return (
            0.8,
            (
                f"{call.name} runs over dimension {dim} of attention scores of shape {shape}, so "
                "that "
                "the weights of "
                "one query do not add up to 1."
            ),
        )
    return None


RULE = Rule(
    fault="wrong_dim",
    meaning="A softmax or normalisation runs over the batch or the queries.",
    check=check,
    thresholds={"dimension": Threshold(0, "the batch is no dimension to normalise over")},
    causes=(
        "vanishing_gradient",
        "lr_too_low",
        "data_labels",
        "cross_sample_mixing",
        "loss_output_mismatch",
        "attention_collapse",
    ),
)
