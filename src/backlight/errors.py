"""Errors for people, and the one place where a recorder's fault is caught."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import Counter
from types import FrameType, TracebackType
from typing import Final

_NOT_THE_USERS: Final = frozenset({"backlight", "contextlib", "functools", "torch"})

MOST_KINDS: Final = 64
"""So many kinds of faults are told: some have a number in them that is always another."""


class BacklightError(Exception):
    """Bad input, said in one sentence: what is wrong, where, and what to do."""


class StopTraining(Exception):  # noqa: N818
    """Raised by a function given to `run.on_finding`: it ends the training loop."""


class BacklightWarning(UserWarning):
    """Something that the user should know, while everything goes on."""


def is_strict() -> bool:
    """Whether a recorder's fault is raised (`BACKLIGHT_STRICT=1`) and not only reported."""
    return os.environ.get("BACKLIGHT_STRICT", "") not in ("", "0")


class Guard:
    """Keeps a recorder's faults away from training: counts them, and reports each kind once.

    >>> guard = Guard(strict=False)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for _ in range(3):
    ...         with guard("counting"):
    ...             raise ValueError("a fault inside the recorder")
    >>> len(caught), guard.count
    (1, 3)
    """

    def __init__(self, *, strict: bool | None = None) -> None:
        self.strict = is_strict() if strict is None else strict
        self.faults: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many faults there were."""
        return self.faults.total()

    def __call__(self, doing: str) -> _Guarded:
        """Let no fault out of the block; `doing` says in a few words what the block does."""
        return _Guarded(self, doing)

    def catch(self, doing: str, error: Exception) -> None:
        """Count and report a fault that was caught while `doing` something."""
        if self.strict:
            raise error
        what = f"{doing}: {type(error).__name__}: {error}"
        if self._is_news(what):
            places = traceback.extract_tb(error.__traceback__)  # none in the kernel
            place = f" ({places[-1].name}, line {places[-1].lineno})" if places else ""
            tell(
                f"Backlight met a fault of its own while {what}{place}; training goes on, "
                "and what was not recorded is missing from the run."
            )

    def mistake(self, sentence: str) -> None:
        """Tell the user, once, of something that cannot be done; in strict mode it is raised."""
        if self.strict:
            raise BacklightError(sentence)
        if self._is_news(sentence):
            tell(sentence)

    def _is_news(self, what: str) -> bool:
        """Count a fault; of very many kinds, those that come last are counted together."""
        if what not in self.faults and len(self.faults) >= MOST_KINDS:
            what = "others"
        self.faults[what] += 1
        return self.faults[what] == 1

    def as_dict(self) -> dict[str, int]:
        """The faults and how often each happened."""
        return dict(self.faults)


class _Guarded:
    """A guarded block. No generator: there is one for each gradient."""

    __slots__ = ("_doing", "_guard")

    def __init__(self, guard: Guard, doing: str) -> None:
        self._guard, self._doing = guard, doing

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.catch(self._doing, error)
        return True


def tell(message: str) -> None:
    """Warn the user; where warnings are errors, only print: training must not end for ours."""
    try:
        warnings.warn(message, BacklightWarning, stacklevel=1 + _frames_of_others())
    except BacklightWarning:
        print(f"backlight: {message}", file=sys.stderr)


def _frames_of_others() -> int:
    """How many calls lead from the user's line to here: those of this package, torch and so on."""
    frame, count = sys._getframe(1), 0
    while frame.f_back and _package(frame) in _NOT_THE_USERS:
        frame, count = frame.f_back, count + 1
    return count


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
