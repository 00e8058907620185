"""What a user's own view answers: pictures, and what showing them needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from backlight.custom.runner import Custom
from backlight.custom.selection import selection_of
from backlight.errors import BacklightError
from backlight.serve.library import Library, NotFoundError
from backlight.serve.responses import json_response

FRAME_PATH: Final = "/api/custom/frame"
# What the frame may do besides: nothing. It has no origin, and so neither cookies nor answers.
FRAME_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Custom view</title>
<style>html, body, #plot { height: 100%; margin: 0; }</style></head>
<body><script>
addEventListener("message", ({ data, source }) => {
  if (source !== parent) return;
  if (data.script) {
    const script = document.createElement("script");
    script.textContent = data.script;
    document.head.append(script);
    document.body.innerHTML = "<div id=plot></div>";
  }
  if (data.figure) {
    const { data: traces, layout = {}, config = {} } = data.figure;
    const fitted = { ...layout, autosize: layout.width === undefined };
    Plotly.react("plot", traces, fitted, { responsive: true, displaylogo: false, ...config });
  }
  if (data.html !== undefined) {
    document.open();
    document.write(data.html);
    document.close();
  }
});
</script></body></html>
"""


def custom(request: Request) -> Response:
    """What the user's function makes of the selection."""
    own: Custom | None = request.app.state.custom
    library: Library = request.app.state.library
    parts = request.path_params
    folder = library.find(f"{parts['project']}/{parts['name']}")
    if own is None:
        raise NotFoundError("There is no view of your own: start the viewer with --custom FILE.py.")
    return json_response(own.draw(folder.path, selection_of(request.query_params)))


def frame(_: Request) -> Response:
    """The page that shows what a user's function made, apart from all else."""
    return HTMLResponse(_FRAME)


def plotly(_: Request) -> Response:
    """The script of the Plotly that is installed."""
    found = find_spec("plotly")
    places = list(found.submodule_search_locations or []) if found else []
    for place in places:
        script = Path(place) / "package_data" / "plotly.min.js"
        if script.is_file():
            return Response(script.read_bytes(), media_type="text/javascript")
    raise BacklightError(
        "A Plotly figure is shown by Plotly, which is missing: `pip install plotly`."
    )
