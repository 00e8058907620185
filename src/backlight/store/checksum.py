"""CRC-32, as zlib has it: by the kernel, which is faster, for what is written at each step."""

from __future__ import annotations

import zlib
from typing import Any

from backlight.reduce import native


def crc32(data: Any, before: int = 0) -> int:
    """The checksum of bytes, going on from that of those before them.

    >>> crc32(b"later", crc32(b"sooner or ")) == zlib.crc32(b"sooner or later")
    True
    """
    if type(data) is bytes and native.is_available():
        return native.crc32(data, before)
    return zlib.crc32(data, before)
