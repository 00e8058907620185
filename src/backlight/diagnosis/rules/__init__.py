"""The built-in rules: one file each, named after its fault."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from backlight.diagnosis.rule import Rule


def _load() -> list[Rule]:
    names = sorted(file.stem for file in Path(__file__).parent.glob("*.py"))
    found = [import_module(f"{__name__}.{name}") for name in names if not name.startswith("_")]
    return [module.RULE for module in found]


RULES: Final[list[Rule]] = _load()
"""Every built-in rule, by its fault's name."""
