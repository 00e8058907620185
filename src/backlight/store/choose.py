"""Which rows a question is about: by name, tensor class, quantity, kind, step and rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, TABLES, TENSOR_CLASSES
from backlight.store.snapshot import Snapshot

Words: TypeAlias = str | Collection[str] | None
Steps: TypeAlias = int | range | tuple[int | None, int | None] | None


@dataclass(frozen=True)
class Choice:
    """What was asked for; None where anything will do.

    `steps` is one step, a range, or the first and the last step, either of which can be None.
    """

    name: str | None = None
    tensor_class: Words = None
    quantity: Words = None
    kind: Words = None
    steps: Steps = None
    rank: int | None = None

    def rows(self, snapshot: Snapshot, table: str, columns: Iterable[str]) -> pa.Table:
        """The chosen rows of a table, with the names of their sites where it has sites."""
        wanted = list(columns)
        first, last = self.bounds
        sites = self.sites(snapshot) if "site" in TABLES[table].names else None
        needed = list(dict.fromkeys([*wanted, "step", *(["site"] if sites is not None else [])]))
        needed += [n for n in ("quantity",) if n in TABLES[table].names and n not in needed]
        is_named = self.name is not None or self.tensor_class is not None
        if sites is None or not is_named:
            rows = snapshot.at_steps(first, last, needed, table=table)
        elif self._is_few(snapshot, sites, first, last):
            rows = snapshot.of_sites(sites["site"].to_pylist(), needed, table=table)
        else:
            rows = snapshot.at_steps(first, last, needed, table=table)
            rows = rows.filter(pc.field("site").isin(sites["site"]))
        rows = rows.filter(self._condition(snapshot, table))
        if sites is None:
            return rows.select([*wanted, "rank"])
        return _with_names(rows, snapshot.held["sites"]).select(["name", *wanted, "rank"])

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last step that are asked for."""
        ends: tuple[int | None, int | None] = (None, None)
        if isinstance(self.steps, (int, np.integer)):
            ends = (int(self.steps), int(self.steps))
        elif isinstance(self.steps, range):
            ends = (min(self.steps, default=1), max(self.steps, default=0))
        elif isinstance(self.steps, tuple) and len(self.steps) == 2:
            ends = self.steps
        elif self.steps is not None:
            raise BacklightError(
                f"steps={self.steps!r} is no choice of steps: use a number, a range, "
                "or (first, last), either of which can be None."
            )
        first, last = ends
        return (-(1 << 62) if first is None else int(first)), (
            1 << 62 if last is None else int(last)
        )

    def sites(self, snapshot: Snapshot) -> pa.Table:
        """The chosen sites."""
        sites = snapshot.held["sites"]
        classes = words("tensor_class", self.tensor_class, TENSOR_CLASSES)
        if classes is not None:
            sites = sites.filter(pc.field("tensor_class").isin(classes))
        if self.name is not None:
            try:
                pattern = re.compile(self.name)
            except (re.error, TypeError) as error:
                raise BacklightError(
                    f"name={self.name!r} is no regular expression ({error}): correct it."
                ) from None
            names = sites["name"].to_pylist()
            matches = [pattern.search(each) is not None for each in names]
            sites = sites.filter(pa.array(matches, pa.bool_()))
        return sites

    def _is_few(self, snapshot: Snapshot, sites: pa.Table, first: int, last: int) -> bool:
        """Whether reading by site is less than reading by step."""
        recorded = snapshot.recorded_steps
        asked = np.searchsorted(recorded, last, "right") - np.searchsorted(recorded, first, "left")
        share_of_sites = sites.num_rows / max(1, snapshot.held["sites"].num_rows)
        return bool(share_of_sites <= asked / max(1, len(recorded)) or sites.num_rows == 0)

    def _condition(self, snapshot: Snapshot, table: str) -> Any:
        first, last = self.bounds
        condition = (pc.field("step") >= first) & (pc.field("step") <= last)
        quantities = words("quantity", self.quantity, QUANTITIES)
        if quantities is not None and "quantity" in TABLES[table].names:
            condition &= pc.field("quantity").isin(quantities)
        if self.rank is not None:
            condition &= pc.field("rank") == self.rank
        kinds = words("kind", self.kind)
        if kinds is not None and "kind" in TABLES[table].names:
            condition &= pc.field("kind").isin(kinds)
        elif kinds is not None:
            steps = snapshot.held["steps"]
            chosen = pc.unique(steps.filter(pc.field("kind").isin(kinds))["step"])
            condition &= pc.field("step").isin(chosen)
        return condition


def choose(**options: Any) -> Choice:
    """A choice, or one sentence on what cannot be chosen by.

    >>> choose(step=3)
    Traceback (most recent call last):
    backlight.errors.BacklightError: There is no choice 'step': use name, ...
    """
    known = [field.name for field in fields(Choice)]
    for option in options:
        if option not in known:
            raise BacklightError(f"There is no choice {option!r}: use {', '.join(known)}.")
    return Choice(**options)


def words(what: str, given: Words, allowed: Collection[str] = ()) -> list[str] | None:
    """The words that were given, one or several, each of them an allowed one.

    >>> words("quantity", "grad", QUANTITIES), words("kind", None)
    (['grad'], None)
    """
    if given is None:
        return None
    chosen = [given] if isinstance(given, str) else list(given)
    unknown = [word for word in chosen if allowed and word not in allowed]
    if unknown:
        raise BacklightError(f"There is no {what} {unknown[0]!r}: use one of {', '.join(allowed)}.")
    return chosen


def _with_names(rows: pa.Table, sites: pa.Table) -> pa.Table:
    index = pc.index_in(rows["site"], value_set=sites["site"].combine_chunks())
    return rows.append_column("name", sites["name"].take(index))
