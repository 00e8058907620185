"""A graph as it is stored: the sites of a step, the edges between them, the calls of modules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

AUTOGRAD: Final = "autograd"
MANUAL: Final = "manual"
DATA: Final = "data"
KINDS: Final = (AUTOGRAD, MANUAL, DATA)
"""How a dependency is known; of one that is known in several ways, the first is kept."""

Call = tuple[str, int]
"""A module's qualified name and the number of its call."""


@dataclass(frozen=True, order=True)
class Edge:
    """The tensor at `sink` was made from the one at `source`, without another site in between.

    `kind` says how that is known: by autograd, by the user, or by following data.
    """

    source: int
    sink: int
    kind: str


@dataclass(frozen=True)
class Graph:
    """The sites of a step, what was made from what, and which module call ran inside which.

    Iterations of a step share their sites, so a graph may lead back to where it came from.

    >>> graph = Graph((0, 1), (Edge(0, 1, "autograd"),), {("", 1): None}, {0: "input", 1: "output"})
    >>> graph.to_json()["edges"]
    {'autograd': [[0, 1]], 'manual': [], 'data': []}
    """

    nodes: tuple[int, ...]  # in order of sight
    edges: tuple[Edge, ...]  # sorted
    nesting: Mapping[Call, Call | None]  # of each call the one around it; in order of call
    roles: Mapping[int, str]  # parameter, input, output, tensor or loss
    is_traced: bool = False  # whether data flow was followed
    strangers: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Parameters that belong to no watched module: the site that one was used for, its shape."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The module calls, in order."""
        return tuple(self.nesting)

    @cached_property
    def signature(self) -> str:
        """A hash that is equal for equal sites, edges and calls."""
        text = json.dumps(self._content(), separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Nodes as [site, role], calls as [module, call, place of the one around it or -1]."""
        return {"signature": self.signature, **self._content()}

    def _content(self) -> dict[str, Any]:
        places: dict[Call | None, int] = {call: place for place, call in enumerate(self.nesting)}
        return {
            "nodes": [[site, self.roles[site]] for site in self.nodes],
            "edges": {
                kind: [[edge.source, edge.sink] for edge in self.edges if edge.kind == kind]
                for kind in KINDS
            },
            "calls": [[*call, places.get(around, -1)] for call, around in self.nesting.items()],
            **({"strangers": self.strangers} if self.strangers else {}),
        }
