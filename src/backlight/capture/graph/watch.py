"""Tells by the calls of modules alone whether a step is built like an earlier one.

This takes a third of a microsecond for each call, so every captured step can be watched. A step
that turns out to be new cannot be followed any more, because that has to begin with the step; later
ones are followed instead, until one is met that is built alike.
"""

from __future__ import annotations

import sys
from typing import Final, TypeVar

_T = TypeVar("_T")

_MOST_STRUCTURES: Final = 1024
_PATIENCE: Final = 64  # so many steps are waited for a structure to come again
_FREE, _SHARE = 16, 8  # so many steps may be followed, and after that each eighth


class StructureWatch:
    """Knows the structures of steps, and which graph each was found to have.

    A structure is the set of transitions from one call of a module to the next. So one round more
    of a loop of `run.iteration()` is no news, as it is none in the graph: iterations share sites.

    >>> watch = StructureWatch()
    >>> def step(*modules, graph=""):
    ...     watch.begin()
    ...     for module in modules:
    ...         watch.enter(module, 1)
    ...     return watch.end(graph)
    >>> step("", "left", graph="a graph that was followed")
    'a graph that was followed'
    >>> step("", "left"), watch.is_new, watch.wants_following
    ('a graph that was followed', False, False)
    >>> step("", "right"), watch.is_new, watch.wants_following
    ('', True, True)
    """

    def __init__(self) -> None:
        self.entered: list[tuple[str, int]] = []  # the calls of the step so far, in order
        self._signature: tuple[int, list[tuple[str, int]]] = hash(frozenset()), []  # and its calls
        self._graphs: dict[int, str] = {}
        self._waiting: dict[int, int] = {}  # new structures, and the step each was last seen in
        self._steps = 0
        self._followed = 0

    def begin(self) -> None:
        """A step begins that is captured."""
        self.entered = []
        self._steps += 1

    def note_steps(self, steps: int) -> None:
        """So many have begun, of each of which `entered` was emptied."""
        self._steps += steps

    def enter(self, module: str, call: int) -> None:
        """A module's call starts."""
        self.entered.append((module, call))

    def end(self, graph: str = "") -> str:
        """The step ends; `graph` is its graph, if it was followed.

        Answers the graph of a step of this structure, "" if none was followed yet.
        """
        signature = self.signature
        if graph:
            self._followed += 1
            self._waiting.pop(signature, None)
            _remember(self._graphs, signature, graph)
        elif signature not in self._graphs:
            _remember(self._waiting, signature, self._steps)
        return self._graphs.get(signature, "")

    @property
    def signature(self) -> int:
        """A hash of the structure, so far; it means nothing in another process."""
        known, of = self._signature
        if self.entered != of:  # most steps are built like the one before
            transitions = zip([("", 0), *self.entered], self.entered, strict=False)
            known = hash(frozenset(transitions))
            self._signature = known, self.entered.copy()
        return known

    @property
    def last(self) -> tuple[list[tuple[str, int]], str] | None:
        """The calls of a step that was built like the last one, and their graph, if it is known."""
        known, calls = self._signature
        graph = self._graphs.get(known)
        return None if graph is None else (calls, graph)

    @property
    def is_new(self) -> bool:
        """Whether no step of this structure was followed yet."""
        return self.signature not in self._graphs

    @property
    def wants_following(self) -> bool:
        """Whether the next step should be followed, because a structure came up that was not."""
        return max(self._first_due, 0) <= self._steps < self._awaited_until

    @property
    def usual_steps(self) -> int:
        """How many steps come before one that should be followed, if no structure in them is new.

        >>> watch = StructureWatch()
        >>> for number in range(20):
        ...     watch.begin()
        ...     _ = watch.end(graph="a graph that was followed")
        >>> watch.usual_steps == sys.maxsize  # none is waited for
        True
        >>> watch.begin(); watch.enter("", 1); watch.end()
        ''
        >>> watch.wants_following, watch.usual_steps  # of 32 steps 20 may be followed
        (False, 10)
        """
        first = max(self._first_due, self._steps + 1)
        return first - self._steps - 1 if first < self._awaited_until else sys.maxsize

    @property
    def _first_due(self) -> int:
        """After how many steps one more may be followed."""
        return (self._followed - _FREE) * _SHARE

    @property
    def _awaited_until(self) -> int:
        return next(reversed(self._waiting.values()), -_PATIENCE) + _PATIENCE


def _remember(memory: dict[int, _T], signature: int, fact: _T) -> None:
    """Note the last fact of a structure, and forget the one that was noted longest ago."""
    memory.pop(signature, None)
    memory[signature] = fact
    if len(memory) > _MOST_STRUCTURES:
        del memory[next(iter(memory))]
