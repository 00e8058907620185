"""Cuts numbers to the digits that a page shows, so that they pack well."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from backlight.serve.responses import arrow_bytes

DIGITS: Final = 5
# Of the mantissas of float64 and float32 sixteen bits stay: one part in 65,536.
_MASKS: Final = {
    pa.float64(): (np.uint64, np.uint64(0xFFFF_FFFF_FFFF_FFFF << 36 & 0xFFFF_FFFF_FFFF_FFFF)),
    pa.float32(): (np.uint32, np.uint32(0xFFFF_FFFF << 7 & 0xFFFF_FFFF)),
}


def fewer_digits(stream: bytes) -> bytes:
    """An Arrow stream whose numbers have fewer digits. NaN, infinity and 0 stay what they are.

    >>> table = pa.table({"value": [1 / 3, float("inf")], "runs": [[2 / 3], None]})
    >>> pa.ipc.open_stream(fewer_digits(arrow_bytes(table))).read_all().to_pylist()
    [{'value': 0.33333..., 'runs': [0.6666...]}, {'value': inf, 'runs': None}]
    """
    return arrow_bytes(with_fewer_digits(pa.ipc.open_stream(stream).read_all()))


def with_fewer_digits(table: pa.Table) -> pa.Table:
    """The same of a table."""
    columns = [_cut(column.combine_chunks()) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _cut(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cut(chunk) for chunk in column.chunks], column.type)
    if pa.types.is_list(column.type):
        return _cut_list(column)
    if column.type not in _MASKS or len(column) == 0:
        return column
    word, mask = _MASKS[column.type]
    numbers = column.to_numpy(zero_copy_only=False)
    cut = (numbers.view(word) & mask).view(numbers.dtype)
    return pa.array(cut, column.type, mask=column.is_null().to_numpy(zero_copy_only=False))


def _cut_list(column: Any) -> Any:
    if column.type.value_type not in _MASKS or column.offset:
        return column
    missing = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(column.offsets, _cut(column.values), mask=missing)
