"""Asks a user's function for pictures, within a time limit: the newest selection counts."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

from backlight.custom.pictures import Picture, picture_of
from backlight.custom.selection import Selection
from backlight.custom.worker import failure, opened, work
from backlight.errors import BacklightError
from backlight.store.opened import OpenedRun

LIMIT_SECS: Final = 20.0
# Longer than this, and what nobody waits for any more is given up.
_PATIENCE_SECS: Final = 2.0
_GLANCE_SECS: Final = 0.05
_SUPERSEDED: Final[Picture] = {"kind": "superseded"}


class Custom(Protocol):
    """Draws what is selected."""

    title: str

    def draw(self, run: Path, selection: Selection) -> Picture:
        """What is shown for a selection in a run."""


def custom_of(given: str | Path | Callable[..., Any] | None) -> Custom | None:
    """A function, or the file that has one, as something that draws.

    >>> custom_of("no/such/file.py")
    Traceback (most recent call last):
    backlight.errors.BacklightError: There is no file 'no/such/file.py': ...
    """
    if given is None:
        return None
    return CustomFunction(given) if callable(given) else CustomFile(Path(given))


class CustomFunction:
    """A function of this process, as in a notebook."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._runs: dict[Path, OpenedRun] = {}
        self.title = getattr(function, "__name__", "Custom")

    def draw(self, run: Path, selection: Selection) -> Picture:
        """What the function makes of a selection, or what went wrong."""
        try:
            return picture_of(self._function(selection, opened(run, self._runs)))
        except BacklightError as error:
            return {"kind": "error", "error": str(error), "traceback": ""}
        except Exception as error:
            code = getattr(self._function, "__code__", None)
            return failure(error, code.co_filename if code else "")


class CustomFile:
    """A file, whose function runs in a process that is ended where it takes too long."""

    def __init__(self, file: Path, limit_secs: float = LIMIT_SECS) -> None:
        if not file.is_file():
            raise BacklightError(
                f"There is no file {str(file)!r}: pass a Python file that has a function "
                "visualize(selection, run)."
            )
        self._file, self._limit_secs = file.resolve(), limit_secs
        self.title = file.name
        self._turn, self._newest = Lock(), 0
        self._process: Any = None
        self._line: Any = None

    def draw(self, run: Path, selection: Selection) -> Picture:
        """What the function makes of a selection, or what went wrong."""
        self._newest += 1
        ticket = self._newest
        with self._turn:
            if ticket != self._newest:
                return _SUPERSEDED
            return self._ask(run, selection, ticket)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
        self._process = self._line = None

    def _ask(self, run: Path, selection: Selection, ticket: int) -> Picture:
        if self._process is None or not self._process.is_alive():
            self._start()
        started = time.monotonic()
        try:
            self._line.send((str(run), selection))
            while not self._line.poll(_GLANCE_SECS):
                took = time.monotonic() - started
                if took > self._limit_secs:
                    return self._give_up(f"it took longer than {self._limit_secs:g} s")
                if took > _PATIENCE_SECS and ticket != self._newest:
                    self.close()
                    return _SUPERSEDED
            picture: Picture = self._line.recv()
            return picture
        except (EOFError, OSError):
            return self._give_up("its process ended")

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        arguments = (str(self._file), theirs)
        self._process = context.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def _give_up(self, why: str) -> Picture:
        self.close()
        sentence = f"{self.title} was stopped: {why}. It is asked again at the next change."
        return {"kind": "error", "error": sentence, "traceback": ""}
