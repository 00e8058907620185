"""How the gradient flows through a run's network: at one step, and over steps."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.serve.graphs import Graphs
from backlight.serve.one_sample import OneSample
from backlight.store.flow import (
    FlowGraph,
    SiteFacts,
    amounts,
    first_tensors,
    flow_graph,
    norm_of,
    parts,
    skip_shares,
)
from backlight.store.reader import RunReader

_GRAD: Final = "grad"
_NEEDED: Final = ("step", "iteration", "site", "quantity", "count", "nans", "infs", "rms")
_MOST_ROWS: Final = 400_000


def flow_at(
    reader: RunReader,
    graphs: Graphs,
    step: int,
    *,
    iteration: int | None = None,
    origin: int | None = None,
    sample: OneSample | None = None,
) -> dict[str, Any]:
    """The tensors and links that the gradient passes, with shares of what arrives at an origin.

    Which tensors are sums or the same is told from whole batches; the norms are of the sample.
    """
    seen = reader.snapshot.at_steps(step, step, _NEEDED)
    rows = seen.filter(pc.field("quantity") == _GRAD)
    shown = _iteration(rows, iteration)
    norms = _norms(rows, shown) | _elsewhere(seen, rows, shown)
    graph, facts = _graph(reader, graphs, step, norms, is_last=shown == _iteration(rows, None))
    if sample is not None:
        seen = sample.observations(step)
        rows = seen.filter(pc.field("quantity") == _GRAD)
        norms = _norms(rows, shown) | _elsewhere(seen, rows, shown)
    tensor = None if origin is None else graph.tensor_of(origin)
    leading = {link.source for link in graph.links}
    chosen = {tensor: 1.0} if tensor in leading and tensor is not None else None
    divided = parts(graph, norms)
    passing, carried = amounts(graph, divided, chosen or first_tensors(graph, norms, facts))
    broken = _broken(rows, shown)
    return {
        "step": step,
        "iteration": shown,
        "origin": None if chosen is None else tensor,
        "tensors": [
            {
                "sites": list(sites),
                "norm": _number(norm_of(sites, norms)),
                "broken": any(site in broken for site in sites),
                "share": float(passing[place]),
                "is_end": place in graph.ends,
            }
            for place, sites in enumerate(graph.sites)
        ],
        "links": [
            {
                "source": link.source,
                "sink": link.sink,
                "part": _number(divided[link]),
                "share": _number(carried[link]),
                "is_copy": link.is_copy,
                "leads_back": link.leads_back,
            }
            for link in graph.links
        ],
    }


def flow_history(
    reader: RunReader,
    graphs: Graphs,
    step: int,
    *,
    iteration: int | None = None,
    columns: int = 300,
    sample: OneSample | None = None,
    kind: str | None = None,
) -> pa.Table:
    """`site, column, norm, skip_share, nans, infs` of every tensor of a step's graph, over steps.

    `site` is the first that saw the tensor. A column is one step; of a long run some are left out.
    """
    if not 0 < columns <= 2000:
        raise BacklightError(f"'columns' is {columns}: use a number from 1 to 2000.")
    at_step = _gradients(reader, step, step)
    graph, _ = _graph(reader, graphs, step, _norms(at_step, _iteration(at_step, iteration)))
    recorded = reader.recorded_steps(kind)
    steps = _thinned(reader, recorded, columns)
    rows = _gradients_over(reader, steps) if sample is None else _of_sample(sample, steps)
    matrix = _Matrix(rows, steps, iteration)
    said = {"columns": json.dumps([[int(s), int(s)] for s in steps])}
    said["steps"] = json.dumps([len(steps), len(recorded)])
    return matrix.cells(graph).replace_schema_metadata(said)


class _Matrix:
    """The gradient's norm, NaNs and infinities at each site and step."""

    def __init__(self, rows: pa.Table, steps: npt.NDArray[np.int64], iteration: int | None) -> None:
        step, site = rows["step"].to_numpy(), rows["site"].to_numpy()
        self._width = len(steps)
        self._rows = np.unique(site)
        column = np.searchsorted(steps, step)
        row = np.searchsorted(self._rows, site)
        in_step = rows["iteration"].to_numpy()
        place = row * self._width + column
        last = np.full(len(self._rows) * self._width, -1)
        np.maximum.at(last, place, in_step)
        # Without a choice it is the last; what has fewer shows its last too.
        wanted = last if iteration is None else np.minimum(last, iteration)
        is_shown = in_step == wanted[place]
        place = place[is_shown]
        self.norms = self._sum(place, _squares(rows)[is_shown], np.nan)
        np.sqrt(self.norms, out=self.norms)
        counts = (rows[name].to_numpy()[is_shown].astype(np.float64) for name in ("nans", "infs"))
        self.nans, self.infs = (self._sum(place, each, 0.0) for each in counts)
        self.finite = self._sum(place, _finite(rows)[is_shown], 0.0)

    def _sum(self, place: Any, values: Any, missing: float) -> Any:
        size = len(self._rows) * self._width
        total = np.bincount(place, values, size).astype(np.float64)  # of nothing they are whole
        total[np.bincount(place, minlength=size) == 0] = missing
        return total.reshape(len(self._rows), self._width)

    def cells(self, graph: FlowGraph) -> pa.Table:
        """A row for each tensor and step."""
        norms = {int(site): self.norms[row] for row, site in enumerate(self._rows)}
        skips = skip_shares(graph, norms)
        row_of = {int(site): row for row, site in enumerate(self._rows)}
        chosen = [
            (tensor, sites[0], next((row_of[site] for site in sites if site in row_of), None))
            for tensor, sites in enumerate(graph.sites)
        ]
        chosen = [each for each in chosen if each[2] is not None]
        if not chosen:
            return _HISTORY.empty_table()
        rows = np.array([row for _, _, row in chosen])
        nothing = np.full(self._width, np.nan)
        shares = [
            np.broadcast_to(skips.get(tensor, nothing), self._width) for tensor, _, _ in chosen
        ]
        columns = {
            "site": np.repeat(np.array([site for _, site, _ in chosen]), self._width),
            "column": np.tile(np.arange(self._width), len(chosen)),
            "norm": self.norms[rows].ravel(),
            "skip_share": np.concatenate(shares),
            "nans": self.nans[rows].ravel(),
            "infs": self.infs[rows].ravel(),
        }
        kept = ~np.isnan(columns["norm"])
        # Where nothing is finite there is no norm: 0 would say that there is no gradient.
        columns["norm"][self.finite[rows].ravel() == 0] = np.nan
        arrays = [pa.array(columns[f.name][kept]).cast(f.type) for f in _HISTORY]
        return pa.Table.from_arrays(arrays, schema=_HISTORY)


