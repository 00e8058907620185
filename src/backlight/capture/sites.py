"""The sites of a run: every place where a tensor is seen gets a number when it is first seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backlight.schema import Site

ROOT = "(model)"
"""How the root module, whose qualified name is empty, is called in the name of a site."""


class SiteBook:
    """Numbers sites in the order in which they are first seen, which is the network's order.

    >>> book = SiteBook()
    >>> book.output("blocks.0", "ReLU", "out.0", call=2, step=0)
    0
    >>> book.output("blocks.0", "ReLU", "out.0", call=2, step=1)
    0
    >>> [site["name"] for site in book.take_new()], book.take_new()
    (['blocks.0#2:out.0'], [])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._new: list[Site] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def output(self, module: str, module_class: str, place: str, *, call: int, step: int) -> int:
        """The number of an output of a module's call."""
        key = (module, place, call)
        number = self._numbers.get(key)
        if number is None:
            caller = module or ROOT
            name = f"{caller}#{call}:{place}" if call > 1 else f"{caller}:{place}"
            number = self._add(key, name, "output", module_class, step)
        return number

    def parameter(
        self, module: str, module_class: str, place: str, *, aliases: tuple[str, ...], step: int
    ) -> int:
        """The number of a parameter; `aliases` are its other names where it is tied."""
        return self._owned("parameter", module, module_class, place, aliases, step)

    def optimizer_state(
        self, module: str, module_class: str, place: str, key: str, *, step: int
    ) -> int:
        """The number of a tensor that the optimizer keeps for a parameter."""
        return self._owned("optimizer", module, module_class, f"{place}:{key}", (), step)

    def take_new(self) -> list[dict[str, Any]]:
        """The sites that were added since the last call, as rows of the `sites` table."""
        new, self._new = self._new, []
        return [{**asdict(site), "aliases": list(site.aliases)} for site in new]

    def _owned(
        self,
        tensor_class: str,
        module: str,
        module_class: str,
        place: str,
        aliases: tuple[str, ...],
        step: int,
    ) -> int:
        key = (module, place, 0)
        number = self._numbers.get(key)
        if number is None:
            name = f"{module}.{place}" if module else place
            number = self._add(key, name, tensor_class, module_class, step, aliases)
        return number

    def _add(
        self,
        key: tuple[str, str, int],
        name: str,
        tensor_class: str,
        module_class: str,
        step: int,
        aliases: tuple[str, ...] = (),
    ) -> int:
        module, place, call = key
        number = len(self._numbers)
        self._numbers[key] = number
        self._new.append(
            Site(
                number, name, tensor_class, module, module_class, place, max(call, 1), aliases, step
            )
        )
        return number
