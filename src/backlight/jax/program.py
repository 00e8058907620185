"""A step compiled with taps: what the user's function returns, and statistics of all it saw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from backlight.capture.sites import SiteBook
from backlight.jax.arguments import Arguments
from backlight.jax.graph import make_graph
from backlight.jax.hoist import Hoist, Sight
from backlight.jax.modules import seeing_modules
from backlight.jax.numbering import Placed, number
from backlight.jax.optimizers import seeing_gradients
from backlight.jax.own import OwnWords, sites_of
from backlight.jax.roles import Name, Owned, Roles, find_roles, leaves_of, short_name
from backlight.jax.rows import Entry, RowPlan, block_of
from backlight.jax.shards import observe_shards
from backlight.jax.statistics import has_statistics, observe
from backlight.jax.taps import Label, Tracing, tracing
from backlight.jax.words import layout_of
from backlight.reduce.spec import NO_UNITS
from backlight.telling import LOSS

_ACTIVATIONS = ("input", "output", "tensor")


@dataclass(slots=True)
class Traced:
    """A step as it was traced, and what its arrays are."""

    program: Any
    shape: Any  # of its results
    found: Tracing
    roles: Roles


def trace(function: Callable[..., Any], arguments: Arguments, loss: str | None) -> Traced:
    """Trace the user's function, with modules, optimizers and taps in sight."""

    def call(*arrays: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(seeing_modules(found))
            stack.enter_context(seeing_gradients())
            return arguments.call(function, arrays)

    with tracing() as found:
        program, shape = jax.make_jaxpr(call, return_shape=True)(*arguments.arrays)
    if any(isinstance(each, jax.core.Tracer) for each in program.consts):
        raise ValueError("it uses an array that has escaped from an earlier trace")
    given = leaves_of(arguments.tree)
    given = [given[place] for place in arguments.places]
    is_state = arguments.graph is not None
    returned = leaves_of(shape if is_state else shape[0])
    return Traced(program, shape, found, find_roles(given, returned, is_state=is_state, loss=loss))


@dataclass(slots=True)
class Program:
    """A traced step with the statistics brought out of it, compiled for one kind of arguments."""

    traced: Traced
    sites: SiteBook
    step: int
    own: OwnWords
    plan: RowPlan = field(default_factory=lambda: RowPlan((), ()))
    mistakes: list[str] = field(default_factory=list)
    graph: Any = None
    devices: int = 1  # that arrays are sharded over
    compile_secs: float = 0.0
    _compiled: Any = None

    def compile(self, arrays: list[Any]) -> None:
        """Compile it; that takes a little longer than the user's own function takes."""
        constants = self.traced.program.consts
        self.devices = max(map(_device_count, [*arrays, *constants]), default=1)
        jitted = jax.jit(self._run)
        lowered = jitted.lower(constants, arrays)
        # What is on one device may be moved to several: only jit does that.
        self._compiled = lowered.compile() if self.devices == 1 else jitted
        self.mistakes += self.traced.found.mistakes

    def __call__(self, arrays: list[Any]) -> tuple[Any, Any]:
        """The results of the step, as the user's function would return them, and all words."""
        flat, words = self._compiled(self.traced.program.consts, arrays)
        if self.devices > 1:
            flat = self._as_before(arrays, flat)
        return jax.tree.unflatten(jax.tree.structure(self.traced.shape), flat), words

    def _as_before(self, arrays: list[Any], results: list[Any]) -> list[Any]:
        """What goes on to the next step stays where it was, or that would be compiled anew."""
        results = list(results)
        for owned in self.traced.roles.owned:
            if owned.before is None or owned.after is None:
                continue
            old, new = arrays[owned.before], results[owned.after]
            is_placed = _device_count(old) > 1 and old.shape == new.shape
            if is_placed and not new.sharding.is_equivalent_to(old.sharding, new.ndim):
                results[owned.after] = jax.device_put(new, old.sharding)
        return results

    # -- inside of the trace

    def _run(self, constants: list[Any], arrays: list[Any]) -> tuple[list[Any], Any]:
        self.mistakes = []
        hoist = Hoist(self._observe, self._observe_part, self._asked)
        results = hoist.run(self.traced.program.jaxpr, constants, arrays)
        placed = number(
            [s for s in hoist.sights if s.label.tensor_class != "parameter"],
            self.sites,
            self.step,
            self.mistakes,
        )
        owned = self._owned(arrays, results, hoist.sights)
        loss = self._loss(results)
        before, after = owned
        return results, self._pack([*before, *placed, *loss, *after], placed)

    def _owned(
        self, arrays: list[Any], results: list[Any], sights: list[Sight]
    ) -> tuple[list[Placed], list[Placed]]:
        """Parameters as they were used; and gradients, updates and states."""
        before: list[Placed] = []
        after: list[Placed] = []
        sites: dict[Name, int] = {}
        for owned in self.traced.roles.owned:
            site = self._site_of(owned)
            if owned.role == "parameter":
                sites[owned.name] = site
            if site < 0:
                continue
            old = None if owned.before is None else arrays[owned.before]
            new = None if owned.after is None else results[owned.after]
            if owned.role == "parameter":
                before += self._seen(owned, "value", site, old)
                if new is not None:
                    after += self._seen(owned, "update", site, new, old)
            else:
                after += self._seen(owned, "value", site, old if new is None else new)
        return before, [*self._gradients(sights, results, sites), *after]

    def _gradients(
        self, sights: list[Sight], results: list[Any], sites: dict[Name, int]
    ) -> list[Placed]:
        named = {".".join(name): site for name, site in sites.items()}
        found: dict[int, Placed] = {}
        for sight in sights:
            path = ".".join(short_name(tuple(sight.label.place.split("."))))
            site = named.get(path, -1) if sight.label.tensor_class == "parameter" else -1
            if site >= 0:
                found.setdefault(site, Placed(sight, site, 1))
        for place, name in [] if found else self.traced.roles.gradients.items():
            owned = Owned("parameter", name, None, place)
            found.update(
                {p.site: p for p in self._seen(owned, "grad", sites[name], results[place])}
            )
        return [placed for placed in found.values() if placed.site >= 0]

    def _site_of(self, owned: Owned) -> int:
        module_class = self.traced.found.classes.get(owned.module, "")
        place = (owned.module, module_class, owned.place)
        return self.sites.owned(owned.role, *place, step=self.step)

    def _loss(self, results: list[Any]) -> list[Placed]:
        place = self.traced.roles.loss
        if place is None:
            return []
        options: dict[str, Any] = {"module": "", "node": LOSS, "role": LOSS, "kind": "loss"}
        site = self.sites.named(LOSS, step=self.step, **options)
        return self._seen(Owned("loss", (LOSS,), None, place), "value", site, results[place])

    def _pack(self, every: list[Placed], placed: list[Placed]) -> Any:
        """All rows as one array, to leave the device in one piece; rows alike lie together."""
        kept = [each for each in every if each.site >= 0]
        rows = {id(each.sight.words): each.sight for each in kept}
        ordered = sorted(rows.items(), key=lambda item: layout_of(item[1].dtype).words)
        blocks, start = [], 0
        for _, sight in ordered:
            options = {"parts": _parts(sight), "own": self.own.words}
            blocks.append(block_of(sight.dtype, start, _loops(sight), sight.sharding, **options))
            start += sight.words.size
        places = {identity: place for place, (identity, _) in enumerate(ordered)}
        entries = [self._entry(each, places[id(each.sight.words)]) for each in kept]
        self.plan = RowPlan(tuple(entries), tuple(blocks), self.own.words)
        self.graph = self._graph(kept, placed)
        flat = [sight.words.reshape(-1) for _, sight in ordered]
        return jnp.concatenate(flat) if flat else jnp.zeros(0, jnp.uint32)

    def _entry(self, placed: Placed, block: int) -> Entry:
        sight = placed.sight
        shape = sight.shape
        dim = _unit_dim(sight.label, sight.quantity, shape)
        has_units = dim != NO_UNITS and shape[0] > 1 and prod(shape) > 0
        units = shape[dim] if has_units else None
        asked = self.own.is_asked(self.sites.site_of(placed.site), sight.quantity)
        said = (placed.site, sight.quantity, sight.dtype, shape, units, block, _loops(sight))
        return Entry(*said, tuple(asked))

    def _graph(self, kept: list[Placed], placed: list[Placed]) -> Any:
        roles = self.traced.roles
        inner = [owned for owned in roles.owned if owned.role in ("parameter", "buffer")]
        sites = {owned.before: self._site_of(owned) for owned in inner}
        loss = self.sites.number_of(LOSS)
        return make_graph(
            self.traced.program.jaxpr,
            labels={
                each.sight.label: each.site
                for each in placed
                if each.site >= 0 and each.sight.quantity == "value"
            },
            arguments={p: site for p, site in sites.items() if p is not None and site >= 0},
            differentiable={each.site for each in kept if each.sight.quantity == "grad"},
            loss=None if loss is None or roles.loss is None else (roles.loss, loss),
        )

    def _asked(self, label: Label, quantity: str) -> Any:
        return self.own.wanted(sites_of(label), quantity) if self.own.words else None

    def _observe(self, array: Any, *, label: Label, quantity: str) -> tuple[Any, Any]:
        unit_dim = _unit_dim(label, quantity, array.shape)
        if self.devices == 1:
            row: tuple[Any, Any] = observe(array, unit_dim=unit_dim), None
        else:
            row = observe_shards(array, None, unit_dim, self.devices)
        if not self.own.words:
            return row
        return _joined(row[0], self.own.of(array, sites_of(label), quantity)), row[1]

    def _observe_part(self, array: Any, *, label: Label, quantity: str) -> tuple[Any, Any]:
        """The row of the part of an array that one device has."""
        words = observe(array, unit_dim=_unit_dim(label, quantity, array.shape))
        return _joined(words, self.own.none()) if self.own.words else words, None

    def _seen(
        self, owned: Owned, quantity: str, site: int, array: Any, old: Any = None
    ) -> list[Placed]:
        if site < 0 or array is None or not has_statistics(jax.typeof(array).dtype):
            return []
        kind = jax.typeof(array)
        label = Label(owned.role, owned.module, "", owned.place)
        if self.devices == 1:
            row: tuple[Any, Any] = observe(array, old), None
        else:
            row = observe_shards(array, old, NO_UNITS, self.devices)
        if self.own.words:
            own = self.own.of(array, [self.sites.site_of(site)], quantity, old)
            row = _joined(row[0], own), row[1]
        return [Placed(Sight(label, quantity, str(kind.dtype), tuple(kind.shape), *row), site, 1)]


def _parts(sight: Sight) -> int:
    return 1 if sight.sharding is None else int(sight.words.shape[-2])


def _loops(sight: Sight) -> int:
    rows: int = prod(sight.words.shape[:-1])
    return rows // _parts(sight)


def _device_count(array: Any) -> int:
    return len(array.sharding.device_set) if isinstance(array, jax.Array) else 1


def _unit_dim(label: Label, quantity: str, shape: tuple[int, ...]) -> int:
    """The last dimension has the features, in JAX for images too."""
    has_units = quantity == "value" and label.tensor_class in _ACTIVATIONS and len(shape) > 1
    return len(shape) - 1 if has_units else NO_UNITS


def _joined(words: Any, own: Any) -> Any:
    """Rows with further words at their ends; where there is a row for each device, the same."""
    return jnp.concatenate([words, jnp.broadcast_to(own, (*words.shape[:-1], own.size))], axis=-1)
