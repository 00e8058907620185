"""A user's anomaly in a run: where it shows, and what goes with it, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from backlight.anomaly.evaluate import evaluate
from backlight.anomaly.syntax import Expression, parse
from backlight.diagnosis.conditions import Tried, conditions_of
from backlight.diagnosis.occurrences import Axis, RunSource, Whole, sample_axis, step_axis
from backlight.diagnosis.relate import (
    LAGS,
    Counts,
    Mask,
    chance_of,
    count_together,
    dealt_within,
    late,
    shifted,
    standing_out,
)
from backlight.errors import BacklightError
from backlight.schema import RunInfo
from backlight.store.snapshot import Snapshot

MOST_PLACES: Final = {"step": 512, "sample": 4096}
"""Of a longer run, so many recorded steps, or samples, are looked at for relations, evenly."""

LEVEL: Final = 0.05
_LEAST_TIMES: Final = 5
_LEAST_STEPS: Final = 128  # a shift by a lag is no chance, so that fewer cannot reach the level
_LEAST_EPISODES: Final = 3
_ALIKE: Final = 0.9
_NAMED: Final = re.compile(r"^\s*([A-Za-z_][\w -]*?)\s*:\s*(.+)$", re.DOTALL)


@dataclass(frozen=True)
class Relation:
    """A condition that goes with an anomaly, `lag` recorded steps before it.

    `share_with` is how often the condition holds where the anomaly does, `share_without` where it
    does not; `chance` is the probability that one of all the conditions tried looks so by chance.
    """

    condition: str
    words: str
    lag: int
    share_with: float
    share_without: float
    lift: float
    mutual_information: float
    chance: float
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anomaly:
    """Where an anomaly shows in a run, and what goes with it.

    `steps`, and `samples` where it is about them, say where it is true; `known` at how many it can
    be told. `reason` says why nothing was looked for beside it, if so.
    """

    name: str
    expression: str
    by: str
    steps: tuple[int, ...]
    samples: tuple[int, ...]
    known: int
    relations: tuple[Relation, ...] = ()
    tried: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The anomaly as plain JSON."""
        return {**asdict(self), "sentences": self.sentences}

    @property
    def sentences(self) -> list[str]:
        """Where it shows, and what goes with it."""
        return [self._occurrence(), *(self._sentence(each) for each in self.relations)]

    def _occurrence(self) -> str:
        count, what = len(self.steps), f"{self.by}s"
        if not count:
            return f"{self.name}: at none of {self.known} {what}."
        return (
            f"{self.name}: at {count} of {self.known} {what} "
            f"({count / max(1, self.known):.0%}), first at step {min(self.steps)}."
        )

    def _sentence(self, relation: Relation) -> str:
        before = f" {relation.lag} recorded steps before" if relation.lag > 1 else ""
        before = " one recorded step before" if relation.lag == 1 else before
        return (
            f"{self.name}: {relation.share_with:.0%} of the time with {relation.words}{before}, "
            f"against {relation.share_without:.0%} otherwise."
        )

    def __str__(self) -> str:
        return "\n".join([*self.sentences, *([self.reason] if self.reason else [])])


def named(text: str) -> tuple[str, str]:
    """The name and the expression of `name: expression`; an expression alone is its own name.

    >>> named("hot: abs_max('encoder:out') > 1"), named("loss > 1")
    (('hot', "abs_max('encoder:out') > 1"), ('loss > 1', 'loss > 1'))
    """
    match = _NAMED.match(text)
    return (match[1], match[2].strip()) if match else (text.strip(), text)


def told_in(info: RunInfo) -> list[tuple[str, str]]:
    """The anomalies that a run was told of while it trained."""
    return [(str(name), str(text)) for name, text in info.anomalies.items()]


def find_anomalies(
    snapshot: Snapshot, anomalies: Sequence[tuple[str, str]], *, by: str = "step", most: int = 10
) -> list[Anomaly]:
    """Where each of these (name, expression) shows, and what goes with it."""
    if by not in MOST_PLACES:
        raise BacklightError(f"An anomaly cannot be looked for by {by!r}: use 'step' or 'sample'.")
    parsed = [(name, parse(text, snapshot.own)) for name, text in anomalies]
    return [_anomaly(snapshot, name, each, parsed, by, most) for name, each in parsed]


def _anomaly(
    snapshot: Snapshot,
    name: str,
    expression: Expression,
    everyone: Sequence[tuple[str, Expression]],
    by: str,
    most: int,
) -> Anomaly:
    axis = sample_axis(snapshot, expression) if by == "sample" else step_axis(snapshot)
    series = evaluate(expression, RunSource(snapshot, expression, by=by, axis=axis))
    where = np.flatnonzero(series.is_true)
    samples = axis.samples[where].tolist() if by == "sample" else []
    others = [(n, e.text) for n, e in everyone if e.text != expression.text]
    looked = series.known & np.isin(axis.steps, snapshot.recorded_steps)
    chosen = _spread_over(axis, looked, by)
    relations, tried, reason = _related(
        snapshot,
        expression,
        Axis(axis.steps[chosen], axis.samples[chosen]),
        series.is_true[chosen],
        others,
        by,
        most,
    )
    return Anomaly(
        name=name,
        expression=expression.text,
        by=by,
        steps=tuple(axis.steps[where].tolist()),
        samples=tuple(samples),
        known=int(series.known.sum()),
        relations=relations,
        tried=tried,
        reason=reason,
    )


