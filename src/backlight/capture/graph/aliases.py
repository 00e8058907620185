"""Under which of its sites a value is known at a place of the program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from backlight.capture.graph.sights import NOWHERE, CallRecord, Sight

_NEVER: Final = (NOWHERE - 1, NOWHERE)


class Aliases:
    """The sites of every value.

    Inside a module's call a value goes by the call's input, outside it by the call's output, so
    that a skip connection starts where the value was made and not at its other consumer.
    """

    def __init__(self, sights: Sequence[Sight], calls: Sequence[CallRecord]) -> None:
        self._calls = calls
        self._inputs: dict[tuple[int, int], tuple[int, int]] = {}
        self._others: dict[int, list[tuple[int, Sight]]] = {}
        self._first: set[int] = set()
        self._scopes: dict[int, tuple[int, ...]] = {NOWHERE: ()}
        for order, sight in enumerate(sights):
            self._add(order, sight)

    def before(self, order: int, sink: Sight) -> int | None:
        """The site that saw the same value before `sink` did, which is sight number `order`."""
        return self.find(sink.value, -1 if order in self._first else order, sink)

    def find(self, value: int, before: int, sink: Sight) -> int | None:
        """The site by which `sink` knows a value: the last that was seen from where it is."""
        scope = self._scope(sink)
        last, found = NOWHERE - 1, None
        for call in scope:
            # What a call is given twice, as `model(x, labels=x)` does, goes by the first of both.
            since, site = self._inputs.get((value, call), _NEVER)
            if last < since < before:
                last, found = since, site
        others = self._others.get(value, [])
        # They are in the order of the step: a value that a chain hands on has thousands.
        for place in range(bisect_left(others, before, key=itemgetter(0)) - 1, -1, -1):
            since, sight = others[place]
            if sight.role != "output" or sight.call not in scope:
                return sight.site if since > last else found
        return found

    def first_input(self, sight: Sight) -> int:
        """The input by which a call goes that is given one value several times; else the site."""
        _, site = self._inputs.get((sight.value, sight.call), (NOWHERE, sight.site))
        return site if sight.role == "input" else sight.site

    def _add(self, order: int, sight: Sight) -> None:
        if sight.role == "input":
            self._inputs.setdefault((sight.value, sight.call), (order, sight.site))
            return
        others = self._others.setdefault(sight.value, [])
        if not others and sight.role != "output" and self.find(sight.value, order, sight) is None:
            # A parameter, or a tensor that is named late, was there from the beginning.
            self._first.add(order)
            order = -1
        others.append((order, sight))

    def _scope(self, sink: Sight) -> tuple[int, ...]:
        """The calls that a sight is made in; an input is made before its call."""
        is_input = sink.role == "input" and sink.call != NOWHERE
        return self._around(self._calls[sink.call].around if is_input else sink.call)

    def _around(self, call: int) -> tuple[int, ...]:
        """A call and all those around it."""
        scope = self._scopes.get(call)
        if scope is None:
            scope = self._scopes[call] = (call, *self._around(self._calls[call].around))
        return scope
