"""The commands that look after runs on disk: compact, du, prune and repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlight.errors import BacklightError

if TYPE_CHECKING:
    from backlight.store.runs import RunFolder

Where = Annotated[Path, typer.Argument(metavar="PATH", help="A run, a project or a root of runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def register(app: typer.Typer, default_root: Path) -> None:
    """Add the commands to the command line."""

    @app.command(
        epilog="""\b
Examples:
  backlight compact
  backlight compact backlight-runs/my-project/my-run
"""
    )
    def compact(path: Where = default_root) -> None:
        """Make runs smaller and faster to read; nothing is lost, and training may go on."""
        _compact(path)

    @app.command(
        epilog="""\b
Examples:
  backlight du
  backlight du backlight-runs/my-project --json
"""
    )
    def du(path: Where = default_root, as_json: AsJson = False) -> None:
        """Say what runs take on disk, by what they hold."""
        _usage(path, as_json=as_json)

    @app.command(
        epilog="""\b
Examples:
  backlight prune backlight-runs/my-project/my-run --every 10
  backlight prune backlight-runs/old-project --every 100 --yes
"""
    )
    def prune(
        path: Where,
        every: Annotated[int, typer.Option(min=2, help="Of so many recorded steps keep one.")],
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ) -> None:
        """Forget recorded steps, but for those of findings and of what happened. Asks first."""
        _prune(path, every=every, is_sure=yes)

    @app.command(
        epilog="""\b
Examples:
  backlight repair backlight-runs/my-project/my-run
"""
    )
    def repair(path: Where) -> None:
        """Save what can be read of damaged files, and put those aside."""
        _repair(path)


def _runs(path: Path) -> list[RunFolder]:
    from backlight.store.runs import find_runs

    runs = find_runs(path)
    if not runs:
        raise BacklightError(f"There are no runs in {str(path)!r}: pass the folder of one.")
    return runs


@contextmanager
def _progress(doing: str, run: RunFolder) -> Iterator[Callable[[str], None]]:
    """Show what is being done to a run while it takes; on a terminal, and nowhere else."""
    from rich.console import Console
    from rich.text import Text

    words = f"{doing} {printable(run.id)}"
    with Console(stderr=True).status(Text(words)) as status:
        yield lambda detail: status.update(Text(f"{words}: {detail}"))


def _for_each(runs: list[RunFolder], doing: str, work: Callable[[RunFolder, Any], None]) -> bool:
    """Work on every run; one that cannot be worked on is named, and keeps no other from it."""
    is_done = True
    for run in runs:
        try:
            with _progress(doing, run) as tell:
                work(run, tell)
        except BacklightError as error:
            typer.echo(f"backlight: {error}", err=True)
            is_done = False
    return is_done


def _compact(path: Path) -> None:
    from backlight.store.compact import compact
    from backlight.store.runs import size_bytes
    from backlight.units import size

    def work(run: RunFolder, tell: Callable[[str], None]) -> None:
        before = size_bytes(run.path)
        done = compact(run.path, tell=tell)
        for problem in done.problems:
            typer.echo(f"backlight: {problem}", err=True)
        typer.echo(f"{printable(run.id)}: {size(before)} became {size(size_bytes(run.path))}.")

    if not _for_each(_runs(path), "compacting", work):
        raise typer.Exit(1)


def _usage(path: Path, *, as_json: bool) -> None:
    from backlight.store.usage import KINDS, measure

    found = {}
    for run in _runs(path):
        with _progress("measuring", run):
            found[run.id] = measure(run.path)
    if as_json:
        import json

        rows = [
            {
                "run": key,
                "total_bytes": usage.total_bytes,
                "observations": usage.observations,
                "bytes_per_observation": usage.bytes_per_observation,
                **usage.size_bytes,
            }
            for key, usage in found.items()
        ]
        typer.echo(json.dumps({"runs": rows}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from backlight.units import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    kinds = [kind for kind in KINDS if any(usage.size_bytes[kind] for usage in found.values())]
    for heading in ("total", *kinds, "each"):
        table.add_column(heading, justify="right")
    for key, usage in found.items():
        each = usage.bytes_per_observation
        cells = [size(usage.total_bytes), *(size(usage.size_bytes[kind]) for kind in kinds)]
        table.add_row(Text(printable(key)), *cells, "-" if each is None else f"{each:.0f} B")
    Console(highlight=False).print(table)


def _prune(path: Path, *, every: int, is_sure: bool) -> None:
    from backlight.store.prune import plan, prune
    from backlight.units import size

    plans: dict[RunFolder, Any] = {}
    freed = 0

    def say(run: RunFolder, tell: Callable[[str], None]) -> None:
        plans[run] = plan(run.path, every, also=_told_steps(run, tell), tell=tell)
        typer.echo(f"{printable(run.id)}: {plans[run]}")

    def go(run: RunFolder, tell: Callable[[str], None]) -> None:
        nonlocal freed
        freed += prune(plans[run], tell=tell)

    is_done = _for_each(_runs(path), "looking through", say)
    if plans and not is_sure and not typer.confirm("Let it go?"):
        typer.echo("Nothing was forgotten.")
        return
    is_done = _for_each(list(plans), "pruning", go) and is_done
    typer.echo(f"{size(max(0, freed))} were freed.")
    if not is_done:
        raise typer.Exit(1)


def _told_steps(run: RunFolder, tell: Callable[[str], None]) -> set[int]:
    """The steps that findings are about: whoever opens the run later must see why."""
    from backlight.diagnosis.cause import SURE
    from backlight.diagnosis.engine import diagnose

    tell("diagnosing it, to keep what findings are about")
    findings = diagnose(run.path)
    evidence = [each for finding in findings if finding.score >= SURE for each in finding.evidence]
    return {finding.step for finding in findings} | {s for each in evidence for s in each.steps}


def _repair(path: Path) -> None:
    from backlight.store.repair import repair

    def work(run: RunFolder, tell: Callable[[str], None]) -> None:
        for sentence in repair(run.path, tell=tell) or ["nothing is damaged."]:
            typer.echo(f"{printable(run.id)}: {sentence}")

    if not _for_each(_runs(path), "repairing", work):
        raise typer.Exit(1)


def printable(text: str) -> str:
    r"""The text without what could command the terminal.

    >>> printable("a\x1b[31mb")
    'a�[31mb'
    """
    return "".join(each if each.isprintable() else "�" for each in text)
