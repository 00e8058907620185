"""The language of anomalies: it means what docs/anomalies.md says, and nothing is executed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlight.anomaly.evaluate import Series, evaluate, windowed
from backlight.anomaly.patterns import is_found
from backlight.anomaly.pooling import pool
from backlight.anomaly.syntax import FUNCTIONS, STATISTICS, Function, Scalar, Statistic, parse
from backlight.anomaly.tokens import ExpressionError


@dataclass
class Table:
    """Scalars by name, NaN where unknown; a statistic is the scalar of its pattern's name."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def statistic(self, asked: Statistic) -> Series:
        return self.scalar(Scalar(asked.pattern, asked.column))

    def scalar(self, asked: Scalar) -> Series:
        values = np.array(self.columns.get(asked.name, [np.nan] * self.length), float)
        return Series(values, ~np.isnan(values))

    def windowed(self, asked: Function, series: Series) -> Series:
        return windowed(asked.name, series)


def where(text: str, **columns: list[float]) -> list[bool | None]:
    found = evaluate(parse(text), Table(columns))
    return [bool(v) if k else None for v, k in zip(found.values, found.known, strict=True)]


NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 1", [False, True, None]),
        ("1 + 2 * a == 5", [False, True, None]),
        ("-a < -1", [False, True, None]),
        ("not a > 1", [True, False, None]),
        ("a > 1 or b > 0", [True, True, True]),
        ("a > 1 and b > 9", [False, False, False]),
        ("a > 1 and b > 0", [False, True, None]),
        ("a > 0 and not (a > 1 or b < 0)", [True, False, None]),
        ("abs(b - 3) < 1", [False, False, True]),
        ("log10(a * 5) == 1", [False, True, None]),
        ("a / 0 > 1e300", [True, True, None]),
        ("is_finite(a / 0)", [False, False, None]),
        ("rms('a', grad, highest, last) >= 2.", [False, True, None]),
        ('scalar("b") > .5', [True, True, True]),
        ("previous(b) < b", [None, True, True]),
        ("b > 1.2 * usual(b)", [None, True, True]),
        ("rank(b) == 1", [False, False, True]),
    ],
)
def test_what_expressions_mean(text: str, expected: list[bool | None]) -> None:
    assert where(text, a=[1, 2, NAN], b=[1, 2, 3]) == expected


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 1, "is missing"),
        ("loss >", 7, "is missing"),
        ("loss", 1, "true or false"),
        ("loss > 1 loss", 10, "one too many"),
        ("loss = 1", 6, "write =="),
        ("rms('a > 1", 5, "does not end"),
        ("rms(a) > 1", 5, "in quotation marks"),
        ("rms('(') > 1", 5, "no regular expression"),
        ("rms('(?!a)') > 1", 5, "no regular expression of RE2"),
        ("rms('(a{99}){99}') > 1", 5, "no regular expression of RE2"),
        ("rms('\ud800') > 1", 5, "no regular expression"),
        ("rms('a', loss) > 1", 10, "one of value, grad"),
        ("rms('a', grad, value) > 1", 5, "exclude each other"),
        ("rms > 1", 1, "Say of what"),
        ("eval('1') > 1", 1, "There is no 'eval'"),
        ("1 < loss < 2", 10, "two things at a time"),
        ("(loss > 1) + 1 > 2", 2, "should be a number"),
        ("loss and loss > 1", 1, "should be true or false"),
        ("loss.__class__ > 1", 5, "'.' means nothing"),
        ("(" * 60 + "1", 41, "Nested deeper"),
        ("loss > " + "9" * 2000, 1000, "more than 1000 characters"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert caught.value.column == column
    assert f"at column {column}:" in str(caught.value)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", "(a?){60}a{60}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    assert parse(f"rms('{pattern}') > 1").statistics[0].pattern == pattern
    started = time.process_time()
    assert not is_found(pattern, ["a" * 59 + "b"]).any()
    assert time.process_time() - started < 1  # Python's own would take longer than anyone lives


WORDS = st.sampled_from(
    [
        *(*STATISTICS, *FUNCTIONS, "loss", "scalar", "and", "or", "not", "grad", "last", "highest"),
        *("(", ")", ",", "<", ">=", "==", "+", "-", "*", "/", "1", "2.5", "1e999", "'a'", "'('"),
        *("__import__", "exec", "lambda", ".", "[", "'"),
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=25).map(" ".join)))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        expression = parse(text)
    except ExpressionError as error:
        is_inside = 1 <= error.column <= len(text) + 1
        assert is_inside, error  # noqa: PT017
        return
    found = evaluate(expression, Table({"loss": [1.0, NAN], "a": [0.0, 1.0], "b": [2.0, 2.0]}))
    assert len(found.values) == len(found.known) == 2


NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_tensors_taken_together_are_as_one(tensors: list[list[float]]) -> None:
    arrays = [np.array(each) for each in tensors]
    whole = np.concatenate(arrays)
    of_each = {
        "mean": np.mean,
        "std": np.std,
        "min": np.min,
        "max": np.max,
        "abs_mean": lambda x: np.abs(x).mean(),
        "abs_max": lambda x: np.abs(x).max(),
        "rms": lambda x: np.sqrt((x**2).mean()),
        "count": len,
    }
    rows = {name: np.array([f(x) for x in arrays], float) for name, f in of_each.items()}
    rows |= {"nans": np.zeros(len(arrays)), "infs": np.zeros(len(arrays))}
    place = np.zeros(len(arrays), np.int64)
    for name, function in of_each.items():
        pooled = pool(Statistic(name, "", 1), rows, place, 2)
        assert pooled.known.tolist() == [True, False]
        assert np.isclose(pooled.values[0], function(whole), atol=1e-6)
    highest = pool(Statistic("mean", "", 1, several="highest"), rows, place, 1)
    assert highest.values[0] == rows["mean"].max()
