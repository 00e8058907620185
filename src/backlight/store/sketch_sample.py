"""Chooses the sketches that a picture of many sites over all steps is made of.

A sketch is a hundred times as large as a statistic, so those of a long run cannot all be read each
time that somebody looks. Every column of the picture has at least one step; of a run whose rows are
mostly compacted, some sites are left out, unless few are asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.heatmap import Columns, Steps
from backlight.store.precision import SKETCHED
from backlight.store.snapshot import Snapshot

_MOST_SKETCHES: Final = 80_000
_MOST_READ: Final = 200_000
"""So many compacted rows are read: each comes with the rows of the same site at all other steps."""
_ROWS_AT_ONCE: Final = 65_536
_FEWEST_COLUMNS: Final = 24


@dataclass(frozen=True)
class SketchSample:
    """Rows of `stats` with their sketches, and the column that each step belongs to."""

    columns: Columns
    rows: pa.Table
    steps_used: int
    sites_read: int
    sites_asked: int


def sample_sketches(
    snapshot: Snapshot,
    quantity: str,
    steps: Steps,
    wanted_columns: int,
    sites: Collection[int] | None = None,
) -> SketchSample:
    """The sketches of one quantity at some sites, of as many steps as can be read at once."""
    known = snapshot.held["sites"]["site"].to_pylist()
    asked = known if sites is None else sorted(set(sites) & set(known))
    read = _sites_read(snapshot, asked)
    share = len(read) / max(1, len(known))
    columns, used = chosen_steps(steps, wanted_columns, _rows_per_step(snapshot, quantity) * share)
    names = ["site", "step", "iteration", "quantity", *SKETCHED]
    condition = (
        (pc.field("quantity") == quantity)
        & pc.field("step").isin(pa.array(used))
        & pc.field("site").isin(pa.array(read, pa.int32()))
    )
    found = [snapshot.held["stats"].select([*names, "rank"]).filter(condition)]
    if snapshot.parts["stats"]:
        found += _of_parts(snapshot, names, condition, read)
    return SketchSample(columns, pa.concat_tables(found), len(used), len(read), len(asked))


def _sites_read(snapshot: Snapshot, asked: list[int]) -> list[int]:
    """The sites that are read: all, or stretches of neighbours, which are stored together."""
    compacted = sum(part.rows for part in snapshot.parts["stats"])
    rows_per_site = compacted / max(1, snapshot.rows["sites"])
    most = int(_MOST_READ / max(1.0, rows_per_site))
    if len(asked) <= max(1, most):
        return asked
    together = max(1, min(most, int(_ROWS_AT_ONCE / 2 / rows_per_site)))
    stretches = max(1, most // together)
    starts = np.arange(stretches) * len(asked) // stretches
    return [site for start in starts for site in asked[start : start + together]]


def chosen_steps(steps: Steps, wanted: int, rows_per_step: float) -> tuple[Columns, Steps]:
    """At most `wanted` columns of equal numbers of steps, and which of the steps are read.

    >>> columns, used = chosen_steps(np.arange(1000), 100, rows_per_step=600.0)
    >>> len(columns.ranges), len(used), used[-1]
    (100, 133, np.int64(999))
    """
    count = len(steps)
    most = int(max(_FEWEST_COLUMNS, _MOST_SKETCHES / max(1.0, rows_per_step)))
    width = min(wanted, count, most)
    columns = Columns(steps, np.arange(count) * width // max(1, count))
    if count <= most:
        return columns, steps
    # Evenly spaced, and the newest always.
    places = count - 1 - (np.arange(most) * count // most)
    return columns, steps[np.sort(places)]


def _rows_per_step(snapshot: Snapshot, quantity: str) -> float:
    """About how many rows of a quantity a step has."""
    held = snapshot.held["stats"]["quantity"]
    parts = [part for part in snapshot.parts["stats"] if quantity in part.quantities]
    rows = pc.sum(pc.equal(held, quantity)).as_py() or 0
    # A part does not say how many of its rows are of which quantity.
    rows += sum(part.rows / max(1, len(part.quantities)) for part in parts)
    return float(rows) / max(1, len(snapshot.recorded_steps))


def _of_parts(
    snapshot: Snapshot, names: list[str], condition: Any, sites: list[int]
) -> list[pa.Table]:
    """Rows of parts, a few sites at a time, so that what is not needed is soon forgotten."""
    compacted = sum(part.rows for part in snapshot.parts["stats"])
    rows_per_site = compacted / max(1, snapshot.rows["sites"])
    at_once = max(1, int(_ROWS_AT_ONCE / max(1.0, rows_per_site)))
    nothing_held = {**snapshot.held, "stats": snapshot.held["stats"].slice(0, 0)}
    of_parts = replace(snapshot, held=nothing_held)
    return [
        of_parts.of_sites(sites[start : start + at_once], names).filter(condition)
        for start in range(0, len(sites), at_once)
    ]


def grouped(site: npt.NDArray[np.int64], column: npt.NDArray[np.int64]) -> tuple[Steps, Steps]:
    """The order that brings equal pairs together, and where each pair begins in it.

    >>> order, starts = grouped(np.array([1, 0, 1]), np.array([2, 5, 2]))
    >>> order.tolist(), starts.tolist()
    ([1, 0, 2], [0, 1])
    """
    key = site * (int(column.max(initial=0)) + 1) + column
    order = np.argsort(key, kind="stable")
    key = key[order]
    return order, np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
