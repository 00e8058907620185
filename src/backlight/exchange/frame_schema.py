"""The frame that tools of numerics share: `metadata`, `scalar_stats`, `exponent_counts`.

Its columns are a pandas MultiIndex of two levels. Column n of `exponent_counts` says how many
elements have a magnitude from 2^n up to 2^(n+1); `-inf` counts zeros, `inf` what is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from backlight.errors import BacklightError
from backlight.store.formats import number_format

METADATA: Final = ("name", "type", "tensor_type", "step", "dtype")
TENSOR_TYPES: Final = ("Activation", "Gradient", "Weight", "Optimiser_State")
GROUPS: Final = ("metadata", "scalar_stats", "exponent_counts")
LOWEST_EXPONENT: Final = -1074
HIGHEST_EXPONENT: Final = 1023


def checked(frame: Any) -> Any:
    """The frame with its columns spelt in one way, or one sentence on what breaks the schema."""
    pandas = pandas_module()
    if not isinstance(frame, pandas.DataFrame):
        raise BacklightError(f"A {type(frame).__name__} is no frame: pass a pandas DataFrame.")
    if frame.columns.nlevels != 2:
        raise BacklightError(
            "The frame's columns are no pairs: use a pandas MultiIndex of two levels, "
            f"the first of them {', '.join(GROUPS)}."
        )
    columns = [_column(str(group), name) for group, name in frame.columns]
    _check_columns(columns)
    spelt = frame.set_axis(pandas.MultiIndex.from_tuples(columns), axis=1)
    _check_metadata(spelt["metadata"])
    _check_numbers(spelt, pandas)
    return spelt


def _column(group: str, name: Any) -> tuple[str, Any]:
    if group not in GROUPS:
        raise BacklightError(
            f"The frame has a column {(group, name)!r}: the first level has to be one of "
            f"{', '.join(GROUPS)}."
        )
    return (group, exponent_of(name)) if group == "exponent_counts" else (group, str(name))


def exponent_of(name: Any) -> int | float:
    """The exponent that a column is named after: a whole number or an infinity.

    >>> exponent_of("-3"), exponent_of(4.0), exponent_of("+inf")
    (-3, 4, inf)
    """
    try:
        value = float(name)
        exponent = value if abs(value) == float("inf") else int(value)
    except (TypeError, ValueError):
        value, exponent = 0.0, 1
    is_ours = abs(value) == float("inf") or LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT
    if value != exponent or not is_ours:
        raise BacklightError(
            f"The frame counts an exponent {name!r}: use whole numbers from {LOWEST_EXPONENT} to "
            f"{HIGHEST_EXPONENT}, '-inf' and 'inf'."
        )
    return exponent


def _check_columns(columns: list[tuple[str, Any]]) -> None:
    for name in METADATA:
        if ("metadata", name) not in columns:
            raise BacklightError(f"The frame has no column ('metadata', {name!r}): add it.")
    for group in GROUPS[1:]:
        if not any(each == group for each, _ in columns):
            raise BacklightError(f"The frame has no column under {group!r}: add at least one.")
    repeated = next((each for each in columns if columns.count(each) > 1), None)
    if repeated is not None:
        raise BacklightError(f"The frame has the column {repeated!r} twice: keep one.")


def _check_metadata(metadata: Any) -> None:
    _each(metadata["name"], "name", lambda value: isinstance(value, str) and bool(value), "text")
    one_of = "one of " + ", ".join(TENSOR_TYPES)
    _each(metadata["tensor_type"], "tensor_type", TENSOR_TYPES.__contains__, one_of)
    _each(metadata["step"], "step", _is_step, "a whole number, 0 or more")
    for name in metadata["dtype"].unique():
        number_format(str(name).removeprefix("torch."))


def _is_step(value: Any) -> bool:
    try:
        return bool(int(value) == value) and 0 <= value < 1 << 62
    except (TypeError, ValueError, OverflowError):
        return False


def _each(column: Any, name: str, is_right: Callable[[Any], bool], wanted: str) -> None:
    for row, value in enumerate(column):
        if not is_right(value):
            raise BacklightError(
                f"Row {row} of the frame has the {name} {value!r}: it has to be {wanted}."
            )


def _check_numbers(frame: Any, pandas: Any) -> None:
    for group, name in frame.columns:
        if group == "metadata":
            continue
        column = frame[(group, name)]
        if not pandas.api.types.is_numeric_dtype(column):
            raise BacklightError(f"The frame's column {(group, name)!r} holds no numbers.")
        counts = column.fillna(0) if group == "exponent_counts" else None
        if counts is not None and ((counts < 0) | (counts % 1 != 0)).any():
            raise BacklightError(
                f"The frame's column {(group, name)!r} holds no counts: use whole numbers, "
                "0 or more."
            )


def pandas_module() -> Any:
    """pandas, or one sentence on how to get it."""
    try:
        return import_module("pandas")
    except ImportError:
        raise BacklightError("Frames are pandas frames: `pip install pandas`.") from None
