"""Follows the graph and the functional calls of a step, where its structure may be new.

That costs more than the rest of recording, and seldom tells anything new: so it is done in the
first steps of a kind, ever more rarely after that, and whenever modules are called in an order that
was not followed before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from backlight.capture.calls import CallCapture, FunctionCall
from backlight.capture.graph import Graph, GraphCapture, StructureWatch, sweep

_MOST_FAILURES: Final = 4
"""Some steps can never be traced: it is not tried for ever."""


def steps_before_power_of_two(count: int) -> int:
    """How many more there are from this one on before something is done at each power of two.

    >>> [steps_before_power_of_two(count) for count in range(10)]
    [0, 0, 0, 1, 0, 3, 2, 1, 0, 7]
    """
    return 0 if count & (count - 1) == 0 else (1 << count.bit_length()) - count


class Following:
    """The graph and the calls of a step, from its beginning to its end, but for the updates."""

    def __init__(
        self,
        *,
        current_module: Callable[[], str],
        site_of: Callable[[str], int | None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self.graphs = GraphCapture(site_of)
        self.is_on = False
        self._calls = CallCapture(
            current_module, on_fault=on_fault, around_backward=self.graphs.without_data
        )
        self.take_calls: Callable[[], list[FunctionCall]] = self._calls.take  # those of the step
        self._watches: defaultdict[str, StructureWatch] = defaultdict(StructureWatch)
        self._times: Counter[str] = Counter()
        self._failures = 0
        self._watch = StructureWatch()
        self._pause: AbstractContextManager[None] | None = None

    def begin(self, kind: str, *, can_follow: bool = True) -> bool:
        """A captured step begins; True if it is followed."""
        times = self._times[kind]
        self._times[kind] += 1
        self._watch = self._watches[kind]
        self._watch.begin()
        is_due = times & (times - 1) == 0 or self._watch.wants_following
        self.is_on = can_follow and is_due
        if self.is_on:
            self.graphs.begin(trace_data=self._failures < _MOST_FAILURES)
            self._calls.iteration = 0
            self._calls.attach()
        return self.is_on

    def usual_steps(self, kind: str) -> int:
        """How many steps after one of this kind are not followed, if no structure is new."""
        if self._watch is not self._watches[kind]:
            return 0
        return min(steps_before_power_of_two(self._times[kind]), self._watch.usual_steps)

    def note_usual(self, kind: str, steps: int) -> None:
        """So many have begun, of each of which `entered` was emptied."""
        self._times[kind] += steps
        self._watch.note_steps(steps)

    @property
    def entered(self) -> list[tuple[str, int]]:
        """The calls of the step so far. Where it is not followed, to add one is all of `enter`."""
        return self._watch.entered

    def usual_end(self, kind: str) -> tuple[list[tuple[str, int]], str] | None:
        """The calls of the last step, if it was of this kind, and its graph, if one is known."""
        return self._watch.last if self._watch is self._watches[kind] else None

    def enter(self, module: str, call: int) -> None:
        """A module's call begins."""
        self._watch.enter(module, call)
        if self.is_on:
            self.graphs.enter(module, call)

    def leave(self, module: str, call: int) -> None:
        """A module's call ends, in a step that is followed."""
        self.graphs.leave(module, call)

    def begin_iteration(self, number: int) -> None:
        """Another iteration of the step begins."""
        self._calls.iteration = number

    def pause(self) -> None:
        """An optimizer steps: what it computes is not the network's."""
        if self.is_on and self._pause is None:
            self._calls.detach()
            self._pause = self.graphs.without_data()
            self._pause.__enter__()

    def go_on(self) -> None:
        """The optimizer has stepped, and the step goes on, for another one."""
        if self._pause is not None:
            self._resume_data()
            self._calls.attach()

    def _resume_data(self) -> None:
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def stop(self) -> tuple[Graph | None, str]:
        """The step has ended: its graph, if it was followed, and the graph's signature.

        A step that was not followed has the signature of an earlier one of the same structure.
        """
        if not self.is_on:
            return None, self._watch.end()
        self.is_on = False
        self._calls.detach()
        self._resume_data()
        graph = self.graphs.finish()
        if graph is not None and not graph.is_traced:
            self._failures += 1
        return graph, self._watch.end("" if graph is None else graph.signature)

    def close(self) -> None:
        """Leave nothing behind, not even what could not be taken away where a step ended.

        That may have been inside of a backward pass, or in another thread.
        """
        self.stop()
        self._calls.detach()
        sweep(is_last=True)
