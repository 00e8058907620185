"""Sees modules of Flax while a step is traced: linen by its interceptors, NNX by its classes.

What a module is given and what it returns is marked. Nothing is looked at unless the user has
imported Flax.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import jax

from backlight.jax.taps import Label, Tracing, mark, path_of


@contextmanager
def seeing_modules(found: Tracing) -> Iterator[None]:
    """Mark the inputs and outputs of every module that is called inside."""
    with ExitStack() as stack:
        linen = sys.modules.get("flax.linen")
        if linen is not None:
            stack.enter_context(linen.intercept_methods(_linen_interceptor(found)))
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None:
            stack.enter_context(_patched_nnx(nnx, found))
        yield


def _call(
    found: Tracing, name: str, module_class: str, function: Callable[..., Any], args: Any, keys: Any
) -> Any:
    """A module's call, with its arguments and its results marked."""
    token = next(found.tokens)
    found.classes.setdefault(name, module_class)
    found.stack.append(name)
    try:
        args, keys = _marked("in", (args, keys), Label("input", name, module_class, "", token))
        result = function(*args, **keys)
        return _marked("out", result, Label("output", name, module_class, "", token))
    finally:
        found.stack.pop()


def _marked(prefix: str, tree: Any, label: Label) -> Any:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    # The arguments are a pair of positions and names, of which a place tells the second part only.
    skip = 1 if prefix == "in" else 0
    return jax.tree.unflatten(
        structure,
        [
            mark(leaf, _at(label, ".".join([prefix, *(path_of(path)[skip:] or ["0"])])))
            for path, leaf in leaves
        ],
    )


def _at(label: Label, place: str) -> Label:
    return Label(label.tensor_class, label.module, label.module_class, place, label.token)


# -- linen


def _linen_interceptor(found: Tracing) -> Callable[..., Any]:
    def intercept(function: Callable[..., Any], args: Any, keys: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return function(*args, **keys)
        module = context.module
        name = ".".join(module.path)
        return _call(found, name, type(module).__name__, function, args, keys)

    return intercept


# -- NNX


@contextmanager
def _patched_nnx(nnx: Any, found: Tracing) -> Iterator[None]:
    names = _NnxNames(nnx)
    originals = [
        (each, each.__dict__["__call__"])
        for each in _subclasses(nnx.Module)
        if "__call__" in each.__dict__
    ]
    for each, original in originals:
        type.__setattr__(each, "__call__", _nnx_call(found, names, original))
    try:
        yield
    finally:
        for each, original in originals:
            type.__setattr__(each, "__call__", original)


def _subclasses(base: type) -> set[type]:
    own: set[type] = set(base.__subclasses__())
    return own.union(*(_subclasses(each) for each in own))


def _nnx_call(found: Tracing, names: _NnxNames, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, *args: Any, **keys: Any) -> Any:
        if names.is_running(self):  # the method of a base class, called by that of the class
            return original(self, *args, **keys)
        with names.running(self) as name:
            bound = original.__get__(self)
            return _call(found, name, type(self).__name__, bound, args, keys)

    return call


class _NnxNames:
    """The names of NNX's modules: their paths from the outermost one that is called."""

    def __init__(self, nnx: Any) -> None:
        self._nnx = nnx
        self._running: list[Any] = []
        self._names: dict[int, str] = {}
        self._roots: dict[str, int] = {}
        self._kept: list[Any] = []  # so that no identity is used twice

    def is_running(self, module: Any) -> bool:
        return bool(self._running) and self._running[-1] is module

    @contextmanager
    def running(self, module: Any) -> Iterator[str]:
        if id(module) not in self._names:
            self._learn(module)
        self._running.append(module)
        try:
            yield self._names[id(module)]
        finally:
            self._running.pop()

    def _learn(self, module: Any) -> None:
        around = self._names[id(self._running[-1])] if self._running else ""
        prefix = [part for part in (around, type(module).__name__ if around else "") if part]
        for path, each in self._nnx.iter_modules(module):
            self._kept.append(each)
            self._names.setdefault(id(each), ".".join([*prefix, *map(str, path)]))
