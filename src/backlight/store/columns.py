"""Makes columns of plain values by hand: Arrow's way loads pandas, which takes half a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

_DTYPES: Final = {"double": "float64"}
"""Where Arrow's name of a type is not numpy's."""


def column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """An array of numbers, truths, texts, or lists of these; each may be None.

    >>> column(["one", None, "drei"], pa.utf8()).to_pylist()
    ['one', None, 'drei']
    >>> column([["a"], [], ["b", "c"]], pa.list_(pa.utf8())).to_pylist()
    [['a'], [], ['b', 'c']]
    >>> column([1.5, None], pa.float64()).to_pylist(), column([True, False], pa.bool_()).to_pylist()
    ([1.5, None], [True, False])
    """
    is_there = [value is not None for value in values]
    bitmap = None if all(is_there) else _bits(is_there)
    if pa.types.is_string(type_):
        texts = [b"" if value is None else value.encode() for value in values]
        buffers = [bitmap, _offsets(texts), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(type_, len(values), buffers)
    if pa.types.is_list(type_):
        lists = [() if value is None else value for value in values]
        items = column(list(chain.from_iterable(lists)), type_.value_type)
        return pa.Array.from_buffers(
            type_, len(values), [bitmap, _offsets(lists)], children=[items]
        )
    if pa.types.is_boolean(type_):
        return pa.Array.from_buffers(type_, len(values), [bitmap, _bits(values)])
    known = np.array([0 if value is None else value for value in values], _dtype(type_))
    return pa.Array.from_buffers(type_, len(values), [bitmap, pa.py_buffer(known)])


def numbers(values: Any, type_: pa.DataType) -> pa.Array:
    """An array of numbers out of one of numpy's, in which NaN is none.

    >>> numbers(np.array([0.5, np.nan]), pa.float64()).to_pylist()
    [0.5, None]
    """
    is_none = np.isnan(values)
    bitmap = _bits(~is_none) if is_none.any() else None
    known = np.ascontiguousarray(values, _dtype(type_))
    return pa.Array.from_buffers(type_, len(known), [bitmap, pa.py_buffer(known)])


def elements(array: pa.Array) -> Any:
    """The numbers of an array that has no nulls, as one of numpy's on the same memory.

    >>> elements(column([5, 6, 7], pa.int32())[1:]).tolist()
    [6, 7]
    """
    known = np.frombuffer(array.buffers()[1], _dtype(array.type))
    return known[array.offset : array.offset + len(array)]


def batch_of(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows that are dictionaries as a batch.

    >>> batch_of([{"step": 7}], pa.schema([("step", pa.int64())])).to_pylist()
    [{'step': 7}]
    """
    columns = [column([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    name = str(type_)
    return np.dtype(_DTYPES.get(name, name))


def _bits(truths: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(truths, bool), bitorder="little"))


def _offsets(items: Sequence[Any]) -> pa.Buffer:
    ends = np.cumsum([0, *map(len, items)], dtype=np.int32)
    return pa.py_buffer(ends)
