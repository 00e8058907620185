"""The command `backlight`. What a command needs is imported when it runs: help must be quick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from backlight._version import __version__
from backlight.diagnosis.anomalies_command import register as register_anomalies
from backlight.diagnosis.command import register as register_diagnose
from backlight.diagnosis.follow_command import register as register_follow
from backlight.errors import BacklightError
from backlight.exchange_commands import register as register_exchange
from backlight.housekeeping import printable, register
from backlight.precision_command import register as register_precision

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_ROOT: Final = Path("backlight-runs")


class OneSentence(TyperGroup):
    """Commands whose errors are one sentence, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BacklightError as error:
            typer.echo(f"backlight: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=OneSentence,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See what happens inside a neural network while it trains.",
    epilog="Begin with `backlight demo`; `backlight COMMAND -h` shows examples.",
)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["diagnose"] and not any(each.startswith("--rules") for each in sys.argv):
        from backlight.store.arrow_alone import without_pandas

        without_pandas()
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has seen enough, as in `backlight ls | head -1`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"backlight {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


Browser = Annotated[
    bool, typer.Option("--no-browser", help="Do not open a browser, only print the address.")
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, show_default="7420 or the next free one", help="The port to serve on."
    ),
]
Host = Annotated[
    str,
    typer.Option(help="The address to serve on; 0.0.0.0 lets others in who have the token."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Answer to this name too, as behind a proxy. May be repeated."
    ),
]
CustomView = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.py", help="Show what its visualize(selection, run) draws, as a view."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Where = Annotated[Path, typer.Argument(metavar="PATH", help="A run, a project or a root of runs.")]


@app.command(
    epilog="""\b
Examples:
  backlight demo
  backlight demo --steps 50 --no-view --root /tmp/runs
"""
)
def demo(
    steps: Annotated[
        int | None, typer.Option(min=1, help="How long each network trains.", show_default=False)
    ] = None,
    root: Annotated[Path, typer.Option(help="Where the runs are written.")] = DEFAULT_ROOT,
    no_view: Annotated[bool, typer.Option("--no-view", help="Only train and record.")] = False,
    no_browser: Browser = False,
    port: Port = None,
) -> None:
    """Train small networks, record them, and open the viewer on them."""
    if not no_view:
        _check_bundle()
    _check_torch()
    from backlight.demo.main import run_demo

    runs = run_demo(root=root, steps=steps, show_progress=True)
    if no_view:
        typer.echo(f"{len(runs)} runs are in {root}; `backlight view {root}` shows them.")
        return
    _serve(root, no_browser=no_browser, port=port)


@app.command(
    epilog="""\b
Examples:
  backlight view
  backlight view backlight-runs/my-project --port 8000
  backlight view --custom my_plots.py
  backlight view --no-browser        on a server; then, at home,
  ssh -L 7420:localhost:7420 SERVER  and open http://localhost:7420
"""
)
def view(
    path: Where = DEFAULT_ROOT,
    no_browser: Browser = False,
    port: Port = None,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    custom: CustomView = None,
) -> None:
    """Show runs in the browser, live while they train."""
    from backlight.serve.memory import be_frugal

    be_frugal()
    from backlight.custom.runner import custom_of
    from backlight.store.runs import find_runs

    _check_bundle()
    drawn = custom_of(custom)
    if not find_runs(path):
        typer.echo(f"There are no runs in {str(path)!r} yet: they will show up as they start.")
    where = {"port": port, "host": host, "allow_hosts": allow_host or []}
    _serve(path, no_browser=no_browser, custom=drawn, **where)


@app.command(
    "export",
    epilog="""\b
Examples:
  backlight export backlight-runs/my-project/first -o first.html
  backlight export backlight-runs/my-project/first -o small.html --size 5MB
""",
)
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of one run.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The file to write.")
    ] = Path("run.html"),
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="How large it may be, such as 5MB.")
    ] = "20MB",
    steps: Annotated[
        int, typer.Option(min=2, help="How many recorded steps can be looked into, at most.")
    ] = 100,
) -> None:
    """Write a run as one HTML file that opens offline, with every view."""
    from backlight.export.command import export_with_progress

    _check_bundle()
    export_with_progress(run, output, size=size, most_steps=steps)


