"""Several losses, of which one drowns the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import rising_log, said

_SUSPECT, _SURE = 100.0, 2000.0


def check(facts: Facts) -> Iterator[Suspicion]:
    """Which part of the loss that is differentiated comes from which loss function?"""
    losses = [c for c in facts.calls if c.is_loss and not c.module and c.value is not None]
    sources = list(dict.fromkeys(c.source + c.name for c in losses))
    totals = {
        c.step: c.arguments["input"]["min"]
        for c in facts.calls
        if c.name == "backward"
        and isinstance(c.arguments.get("input"), dict)
        and isinstance(c.arguments["input"].get("min"), (int, float))
    }
    if len(sources) < 2 or len({c.source for c in facts.calls if c.name == "backward"}) != 1:
        return
    rows = []
    for step, total in totals.items():
        values = {c.source + c.name: c.value for c in losses if c.step == step}
        if len(values) == len(sources) and np.isfinite(total):
            rows.append(([values[s] for s in sources], total))
    if len(rows) < 2:
        return
    terms, total_values = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    shares = _shares(terms, total_values)
    if shares is None:
        return
    order = np.argsort(shares)
    ratio = float(shares[order[-1]] / max(shares[order[0]], 1e-12))
    strength = rising_log(ratio, _SUSPECT, _SURE)
    if strength:
        calls = [next(c for c in losses if c.source + c.name == sources[at]) for at in order]
        yield Suspicion(
            where="loss",
            strength=strength,
            step=losses[0].step,
            why=f"{calls[-1].name} makes up {said(ratio)} times as much of the loss as "
            f"{calls[0].name}. "
            "The smaller term is hardly trained.",
            try_this="Weigh the terms so that they are of like size at the start: "
            f"{calls[-1].place}",
            evidence=tuple(
                facts.call_evidence(each, lambda c: c.value, f"what {each.name} gives")
                for each in (calls[-1], calls[0])
            ),
            source=calls[-1].source,
        )


def _shares(terms: np.ndarray, totals: np.ndarray) -> np.ndarray | None:
    """What each term contributes: as it is if they add up, else by the weights that explain it."""
    mean = np.abs(terms).mean(axis=0)
    if np.allclose(terms.sum(axis=1), totals, rtol=0.02):
        return np.asarray(mean)
    if len(totals) < terms.shape[1]:
        return None
    weights, *_ = np.linalg.lstsq(terms, totals, rcond=None)
    if not np.allclose(terms @ weights, totals, rtol=0.02) or (weights < 0).any():
        return None
    return np.asarray(mean * np.abs(weights))


RULE = Rule(
    fault="loss_term_imbalance",
    meaning="One term of the loss is so large that the others are not trained.",
    check=check,
    thresholds={"ratio of terms": Threshold(_SUSPECT, "weak penalties have 10 to 50")},
    causes=("lr_too_high", "lr_too_low", "exploding_gradient", "divergence", "posterior_collapse"),
)
