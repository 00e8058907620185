"""The primitive that marks a tensor of a traced program, and its gradient.

A tap is the identity. Differentiation leaves a second one behind, on the cotangent, so that after a
whole step is traced the program itself shows every tensor and every gradient that is looked for,
whatever transformations they went through.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from backlight.jax.statistics import has_statistics
from backlight.telling import text

tap_p: Final = Primitive("backlight_tap")
_cotap_p: Final = Primitive("backlight_cotap")


@dataclass(frozen=True, slots=True)
class Label:
    """Which tensor a tap marks: a module's input or output, a parameter, or one that has a name."""

    tensor_class: str
    module: str
    module_class: str
    place: str
    token: int = 0  # which call of the module, or of `tap`, in the order of tracing


@dataclass(slots=True)
class Tracing:
    """What is found while a step is traced."""

    mistakes: list[str] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)  # of modules, by name, in order of call
    stack: list[str] = field(default_factory=list)  # the modules that run
    tokens: Iterator[int] = field(default_factory=count)

    @property
    def module(self) -> str:
        """The module that runs."""
        return self.stack[-1] if self.stack else ""


_numbers = count()
_local = threading.local()


def current() -> Tracing | None:
    """The tracing that is under way in this thread."""
    return getattr(_local, "tracing", None)


@contextmanager
def tracing() -> Iterator[Tracing]:
    """Let taps be seen by what is traced inside.

    JAX keeps what it has traced, by its context. The mark in it keeps programs with taps apart from
    the user's own, and those of one tracing from those of another.
    """
    outer, _local.tracing = current(), Tracing()
    try:
        with set_xla_metadata(backlight=str(next(_numbers))):
            yield _local.tracing
    finally:
        _local.tracing = outer


def mark(array: Any, label: Label, quantity: str = "value") -> Any:
    """The array, marked; what has no statistics stays as it is."""
    if not is_array(array) or not has_statistics(array.dtype):
        return array
    return tap_p.bind(array, label=label, quantity=quantity)


def is_array(value: Any) -> bool:
    """Whether a value is an array of JAX, and not one of NumPy, which may decide over shapes."""
    return isinstance(value, jax.Array)


def tap(name: str, tree: Any) -> Any:
    """See `backlight.jax.tap`."""
    found = current()
    if found is None:
        return tree
    if not isinstance(name, str) or not name:
        found.mistakes.append(f"backlight.jax.tap() got {name!r} as name: pass a text.")
        return tree
    token = next(found.tokens)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree.unflatten(
        structure,
        [_named(found, ".".join([name, *path_of(path)]), token, leaf) for path, leaf in leaves],
    )


def _named(found: Tracing, name: str, token: int, leaf: Any) -> Any:
    what = f"backlight.jax.tap({name!r}) got"
    if not hasattr(leaf, "dtype"):
        found.mistakes.append(f"{what} a {type(leaf).__name__}: pass an array, or a tree of them.")
    elif not has_statistics(leaf.dtype):
        found.mistakes.append(
            f"{what} an array of dtype {leaf.dtype}, which has no statistics: it is not recorded."
        )
    else:
        return mark(jnp.asarray(leaf), Label("tensor", found.module, "", text(name), token))
    return leaf


def path_of(path: tuple[Any, ...]) -> list[str]:
    """A path of `jax.tree_util` as words.

    >>> path_of(jax.tree_util.tree_flatten_with_path({"a": [1]})[0][0][0])
    ['a', '0']
    """
    names = ("key", "name", "idx")
    return [
        str(next((getattr(key, name) for name in names if hasattr(key, name)), key)) for key in path
    ]


# -- the primitives


def _jvp(primals: Any, tangents: Any, *, label: Label, quantity: str) -> Any:
    (tangent,) = tangents
    out = tap_p.bind(*primals, label=label, quantity=quantity)
    if type(tangent) is not ad.Zero and quantity == "value":
        tangent = _cotap_p.bind(tangent, label=label)
    return out, tangent


def _transpose(cotangent: Any, array: Any, *, label: Label) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [cotangent]
    return [tap_p.bind(cotangent, label=label, quantity="grad")]


def _register(primitive: Primitive) -> None:
    def batch(arrays: Any, dims: Any, **parameters: Any) -> Any:
        return primitive.bind(jnp.moveaxis(arrays[0], dims[0], 0), **parameters), 0

    primitive.def_impl(lambda array, **_: array)
    primitive.def_abstract_eval(lambda array, **_: array)
    mlir.register_lowering(primitive, lambda context, array, **_: [array])
    batching.primitive_batchers[primitive] = batch


_register(tap_p)
_register(_cotap_p)
ad.primitive_jvps[tap_p] = _jvp
ad.deflinear2(_cotap_p, _transpose)
