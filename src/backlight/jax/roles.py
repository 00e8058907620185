"""Which of a step's arrays are parameters, their updates, states of an optimizer, or a loss.

Known by what they are inside of: a `TrainState`, variables of linen, `Variable`s of NNX, states of
optax. Whatever else goes into a step and comes out of it again in the same shape is taken for
parameters.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from backlight.jax.taps import path_of

Name = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array among the arguments or results: where it is, and what it is if that is known."""

    words: Name
    role: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, slots=True)
class Owned:
    """A parameter, a buffer or a state of an optimizer; its places among arguments and results."""

    role: str
    name: Name
    before: int | None
    after: int | None
    key: str = ""  # of a parameter's state

    @property
    def module(self) -> str:
        """The name of the module that it belongs to."""
        return ".".join(self.name[:-1])

    @property
    def place(self) -> str:
        """Its name within the module."""
        return self.name[-1] if not self.key else f"{self.name[-1]}:{self.key}"


@dataclass(frozen=True, slots=True)
class Roles:
    """All that is owned, the gradients among the results, and the place of the loss there."""

    owned: list[Owned]
    gradients: dict[int, Name] = field(default_factory=dict)
    loss: int | None = None
    batch_size: int | None = None


# -- leaves


def leaves_of(tree: Any) -> list[Leaf]:
    """Every leaf of a tree, in JAX's order.

    >>> [leaf.words for leaf in leaves_of({"params": {"w": jnp.ones(1)}})]
    [('params', 'w')]
    """
    found = []
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_known)[0]:
        words = path_of(path)
        for inner, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
            every = (*words, *path_of(inner))
            kind = jax.typeof(leaf) if not hasattr(leaf, "dtype") and _is_number(leaf) else leaf
            shape, dtype = tuple(getattr(kind, "shape", ())), getattr(kind, "dtype", None)
            found.append(Leaf(_clean(every, node), _role(every, node), shape, dtype))
    return found


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)


def _is_known(node: Any) -> bool:
    return _is_state_of_optax(node) or _is_variable(node)


def _is_state_of_optax(node: Any) -> bool:
    is_tuple = isinstance(node, tuple) and hasattr(node, "_fields")
    return is_tuple and type(node).__module__.partition(".")[0] == "optax"


def _is_variable(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.Variable)


def _clean(words: Name, node: Any) -> Name:
    return words[:-1] if _is_variable(node) and words[-1] in ("value", "raw_value") else words


def _role(words: Name, node: Any) -> str:
    if _is_state_of_optax(node) or "opt_state" in words:
        return "optimizer"
    if _is_variable(node):
        return _role_of_variable(node)
    if "params" in words:
        return "parameter"
    return "buffer" if "batch_stats" in words else ""


def _role_of_variable(node: Any) -> str:
    nnx = sys.modules["flax.nnx"]
    if isinstance(node, nnx.Param):
        return "parameter"
    names = {each.__name__ for each in type(node).__mro__}
    if names & {"RngState", "RngKey", "RngCount"}:
        return "none"
    return "optimizer" if names & {"OptState", "OptVariable", "OptArray"} else "buffer"


# -- which argument comes out again


def _elements(leaves: list[Leaf], depth: int) -> dict[Name, list[int]]:
    found: dict[Name, list[int]] = {}
    for place, leaf in enumerate(leaves):
        found.setdefault(leaf.words[:depth], []).append(place)
    return found


def _form(leaves: list[Leaf], places: list[int], depth: int) -> list[Any]:
    return [(leaves[p].words[depth:], leaves[p].shape, leaves[p].dtype) for p in places]


def _carried(given: list[Leaf], returned: list[Leaf]) -> tuple[dict[int, int], list[list[int]]]:
    """The place of each argument's leaf among the results; and the results that are left over."""
    pairs: dict[int, int] = {}
    whole = {(): list(range(len(returned)))}
    outs = [(0, whole[()])] + [(1, places) for places in _elements(returned, 1).values()]
    used: set[int] = set()
    for places in _elements(given, 2).values():
        for depth, others in outs:
            if used & set(others) or _form(given, places, 2) != _form(returned, others, depth):
                continue
            used |= set(others)
            pairs.update(zip(places, others, strict=True))
            break
    left = [others for depth, others in outs if depth == 1 and not used & set(others)]
    return pairs, left


