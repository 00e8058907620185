"""The kernel's checksum is zlib's."""

from __future__ import annotations

import random
import zlib

import pytest

from backlight.store.checksum import crc32


@pytest.mark.parametrize("before", [0, 1, 0xFFFFFFFF, 123456789])
def test_the_checksum_is_that_of_zlib_for_any_length(before):
    content = random.Random(0).randbytes(100_003)
    for length in (*range(300), 4095, 4096, 4097, len(content)):
        assert crc32(content[:length], before) == zlib.crc32(content[:length], before)


def test_it_takes_what_is_not_bytes_too():
    content = bytes(range(256)) * 9
    assert crc32(memoryview(content)) == crc32(bytearray(content)) == zlib.crc32(content)
