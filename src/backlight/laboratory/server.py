"""Serves the lab's page: binds a port, and answers its questions with streams of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from threading import Event
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from backlight.laboratory.frames import frame
from backlight.laboratory.handlers import Lab
from backlight.laboratory.session import Message
from backlight.serve.app import NO_BUNDLE, STATIC
from backlight.serve.live import Hub
from backlight.serve.responses import ERROR_HANDLERS, json_response
from backlight.serve.security import Access, Guarded, access_for
from backlight.serve.server import DEFAULT_HOST, Viewer, ViewerServer, address, bind

FRAMES: Final = "application/vnd.backlight.frames"
_HEADER: Final = "x-backlight"
_MOST_QUESTION_BYTES: Final = 32 << 20


def create_lab_app(lab: Lab, *, access: Access | None = None, cookie: str = "backlight") -> ASGIApp:
    """The lab as an ASGI application."""
    page = STATIC / "lab.html"

    async def index(_: Request) -> Response:
        return FileResponse(page) if page.is_file() else PlainTextResponse(NO_BUNDLE + "\n", 503)

    routes: list[Any] = [Route("/", index), Route("/api/lab", ask, methods=["POST"])]
    if page.is_file():
        routes.append(Mount("/", StaticFiles(directory=STATIC)))
    app = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
    app.state.lab = lab
    return Guarded(app, access or Access(), cookie)


async def ask(request: Request) -> Response:
    """Answer one question of the page."""
    return await answer(request, request.app.state.lab)


async def answer(request: Request, lab: Lab) -> Response:
    """Answer a question about one lab."""
    # No page of another origin can set this header without asking first, and none is allowed to.
    if request.headers.get(_HEADER) != "lab":
        return json_response({"error": "Only the lab's own page may ask the lab."}, 403)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_QUESTION_BYTES:
            return json_response({"error": "The question is too long."}, 413)
    try:
        asked = json.loads(body)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        return json_response({"error": "The question is not JSON."}, 400)
    return StreamingResponse(_messages(lab, asked), media_type=FRAMES)


async def _messages(lab: Lab, asked: dict[str, Any]) -> AsyncIterator[bytes]:
    """The answer's messages as they are made; the work ends when nobody reads them any more."""
    is_cancelled = Event()
    messages = lab.answer(asked, is_cancelled)
    loop = asyncio.get_running_loop()
    try:
        while True:
            data = await loop.run_in_executor(lab.thread, _next, messages)
            if data is None:
                return
            yield data
    finally:
        is_cancelled.set()


def _next(messages: Iterator[Message]) -> bytes | None:
    """The next message as bytes; None at the end."""
    for header, arrays in messages:
        return frame(header, arrays)
    return None


def open_lab(
    lab: Lab,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    allow_hosts: tuple[str, ...] = (),
) -> Viewer:
    """Bind a port for the lab's page."""
    bound = bind(host, port)
    number: int = bound.getsockname()[1]
    access = access_for(host, allow_hosts)
    config = uvicorn.Config(
        create_lab_app(lab, access=access, cookie=f"backlight-{number}"),
        access_log=False,
        lifespan="off",
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    return Viewer(ViewerServer(config, Hub()), bound, address(host, number, access))


def edits_folder(run: Any) -> Path:
    """Where named edits are saved: with the run, or in the current folder."""
    if run is None:
        return Path("backlight-lab")
    return Path(getattr(run, "path", run)) / "lab"
