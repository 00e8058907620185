"""docs/rules.md says of every rule what the rule itself says, with its picture."""

from __future__ import annotations

from pathlib import Path

from faults.page import page

from backlight.diagnosis.rules import RULES

DOCS = Path(__file__).parent.parent / "docs"
LARGEST_PICTURE_BYTES = 15_000


def test_the_page_of_rules_is_what_the_rules_say() -> None:
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == page()


def test_every_rule_has_its_picture_and_no_picture_is_without_one() -> None:
    pictures = {file.stem: file for file in (DOCS / "images" / "rules").iterdir()}
    assert sorted(pictures) == sorted(rule.fault for rule in RULES)
    for file in pictures.values():
        picture = file.read_text(encoding="utf-8")
        assert file.suffix == ".svg" and len(picture) <= LARGEST_PICTURE_BYTES
        # What the rule looks at, with the fault and without: two lines, and not the loss's.
        assert "faulty" in picture and picture.count("stroke-linejoin") == 2
        assert ">the loss<" not in picture


def test_the_guide_lists_every_fault_and_links_its_section() -> None:
    text = (DOCS / "diagnosis.md").read_text(encoding="utf-8").partition("## The rules")[2]
    listed = [row for row in text.splitlines() if row.startswith("| [`")]
    assert listed == [
        f"| [`{rule.fault}`](rules.md#{rule.fault}) | {rule.meaning} |" for rule in RULES
    ]


def test_what_a_rule_may_cause_is_a_fault() -> None:
    faults = {rule.fault for rule in RULES}
    assert {cause for rule in RULES for cause in rule.causes} <= faults
