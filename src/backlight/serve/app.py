"""The addresses that the viewer answers."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from backlight.serve import handlers
from backlight.serve.library import Library
from backlight.serve.live import Hub
from backlight.serve.responses import ERROR_HANDLERS
from backlight.serve.security import Access, Guarded

STATIC: Final = Path(__file__).parent / "static"
NO_BUNDLE: Final = (
    "The page of the viewer is not built: in a checkout run `make web`, or `pip install .` "
    "with Node present."
)
_RUN: Final = "/api/runs/{project}/{name}"
_ROUTES: Final = {
    "/api/runs": handlers.runs,
    "/api/events": handlers.events,
    _RUN: handlers.run,
    f"{_RUN}/sites": handlers.sites,
    f"{_RUN}/steps": handlers.steps,
    f"{_RUN}/scalars": handlers.scalars,
    f"{_RUN}/notes": handlers.notes,
    f"{_RUN}/heatmap": handlers.heatmap,
    f"{_RUN}/events": handlers.run_events,
    f"{_RUN}/sites/{{site}}/history": handlers.history,
    f"{_RUN}/sites/{{site}}/sketches": handlers.sketches,
}


def has_bundle(static: Path = STATIC) -> bool:
    """Whether the page is built."""
    return (static / "index.html").is_file()


def create_app(
    root: Path,
    hub: Hub,
    *,
    access: Access | None = None,
    cookie: str = "backlight",
    static: Path = STATIC,
) -> ASGIApp:
    """The viewer of the runs under `root`, as an ASGI application."""
    routes = [Route(path, handler, methods=["GET"]) for path, handler in _ROUTES.items()]
    app = Starlette(
        routes=[*routes, _page(static)],
        exception_handlers=ERROR_HANDLERS,
        # A low level: most clients are on this machine, where time counts more than bytes.
        middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=2)],
    )
    app.state.library = Library(root)
    app.state.hub = hub
    return Guarded(app, access or Access(), cookie)


def _page(static: Path) -> Mount | Route:
    if not has_bundle(static):
        return Route("/", _no_page)
    # Not left to the system's table, which on some systems says that scripts are plain text.
    mimetypes.add_type("text/javascript", ".js")
    mimetypes.add_type("text/css", ".css")
    return Mount("/", StaticFiles(directory=static, html=True))


def _no_page(_: Request) -> Response:
    return PlainTextResponse(NO_BUNDLE + "\n", 503)
