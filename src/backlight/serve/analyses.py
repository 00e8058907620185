"""The addresses that work something out: findings, number formats, gradient flow, comparisons."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from backlight.errors import BacklightError
from backlight.serve import numerics
from backlight.serve.asking import (
    given,
    graphs_of,
    needed,
    number,
    one_sample_of,
    other_reader_of,
    reader_of,
    real,
    whole,
    words,
)
from backlight.serve.compare import differences_of, parting_of, structure_of
from backlight.serve.findings import Diagnoses
from backlight.serve.flow import flow_at, flow_history
from backlight.serve.responses import arrow_response, json_response

_PRECISION_WORDS: Final = ("format", "quantity", "scale", "sample", "kind")


def formats(_: Request) -> Response:
    """The number formats, with what each can hold."""
    return json_response(numerics.formats())


def precision(request: Request) -> Response:
    """What a number format would lose at every site over the recorded steps."""
    asked = {name: request.query_params.get(name) for name in _PRECISION_WORDS}
    answers: numerics.Numerics = request.app.state.numerics
    numbers = {name: number(request, name) for name in ("columns", "iteration")}
    sites = _sites(request) or None
    table = answers.precision(reader_of(request), **given(**asked, **numbers, sites=sites))
    return arrow_response(table)


def exponents(request: Request) -> Response:
    """The exponents of some sites at a step, and what formats would lose of them."""
    asked = given(
        quantity=request.query_params.get("quantity"),
        iteration=number(request, "iteration"),
        formats=words(request, "formats"),
        sample=request.query_params.get("sample"),
    )
    answers: numerics.Numerics = request.app.state.numerics
    return json_response(
        answers.exponents(reader_of(request), _sites(request), needed(request, "step"), **asked)
    )


def findings(request: Request) -> Response:
    """What is wrong with a run, and what could not be checked."""
    diagnoses: Diagnoses = request.app.state.diagnoses
    return json_response(diagnoses.of(reader_of(request)))


def flow(request: Request) -> Response:
    """The tensors and paths that the gradient passes at a step."""
    numbers = {name: number(request, name) for name in ("iteration", "origin")}
    asked = given(**numbers, sample=one_sample_of(request))
    step = needed(request, "step")
    return json_response(flow_at(reader_of(request), graphs_of(request), step, **asked))


def flow_over_steps(request: Request) -> Response:
    """The gradient's norm at each tensor, and what came by its skip connection, over steps."""
    numbers = {name: number(request, name) for name in ("iteration", "columns")}
    kind = request.query_params.get("kind")
    asked = given(**numbers, kind=kind, sample=one_sample_of(request))
    step = needed(request, "step")
    return arrow_response(flow_history(reader_of(request), graphs_of(request), step, **asked))


def parting(request: Request) -> Response:
    """Where two runs first differ."""
    tolerance = real(request, "tolerance")
    runs = reader_of(request), other_reader_of(request)
    return json_response(parting_of(*runs, **given(tolerance=tolerance)))


def differences(request: Request) -> Response:
    """One statistic of two runs at their common sites and steps."""
    asked = {name: request.query_params.get(name) for name in ("quantity", "statistic", "kind")}
    numbers = {name: number(request, name) for name in ("columns", "iteration")}
    runs = reader_of(request), other_reader_of(request)
    return arrow_response(differences_of(*runs, **given(**asked, **numbers)))


def structure(request: Request) -> Response:
    """What of the network is only in one of two runs."""
    runs = reader_of(request), other_reader_of(request)
    return json_response(structure_of(*runs, graphs_of(request), number(request, "step")))


def _sites(request: Request) -> list[int]:
    """The numbers of sites that the parameter `sites` lists."""
    found = [whole(word) for word in words(request, "sites")]
    if None in found:
        raise BacklightError("The parameter 'sites' has a word that is no number.")
    return [site for site in found if site is not None]
