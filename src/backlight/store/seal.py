"""A checksum inside of JSON: whoever reads it can ask whether it is as it was written."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

_SEAL: Final = re.compile(r',\n "crc32": (\d+)\n}\n\Z')


def sealed(text: str) -> str:
    r"""An indented JSON object with one more member: the checksum of all that stands before it.

    >>> print(sealed('{\n "steps": 3\n}'), end="")
    {
     "steps": 3,
     "crc32": 4046710623
    }
    """
    body = text.rstrip().removesuffix("}").rstrip()
    return f'{body},\n "crc32": {crc32(body.encode())}\n}}\n'


def is_as_written(text: str) -> bool:
    r"""Whether a sealed text is what it was.

    >>> text = sealed('{\n "steps": 3\n}')
    >>> is_as_written(text), is_as_written(text.replace("3", "8", 1)), is_as_written("{}")
    (True, False, False)
    """
    found = _SEAL.search(text)
    return found is not None and crc32(text[: found.start()].encode()) == int(found[1])
