"""Causes before symptoms: which finding explains which others, and in which order they are told."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from backlight.schema import Finding

SURE: Final = 0.5
"""From this score on a finding counts."""

_LEAST_CAUSE: Final = 0.23
_LEAST_RATIO: Final = 0.5
_SLACK_STEPS: Final = 5


def link(
    findings: list[Finding], causes: Mapping[str, tuple[str, ...]], steps: Sequence[int] = ()
) -> list[Finding]:
    """Hang symptoms under their causes, and put the findings in order, best first.

    A finding explains another one if its fault is known to bring about the other's, it did not
    show later by more than a few steps, and it is not much less sure. Of several causes, the one
    that is itself explained by none of the others counts, then the surest.
    """
    reach = {fault: set(effects) for fault, effects in causes.items()}
    found = {finding.id: finding for finding in findings}
    parents = {each.id: _parents(each, findings, reach, steps) for each in findings}
    explained: dict[str, list[str]] = {key: [] for key in found}
    roots: dict[str, str | None] = {}
    for key, finding in found.items():
        best = _best([found[p] for p in parents[key]], parents)
        roots[key] = best
        if best is not None:
            explained[best].append(finding.id)
    linked = [
        replace(each, because_of=roots[each.id], explains=tuple(explained[each.id]))
        for each in findings
    ]
    return sorted(linked, key=_rank)


def _parents(
    finding: Finding, all_: list[Finding], reach: Mapping[str, set[str]], steps: Sequence[int]
) -> list[str]:
    return [
        other.id
        for other in all_
        if other.id != finding.id
        and _earliest(other.step, steps) <= finding.step + _SLACK_STEPS
        and finding.fault in reach.get(other.fault, set())
        and other.score >= max(_LEAST_CAUSE, _LEAST_RATIO * finding.score)
    ]


def _earliest(step: int, steps: Sequence[int]) -> int:
    """What shows at a recorded step may have begun right after the recorded step before it."""
    at = bisect_left(steps, step)
    return steps[at - 1] + 1 if at > 0 else step


def _best(candidates: list[Finding], parents: Mapping[str, list[str]]) -> str | None:
    """The furthest upstream, then the surest."""
    if not candidates:
        return None
    names = {each.id for each in candidates}
    return min(
        candidates, key=lambda each: (len(names & set(parents[each.id])), -each.score, each.step)
    ).id


def _rank(finding: Finding) -> tuple[int, float, int]:
    is_cause = finding.because_of is None
    group = 2 if finding.score < SURE else 0 if is_cause else 1
    return group, -finding.score, finding.step
