"""The tensors inside whatever a module returns: tuples, lists, dicts, dataclasses, nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch

_DEEPEST = 16


def tensors_in(value: object, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in `value` with its place, such as `out.0` or `out.hidden.2`.

    A single tensor is item 0, so that a module that returns one tensor and one that returns a
    tuple of one are named alike.

    >>> tree = {"logits": torch.ones(1), "cache": (None, torch.zeros(1))}
    >>> [name for name, _ in tensors_in(tree, "out")]
    ['out.logits', 'out.cache.1']
    >>> [name for name, _ in tensors_in(torch.ones(1), "out")]
    ['out.0']
    """
    if isinstance(value, torch.Tensor):
        yield f"{place}.0", value
    else:
        yield from _walk(value, place, set(), 0)


def _walk(
    value: object, place: str, seen: set[int], depth: int
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    if depth == _DEEPEST or id(value) in seen:
        return
    for key, item in _items(value):
        yield from _walk(item, f"{place}.{key}", seen | {id(value)}, depth + 1)


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
