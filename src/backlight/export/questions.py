"""Which questions of the page an exported file answers.

A question is an address of docs/http.md. The page may ask it with other sizes (`points`, `columns`)
or for a part of the answer (`after`, `around`, `first`, `last`): it always gets the one answer that
is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlencode

IGNORED: Final = ("after", "around", "columns", "first", "formats", "last", "points", "sites")
RUN: Final = "/api/runs/{project}/{name}"
SITE: Final = f"{RUN}/sites/{{site}}"
ANSWERED: Final = frozenset(
    {
        *("/api/runs", "/api/events", "/api/formats", RUN),
        *(f"{RUN}/{what}" for what in "events sites steps scalars notes event_log heatmap".split()),
        *(f"{RUN}/{what}" for what in "graph moment calls samples exponents".split()),
        *(f"{RUN}/{what}" for what in "precision flow flow_history findings".split()),
        *(f"{SITE}/{what}" for what in "history sketches samples values".split()),
    }
)
# What only a running viewer can tell, and what is about two runs.
NOT_ANSWERED: Final = frozenset(
    {
        *("/api/custom/frame", "/api/custom/plotly.js", f"{RUN}/custom"),
        *(f"{RUN}/{what}" for what in "parting differences structure".split()),
    }
)
FORMATS: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
EXPONENT_FORMATS: Final = ("float32", *FORMATS)
"""Those that the page draws beside a histogram, unless others are chosen."""
_SCALES: Final = ("0", "best")
_MOST_SITES: Final = 64


@dataclass(frozen=True)
class Detail:
    """How much is told of each site: points of a history, columns of a sketch or a heatmap."""

    points: int
    columns: int
    heatmap_columns: int
    is_exact: bool = False

    def for_iterations(self, deepest: int) -> Detail:
        """As many points of each iteration as of a step that has only one."""
        return replace(self, points=self.points * deepest)

    def __str__(self) -> str:
        return f"{self.points} points and {self.columns} histograms"


LEVELS: Final = (
    Detail(1000, 120, 300, is_exact=True),
    Detail(1000, 120, 300),
    Detail(400, 60, 200),
    Detail(150, 30, 120),
    Detail(50, 12, 60),
    Detail(20, 5, 30),
    Detail(8, 2, 16),
)
_QUANTITIES: Final = {
    "parameter": ("value", "grad", "grad_applied", "update"),
    "optimizer": ("value",),
    "buffer": ("value",),
}


def quantities_of(tensor_class: str, recorded: Iterable[str]) -> list[str]:
    """Which quantities the page asks for at a site of a class.

    >>> quantities_of("buffer", ["value", "grad"])
    ['value']
    """
    possible = _QUANTITIES.get(tensor_class, ("value", "grad"))
    return [quantity for quantity in recorded if quantity in possible]


Parameters = tuple[tuple[str, str | int], ...]
NO_ITERATION: Final[Parameters] = ()


def at_iteration(number: int) -> Parameters:
    """What a question about a single iteration says besides."""
    return (("iteration", number),)


@dataclass(frozen=True)
class Question:
    """What is asked, and the sizes that it is asked with."""

    path: str
    parameters: Parameters = ()
    sizes: Parameters = ()

    @property
    def key(self) -> str:
        """The one spelling under which the page finds the answer."""
        return _address(self.path, self.parameters)

    @property
    def address(self) -> str:
        """What is asked of the viewer."""
        return _address(self.path, (*self.parameters, *self.sizes))


def _address(path: str, parameters: Iterable[tuple[str, str | int]]) -> str:
    query = urlencode(sorted(parameters))
    return f"{path}?{query}" if query else path


def run_path(project: str, name: str) -> str:
    """The run's part of an address, spelled as a browser does.

    >>> run_path("digits", "it's (2nd) try/x")
    "runs/digits/it's%20(2nd)%20try%2Fx"
    """
    parts = (quote(part, safe="!'()*~") for part in (project, name))
    return "runs/" + "/".join(parts)


def about_run(run: str) -> Iterator[Question]:
    """What is told of the run as a whole, but its steps: which are kept is not known yet."""
    yield from (Question(path) for path in ("runs", "events", "formats", run))
    yield Question(f"{run}/events")
    yield from (Question(f"{run}/{what}") for what in ("sites", "notes", "event_log", "findings"))
    yield Question(f"{run}/scalars", sizes=(("points", 2000),))


def heatmaps(
    run: str,
    quantities: Iterable[str],
    statistics: Sequence[str],
    detail: Detail,
    iteration: Parameters = NO_ITERATION,
) -> Iterator[Question]:
    """Every heatmap: of all iterations, or of one."""
    sizes = (("columns", detail.heatmap_columns),)
    for quantity in quantities:
        for statistic in statistics:
            asked = (("quantity", quantity), ("statistic", statistic))
            yield Question(f"{run}/heatmap", (*asked, *iteration), sizes)


def precisions(
    run: str, quantities: Iterable[str], detail: Detail, iteration: Parameters = NO_ITERATION
) -> Iterator[Question]:
    """What the usual formats would lose: of the last iterations, or of another."""
    sizes = (("columns", detail.heatmap_columns),)
    for quantity in quantities:
        for name in FORMATS:
            for scale in _SCALES:
                asked = (("quantity", quantity), ("format", name), ("scale", scale))
                yield Question(f"{run}/precision", (*asked, *iteration), sizes)


def exponents(
    run: str,
    step: int,
    quantity: str,
    sites: Sequence[int],
    iteration: Parameters = NO_ITERATION,
) -> list[Question]:
    """The exponents of all sites at a step, in questions of the size that is allowed.

    The page finds them under one key, and takes those of the sites that it asks for.
    """
    asked: Parameters = (("quantity", quantity), ("step", step), *iteration)
    groups = [sites[i : i + _MOST_SITES] for i in range(0, len(sites), _MOST_SITES)]
    told = (("formats", ",".join(EXPONENT_FORMATS)),)
    return [
        Question(f"{run}/exponents", asked, (*told, ("sites", ",".join(map(str, group)))))
        for group in groups
    ]


def flow_over_steps(
    run: str, step: int, detail: Detail, iteration: Parameters = NO_ITERATION
) -> Question:
    """The gradient's flow over all steps, through the graph of one."""
    asked = (("step", step), *iteration)
    return Question(f"{run}/flow_history", asked, (("columns", detail.columns),))


