"""The functional calls of a run as the rules see them, and what a loss compares."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

_NO_LOSSES: Final = frozenset({"sub", "subtract"})
LOSSES: Final = frozenset({"cross_entropy", "kl_div", "binary_cross_entropy"}) | {
    "binary_cross_entropy_with_logits"
}


@dataclass(frozen=True)
class FunctionalCall:
    """A call of one of torch's functions."""

    step: int
    iteration: int
    order: int
    function: str
    module: str
    arguments: dict[str, Any]
    result: Any
    source: str
    code: str

    @property
    def name(self) -> str:
        """The function's last name, without the mark of working in place."""
        last = self.function.rpartition(".")[2]
        return last if last.startswith("clip_") else last.rstrip("_")

    @property
    def is_loss(self) -> bool:
        """Whether it is one of torch's loss functions."""
        return self.name in LOSSES or self.name.endswith("_loss")

    @property
    def is_comparison(self) -> bool:
        """Whether it is a loss, or what the network says minus what it should say."""
        return self.is_loss or self.name in _NO_LOSSES

    def tensor(self, name: str) -> dict[str, Any]:
        """What is known of an argument that is a tensor; nothing if it is none."""
        told = self.arguments.get(name)
        return told if isinstance(told, dict) else {}

    @cached_property
    def prediction(self) -> dict[str, Any]:
        """The side of a comparison that the network made."""
        one, other = self._sides
        return one if one.get("requires_grad") or not other.get("requires_grad") else other

    @cached_property
    def target(self) -> dict[str, Any]:
        """The side of a comparison that the network should meet."""
        one, other = self._sides
        return other if self.prediction is one else one

    @property
    def _sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.tensor("input"), self.tensor("target" if self.is_loss else "other")

    @property
    def value(self) -> float | None:
        """The result, where it is one number."""
        told = self.result
        if isinstance(told, dict) and told.get("min") is not None and told["min"] == told["max"]:
            return float(told["min"])
        return None

    @property
    def place(self) -> str:
        """The source line as a person would say it."""
        return f"{self.source}: {self.code.strip()}" if self.source else ""


def made_by(told: dict[str, Any]) -> str:
    """What made a tensor, without autograd's ending.

    >>> made_by({"made_by": "SoftmaxBackward0"}), made_by({})
    ('Softmax', '')
    """
    return str(told.get("made_by", "")).partition("Backward")[0].lstrip("_")


def parse_calls(rows: list[dict[str, Any]]) -> list[FunctionalCall]:
    """The rows of the table `calls`; one that cannot be read is left out."""
    found = []
    for row in rows:
        try:
            arguments, result = json.loads(row["arguments"]), json.loads(row["result"])
        except ValueError:
            continue
        if isinstance(arguments, dict):
            named = {key: row[key] for key in ("step", "iteration", "order", "function", "module")}
            found.append(
                FunctionalCall(
                    **named,
                    arguments=arguments,
                    result=result,
                    source=row["source"],
                    code=row["code"],
                )
            )
    return found


def label_counts(calls: list[FunctionalCall]) -> Counter[int]:
    """How often each whole number is there among the targets of these calls."""
    counts: Counter[int] = Counter()
    for call in calls:
        for value, count in call.target.get("counts", ()):
            counts[value] += count
    return counts


def chance_level(call: FunctionalCall, counts: Counter[int]) -> float | None:
    """The loss of the best answer that does not look at the input; None if it cannot be told."""
    target, name = call.target, call.name
    if call.arguments.get("reduction", "mean") != "mean":
        return None
    std, mean = target.get("std"), target.get("mean")
    if name in ("cross_entropy", "nll_loss") and "int" in str(target.get("dtype", "")):
        total = sum(count for value, count in counts.items() if value >= 0)
        shares = [count / total for value, count in counts.items() if value >= 0 and count]
        if len(shares) > 1:
            # What few labels show is less varied than what they were drawn from: Miller and Madow.
            unseen = (len(shares) - 1) / (2 * total)
            return float(unseen - sum(share * math.log(share) for share in shares))
        classes = call.prediction.get("shape", [0, 0])
        return math.log(classes[1]) if len(classes) > 1 and classes[1] > 1 else None
    if name.startswith("binary_cross_entropy") and mean is not None and 0 < mean < 1:
        return float(-(mean * math.log(mean) + (1 - mean) * math.log(1 - mean)))
    if std is None:
        return None
    scale = {"mse_loss": std * std, "l1_loss": 0.8 * std}.get(name)
    return float(scale) if scale else None
