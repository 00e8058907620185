"""Rows that are dictionaries as those of an Arrow message, by the kernel."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from backlight.reduce import native
from backlight.store.packed import Packed

_KINDS: Final = {"int64": b"q", "int32": b"i", "double": b"d", "bool": b"b", "string": b"s"}


class RowPacker:
    """Packs rows of one table.

    >>> from backlight.store.packed import as_batch
    >>> schema = pa.schema([pa.field("step", pa.int64()), pa.field("text", pa.string())])
    >>> packed = RowPacker(schema).pack([{"step": 7, "text": "seven"}, {"step": 8}])
    >>> as_batch(packed).to_pylist()
    [{'step': 7, 'text': 'seven'}, {'step': 8, 'text': None}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = tuple(schema.names)
        kinds = [_KINDS.get(str(field.type)) for field in schema]
        self.is_able = native.is_available() and None not in kinds
        self._kinds = b"".join(kind for kind in kinds if kind)

    def pack(self, rows: list[dict[str, Any]]) -> Packed | None:
        """The rows, or None where Arrow has to do it: it says what is wrong with them."""
        if not self.is_able:
            return None
        packed = native.pack_rows(rows, self._names, self._kinds)
        return None if packed is None else Packed(self._schema, *packed)
