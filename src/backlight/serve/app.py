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

from backlight.custom.runner import Custom
from backlight.serve import analyses, handlers, recorded_flows
from backlight.serve import custom as own_view
from backlight.serve.findings import Diagnoses
from backlight.serve.graphs import Graphs
from backlight.serve.kept_values import ValueFiles
from backlight.serve.library import Library
from backlight.serve.live import Hub
from backlight.serve.numerics import Numerics
from backlight.serve.responses import ERROR_HANDLERS
from backlight.serve.security import Access, Guarded

STATIC: Final = Path(__file__).parent / "static"
NO_BUNDLE: Final = (
    "The page of the viewer is not built: in a checkout run `make web`, or `pip install .` "
    "with Node present."
)
_RUN: Final = "/api/runs/{project}/{name}"
ROUTES: Final = {
    "/api/runs": handlers.runs,
    own_view.FRAME_PATH: own_view.frame,
    "/api/custom/plotly.js": own_view.plotly,
    "/api/events": handlers.events,
    "/api/formats": analyses.formats,
    _RUN: handlers.run,
    f"{_RUN}/sites": handlers.sites,
    f"{_RUN}/steps": handlers.steps,
    f"{_RUN}/scalars": handlers.scalars,
    f"{_RUN}/notes": handlers.notes,
    f"{_RUN}/event_log": handlers.event_log,
    f"{_RUN}/calls": handlers.calls,
    f"{_RUN}/samples": handlers.samples,
    f"{_RUN}/heatmap": handlers.heatmap,
    f"{_RUN}/graph": handlers.graph,
    f"{_RUN}/moment": handlers.moment,
    f"{_RUN}/findings": analyses.findings,
    f"{_RUN}/precision": analyses.precision,
    f"{_RUN}/exponents": analyses.exponents,
    f"{_RUN}/flow": analyses.flow,
    f"{_RUN}/flow_history": analyses.flow_over_steps,
    f"{_RUN}/parting": analyses.parting,
    f"{_RUN}/differences": analyses.differences,
    f"{_RUN}/structure": analyses.structure,
    f"{_RUN}/events": handlers.run_events,
    f"{_RUN}/custom": own_view.custom,
    f"{_RUN}/sites/{{site}}/history": handlers.history,
    f"{_RUN}/sites/{{site}}/sketches": handlers.sketches,
    f"{_RUN}/sites/{{site}}/values": handlers.values,
    f"{_RUN}/sites/{{site}}/samples": handlers.site_samples,
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
    custom: Custom | None = None,
    library: Library | None = None,
) -> ASGIApp:
    """The viewer of the runs under `root`, as an ASGI application."""
    routes = [Route(path, handler, methods=["GET"]) for path, handler in ROUTES.items()]
    app = Starlette(
        routes=[
            *routes,
            Route(f"{_RUN}/lab", recorded_flows.ask, methods=["POST"]),
            _page(static),
        ],
        exception_handlers=ERROR_HANDLERS,
        # A low level: most clients are on this machine, where time counts more than bytes.
        middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=2)],
    )
    app.state.library = library or Library(root)
    app.state.graphs = Graphs()
    app.state.diagnoses = Diagnoses()
    app.state.value_files = ValueFiles()
    app.state.numerics = Numerics(app.state.value_files)
    app.state.labs = recorded_flows.Labs()
    app.state.hub = hub
    app.state.custom = custom
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
