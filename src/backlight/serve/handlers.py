"""What each address of the interface answers. See docs/http.md, which this follows."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from backlight.serve.asking import (
    folder_of,
    given,
    graphs_of,
    library_of,
    needed,
    number,
    one_sample_of,
    reader_of,
    run_of,
    site_of,
)
from backlight.serve.graphs import moment as step_moment
from backlight.serve.happened import calls_at, ends
from backlight.serve.happened import event_log as told_events
from backlight.serve.kept_values import ValueFiles, sample_history, samples_at
from backlight.serve.live import EventStream
from backlight.serve.responses import arrow_response, json_response, texts_once
from backlight.serve.steps import recorded_steps, with_kinds
from backlight.store.recorded_flows import files_of_steps
from backlight.store.summary import describe


def runs(request: Request) -> Response:
    """Every run under the root."""
    library = library_of(request)
    summaries, problems = library.summaries()
    root = str(library.root.resolve())
    return json_response({"root": root, "runs": summaries, "problems": problems})


def run(request: Request) -> Response:
    """One run: its summary, what `run.json` says, and what there is to ask for."""
    folder, reader = run_of(request)
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
            "statistics": info.statistics,
            "custom": getattr(request.app.state.custom, "title", None),
            "flow_steps": list(files_of_steps(folder.path)),
            "rows": reader.rows,
            "problems": [*reader.problems, *graphs_of(request).problems(reader)],
            "lost_steps": reader.lost_steps(),
        }
    )


def sites(request: Request) -> Response:
    """The sites in network order."""
    return arrow_response(reader_of(request).shown_sites())


def steps(request: Request) -> Response:
    """Recorded steps: all near one, some of the others."""
    asked = {name: number(request, name) for name in ("around", "after", "points")}
    kind = request.query_params.get("kind")
    known = graphs_of(request).steps(reader_of(request))
    return arrow_response(
        texts_once(recorded_steps(known, **given(kind=kind, **asked)), "kind", "graph")
    )


def scalars(request: Request) -> Response:
    """What was logged, thinned."""
    asked = given(after=number(request, "after"), points=number(request, "points"))
    reader = reader_of(request)
    rows = with_kinds(graphs_of(request).steps(reader), reader.scalars(**asked))
    return arrow_response(texts_once(rows, "name", "kind"))


def notes(request: Request) -> Response:
    """What was noted."""
    return json_response(ends("notes", reader_of(request).notes().to_pylist()))


def event_log(request: Request) -> Response:
    """What happened: values that are not finite, spikes, and what the user asked to be told."""
    return json_response(ends("events", told_events(reader_of(request))))


def calls(request: Request) -> Response:
    """The functional calls of a step."""
    step = needed(request, "step")
    return arrow_response(calls_at(reader_of(request), step))


def samples(request: Request) -> Response:
    """Which samples of a step's batch were kept."""
    step = needed(request, "step")
    return arrow_response(samples_at(reader_of(request), step))


def heatmap(request: Request) -> Response:
    """One statistic of every site over the recorded steps."""
    asked = given(
        quantity=request.query_params.get("quantity"),
        statistic=request.query_params.get("statistic"),
        columns=number(request, "columns"),
        first=number(request, "first"),
        last=number(request, "last"),
        iteration=number(request, "iteration"),
        kind=request.query_params.get("kind"),
    )
    shown = one_sample_of(request) or reader_of(request)
    return arrow_response(shown.heatmap(**asked))


def graph(request: Request) -> Response:
    """The dependency graph of a step."""
    step = number(request, "step")
    return json_response(graphs_of(request).at(reader_of(request), step))


def moment(request: Request) -> Response:
    """One statistic of every site at one step, iteration by iteration."""
    step = needed(request, "step")
    asked = given(
        quantity=request.query_params.get("quantity"),
        statistic=request.query_params.get("statistic"),
    )
    sample = one_sample_of(request)
    if sample is not None:
        return arrow_response(sample.moment(step, **asked))
    return arrow_response(step_moment(reader_of(request), step, **asked))


def history(request: Request) -> Response:
    """Every statistic of one quantity at one site."""
    quantity, points = request.query_params.get("quantity"), number(request, "points")
    reader, site = site_of(request)
    rows = reader.history(site, **given(quantity=quantity, points=points))
    rows = with_kinds(graphs_of(request).steps(reader), rows)
    return arrow_response(texts_once(rows, "kind", "dtype"))


def sketches(request: Request) -> Response:
    """The histograms of one quantity at one site."""
    said = {name: request.query_params.get(name) for name in ("quantity", "kind")}
    numbers = {name: number(request, name) for name in ("columns", "iteration")}
    reader, site = site_of(request)
    return arrow_response(reader.sketches(site, **given(**said, **numbers)))


def values(request: Request) -> Response:
    """The raw values of one quantity at one site and step, sample by sample."""
    step, quantity = needed(request, "step"), request.query_params.get("quantity")
    reader, site = site_of(request)
    files: ValueFiles = request.app.state.value_files
    return arrow_response(files.at(reader, site, step, **given(quantity=quantity)))


def site_samples(request: Request) -> Response:
    """The statistics of single samples of one quantity at one site."""
    quantity, points = request.query_params.get("quantity"), number(request, "points")
    reader, site = site_of(request)
    rows = sample_history(reader, site, **given(quantity=quantity, points=points))
    return arrow_response(texts_once(with_kinds(graphs_of(request).steps(reader), rows), "kind"))


def run_events(request: Request) -> EventStream:
    """Says when a run has changed."""
    library, folder = library_of(request), folder_of(request)
    library.reader(folder)  # a run that cannot be read is an error now, not an empty stream
    return EventStream(
        request.app.state.hub, folder.id, lambda: library.state(library.find(folder.id))
    )


def events(request: Request) -> EventStream:
    """Says when any run has changed."""
    library = library_of(request)
    return EventStream(request.app.state.hub, "", lambda: {"runs": library.summaries()[0]})