def find_roles(
    given: list[Leaf], returned: list[Leaf], *, is_state: bool, loss: str | None
) -> Roles:
    """What the arguments and results of a step are.

    Where NNX's objects come out too, in the second part of the results, they say what is what.
    """
    if is_state:
        at = {leaf.words: place for place, leaf in enumerate(returned) if leaf.words[0] == "1"}
        found = ((place, at.get(("1", *leaf.words))) for place, leaf in enumerate(given))
        pairs = {place: other for place, other in found if other is not None}
        left: list[list[int]] = []
    else:
        pairs, left = _carried(given, returned)
    owned = _owned(given, pairs)
    parameters = [each for each in owned if each.role == "parameter"]
    return Roles(
        owned,
        _gradients(parameters, given, returned, left),
        _loss(returned, set(pairs.values()), loss),
        _batch_size(given, pairs),
    )


def _owned(given: list[Leaf], pairs: dict[int, int]) -> list[Owned]:
    found: list[Owned] = []
    states: list[int] = []
    for places in _elements(given, 2).values():
        known = {given[place].role for place in places}
        rest = "buffer" if "parameter" in known else "parameter"
        guessed = [p for p in places if not given[p].role and p in pairs and _is_real(given[p])]
        prefix = _common([given[p].words[2:] for p in guessed])
        for place in places:
            role, words = given[place].role, given[place].words[2:]
            if role == "optimizer":
                states.append(place)
            elif role in ("parameter", "buffer"):
                found.append(Owned(role, short_name(words), place, pairs.get(place)))
            elif place in guessed:
                name = words[prefix:] or words or (f"argument {given[place].words[1]}",)
                found.append(Owned(rest, name, place, pairs[place]))
    return found + _states(given, pairs, states, found)


def _is_real(leaf: Leaf) -> bool:
    return leaf.dtype is not None and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _common(names: list[Name]) -> int:
    """How many words at the beginning all names share; the last word of a name is its own."""
    shared = 0
    while names and all(len(name) > shared + 1 for name in names):
        if len({name[shared] for name in names}) > 1:
            break
        shared += 1
    return shared if len(names) > 1 else 0


def short_name(words: Name) -> Name:
    """The name inside of the collection: `params`, `batch_stats`.

    >>> short_name(("params", "Dense_0", "kernel")), short_name(("model", "w"))
    (('Dense_0', 'kernel'), ('model', 'w'))
    """
    for collection in ("params", "batch_stats"):
        if collection in words[:-1]:
            return words[len(words) - words[::-1].index(collection) :]
    return words


def _states(
    given: list[Leaf], pairs: dict[int, int], places: list[int], owned: list[Owned]
) -> list[Owned]:
    names = {each.name for each in owned if each.role == "parameter"}
    found: dict[tuple[Name, str], Owned] = {}
    for place in places:
        skip = {"params", "opt_state"}
        words = tuple(word for word in given[place].words[2:] if word not in skip)
        start = next((i for i in range(len(words)) if words[i:] in names), len(words))
        name, key = words[start:], ".".join(w for w in words[:start] if not w.isdigit())
        if (name, key) in found:
            key = ".".join(words[:start])
        name, key = (name, key) if name else (("optimizer", ".".join(words)), "")
        found[name, key] = Owned("optimizer", name, place, pairs.get(place), key)
    return list(found.values())


def _gradients(
    parameters: list[Owned], given: list[Leaf], returned: list[Leaf], left: list[list[int]]
) -> dict[int, Name]:
    """Results that look like all parameters, and are not the parameters."""
    form = [
        (given[p.before].shape, given[p.before].dtype) for p in parameters if p.before is not None
    ]
    for places in left:
        if form and [(returned[p].shape, returned[p].dtype) for p in places] == form:
            return {p: each.name for p, each in zip(places, parameters, strict=True)}
    return {}


def _loss(returned: list[Leaf], carried: set[int], wanted: str | None) -> int | None:
    scalars = [
        place
        for place, leaf in enumerate(returned)
        if place not in carried and leaf.shape == () and _is_real(leaf)
    ]
    if wanted is not None:
        return next((p for p in scalars if wanted in (returned[p].words[-1:] or ("",))), None)
    named = [p for p in scalars if any("loss" in word.lower() for word in returned[p].words)]
    return next(iter(named or scalars), None)


def _batch_size(given: list[Leaf], pairs: dict[int, int]) -> int | None:
    return next(
        (
            leaf.shape[0]
            for place, leaf in enumerate(given)
            if place not in pairs and not leaf.role and leaf.shape
        ),
        None,
    )
