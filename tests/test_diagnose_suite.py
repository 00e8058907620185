"""Every rule finds its fault in a faulty program, and says nothing of the fixed twin.

The whole suite, on several seeds, is `make bench-diagnosis`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from faults.catalogue import FAULTY, HEALTHY, Program, record

import backlight
from backlight.diagnosis.cause import SURE
from backlight.diagnosis.engine import Diagnosis
from backlight.diagnosis.rules import RULES

FAST = [program for program in FAULTY.values() if program.is_fast]
TEMPTING = [
    "adversarial_pair",
    "low_rank_adapters",
    "heads_in_turn",
    "policy_gradient",
    "tokens_turned_round",
]
TEMPTING += ["several_losses_on_one_line", "tokens_that_begin_at_one"]


def diagnosed(make: Program, root: Path, *, bug: bool | None = None) -> Diagnosis:
    torch.manual_seed(7)
    training = make.make() if bug is None else make.make(bug)
    # As the default schedule does, but whatever the time that steps take.
    return backlight.diagnose(
        record(training, root, make.name, schedule=lambda step: step < 8 or step % 24 == 0)
    )


@pytest.mark.parametrize("program", FAST, ids=lambda program: program.name)
def test_the_fault_is_found_and_the_twin_is_not_accused(program: Program, tmp_path: Path) -> None:
    found = diagnosed(program, tmp_path, bug=True)
    assert program.fault in [each.fault for each in found[:3]], found
    finding = next(each for each in found if each.fault == program.fault)
    assert finding.where in program.where
    assert finding.score >= SURE
    assert finding.why and finding.try_this
    assert any(len(each.steps) > 1 for each in finding.evidence), "there is nothing to draw"
    fixed = diagnosed(program, tmp_path, bug=False)
    assert program.fault not in [each.fault for each in fixed if each.score >= SURE], fixed


@pytest.mark.parametrize("name", TEMPTING)
def test_a_healthy_program_is_not_accused(name: str, tmp_path: Path) -> None:
    found = diagnosed(HEALTHY[name], tmp_path)
    assert [each for each in found if each.score >= SURE] == []


def test_every_rule_has_a_faulty_program() -> None:
    assert {rule.fault for rule in RULES} == {program.fault for program in FAULTY.values()}


def test_the_suite_is_large_enough() -> None:
    assert len(FAULTY) >= 60 and len(HEALTHY) >= 30
    held_out = sum(program.is_held_out for program in FAULTY.values())
    assert 0.35 < held_out / len(FAULTY) < 0.65
