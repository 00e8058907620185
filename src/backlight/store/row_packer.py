"""A single row as the message of an Arrow stream, without going through Arrow each time.

At each recorded step one row of `steps` is written, and one of `scalars` for what is logged. Arrow
takes longer for such a row than a small network for a layer. All rows whose texts have the same
lengths, and whose gaps are the same, have the same header and the same layout: Arrow makes the
first, and the others are packed after its pattern. If the pattern does not give what Arrow gave, it
is not used.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from backlight.store.messages import head_and_body

_MOST_PATTERNS: Final = 64
_FIXED: Final = {"int64": "q", "int32": "i4x", "double": "d", "bool": "?7x"}


class PackedRow(NamedTuple):
    """A message without its checksum: its header, the header's checksum, and its body."""

    header: bytes
    header_crc: int
    body: bytes


class _Pattern(NamedTuple):
    header: bytes
    header_crc: int
    layout: struct.Struct


class RowPacker:
    """Packs rows of one table.

    >>> schema = pa.schema([pa.field("step", pa.int64()), pa.field("text", pa.string())])
    >>> packer = RowPacker(schema)
    >>> packed = packer.pack({"step": 7, "text": "seven"})
    >>> message = packed.header + packed.body + bytes(16)  # where the checksum goes
    >>> pa.ipc.read_record_batch(message, schema).to_pylist()
    [{'step': 7, 'text': 'seven'}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._struct = pa.struct(list(schema))
        self._columns = [(field.name, str(field.type)) for field in schema]
        self._is_able = all(kind in _FIXED or kind == "string" for _, kind in self._columns)
        self._patterns: dict[tuple[int, ...], _Pattern | None] = {}

    def pack(self, row: Mapping[str, Any]) -> PackedRow | None:
        """The row, or None where Arrow has to do it."""
        if not self._is_able:
            return None
        try:
            key, values = self._take_apart(row)
            pattern = self._pattern(key, row, values)
            body = None if pattern is None else pattern.layout.pack(*values)
        except (AttributeError, UnicodeEncodeError, struct.error):
            return None  # Arrow says what is wrong with it
        if pattern is None or body is None:
            return None
        return PackedRow(pattern.header, pattern.header_crc, body)

    def _take_apart(self, row: Mapping[str, Any]) -> tuple[tuple[int, ...], list[Any]]:
        """What tells the row's pattern, and what is to be packed."""
        key: list[int] = []
        values: list[Any] = []
        for name, kind in self._columns:
            value = row.get(name)
            if value is None:
                key.append(-1)
            elif kind == "string":
                content = value.encode()
                key.append(len(content))
                values += (len(content), content)
            else:
                key.append(0)
                values.append(value)
        return tuple(key), values

    def _pattern(
        self, key: tuple[int, ...], row: Mapping[str, Any], values: list[Any]
    ) -> _Pattern | None:
        if key not in self._patterns:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            self._patterns[key] = self._learn(key, row, values)
        return self._patterns[key]

    def _learn(
        self, key: tuple[int, ...], row: Mapping[str, Any], values: list[Any]
    ) -> _Pattern | None:
        """The pattern of what Arrow makes of this row, if it is the one that is expected."""
        batch = pa.RecordBatch.from_struct_array(pa.array([row], self._struct))
        header, body = head_and_body(batch)
        kinds = (kind for _, kind in self._columns)
        parts = (_layout(kind, length) for kind, length in zip(kinds, key, strict=True))
        layout = struct.Struct("<" + "".join(parts))
        if layout.pack(*values) != bytes(body):
            return None
        return _Pattern(bytes(header), crc32(header), layout)


def _layout(kind: str, length: int) -> str:
    """How a value lies in the body: buffers are filled up to eight bytes.

    Where there is none, a buffer before it says so. A text has its two offsets before it.
    """
    if length < 0:
        return "16x"
    if kind != "string":
        return _FIXED[kind]
    return f"4xi{length}s{-length % 8}x"
