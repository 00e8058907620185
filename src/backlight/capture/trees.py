"""The tensors inside whatever a module returns: tuples, lists, dicts, dataclasses, nested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Final

import torch

_DEEPEST = 16

MOST_STATES: Final = 32
"""So many tensors are read of a list that an optimizer keeps: a history may be of any length."""


def outputs_in(value: object) -> Iterable[tuple[str, torch.Tensor]]:
    """Every tensor in what a module returns, with its place.

    A single tensor is item 0, so that a module that returns one tensor and one that returns a
    tuple of one are named alike.

    >>> tree = {"logits": torch.ones(1), "cache": (None, torch.zeros(1))}
    >>> [place for place, _ in outputs_in(tree)]
    ['out.logits', 'out.cache.1']
    >>> [place for place, _ in outputs_in(torch.ones(1))]
    ['out.0']
    >>> [place for place, _ in outputs_in({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})]
    ['out.a.b', "out.a.b'"]
    """
    if isinstance(value, torch.Tensor):
        return (("out.0", value),)
    return _apart(_walk(value, "out"))


def inputs_in(
    args: tuple[object, ...], keywords: Mapping[str, object]
) -> Iterable[tuple[str, torch.Tensor]]:
    """Every tensor in the arguments of a call, with its place.

    >>> x = torch.ones(1)
    >>> [place for place, _ in inputs_in((x, None, [x]), {"mask": x})]
    ['in.0', 'in.2.0', 'in.mask']
    """
    if len(args) == 1 and not keywords and isinstance(args[0], torch.Tensor):
        return (("in.0", args[0]),)  # most calls are such
    return _apart(_inputs(args, keywords))


def states_in(value: object, key: str) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors of what an optimizer keeps under a key, with their places: the first of many.

    >>> x = torch.ones(1)
    >>> [place for place, _ in states_in({"row": x, "parts": [None, x]}, "factors")]
    ['factors.row', 'factors.parts.1']
    >>> len(list(states_in([x] * 1000, "history"))) == MOST_STATES
    True
    """
    return islice(_apart(_walk(value, key)), MOST_STATES)


def _inputs(
    args: tuple[object, ...], keywords: Mapping[str, object]
) -> Iterator[tuple[str, torch.Tensor]]:
    for number, value in enumerate(args):
        yield from _walk(value, f"in.{number}")
    for name, value in keywords.items():
        yield from _walk(value, f"in.{name}")


def _apart(found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The same, with no place twice: keys may have dots in them, or be 0 and "0"."""
    places: set[str] = set()
    for place, tensor in found:
        while place in places:
            place += "'"
        places.add(place)
        yield place, tensor


def _walk(
    value: object, place: str, seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    if len(seen) == _DEEPEST or id(value) in seen:
        return
    for key, item in _items(value):
        yield from _walk(item, f"{place}.{key}", seen | {id(value)})


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name, getattr(value, field.name, None)