def of_site(run: str, site: int, quantities: Iterable[str], detail: Detail) -> Iterator[Question]:
    """What is told of one site over all steps."""
    points = (("points", detail.points),)
    for quantity in quantities:
        asked = (("quantity", quantity),)
        yield Question(f"{run}/sites/{site}/history", asked, points)
        yield sketches(run, site, quantity, detail)
        yield Question(f"{run}/sites/{site}/samples", asked, (("points", detail.points // 4),))


def sketches(
    run: str, site: int, quantity: str, detail: Detail, iteration: Parameters = NO_ITERATION
) -> Question:
    """How the values of one site are distributed over steps: of all iterations, or of one."""
    asked = (("quantity", quantity), *iteration)
    return Question(f"{run}/sites/{site}/sketches", asked, (("columns", detail.columns),))


def flow_at(run: str, step: int, iteration: Parameters = NO_ITERATION) -> Question:
    """The gradient's flow at one step."""
    return Question(f"{run}/flow", (("step", step), *iteration))


def of_step(run: str, step: int) -> Iterator[Question]:
    """What is told of one step but its graph and its flow, its statistics and its raw values."""
    yield Question(f"{run}/calls", (("step", step),))
    yield Question(f"{run}/samples", (("step", step),))


def moment_of(run: str, step: int, quantity: str, statistic: str) -> Question:
    """One statistic of every site at one step."""
    asked = (("step", step), ("quantity", quantity), ("statistic", statistic))
    return Question(f"{run}/moment", asked)


def values_of(run: str, step: int, site: int, quantity: str) -> Question:
    """The raw values of one site at one step."""
    return Question(f"{run}/sites/{site}/values", (("quantity", quantity), ("step", step)))
