"""Reads the dependency graphs of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from backlight.errors import BacklightError
from backlight.store.files import check_plain, read_plain
from backlight.store.seal import is_as_written

FOLDER: Final = "graphs"
_LARGEST_GRAPH_BYTES: Final = 1 << 28
_UNREADABLE: Final = (OSError, ValueError, RecursionError)


def read_graph(run: Path, graph: str) -> dict[str, Any]:
    """The graph that a row of `steps` names, or one sentence on why it cannot be told.

    >>> read_graph(Path("no/such/run"), "../secret")
    Traceback (most recent call last):
    backlight.errors.BacklightError: The run names a graph '../secret', which cannot be one.
    """
    path = _path(run, graph)
    try:
        content = json.loads(_text(path))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except _UNREADABLE as error:
        raise unreadable(run, graph, error) from None
    content.pop("crc32", None)
    return content


def graph_problem(run: Path, graph: str) -> str | None:
    """One sentence on a graph that cannot be read; None of one that can.

    >>> graph_problem(Path("no/such/run"), "abc")
    "The graph 'no/such/run/graphs/abc.json' cannot be read (No such file or directory): ..."
    """
    try:
        text = _text(_path(run, graph))
        if not is_as_written(text):  # it has no checksum, so it has to be parsed
            json.loads(text)
    except _UNREADABLE as error:
        return str(unreadable(run, graph, error))
    except BacklightError as error:
        return str(error)
    return None


def unreadable(run: Path, graph: str, error: Exception) -> BacklightError:
    """What is said of a graph that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
    return BacklightError(
        f"The graph {str(_path(run, graph))!r} cannot be read ({reason}): put that file back from "
        "a copy of the run; all numbers are there, but not what was made from what."
    )


def _path(run: Path, graph: str) -> Path:
    if not (graph.isascii() and graph.isalnum() and len(graph) <= 128):
        raise BacklightError(f"The run names a graph {graph[:40]!r}, which cannot be one.")
    return run / FOLDER / f"{graph}.json"


def _text(path: Path) -> str:
    check_plain(path)
    text = read_plain(path, _LARGEST_GRAPH_BYTES).decode()
    # Before there were checksums a graph was a single line.
    if "\n" in text.rstrip("\n") and not is_as_written(text):
        raise ValueError("it is not as it was written")
    return text
