"""A network that sees what it should predict."""

from __future__ import annotations

from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.sequence import language_model, self_attention


def check(facts: Facts) -> Iterator[Suspicion]:
    """In a model of the next token, look for attention or recurrence that reads the future."""
    vocabulary = language_model(facts)
    if vocabulary is None or facts.network.of_class(r"Bert|Roberta|Electra|MaskedLM"):
        return
    attention = self_attention(facts)
    if attention and not any(_is_masked(call) for call in attention):
        call = attention[0]
        yield Suspicion(
            where=call.module,
            strength=0.85 if facts.loss.gain > 0.5 else 0.65 if facts.loss.gain > 0.1 else 0.45,
            step=call.step,
            why=f"The network predicts tokens out of {vocabulary} at each position, and "
            f"{call.name} in "
            f"{call.module or 'the model'} has no mask: a position sees those after it. "
            f"The loss is {facts.loss.last:.3g} at the end, by copying.",
            try_this=f"Mask the future: is_causal=True, or an upper triangular mask: {call.place}",
            source=call.source,
        )
    for module in facts.network.of_class(r"^(LSTM|GRU|RNN)$"):
        if module.setting("bidirectional") == "True" and module.is_called:
            yield Suspicion(
                where=module.name,
                strength=0.8,
                step=int(facts.steps[0]),
                why=f"The network predicts tokens out of {vocabulary} at each position, and "
                f"{module.name} also "
                "reads backwards: a position sees those after it.",
                try_this="Use bidirectional=False for predicting the next token.",
            )


def _is_masked(call: FunctionalCall) -> bool:
    if call.arguments.get("is_causal") is True or isinstance(call.arguments.get("attn_mask"), dict):
        return True
    result = call.result if isinstance(call.result, dict) else {}
    # Of a softmax over scores, weights of exactly 0 are masked ones.
    return call.name == "softmax" and result.get("min") == 0.0


RULE = Rule(
    fault="information_leak",
    meaning="The network can see what it is to predict, as attention without a causal mask.",
    check=check,
    thresholds={"masks": Threshold(1, "a model of the next token masks the future")},
)
