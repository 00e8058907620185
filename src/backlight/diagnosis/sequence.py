"""What the rules ask of models of sequences."""

from __future__ import annotations

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts


def self_attention(facts: Facts) -> list[FunctionalCall]:
    """The calls in which positions of a sequence look at each other."""
    found = []
    for call in facts.calls:
        if call.name == "scaled_dot_product_attention":
            query, key = call.tensor("query").get("shape"), call.tensor("key").get("shape")
            if query and key and query[-2] == key[-2] > 1:
                found.append(call)
        elif call.name == "multi_head_attention_forward":
            query, key = call.tensor("query").get("shape"), call.tensor("key").get("shape")
            if query and query == key and query[0] > 1:
                found.append(call)
        elif call.name == "softmax":
            shape, dim = call.tensor("input").get("shape", []), call.arguments.get("dim")
            is_last = dim in (-1, len(shape) - 1)
            if len(shape) >= 3 and shape[-1] == shape[-2] > 1 and is_last:
                found.append(call)
    return found


def vocabularies(facts: Facts) -> set[int]:
    """How many tokens each embedding knows that is used."""
    return {
        int(m.extra.partition(",")[0])
        for m in facts.network.of_class(r"^Embedding$")
        if m.extra.partition(",")[0].isdigit() and m.is_called
    }


def language_model(facts: Facts) -> int | None:
    """The size of the vocabulary, if the network predicts a token of it at each position."""
    sizes = vocabularies(facts)
    for call in facts.comparisons:
        if call.name not in ("cross_entropy", "nll_loss"):
            continue
        shape, target = call.prediction.get("shape", []), call.target
        if len(shape) < 2 or shape[1] not in sizes or target.get("min", 0) < 0:
            continue
        positions = _positions(facts)
        count = 1
        for size in target.get("shape", ()):
            count *= size
        if positions is not None and count >= 0.5 * positions:
            return int(shape[1])
    return None


def _positions(facts: Facts) -> int | None:
    """How many tokens the model is given."""
    for site in facts.model_inputs:
        shape = facts.shape(site)
        if "int" in facts.dtype(site) and len(shape) == 2:
            return shape[0] * shape[1]
    return None
