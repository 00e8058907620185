"""The modules of a run, as `run.json` tells them: by the calls that were seen, and by names."""

from __future__ import annotations

from math import prod
from typing import Any

from backlight.jax.program import Traced


def describe_modules(traced: list[Traced]) -> list[dict[str, Any]]:
    """Every module with its class and its own parameters, those inside behind those around."""
    classes: dict[str, str] = {"": ""}
    counts: dict[str, int] = {}
    for each in traced:
        classes.update(each.found.classes)
        for owned in each.roles.owned:
            if owned.role == "parameter" and owned.before is not None:
                shape = each.program.in_avals[owned.before].shape
                counts.setdefault(owned.module, 0)
                if each is traced[0] or owned.module not in classes:
                    counts[owned.module] += prod(shape)
    for module in counts:
        classes.setdefault(module, "")
    names = _with_outer(list(classes))
    return [
        {"name": n, "class": classes.get(n, ""), "parameters": counts.get(n, 0), "extra": ""}
        for n in names
    ]


def _with_outer(names: list[str]) -> list[str]:
    """Names in order, each behind those of the modules around it, which are added if missing.

    >>> _with_outer(["", "a.b", "c"])
    ['', 'a', 'a.b', 'c']
    """
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:length]))
    return list(found)
