"""One class is almost all there is, and the network says only that."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall, label_counts
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.strength import percent, rising

_SUSPECT, _SURE = 0.85, 0.97
_DENSE, _SURELY_DENSE = 0.95, 0.995  # of pixels, most are background


def check(facts: Facts) -> Iterator[Suspicion]:
    """Count the labels that losses are given."""
    losses = {c.source: c for c in facts.calls if c.is_loss}
    for source, call in losses.items():
        share = _majority(facts, call, source)
        weighted = call.arguments.get("weight") or call.arguments.get("pos_weight")
        if share is None or weighted:
            continue
        is_dense = len(call.prediction.get("shape", ())) > 2
        strength = rising(share, *((_DENSE, _SURELY_DENSE) if is_dense else (_SUSPECT, _SURE)))
        if call.arguments.get("reduction") == "none":
            # What is done with each sample's loss, such as weighing, is not seen.
            strength *= 0.3 if facts.loss.gain > 0.5 else 0.6
        if facts.learned is not None and facts.learned > 0.5:
            strength *= 0.4
        if strength and share < 1.0:
            yield Suspicion(
                where="data",
                strength=strength,
                step=call.step,
                why=f"{percent(share)} of the labels that were seen are of one class. "
                "Saying that class always is almost right, so the others are hardly learned.",
                try_this=f"Weigh the classes in the loss, or sample them evenly: {call.place}",
                evidence=(facts.call_evidence(call, _largest, "share of the largest class"),),
                source=source,
            )


def _largest(call: FunctionalCall) -> float | None:
    counts = [count for value, count in call.target.get("counts", ()) if value >= 0]
    return max(counts) / sum(counts) if counts else None


def _majority(facts: Facts, call: FunctionalCall, source: str) -> float | None:
    same = [c for c in facts.calls if c.is_loss and c.source == source]
    if call.name in ("cross_entropy", "nll_loss"):
        counts = label_counts(same)
        total = sum(count for value, count in counts.items() if value >= 0)
        shape = call.prediction.get("shape", [])
        if total < 64 or len(counts) < 2 or len(shape) == 3:
            return None
        return max(counts.values()) / total
    if call.name.startswith("binary_cross_entropy"):
        means = [c.target["mean"] for c in same if c.target.get("mean") is not None]
        is_hard = all(set(dict(c.target.get("counts", []))) <= {0, 1} for c in same)
        shape = call.target.get("shape", [])
        size = 1
        for each in shape:
            size *= each
        width = shape[1] if len(shape) > 1 else 1
        if (
            not means
            or not is_hard
            or not call.target.get("counts")
            or size * len(same) < 64
            or width > 4
        ):
            return None
        share = float(sum(means) / len(means))
        return max(share, 1 - share)
    return None


RULE = Rule(
    fault="class_imbalance",
    meaning="Almost all labels are of one class.",
    check=check,
    thresholds={
        "share of the largest class": Threshold(
            _SUSPECT, "set by hand; the suite does not contradict it"
        ),
        "share of the largest class, of pixels": Threshold(
            _DENSE, "objects cover a tenth of most pictures"
        ),
    },
    causes=("data_labels", "lr_too_low"),
)
