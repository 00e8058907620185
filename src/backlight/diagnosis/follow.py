"""A run as it trains, in the terminal: how far it is, how it fares, and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule as Line
from rich.text import Text

from backlight.diagnosis.cause import SURE
from backlight.diagnosis.engine import Diagnosis, all_rules, examine
from backlight.diagnosis.facts import facts_of
from backlight.diagnosis.report import report
from backlight.housekeeping import printable
from backlight.schema import Finding
from backlight.store.runs import RunFolder
from backlight.store.sparse import SparseStats
from backlight.store.summary import curve, describe
from backlight.units import age, count, number

_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=+*#@"
_DOTS: Final = {"live": "green", "finished": "cyan", "failed": "red", "stopped": "yellow"}
_LEAST_STEPS: Final = 5
_GAP_SECS: Final = 0.5
_SHARE: Final = 0.2  # of the time, at most, for diagnosing
_SPEED_STEPS: Final = 200
_WIDE: Final = 20.0


class Follower:
    """A run that is read again and again, and diagnosed when there is something new."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._stats = SparseStats(run.path)
        self.reader = self._stats.reader
        self.summary: dict[str, Any] = {}
        self.diagnosis = Diagnosis()
        self._recorded = 0
        self._next_secs = 0.0

    @property
    def is_live(self) -> bool:
        """Whether somebody still writes it."""
        return bool(self.summary.get("status") == "live")

    @property
    def sure(self) -> list[Finding]:
        """The findings that count."""
        return [each for each in self.diagnosis if each.score >= SURE]

    def look(self) -> None:
        """Read what is new; the rules run when it is time for them, and when the run has ended."""
        self._stats.refresh()
        self.summary = self._described()
        recorded = len(self._stats.recorded_steps)
        is_due = time.monotonic() >= self._next_secs and recorded >= _LEAST_STEPS
        if recorded > self._recorded and (is_due or not self.is_live):
            started = time.monotonic()
            self.diagnosis = examine(facts_of(self.reader, self._stats), all_rules())
            self._recorded = recorded
            self._next_secs = time.monotonic() + (time.monotonic() - started) / _SHARE

    def _described(self) -> dict[str, Any]:
        """What the list of runs tells of it; where no loss was logged, the one that was seen."""
        summary = describe(self.run, self.reader)
        if summary["loss"] is None:
            seen = self.reader.snapshot.held["steps"].sort_by("step")["loss"].drop_null()
            losses = np.asarray(seen, np.float64)
            if len(losses):
                summary |= {"loss": float(losses[-1]), "loss_curve": curve(losses)}
        return summary

    def steps_per_sec(self) -> float | None:
        """How fast the last steps followed each other."""
        steps = self.reader.snapshot.held["steps"]
        started = np.sort(steps["started_at"].to_numpy())[-_SPEED_STEPS:]
        span = float(started[-1] - started[0]) if len(started) > 1 else 0.0
        return (len(started) - 1) / span if span > 0 else None


def sparkline(values: list[float | None], width: int, bars: str = _BARS) -> str:
    """Numbers as bars, by their logarithms where they differ much; `!` where there is none.

    >>> sparkline([1.0, 2.0, None, 8.0], 10), sparkline([1.0, 10.0, 100.0, 1000.0], 2)
    ('▁▂!█', '▁█')
    """
    if len(values) > width > 0:
        chosen = np.linspace(0, len(values) - 1, width + 1).round().astype(int)[1:]
        values = [values[at] for at in chosen]
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return "!" * len(values)
    is_wide = known.min() > 0 and known.max() > _WIDE * known.min()
    low, high = (float(f(np.log(known) if is_wide else known)) for f in (np.min, np.max))
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0

    def bar(value: float) -> str:
        return bars[round(((np.log(value) if is_wide else value) - low) * scale)]

    return "".join("!" if value is None else bar(value) for value in values)


def screen(follower: Follower, console: Console) -> RenderableType:
    """All that is to be seen of a run at one moment."""
    return Group(
        _title(follower),
        *_numbers(follower, console),
        Line(style="bright_black"),
        *_found(follower),
    )


def _title(follower: Follower) -> Text:
    summary = follower.summary
    status = str(summary["status"])
    title = Text.assemble(
        (f"{status} ", f"bold {_DOTS.get(status, 'white')}"), (printable(follower.run.id), "bold")
    )
    if follower.is_live and summary["age_secs"] > 5:
        title.append(f"  nothing new for {age(summary['age_secs'])}", style="yellow")
    return title


def _numbers(follower: Follower, console: Console) -> Iterator[Text]:
    summary = follower.summary
    speed, share = follower.steps_per_sec(), summary["recording_share"]
    parts = [f"step {count(summary['step'])}" if summary["step"] is not None else "no step yet"]
    if speed is not None:
        parts.append(f"{number(speed)} steps a second")
    if summary["steps"]:
        parts.append(f"{count(summary['recorded_steps'])} of {count(summary['steps'])} recorded")
    if share is not None:
        parts.append(f"recording takes {share:.1%} of the time")
    yield Text(", ".join(parts))
    losses = summary["loss_curve"]
    if losses:
        bars = _PLAIN_BARS if console.options.ascii_only else _BARS
        known = [value for value in losses if value is not None]
        best = f", best {number(min(known))}" if known else ""
        line = Text(f"loss {number(summary['loss'])} ", style="bold")
        line.append(sparkline(losses, max(10, min(60, console.width - 40)), bars), style="cyan")
        line.append(f" from {number(losses[0])}{best}", style="bright_black")
        yield line
    else:
        yield Text("no loss yet", style="bright_black")
    if summary["faults"]:
        yield Text(f"The recorder failed {summary['faults']} times.", style="yellow")


def _found(follower: Follower) -> Iterator[RenderableType]:
    if follower.sure or not follower.is_live:
        yield from report(follower.diagnosis, follower.run.name, shows_all=False)
    elif follower.diagnosis.skipped or follower.diagnosis:
        yield Text("Nothing wrong so far.", style="green")
    else:
        yield Text(f"Too early to say: the rules look from {_LEAST_STEPS} recorded steps on.")


def follow(run: RunFolder, console: Console) -> Follower:
    """Show a run until it ends."""
    follower = Follower(run)
    follower.look()
    if console.is_terminal:
        _live(follower, console)
        console.print(screen(follower, console))
    else:
        _lines(follower, console)
    return follower


def _live(follower: Follower, console: Console) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while follower.is_live:
            live.update(screen(follower, console), refresh=True)
            time.sleep(_GAP_SECS)
            follower.look()


def _lines(follower: Follower, console: Console) -> None:
    """Where there is no terminal: a line for each finding as it comes up, and all at the end."""
    told: set[str] = set()
    while follower.is_live:
        for finding in follower.sure:
            if finding.id not in told:
                told.add(finding.id)
                where = printable(finding.where) or "the model"
                step = follower.summary["step"]
                console.print(
                    f"at step {step}: {finding.fault} in {where}, score {finding.score:.2f}",
                    markup=False,
                    soft_wrap=True,
                )
        time.sleep(_GAP_SECS)
        follower.look()
    console.print(screen(follower, console))
