"""A run's own statistics: a list in each row of `stats`, which readers see as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlight.schema import RunInfo

OWN = "own"


def own_names(info: RunInfo) -> tuple[str, ...]:
    """The names of a run's own statistics, in the order of the list that each row has."""
    return tuple(each["name"] for each in info.statistics)


def matrix(column: pa.ChunkedArray, width: int | None = None) -> npt.NDArray[np.float64]:
    """The lists as rows of a matrix, with NaN where there is no number.

    >>> matrix(pa.chunked_array([[[1.0, None], None, [2.0]]])).tolist()
    [[1.0, nan], [nan, nan], [2.0, nan]]
    """
    lists = column.combine_chunks()
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    width = int(lengths.max(initial=0)) if width is None else width
    found = np.full((len(lengths), width), np.nan)
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    fits = place < width
    found[row[fits], place[fits]] = flat[fits]
    return found


def lists_of(numbers: npt.NDArray[np.float64]) -> pa.Array:
    """The rows of a matrix as lists; what is not finite is missing, and no columns are no lists.

    >>> lists_of(np.array([[1.0, np.nan]])).to_pylist(), lists_of(np.empty((2, 0))).to_pylist()
    ([[1.0, None]], [None, None])
    """
    rows, width = numbers.shape
    if width == 0:
        return pa.nulls(rows, pa.list_(pa.float64()))
    flat = np.where(np.isfinite(numbers), numbers, np.nan).ravel()
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, pa.array(flat, pa.float64(), from_pandas=True))


def physical(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns that files have, for those that are asked for.

    >>> physical(["step", "kurtosis"], ["kurtosis"])
    ['step', 'own']
    """
    return list(dict.fromkeys(OWN if name in names else name for name in columns))


def spread(rows: Any, columns: Iterable[str], names: Sequence[str]) -> Any:
    """Rows of `stats` with a column for each own statistic that is asked for; its list goes."""
    wanted = list(columns)
    asked = [name for name in wanted if name in names]
    if not asked:
        return rows
    numbers = matrix(rows[OWN], len(names))
    for name in asked:
        values = pa.array(numbers[:, names.index(name)], pa.float64(), from_pandas=True)
        rows = rows.append_column(name, pa.chunked_array([values]))
    return rows if OWN in wanted else rows.drop_columns([OWN])
