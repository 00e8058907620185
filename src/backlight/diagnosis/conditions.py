"""What is tried beside an anomaly: every statistic that is low or high, and what else happened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.anomaly.evaluate import Series, evaluate, windowed
from backlight.anomaly.pooling import needed_columns, pool
from backlight.anomaly.syntax import STEP_FACTS, Expression, Statistic, parse
from backlight.diagnosis.occurrences import (
    SAMPLE_STATISTICS,
    Axis,
    RunSource,
    Whole,
    floats,
    lowest_rank,
    matching_sites,
)
from backlight.schema import QUANTITIES
from backlight.store.snapshot import Snapshot

LEAST_KNOWN: Final = 0.9
"""A statistic that is known at fewer places than this share is not tried."""

_STEP_STATISTICS: Final = ("abs_mean", "abs_max", "mean")
_CUTS: Final = (
    *((0.1, True), (0.25, True), (0.5, True)),
    *((0.5, False), (0.75, False), (0.9, False)),
)
"""Quantiles, and whether what is below them is meant."""

_NEAR_ZERO: Final = 0.1  # of the median
_STEP_SCALARS: Final = tuple(name for name in STEP_FACTS if name not in ("step", "duration_secs"))


@dataclass(frozen=True)
class Tried:
    """A condition: an expression, in words, where it holds, and what it is about."""

    expression: str
    words: str
    mask: npt.NDArray[np.bool_]
    known: npt.NDArray[np.bool_]
    about: str  # of all conditions about the same thing, the best one is told
    is_named: bool = False  # whether the user named the tensor


def conditions_of(
    snapshot: Snapshot, target: Expression, axis: Axis, others: Sequence[tuple[str, str]], by: str
) -> Iterator[Tried]:
    """Everything that is tried beside an anomaly, but for what it is defined by."""
    for name, text in others:
        expression = parse(text, snapshot.own)
        series = evaluate(expression, RunSource(snapshot, expression, by=by, axis=axis))
        yield Tried(text, f"`{name}`", series.is_true, series.known, name, is_named=True)
    if by == "step":
        yield from _of_events(snapshot, axis)
    yield from _of_scalars(snapshot, target, axis, by)
    yield from _of_sites(snapshot, target, axis, by)


def _of_events(snapshot: Snapshot, axis: Axis) -> Iterator[Tried]:
    events = snapshot.held["events"]
    for kind in ("spike", "nonfinite"):
        steps = events.filter(pc.equal(events["kind"], kind))["step"].to_numpy()
        if len(steps):
            mask = np.isin(axis.steps, steps)
            yield Tried("", f"an event of kind `{kind}`", mask, np.ones(len(mask), bool), kind)


def _of_scalars(snapshot: Snapshot, target: Expression, axis: Axis, by: str) -> Iterator[Tried]:
    if by == "sample":
        return  # they are the same for all samples of a step
    logged = pc.unique(snapshot.held["scalars"]["name"]).to_pylist()
    used = {scalar.name for scalar in target.scalars}
    for name in dict.fromkeys([*_STEP_SCALARS, *logged]):
        if name in used or (name == "loss" and _is_about_loss(snapshot, target)):
            continue
        said = name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"scalar({quoted(name)})"
        text = f"{said} == 0"
        series = RunSource(snapshot, parse(text), by=by, axis=axis).scalar(parse(text).scalars[0])
        yield from _cuts(series, said, f"`{name}`", name)


def _is_about_loss(snapshot: Snapshot, target: Expression) -> bool:
    if any(scalar.name == "loss" for scalar in target.scalars):
        return True
    return bool(_loss_sites(snapshot) & _own_sites(snapshot, target))


def _loss_sites(snapshot: Snapshot) -> set[int]:
    sites = snapshot.held["sites"]
    return set(sites.filter(pc.equal(sites["kind"], "loss"))["site"].to_pylist())


def _own_sites(snapshot: Snapshot, target: Expression) -> set[int]:
    return {s for each in target.statistics for s in matching_sites(snapshot, each.pattern)}


def _of_sites(snapshot: Snapshot, target: Expression, axis: Axis, by: str) -> Iterator[Tried]:
    """Low and high values of each statistic of each quantity at each site."""
    left_out = _own_sites(snapshot, target)
    if _is_about_loss(snapshot, target):
        left_out |= _loss_sites(snapshot)
    rows = _Rows.read(snapshot, axis, by)
    sites = {row["site"]: row for row in snapshot.held["sites"].to_pylist()}
    for site, quantity, at in rows.groups():
        if site not in left_out:
            yield from _of_site(rows, sites[site], quantity, at)


def _of_site(rows: _Rows, site: dict[str, Any], quantity: str, at: Whole) -> Iterator[Tried]:
    pattern = f"^{re.escape(site['name'])}$".replace("\\ ", " ")
    for which in rows.iterations_tried:
        chosen = at if not which else at[_last(rows.place[at], rows.iteration[at])]
        own = {name: values[chosen] for name, values in rows.numbers.items()}
        for statistic in rows.statistics:
            asked = Statistic(statistic, pattern, 1, quantity, iteration=which)
            series = pool(asked, own, rows.place[chosen], rows.length)
            words = _words(site["name"], statistic, quantity, which)
            about = f"{site['name']} {quantity}"
            yield from _cuts(
                series, said_of(asked), words, about, is_named=bool(site["kind"]), by=rows.by
            )


@dataclass(frozen=True)
class _Rows:
    """The rows of all sites, as arrays."""

    statistics: tuple[str, ...]
    place: Whole
    iteration: Whole
    key: Whole  # site and quantity
    numbers: dict[str, npt.NDArray[np.float64]]
    length: int
    by: str

    @classmethod
    def read(cls, snapshot: Snapshot, axis: Axis, by: str) -> _Rows:
        is_sample = by == "sample"
        statistics = SAMPLE_STATISTICS if is_sample else _STEP_STATISTICS
        names = list(dict.fromkeys(n for each in statistics for n in needed_columns(each)))
        names = [name for name in names if not is_sample or name in SAMPLE_STATISTICS]
        keys = ["step", "site", "iteration", "quantity", *(["sample"] if is_sample else [])]
        first, last = int(axis.steps.min(initial=1 << 62)), int(axis.steps.max(initial=-1))
        table = "samples" if is_sample else "stats"
        rows = lowest_rank(snapshot.at_steps(first, last, [*keys, *names], table=table))
        rows = rows.filter(pc.field("iteration") >= 0)
        samples = rows["sample"].to_numpy() if is_sample else None
        codes = pc.index_in(rows["quantity"], value_set=pa.array(QUANTITIES)).to_numpy()
        return cls(
            statistics=statistics,
            place=axis.places(rows["step"].to_numpy(), samples),
            iteration=rows["iteration"].to_numpy(),
            key=rows["site"].to_numpy().astype(np.int64) * len(QUANTITIES) + codes,
            numbers={name: floats(rows[name]) for name in names},
            length=len(axis.steps),
            by=by,
        )

    @property
    def iterations_tried(self) -> tuple[str, ...]:
        """All together, and the last one where there are several."""
        return ("", "last") if self.iteration.max(initial=0) > 0 else ("",)

    def groups(self) -> Iterator[tuple[int, str, Whole]]:
        """Each site and quantity, and its rows."""
        order = np.argsort(self.key, kind="stable")
        order = order[self.place[order] >= 0]
        unique, starts = np.unique(self.key[order], return_index=True)
        for key, at in zip(unique.tolist(), np.split(order, starts[1:]), strict=False):
            yield key // len(QUANTITIES), QUANTITIES[key % len(QUANTITIES)], at


def _last(place: Whole, iteration: Whole) -> npt.NDArray[np.bool_]:
    most = np.full(int(place.max(initial=0)) + 1, -1)
    np.maximum.at(most, place, iteration)
    return np.asarray(iteration == most[place], bool)


def said_of(asked: Statistic) -> str:
    """A statistic as it is written.

    >>> said_of(Statistic("rms", "^a$", 1, "grad", iteration="last"))
    "rms('^a$', grad, last)"
    """
    words = [quoted(asked.pattern)]
    words += [asked.quantity] if asked.quantity != "value" else []
    words += [asked.iteration] if asked.iteration else []
    return f"{asked.name}({', '.join(words)})"


def quoted(text: str) -> str:
    r"""A text in quotation marks, of which the language has two kinds.

    >>> quoted("a"), quoted("a's")
    ("'a'", '"a\'s"')
    """
    return f'"{text}"' if "'" in text else f"'{text}'"


def _words(name: str, statistic: str, quantity: str, which: str) -> str:
    said = {"abs_mean": "mean size", "abs_max": "largest size"}.get(statistic, statistic)
    whose = f"`{name}`" if quantity == "value" else f"the {quantity} of `{name}`"
    return f"{said} of {whose}" + (" in the last iteration" if which else "")


def _cuts(
    series: Series, said: str, words: str, about: str, *, is_named: bool = False, by: str = "step"
) -> Iterator[Tried]:
    """A number as conditions: at most a low quantile of itself, at least a high one.

    Over steps it is taken as the difference to its usual value, so that it has no trend.
    """
    if by == "step":
        usual = windowed("usual", series)
        series = Series(series.values - usual.values, usual.known)
        said = f"{said} - usual({said})"
    known = series.known & ~np.isnan(series.values)
    values = series.values[known]
    if known.mean() < LEAST_KNOWN or not len(values) or values.min() == values.max():
        return
    middle = float(np.median(np.abs(values)))
    for share, is_low in _CUTS:
        cut = float(f"{np.quantile(values, share):.6g}")
        mask = known & (series.values <= cut if is_low else series.values >= cut)
        if not mask.any() or mask[known].all():
            continue
        sign = "<=" if is_low else ">="
        told = _told(words, cut, is_low=is_low, by=by)
        if by == "sample" and is_low and said.startswith("abs_") and cut <= _NEAR_ZERO * middle:
            told = f"{words.partition(' of ')[2]} near zero"
        yield Tried(f"{said} {sign} {cut!r}", told, mask, known, about, is_named)


def _told(words: str, cut: float, *, is_low: bool, by: str) -> str:
    """A condition in words.

    >>> _told("mean of `a`", -0.25, is_low=True, by="step")
    'mean of `a` at least 0.25 below usual'
    >>> _told("mean of `a`", 0.25, is_low=True, by="step")
    'mean of `a` at most 0.25 above usual'
    """
    if by == "sample":
        return f"{words} {'at most' if is_low else 'at least'} {cut:.3g}"
    if cut == 0:
        return f"{words} {'at most' if is_low else 'at least'} as usual"
    bound = "at most" if is_low == (cut > 0) else "at least"
    return f"{words} {bound} {abs(cut):.3g} {'above' if cut > 0 else 'below'} usual"
