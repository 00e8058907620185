"""Runs a user's file in a process of its own, where it can neither block nor end the viewer."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from backlight.custom.pictures import Picture, picture_of
from backlight.custom.selection import Selection
from backlight.errors import BacklightError
from backlight.store.opened import OpenedRun, open_path

FUNCTION = "visualize"


def work(file: str, line: Connection) -> None:
    """Answer questions until nobody asks any more."""
    source = Source(Path(file))
    while True:
        try:
            run, selection = line.recv()
        except (EOFError, KeyboardInterrupt):
            return
        line.send(source.draw(Path(run), selection))


class Source:
    """A file with a function `visualize(selection, run)`; read again when it was changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = -1
        self._function: Callable[..., Any] | None = None
        self._runs: dict[Path, OpenedRun] = {}

    def draw(self, run: Path, selection: Selection) -> Picture:
        """What the function makes of a selection, or what went wrong."""
        try:
            return picture_of(self._loaded()(selection, self._open(run)))
        except BacklightError as error:
            return {"kind": "error", "error": str(error), "traceback": ""}
        except BaseException as error:
            return failure(error, str(self._file))

    def _loaded(self) -> Callable[..., Any]:
        changed_at = self._file.stat().st_mtime_ns
        if self._function is None or changed_at != self._read_at:
            self._function = load(self._file)
            self._read_at = changed_at
        return self._function

    def _open(self, path: Path) -> OpenedRun:
        return opened(path, self._runs)


def opened(path: Path, known: dict[Path, OpenedRun]) -> OpenedRun:
    """A run, up to date; one that was opened before is not read again."""
    if path not in known:
        run = open_path(path)
        assert isinstance(run, OpenedRun)
        known[path] = run
    else:
        known[path].refresh()
    return known[path]


def load(file: Path) -> Callable[..., Any]:
    """The function of a file."""
    names: dict[str, Any] = {"__name__": "backlight_custom", "__file__": str(file)}
    exec(compile(file.read_bytes(), str(file), "exec"), names)
    function: Callable[..., Any] | None = names.get(FUNCTION)
    if function is None or not callable(function):
        raise BacklightError(
            f"{str(file)!r} has no function visualize(selection, run): define one that returns a "
            "figure, an image or HTML."
        )
    return function


def failure(error: BaseException, file: str) -> Picture:
    """One sentence on what went wrong, with the line of the user's file, and all below it."""
    trace = error.__traceback__
    # Above the user's file everything is ours.
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    lines = [each.lineno for each in traceback.extract_tb(trace) if each.filename == file]
    said = str(error)
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, said = [error.lineno], error.msg  # its text would say the line once more
    where = f"{Path(file).name}, line {lines[-1]}" if lines else Path(file).name
    whole = "".join(traceback.format_exception(type(error), error, trace))
    sentence = f"{type(error).__name__}: {said} ({where})"
    return {"kind": "error", "error": sentence, "traceback": whole}
