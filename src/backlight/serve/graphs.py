"""The dependency graphs of a run: which step has which, what each says, and a step's numbers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES
from backlight.serve.library import NotFoundError
from backlight.serve.responses import narrowed
from backlight.store.graphs import graph_problem, read_graph, unreadable
from backlight.store.reader import RunReader, check_one_of
from backlight.store.same_loss import without_same
from backlight.store.summary import of_lowest_rank
from backlight.store.tiles import NORM, SHARES, UPDATE_RATIO

_OPEN_RUNS: Final = 6
_MOST_CHECKED: Final = 100
"""A run has a few graphs; one whose structure changes all the time has thousands."""


class Graphs:
    """Which graph each step of a run has, for the runs that are looked at."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[Path, float], tuple[int, pa.Table]] = OrderedDict()

    def at(self, reader: RunReader, step: int | None) -> dict[str, Any]:
        """The graph of a step, or of the last one that has one, with what each node is called."""
        row = self._row(reader, step)
        if row is None or not row["graph"]:
            raise NotFoundError(_no_graph(step))
        graph = _read(reader.path, row["graph"])
        nodes, edges = without_same(graph["nodes"], graph["edges"], reader.same_losses())
        graph = {**graph, "nodes": nodes, "edges": edges}
        places, roles = _places(reader), dict(graph["nodes"])
        order = within_iterations(list(roles), _sights(reader, row["step"], roles))
        nodes = [[site, roles[site], *places.get(site, ("", "", ""))] for site in order]
        return {**graph, **row, "nodes": nodes, "signature": row["graph"]}

    def problems(self, reader: RunReader) -> list[str]:
        """A sentence for each graph of the run that cannot be read."""
        names = pc.unique(self.steps(reader)["graph"]).to_pylist()
        found = (graph_problem(reader.path, name) for name in names[:_MOST_CHECKED] if name)
        return [problem for problem in found if problem]

    def _row(self, reader: RunReader, step: int | None) -> dict[str, Any] | None:
        known = self.steps(reader).select(["step", "kind", "iterations", "graph"])
        is_asked = pc.field("graph") != "" if step is None else pc.field("step") == step
        rows: list[dict[str, Any]] = known.filter(is_asked)[-1:].to_pylist()
        return rows[0] if rows else None

    def steps(self, reader: RunReader) -> pa.Table:
        """The steps in their order, each with how many iterations it had, and its graph."""
        rows = reader.rows["steps"]
        key = reader.path, reader.info.created_at
        with self._lock:
            count, known = self._known.pop(key, (-1, None))
            if count != rows:
                known = with_graphs(reader.steps())
            self._known[key] = rows, known
            while len(self._known) > _OPEN_RUNS:
                self._known.popitem(last=False)
        return known


def with_graphs(steps: pa.Table) -> pa.Table:
    """Steps in their order, each with at least one iteration, and its graph.

    A step whose graph was not followed has the last one before of the same kind.

    >>> rows = {"step": [0, 1, 2, 3], "kind": ["a", "b", "a", "b"], "graph": ["f", "", "", "e"]}
    >>> with_graphs(pa.table({**rows, "iterations": [1, 0, 5, 1]}))["graph"].to_pylist()
    ['f', '', 'f', 'e']
    """
    kinds = _codes(steps["kind"])
    has_graph = pc.not_equal(steps["graph"], "").to_numpy(zero_copy_only=False)
    source = np.full(steps.num_rows, -1)
    for kind in range(int(kinds.max(initial=-1)) + 1):
        places = np.flatnonzero(kinds == kind)
        source[places] = np.maximum.accumulate(np.where(has_graph[places], places, -1))
    found = steps["graph"].take(pa.array(np.where(source < 0, 0, source)))
    graphs = pc.if_else(pa.array(source >= 0), found, "")
    iterations = pc.max_element_wise(steps["iterations"], pa.scalar(1, pa.int32()))
    columns = {name: steps[name] for name in steps.column_names}
    return pa.table({**columns, "iterations": iterations, "graph": graphs})


