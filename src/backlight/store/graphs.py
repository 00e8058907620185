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


def read_graph(run: Path, graph: str) -> dict[str, Any]:
    """The graph that a row of `steps` names, or one sentence on why it cannot be told.

    >>> read_graph(Path("no/such/run"), "../secret")
    Traceback (most recent call last):
    backlight.errors.BacklightError: The run names a graph '../secret', which cannot be one.
    """
    if not (graph.isascii() and graph.isalnum() and len(graph) <= 128):
        raise BacklightError(f"The run names a graph {graph[:40]!r}, which cannot be one.")
    path = run / FOLDER / f"{graph}.json"
    try:
        check_plain(path)
        text = read_plain(path, _LARGEST_GRAPH_BYTES).decode()
        # Before there were checksums a graph was a single line.
        if "\n" in text.rstrip("\n") and not is_as_written(text):
            raise ValueError("it is not as it was written")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise BacklightError(f"The graph {str(path)!r} cannot be read ({reason}).") from None
    content.pop("crc32", None)
    return content
