"""What formats would lose, against casts by ml_dtypes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import record
from typer.testing import CliRunner

import backlight
from backlight.blackbox import StepRecord
from backlight.cli import app
from backlight.errors import BacklightError
from backlight.journal import Journal, without_sketches
from backlight.store.formats import known_formats, mantissa_bits, number_format
from backlight.store.precision_table import always_lost, rounding_error
from backlight.store.sketch import Sketch

# e8m0 holds no zero, no sign and no mantissa: nothing is added to such numbers.
NAMES = [each.name for each in known_formats() if each.name not in ("float64", "float8_e8m0fnu")]
each_format = pytest.mark.parametrize("name", NAMES)
REALS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def cast(values: np.ndarray, name: str) -> np.ndarray:
    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype).astype(np.float64)


@each_format
@given(values=st.lists(REALS, max_size=60))
def test_shares_are_those_of_a_cast(name: str, values: list[float]) -> None:
    limits = number_format(name)
    given_ = np.array(values, np.float64)
    ties = np.isin(np.abs(given_), [limits.underflow, limits.overflow])
    given_ = given_[~ties]
    rounded, size = cast(given_, name), np.abs(given_)
    shares = Sketch.of_values(given_).shares(name)
    total, slack = max(1, len(given_)), shares.uncertain + 1e-9
    # Of formats without NaN a cast makes something else of it: NaN is counted apart.
    lost = (rounded == 0) & (given_ != 0) & np.isfinite(given_)
    assert shares.underflow == pytest.approx(lost.sum() / total, abs=slack)
    subnormal = (rounded != 0) & (size < limits.normal) & (given_ != 0)
    assert shares.subnormal == pytest.approx(subnormal.sum() / total, abs=slack)
    # What saturates is clamped and not told by the cast; all else is not finite any more.
    if not np.isfinite(cast(np.array([1e30]), name))[0]:
        over = ~np.isfinite(rounded) & ~np.isnan(given_)
        assert shares.overflow == pytest.approx(over.sum() / total, abs=slack)


@each_format
def test_rounding_errors_are_those_of_casts(name: str) -> None:
    values = np.random.default_rng(0).uniform(1.0, 2.0, 20_000)
    error = np.sqrt(np.mean((cast(values, name) / values - 1) ** 2))
    assert rounding_error(number_format(name)) == pytest.approx(error, rel=0.05)


@each_format
def test_what_is_always_lost_changes_nothing(name: str) -> None:
    bits = mantissa_bits(name)
    numbers = 1 + np.arange(min(2**bits, 512)) / 2**bits
    small = numbers * always_lost(number_format(name)) * 0.999
    assert (cast(numbers + small, name) == numbers).all()
    assert (cast(numbers - small, name) == numbers).all()
    assert (cast(numbers + 4 * small, name) != numbers).any()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"), steps=4)


def test_the_table_is_that_of_the_sketches(run: Path) -> None:
    opened = backlight.open(run)
    table = opened.precision(["float8_e4m3fn", "float16"], "weight$", quantity="grad")
    sketches = opened.sketches("weight$", quantity="grad")
    assert len(table) == 2 * len(sketches)
    for row, sketch in zip(table, sketches, strict=False):
        shares = sketch.shares("float8_e4m3fn")
        assert row["underflow"] == pytest.approx(shares.underflow, abs=1e-6)
        assert row["subnormal"] == pytest.approx(shares.subnormal, abs=1e-6)
        assert sketch.shares("float8_e4m3fn", row["scale"]).overflow == 0
        assert (row["scale"] == 0) == (shares.underflow + shares.subnormal == 0)


def test_updates_that_change_nothing(run: Path) -> None:
    rows = backlight.open(run).precision(["float8_e5m2", "float32"], "weight$", quantity="update")
    assert {row["update_lost"] for row in rows if row["format"] == "float8_e5m2"} == {True}
    assert {row["update_lost"] for row in rows if row["format"] == "float32"} == {False}
    values = backlight.open(run).precision(["float16"], "weight$", quantity="value")
    assert {row["update_lost"] for row in values} == {None}


def test_the_command(run: Path) -> None:
    asked = ["precision", str(run), "--format", "float8_e4m3fn", "--quantity", "grad"]
    rows = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    lost = [row["overflow"] + row["underflow"] for row in rows]
    assert lost == sorted(lost, reverse=True)
    assert "0.weight" in {row["name"] for row in rows}
    assert "then lost" in CliRunner().invoke(app, asked, env={"COLUMNS": "200"}).output
    assert CliRunner().invoke(app, [*asked, "--name", "nothing"]).exit_code == 1
    assert CliRunner().invoke(app, ["precision", str(run), "--format", "float9"]).exit_code == 1


def test_bad_formats_are_one_sentence(run: Path) -> None:
    for formats, said in (("float16", "is a list"), ([], "is a list"), (["int8"], "no mantissa")):
        with pytest.raises(BacklightError, match=said):
            backlight.open(run).precision(formats)


def test_what_has_no_sketch_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is too slow leaves sketches out: that is not the same as to lose nothing."""

    def leave_out(journal: Journal, record: StepRecord) -> None:
        if record.row["step"] == 1 and record.stats is not None:
            record.stats = without_sketches(record.stats)

    monkeypatch.setattr(Journal, "_leave_out", leave_out)
    run = backlight.open(record(tmp_path, steps=3))
    rows = run.precision(["float8_e4m3fn"]).arrow().to_pylist()
    shares = ("overflow", "underflow", "subnormal", "scale", "scaled_underflow")
    first, second = ([row for row in rows if row["step"] == step] for step in (0, 1))
    assert all(row[name] is not None for row in first for name in shares)
    unknown = [row for row in second if all(row[name] is None for name in shares)]
    assert len(unknown) > len(second) / 2
    assert len(run.sketches()) == len(rows) - len(unknown)
    asked = ["precision", str(run.path), "--format", "bfloat16", "--json", "--name", "weight$"]
    told = json.loads(CliRunner().invoke(app, asked).output)
    assert {row["step"] for row in told} <= {0, 2}
