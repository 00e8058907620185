"""What docs/rules.md says of each rule, so that the page and the rules cannot part."""

from __future__ import annotations

import inspect
from textwrap import dedent
from typing import Final

from backlight.diagnosis.rule import Rule
from backlight.diagnosis.rules import RULES
from faults.catalogue import FAULTY, Program

INTRO: Final = """# The rules

One section for each fault that [diagnosis](diagnosis.md) can name: what it means, the numbers that
decide and where they come from, what it may bring about, and what the rule looks at, in a program
that has the fault (red) and in the same program without it (blue). The dashed line is the threshold
from which on the rule becomes suspicious. `scripts/draw-rules` draws the pictures and writes this
page from the rules and from the programs in `tests/faults/`.
"""

_SHOWN: Final = {
    "bad_init": "convolutions_far_too_large",
    "gradient_clipping": "gradients_clamped_by_hand",
    "loss_sign": "similarity_made_small",
    "output_range": "sigmoid_for_large_targets",
    "over_regularisation": "squares_of_weights_in_the_loss",
}
"""The programs that show their fault best; of other faults it is the first one."""


def program_of(fault: str) -> Program:
    """The program that stands for a fault on the page."""
    if fault in _SHOWN:
        return FAULTY[_SHOWN[fault]]
    own = [program for program in FAULTY.values() if program.fault == fault]
    return next((program for program in own if program.is_fast), own[0])


def page() -> str:
    """All of docs/rules.md."""
    return "\n".join([INTRO, *(f"{head(rule)}\n{code(rule)}" for rule in RULES)])


def head(rule: Rule) -> str:
    """The section's beginning: what the rule says of itself, and its picture."""
    limits = "\n".join(
        f"- {name}: {limit.value:g} ({limit.origin})" for name, limit in rule.thresholds.items()
    )
    causes = ", ".join(f"[`{fault}`](#{fault})" for fault in rule.causes)
    brings = f"\n\nMay bring about {causes}." if causes else ""
    picture = f"![{rule.fault}: faulty and fixed](images/rules/{rule.fault}.svg)"
    return f"## `{rule.fault}`\n\n{rule.meaning}\n\n{picture}\n\n{limits}{brings}\n"


def code(rule: Rule) -> str:
    """The faulty program and its fixed twin, as the suite has them."""
    source = dedent(inspect.getsource(program_of(rule.fault).make)).rstrip()
    summary = "The program: faulty if <code>bug</code> is true, and fixed if it is not"
    return f"<details><summary>{summary}</summary>\n\n```python\n{source}\n```\n\n</details>\n"
