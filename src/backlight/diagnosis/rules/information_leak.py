"""A network that sees what it should predict."""

from __future__ import annotations

import math
from collections.abc import Iterator

from backlight.diagnosis.calls import FunctionalCall
from backlight.diagnosis.facts import Facts
from backlight.diagnosis.rule import Rule, Suspicion, Threshold
from backlight.diagnosis.sequence import language_model, self_attention
from backlight.schema import Site


def check(facts: Facts) -> Iterator[Suspicion]:
    """In a model of the next token, look for attention or recurrence that reads the future."""
    vocabulary = language_model(facts)
    if vocabulary is None or facts.network.of_class(r"Bert|Roberta|Electra|MaskedLM"):
        return
    asked = _asked_for(facts)
    if asked is not None and not _looks_back_only(facts):
        return  # what is sorted, turned round or restored has the tokens that are given
    yield from _given_away(facts, vocabulary, asked)
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
            evidence=(facts.loss_evidence(),),
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
                evidence=(facts.loss_evidence(),),
            )


def _asked_for(facts: Facts) -> tuple[Site, list[FunctionalCall]] | None:
    """The tokens that are given, where the targets are those and no others in each step."""
    losses = [c for c in facts.comparisons if c.name in ("cross_entropy", "nll_loss")]
    given = [site for site in facts.model_inputs if "int" in facts.dtype(site)]
    if len(given) != 1:
        return None
    steps = {int(step): at for at, step in enumerate(facts.steps)}
    calls = [c for c in losses if c.step in steps]
    is_same = all(_is_same(facts, given[0], steps[c.step], c) for c in calls)
    return (given[0], calls) if len(calls) >= 3 and is_same else None


def _given_away(
    facts: Facts, vocabulary: int, asked: tuple[Site, list[FunctionalCall]] | None
) -> Iterator[Suspicion]:
    """Targets that are the very tokens that the model is given."""
    if asked is not None:
        site, calls = asked
        yield Suspicion(
            where="data",
            strength=0.85,
            step=calls[0].step,
            why=f"In each of {len(calls)} recorded steps the targets are the tokens of "
            f"{site.name} themselves, out of {vocabulary}: the network is asked for what it "
            "is given, not for what comes next.",
            try_this="Shift them by one: inputs tokens[:, :-1], targets tokens[:, 1:]. "
            f"{calls[0].place}",
            evidence=(facts.evidence(site, "mean"), facts.loss_evidence()),
            source=calls[0].source,
        )


def _looks_back_only(facts: Facts) -> bool:
    attention = self_attention(facts)
    recurrent = facts.network.of_class(r"^(LSTM|GRU|RNN)$")
    one_way = [m for m in recurrent if m.is_called and m.setting("bidirectional") != "True"]
    return any(_is_masked(call) for call in attention) or (not attention and bool(one_way))


def _is_same(facts: Facts, site: Site, column: int, call: FunctionalCall) -> bool:
    told = call.target
    if math.prod(facts.shape(site)) != math.prod(told.get("shape", [0])):
        return False
    pairs = [(facts.stat(site, name)[column], told.get(name)) for name in ("mean", "min", "max")]
    return all(said is not None and math.isclose(seen, said, rel_tol=1e-5) for seen, said in pairs)


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
