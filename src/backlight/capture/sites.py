"""The sites of a run: every place where a tensor is seen gets a number when it is first seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from backlight.capture.select import Selection
from backlight.errors import BacklightError
from backlight.schema import Site

ROOT = "(model)"
"""How the root module, whose qualified name is empty, is called in the name of a site."""

_COLUMNS = [each.name for each in fields(Site)]

LEFT_OUT = -1
"""The number of a site that the user's selection leaves out."""


class SiteBook:
    """Numbers sites in the order in which they are first seen, which is the network's order.

    >>> book = SiteBook()
    >>> book.activation("output", "blocks.0", "ReLU", "out.0", call=2, step=0)
    0
    >>> book.activation("output", "blocks.0", "ReLU", "out.0", call=2, step=1)
    0
    >>> [site["name"] for site in book.take_new()], book.take_new()
    (['blocks.0#2:out.0'], [])
    """

    def __init__(
        self,
        selection: Selection | None = None,
        known: Iterable[Mapping[str, Any]] = (),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        known = list(known)
        self._tell = tell  # what is wrong with the selection
        self._selection = selection or Selection()
        self._sites: dict[int, Site] = {row["site"]: _site(row) for row in known}
        self._names: dict[int, str] = {row["site"]: row["name"] for row in known}
        self._by_name: dict[str, int] = {name: site for site, name in self._names.items()}
        self._numbers: dict[tuple[str, str, int], int] = {_key(row): row["site"] for row in known}
        self._count = max(self._numbers.values(), default=-1) + 1
        self.new: list[Site] = []  # since they were taken the last time

    def __len__(self) -> int:
        return self._count

    def name_of(self, site: int) -> str:
        """The name of a site, by its number."""
        return self._names[site]

    def site_of(self, site: int) -> Site:
        """A site, by its number."""
        return self._sites[site]

    def number_of(self, name: str) -> int | None:
        """The number of a site, by its name; None if there is none of that name."""
        return self._by_name.get(name)

    def has_class(self, tensor_class: str) -> bool:
        """Whether any site of this tensor class can be recorded."""
        return self._selection.has_class(tensor_class)

    def activation(
        self, tensor_class: str, module: str, module_class: str, place: str, *, call: int, step: int
    ) -> int:
        """The number of an input or output of a module's call."""
        key = (module, place, call)
        number = self._numbers.get(key)
        if number is None:
            caller = f"{module or ROOT}#{call}" if call > 1 else module or ROOT
            site = Site(
                0, f"{caller}:{place}", tensor_class, module, module_class, place, call, caller
            )
            number = self._add(key, replace(site, role=place, first_step=step))
        return number

    def owned(
        self,
        tensor_class: str,
        module: str,
        module_class: str,
        place: str,
        *,
        aliases: tuple[str, ...] = (),
        step: int,
    ) -> int:
        """The number of a parameter, a buffer, or a state that an optimizer keeps for one."""
        key = (module, place, 0)
        number = self._numbers.get(key)
        if number is None:
            name = f"{module}.{place}" if module else place
            site = Site(0, name, tensor_class, module, module_class, place, node=module or ROOT)
            number = self._add(key, replace(site, role=place, aliases=aliases, first_step=step))
        return number

    def named(
        self, name: str, *, module: str, node: str, role: str, kind: str, step: int, call: int = 1
    ) -> int:
        """The number of a tensor that the user names, in a later `call` of a module if it is so."""
        key = (module, name, -call)
        number = self._numbers.get(key)
        if number is None:
            full = f"{module}:{name}" if module else name
            if call > 1:
                node = f"{module or ROOT}#{call}"
                full = f"{node}:{name}"
            taken = self._by_name.get(full)
            if taken is not None:
                raise BacklightError(
                    f"A tensor is named {full!r}, as another site is: choose another name."
                )
            site = Site(0, full, "tensor", module, "", name, call, node, role, kind=kind)
            number = self._add(key, replace(site, first_step=step))
        return number

    def call_loss(self, number: int) -> None:
        """A backward pass starts from this tensor: of what kind it is, need not be told.

        >>> book = SiteBook()
        >>> site = book.named("x", module="", node="x", role="x", kind="hidden", step=0)
        >>> book.call_loss(site)
        >>> book.site_of(site).kind
        'loss'
        """
        site = self._sites[number]
        if site.kind in ("", "hidden") and site in self.new:
            self._sites[number] = changed = replace(site, kind="loss")
            self.new[self.new.index(site)] = changed

    def take_new(self) -> list[dict[str, Any]]:
        """The sites that were added since the last call, as rows of the `sites` table."""
        if not self.new:
            return []
        rows = [
            {name: getattr(site, name) for name in _COLUMNS} | {"aliases": list(site.aliases)}
            for site in self.new
        ]
        self.new.clear()  # last: an interrupt that came before must not cost a site its name
        return rows

    def _add(self, key: tuple[str, str, int], site: Site) -> int:
        site = replace(site, site=self._count)
        if not self._selection.has(site, self._tell):
            self._numbers[key] = LEFT_OUT
            return LEFT_OUT
        while site.name in self._by_name:  # a tensor that the user named came first
            site = replace(site, name=f"{site.name}'")
        self._numbers[key] = self._by_name[site.name] = self._count
        self._names[site.site] = site.name
        self._sites[site.site] = site
        self._count += 1
        self.new.append(site)
        return site.site


def _site(row: Mapping[str, Any]) -> Site:
    return Site(**{name: row[name] for name in _COLUMNS} | {"aliases": tuple(row["aliases"])})


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """The key of a site that an earlier part of the run has numbered already."""
    calls = {"input": row["call"], "output": row["call"], "tensor": -max(row["call"], 1)}
    return row["module"], row["place"], calls.get(row["tensor_class"], 0)
