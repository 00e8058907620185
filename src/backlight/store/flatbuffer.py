"""Where a flatbuffer, which the header of an Arrow message is, has its fields."""

from __future__ import annotations

import struct
from typing import Any, Final

PREFIX: Final = struct.Struct("<II")
"""What stands before the flatbuffer: a mark, and its length."""


def field_at(message: Any, table: int, number: int) -> int:
    """Where a flatbuffer's table has its field of a number; 0 where it has none."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < PREFIX.size or struct.unpack_from("<H", message, vtable)[0] < 6 + 2 * number:
        return 0
    field = struct.unpack_from("<H", message, vtable + 4 + 2 * number)[0]
    return int(table + field) if field else 0
