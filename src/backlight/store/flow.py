"""Gradient flow: on which paths the gradient came that arrives at a tensor.

A tensor's gradient is the sum of what comes back from everything that was made from it. What is
recorded is the norm of the whole, at every tensor. How it divides follows from that where a tensor
was used once; where a tensor forks, it is estimated by squared norms, which add up for parts that
are orthogonal:

- a sum hands its gradient on unchanged, so the way that leads straight into one, a skip connection,
  carries the sum's norm `s`;
- the rest of a whole of norm `w` has a norm between `|w - s|` and `w + s`: it is taken to be the
  geometric mean of both, and divided among the other ways by the squared norms at the next tensor.

docs/flow.md says it at length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]
Norms = Mapping[int, Any]
"""The gradient's norm at sites: a number of one step, or an array of several. NaN: not recorded."""

_EQUAL: Final = 1e-6


@dataclass(frozen=True)
class Link:
    """A tensor was made from another, and so hands gradient back to it."""

    source: int
    sink: int
    is_copy: bool  # the sink is a sum, and hands its gradient on unchanged
    leads_back: bool  # into the next iteration of the step


@dataclass(frozen=True)
class FlowGraph:
    """The tensors that a gradient passes, each with all sites that saw it, in network order."""

    sites: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    ends: frozenset[int]

    def out_of(self) -> list[list[Link]]:
        """For each tensor the links to what was made from it."""
        found: list[list[Link]] = [[] for _ in self.sites]
        for link in self.links:
            found[link.source].append(link)
        return found

    def tensor_of(self, site: int) -> int | None:
        """The tensor that a site saw."""
        places = (place for place, sites in enumerate(self.sites) if site in sites)
        return next(places, None)


@dataclass(frozen=True)
class SiteFacts:
    """What of a site matters here."""

    tensor_class: str
    module: str


def flow_graph(
    nodes: Sequence[tuple[int, str]],
    edges: Iterable[tuple[int, int]],
    facts: Mapping[int, SiteFacts],
    norms: Norms,
    *,
    is_last: bool = True,
) -> FlowGraph:
    """The tensors and links of a dependency graph that a gradient passes on its way from the loss.

    `nodes` are sites, in the order of sight, each with what it was seen as; `edges` are those that
    autograd knows. `norms` tell which sites saw the same tensor, and which tensors are sums. From
    the last iteration of a step nothing leads back into the next.

    >>> facts = {i: SiteFacts("output", str(i)) for i in range(4)}
    >>> nodes = [(0, "output"), (1, "output"), (2, "output"), (3, "loss")]
    >>> norms = {0: 1.0, 1: 0.5, 2: 0.5, 3: 1.0}
    >>> graph = flow_graph(nodes, [(0, 1), (0, 2), (1, 2), (2, 3)], facts, norms)
    >>> [(link.source, link.sink) for link in graph.links if link.is_copy]
    [(0, 2), (1, 2)]
    """
    order = {site: place for place, (site, _) in enumerate(_parameters_first(nodes))}
    pairs = sorted({(a, b) for a, b in edges if a in order and b in order and a != b})
    first = _first_sites(pairs, order, facts, norms)
    first = _same_sums(pairs, order, facts, norms, first)
    together: dict[int, list[int]] = {}
    for site in sorted(order, key=order.__getitem__):
        together.setdefault(first.get(site, site), []).append(site)
    tensors = {site: place for place, site in enumerate(together)}
    joined = {(tensors[first.get(a, a)], tensors[first.get(b, b)]) for a, b in pairs}
    sites = tuple(tuple(each) for each in together.values())
    joined = {(a, b) for a, b in joined if a < b or (a > b and not is_last)}
    joined = _behind_sums(joined, sites, norms)
    losses = {tensors[first.get(site, site)] for site, seen_as in nodes if seen_as == "loss"}
    ends = losses or {place for place in tensors.values() if all(a != place for a, _ in joined)}
    passed = _leading_to(ends, joined)
    kept = sorted(pair for pair in joined if pair[1] in passed)
    sums = _sums(kept, sites, norms)
    links = tuple(Link(a, b, b in sums, leads_back=a > b) for a, b in kept)
    return FlowGraph(sites, links, frozenset(ends))


