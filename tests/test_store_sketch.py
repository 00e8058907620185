"""A sketch tells what the elements themselves would tell."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import sketch as naive_sketch

from backlight.errors import BacklightError
from backlight.schema import sketch_edges, sketch_key
from backlight.store.sketch import Sketch, bin_edges

REALS = st.floats(allow_nan=True, allow_infinity=True, width=32)
FLOATS = [
    name
    for name in dir(ml_dtypes)
    if name.startswith(("float", "bfloat")) and isinstance(getattr(ml_dtypes, name), type)
]


@given(st.lists(REALS, max_size=200), st.lists(REALS, max_size=200))
def test_sketches_add_up(one: list[float], other: list[float]) -> None:
    both, sum_ = Sketch.of_values(one + other), Sketch.of_values(one) + Sketch.of_values(other)
    assert sum_.keys.tolist() == both.keys.tolist()
    assert sum_.counts.tolist() == both.counts.tolist()
    for name in ("count", "zeros", "nans", "infs", "min", "max", "finite"):
        assert getattr(sum_, name) == getattr(both, name)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=100))
def test_a_sketch_is_what_the_schema_says(values: list[float]) -> None:
    sketch = Sketch.of_values(values)
    keys = sorted(sketch_key(value) for value in values if value)
    assert np.repeat(sketch.keys, sketch.counts).tolist() == keys
    low, high = bin_edges(sketch.keys)
    with np.errstate(over="ignore"):
        for key, a, b in zip(sketch.keys.tolist(), low.tolist(), high.tolist(), strict=True):
            if abs(key) < 8300:  # the edge of the last bin is infinite
                assert (a, b) == sketch_edges(key)
    expected = naive_sketch(np.array(values))
    assert (sketch.keys.tolist(), sketch.counts.tolist()) == expected


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.25, 0.5, 0.77, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_quantiles_are_within_12_percent(share: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=5000) * 10.0 ** generator.integers(-6, 6)
    values[:500] = 0.0
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    found = Sketch.of_values(values).quantile(share)
    assert found == pytest.approx(exact, rel=0.125, abs=1e-12)


def test_of_nothing_there_are_no_quantiles() -> None:
    assert Sketch.merged([]).quantiles([0.5, 0.9]) == [None, None]
    assert Sketch.of_values([np.nan, np.inf]).quantile(0.5) is None
    assert Sketch.of_values([0.0, 0.0]).quantile(0.5) == 0.0


def test_exponents_count_every_element_once() -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    table = Sketch.of_values(values).exponents().to_pydict()
    exponents = np.frexp(np.abs(values))[1] - 1
    for exponent, negative, positive in zip(*table.values(), strict=True):
        assert negative == ((exponents == exponent) & (values < 0)).sum()
        assert positive == ((exponents == exponent) & (values > 0)).sum()
    assert sum(table["negative"]) + sum(table["positive"]) == 1000


@pytest.mark.parametrize("name", [*FLOATS, "float16"])
@pytest.mark.parametrize("scale", [1e-9, 1e-5, 1e-2, 1.0, 100.0, 1e5, 1e38])
def test_shares_are_those_of_a_cast(name: str, scale: float) -> None:
    with np.errstate(over="ignore"):
        values = (np.random.default_rng(0).normal(size=20_000) * scale).astype(np.float32)
    values = np.abs(values[np.isfinite(values)])  # one format has no sign
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    info = np.finfo(dtype) if name == "float16" else ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        cast = values.astype(dtype).astype(np.float64)
    largest, normal = float(info.max), float(info.smallest_normal)
    saturates = name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
    beyond = ~np.isfinite(cast) | (saturates & (cast == largest) & (values / largest > 1.25))
    found = Sketch.of_values(values).shares(name)
    slack = found.uncertain + 1e-9
    if not saturates:
        assert found.overflow == pytest.approx(beyond.mean(), abs=slack)
    else:
        assert found.overflow >= beyond.mean() - slack
    if name != "float8_e8m0fnu":  # which has no 0 to round to
        underflow = ((cast == 0) & (values != 0)).mean()
        subnormal = ((cast != 0) & (np.abs(values) < normal)).mean()
        assert found.underflow == pytest.approx(underflow, abs=slack)
        assert found.subnormal == pytest.approx(subnormal, abs=slack)
    assert 0 <= found.uncertain < 0.5


def test_what_fits_overflows_nowhere() -> None:
    fits = Sketch.of_values([65504.0, -65504.0, 60000.0])
    assert fits.shares("float16").overflow == 0.0
    assert Sketch.of_values([65504.0, 66000.0]).shares("float16").overflow > 0.0
    assert Sketch.of_values([1.0, np.inf]).shares("float16").overflow == 0.5
    assert Sketch.of_values([-3.0, 3.0]).shares("float8_e8m0fnu").overflow == 0.5
    assert Sketch.of_values([-9.0, -8.0, 7.0, 0.25]).shares("int4").underflow == 0.25


@pytest.mark.parametrize("name", ["float9", "finfo", "complex32", "", "__doc__"])
def test_an_unknown_format_is_one_sentence(name: str) -> None:
    with pytest.raises(BacklightError, match=r"There is no number format .*bfloat16"):
        Sketch.of_values([1.0]).shares(name)


def test_a_sketch_that_was_given_up_tells_nothing_rather_than_nought() -> None:
    """A slow disk costs sketches: the share that underflows is then unknown, and not 0."""
    none = np.empty(0, np.int64)
    missing = Sketch(none, none, count=100, zeros=10, min=-1.0, max=1.0)
    assert missing.is_missing
    assert missing.quantiles([0.1, 0.9]) == [None, None]
    assert np.isnan(missing.shares("float8_e4m3fn").underflow)
    known = Sketch.of_values([1e-9, 1.0, 0.0, np.nan])
    both = Sketch.merged([missing, known, missing])
    assert both.shares("float8_e4m3fn") == known.shares("float8_e4m3fn")
    assert (both.count, both.zeros, both.nans) == (4, 1, 1)
    for empty in (Sketch.of_values([]), Sketch.of_values([0.0, np.inf, np.nan])):
        assert not empty.is_missing
