"""Asks the viewer's application without a socket: for notebooks and for exported files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from backlight.custom.runner import Custom
from backlight.serve.app import create_app
from backlight.serve.library import Library
from backlight.serve.live import Hub
from backlight.store.reader import RunReader

_EVENTS: Final = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """What an address answers."""

    status: int
    media_type: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether it is no error."""
        return self.status == 200


class InProcess:
    """The viewer of the runs under a root, asked by function calls from any thread.

    >>> from tempfile import mkdtemp
    >>> InProcess(Path(mkdtemp())).get("runs").body[-24:]
    b'"runs":[],"problems":[]}'
    """

    def __init__(self, root: Path, custom: Custom | None = None) -> None:
        self._library = Library(root)
        self._app = create_app(root, Hub(), custom=custom, library=self._library)

    def reader(self, run_id: str) -> RunReader:
        """What the application reads a run with: for questions that come by the thousands."""
        return self._library.reader(self._library.find(run_id))

    def get(self, address: str) -> Answer:
        """What `api/` and this address answers; of a stream of events the state now."""
        asked = asyncio.run_coroutine_threadsafe(_ask(self._app, f"/api/{address}"), _loop())
        return asked.result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop of our own: a notebook's is busy with the notebook."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="backlight-viewer", daemon=True).start()
    return loop


@dataclass
class _Exchange:
    """One request and what is answered to it."""

    status: int = 500
    media_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_stream(self) -> bool:
        """Whether more would follow."""
        return self.media_type.startswith(_EVENTS)

    async def receive(self) -> Message:
        """Leave once there is an answer: a stream of events would go on for ever."""
        await self.is_over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.media_type = Headers(raw=message["headers"]).get("content-type", "")
        elif not self.is_over.is_set():
            self.body += message.get("body", b"")
            if self.is_stream or not message.get("more_body", False):
                self.is_over.set()

    @property
    def answer(self) -> Answer:
        """All of it; of an event its data."""
        _, _, data = bytes(self.body).partition(b"data: ")
        body = data.strip() if self.is_stream else bytes(self.body)
        return Answer(self.status, self.media_type, body)


async def _ask(app: ASGIApp, address: str) -> Answer:
    exchange = _Exchange()
    await app(_scope(address), exchange.receive, exchange.send)
    return exchange.answer


def _scope(address: str) -> Scope:
    path, _, query = address.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": None,
        "server": None,
    }
