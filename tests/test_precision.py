"""What formats lose, computed for many tensors at once, is what each tensor's sketch says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import SampleRun, stats_batch, write_sample_run

from backlight.errors import BacklightError
from backlight.schema import STATS
from backlight.serve.numerics import Numerics, formats
from backlight.store.compact import compact
from backlight.store.formats import known_formats, number_format
from backlight.store.precision import (
    best_scale,
    best_scales,
    highest_scales,
    losses,
    rows_of,
)
from backlight.store.reader import RunReader
from backlight.store.sketch import Sketch

REALS = st.floats(allow_nan=True, allow_infinity=True, width=32)
NAMES = [each.name for each in known_formats()]
COMMON = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


def test_the_formats_of_the_field_are_known() -> None:
    assert set(COMMON) <= set(NAMES)
    assert NAMES[:2] == ["float64", "float32"]
    assert [each["name"] for each in formats()["formats"]] == NAMES


@given(
    st.lists(st.lists(REALS, max_size=60), min_size=1, max_size=5),
    st.sampled_from(NAMES),
    st.integers(-40, 40),
)
def test_many_at_once_are_as_each_alone(tensors: list[list[float]], name: str, scale: int) -> None:
    sketches = [Sketch.of_values(values) for values in tensors]
    found = losses(rows_of(sketches), name, scale)
    for place, sketch in enumerate(sketches):
        alone = sketch.shares(name, scale)
        for what in ("overflow", "underflow", "subnormal"):
            share = getattr(found, what)[place] / max(1, sketch.count)
            assert share == pytest.approx(getattr(alone, what), abs=1e-6)


@pytest.mark.parametrize("name", COMMON)
@given(values=st.lists(REALS, min_size=1, max_size=80))
def test_the_suggested_scale_loses_least(name: str, values: list[float]) -> None:
    sketch = Sketch.of_values(values)
    scale = best_scale(sketch, name)

    def lost(power: int) -> float:
        shares = sketch.shares(name, power)
        return shares.overflow + shares.underflow

    for power in (0, *range(scale - 3, scale + 4), -20, 20):
        assert lost(scale) <= lost(power) + 1e-9


def test_no_scale_is_suggested_that_loses_more_than_none() -> None:
    # Over more powers of two than the format holds: a scale gains at one end what it loses at the
    # other, and one by which nothing overflows loses nearly all.
    values = 2.0 ** np.random.default_rng(2).normal(0, 9, 4096)
    sketch = Sketch.of_values(values)
    rows = rows_of([sketch])
    name = "float8_e4m3fn"

    def lost(power: int) -> float:
        held = values * 2.0**power
        return float(np.mean((held > 464) | (held < 2.0**-10)))

    (highest,) = highest_scales(rows, name)
    assert lost(0) < 0.4 < 0.8 < lost(int(highest))
    least = min(lost(power) for power in range(-60, 60))
    assert lost(best_scale(sketch, name)) == pytest.approx(least, abs=0.01)
    assert lost(int(best_scales(rows, name)[0])) <= lost(0)


@given(st.lists(st.lists(REALS, max_size=60), min_size=1, max_size=4), st.sampled_from(COMMON))
def test_the_best_scales_of_many_lose_no_more_than_none(
    tensors: list[list[float]], name: str
) -> None:
    rows = rows_of([Sketch.of_values(values) for values in tensors])
    plain, scaled = losses(rows, name), losses(rows, name, best_scales(rows, name))
    lost = scaled.overflow + scaled.underflow
    assert (lost <= plain.overflow + plain.underflow + 1e-3).all()


def test_a_scale_is_a_multiplication() -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32) * 1e-6
    scaled = Sketch.of_values(values.astype(np.float64) * 2.0**12).shares("float16")
    found = Sketch.of_values(values).shares("float16", 12)
    assert (found.underflow, found.subnormal) == (scaled.underflow, scaled.subnormal)
    assert number_format("float16").before_scaling(12).normal == 2.0**-26


def test_no_finite_number_overflows_by_the_highest_scale() -> None:
    generator = np.random.default_rng(1)
    tensors = [generator.normal(size=200) * 10.0**power for power in range(-8, 9)]
    rows = rows_of([Sketch.of_values(values) for values in tensors])
    scales = highest_scales(rows, "float8_e4m3fn")
    assert losses(rows, "float8_e4m3fn", scales).overflow.tolist() == [0.0] * len(tensors)
    assert (losses(rows, "float8_e4m3fn", scales + 1).overflow > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_format_with_room_for_all_needs_no_scale(name: str) -> None:
    rows = rows_of([Sketch.of_values(values) for values in ([], [0.0], [1e-300], [np.nan, np.inf])])
    scales = highest_scales(rows, name)
    assert scales[[0, 1, 3]].tolist() == [0, 0, 0] and scales[2] >= 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_run(tmp_path_factory.mktemp("runs"), steps=60, sites=40, with_nan=True)


def reader_of(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def test_a_heatmap_of_losses_is_that_of_its_sketches(run: Path) -> None:
    reader = reader_of(run)
    table = Numerics().precision(reader, format="float8_e4m3fn", quantity="grad", columns=7)
    rows = reader.snapshot.at_steps(0, 99, ["site", "step", "quantity"]).to_pydict()
    assert table.num_rows == 7 * len(
        {s for s, q in zip(rows["site"], rows["quantity"], strict=True) if q == "grad"}
    )
    cell = table.to_pylist()[0]
    ranges = [[0, 8], [9, 17], [18, 25], [26, 34], [35, 42], [43, 51], [52, 59]]
    assert table.schema.metadata[b"columns"].decode() == str(ranges)
    held = reader.snapshot.held["stats"].to_pylist()
    mine = [
        row
        for row in held
        if row["site"] == cell["site"] and row["quantity"] == "grad" and row["step"] <= 8
    ]
    merged = Sketch.merged(
        Sketch(
            np.array(row["sketch_keys"]),
            np.array(row["sketch_counts"]),
            **{n: row[n] for n in ("count", "zeros", "nans", "infs", "min", "max")},
        )
        for row in mine
    )
    assert cell["underflow"] == pytest.approx(merged.shares("float8_e4m3fn").underflow, abs=1e-3)


def test_compacting_changes_no_answer(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=30, sites=24)
    asked = {"format": "float16", "quantity": "value", "columns": 10}
    before = Numerics().precision(reader_of(path), **asked)
    compact(path)
    after = Numerics().precision(reader_of(path), **asked)
    assert after.to_pydict() == before.to_pydict()


def test_exponents_of_chosen_sites(run: Path) -> None:
    reader = reader_of(run)
    sites = reader.sites()["site"].to_pylist()[:3]
    answer = Numerics().exponents(reader, sites, 50, formats=["float16"], quantity="value")
    for each in answer["sites"]:
        counted = sum(each["exponents"]["negative"]) + sum(each["exponents"]["positive"])
        assert counted + each["zeros"] + each["nans"] + each["infs"] == each["count"]
        assert set(each["formats"]["float16"]) >= {"overflow", "underflow", "scale", "scaled"}
    assert {each["site"] for each in answer["sites"]} <= set(sites)


def test_numerics_is_about_one_iteration(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=2, seed=0)
    names = ("count", "zeros", "nans", "infs", "min", "max", "sketch_keys", "sketch_counts")
    rows = []
    for row in stats_batch(0, run.places, run.rng, False).to_pylist():
        if row["quantity"] == "value" and row["site"] == 0:
            for iteration, values in enumerate(([1.0, 1e9], [1e9], [1.0, 2.0, 3.0])):
                sketch = Sketch.of_values(values)
                told = {name: getattr(sketch, name) for name in names[:6]}
                told |= {"sketch_keys": sketch.keys, "sketch_counts": sketch.counts}
                rows.append({**row, "iteration": iteration, **told})
        elif row["quantity"] == "value":
            rows.append(row)  # seen once
    run.writer.append("stats", pa.RecordBatch.from_pylist(rows, schema=STATS))
    run.end(None)
    reader, numerics = reader_of(run.path), Numerics()
    once = next(row["count"] for row in rows if row["site"] == 1)
    for iteration, count, lost in ((None, 3, 0.0), (0, 2, 0.5), (1, 1, 1.0), (2, 3, 0.0)):
        found = numerics.exponents(reader, [0, 1], 0, iteration=iteration)["sites"]
        assert [each["count"] for each in found] == [count, once]
        cells = numerics.precision(reader, format="float16", iteration=iteration).to_pylist()
        assert [cell["overflow"] for cell in cells] == [lost, 0.0]


def test_bad_questions_are_one_sentence(run: Path) -> None:
    reader, numerics = reader_of(run), Numerics()
    with pytest.raises(BacklightError, match="There is no number format"):
        numerics.precision(reader, format="float9")
    with pytest.raises(BacklightError, match="use a power of two, or 'best'"):
        numerics.precision(reader, scale="much")
    with pytest.raises(BacklightError, match="use 1 to 64"):
        numerics.exponents(reader, [], 0)
