"""Packs answers: many in one gzip, each answer once, as base64 in HTML."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from backlight.export.questions import Question

_FULL_BYTES: Final = 1 << 19

Place = tuple[int, int, int]


@dataclass
class Packs:
    """Answers by their addresses.

    >>> packs = Packs()
    >>> packs.add("runs", b"[]"), packs.add("events", b"[]")
    (None, None)
    >>> packs.places
    {'runs': (0, 0, 2), 'events': (0, 0, 2)}
    """

    places: dict[str, Place] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _closed: list[str] = field(default_factory=list)
    _open: bytearray = field(default_factory=bytearray)
    _known: dict[bytes, Place] = field(default_factory=dict)

    def add(self, key: str, body: bytes) -> None:
        """Put an answer in; one that is there already is not put in again."""
        if body not in self._known:
            self._known[body] = (len(self._closed), len(self._open), len(body))
            self._open += body
        self.places[key] = self._known[body]
        if len(self._open) >= _FULL_BYTES:
            self.close()

    def add_all(self, answers: Iterable[tuple[Question, bytes]]) -> None:
        """Put several answers in."""
        for question, body in answers:
            self.add(question.key, body)

    def fail(self, questions: Iterable[Question], sentence: str) -> None:
        """Let questions have no answer, and say why."""
        for question in questions:
            self.places.pop(question.key, None)
            self.failures[question.key] = sentence

    def same(self, key: str, other: str) -> None:
        """Let a question have the answer of another."""
        self.places[key] = self.places[other]

    def close(self) -> None:
        """End the open pack, so that `size_bytes` is exact."""
        if self._open:
            self._closed.append(_base64(bytes(self._open)))
            self._open = bytearray()
            # What is far away is not worth looking for: a pack is opened as a whole.
            self._known = {}

    @property
    def size_bytes(self) -> int:
        """What the closed packs and the list of answers take in the file, about."""
        listed = sum(len(key) // 4 + 12 for key in self.places)
        return sum(map(len, self._closed)) + listed

    def mark(self) -> tuple[int, set[str]]:
        """Where it stands, to go back to."""
        self.close()
        return len(self._closed), set(self.places)

    def back_to(self, mark: tuple[int, set[str]]) -> None:
        """Forget what was put in since."""
        count, keys = mark
        self.close()
        del self._closed[count:]
        self.places = {key: self.places[key] for key in self.places if key in keys}

    def html(self, **contents: Any) -> Iterator[str]:
        """The packs and their list, as elements of a page: in base64, which is never markup."""
        self.close()
        listed = json.dumps(
            {"answers": self.places, "failures": self.failures, **contents}, separators=(",", ":")
        )
        yield _element("backlight-contents", _base64(listed.encode()))
        for number, pack in enumerate(self._closed):
            yield _element(f"backlight-pack-{number}", pack)


def _base64(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _element(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{name}">{text}</script>\n'