def _spread_over(axis: Axis, looked: Mask, by: str) -> Whole:
    """Which places are looked at for relations: whole steps, evenly."""
    places = np.flatnonzero(looked)
    if len(places) <= MOST_PLACES[by]:
        return places
    steps = np.unique(axis.steps[places])
    per_step = len(places) / len(steps)
    count = max(2, int(MOST_PLACES[by] / per_step))
    kept = steps[np.unique(np.linspace(0, len(steps) - 1, count).round().astype(np.int64))]
    return np.asarray(places[np.isin(axis.steps[places], kept)], np.int64)


def _related(
    snapshot: Snapshot,
    target: Expression,
    axis: Axis,
    anomaly: Mask,
    others: Sequence[tuple[str, str]],
    by: str,
    most: int,
) -> tuple[tuple[Relation, ...], int, str]:
    reason = _too_little(anomaly, axis, by)
    if reason:
        return (), 0, reason
    tried = list(conditions_of(snapshot, target, axis, others, by))
    if not tried:
        return (), 0, "Nothing was recorded that could go with it."
    lags = LAGS if by == "step" else (0,)
    shuffles = shifted(anomaly) if by == "step" else dealt_within(anomaly, axis.steps)
    masks = np.array([each.mask for each in tried])
    lagged = np.concatenate([late(masks, lag) for lag in lags])
    chances = chance_of(*standing_out(lagged, anomaly, shuffles))
    found = [
        (tried[place % len(tried)], lags[place // len(tried)], float(chances[place]))
        for place in np.flatnonzero(chances <= LEVEL).tolist()
    ]
    return _told(found, anomaly, most), len(lagged), ""


def _too_little(anomaly: Mask, axis: Axis, by: str) -> str:
    """Why nothing can be said of what goes with the anomaly; empty if something can."""
    times = int(anomaly.sum())
    if min(times, len(anomaly) - times) < _LEAST_TIMES:
        return (
            f"What goes with it cannot be told: of the {len(anomaly)} recorded {by}s that were "
            f"looked at it holds at {times}, and at least {_LEAST_TIMES} are needed, with and "
            "without it."
        )
    if by == "step":
        if len(anomaly) < _LEAST_STEPS:
            return (
                f"What goes with it cannot be told: {len(anomaly)} recorded steps are too few to "
                f"tell it from chance, and at least {_LEAST_STEPS} are needed."
            )
        episodes = int((anomaly & ~late(anomaly, 1)).sum())
        if episodes < _LEAST_EPISODES:
            return (
                "What goes with it cannot be told: it holds in one stretch of steps or two, and "
                "all that changes with time would go with it."
            )
        return ""
    return (
        ""
        if _differs_within(anomaly, axis.steps)
        else (
            "What goes with it cannot be told: no step has samples with it and without it; "
            "keep more samples of each step."
        )
    )


def _differs_within(anomaly: Mask, steps: Whole) -> bool:
    _, group = np.unique(steps, return_inverse=True)
    times, sizes = np.bincount(group, anomaly), np.bincount(group)
    return bool(((times > 0) & (times < sizes)).any())


def _told(found: list[tuple[Tried, int, float]], anomaly: Mask, most: int) -> tuple[Relation, ...]:
    """The best condition of each thing, and under it what holds at nearly the same places."""
    best: dict[str, tuple[Counts, Tried, int, float]] = {}
    for tried, lag, chance in found:
        known = late(tried.known, lag) if lag else tried.known
        counts = count_together(late(tried.mask, lag), known, anomaly)
        told = best.get(tried.about)
        if told is None or _rank(counts, tried, lag) > _rank(*told[:3]):
            best[tried.about] = counts, tried, lag, chance
    ordered = sorted(best.values(), key=lambda each: _rank(*each[:3]), reverse=True)
    groups: list[tuple[Mask, list[tuple[Counts, Tried, int, float]]]] = []
    for each in ordered:
        mask = late(each[1].mask, each[2])
        alike = [members for other, members in groups if _overlap(mask, other) >= _ALIKE]
        if alike:
            alike[0].append(each)
        else:
            groups.append((mask, [each]))
    return tuple(_relation(members) for _, members in groups[:most])


def _rank(counts: Counts, tried: Tried, lag: int) -> tuple[float, bool]:
    """What is beside it counts a little more: most things are like what they were before."""
    return round(counts.mutual_information * (0.8 if lag else 1.0), 3), tried.is_named


def _overlap(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))


def _relation(members: list[tuple[Counts, Tried, int, float]]) -> Relation:
    # Of several that hold at the same places, one that the user named says most.
    counts, tried, lag, chance = next((each for each in members if each[1].is_named), members[0])
    return Relation(
        condition=tried.expression,
        words=tried.words,
        lag=lag,
        share_with=counts.share_with,
        share_without=counts.share_without,
        lift=counts.lift,
        mutual_information=counts.mutual_information,
        chance=chance,
        also=tuple(each[1].words for each in members if each[1] is not tried),
    )
