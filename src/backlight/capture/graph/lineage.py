"""What was made from what, in numbers."""

from __future__ import annotations

Ref = tuple[int, int]
"""An operation, and which of its outputs."""


class Lineage:
    """Which operation read the output of which others, in numbers; some outputs have a value.

    Operations are added after those whose outputs they read.

    >>> lineage = Lineage()
    >>> first = lineage.add(()), 0
    >>> second = lineage.add((first,)), 0
    >>> lineage.bind(first, value=7)
    >>> third = lineage.add((second,))
    >>> lineage.reached()[third]
    frozenset({7})
    """

    def __init__(self) -> None:
        self.inputs: list[tuple[Ref, ...]] = []
        self.values: dict[Ref, int] = {}

    def add(self, inputs: tuple[Ref, ...]) -> int:
        """The number of a new operation that read `inputs`."""
        self.inputs.append(inputs)
        return len(self.inputs) - 1

    def bind(self, ref: Ref, value: int) -> None:
        """Say which value an output is; the first to say so is right."""
        self.values.setdefault(ref, value)

    def reached(self) -> list[frozenset[int]]:
        """For each operation, the values that it was made from without another in between."""
        reached: list[frozenset[int]] = []
        for inputs in self.inputs:
            values: set[int] = set()
            for ref in inputs:
                value = self.values.get(ref)
                values.update(reached[ref[0]] if value is None else (value,))
            reached.append(frozenset(values))
        return reached
