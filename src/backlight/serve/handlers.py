"""What each address of the interface answers. See docs/http.md, which this follows."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from backlight.errors import BacklightError
from backlight.serve.library import Library, NotFoundError
from backlight.serve.live import EventStream, Hub
from backlight.serve.responses import arrow_response, json_response
from backlight.store.reader import RunReader
from backlight.store.runs import RunFolder
from backlight.store.summary import describe

_LARGEST_NUMBER: Final = 1 << 53


def runs(request: Request) -> Response:
    """Every run under the root."""
    library = _library(request)
    summaries, problems = library.summaries()
    root = str(library.root.resolve())
    return json_response({"root": root, "runs": summaries, "problems": problems})


def run(request: Request) -> Response:
    """One run: its summary, what `run.json` says, and what there is to ask for."""
    folder, reader = _run(request)
    info = reader.info
    return json_response(
        {
            "summary": describe(folder, reader),
            "config": info.config,
            "environment": info.environment,
            "modules": info.modules,
            "recorder": info.recorder,
            "scalar_names": reader.scalar_names(),
            "quantities": reader.quantities(),
            "rows": reader.rows,
            "problems": reader.problems,
        }
    )


def sites(request: Request) -> Response:
    """The sites in network order."""
    return arrow_response(_run(request)[1].sites())


def steps(request: Request) -> Response:
    """The steps later than one."""
    after = _number(request, "after")
    reader = _run(request)[1]
    return arrow_response(reader.steps(**_given(after=after)))


def scalars(request: Request) -> Response:
    """What was logged, thinned."""
    asked = _given(after=_number(request, "after"), points=_number(request, "points"))
    return arrow_response(_run(request)[1].scalars(**asked))


def notes(request: Request) -> Response:
    """What was noted."""
    return json_response({"notes": _run(request)[1].notes().to_pylist()})


def heatmap(request: Request) -> Response:
    """One statistic of every site over the recorded steps."""
    asked = _given(
        quantity=request.query_params.get("quantity"),
        statistic=request.query_params.get("statistic"),
        columns=_number(request, "columns"),
        first=_number(request, "first"),
        last=_number(request, "last"),
    )
    return arrow_response(_run(request)[1].heatmap(**asked))


def history(request: Request) -> Response:
    """Every statistic of one quantity at one site."""
    quantity, points = request.query_params.get("quantity"), _number(request, "points")
    reader, site = _site(request)
    return arrow_response(reader.history(site, **_given(quantity=quantity, points=points)))


def sketches(request: Request) -> Response:
    """The histograms of one quantity at one site."""
    quantity, columns = request.query_params.get("quantity"), _number(request, "columns")
    reader, site = _site(request)
    return arrow_response(reader.sketches(site, **_given(quantity=quantity, columns=columns)))


def run_events(request: Request) -> EventStream:
    """Says when a run has changed."""
    library, folder = _library(request), _folder(request)
    library.reader(folder)  # a run that cannot be read is an error now, not an empty stream
    return EventStream(_hub(request), folder.id, lambda: library.state(library.find(folder.id)))


def events(request: Request) -> EventStream:
    """Says when any run has changed."""
    library = _library(request)
    return EventStream(_hub(request), "", lambda: {"runs": library.summaries()[0]})


def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


def _folder(request: Request) -> RunFolder:
    parts = request.path_params
    return _library(request).find(f"{parts['project']}/{parts['name']}")


def _run(request: Request) -> tuple[RunFolder, RunReader]:
    folder = _folder(request)
    return folder, _library(request).reader(folder)


def _site(request: Request) -> tuple[RunReader, int]:
    reader, text = _run(request)[1], request.path_params["site"]
    site = _whole(text)
    if site is None or not reader.has_site(site):
        raise NotFoundError(f"There is no site {text!r} in this run.")
    return reader, site


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    number = _whole(text)
    if number is None:
        raise BacklightError(f"The parameter {name!r} is {text[:40]!r}: use a whole number.")
    return number


def _whole(text: str) -> int | None:
    """The whole number that a text is, or None."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < _LARGEST_NUMBER else None


def _given(**options: Any) -> dict[str, Any]:
    """What was asked for; the reader knows what to do about the rest."""
    return {name: value for name, value in options.items() if value is not None}
