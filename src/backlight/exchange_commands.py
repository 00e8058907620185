"""The commands `backlight import` and `backlight export-frame`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backlight.errors import BacklightError


def register(app: typer.Typer, default_root: Path) -> None:
    """Add the commands to the command line."""

    @app.command(
        "import",
        epilog="""\b
Examples:
  backlight import exponents.parquet --scalars training.csv
  backlight import events.out.tfevents.1700000000.host --name baseline
  backlight import offline-run/run-abc.wandb
""",
    )
    def import_(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A frame, or a log of scalars.")],
        scalars: Annotated[
            list[Path] | None,
            typer.Option(metavar="FILE", help="Training statistics beside it. May be repeated."),
        ] = None,
        root: Annotated[Path, typer.Option(help="Where the run is written.")] = default_root,
        project: Annotated[str, typer.Option(help="The run's project.")] = "imported",
        name: Annotated[
            str | None, typer.Option(help="The run's name.", show_default="that of the file")
        ] = None,
        allow_pickle: Annotated[
            bool,
            typer.Option(
                "--allow-pickle",
                help="Read a pickle, which can run any program: only for files you trust.",
            ),
        ] = False,
    ) -> None:
        """Make a run of what another tool recorded.

        A frame of exponent counts (.parquet, .csv), or training statistics: a .csv, an event file
        of TensorBoard, an offline file of W&B.
        """
        where = {"root": root, "project": project, "name": name or file.stem.lstrip(".")}
        path = _import(file, scalars or [], where, allow_pickle=allow_pickle)
        typer.echo(f"{path} is a run now; `backlight view {path}` shows it.")

    @app.command(
        "export-frame",
        epilog="""\b
Examples:
  backlight export-frame backlight-runs/my-project/first -o first.parquet
  backlight export-frame RUN -o attention.csv --name 'attn.*weight$'
""",
    )
    def export_frame(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of one run.")],
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="FILE", help="A .parquet or .csv file.")
        ] = Path("run.parquet"),
        name: Annotated[
            str | None, typer.Option(metavar="REGEX", help="Only sites whose names match.")
        ] = None,
    ) -> None:
        """Write a run as a table of exponent counts: metadata, scalar_stats, exponent_counts."""
        rows = _export(run, output, name)
        typer.echo(f"{output} has {rows} rows.")


def _import(file: Path, beside: list[Path], where: dict[str, Any], *, allow_pickle: bool) -> Path:
    from backlight.exchange import import_frame, import_scalars, read_frame, read_scalars
    from backlight.exchange.frame_files import is_frame

    scalars = [each for log in beside for each in read_scalars(log)]
    if not is_frame(file):
        return import_scalars([*read_scalars(file), *scalars], **where)
    frame = read_frame(file, allow_pickle=allow_pickle)
    return import_frame(frame, scalars=scalars, **where)


def _export(run: Path, output: Path, name: str | None) -> int:
    from backlight.exchange import write_frame
    from backlight.store.opened import OpenedRun, open_path

    opened = open_path(run)
    if not isinstance(opened, OpenedRun):
        raise BacklightError(f"{str(run)!r} is no run: pass the folder of one.")
    frame = opened.frame(name)
    write_frame(frame, output)
    return len(frame)
