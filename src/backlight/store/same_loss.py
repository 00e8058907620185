"""Which losses a run has twice: as the user named them, and as a backward pass started from them.

A recorder that sees the named tensor itself writes it once. One that cannot tell, of a compiled
step or of an earlier version, writes a site `(loss)` besides, with the same numbers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.store.snapshot import Snapshot

_FOUND: Final = "(loss)"
_COMPARED: Final = ("step", "iteration", "count", "nans", "infs", "mean", "min", "max")
_STEPS: Final = 16

Edges = dict[str, list[list[int]]]


def same_losses(snapshot: Snapshot) -> dict[int, int]:
    """Sites of losses that were found, each with the site under which the user named the same.

    They are the same if all their numbers are, at some steps from the first to the last.
    """
    found, named = _candidates(snapshot.held["sites"])
    if not found or not named:
        return {}
    recorded = snapshot.recorded_steps
    places = np.unique(np.linspace(0, len(recorded) - 1, _STEPS).astype(int))
    rows = snapshot.of_steps(recorded[places], ["site", "quantity", *_COMPARED])
    numbers = _numbers(rows, [*found, *named])
    return {
        site: twin
        for site in found
        for twin in named
        if numbers[site] and numbers[site] <= numbers[twin]
    }


def _candidates(sites: pa.Table) -> tuple[list[int], list[int]]:
    """The sites of losses that were found, and those that the user called losses."""
    columns = (sites[name].to_pylist() for name in ("site", "name", "node", "kind"))
    losses = [
        (site, name, node)
        for site, name, node, kind in zip(*columns, strict=True)
        if kind == "loss"
    ]
    found = [site for site, name, node in losses if node == _FOUND and name.startswith(_FOUND)]
    return found, [site for site, *_ in losses if site not in found]


def _numbers(rows: pa.Table, sites: list[int]) -> dict[int, set[tuple[Any, ...]]]:
    """What was seen at each site, as something that can be compared."""
    is_asked = (pc.field("quantity") == "value") & pc.field("site").isin(sites)
    rows = rows.filter(is_asked)
    seen: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    columns = (rows[name].to_pylist() for name in ("site", *_COMPARED))
    for site, *numbers in zip(*columns, strict=True):
        seen[site].add(tuple(map(repr, numbers)))  # as text, NaN is NaN
    return seen


def without_same(
    nodes: list[list[Any]], edges: Edges, same: dict[int, int]
) -> tuple[list[list[Any]], Edges]:
    """A graph in which each of these losses is one node, which is a loss.

    >>> without_same([[1, "tensor"], [2, "loss"]], {"autograd": [[0, 1], [1, 2]]}, {2: 1})
    ([[1, 'loss']], {'autograd': [[0, 1]]})
    """
    losses = {same[site] for site, *_ in nodes if site in same}
    kept = [[site, "loss" if site in losses else role] for site, role in nodes if site not in same]
    return kept, {kind: _joined(pairs, same) for kind, pairs in edges.items()}


def _joined(pairs: list[list[int]], same: dict[int, int]) -> list[list[int]]:
    renamed = ((same.get(source, source), same.get(sink, sink)) for source, sink in pairs)
    return [list(pair) for pair in dict.fromkeys(renamed) if pair[0] != pair[1]]
