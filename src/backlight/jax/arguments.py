"""The arguments of a step, taken apart into arrays and all the rest, and put together again.

Objects of Flax NNX are changed in place by a step. So they are split into their state, which goes
in and comes out as arrays, and what they are made of.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a step is called with: its arrays, where they are, and what does not change."""

    arrays: list[Any]
    tree: Any  # that the arrays are leaves of
    places: tuple[int, ...]  # of the arrays among the leaves
    fixed: tuple[Any, ...]  # the other leaves
    structure: Any
    graph: Any  # of NNX's objects; None if there are none

    @property
    def key(self) -> Any:
        """What a compiled program is good for."""
        kinds = tuple(_kind_of(array) for array in self.arrays)
        return self.structure, self.places, tuple(map(_same, self.fixed)), kinds, self.graph

    def call(self, function: Any, arrays: Sequence[Any]) -> Any:
        """What a function returns for other arrays, and the state of NNX's objects after it."""
        leaves = [None] * (len(self.places) + len(self.fixed))
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        rest = iter(self.fixed)
        taken = set(self.places)
        leaves = [leaf if i in taken else next(rest) for i, leaf in enumerate(leaves)]
        tree = jax.tree.unflatten(self.structure, leaves)
        if self.graph is None:
            args, keywords = tree
            return function(*args, **keywords), None
        nnx = sys.modules["flax.nnx"]
        both = nnx.merge(self.graph, tree)
        result = function(*both[0], **both[1])
        return result, nnx.split(both, nnx.Variable, ...)[1]


def take_apart(args: Any, keywords: Any, *, has_dynamic_numbers: bool) -> Arguments:
    """Take arguments apart; Python's numbers count as arrays only if they are `dynamic`."""
    tree: Any = (args, keywords)
    graph = None
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and _has_objects(tree, nnx):
        graph, tree = nnx.split(tree)
    leaves, structure = jax.tree.flatten(tree)
    kinds = (jax.Array, np.ndarray, np.generic)
    numbers = (int, float, complex) if has_dynamic_numbers else ()
    places = tuple(
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, (*kinds, *numbers)) and not isinstance(leaf, bool)
    )
    taken = set(places)
    fixed = tuple(leaf for place, leaf in enumerate(leaves) if place not in taken)
    return Arguments([leaves[place] for place in places], tree, places, fixed, structure, graph)


def put_back(args: Any, keywords: Any, state: Any) -> None:
    """Give NNX's objects the state that a step has left."""
    sys.modules["flax.nnx"].update((args, keywords), state)


def _has_objects(tree: Any, nnx: Any) -> bool:
    kinds = (nnx.Module, nnx.Optimizer)
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(leaf, kinds) for leaf in leaves)


def _kind_of(array: Any) -> Any:
    sharding = array.sharding if isinstance(array, jax.Array) else None
    if sharding is not None and len(sharding.device_set) == 1:
        sharding = None
    return np.shape(array), str(jax.typeof(array)), sharding


def _same(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
