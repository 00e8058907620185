"""What was read of a run up to a moment, and which of its rows a question is about.

The rows of small tables and of streams are held in memory; those of large tables that were
compacted stay on disk until a question needs some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES, TABLES
from backlight.store.merge import SKETCH_COLUMNS
from backlight.store.merged_sketches import MERGED
from backlight.store.own import physical, spread
from backlight.store.parts import Part
from backlight.store.ranks import RANK, SiteNumbers
from backlight.store.tiles import TILES, UPDATE_RATIO, row_quantities, with_ratios

LARGE_TABLES: Final = ("stats", "samples", "calls")
"""Tables whose parts are not held in memory."""

SLICED: Final = ("step", "iteration", *(name for name in MERGED.names if name != "block"))
"""What a distribution over steps is made of."""


@dataclass(frozen=True)
class Snapshot:
    """What was read up to a moment: questions see one, however much is read meanwhile."""

    held: dict[str, pa.Table]
    parts: dict[str, tuple[Part, ...]]
    recorded_steps: npt.NDArray[np.int64]
    sites: SiteNumbers
    own: tuple[str, ...] = ()  # the run's own statistics, which are columns like the others

    @cached_property
    def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return {
            name: self.held[name].num_rows + sum(part.rows for part in self.parts[name])
            for name in TABLES
        }

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Every row of every table: for what is compacted, better ask for the rows you need."""
        return {name: self.all_rows(name, TABLES[name].names) for name in TABLES}

    @property
    def statistics(self) -> list[str]:
        """The columns of `stats` without sketches, the run's own statistics among them."""
        plain = [name for name in TABLES["stats"].names if name not in (*SKETCH_COLUMNS, "own")]
        return [*plain, *self.own]

    @cached_property
    def quantities(self) -> list[str]:
        """What was observed, in the order of the schema."""
        seen = set(pc.unique(self.held["stats"]["quantity"]).to_pylist())
        seen |= {quantity for part in self.parts["stats"] for quantity in part.quantities}
        return [quantity for quantity in QUANTITIES if quantity in seen]

    def of_sites(
        self, sites: Iterable[int], columns: Iterable[str], *, table: str = "stats"
    ) -> pa.Table:
        """The rows of some sites, and no others."""
        asked = [*columns]
        wanted, names = set(sites), _with(physical(asked, self.own), "site")
        found = [self._held(table, names, pc.field("site").isin(sorted(wanted)))]
        for part in self.parts[table]:
            own = self.sites.own(part.source.rank, wanted)
            rows = part.rows_of(own, names) if own else None
            if rows is not None:
                found.append(self._numbered(part, _of_keys(rows, own, is_sorted=True)))
        return spread(pa.concat_tables(found), asked, self.own)

    def at_steps(
        self, first: int, last: int, columns: Iterable[str], *, table: str = "stats"
    ) -> pa.Table:
        """The rows of the steps from first to last, and no others."""
        asked = [*columns]
        names = _with(physical(asked, self.own), "step")
        if "site" in TABLES[table].names:
            names = _with(names, "site")
        found = [self._held(table, names, _between(first, last))]
        for part in self.parts[table]:
            if not _meets(part.steps, first, last):
                continue
            rows = part.rows_at(first, last, names)
            found.append(self._numbered(part, rows))
        return spread(pa.concat_tables(found), asked, self.own)

    def of_steps(
        self, steps: npt.NDArray[np.int64], columns: Iterable[str], *, table: str = "stats"
    ) -> pa.Table:
        """The rows of some steps, and no others."""
        names = [*columns]
        found = [self._held(table, names, pc.field("step").isin(pa.array(steps, pa.int64())))]
        for part in self.parts[table]:
            asked = steps[np.isin(steps, part.steps)]
            if len(asked):
                found.append(self._numbered(part, part.rows_of_steps(asked.tolist(), names)))
        return pa.concat_tables(found)

    def all_rows(self, table: str, columns: Iterable[str]) -> pa.Table:
        """Every row of a table."""
        asked = [*columns]
        names = physical(asked, self.own)
        found = [self.held[table].select([*names, "rank"])]
        for part in self.parts[table]:
            found.append(self._numbered(part, part.rows_of(None, names)))
        return spread(pa.concat_tables(found), asked, self.own)

    def for_heatmap(
        self,
        quantity: str,
        statistic: str,
        columns: list[str],
        steps: npt.NDArray[np.int64],
        cut_steps: npt.NDArray[np.int64],
        level: int,
        sites: Collection[int] | None = None,
    ) -> tuple[pa.Table, pa.Table]:
        """Rows of single steps, and blocks of steps with the statistic as `value`.

        A part that has no blocks of this level gives its rows of all `steps`, one that has gives
        those of `cut_steps` alone, which are in no whole block.
        """
        asked, columns = columns, physical(columns, self.own)
        in_tiles = physical([statistic], self.own)[0]
        wanted = ("site", "block", in_tiles, "nans", "infs")
        schema = pa.schema([TILES.field(name) for name in wanted])
        quantities = row_quantities(quantity, statistic)
        is_asked = _within(steps) & _is_one_of(quantities)
        if sites is not None:
            is_asked &= pc.field("site").isin(pa.array(sorted(sites), pa.int32()))
        rows = [self._held("stats", columns, is_asked)]
        blocks = [schema.empty_table()]
        ends = (
            int(steps[0]) // level if len(steps) else 0,
            int(steps[-1]) // level if len(steps) else 0,
        )
        for part in self.parts["stats"]:
            # A screen has a few hundred rows: the others are left out before anything is done.
            own = None if sites is None else self.sites.own(part.source.rank, set(sites))
            found = part.tiles(quantity, level, *ends, schema) if level > 1 else None
            if found is not None:
                found = found if own is None else _of_keys(found, own)
                numbered, _ = self.sites.renumber(part.source.rank, found)
                whole = numbered.select(list(wanted))
                if len(cut_steps):
                    whole = whole.filter(~pc.field("block").isin(np.unique(cut_steps // level)))
                blocks.append(whole)
            needed = steps if found is None else cut_steps
            needed = needed[np.isin(needed, part.steps)]
            for first, last in _stretches(needed):
                stretch = part.rows_at(first, last, columns)
                stretch = stretch if own is None else _of_keys(stretch, own)
                rows.append(self._numbered(part, _of_quantities(stretch, quantities)))
        joined = spread(pa.concat_tables(blocks), [statistic], self.own)
        joined = joined.select(["site", "block", statistic, "nans", "infs"])
        names = ["site", "block", "value", "nans", "infs"]
        single = spread(pa.concat_tables(rows), asked, self.own)
        single = with_ratios(single) if statistic == UPDATE_RATIO else single
        return single, joined.rename_columns(names)

    def for_slices(self, site: int, quantity: str, level: int) -> list[pa.Table]:
        """Sketches of a quantity at a site: of blocks where a part has them, else of steps."""
        wanted = {site}
        found = [self._held("stats", [*SLICED], pc.field("site") == site)]
        for part in self.parts["stats"]:
            own = self.sites.own(part.source.rank, wanted)
            if not own:
                continue
            rows = part.merged_sketches(own, level, MERGED) if level > 1 else None
            if rows is None:
                rows = part.rows_of(own, [*SLICED])
            found.append(_of_keys(rows, own, is_sorted=True))
        return [_of_quantities(each, (quantity,)) for each in found]

    def _held(self, table: str, names: list[str], condition: Any) -> pa.Table:
        return self.held[table].select([*names, "rank"]).filter(condition)

    def _numbered(self, part: Part, rows: pa.Table) -> pa.Table:
        if "site" in rows.schema.names:
            numbered, _ = self.sites.renumber(part.source.rank, rows)
            return numbered
        ranks = pa.repeat(pa.scalar(part.source.rank, pa.int32()), rows.num_rows)
        return rows.append_column(RANK, ranks)


def _of_keys(rows: pa.Table, sites: list[int], *, is_sorted: bool = False) -> pa.Table:
    """The rows of some sites; where that is one, they stand together."""
    if len(sites) == 1 and is_sorted:
        keys = rows["site"].to_numpy()
        start = np.searchsorted(keys, sites[0], "left")
        return rows.slice(start, np.searchsorted(keys, sites[0], "right") - start)
    return rows.filter(pc.is_in(rows["site"], pa.array(sites, pa.int32())))


def _of_quantities(rows: pa.Table, quantities: tuple[str, ...]) -> pa.Table:
    if len(quantities) != 1:
        return rows.filter(_is_one_of(quantities))
    is_asked = pc.equal(rows["quantity"], quantities[0])
    return rows.filter(is_asked) if pc.any(pc.invert(is_asked)).as_py() else rows


def _is_one_of(quantities: tuple[str, ...]) -> Any:
    if len(quantities) == 1:  # twice as fast
        return pc.field("quantity") == quantities[0]
    return pc.field("quantity").isin(pa.array(quantities, pa.string()))


def _with(columns: Iterable[str], name: str) -> list[str]:
    names = list(columns)
    return names if name in names else [*names, name]


def _within(steps: npt.NDArray[np.int64]) -> Any:
    """Whether a row's step is between the ends; a join with the steps themselves follows."""
    if len(steps) == 0:
        return pc.scalar(False)
    return _between(int(steps[0]), int(steps[-1]))


def _between(first: int, last: int) -> Any:
    return (pc.field("step") >= first) & (pc.field("step") <= last)


def _stretches(steps: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The ends of one or two stretches of steps that hold all of them: what is cut is at the ends.

    >>> _stretches(np.array([1, 2, 3, 1000, 1001])), _stretches(np.array([5, 10, 15]))
    ([(1, 3), (1000, 1001)], [(5, 15)])
    """
    if len(steps) == 0:
        return []
    first, last = int(steps[0]), int(steps[-1])
    distances = np.diff(steps)
    if len(steps) == 1 or distances.max() <= 2 * distances.min():
        return [(first, last)]
    widest = int(np.argmax(distances))
    return [(first, int(steps[widest])), (int(steps[widest + 1]), last)]


def _meets(steps: npt.NDArray[np.int64], first: int, last: int) -> bool:
    return bool(np.searchsorted(steps, first, "left") < np.searchsorted(steps, last, "right"))
