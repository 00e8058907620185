"""Says where an expression is true, over steps or samples: what is not known stays unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from backlight.anomaly.syntax import (
    Expression,
    Function,
    Node,
    Number,
    Operation,
    Scalar,
    Statistic,
)

Real = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

USUAL_OVER: Final = 32
"""`usual` is the median of this many values before."""

_ARITHMETIC: Final[dict[str, Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


@dataclass(frozen=True)
class Series:
    """One value for each step or sample, and whether it is known; truths are 1 and 0."""

    values: Real
    known: Mask

    @property
    def is_true(self) -> Mask:
        """Where it is known to be true."""
        return np.asarray(self.known & (self.values != 0), bool)


class Source(Protocol):
    """Where an expression's numbers come from."""

    @property
    def length(self) -> int:
        """How many steps or samples there are."""

    def statistic(self, asked: Statistic) -> Series:
        """A statistic of some tensors."""

    def scalar(self, asked: Scalar) -> Series:
        """Something that was logged, or a fact of the step."""

    def windowed(self, asked: Function, series: Series) -> Series:
        """`previous`, `usual` or `rank` of a number."""


def evaluate(expression: Expression, source: Source) -> Series:
    """Where an expression is true, false or unknown."""
    with np.errstate(all="ignore"):
        return _value(expression.root, source)


def _value(node: Node, source: Source) -> Series:
    if isinstance(node, Number):
        everywhere = np.ones(source.length, bool)
        return Series(np.full(source.length, node.value), everywhere)
    if isinstance(node, Statistic):
        return source.statistic(node)
    if isinstance(node, Scalar):
        return source.scalar(node)
    if isinstance(node, Function):
        return _function(node, _value(node.argument, source), source)
    right = _value(node.right, source)
    if node.left is None:
        return _alone(node, right)
    return _joined(node, _value(node.left, source), right)


def _function(node: Function, series: Series, source: Source) -> Series:
    if node.name == "is_finite":
        return Series(np.isfinite(series.values).astype(float), series.known)
    if node.name == "abs":
        return Series(np.abs(series.values), series.known)
    if node.name == "log10":
        return Series(np.log10(series.values), series.known)
    return source.windowed(node, series)


def _alone(node: Operation, right: Series) -> Series:
    values = -right.values if node.sign == "-" else 1.0 - right.values
    return Series(values, right.known)


def _joined(node: Operation, left: Series, right: Series) -> Series:
    """Arithmetic needs both sides; `and` and `or` may be decided by one."""
    if node.sign in _ARITHMETIC:
        values = _ARITHMETIC[node.sign](left.values, right.values).astype(float)
        return Series(values, left.known & right.known)
    sides = ((left.known, left.values != 0), (right.known, right.values != 0))
    (known, truth), (other_known, other) = sides
    decides = node.sign == "or"  # one that is true decides an `or`, one that is false an `and`
    decided = (known & (truth == decides)) | (other_known & (other == decides))
    values = np.where(decided, decides, not decides).astype(float)
    return Series(values, decided | (known & other_known))


def windowed(name: str, series: Series) -> Series:
    """`previous`, `usual` or `rank` over a whole run, each of what is known.

    >>> whole = Series(np.array([3.0, 1.0, 2.0]), np.ones(3, bool))
    >>> windowed("previous", whole).values[1:].tolist(), windowed("rank", whole).values.tolist()
    ([3.0, 1.0], [1.0, 0.0, 0.5])
    """
    values = series.values[series.known]
    results, known = np.full(len(values), np.nan), np.ones(len(values), bool)
    if name == "rank":
        results = _ranks(values)
    else:
        known[:1] = False
        if name == "previous":
            results[1:] = values[:-1]
        else:
            results[1:] = _medians_before(values)[1:]
    return _spread(series.known, results, known)


def _medians_before(values: Real) -> Real:
    """For each value the median of those before it, at most `USUAL_OVER`; NaN for the first."""
    early = range(min(len(values), USUAL_OVER))
    medians = [np.median(values[:end]) if end else np.nan for end in early]
    if len(values) > USUAL_OVER:
        windows = np.lib.stride_tricks.sliding_window_view(values[:-1], USUAL_OVER)
        medians.extend(np.median(windows, axis=1))
    return np.array(medians, np.float64)


def _ranks(values: Real) -> Real:
    """The share of the others that is less; NaN is more than any number."""
    below = np.searchsorted(np.sort(values), values, "left")
    return np.asarray(below / max(1, len(values) - 1), np.float64)


def _spread(where: Mask, values: Real, known: Mask) -> Series:
    all_values, all_known = np.full(len(where), np.nan), np.zeros(len(where), bool)
    all_values[where], all_known[where] = values, known
    return Series(all_values, all_known)
