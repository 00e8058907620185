"""The compiled programs of a run: one for each function and each kind of arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from backlight.capture.sites import SiteBook
from backlight.errors import Guard, tell
from backlight.jax.arguments import Arguments, take_apart
from backlight.jax.own import OwnWords
from backlight.jax.program import Program, Traced, trace
from backlight.own.statistic import StatisticBook

_MOST_PROGRAMS: Final = 16
"""Compiling costs more than it tells where every step is of another shape."""


@dataclass(slots=True)
class Recorded:
    """What a recorded step returned, and what was read of it."""

    program: Program
    result: Any
    state: Any  # of NNX's objects; None if there are none
    words: Any
    compile_secs: float  # 0 if the program was compiled before


class Programs:
    """Finds or makes the program for a call. What cannot be traced is said once, and left alone."""

    def __init__(
        self, sites: SiteBook, guard: Guard, loss: str | None, book: StatisticBook
    ) -> None:
        self._sites = sites
        self._book = book
        self._guard = guard
        self._loss = loss
        self._known: dict[Any, Program | None] = {}
        self._has_fixed_numbers: set[int] = set()
        self._has_told_change: set[int] = set()
        self._functions: list[Any] = []  # so that no identity is used twice

    def traced(self) -> list[Traced]:
        """Every program that was traced, in order."""
        return [program.traced for program in self._known.values() if program is not None]

    @property
    def compile_secs(self) -> float:
        """How long it took to trace and compile all of them."""
        return sum(each.compile_secs for each in self._known.values() if each is not None)

    def run(
        self, function: Callable[..., Any], args: Any, keywords: Any, step: int
    ) -> Recorded | None:
        """Run the program for this call; None if there is none."""
        is_dynamic = id(function) not in self._has_fixed_numbers
        arguments = take_apart(args, keywords, has_dynamic_numbers=is_dynamic)
        key = (id(function), arguments.key)
        is_new = key not in self._known
        if is_new:
            self._functions.append(function)
            self._add(key, function, arguments, step)
            if self._known[key] is None and is_dynamic:
                # A number may be one that the user's jit has as static.
                self._has_fixed_numbers.add(id(function))
                del self._known[key]
                return self.run(function, args, keywords, step)
        program = self._known[key]
        if program is None:
            return None
        (result, state), words = program(arguments.arrays)
        words.copy_to_host_async()
        secs = program.compile_secs if is_new else 0.0
        return Recorded(program, result, state, words, secs)

    def forget(self) -> None:
        """Compile anew: from now on more is computed."""
        self._known.clear()

    def _add(self, key: Any, function: Any, arguments: Arguments, step: int) -> None:
        self._known[key] = None
        if len(self._known) > _MOST_PROGRAMS:
            self._guard.mistake(
                f"The arguments of the step have changed their shapes {_MOST_PROGRAMS} times, and "
                "each time it has to be compiled again: steps of new shapes are not recorded; pad "
                "the batches to a few sizes."
            )
            return
        is_last_try = id(function) in self._has_fixed_numbers
        started = time.perf_counter()
        try:
            traced = trace(function, arguments, self._loss)
        except Exception as error:
            if is_last_try:
                self._tell_untraceable(error)
            return
        program = Program(traced, self._sites, step, OwnWords(self._book))
        self._tell_change(key, step)
        program.compile(arguments.arrays)
        program.own.tell()
        program.compile_secs = time.perf_counter() - started
        for mistake in program.mistakes:
            self._guard.mistake(mistake)
        self._known[key] = program

    def _tell_untraceable(self, error: Exception) -> None:
        what = str(error).strip().splitlines()[0] if str(error).strip() else ""
        self._guard.mistake(
            f"The step cannot be traced by JAX, so it is not recorded ({type(error).__name__}: "
            f"{what[:160]}); training goes on: give run.wrap() a function that jax.jit takes."
        )

    def _tell_change(self, key: Any, step: int) -> None:
        """A step of another shape is compiled again: that takes time, so it is said, once."""
        known = [each for each, program in self._known.items() if program is not None]
        before = next((each for each in reversed(known) if each[0] == key[0]), None)
        if before is not None and key[0] not in self._has_told_change:
            self._has_told_change.add(key[0])
            tell(
                f"The arguments of the step have another {_difference(before[1], key[1])} at step "
                f"{step}, so it is compiled again for recording."
            )


def _difference(old: Any, new: Any) -> str:
    if old[0] != new[0] or old[4] != new[4]:
        return "structure"
    if old[3] != new[3]:
        pairs = zip(old[3], new[3], strict=False)
        changed = next(((a, b) for a, b in pairs if a != b), None)
        return f"shape ({changed[0][1]}, now {changed[1][1]})" if changed else "number of arrays"
    return "value of what is not an array"
