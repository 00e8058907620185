"""Messages of the lab as bytes: a JSON header and the arrays that it names.

A frame is two little-endian 32-bit lengths, of the header and of the arrays, then both. `arrays`
in the header has for each its place, its length in elements and its type.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from backlight.laboratory.interface import Array
from backlight.serve.responses import to_json

_TYPES = {"float32": "f", "int32": "i"}


def frame(header: dict[str, Any], arrays: list[Array] | None = None) -> bytes:
    r"""A message as bytes.

    >>> data = frame({"event": "done"}, [np.array([1, 2], np.int32)])
    >>> header, body = struct.unpack("<II", data[:8])
    >>> body, data[8 + header:] == b"\x01\0\0\0\x02\0\0\0"
    (8, True)
    """
    places, parts, at = [], [], 0
    for array in arrays or ():
        part = np.ascontiguousarray(array)
        places.append({"at": at, "length": part.size, "type": _TYPES[part.dtype.name]})
        parts.append(part.tobytes())
        at += len(parts[-1])
    text = to_json({**_plain(header), "arrays": places}).encode()
    text += b" " * (-len(text) % 4)  # so that the arrays begin at a multiple of their size
    return struct.pack("<II", len(text), at) + text + b"".join(parts)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value
