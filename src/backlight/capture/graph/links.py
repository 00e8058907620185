"""What the user says was made from what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from backlight.capture.sites import LEFT_OUT


class Value(NamedTuple):
    """A tensor, known by the number of its value; it may have been seen at sites or at none."""

    number: int


End = int | Value
"""A site, or a tensor."""


class Link(NamedTuple):
    """`sink` was made from `source`; `kind` is that of the edges that come of it."""

    source: End
    sink: End
    kind: str


class ToldLink(NamedTuple):
    """A link as it is told: sites may be named, before they are known."""

    source: End | str
    sink: End | str
    kind: str


def resolve(
    told: Iterable[ToldLink], site_of: Callable[[str], int | None]
) -> tuple[dict[Link, None], set[str]]:
    """The links, and the names that no site has.

    >>> resolve([ToldLink("a", 3, "manual"), ToldLink("a", "b", "manual")], {"a": 0}.get)
    ({Link(source=0, sink=3, kind='manual'): None}, {'b'})
    """
    links: dict[Link, None] = {}
    unknown: set[str] = set()
    for link in told:
        ends = {end: site_of(end) if isinstance(end, str) else end for end in link[:2]}
        unknown.update(end for end in link[:2] if isinstance(end, str) and ends[end] is None)
        source, sink = ends[link.source], ends[link.sink]
        if source not in (None, LEFT_OUT) and sink not in (None, LEFT_OUT, source):
            links[Link(source, sink, link.kind)] = None
    return links, unknown
