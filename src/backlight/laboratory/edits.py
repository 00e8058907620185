"""Edits as data: what was changed, so that it can be undone, saved and done again.

An edit is a dictionary. `op` is `set` (cells get a value, or each its own), `noise` (normal noise
of `sigma` is added, from a `seed`), `swap` (cells are taken from another `sample`) or `release`
(cells are again as they would be without an edit). `cells` are positions in the flattened sample;
without them all cells are meant. In an input a cell is changed; inside the network it is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.interface import Array, Layer, Pin

Edit = Mapping[str, Any]


def apply(
    edits: Sequence[Edit],
    layers: Mapping[str, Layer],
    inputs: Mapping[str, Array],
    other_sample: Callable[[int], Mapping[str, Array]],
) -> tuple[dict[str, Array], dict[str, Pin]]:
    """The inputs that were changed, and what is pinned inside of the network.

    >>> layers = {"input": Layer("input", (2, 2), "input"), "fc": Layer("fc", (3,))}
    >>> edits = [{"op": "set", "layer": "input", "cells": [1], "value": 5.0},
    ...          {"op": "set", "layer": "fc", "cells": [0, 2], "value": 0.0}]
    >>> changed, pins = apply(edits, layers, {"input": np.zeros((2, 2))}, lambda n: {})
    >>> changed["input"].tolist(), pins["fc"].mask.tolist()
    ([[0.0, 5.0], [0.0, 0.0]], [True, False, True])
    """
    changed: dict[str, Array] = {}
    pins: dict[str, Pin] = {}
    for number, edit in enumerate(edits):
        layer = layers.get(str(edit.get("layer")))
        if layer is None:
            raise BacklightError(f"Edit {number} is of {edit.get('layer')!r}, which is no layer.")
        if layer.name in inputs:
            own = changed.setdefault(layer.name, inputs[layer.name].copy())
            _change(own, edit, layer, inputs[layer.name], other_sample)
        else:
            known = pins.get(layer.name)
            pins[layer.name] = _pinned(known, edit, layer)
    return changed, pins


def _change(
    array: Array,
    edit: Edit,
    layer: Layer,
    original: Array,
    other_sample: Callable[[int], Mapping[str, Array]],
) -> None:
    flat, cells, op = array.reshape(-1), _cells(edit, layer), edit.get("op")
    if op == "set":
        flat[cells] = _values(edit, len(cells)).astype(array.dtype)
    elif op == "noise":
        random = np.random.default_rng(int(edit.get("seed", 0)))
        noise = random.normal(0.0, float(edit.get("sigma", 1.0)), layer.size)
        flat[cells] = flat[cells] + noise[cells].astype(array.dtype)
    elif op == "swap":
        flat[cells] = other_sample(int(edit["sample"]))[layer.name].reshape(-1)[cells]
    elif op == "release":
        flat[cells] = original.reshape(-1)[cells]
    else:
        raise BacklightError(f"There is no edit {op!r}: use set, noise, swap or release.")


def _pinned(known: Pin | None, edit: Edit, layer: Layer) -> Pin:
    op = edit.get("op")
    if op not in ("set", "release"):
        raise BacklightError(f"Inside the network, {op!r} is not possible, only set and release.")
    mask = np.zeros(layer.size, bool) if known is None else known.mask.reshape(-1).copy()
    values = np.zeros(layer.size, np.float32) if known is None else known.values.reshape(-1).copy()
    cells = _cells(edit, layer)
    mask[cells] = op == "set"
    if op == "set":
        values[cells] = _values(edit, len(cells))
    return Pin(mask.reshape(layer.shape), values.reshape(layer.shape))


def _cells(edit: Edit, layer: Layer) -> Array:
    cells = edit.get("cells")
    if cells is None:
        return np.arange(layer.size)
    found = np.asarray(cells, np.int64).reshape(-1)
    if len(found) and (found.min() < 0 or found.max() >= layer.size):
        raise BacklightError(f"{layer.name!r} has {layer.size} cells: an edit names another one.")
    return found


def _values(edit: Edit, count: int) -> Array:
    values = np.asarray(edit.get("values", edit.get("value", 0.0)), np.float64)
    if values.ndim and len(values) != count:
        raise BacklightError(f"An edit has {len(values)} values for {count} cells.")
    return np.broadcast_to(values, (count,))
