"""Makes the graph of a step out of what was seen in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from backlight.capture.graph.aliases import Aliases
from backlight.capture.graph.lineage import Lineage, Ref
from backlight.capture.graph.links import End, Value
from backlight.capture.graph.sights import NOWHERE, Sight, StepSights
from backlight.capture.structure import AUTOGRAD, DATA, KINDS, MANUAL, Call, Edge, Graph

_Sources = Callable[[int], frozenset[int]]


def graph_of(step: StepSights, *, is_traced: bool) -> Graph:
    """The graph of a step whose sights are all walked."""
    roles: dict[int, str] = {}
    for sight in step.sights:
        if sight.role == "loss":
            roles[sight.site] = "loss"
        roles.setdefault(sight.site, sight.role)
    for link in step.links:
        for end in link[:2]:
            if isinstance(end, int):
                roles.setdefault(end, "tensor")
    return Graph(
        tuple(roles), _edges(step), _nesting(step), roles, is_traced, tuple(_strangers(step))
    )


def _strangers(step: StepSights) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Parameters that were seen at no site, each with the first site that was made from it."""
    seen = {sight.value for sight in step.sights}
    unseen = {value: s for value, s in step.walk.parameters.items() if value not in seen}
    if not unseen:
        return
    autograd, _ = _sources(step)
    for sight in step.sights:
        if sight.role in ("input", "output"):
            for value in sorted(autograd(sight.value) & unseen.keys()):
                yield sight.site, unseen.pop(value)


def _nesting(step: StepSights) -> dict[Call, Call | None]:
    nesting: dict[Call, Call | None] = {}
    for call in step.calls:
        if not call.is_again:
            around = None if call.around == NOWHERE else step.calls[call.around][:2]
            nesting.setdefault(call[:2], around)
    return nesting


def _edges(step: StepSights) -> tuple[Edge, ...]:
    found: dict[str, set[tuple[int, int]]] = {kind: set() for kind in KINDS}
    aliases = Aliases(step.sights, step.calls)
    autograd, data = _sources(step)
    said = _Said(step, aliases, (autograd, data))
    for order, sink in enumerate(step.sights):
        if not sink.is_sink:
            continue
        alias = aliases.before(order, sink)
        if alias is None:
            behind = set(said.behind(order, sink))
            for kind, sources in ((AUTOGRAD, autograd), (DATA, data)):
                sites = _sites_behind(sources, aliases, order, sink)
                behind.update((kind, site) for site in sites)
            for kind, site in behind:
                found[kind].add((site, sink.site))
            alias = sink.site if behind else aliases.first_input(sink)
        if alias != sink.site:
            found[AUTOGRAD if sink.has_grad else DATA].add((alias, sink.site))
    for kind, pair in said.to_sites():
        found[kind].add(pair)
    kinds = {pair: kind for kind in reversed(KINDS) for pair in found[kind]}
    return tuple(Edge(*pair, kind) for pair, kind in sorted(kinds.items()))


def _sources(step: StepSights) -> tuple[_Sources, _Sources]:
    """What a value was made from, by autograd and by data flow."""

    def made_from(lineage: Lineage, origin: Callable[[int], Ref | None]) -> _Sources:
        reached = lineage.reached()

        def sources(value: int) -> frozenset[int]:
            ref = origin(value)
            return frozenset() if ref is None else reached[ref[0]]

        return sources

    flow = Lineage() if step.flow is None else step.flow.lineage
    return (
        made_from(step.walk.lineage, step.walk.origins.__getitem__),
        made_from(flow, step.data_origins.get),
    )


def _sites_behind(sources: _Sources, aliases: Aliases, before: int, sink: Sight) -> set[int]:
    """The sites that a value was made from; one that `sink` knows no name of is looked through."""
    sites: set[int] = set()
    todo, done = list(sources(sink.value)), {sink.value}
    while todo:
        value = todo.pop()
        if value in done:
            continue
        done.add(value)
        site = aliases.find(value, before, sink)
        if site is None:
            todo.extend(sources(value))
        else:
            sites.add(site)
    return sites


class _Said:
    """The edges that come of what the user says, alone or beside what is known otherwise.

    A tensor that no site has is looked through, on both ends: the edge leads from what it was made
    from, to what was made from it.
    """

    def __init__(
        self, step: StepSights, aliases: Aliases, known: tuple[_Sources, _Sources]
    ) -> None:
        self._step = step
        self._aliases = aliases
        self._known = known
        self._links: dict[End, list[tuple[End, str]]] = {}
        for source, sink, kind in step.links:
            self._links.setdefault(sink, []).append((source, kind))

    def behind(self, order: int, sink: Sight) -> Iterator[tuple[str, int]]:
        """For a sight, kinds and sites that its value was made from, because the user says so."""
        if self._links:
            yield from self._follow(self._sources(Value(sink.value), ""), order, sink)

    def to_sites(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Kinds and pairs of sites, for what leads to a site and not to a tensor."""
        last = len(self._step.sights)
        for site in (end for end in self._links if isinstance(end, int)):
            unseen = last, Sight(-1, site, "tensor", NOWHERE, False, True)
            seen = ((at, sight) for at, sight in enumerate(self._step.sights) if sight.site == site)
            for kind, source in self._follow(self._links[site], *next(seen, unseen)):
                yield kind, (source, site)

    def _follow(
        self, ends: Iterable[tuple[End, str]], before: int, sink: Sight
    ) -> Iterator[tuple[str, int]]:
        todo, done = list(ends), set()
        while todo:
            end, kind = todo.pop()
            if (end, kind) in done:
                continue
            done.add((end, kind))
            if isinstance(end, int):
                yield kind, end
                continue
            site = self._site(end, kind, before, sink)
            if site is None:
                todo.extend(self._sources(end, kind))
            elif kind:
                yield kind, site

    def _site(self, end: Value, kind: str, before: int, sink: Sight) -> int | None:
        site = self._aliases.find(end.number, before, sink)
        if site is None and kind:
            # The user may say so of what is seen only later.
            site = self._aliases.find(end.number, len(self._step.sights), sink)
        return site

    def _sources(self, end: Value, kind: str) -> Iterator[tuple[End, str]]:
        """What a value was made from, and the kind of an edge from there: "" if nobody said so."""
        for sources in self._known:
            for value in sources(end.number):
                yield Value(value), kind
        for source, said in self._links.get(end, ()):
            yield source, MANUAL if MANUAL in (kind, said) else said
