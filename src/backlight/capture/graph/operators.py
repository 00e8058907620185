"""What torch's operators do with their arguments, by their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

_OVERWRITING: Final = frozenset(
    "copy_ zero_ fill_ normal_ uniform_ bernoulli_ random_ exponential_ geometric_ cauchy_"
    " log_normal_".split()
)
_RUNNING: Final = frozenset({"running_mean", "running_var"})


class Rule(NamedTuple):
    """Which of its arguments an operator reads, and which it writes."""

    arguments: tuple[str, ...]
    written: tuple[str, ...]
    unread: frozenset[str]
    unread_in_training: frozenset[str]
    is_plain: bool  # it reads all and writes none

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that a call reads, and those that it writes."""
        if self.is_plain:
            return tensors_in((*args, *kwargs.values())), []
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        unread = self.unread
        if self.unread_in_training and given["training"]:
            unread = unread | self.unread_in_training
        return (
            tensors_in(value for name, value in given.items() if name not in unread),
            tensors_in(given.get(name) for name in self.written),
        )


@lru_cache(maxsize=4096)
def rule_of(operator: Any) -> Rule:
    """What an operator does with its arguments.

    >>> rule_of(torch.ops.aten.copy_.default).unread
    frozenset({'self'})
    """
    schema = operator._schema
    name = schema.name.split("::")[-1]
    arguments = tuple(argument.name for argument in schema.arguments)
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    unread = {a.name for a in written if a.kwarg_only or name in _OVERWRITING}
    # `zeros_like(x)` and `x.new_ones()` take a shape from x, and none of its values.
    if name.endswith("_like") or name.startswith("new_"):
        unread.update(arguments)
    # A batch norm that trains takes its statistics from the batch.
    running = _RUNNING.intersection(arguments) if "training" in arguments else frozenset()
    is_plain = not (written or unread or running)
    return Rule(arguments, tuple(a.name for a in written), frozenset(unread), running, is_plain)


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among some values, and in lists and tuples of them."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found
