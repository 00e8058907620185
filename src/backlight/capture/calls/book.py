"""The calls of a step. Those of a line that repeats itself are folded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

from backlight.capture.calls.describe import form, merge

MOST_CALLS: Final = 10_000
"""So many records are kept between two `take()`; further ones are dropped."""

MOST_CALLS_OF_A_LINE: Final = 50
"""Further calls of one line are folded where they differ in nothing but their values."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function. A folded one has the number of calls in `arguments["repeats"]`."""

    function: str  # torch.nn.functional.cross_entropy
    module: str  # the module whose forward it ran in; "" is the loop itself
    iteration: int
    arguments: dict[str, Any]
    result: Any
    source: str  # file:line
    code: str  # that line


class CallBook:
    """The calls between two `take()`, in order."""

    def __init__(self) -> None:
        self.calls: list[FunctionCall] = []
        self._of_line: Counter[str] = Counter()
        self._folded: dict[tuple[Any, ...], int] = {}

    def add(self, call: FunctionCall) -> None:
        """Write a call down, or fold it into one that is like it."""
        self._of_line[call.source] += 1
        if self._of_line[call.source] > MOST_CALLS_OF_A_LINE:
            self._fold(call)
        elif len(self.calls) < MOST_CALLS:
            self.calls.append(call)

    def _fold(self, call: FunctionCall) -> None:
        key = (call.function, call.module, call.source, form([call.arguments, call.result]))
        place = self._folded.get(key)
        if place is not None:
            self.calls[place] = _both(self.calls[place], call)
        elif len(self.calls) < MOST_CALLS:
            self._folded[key] = len(self.calls)
            self.calls.append(replace(call, arguments={**call.arguments, "repeats": 1}))


def _both(folded: FunctionCall, call: FunctionCall) -> FunctionCall:
    repeats = folded.arguments["repeats"] + 1
    arguments = {key: merge(folded.arguments[key], told) for key, told in call.arguments.items()}
    result = merge(folded.result, call.result)
    return replace(folded, arguments={**arguments, "repeats": repeats}, result=result)
