"""The nodes of the picture: the cells of a layer in groups, of which some are opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.interface import Array, Layer

MOST_NODES: Final = 1024
"""Of more cells than this, the ones with the least gradient are one node."""
_FEW_CELLS: Final = 64
_TILES: Final = 4
"""Into how many parts a region divides each dimension."""


@dataclass(frozen=True)
class Nodes:
    """Which node each cell belongs to, and what the nodes are called."""

    by: str
    node_of: Array  # int32, one for each cell
    labels: list[str]


def ways(layer: Layer) -> list[str]:
    """How the cells of a layer can be grouped, the coarsest first.

    >>> ways(Layer("conv", (8, 28, 28), axes=("channel", "y", "x")))
    ['channel', 'region', 'block', 'cell']
    >>> ways(Layer("attention", (16, 64), axes=("position", "feature")))
    ['position', 'feature', 'block', 'cell']
    """
    dims = len(layer.shape)
    axes = layer.axes if len(layer.axes) == dims else ()
    if dims <= 1:
        return ["block", "cell"]
    if dims == 2:
        return [*(axes or ("row", "column")), "block", "cell"]
    first = [axes[0] if axes else "channel"]
    if axes[1:2] in (("position",), ("query",)):
        return [*first, axes[1], "block", "cell"]
    return [*first, "region", "block", "cell"]


def usual_way(layer: Layer) -> str:
    """How a layer is grouped at first."""
    if layer.size <= _FEW_CELLS or (layer.kind == "output" and len(layer.shape) <= 1):
        return "cell"
    # One group would say nothing.
    return next((way for n, way in enumerate(ways(layer)) if n or layer.shape[0] > 1), "cell")


def nodes_of(layer: Layer, by: str, opened: tuple[int, ...], weight: Array | None) -> Nodes:
    """The nodes of a layer; the groups in `opened` are shown cell by cell.

    `weight` says which cells matter where there are too many.
    """
    if by not in ways(layer):
        known = ", ".join(ways(layer))
        raise BacklightError(f"{layer.name!r} cannot be grouped by {by!r}, only by {known}.")
    if by == "cell":
        group, labels = np.zeros(layer.size, np.int64), [""]
        opened = (0,)
    else:
        group, labels = _groups(layer, by)
    return _opened(layer, by, group, labels, opened, weight)


def _groups(layer: Layer, by: str) -> tuple[Array, list[str]]:
    shape = layer.shape
    axes = ways(layer)
    where = np.indices(shape).reshape(len(shape), -1)
    if by not in ("region", "block"):
        dim = axes.index(by)
        return where[dim], [f"{by} {n}" for n in range(shape[dim])]
    if len(shape) == 1:
        return _tiles(where, shape, [0], names=["unit"])
    if len(shape) == 2:
        return _tiles(where, shape, [1], names=axes[:2], whole=[0])
    spatial = list(range(1, len(shape)))
    names = (
        list(layer.axes) if len(layer.axes) == len(shape) else ["channel", *"zyx"[-len(spatial) :]]
    )
    return _tiles(where, shape, spatial, names=names, whole=[0] if by == "block" else [])


def _tiles(
    where: Array, shape: tuple[int, ...], dims: list[int], *, names: Any, whole: Any = ()
) -> tuple[Array, list[str]]:
    """Groups by position: every index of the dimensions in `whole`, tiles of those in `dims`."""
    group = np.zeros(where.shape[1], np.int64)
    labels = [""]
    for dim in [*whole, *dims]:
        tile = 1 if dim in whole else -(-shape[dim] // _parts(shape[dim], len(dims)))
        count = -(-shape[dim] // tile)
        group = group * count + where[dim] // tile
        own = [_range(names[dim], n * tile, min((n + 1) * tile, shape[dim])) for n in range(count)]
        labels = [f"{before} {each}".strip() for before in labels for each in own]
    return group, labels


def _parts(size: int, dims: int) -> int:
    return min(size, _TILES if dims > 1 else 4 * _TILES)


def _range(name: str, first: int, end: int) -> str:
    return f"{name} {first}" if end == first + 1 else f"{name} {first}–{end - 1}"


def _opened(
    layer: Layer,
    by: str,
    group: Array,
    labels: list[str],
    opened: tuple[int, ...],
    weight: Array | None,
) -> Nodes:
    is_open = np.isin(group, np.array(opened, np.int64))
    cells = np.flatnonzero(is_open)
    room = max(1, MOST_NODES - len(labels))
    if len(cells) > room:
        importance = np.abs(weight.reshape(-1)[cells]) if weight is not None else -cells
        cells = np.sort(cells[np.argsort(-importance, kind="stable")[:room]])
    own = np.zeros(layer.size, bool)
    own[cells] = True
    # A node for each group that has cells left, and one for each cell on its own, in their order.
    key = np.where(own, np.arange(layer.size) + 0.5, 0.0)
    first = np.full(len(labels), np.inf)
    rest = np.flatnonzero(~own)
    np.minimum.at(first, group[rest], rest)
    key = np.where(own, np.arange(layer.size, dtype=np.float64) + 0.5, first[group])
    order, node_of = np.unique(key, return_inverse=True)
    named = [""] * len(order)
    for cell in cells:
        named[node_of[cell]] = cell_name(layer.shape, int(cell))
    for cell in rest[np.unique(group[rest], return_index=True)[1]] if len(rest) else ():
        base = labels[group[cell]]
        is_part = bool(is_open[cell])
        named[node_of[cell]] = (f"rest of {base}" if base else "the rest") if is_part else base
    return Nodes(by, node_of.astype(np.int32), named)


def cell_name(shape: tuple[int, ...], cell: int) -> str:
    """A cell by its position.

    >>> cell_name((3, 4, 4), 21)
    '1, 1, 1'
    """
    return ", ".join(str(int(n)) for n in np.unravel_index(cell, shape or (1,)))