def _parameters_first(nodes: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Parameters are seen last, and were there before all else."""
    return sorted(nodes, key=lambda node: node[1] != "parameter")


def _first_sites(
    pairs: Collection[tuple[int, int]],
    order: Mapping[int, int],
    facts: Mapping[int, SiteFacts],
    norms: Norms,
) -> dict[int, int]:
    """Of each site that saw a tensor again, the first that saw it.

    A module's input is what was handed to it, and a container's output is that of a module in it,
    where it has one source and the same gradient.
    """
    sources: dict[int, list[int]] = {}
    for source, sink in pairs:
        sources.setdefault(sink, []).append(source)
    first: dict[int, int] = {}
    for site in sorted(sources, key=order.__getitem__):
        source = sources[site][0]
        if len(sources[site]) == 1 and order[source] < order[site]:
            known = facts.get(site), facts.get(source)
            if None not in known and _is_seen_again(known, norms.get(site), norms.get(source)):
                first[site] = first.get(source, source)
    return first


def _is_seen_again(known: tuple[Any, Any], norm: Any, source_norm: Any) -> bool:
    site, source = known
    if source.tensor_class == "parameter" or not _may_equal(norm, source_norm):
        return False
    if site.tensor_class == "input":
        return True
    is_inside = site.module == "" or source.module.startswith(f"{site.module}.")
    return bool(site.tensor_class == source.tensor_class == "output" and is_inside)


def _same_sums(
    pairs: Collection[tuple[int, int]],
    order: Mapping[int, int],
    facts: Mapping[int, SiteFacts],
    norms: Norms,
    first: dict[int, int],
) -> dict[int, int]:
    """Also of sites that saw the same sum: made of the same several, with the same gradient."""
    terms: dict[int, set[int]] = {}
    for source, sink in pairs:
        if sink not in first:
            terms.setdefault(sink, set()).add(first.get(source, source))
    seen: dict[frozenset[int], int] = {}
    again: dict[int, int] = {}
    for site in sorted(terms, key=order.__getitem__):
        if len(terms[site]) < 2 or site not in facts or facts[site].tensor_class == "tensor":
            continue
        held = seen.setdefault(frozenset(terms[site]), site)
        if held != site and _is_same((held,), (site,), norms):
            again[site] = held
    moved = {site: again.get(source, source) for site, source in first.items()}
    return moved | again


def _may_equal(one: Any, other: Any) -> bool:
    """Whether two norms are equal, or one of them is not known."""
    if one is None or other is None or np.isnan(one) or np.isnan(other):
        return True
    return bool(abs(one - other) <= _EQUAL * max(one, other))


def _behind_sums(
    pairs: set[tuple[int, int]], sites: Sequence[Sequence[int]], norms: Norms
) -> set[tuple[int, int]]:
    """Links that lead through a sum, where the graph has them past it.

    A sum that only the module sees that it is handed to is not known outside of it: what is made
    of it there seems to be made of its terms. But a term whose whole gradient is that of the sum is
    used nowhere else.
    """
    sources: dict[int, set[int]] = {}
    uses: dict[int, set[int]] = {}
    for source, sink in pairs:
        sources.setdefault(sink, set()).add(source)
        uses.setdefault(source, set()).add(sink)
    for total in sorted(place for place, terms in sources.items() if len(terms) > 1):
        terms = sources[total]
        whole = [t for t in terms if t < total and _is_same(sites[t], sites[total], norms)]
        for sink in {sink for term in whole for sink in uses[term] if sink > total}:
            if terms <= sources[sink]:
                sources[sink] = (sources[sink] - terms) | {total}
                uses.setdefault(total, set()).add(sink)
                for term in terms:
                    uses[term].discard(sink)
    return {(source, sink) for sink, found in sources.items() for source in found}


def _is_same(one: Sequence[int], other: Sequence[int], norms: Norms) -> bool:
    """Whether two tensors have the same gradient, as far as its norm tells."""
    norm, other_norm = norm_of(one, norms), norm_of(other, norms)
    return bool(norm > 0 and other_norm > 0) and _may_equal(norm, other_norm)


def _leading_to(ends: Collection[int], pairs: Collection[tuple[int, int]]) -> set[int]:
    behind: dict[int, list[int]] = {}
    for source, sink in pairs:
        behind.setdefault(sink, []).append(source)
    reached, todo = set(ends), list(ends)
    while todo:
        for source in behind.get(todo.pop(), ()):
            if source not in reached:
                reached.add(source)
                todo.append(source)
    return reached


def _sums(
    pairs: Sequence[tuple[int, int]], sites: Sequence[Sequence[int]], norms: Norms
) -> set[int]:
    """The tensors that are sums: one of several sources, used nowhere else, has their gradient."""
    uses, sources = np.zeros(len(sites), int), np.zeros(len(sites), int)
    for source, sink in pairs:
        uses[source] += 1
        sources[sink] += 1
    found = set()
    for source, sink in pairs:
        if sources[sink] > 1 and uses[source] == 1 and _is_same(sites[source], sites[sink], norms):
            found.add(sink)
    return found


def norm_of(sites: Sequence[int], norms: Norms) -> Any:
    """The norm at the first of a tensor's sites where it was recorded."""
    for site in sites:
        found = norms.get(site)
        if found is not None and not np.isnan(found).all():
            return found
    return np.float64(np.nan)


def parts(graph: FlowGraph, norms: Norms) -> dict[Link, Any]:
    """Which part of its source's gradient came over each link: 1 in all. NaN: not recorded.

    >>> link = Link(0, 1, False, False)
    >>> parts(FlowGraph(((7,), (8,)), (link,), frozenset({1})), {}) == {link: 1.0}
    True
    """
    found: dict[Link, Any] = {}
    for tensor, links in enumerate(graph.out_of()):
        if links:
            whole = norm_of(graph.sites[tensor], norms)
            each = [norm_of(graph.sites[link.sink], norms) for link in links]
            divided = divide(whole, each, [link.is_copy for link in links])
            found |= dict(zip(links, divided, strict=True))
    return found


def divide(whole: Any, each: Sequence[Any], is_copy: Sequence[bool]) -> list[Any]:
    """How a gradient of norm `whole` divides among the ways it came, which add up to 1.

    >>> [float(part) for part in divide(5.0, [4.0, 0.1], [True, False])]
    [0.64, 0.36]
    >>> [float(part) for part in divide(0.0, [4.0, 0.1], [True, False])]  # they cancel each other
    [0.5, 0.5]
    >>> [float(part) for part in divide(1.0, [2.0, 2.0], [False, False])]
    [0.5, 0.5]
    """
    if len(each) == 1:
        return [1.0]
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = [np.square(np.asarray(norm, np.float64)) for norm in each]
        copied = sum((s for s, copy in zip(squares, is_copy, strict=True) if copy), np.float64(0))
        other = sum((s for s, c in zip(squares, is_copy, strict=True) if not c), np.float64(0))
        if all(is_copy) or not any(is_copy):
            return [square / (copied + other) for square in squares]
        left = np.abs(np.square(np.asarray(whole, np.float64)) - copied)
        straight = copied / (copied + left)
        # Where the next tensors have no gradient, nothing tells how a rest divides.
        rest = np.where(other > 0, (1 - straight) / other, np.where(left > 0, np.nan, 0.0))
        return [
            straight * square / copied if copy else rest * square
            for square, copy in zip(squares, is_copy, strict=True)
        ]


def amounts(
    graph: FlowGraph, divided: Mapping[Link, float], origins: Mapping[int, float]
) -> tuple[Real, dict[Link, float]]:
    """Which share of the gradient that arrives at the origins passed each tensor and each link.

    What passes a tensor is what goes on from it, so all of it arrives at the ends, in the next
    iteration, or where nothing was recorded.
    """
    passing = np.zeros(len(graph.sites))
    for tensor, share in origins.items():
        passing[tensor] += share
    carried: dict[Link, float] = {}
    for tensor, links in enumerate(graph.out_of()):
        for link in links:
            carried[link] = float(passing[tensor] * divided[link])
            if not link.leads_back and np.isfinite(carried[link]):
                passing[link.sink] += carried[link]
    return passing, carried


def first_tensors(
    graph: FlowGraph, norms: Norms, facts: Mapping[int, SiteFacts]
) -> dict[int, float]:
    """Where the gradient's way ends: tensors with one, made of none that have any.

    Each with its share of their squared norms.
    """
    own = [norm_of(sites, norms) for sites in graph.sites]
    has_one = [
        bool(norm > 0) and facts[sites[0]].tensor_class != "parameter"
        if sites[0] in facts
        else False
        for sites, norm in zip(graph.sites, own, strict=True)
    ]
    made = {link.sink for link in graph.links if has_one[link.source] and not link.leads_back}
    leading = {link.source for link in graph.links}
    found = [t for t in range(len(own)) if has_one[t] and t not in made and t in leading]
    total = sum(float(own[tensor]) ** 2 for tensor in found)
    return {tensor: float(own[tensor]) ** 2 / total for tensor in found}


def skip_shares(graph: FlowGraph, norms: Norms) -> dict[int, Any]:
    """For each tensor that forks into a skip connection and others: the part that came straight."""
    divided = parts(graph, norms)
    found: dict[int, Any] = {}
    for tensor, links in enumerate(graph.out_of()):
        copies = [link for link in links if link.is_copy]
        if copies and len(copies) < len(links):
            found[tensor] = sum(divided[link] for link in copies)
    return found
