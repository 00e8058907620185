"""The user's own statistics inside of a program: further words at the end of each row.

Which site a tensor belongs to is known only when the whole program has been walked. So what may be
asked for is computed, and what is not is left out when rows are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp

from backlight.capture.sites import ROOT
from backlight.jax.extras import built_in
from backlight.jax.roles import short_name
from backlight.jax.statistics import as_real, double_words, readable
from backlight.jax.taps import Label
from backlight.own.statistic import Statistic, StatisticBook
from backlight.schema import Site

_CALLS: Final = 3
"""A pattern that fits the name of one of a module's first calls may fit that of any."""


class OwnWords:
    """Adds the numbers of own statistics to rows; NaN is what is not computed."""

    def __init__(self, book: StatisticBook) -> None:
        self._book = book
        self.places = [] if book.is_empty else list(range(len(book)))
        self.failures: dict[int, tuple[str, str, Exception | str]] = {}

    @property
    def words(self) -> int:
        """How many words a row is longer."""
        return 2 * len(self.places)

    def wanted(self, sites: list[Site], quantity: str) -> frozenset[int]:
        """Which of them are computed of what may be any of some sites."""
        return frozenset(place for site in sites for place in self._book.of(site, quantity))

    def of(self, array: Any, sites: list[Site], quantity: str, old: Any = None) -> Any:
        """The words of an array, or of what it differs by from an `old` one."""
        wanted = self.wanted(sites, quantity)
        if wanted and old is not None:
            array = as_real(readable(array)) - as_real(readable(old))
        numbers = [
            self._number(place, array, sites[0].name) if place in wanted else None
            for place in self.places
        ]
        real = [jnp.float32(jnp.nan) if each is None else each for each in numbers]
        return jnp.concatenate([double_words(each.reshape(1)) for each in real])

    def none(self) -> Any:
        """The words of what is not computed, such as a tensor of which a device has a part."""
        return double_words(jnp.full(len(self.places), jnp.nan, jnp.float32))

    def _number(self, place: int, array: Any, where: str) -> Any:
        statistic = self._book[place]
        try:
            number = jnp.asarray(_where_it_lies(partial(_computed, statistic), array))
        except Exception as error:
            self.failures.setdefault(place, (statistic.name, where, error))
            return None
        if number.size != 1 or jnp.iscomplexobj(number):
            got = f"an array of the shape {tuple(number.shape)}"
            self.failures.setdefault(place, (statistic.name, where, got))
            return None
        return as_real(number.reshape(()))

    def tell(self) -> None:
        """Say which functions could not be traced."""
        for name, where, why in self.failures.values():
            if isinstance(why, Exception):
                self._book.failed(name, where, why)
            else:
                self._book.no_number(name, where, why)

    def is_asked(self, site: Site, quantity: str) -> list[bool]:
        """Which of the numbers belong to a quantity at a site."""
        asked = self._book.of(site, quantity)
        return [place in asked for place in self.places]


def _where_it_lies(function: Callable[[Any], Any], array: Any) -> Any:
    """Call a function of an array; where shardings are part of types, let the compiler choose."""
    sharding = getattr(jax.typeof(array), "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty or not getattr(mesh, "explicit_axes", ()):
        return function(array)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.sharding.auto_axes(lambda each: jnp.asarray(function(each)), out_sharding=whole)(
        array
    )


def _computed(statistic: Statistic, array: Any) -> Any:
    if statistic.function is None:
        return built_in(statistic, array)
    return statistic.function(as_real(readable(jax.lax.stop_gradient(array))))


def sites_of(label: Label) -> list[Site]:
    """What the site of a tensor can be."""
    kind = label.tensor_class
    if kind in ("input", "output"):
        module = label.module or ROOT
        calls = [f"#{number}" if number > 1 else "" for number in range(1, _CALLS + 1)]
        names = [f"{module}{call}:{label.place}" for call in calls]
    elif kind == "tensor":
        names = [f"{label.module}:{label.place}" if label.module else label.place]
    else:
        words = short_name(tuple(label.place.split(".")))
        names = [".".join((label.module, *words) if label.module else words)]
    return [
        Site(-1, name, kind, label.module, label.module_class, label.place, call)
        for call, name in enumerate(names, 1)
    ]
