"""The options that runs of every framework have: checks them, and makes the run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backlight.capture.select import Selection
from backlight.errors import BacklightError
from backlight.schedule import Schedule, make_schedule
from backlight.store.writer import create_run_folder


@dataclass(frozen=True, slots=True)
class Options:
    """What is recorded, when, and what is kept with the run."""

    config: Mapping[str, Any]
    schedule: Schedule
    selection: Selection
    blackbox: int


def check_options(
    *,
    root: Any,
    config: Any,
    every: int | None,
    budget: float | None,
    schedule: object | None,
    include: Any,
    exclude: Any,
    classes: Any,
    blackbox: Any,
) -> Options:
    """The options, if they can be used; whatever is wrong is a `BacklightError` of one sentence."""
    chosen = make_schedule(every, budget, schedule)
    selection = Selection(include=include, exclude=exclude, classes=classes)
    if not isinstance(root, (str, Path)) or "\0" in str(root):
        raise BacklightError(f"root={root!r} is no folder: pass a path to write runs to.")
    if config is not None and not isinstance(config, Mapping):
        raise BacklightError(f"config is a {type(config).__name__}: pass a dict of settings.")
    if isinstance(blackbox, bool) or not isinstance(blackbox, int) or blackbox < 0:
        raise BacklightError(f"blackbox={blackbox!r} is no number of steps: use 0 or more.")
    return Options(config or {}, chosen, selection, blackbox)


def run_folder(root: str | Path, project: str, name: str, resume: str | Path | None) -> Path:
    """The folder of a new run, or that of the one to go on with."""
    if resume is None:
        return create_run_folder(Path(root), project, name)
    if not isinstance(resume, (str, Path)) or not (Path(resume) / "run.json").is_file():
        raise BacklightError(f"resume={str(resume)!r} is no run: pass the path of an earlier run.")
    return Path(resume)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Say in one sentence why a run cannot be begun in a folder."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            path.rmdir()  # which is refused unless it is empty, as one that was made for this run
        raise BacklightError(
            f"Cannot write to {str(path)!r} ({error.strerror or error}): "
            "pass root= a folder that you can write to."
        ) from None
