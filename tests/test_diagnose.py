"""What is said about a run: findings, their order, the command, and rules of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import backlight
from backlight.diagnosis.cause import link
from backlight.errors import BacklightError
from backlight.schema import Finding


def train(root: Path, *, is_faulty: bool, steps: int = 20) -> Path:
    """A regression whose gradients add up, if it is faulty."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with backlight.watch(model, optimizer, root=root, project="p", name="run") as run:
        for _ in range(steps):
            x = torch.randn(32, 4)
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            if not is_faulty:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run.path


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backlight", "diagnose", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_names_the_fault_and_exits_with_3(tmp_path: Path) -> None:
    path = train(tmp_path, is_faulty=True)
    done = command(path)
    assert done.returncode == 3, done.stderr
    assert "stale_gradients in optimizer" in done.stdout
    told = json.loads(command(path, "--json").stdout)
    findings = [Finding.from_json(each) for each in told["findings"]]
    assert findings == list(backlight.diagnose(path))


def test_a_healthy_run_has_no_findings_and_exits_with_0(tmp_path: Path) -> None:
    done = command(train(tmp_path, is_faulty=False))
    assert done.returncode == 0, done.stdout
    assert "Nothing wrong was found" in done.stdout


def test_what_is_no_run_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BacklightError, match="no folder"):
        backlight.diagnose(tmp_path / "nowhere")


RULES = """
from backlight.diagnosis.rule import NotChecked, Rule, Suspicion

def long(facts):
    yield Suspicion(where="data", strength=0.8, why=f"It has {facts.last_step} steps.", try_this="")

def cannot(facts):
    raise NotChecked("it is too early")

def fails(facts):
    raise ZeroDivisionError("no luck")

RULES = [Rule("too_long", "", long), Rule("unknowable", "", cannot), Rule("broken", "", fails)]
"""


def test_rules_of_ones_own(tmp_path: Path) -> None:
    path = train(tmp_path, is_faulty=False)
    file = tmp_path / "mine.py"
    file.write_text(RULES, encoding="utf-8")
    diagnosis = backlight.diagnose(path, rules=file)
    assert [(each.fault, each.why) for each in diagnosis][:1] == [("too_long", "It has 19 steps.")]
    assert diagnosis.skipped["unknowable"] == "it is too early"
    assert "no luck" in diagnosis.skipped["broken"]
    assert "not checked: unknowable, because it is too early" in command(
        path, "--rules", file, "--all"
    ).stdout.replace("\n", " ")


def test_rules_that_cannot_be_loaded_are_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("RULES = 3", encoding="utf-8")
    with pytest.raises(BacklightError, match="has no list RULES"):
        backlight.diagnose(train(tmp_path, is_faulty=False), rules=file)


def found(fault: str, score: float, step: int = 0) -> Finding:
    return Finding(fault, "x", step, score, "", "")


def test_causes_come_before_symptoms() -> None:
    causes = {"a": ("b", "c"), "b": ("c",)}
    ordered = link([found("c", 0.99), found("b", 0.7), found("a", 0.6), found("d", 0.55)], causes)
    assert [each.fault for each in ordered] == ["a", "d", "c", "b"]
    assert [each.because_of for each in ordered] == [None, None, "a@x", "a@x"]
    assert ordered[0].explains == ("c@x", "b@x")


def test_a_weak_cause_explains_nothing() -> None:
    ordered = link([found("a", 0.2), found("b", 0.9)], {"a": ("b",)})
    assert [(each.fault, each.because_of) for each in ordered] == [("b", None), ("a", None)]
