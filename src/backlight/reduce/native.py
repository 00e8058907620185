"""Rows by the C kernel: CPU tensors, one call each."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from backlight.schema import QUANTITIES, STATS

try:
    from backlight.reduce import _kernel
except ImportError as _error:
    _kernel = None  # type: ignore[assignment]
    _why = f"the kernel was not compiled when Backlight was installed ({_error})"
else:
    _why = ""


def is_available() -> bool:
    """Whether the C kernel was compiled and loads here."""
    return _kernel is not None


def why_unavailable() -> str:
    """Why the kernel cannot be used, in a few words; empty if it can."""
    return _why


def dtype_codes() -> dict[Any, int]:
    """The kernel's number for each torch dtype that it reads."""
    import torch

    known = ((getattr(torch, name, None), code) for code, name in enumerate(_kernel.DTYPES))
    return {dtype: code for dtype, code in known if dtype is not None}


def new_table() -> _kernel.Table:
    """An empty table that the kernel fills, tensor by tensor."""
    return _kernel.Table()


_FIXED: Final = {
    field.name: field.type
    for field in STATS
    if not pa.types.is_nested(field.type) and field.name not in ("step", "quantity", "dtype")
}
_NULL_UNLESS: Final = {
    **dict.fromkeys(("mean", "std", "min", "max", "abs_mean", "abs_max", "rms"), "has_finite"),
    **dict.fromkeys(("units", "dead_units", "constant_units", "batch_std"), "has_units"),
}
_QUANTITY_NAMES: Final = pa.array(QUANTITIES)
_DTYPE_NAMES: Final = pa.array(_kernel.DTYPES if is_available() else (), pa.utf8())


def to_batch(table: _kernel.Table, step: int) -> pa.RecordBatch:
    """The table's rows as a batch of `stats`. Its buffers are taken as they are."""
    rows, columns = len(table), table.columns()
    masks = {name: _bitmap(columns[name]) for name in ("has_finite", "has_units")}

    def column(field: pa.Field) -> pa.Array:
        name = field.name
        if name == "step":
            return pa.repeat(pa.scalar(step, pa.int64()), rows)
        if name == "quantity":
            return _decode(_QUANTITY_NAMES, columns[name], rows)
        if name == "dtype":
            return _decode(_DTYPE_NAMES, columns[name], rows)
        if name in _FIXED:
            mask = masks[_NULL_UNLESS[name]] if name in _NULL_UNLESS else None
            return pa.Array.from_buffers(_FIXED[name], rows, [mask, pa.py_buffer(columns[name])])
        group = "shape" if name == "shape" else "sketch"
        values = columns["shape_values" if name == "shape" else name]
        return _lists(field.type, columns[f"{group}_offsets"], values, rows)

    return pa.RecordBatch.from_arrays([column(field) for field in STATS], schema=STATS)


def _bitmap(flags: bytes) -> pa.Buffer | None:
    """An Arrow validity bitmap; none where every row is valid."""
    if b"\0" not in flags:
        return None
    import numpy as np

    return pa.py_buffer(np.packbits(np.frombuffer(flags, np.int8), bitorder="little"))


def _decode(names: pa.Array, codes: bytes, rows: int) -> pa.Array:
    indices = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, names).dictionary_decode()


def _lists(type_: pa.ListType, offsets: bytes, values: bytes, rows: int) -> pa.Array:
    inner = type_.value_type
    length = len(values) // (inner.bit_width // 8)
    children = pa.Array.from_buffers(inner, length, [None, pa.py_buffer(values)])
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(offsets)], children=[children])
