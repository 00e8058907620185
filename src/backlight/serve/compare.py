"""Two runs side by side: where they part, how far apart they are, what is only in one of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeAlias

import pyarrow as pa

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES
from backlight.serve.graphs import Graphs
from backlight.serve.library import NotFoundError
from backlight.store.compare import Difference, differences, parting
from backlight.store.reader import RunReader


def parting_of(one: RunReader, other: RunReader, *, tolerance: float = 1e-3) -> dict[str, Any]:
    """The first step and site at which two runs differ at all, and beyond a tolerance."""
    if not 0 <= tolerance < float("inf"):
        raise BacklightError(f"'tolerance' is {tolerance}: use a number from 0.")
    found = parting(one, other, tolerance=tolerance)
    names = _names(one)
    steps = found.common.steps
    return {
        "tolerance": tolerance,
        "steps": len(steps),
        "first_step": int(steps[0]) if len(steps) else None,
        "last_step": int(steps[-1]) if len(steps) else None,
        "recorded": [len(each.snapshot.recorded_steps) for each in (one, other)],
        "sites": len(found.common.sites),
        "all_sites": [each.rows["sites"] for each in (one, other)],
        "compared": found.compared,
        "exact": _told(found.exact, names),
        "beyond": _told(found.beyond, names),
    }


def differences_of(
    one: RunReader,
    other: RunReader,
    *,
    quantity: str = "value",
    statistic: str = "rms",
    columns: int = 300,
    iteration: int | None = None,
    kind: str | None = None,
) -> pa.Table:
    """One statistic of both runs at common sites and steps."""
    for what, value, known in (
        ("quantity", quantity, QUANTITIES),
        ("statistic", statistic, [name for name in one.statistics if name in other.statistics]),
    ):
        if value not in known:
            raise BacklightError(f"There is no {what} {value!r}: use one of {', '.join(known)}.")
    if not 0 < columns <= 2000:
        raise BacklightError(f"'columns' is {columns}: use a number from 1 to 2000.")
    table, ranges, used = differences(
        one,
        other,
        quantity=quantity,
        statistic=statistic,
        columns=columns,
        iteration=iteration,
        kind=kind,
    )
    return table.replace_schema_metadata({"columns": json.dumps(ranges), "steps": json.dumps(used)})


def structure_of(
    one: RunReader, other: RunReader, graphs: Graphs, step: int | None = None
) -> dict[str, Any]:
    """What of the network, its sites and its dependency graph is only in one of two runs."""
    found = [_graph_at(run, graphs, step) for run in (one, other)]
    return {
        "modules": _modules(one, other),
        "sites": _only(_classes(one), _classes(other)),
        "edges": _edges((one, found[0]), (other, found[1])),
        "graphs": [None if graph is None else graph["step"] for graph in found],
    }


def _modules(one: RunReader, other: RunReader) -> dict[str, Any]:
    own, theirs = ({each["name"]: each for each in run.info.modules} for run in (one, other))
    names = list(dict.fromkeys([*own, *theirs]))
    return {
        "both": sum(name in own and name in theirs for name in names),
        "rows": [
            {"name": name, "one": own.get(name), "other": theirs.get(name)}
            for name in names
            if own.get(name) != theirs.get(name)
        ],
    }


_RunGraph: TypeAlias = tuple[RunReader, dict[str, Any] | None]


def _edges(one: _RunGraph, other: _RunGraph) -> dict[str, Any] | None:
    """Edges by the names of their sites; None where one of the runs has no graph."""
    found = [_edge_names(run, graph) for run, graph in (one, other) if graph is not None]
    return _only(*found) if len(found) == 2 else None


def _graph_at(run: RunReader, graphs: Graphs, step: int | None) -> dict[str, Any] | None:
    """The graph of a step, or where that has none the newest; None where there is none at all."""
    for each in dict.fromkeys([step, None]):
        try:
            return graphs.at(run, each)
        except NotFoundError:
            continue
    return None


def _edge_names(run: RunReader, graph: dict[str, Any]) -> dict[tuple[str, str], str]:
    names = _names(run)
    return {
        (names.get(source, "?"), names.get(sink, "?")): kind
        for kind, pairs in graph["edges"].items()
        for source, sink in pairs
    }


def _only(one: dict[Any, str], other: dict[Any, str]) -> dict[str, Any]:
    """What is a key of one alone, with its value, in the order of each."""
    return {
        "both": len(one.keys() & other.keys()),
        "one": [_row(key, value) for key, value in one.items() if key not in other],
        "other": [_row(key, value) for key, value in other.items() if key not in one],
    }


def _row(key: Any, value: str) -> list[str]:
    return [*key, value] if isinstance(key, tuple) else [key, value]


def _classes(run: RunReader) -> dict[str, str]:
    sites = run.shown_sites()
    columns = (sites[name].to_pylist() for name in ("name", "tensor_class"))
    return dict(zip(*columns, strict=True))


def _names(run: RunReader) -> dict[int, str]:
    sites = run.snapshot.held["sites"]
    return dict(zip(sites["site"].to_pylist(), sites["name"].to_pylist(), strict=True))


def _told(difference: Difference | None, names: dict[int, str]) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {**asdict(difference), "site": names.get(difference.site, "")}
