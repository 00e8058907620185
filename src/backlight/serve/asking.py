"""What a request asks for: its run, its site, and its parameters."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request

from backlight.errors import BacklightError
from backlight.serve.graphs import Graphs
from backlight.serve.library import Library, NotFoundError
from backlight.serve.one_sample import OneSample
from backlight.store.reader import RunReader
from backlight.store.runs import RunFolder

_LARGEST_NUMBER: Final = 1 << 53


def library_of(request: Request) -> Library:
    """The runs that are served."""
    library: Library = request.app.state.library
    return library


def graphs_of(request: Request) -> Graphs:
    """The graphs of the runs that are looked at."""
    graphs: Graphs = request.app.state.graphs
    return graphs


def folder_of(request: Request) -> RunFolder:
    """Where the run of the address is."""
    parts = request.path_params
    return library_of(request).find(f"{parts['project']}/{parts['name']}")


def run_of(request: Request) -> tuple[RunFolder, RunReader]:
    """The run of the address."""
    folder = folder_of(request)
    return folder, library_of(request).reader(folder)


def reader_of(request: Request) -> RunReader:
    """The reader of the address's run."""
    return run_of(request)[1]


def other_reader_of(request: Request) -> RunReader:
    """The reader of the run that the parameter `with` names."""
    library, name = library_of(request), request.query_params.get("with")
    if name is None:
        raise BacklightError("The parameter 'with' is missing: say which run is meant.")
    return library.reader(library.find(name))


def one_sample_of(request: Request) -> OneSample | None:
    """The sample that is asked about, where it is one and not its whole batch."""
    sample = request.query_params.get("sample")
    if sample is None:
        return None
    return OneSample(reader_of(request), request.app.state.value_files, sample)


def site_of(request: Request) -> tuple[RunReader, int]:
    """The site of the address, and the reader of its run."""
    reader, text = reader_of(request), request.path_params["site"]
    site = whole(text)
    if site is None or not reader.has_site(site):
        raise NotFoundError(f"There is no site {text!r} in this run.")
    return reader, site


def number(request: Request, name: str) -> int | None:
    """A parameter that is a whole number, or None where it is left out."""
    text = request.query_params.get(name)
    if text is None:
        return None
    found = whole(text)
    if found is None:
        raise BacklightError(f"The parameter {name!r} is {text[:40]!r}: use a whole number.")
    return found


def needed(request: Request, name: str) -> int:
    """A whole number that must be given."""
    found = number(request, name)
    if found is None:
        raise BacklightError(f"The parameter {name!r} is missing: say which {name} is meant.")
    return found


def real(request: Request, name: str) -> float | None:
    """A parameter that is a real number, or None where it is left out."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise BacklightError(f"The parameter {name!r} is {text[:40]!r}: use a number.") from None


def words(request: Request, name: str) -> list[str]:
    """A parameter that is a list, parted by commas."""
    return [word for word in request.query_params.get(name, "").split(",") if word]


def whole(text: str) -> int | None:
    """The whole number that a text is, or None."""
    try:
        found = int(text)
    except ValueError:
        return None
    return found if abs(found) < _LARGEST_NUMBER else None


def given(**options: Any) -> dict[str, Any]:
    """What was asked for; the reader knows what to do about the rest."""
    return {name: value for name, value in options.items() if value is not None}
