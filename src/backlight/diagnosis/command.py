"""The command `backlight diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

FAULTY: Final = 3
"""The exit code where a fault was found; errors have 1, wrong options 2."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        epilog="""\b
Examples:
  backlight diagnose backlight-runs/my-project/my-run
  backlight diagnose RUN --json | jq '.findings[0].fault'
  backlight diagnose RUN --rules my_rules.py || echo "training is not healthy"
"""
    )
    def diagnose(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
        rules: Annotated[
            Path | None,
            typer.Option(metavar="FILE.py", help="Rules of your own: a file with a list RULES."),
        ] = None,
        shows_all: Annotated[
            bool, typer.Option("--all", help="Also show what is not sure, or was not checked.")
        ] = False,
    ) -> None:
        """Say what is wrong with a run and where. Exit code 3 if there is a fault, else 0."""
        _diagnose(run, rules, as_json=as_json, shows_all=shows_all)


def _diagnose(run: Path, rules: Path | None, *, as_json: bool, shows_all: bool) -> None:
    from rich.console import Console

    from backlight.diagnosis.cause import SURE
    from backlight.diagnosis.engine import diagnose
    from backlight.diagnosis.report import print_report

    found = diagnose(run, rules=rules)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        print_report(found, run.name, Console(highlight=False), shows_all=shows_all)
    if any(finding.score >= SURE for finding in found):
        raise typer.Exit(FAULTY)
