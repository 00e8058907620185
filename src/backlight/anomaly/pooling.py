"""A statistic of several tensors: taken together, as if they were one, or the most extreme one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backlight.anomaly.evaluate import Real, Series
from backlight.anomaly.syntax import Statistic
from backlight.schema import COUNTS

_EXTREMES: Final = {"min": np.minimum, "max": np.maximum, "abs_max": np.maximum}
_SUMS: Final = (*COUNTS, "units", "dead_units", "constant_units")


def needed_columns(statistic: str) -> list[str]:
    """Which columns of the statistics it takes to pool one."""
    own = ["mean", "std"] if statistic == "std" else [statistic]
    return list(dict.fromkeys([*own, "count", "nans", "infs"]))


def pool(
    asked: Statistic, rows: Mapping[str, Real], position: npt.NDArray[np.int64], length: int
) -> Series:
    """One value for each position, of all rows that have it.

    >>> asked = Statistic("mean", "", 1)
    >>> rows = {"mean": np.array([1.0, 4.0]), "count": np.array([2.0, 1.0])}
    >>> pool(asked, rows, np.array([0, 0]), 1).values
    array([2.])
    """
    values = rows[asked.name]
    has = np.isfinite(values)
    weights = _weights(rows, has)
    rows, position = {name: each[has] for name, each in rows.items()}, position[has]
    known = np.bincount(position, minlength=length)[:length] > 0
    with np.errstate(all="ignore"):
        pooled = _pooled(asked, rows, weights, position, length)
    return Series(np.where(known, pooled, np.nan), known)


def _pooled(
    asked: Statistic, rows: Mapping[str, Real], weights: Real, position: Any, length: int
) -> Real:
    if asked.several != "together":
        extreme: Any = np.maximum if asked.several == "highest" else np.minimum
        return _extreme(extreme, rows[asked.name], position, length)
    return _together(asked.name, rows, weights, position, length)


def _weights(rows: Mapping[str, Real], has: npt.NDArray[np.bool_]) -> Real:
    """How many elements a row is of; of single samples that is not written, so they count alike."""
    if "count" not in rows:
        return np.ones(int(has.sum()))
    lost = sum(rows[name][has] for name in ("nans", "infs") if name in rows)
    return np.asarray(rows["count"][has] - lost, np.float64)


def _together(
    name: str, rows: Mapping[str, Real], weights: Real, position: Any, length: int
) -> Real:
    def added(values: Real) -> Real:
        return np.asarray(np.bincount(position, values, minlength=length), np.float64)

    if name in _EXTREMES:
        return _extreme(_EXTREMES[name], rows[name], position, length)
    if name in _SUMS:
        return added(rows[name])
    total = added(weights)
    if name == "rms":
        return np.asarray(np.sqrt(added(weights * rows[name] ** 2) / total), np.float64)
    if name == "std":
        middle = added(weights * rows["mean"]) / total
        squares = rows["std"] ** 2 + (rows["mean"] - middle[position]) ** 2
        return np.asarray(np.sqrt(added(weights * squares) / total), np.float64)
    return added(weights * rows[name]) / total


def _extreme(choose: Any, values: Real, position: Any, length: int) -> Real:
    found = np.full(length, -np.inf if choose is np.maximum else np.inf)
    choose.at(found, position, values)
    return found
