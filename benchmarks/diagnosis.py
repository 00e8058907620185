"""How often diagnosis is right: faulty programs, their twins and healthy ones, on several seeds.

Thresholds are chosen on the tuning half of the programs; the held-out half is for measuring.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from faults.catalogue import FAULTY, HEALTHY, Program, record  # noqa: E402

SURE: Final = 0.5


class Case(NamedTuple):
    """One run to make: a program, with its fault or without, and a seed."""

    name: str
    has_bug: bool
    seed: int

    @property
    def program(self) -> Program:
        """The program."""
        return FAULTY.get(self.name) or HEALTHY[self.name]

    @property
    def key(self) -> str:
        """A name for the recorded run."""
        return f"{self.name}-{'bug' if self.has_bug else 'fine'}-{self.seed}"


class Outcome(NamedTuple):
    """What was said of a case."""

    case: Case
    findings: list[dict[str, Any]]
    secs: float

    @property
    def rank(self) -> int | None:
        """The place of the right fault among the findings, from 0."""
        faults = [each["fault"] for each in self.findings]
        return faults.index(self.case.program.fault) if self.case.program.fault in faults else None

    @property
    def is_placed(self) -> bool:
        """Whether the first finding of the right fault is at the right place."""
        rank = self.rank
        return rank is not None and self.findings[rank]["where"] in self.case.program.where

    @property
    def is_alarm(self) -> bool:
        """Whether a finding counts."""
        return any(each["score"] >= SURE for each in self.findings)


def measure(case: Case, folder: Path, every: int | None) -> Outcome:
    """Record a case, unless it was recorded before, and diagnose it."""
    import torch

    import backlight

    torch.set_num_threads(1)
    path = folder / "faults" / case.key
    if not (path / "run.json").exists():
        torch.manual_seed(case.seed)
        make = case.program.make
        training = make(case.has_bug) if case.program.fault else make()
        options = {} if every is None else {"every": every}
        path = record(training, folder, case.key, **options)
    started = time.perf_counter()
    findings = backlight.diagnose(path)
    return Outcome(case, [each.to_json() for each in findings], time.perf_counter() - started)


def _measure(job: tuple[Case, Path, int | None]) -> Outcome:
    return measure(*job)


def cases(seeds: Iterable[int]) -> list[Case]:
    """Every program, each with and without its fault, on each seed."""
    found = []
    for seed in seeds:
        for name in FAULTY:
            found += [Case(name, True, seed), Case(name, False, seed)]
        found += [Case(name, False, seed) for name in HEALTHY]
    return found


def share(flags: list[bool]) -> str:
    """A share, and of how many."""
    return f"{sum(flags) / max(1, len(flags)):6.1%} of {len(flags)}"


def report(outcomes: list[Outcome], title: str) -> None:
    """Print what was found of one half."""
    bugs = [each for each in outcomes if each.case.has_bug]
    fine = [each for each in outcomes if not each.case.has_bug]
    twins = [each for each in fine if each.case.program.fault]
    plain = [each for each in fine if not each.case.program.fault]
    print(f"\n== {title}")
    print(f"right fault first        {share([each.rank == 0 for each in bugs])}")
    print(
        "among the first three    "
        f"{share([each.rank is not None and each.rank < 3 for each in bugs])}"
    )
    print(f"right place              {share([each.is_placed for each in bugs])}")
    steps = [each.findings[each.rank]["step"] for each in bugs if each.rank is not None]
    print(f"first step it showed at  {sorted(steps)[len(steps) // 2] if steps else '-'} (median)")
    print(f"false alarms, twins      {share([each.is_alarm for each in twins])}")
    if plain:
        print(f"false alarms, healthy    {share([each.is_alarm for each in plain])}")


def by_fault(outcomes: list[Outcome]) -> None:
    """Print a line for each fault."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        if each.case.has_bug:
            groups[each.case.program.fault].append(each)
    print(f"\n{'fault':26}{'first':>8}{'in 3':>8}{'place':>8}{'step':>6}{'runs':>6}")
    for fault, group in sorted(groups.items()):
        first = sum(each.rank == 0 for each in group) / len(group)
        three = sum(each.rank is not None and each.rank < 3 for each in group) / len(group)
        placed = sum(each.is_placed for each in group) / len(group)
        steps = sorted(each.findings[each.rank]["step"] for each in group if each.rank is not None)
        step = steps[len(steps) // 2] if steps else "-"
        print(f"{fault:26}{first:8.0%}{three:8.0%}{placed:8.0%}{step:>6}{len(group):6}")


def by_healthy(outcomes: list[Outcome]) -> None:
    """Print a line for each healthy program: how often something was said to be wrong with it."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        if not each.case.program.fault:
            groups[each.case.name].append(each)
    print(f"\n{'healthy program':44}{'false alarms':>14}{'highest score':>15}")
    for name, group in sorted(groups.items()):
        alarms = sum(each.is_alarm for each in group)
        highest = max((f["score"] for each in group for f in each.findings), default=0.0)
        print(f"{name:44}{f'{alarms} of {len(group)}':>14}{highest:15.2f}")


def calibration(outcomes: list[Outcome]) -> None:
    """Of the first findings at each score, how many are right?"""
    bins: dict[int, list[bool]] = defaultdict(list)
    for each in outcomes:
        for finding in each.findings[:1]:
            is_right = each.case.has_bug and finding["fault"] == each.case.program.fault
            bins[min(9, int(finding["score"] * 10))].append(is_right)
    print("\nscore of the first finding, and the share that is right")
    for low in sorted(bins):
        print(f"  {low / 10:.1f} to {low / 10 + 0.1:.1f}   {share(bins[low])}")


def misses(outcomes: list[Outcome]) -> None:
    """Print what went wrong."""
    print("\nnot first, misplaced, or a false alarm:")
    for each in outcomes:
        told = [(f["fault"], f["where"], f["score"], f["because_of"]) for f in each.findings[:4]]
        program = each.case.program
        if each.case.has_bug and (each.rank != 0 or not each.is_placed):
            print(f"  {each.case.key}: is {program.fault} at {program.where}, said {told}")
        elif not each.case.has_bug and each.is_alarm:
            print(f"  {each.case.key}: is fine, said {told}")


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 101, 102])
    parser.add_argument("--folder", type=Path, default=Path("build/diagnosis"))
    parser.add_argument("--every", type=int, help="record each n-th step, not within a budget")
    parser.add_argument("--half", choices=["tuning", "held-out", "both"], default="both")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--misses", action="store_true", help="list what went wrong")
    parser.add_argument("--only", nargs="+", help="programs whose names have one of these in them")
    asked = parser.parse_args()
    todo = [
        c
        for c in cases(asked.seeds)
        if asked.half == "both"
        or not c.program.fault
        or c.program.is_held_out == (asked.half == "held-out")
    ]
    if asked.only:
        todo = [case for case in todo if any(word in case.name for word in asked.only)]
    folder = asked.folder / ("budget" if asked.every is None else f"every-{asked.every}")
    jobs = [(case, folder, asked.every) for case in todo]
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for outcome in pool.map(_measure, jobs, chunksize=4):
            outcomes.append(outcome)
            print(f"\r{len(outcomes)} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(
        f"\r{len(FAULTY)} faulty programs, {len(HEALTHY)} healthy ones, seeds {asked.seeds}, "
        f"{time.perf_counter() - started:.0f} s"
    )
    for title, is_held_out in (("tuning half", False), ("held-out half", True)):
        half = [each for each in outcomes if each.case.program.is_held_out == is_held_out]
        if half:
            report(half, title)
    by_fault(outcomes)
    by_healthy(outcomes)
    calibration(outcomes)
    if asked.misses:
        misses(outcomes)
    path = asked.folder / "outcomes.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([(o.case, o.findings) for o in outcomes]), encoding="utf-8")


if __name__ == "__main__":
    main()
