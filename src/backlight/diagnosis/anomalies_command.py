"""The command `backlight anomalies`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from backlight.errors import BacklightError


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        epilog="""\b
Examples:
  backlight anomalies RUN                                  those that the run was told of
  backlight anomalies RUN -e "hot: abs_max('encoder') > 1"
  backlight anomalies RUN -e "loss > 2 * usual(loss)" -e "rms('.', grad, lowest) < 1e-6"
  backlight anomalies RUN --by sample -e "high loss: rank(mean('loss per sample')) > 0.8"
"""
    )
    def anomalies(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
        expressions: Annotated[
            list[str] | None,
            typer.Option(
                "--expression", "-e", metavar="EXPR", help="An anomaly, or NAME: EXPR. May repeat."
            ),
        ] = None,
        by: Annotated[str, typer.Option(help="Look at each `step`, or each `sample`.")] = "step",
        most: Annotated[
            int, typer.Option(min=0, help="How much of what goes with it is told.")
        ] = 10,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    ) -> None:
        """Say where an anomaly of your own shows, and what goes with it."""
        found = _find(run, expressions or [], by, most)
        if as_json:
            typer.echo(json.dumps([each.to_json() for each in found], indent=1, allow_nan=False))
            return
        for number, each in enumerate(found):
            _print(each, is_first=number == 0)


def _find(run: Path, expressions: list[str], by: str, most: int) -> list[Any]:
    from backlight.store.opened import OpenedRun, open_path

    opened = open_path(run)
    if not isinstance(opened, OpenedRun):
        raise BacklightError(f"{str(run)!r} is a folder of runs: pass the folder of one run.")
    found = opened.anomalies(*expressions, by=by, most=most)
    if not found:
        raise BacklightError(
            'The run was told of no anomalies: give one, as in -e "loss > 2 * usual(loss)".'
        )
    return found


def _print(anomaly: Any, *, is_first: bool) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from backlight.housekeeping import printable

    console = Console(highlight=False)
    if not is_first:
        console.print()
    head, *sentences = anomaly.sentences
    console.print(Text(printable(head), style="bold"))
    for sentence, relation in zip(sentences, anomaly.relations, strict=True):
        console.print(Padding(Text(printable(sentence)), (1, 0, 0, 2)))
        console.print(Padding(Text(printable(_numbers(relation)), style="bright_black"), (0, 4)))
    if anomaly.reason:
        console.print(Padding(Text(anomaly.reason), (0, 2)))
    elif not anomaly.relations:
        tried = f"Nothing goes with it, of {anomaly.tried:,} conditions that were tried."
        console.print(Padding(Text(tried), (0, 2)))


def _numbers(relation: Any) -> str:
    also = f"; so does {relation.also[0]}" if relation.also else ""
    also += f" and {len(relation.also) - 1} more" if len(relation.also) > 1 else ""
    return (
        f"{relation.condition or relation.words} (lift {relation.lift:.2g}, "
        f"{relation.mutual_information:.2g} bits, chance {relation.chance:.2g}{also})"
    )
