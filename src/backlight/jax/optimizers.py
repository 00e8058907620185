"""Sees the gradients that an optimizer of optax is given, while a step is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

from backlight.jax.taps import Label, current, mark, path_of


def mark_gradients(tree: Any) -> Any:
    """Mark a tree of parameters' gradients; outside of a recorded step it stays as it is."""
    found = current()
    if found is None:
        return tree
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    token = next(found.tokens)
    return jax.tree.unflatten(
        structure,
        [
            mark(leaf, Label("parameter", "", "", ".".join(path_of(path)), token), "grad")
            for path, leaf in leaves
        ],
    )


@contextmanager
def seeing_gradients() -> Iterator[None]:
    """Mark what `update` is given, of whatever optimizer; of one inside another, the outer's."""
    optax = sys.modules.get("optax")
    if optax is None:
        yield
        return
    transformation = optax.GradientTransformation
    original = transformation.__dict__["update"]
    depth: list[None] = []

    def update(self: Any) -> Callable[..., Any]:
        return _marking(original.__get__(self), depth)

    transformation.update = property(update)
    try:
        yield
    finally:
        transformation.update = original


def _marking(function: Callable[..., Any], depth: list[None]) -> Callable[..., Any]:
    @wraps(function)
    def update(gradients: Any, *args: Any, **keys: Any) -> Any:
        if not depth:
            gradients = mark_gradients(gradients)
        depth.append(None)
        try:
            return function(gradients, *args, **keys)
        finally:
            depth.pop()

    return update
