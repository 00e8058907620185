"""Attention over a sequence whose order nothing tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backlight.diagnosis.facts import Facts
from backlight.diagnosis.network import Module
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.sequence import self_attention
from backlight.schema import Site


def check(facts: Facts) -> Iterator[Suspicion]:
    """Does what follows the embedding read the embedding as it is?"""
    if not self_attention(facts):
        return
    embeddings = [m for m in facts.network.of_class(r"^Embedding$") if m.outputs]
    recurrent = facts.network.of_class(r"^(LSTM|GRU|RNN|Conv1d)$")
    if len(embeddings) != 1 or any(m.is_called for m in recurrent) or _is_told(facts):
        return
    module = embeddings[0]
    shape = facts.shape(module.outputs[0])
    readers = [m for m in facts.network.called if m.order > module.order and m.inputs]
    same = [m for m in readers if _is_scaled(facts, module.outputs[0], m.inputs[0])]
    if len(shape) == 3 and shape[1] > 2 and same:
        yield Suspicion(
            where=module.name,
            strength=0.84,
            step=int(facts.steps[0]),
            why=f"What {module.name} gives goes into {same[0].name} with nothing added, and "
            "attention treats all "
            f"{shape[1]} positions alike. The network cannot tell the order of its input.",
            try_this="Add a positional embedding to the token embedding.",
            evidence=(facts.evidence(module.outputs[0], "rms"),),
        )


def _is_told(facts: Facts) -> bool:
    words = ("pos", "rotary", "rope", "alibi", "wpe", "relative")
    names = [m.name.lower() for m in facts.network.modules.values()]
    names += [s.place.lower() for m in facts.network.modules.values() for s in _owned(m)]
    return any(word in name.rpartition(".")[2] for name in names for word in words)


def _owned(module: Module) -> list[Site]:
    return [*module.parameters, *module.buffers]


def _is_scaled(facts: Facts, one: Site, other: Site) -> bool:
    """Whether one tensor is the other, or a multiple of it: then nothing was added."""
    if facts.shape(one) != facts.shape(other):
        return False
    ratios = [facts.stat(other, s) / facts.stat(one, s) for s in ("rms", "max", "min", "abs_mean")]
    found = np.array(ratios)
    spread = np.nanmax(np.abs(found - found[0]))
    return bool(np.isfinite(found).any() and spread < 1e-3 * np.nanmax(np.abs(found)))


RULE = Rule(
    fault="positional_encoding",
    meaning="Attention over tokens without anything that tells their order.",
    check=check,
    thresholds={
        "difference": Threshold(1e-3, "a positional embedding changes what it is added to")
    },
    causes=("data_labels",),
)