@app.command(
    epilog="""\b
Examples:
  backlight lab my_model.py           a file that defines `model` and `inputs`
  backlight lab flow_info.npz         flows that were stored
  backlight lab backlight-runs/p/r    the flows that a run recorded
"""
)
def lab(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file, a file of flows, or a run.")
    ],
    no_browser: Browser = False,
    port: Port = None,
    host: Host = "127.0.0.1",
    run: Annotated[
        Path | None,
        typer.Option("--run", help="The run to save named edits with.", show_default=False),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle",
            help="Read flows from a pickle, which can run any program: only for files you trust.",
        ),
    ] = False,
) -> None:
    """Edit a model's input by hand, and watch every gradient find its way.

    The file may also define `target`, `loss`, `layers`, `batch_dim`, `tokens` and `labels`, as
    for `backlight.lab`, or an `adapter` in place of the model.
    """
    from backlight.laboratory.opening import OpenLab, adapter_of
    from backlight.schema import RUN_FILE

    _check_bundle()
    if run is not None and not (run / RUN_FILE).is_file():
        raise BacklightError(f"There is no run in {str(run)!r} to save edits with.")
    opened = OpenLab(adapter_of(path, allow_pickle=allow_pickle), run=run, host=host, port=port)
    opened.serve(on_ready=lambda: _announce("The lab", opened.url, no_browser=no_browser))


@app.command(
    "ls",
    epilog="""\b
Examples:
  backlight ls
  backlight ls backlight-runs/my-project
  backlight ls --json | jq '.runs[] | select(.status == "failed") | .id'
""",
)
def list_runs(path: Where = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """List runs: how far each is, its loss, its age and its size."""
    summaries, problems = _summaries(path)
    if as_json:
        from backlight.serve.responses import to_json

        typer.echo(to_json({"runs": summaries, "problems": problems}))
        return
    for problem in problems:
        typer.echo(f"backlight: {problem}", err=True)
    if not summaries:
        typer.echo(f"There are no runs in {str(path)!r}.")
        return
    from rich.console import Console

    Console(highlight=False).print(_table(summaries))


@app.command(
    epilog="""\b
Examples:
  backlight doctor
  backlight doctor --json
"""
)
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what is missing, and what that means."""
    from backlight.doctor import examine

    lines = examine()
    if as_json:
        typer.echo(json.dumps([line.as_dict() for line in lines], indent=1))
    else:
        for line in lines:
            typer.echo(f"{line.state:8} {line.what:10} {line.found:22} {line.meaning}")
    if any(line.is_fatal for line in lines):
        raise typer.Exit(1)


register(app, DEFAULT_ROOT)
register_diagnose(app)
register_follow(app, DEFAULT_ROOT)
register_anomalies(app)
register_exchange(app, DEFAULT_ROOT)
register_precision(app)


def _check_bundle() -> None:
    from backlight.serve.app import NO_BUNDLE, has_bundle

    if not has_bundle():
        raise BacklightError(NO_BUNDLE)


def _check_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise BacklightError("The demo trains with PyTorch, which is missing: `pip install torch`.")


def _serve(path: Path, *, no_browser: bool, **where: Any) -> None:
    from backlight.serve.server import open_viewer

    viewer = open_viewer(path, **where)

    viewer.server.on_ready = lambda: _announce("Backlight", viewer.url, no_browser=no_browser)
    viewer.run()


def _announce(what: str, url: str, *, no_browser: bool) -> None:
    typer.echo(f"{what} is at {url} (Ctrl-C stops it)")
    if not no_browser and _has_screen():
        import webbrowser

        webbrowser.open(url)


def _has_screen() -> bool:
    """Whether a browser would open in a window, and not take over this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _summaries(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    from backlight.serve.library import Library
    from backlight.store.runs import size_bytes

    library = Library(path)
    summaries, problems = library.summaries()
    sized = [
        {**each, "size_bytes": size_bytes(library.find(each["id"]).path)} for each in summaries
    ]
    return sized, problems


def _table(summaries: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("project", "run", "status"):
        table.add_column(title, overflow="fold")
    for title in ("steps", "recorded", "loss", "age", "size"):
        table.add_column(title, justify="right")
    for each in summaries:
        # As text: a name may look like markup.
        table.add_row(*(Text(printable(cell)) for cell in _cells(each)))
    return table


def _cells(summary: dict[str, Any]) -> tuple[str, ...]:
    from backlight.units import age, count, number, size

    return (
        summary["project"],
        summary["name"],
        summary["status"],
        count(summary["steps"]),
        count(summary["recorded_steps"]),
        number(summary["loss"]),
        age(summary["age_secs"]),
        size(summary["size_bytes"]),
    )
