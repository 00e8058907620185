"""What is selected in the page, as a user's function sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Selection:
    """What is selected in the page. `theme`, `width` and `height` are of the place to draw in."""

    step: int | None = None
    kind: str | None = None
    iteration: int | None = None
    site: str | None = None
    quantity: str = "value"
    statistic: str = "rms"
    sample: int | None = None
    data_index: int | None = None
    pins: tuple[str, ...] = ()
    theme: str = "light"
    width: int = 800
    height: int = 500


def selection_of(query: Mapping[str, Any]) -> Selection:
    """The selection that a request tells.

    >>> selection_of({"step": "7", "site": "0:out.0", "sample": "#12"})
    Selection(step=7, ..., site='0:out.0', ..., sample=None, data_index=12, ...)
    """
    told: dict[str, Any] = {
        **{name: _whole(query.get(name)) for name in ("step", "iteration", "width", "height")},
        **{name: query.get(name) for name in ("kind", "site", "quantity", "statistic", "theme")},
    }
    sample = query.get("sample") or ""
    told["data_index" if sample.startswith("#") else "sample"] = _whole(sample.lstrip("#"))
    told["pins"] = tuple(pin for pin in (query.get("pins") or "").split("\n") if pin)
    return Selection(**{name: value for name, value in told.items() if value is not None})


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
