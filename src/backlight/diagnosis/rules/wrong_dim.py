"""A softmax over the wrong dimension."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold


def check(facts: Facts) -> Iterator[Suspicion]:
    """Look at the dimension and the shape of each softmax."""
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
