"""The command `backlight precision`."""

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
  backlight precision RUN --format float8_e4m3fn
  backlight precision RUN --format float16 --format bfloat16 --quantity grad --name weight
  backlight precision RUN --format float8_e5m2 --json | jq '.[0].scale'
"""
    )
    def precision(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
        formats: Annotated[
            list[str], typer.Option("--format", metavar="NAME", help="May be repeated.")
        ],
        name: Annotated[
            str | None, typer.Option(metavar="REGEX", help="Only sites whose names match.")
        ] = None,
        quantity: Annotated[
            str | None, typer.Option(help="value, grad, grad_applied or update.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    ) -> None:
        """Say what number formats would lose of a run: of each site its worst step."""
        rows = _worst(run, formats, name, quantity)
        typer.echo(json.dumps(rows, indent=1, allow_nan=False)) if as_json else _print(rows)


def _worst(
    run: Path, formats: list[str], name: str | None, quantity: str | None
) -> list[dict[str, Any]]:
    from backlight.store.opened import OpenedRun, open_path

    opened = open_path(run)
    if not isinstance(opened, OpenedRun):
        raise BacklightError(f"{str(run)!r} is no run: pass the folder of one.")
    worst: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in opened.precision(formats, name, quantity=quantity):
        key = (row["name"], row["quantity"], row["format"])
        is_known = row["overflow"] is not None
        if is_known and (key not in worst or _lost(row) > _lost(worst[key])):
            worst[key] = row
    if not worst:
        raise BacklightError(f"Nothing of {opened.name!r} is chosen: another --name or --quantity?")
    return sorted(worst.values(), key=_lost, reverse=True)


def _lost(row: dict[str, Any]) -> tuple[float, float]:
    return row["overflow"] + row["underflow"], row["subnormal"]


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from backlight.housekeeping import printable

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("site", "quantity", "format"):
        table.add_column(title, overflow="fold")
    for title in ("step", "overflow", "underflow", "subnormal", "scale", "then lost"):
        table.add_column(title, justify="right")
    for row in rows:
        shares = (f"{row[each]:.1%}" for each in ("overflow", "underflow", "subnormal"))
        scale = f"2^{row['scale']}" if row["scale"] else "–"
        cells = (row["name"], row["quantity"], row["format"], str(row["step"]), *shares, scale)
        # As text: a name may look like markup.
        table.add_row(*(Text(printable(cell)) for cell in cells), f"{row['scaled_underflow']:.1%}")
    Console(highlight=False).print(table)
