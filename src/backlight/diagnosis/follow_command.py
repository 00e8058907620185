"""The command `backlight follow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backlight.diagnosis.command import FAULTY
from backlight.errors import BacklightError


def register(app: typer.Typer, default_root: Path) -> None:
    """Add the command to the command line."""

    @app.command(
        epilog="""\b
Examples:
  backlight follow                   the newest run in backlight-runs
  backlight follow backlight-runs/my-project/my-run
  backlight follow RUN --once        a look at it now, as in a script
  backlight follow RUN > log.txt     a line for each finding as it comes up
"""
    )
    def follow(
        run: Annotated[
            Path,
            typer.Argument(metavar="RUN", help="The folder of a run; of several, the newest."),
        ] = default_root,
        once: Annotated[
            bool, typer.Option("--once", help="Show it as it is now, and do not wait.")
        ] = False,
    ) -> None:
        """Follow a run in the terminal: its loss, its speed, and what is wrong, until it ends.

        Exit code 3 if there is a fault, else 0; Ctrl-C stops looking, not the run.
        """
        _follow(run, once=once)


def _follow(path: Path, *, once: bool) -> None:
    from rich.console import Console

    from backlight.diagnosis.follow import Follower, follow, screen
    from backlight.store.runs import find_runs, read_info

    runs = find_runs(path)
    if not runs:
        raise BacklightError(f"There are no runs in {str(path)!r}: pass the folder of a run.")
    newest = max(runs, key=lambda each: read_info(each.path).created_at)
    console = Console(highlight=False)
    try:
        if once:
            follower = Follower(newest)
            follower.look()
            console.print(screen(follower, console))
        else:
            follower = follow(newest, console)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    if follower.sure:
        raise typer.Exit(FAULTY)