def within_iterations(order: Sequence[int], sights: Iterable[Sequence[int]]) -> list[int]:
    """Sites as an iteration sees them, of their order of first sight and those of each iteration.

    What only a later iteration sees comes before what that one sees after it: an edge that leads
    on in this order stays within an iteration, and one that leads back goes to the next.

    >>> within_iterations([0, 1, 2, 3, 4], [[0, 1, 2], [0, 3, 1, 2], [0, 1, 2, 4]])
    [0, 3, 1, 2, 4]
    """
    known: set[int] = set()
    earlier: dict[int, list[int]] = {}
    for seen in sights:
        after = None
        for site in dict.fromkeys(reversed(seen)):
            if site in known:
                after = site
            elif after is not None:
                earlier.setdefault(after, []).append(site)
        known.update(seen)
    moved = set(chain.from_iterable(earlier.values()))
    found, todo = [], [site for site in reversed(order) if site not in moved]
    while todo:
        site = todo.pop()
        if site in earlier:
            todo += (site, *earlier.pop(site))
        else:
            found.append(site)
    return found


def moment_statistics(reader: RunReader) -> tuple[str, ...]:
    """What can be asked of all sites at one step."""
    return tuple(name for name in reader.statistics if name != UPDATE_RATIO)


def moment(
    reader: RunReader, step: int, *, quantity: str = "value", statistic: str = "rms"
) -> pa.Table:
    """One statistic of every site at one step: `site, iteration, nans, infs, shape, value`.

    The statistics are those of a heatmap but `update_ratio`, which is of two quantities; `norm` is
    the Euclidean norm of the finite elements.
    """
    check_one_of("quantity", quantity, QUANTITIES)
    check_one_of("statistic", statistic, moment_statistics(reader))
    ((_, table),) = moments(reader, step, quantity, [statistic])
    return table


def moments(
    reader: RunReader, step: int, quantity: str, statistics: Iterable[str]
) -> Iterator[tuple[str, pa.Table]]:
    """The same of several statistics, with what they share made once."""
    rows = reader.step(step).filter(pc.field("quantity") == quantity)
    shared = narrowed(rows.select(["site", "iteration", "nans", "infs", "shape"]))
    for statistic in statistics:
        yield statistic, shared.append_column("value", value_of(rows, statistic))


def value_of(rows: pa.Table, statistic: str) -> pa.ChunkedArray:
    """A statistic of rows, as the columns tell it."""
    if statistic == NORM:
        return pc.multiply(rows["rms"], pc.sqrt(pc.cast(rows["count"], pa.float64())))
    if statistic not in SHARES:
        return rows[statistic]
    part, whole = (pc.cast(rows[name], pa.float64()) for name in SHARES[statistic])
    has_any = pc.greater(whole, 0.0)
    return pc.if_else(has_any, pc.divide(part, pc.if_else(has_any, whole, math.nan)), None)


def _sights(reader: RunReader, step: int, of: Collection[int]) -> list[list[int]]:
    """The sites that each iteration of a step saw, one after another; none of a step that has one.

    What was there before the first iteration is one too: a step that goes once through its loop
    has the memory before it, and the memory that it makes.
    """
    rows = of_lowest_rank(reader.step(step).filter(pc.field("quantity") == "value"))
    if len(pc.unique(rows["iteration"])) < 2:
        return []
    columns = [rows[name].to_pylist() for name in ("iteration", "site")]
    seen: dict[int, list[int]] = {}
    for iteration, site in zip(*columns, strict=True):
        if site in of:
            seen.setdefault(iteration, []).append(site)
    return list(seen.values())


def _places(reader: RunReader) -> dict[int, tuple[str, str, str]]:
    """Of each site its node, its role and its kind. The lowest rank's sites keep their numbers."""
    sites = of_lowest_rank(reader.snapshot.held["sites"])
    columns = [sites[name].to_pylist() for name in ("site", "node", "role", "kind")]
    return {site: (node, role, kind) for site, node, role, kind in zip(*columns, strict=True)}


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A number for each value, equal for equal ones, from 0."""
    encoded = column.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)


def _read(path: Path, signature: str) -> dict[str, Any]:
    graph = read_graph(path, signature)
    try:
        nodes = [[int(site), str(role)] for site, role in graph["nodes"]]
        return {"nodes": nodes, "edges": dict(graph["edges"]), "calls": list(graph["calls"])}
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(path, signature, error) from None


def _no_graph(step: int | None) -> str:
    if step is None:
        return "No step of this run has a graph yet."
    return f"Step {step} has no graph: neither it nor one before it of its kind was followed."
