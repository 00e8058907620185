"""The command `backlight export`: shows how far it is, and says what was left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from backlight.errors import BacklightError
from backlight.export.file import export_run
from backlight.units import size as size_text

_UNITS: Final = {"": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}


def export_with_progress(run: Path, to: Path, *, size: str, most_steps: int) -> None:
    """Write a run as one HTML file, and say what it holds."""
    size_bytes = bytes_of(size)
    columns = (TextColumn("{task.description:>8}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("reading", total=1.0)

        def show(doing: str, share: float) -> None:
            progress.update(bar, description=doing, completed=share)

        done = export_run(run, to, size_bytes=size_bytes, most_steps=most_steps, on_progress=show)
    typer.echo(f"{done.path} ({size_text(done.size_bytes)}) opens in any browser, offline.")
    for sentence in done.thinned:
        typer.echo(sentence)


def bytes_of(text: str) -> int:
    """A size that a person wrote, in bytes.

    >>> bytes_of("20MB"), bytes_of("1.5 gb"), bytes_of("5000")
    (20000000, 1500000000, 5000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?B?)\s*", text.upper())
    if not found:
        raise BacklightError(f"{text!r} is no size: write it as 5MB or 500KB.")
    unit = found[2].rstrip("B")
    return int(float(found[1]) * _UNITS[f"{unit}B" if unit else ""])
