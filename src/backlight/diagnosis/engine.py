"""Runs the rules over a run's facts and makes findings of what they suspect."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import numpy as np

from backlight.diagnosis.calibration import score_of
from backlight.diagnosis.cause import link
from backlight.diagnosis.facts import Facts, read_facts
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion
from backlight.diagnosis.rules import RULES
from backlight.errors import BacklightError
from backlight.schema import Finding

ENTRY_POINTS: Final = "backlight.rules"
LEAST_SCORE: Final = 0.08
"""What is less sure than this is not told."""

_MOST_PLACES: Final = 2  # of one fault


class Diagnosis(list[Finding]):
    """Findings, best first. `skipped` says of each rule that could not look why it could not."""

    def __init__(self, findings: Iterable[Finding] = (), skipped: dict[str, str] | None = None):
        super().__init__(findings)
        self.skipped = dict(skipped or {})

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {"findings": [each.to_json() for each in self], "skipped": self.skipped}


def diagnose(path: str | Path, *, rules: str | Path | Sequence[Rule] | None = None) -> Diagnosis:
    """Say what is wrong with a run: the most likely cause first."""
    return examine(read_facts(_run_folder(Path(path))), all_rules(rules))


def _run_folder(path: Path) -> Path:
    from backlight.store.runs import find_runs

    folders = find_runs(path)
    if len(folders) != 1:
        raise BacklightError(
            f"There are {len(folders)} runs in {str(path)!r}: pass the folder of one run."
        )
    return folders[0].path


def all_rules(more: str | Path | Sequence[Rule] | None = None) -> list[Rule]:
    """The built-in rules, those of installed packages, and the user's own."""
    installed = [point.load() for point in entry_points(group=ENTRY_POINTS)]
    own = load_rules(Path(more)) if isinstance(more, (str, Path)) else list(more or ())
    return [*RULES, *installed, *own]


def load_rules(file: Path) -> list[Rule]:
    """The rules that a Python file has in its list `RULES`."""
    spec = importlib.util.spec_from_file_location("backlight_own_rules", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise BacklightError(f"There are no rules in {str(file)!r}: pass a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BacklightError(f"The rules in {str(file)!r} cannot be loaded: {error}.") from error
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, list) or not all(isinstance(each, Rule) for each in rules):
        raise BacklightError(f"{str(file)!r} has no list RULES of backlight.diagnosis.rule.Rule.")
    return rules


def examine(facts: Facts, rules: Sequence[Rule] = tuple(RULES)) -> Diagnosis:
    """What the rules find in these facts."""
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for rule in rules:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of means over nothing
                suspicions = list(rule.check(facts))
        except NotChecked as reason:
            skipped[rule.fault] = reason.reason
        except Exception as error:
            # One rule that fails, a user's maybe, must not hide what the others see.
            skipped[rule.fault] = f"the rule failed: {type(error).__name__}: {error}"
        else:
            findings += _findings(rule, suspicions)
    causes = {rule.fault: rule.causes for rule in rules}
    return Diagnosis(link(findings, causes, facts.steps.tolist()), skipped)


def _findings(rule: Rule, suspicions: list[Suspicion]) -> list[Finding]:
    """The strongest suspicions, one for each place."""
    chosen: dict[str, Finding] = {}
    for each in sorted(suspicions, key=lambda each: -each.strength):
        score = round(score_of(rule.fault, each.strength), 3)
        if score >= LEAST_SCORE and each.where not in chosen and len(chosen) < _MOST_PLACES:
            chosen[each.where] = Finding(
                fault=rule.fault,
                where=each.where,
                step=each.step,
                score=score,
                why=each.why,
                try_this=each.try_this,
                evidence=each.evidence,
                source=each.source,
            )
    return list(chosen.values())
