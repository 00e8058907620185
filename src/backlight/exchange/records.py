"""Reads the records of event logs, and the fields of protocol buffers in them, without their tools.

A log that is still written, or whose writer was killed, ends in the middle of a record: what is
before it counts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

_WANDB_HEADER: Final = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK_BYTES: Final = 32768
_HEAD_BYTES: Final = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Fields(dict[int, list[int | bytes]]):
    """The fields of one message, by number; what is missing is 0 or empty, as the format says."""

    def inside(self, number: int) -> list[Fields]:
        """The messages in a field."""
        return [fields_of(each) for each in self.get(number, []) if isinstance(each, bytes)]

    def bytes(self, number: int) -> bytes:
        """The last bytes of a field."""
        found = [each for each in self.get(number, []) if isinstance(each, bytes)]
        return found[-1] if found else b""

    def texts(self, number: int) -> list[str]:
        """All texts of a field."""
        return [str(each, "utf-8") for each in self.get(number, []) if isinstance(each, bytes)]

    def text(self, number: int) -> str:
        """The last text of a field."""
        return str(self.bytes(number), "utf-8")

    def signed(self, number: int) -> int:
        """A whole number, which may be negative."""
        found = [each for each in self.get(number, []) if isinstance(each, int)]
        value = found[-1] if found else 0
        return value - (1 << 64) if value >> 63 else value

    def double(self, number: int) -> float:
        """A float64."""
        content = self.bytes(number)
        return float(struct.unpack("<d", content)[0]) if content else 0.0

    def float(self, number: int) -> float:
        """A float32."""
        content = self.bytes(number)
        return float(struct.unpack("<f", content)[0]) if content else 0.0


def fields_of(message: bytes) -> Fields:
    """The fields of a protocol buffer.

    >>> fields_of(bytes([8, 150, 1, 18, 2, 104, 105]))
    {1: [150], 2: [b'hi']}
    """
    found, place = Fields(), 0
    while place < len(message):
        tag, place = _varint(message, place)
        value: int | bytes
        if tag & 7 == 0:
            value, place = _varint(message, place)
        else:
            size, place = _size(message, tag & 7, place)
            value, place = message[place : place + size], place + size
            if len(value) != size:
                raise ValueError("a message ends too early")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _size(message: bytes, wire: int, place: int) -> tuple[int, int]:
    if wire == 2:
        return _varint(message, place)
    sizes = {1: 8, 5: 4}
    if wire not in sizes:
        raise ValueError(f"a message has a field of kind {wire}")
    return sizes[wire], place


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
    raise ValueError("a number has no end")


def tensorboard_records(content: bytes) -> Iterator[bytes]:
    """The records of an event file, each checked."""
    place = 0
    while place + 12 <= len(content):
        size, crc = struct.unpack_from("<QI", content, place)
        if masked_crc(content[place : place + 8]) != crc:
            raise ValueError(f"the length at byte {place} has a wrong checksum")
        if place + 16 + size > len(content):
            return
        record = content[place + 12 : place + 12 + size]
        if masked_crc(record) != struct.unpack_from("<I", content, place + 12 + size)[0]:
            raise ValueError(f"the record at byte {place} has a wrong checksum")
        yield record
        place += 16 + size


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC: Final = _crc_table()


def masked_crc(content: bytes) -> int:
    """The checksum of event files: CRC-32C, turned and shifted.

    >>> hex(masked_crc(b"123456789"))  # its CRC-32C is 0xe3069283
    '0xc78ab0e5'
    """
    value = 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of an offline file, put together from its blocks, each checked."""
    if not content.startswith(_WANDB_HEADER):
        raise ValueError("it does not begin as such files do")
    parts = b""
    for kind, data in _chunks(content):
        parts = data if kind in (_FULL, _FIRST) else parts + data
        if kind in (_FULL, _LAST):
            yield parts


def _chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = _HEAD_BYTES
    while True:
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        place += left if left < _HEAD_BYTES else 0
        if place + _HEAD_BYTES > len(content):
            return
        crc, size, kind = struct.unpack_from("<IHB", content, place)
        data = content[place + _HEAD_BYTES : place + _HEAD_BYTES + size]
        if len(data) < size:
            return
        if zlib.crc32(bytes([kind]) + data) != crc or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise ValueError(f"the record at byte {place} has a wrong checksum")
        yield kind, data
        place += _HEAD_BYTES + size
