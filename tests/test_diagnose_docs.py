"""docs/diagnosis.md lists every rule as the rule itself says it."""

from __future__ import annotations

from pathlib import Path

from backlight.diagnosis.rule import Rule
from backlight.diagnosis.rules import RULES

PAGE = Path(__file__).parent.parent / "docs" / "diagnosis.md"


def line(rule: Rule) -> str:
    """The line of the table for a rule."""
    limits = "; ".join(
        f"{name}: {limit.value:g} ({limit.origin})" for name, limit in rule.thresholds.items()
    )
    causes = ", ".join(f"`{fault}`" for fault in rule.causes) or "–"
    return f"| `{rule.fault}` | {rule.meaning} | {limits} | {causes} |"


def test_the_page_lists_every_rule_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [rule.fault for rule in RULES if line(rule) not in text] == []


def test_the_page_lists_no_rule_that_does_not_exist() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The rules")[2]
    listed = [row.split("`")[1] for row in text.splitlines() if row.startswith("| `")]
    assert listed == [rule.fault for rule in RULES]


def test_what_a_rule_may_cause_is_a_fault() -> None:
    faults = {rule.fault for rule in RULES}
    assert {cause for rule in RULES for cause in rule.causes} <= faults
