"""Of a long history few steps are kept: those of a rule, which is written plainly here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlight.store.thinning import EXTREMES, FAULTS, kept_steps, thinned


def table(rng: np.random.Generator, steps: int, iterations: int) -> pa.Table:
    step = np.repeat(np.cumsum(rng.choice([1, 1, 1, 40], steps)), iterations)
    columns: dict[str, Any] = {"step": step}
    for name in EXTREMES:
        values = rng.normal(size=len(step)).round(1)  # so that there are equals
        columns[name] = pa.array(values, mask=rng.random(len(step)) < 0.1)
    for name in FAULTS:
        columns[name] = (rng.random(len(step)) < 0.03).astype(np.int64)
    return pa.table(columns)


def naively(rows: list[dict[str, Any]], buckets: int) -> set[int]:
    """The same, step by step."""
    steps = sorted({row["step"] for row in rows})
    of = {step: [row for row in rows if row["step"] == step] for step in steps}
    count = max(1, buckets * len(steps) // len(rows))
    groups: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        groups.setdefault(place * count // len(steps), []).append(step)
    before = dict(zip(steps[1:], steps[:-1], strict=True))
    kept = set()
    for group in groups.values():
        kept |= {group[0], group[-1]}
        inside = [row for step in group for row in of[step]]
        for name, sign in [*((n, s) for n in EXTREMES for s in (1, -1)), *((n, 1) for n in FAULTS)]:
            seen = [row for row in inside if row[name] is not None]
            if seen:  # `max` gives the first of equals
                kept.add(max(seen, key=lambda row: sign * row[name])["step"])
        later = [step for step in group if step in before]
        if later:
            widest = max(later, key=lambda step: step - before[step])
            kept |= {widest, before[widest]}
    is_broken = [any(r["nans"] or r["infs"] or r["mean"] is None for r in of[s]) for s in steps]
    for place, step in enumerate(steps):
        around = [is_broken[at] for at in (place - 1, place + 1) if 0 <= at < len(steps)]
        if is_broken[place] and not (len(around) == 2 and all(around)):
            kept.add(step)
    for step, last in before.items():
        if step - last > (steps[-1] - steps[0]) / buckets:
            kept |= {step, last}
    return kept


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_steps_are_those_of_the_rule(seed: int, iterations: int) -> None:
    rng = np.random.default_rng(seed)
    rows = table(rng, steps=int(rng.integers(30, 300)), iterations=iterations)
    for buckets in (1, 5, 23):
        assert set(kept_steps(rows, buckets).tolist()) == naively(rows.to_pylist(), buckets)


def test_a_run_s_own_statistic_counts() -> None:
    rows = table(np.random.default_rng(0), steps=200, iterations=1)
    own = np.zeros(200)
    own[137] = 9.0
    rows = rows.append_column("mine", pa.array(own))
    step = rows["step"][137].as_py()
    assert step in kept_steps(rows, 3, ("mine",))


def test_a_statistic_that_is_nowhere_keeps_nothing() -> None:
    rows = table(np.random.default_rng(0), steps=50, iterations=1)
    for name in EXTREMES[1:]:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, pa.nulls(50, pa.float64()))
    assert set(kept_steps(rows, 4).tolist()) == naively(rows.to_pylist(), 4)


def test_however_long_a_history_is_about_as_many_rows_are_kept() -> None:
    points, buckets = 200, 25
    counts = {}
    for steps in (2_000, 8_000, 32_000):
        rng = np.random.default_rng(0)
        columns: dict[str, Any] = {name: rng.normal(size=steps) for name in EXTREMES}
        columns |= {name: np.zeros(steps, np.int64) for name in FAULTS}
        rows = pa.table({"step": np.arange(steps), **columns})
        assert len(kept_steps(rows, buckets)) > 1.5 * points  # so much there would be otherwise
        kept = thinned(rows, points, buckets)
        counts[steps] = kept.num_rows
        assert np.nanmax(kept["mean"].to_numpy()) == columns["mean"].max()
    assert all(0.8 * points < count <= 1.1 * points for count in counts.values()), counts
