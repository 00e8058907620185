"""NaN or infinity: the first place where finite numbers made one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from backlight.diagnosis.calls import FunctionalCall, made_by
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.series import Real
from backlight.schema import QUANTITIES, Site

_SINGULAR = {"log": 0.0, "log2": 0.0, "log10": 0.0, "sqrt": 0.0, "rsqrt": 0.0, "reciprocal": 0.0}
_OWNED = frozenset({"parameter", "buffer", "optimizer"})
_APPLIED = (QUANTITIES.index("grad_applied"), QUANTITIES.index("update"))
_RARE = 0.1
_BREAKS_BACKWARD = frozenset({"sqrt", "pow", "acos", "asin"})


def check(facts: Facts) -> Iterator[Suspicion]:
    """Find the first observation that is not finite, and the operation behind it."""
    broken = _broken(facts)
    step = facts.loss.broke_at
    if broken is None:
        if step is not None:
            yield _of_the_loss(facts, step)
        return
    row, column = broken
    site = facts.sites[int(facts.series.sites[row])]
    quantity = QUANTITIES[int(facts.series.quantities[row])]
    at = int(facts.steps[column])
    call = singular_call(facts)
    is_late = column > 0 and (facts.steps[column] - facts.steps[column - 1]) > 1
    since = (
        "" if not is_late else f" (the step before that was looked at is {facts.steps[column - 1]})"
    )
    where = _where(site, quantity, call)
    operation = f" {_operation(call)}" if call is not None else ""
    yield Suspicion(
        where=where,
        strength=0.35 if _was_caught(facts) else 0.93,
        step=at if step is None else min(at, step),
        why=f"The {_kind(quantity)} at {site.name} is the first that is not finite, at step "
        f"{at}{since}."
        f"{operation or ' All that was seen before it in that step was finite.'}",
        try_this=_advice(call),
        evidence=(facts.evidence(site, "nans", quantity), facts.evidence(site, "infs", quantity)),
        source="" if call is None else call.source,
    )


def _broken(facts: Facts) -> tuple[int, int] | None:
    """The row and column of the first observation that is not finite."""
    nans = np.nan_to_num(facts.series.values["nans"])
    infs = np.nan_to_num(facts.series.values["infs"])
    bad = ((nans + infs) > 0) & ~_masks(facts, nans, infs)[:, None]
    columns = np.flatnonzero(bad.any(axis=0))
    if not len(columns):
        return None
    rows = np.flatnonzero(bad[:, columns[0]])
    return int(rows[np.argmin(facts.series.orders[rows])]), int(columns[0])


def _was_caught(facts: Facts) -> bool:
    """Whether it came up seldom, never got into the weights, and training went on without it.

    So it is where a scaler of gradients, or the user, leaves out an update that is not finite.
    """
    lost = facts.series.values["nans"] + facts.series.values["infs"] > 0
    owned = [
        quantity in _APPLIED or (quantity == 0 and facts.sites[int(site)].tensor_class in _OWNED)
        for site, quantity in zip(facts.series.sites, facts.series.quantities, strict=True)
    ]
    columns = np.asarray(lost.any(axis=0))
    is_rare = columns.sum() <= max(1, _RARE * len(columns)) and not columns[-1]
    is_over = len(facts.loss.values) == 0 or bool(np.isfinite(facts.loss.values[-1]))
    return bool(is_rare and is_over and not lost[np.array(owned, bool)].any())


def _masks(facts: Facts, nans: Real, infs: Real) -> npt.NDArray[np.bool_]:
    """Which tensors hold infinity on purpose, as a mask of attention does: from the first time on.

    They never hold NaN, and the loss is finite although they are there.
    """
    seen = ~np.isnan(facts.series.values["count"])
    always = ((infs > 0) | ~seen).all(axis=1) & (nans == 0).all(axis=1)
    is_harmless = len(facts.loss.finite) > 0 and facts.loss.broke_at != facts.loss.steps[0]
    return np.asarray(always & is_harmless)


def _of_the_loss(facts: Facts, step: int) -> Suspicion:
    call = singular_call(facts)
    return Suspicion(
        where="loss" if call is None or not call.module else call.module,
        strength=0.9,
        step=step,
        why=f"The loss is not finite from step {step} on. No recorded step has a value that is not "
        f"finite, so the place is not known.{' ' + _operation(call) if call else ''}",
        try_this=_advice(call),
        evidence=(facts.loss_evidence(),),
        source="" if call is None else call.source,
    )


def _kind(quantity: str) -> str:
    return {"value": "value", "grad": "gradient", "grad_applied": "gradient"}.get(
        quantity, "update"
    )


def _where(site: Site, quantity: str, call: FunctionalCall | None) -> str:
    if call is not None:
        return call.module or "loss"
    if site.kind == "loss" or site.name.startswith("(loss)"):
        return "loss"
    return site.module or ("loss" if quantity == "grad" else site.module)


def singular_call(facts: Facts) -> FunctionalCall | None:
    """A call of a function at a place where it, or its gradient, has no value."""
    calls = [call for call in facts.calls if _is_singular(call)]
    return calls[-1] if calls else None


def _is_singular(call: FunctionalCall) -> bool:
    told, result = call.tensor("input"), call.result if isinstance(call.result, dict) else {}
    if call.name in ("div", "divide", "true_divide"):
        other = call.tensor("other")
        return bool(other.get("zeros")) and bool(
            other.get("requires_grad") or result.get("nans") or result.get("infs")
        )
    if result.get("infs") or result.get("nans"):
        return not (told.get("infs") or told.get("nans"))
    needs_grad = bool(told.get("requires_grad"))
    if call.name in _SINGULAR:
        return bool(told.get("zeros")) and needs_grad
    if call.name in _BREAKS_BACKWARD and call.name == "pow":
        return bool(told.get("zeros")) and needs_grad
    return False


def _operation(call: FunctionalCall) -> str:
    told = call.tensor("other") or call.tensor("input")
    zeros = f", {told['zeros']} of them exactly 0" if told.get("zeros") else ""
    maker = f", made by {made_by(told)}" if made_by(told) else ""
    ends = [told.get("min"), told.get("max")]
    least, most = (f"{end:.4g}" if isinstance(end, (int, float)) else str(end) for end in ends)
    return (
        f"{call.name} was called with numbers from {least} to {most}{zeros}"
        f"{maker}, where it or its gradient has no value ({call.source})."
    )


def _advice(call: FunctionalCall | None) -> str:
    if call is None:
        return "Look at the inputs of this place in that step; record with every=1 or blackbox=10."
    return (
        f"Keep the argument of {call.name} away from 0, with clamp(min=1e-8) or + 1e-8: "
        f"{call.place}"
    )


RULE = Rule(
    fault="nonfinite",
    meaning="NaN or infinity, and the first place that made it from finite numbers.",
    check=check,
    thresholds={"elements": Threshold(1, "none is right")},
)