_HISTORY: Final = pa.schema(
    [
        ("site", pa.int32()),
        ("column", pa.int32()),
        ("norm", pa.float64()),
        ("skip_share", pa.float64()),
        ("nans", pa.int64()),
        ("infs", pa.int64()),
    ]
)


def _graph(
    reader: RunReader, graphs: Graphs, step: int, norms: dict[int, Any], *, is_last: bool = True
) -> tuple[FlowGraph, dict[int, SiteFacts]]:
    answer = graphs.at(reader, step)
    sites = reader.snapshot.held["sites"]
    columns = (sites[name].to_pylist() for name in ("site", "tensor_class", "module"))
    facts = {site: SiteFacts(kind, module) for site, kind, module in zip(*columns, strict=True)}
    # A tensor that the user calls the loss is one, whatever it was seen as.
    nodes = [(row[0], "loss" if row[4] == "loss" else row[1]) for row in answer["nodes"]]
    edges = [(source, sink) for source, sink in answer["edges"].get("autograd", ())]
    return flow_graph(nodes, edges, facts, norms, is_last=is_last), facts


def _gradients_over(reader: RunReader, steps: npt.NDArray[np.int64]) -> pa.Table:
    found = [_gradients(reader, 0, -1)]
    if len(steps) == len(reader.snapshot.recorded_steps) and len(steps):
        found += [_gradients(reader, int(steps[0]), int(steps[-1]))]
    else:
        found += [_gradients(reader, int(each), int(each)) for each in steps]
    return pa.concat_tables(found)


def _of_sample(sample: OneSample, steps: npt.NDArray[np.int64]) -> pa.Table:
    return sample.observations_over(steps).filter(pc.field("quantity") == _GRAD)


def _gradients(reader: RunReader, first: int, last: int) -> pa.Table:
    rows = reader.snapshot.at_steps(first, last, _NEEDED)
    return rows.filter(pc.field("quantity") == _GRAD)


def _iteration(rows: pa.Table, iteration: int | None) -> int:
    last = pc.max(rows["iteration"]).as_py() or 0
    return last if iteration is None else min(iteration, last)


def _squares(rows: pa.Table) -> Any:
    """The squared norm of each row's finite elements."""
    finite = _finite(rows)
    rms = rows["rms"].to_numpy().astype(np.float64)
    return np.where(finite > 0, np.square(np.nan_to_num(rms)) * finite, 0.0)


def _finite(rows: pa.Table) -> Any:
    """How many elements of each row are finite."""
    count, nans, infs = (rows[n].to_numpy().astype(np.float64) for n in ("count", "nans", "infs"))
    return count - nans - infs


def _norms(rows: pa.Table, iteration: int) -> dict[int, Any]:
    """The gradient's norm at each site: over all ranks and backward passes."""
    rows = rows.filter(pc.field("iteration") == iteration)
    totals: dict[int, float] = {}
    for site, square in zip(rows["site"].to_pylist(), _squares(rows).tolist(), strict=True):
        totals[site] = totals.get(site, 0.0) + square
    return {site: np.float64(np.sqrt(total)) for site, total in totals.items()}


def _elsewhere(seen: pa.Table, rows: pa.Table, iteration: int) -> dict[int, Any]:
    """The norms of gradients that were recorded in other iterations of the step alone.

    A tensor that was made in this one too had no gradient here; one that is made once in a step,
    such as the loss, has the one that it has.
    """
    others = rows.filter(pc.field("iteration") != iteration)
    here = set(rows.filter(pc.field("iteration") == iteration)["site"].to_pylist())
    made = set(seen.filter(pc.field("iteration") == iteration)["site"].to_pylist())
    found: dict[int, Any] = {}
    for site, square in zip(others["site"].to_pylist(), _squares(others).tolist(), strict=True):
        if site not in here:
            found[site] = np.float64(0.0 if site in made else np.sqrt(square))
    return found


def _broken(rows: pa.Table, iteration: int) -> set[int]:
    """The sites whose gradient is not finite."""
    is_broken = (pc.field("nans") > 0) | (pc.field("infs") > 0)
    return set(rows.filter((pc.field("iteration") == iteration) & is_broken)["site"].to_pylist())


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _thinned(
    reader: RunReader, steps: npt.NDArray[np.int64], columns: int
) -> npt.NDArray[np.int64]:
    """At most so many of some recorded steps, evenly, the newest always."""
    snapshot = reader.snapshot
    rows_per_step = snapshot.rows["stats"] / max(1, len(snapshot.recorded_steps))
    most = int(max(1, min(columns, len(steps), _MOST_ROWS / max(1.0, rows_per_step))))
    places = len(steps) - 1 - np.arange(most) * len(steps) // most
    return np.asarray(steps[np.sort(places)]) if len(steps) else steps
