"""A diagnosis in the terminal: causes with their symptoms under them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from backlight.diagnosis.cause import SURE
from backlight.diagnosis.engine import Diagnosis
from backlight.housekeeping import printable
from backlight.schema import Finding

_COLOURS: Final = ((0.8, "red"), (0.5, "yellow"), (0.0, "bright_black"))


def print_report(diagnosis: Diagnosis, name: str, console: Console, *, shows_all: bool) -> None:
    """Print what is wrong; with `shows_all` also what is not sure and what could not be checked."""
    for part in report(diagnosis, name, shows_all=shows_all):
        console.print(part)
    unsure = sum(each.score < SURE for each in diagnosis)
    if shows_all:
        for fault, reason in diagnosis.skipped.items():
            console.print(Text(f"not checked: {fault}, because {reason}", style="bright_black"))
    elif unsure or diagnosis.skipped:
        hidden = f"{unsure} weaker suspicions, {len(diagnosis.skipped)} faults not checked"
        console.print(Text(f"\n{hidden}: --all shows them.", style="bright_black"))


def report(diagnosis: Diagnosis, name: str, *, shows_all: bool) -> Iterator[RenderableType]:
    """A headline, and each cause with its symptoms under it."""
    sure = [each for each in diagnosis if each.score >= SURE]
    yield Text(_headline(sure, printable(name)), style="bold")
    for finding in diagnosis:
        is_told = finding.score >= SURE or shows_all
        if is_told and not _has_parent(finding, diagnosis, shows_all):
            yield Group("", *_told(finding, diagnosis, shows_all, depth=0))


def _headline(sure: list[Finding], name: str) -> str:
    if not sure:
        return f"Nothing wrong was found in {name}."
    causes = [each for each in sure if each.because_of is None]
    count = f"{len(causes)} fault{'s' if len(causes) != 1 else ''}"
    return f"{count} in {name}:"


def _has_parent(finding: Finding, diagnosis: Diagnosis, shows_all: bool) -> bool:
    parents = [each for each in diagnosis if each.id == finding.because_of]
    return any(shows_all or parent.score >= SURE for parent in parents)


def _told(
    finding: Finding, diagnosis: Diagnosis, shows_all: bool, depth: int
) -> Iterator[RenderableType]:
    style = next(colour for least, colour in _COLOURS if finding.score >= least)
    title = Text()
    title.append(finding.fault, style=f"bold {style}")
    title.append(f" in {printable(finding.where) or 'the model'}")
    title.append(f", from step {finding.step}, score {finding.score:.2f}", style="bright_black")
    indent = 2 * depth
    yield Padding(title, (0, 0, 0, indent))
    yield Padding(Text(printable(finding.why)), (0, 0, 0, indent + 2))
    yield Padding(Text(f"Try: {printable(finding.try_this)}", style="cyan"), (0, 0, 0, indent + 2))
    for symptom in diagnosis:
        if symptom.because_of == finding.id and (symptom.score >= SURE or shows_all):
            yield from _told(symptom, diagnosis, shows_all, depth + 1)
