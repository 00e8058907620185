"""The lab over a channel that hears only what is asked, such as a notebook's.

A long answer comes in parts: the page asks for the next one, and between two parts it can withdraw
its question. The model runs in the thread that hears the questions, so never beside a cell of the
notebook, whose random numbers it would disturb.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any, Final

from backlight.laboratory.frames import frame
from backlight.laboratory.handlers import Lab
from backlight.laboratory.session import Message

PART_SECS: Final = 0.1
MORE: Final = 206
"""The status of a part that another one follows."""
END: Final = 200


class Channel:
    """Answers the questions of all pages that show one lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._under_way: dict[str, tuple[Iterator[Message], Event]] = {}

    def hear(self, page: str, said: Mapping[str, Any]) -> tuple[int, bytes]:
        """What a page says: a question, that it waits for more, or that it does not any more.

        The answer is a status and some frames. `page` tells pages apart.
        """
        key = f"{page}{said.get('number')}"
        if "question" in said:
            is_cancelled = Event()
            asked = dict(said["question"])
            self._under_way[key] = self._lab.answer(asked, is_cancelled), is_cancelled
        elif said.get("cancel"):
            _, is_cancelled = self._under_way.pop(key, (None, Event()))
            is_cancelled.set()
        return self._part(key)

    def _part(self, key: str) -> tuple[int, bytes]:
        """The messages of the next tenth of a second, at least one."""
        if key not in self._under_way:
            return END, b""
        messages, _ = self._under_way[key]
        started, parts = time.monotonic(), []
        for header, arrays in messages:
            parts.append(frame(header, arrays))
            if time.monotonic() - started > PART_SECS:
                return MORE, b"".join(parts)
        del self._under_way[key]
        return END, b"".join(parts)
