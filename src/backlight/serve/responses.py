"""Answers: JSON that every browser can parse, Arrow streams, and errors of one sentence."""

from __future__ import annotations

import json
import math
import sys
import traceback
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from backlight.errors import BacklightError, is_strict
from backlight.serve.library import NotFoundError

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"


def to_json(value: object) -> str:
    """JSON in which NaN and infinity are strings, since JSON has no numbers for them.

    >>> to_json({"loss": float("nan"), "steps": [1, float("-inf")]})
    '{"loss":"NaN","steps":[1,"-Infinity"]}'
    """
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(to_json(value), status, media_type="application/json")


def arrow_response(table: pa.Table) -> Response:
    """An answer as an Arrow IPC stream."""
    return Response(arrow_bytes(narrowed(table)), media_type=ARROW_TYPE)


def narrowed(table: pa.Table) -> pa.Table:
    """The same, with every column of integers as the smallest that hold all of it.

    There is less to send, and a page has no integers of 64 bits: it would make each of them anew.

    >>> narrowed(pa.table({"nans": [0, 200], "step": [0, 70_000], "big": [0, 1 << 40]})).schema
    nans: uint8
    step: int32
    big: int64
    >>> narrowed(pa.table({"shape": [[16, 300]]})).schema.field("shape").type.value_type
    DataType(uint16)
    """
    for place, field in enumerate(table.schema):
        is_list = pa.types.is_list(field.type)
        if (field.type.value_type if is_list else field.type) in _WIDE and table.num_rows:
            whole = table.column(place)
            extremes = pc.min_max(pc.list_flatten(whole) if is_list else whole).as_py()
            kind = _smallest(extremes["min"] or 0, extremes["max"] or 0)
            kind = pa.list_(kind) if is_list else kind
            table = table.set_column(place, field.with_type(kind), whole.cast(kind))
    return table


def texts_once(table: pa.Table, *names: str) -> pa.Table:
    """The same, with columns of texts that many rows share as a dictionary: each is read once.

    >>> rows = texts_once(pa.table({"name": ["loss", "loss"]}), "name")
    >>> str(rows.schema.field("name").type), rows.to_pylist()[1]
    ('dictionary<values=string, indices=int32, ordered=0>', {'name': 'loss'})
    """
    for name in names:
        texts = table[name].combine_chunks().dictionary_encode()
        table = table.set_column(table.schema.get_field_index(name), name, texts)
    return table


_WIDE: Final = (pa.int32(), pa.int64())


def _smallest(low: int, high: int) -> pa.DataType:
    for kind, bits in ((pa.uint8(), 8), (pa.uint16(), 16)):
        if low >= 0 and high < 1 << bits:
            return kind
    return pa.int32() if low >= -(1 << 31) and high < 1 << 31 else pa.int64()


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def on_backlight_error(_: Request, error: Exception) -> Response:
    """Bad input: what was asked for is missing, or was asked for wrongly."""
    status = 404 if isinstance(error, NotFoundError) else 400
    return json_response({"error": str(error)}, status)


def on_http_error(request: Request, error: Exception) -> Response:
    """An address or a method that there is not."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return json_response({"error": f"There is nothing at {request.url.path!r}."}, 404)
    return json_response({"error": f"{error.detail}."}, error.status_code)


def on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: one line for the terminal, one sentence for the page."""
    report_fault(f"answering {request.url.path!r}", error)
    return json_response({"error": f"The viewer failed ({type(error).__name__}: {error})."}, 500)


def report_fault(doing: str, error: Exception) -> None:
    """Say on the terminal that something of ours failed; with BACKLIGHT_STRICT=1 also where."""
    what = f"{type(error).__name__}: {error}"
    print(f"backlight: the viewer failed while {doing}: {what}", file=sys.stderr)
    if is_strict():
        traceback.print_exception(error)


ERROR_HANDLERS: Final = {
    BacklightError: on_backlight_error,
    HTTPException: on_http_error,
    Exception: on_fault,
}
