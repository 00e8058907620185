"""Makes one part of several sources, in memory that does not grow with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import TABLES
from backlight.store.layout import Source
from backlight.store.manifest import BY_STEP, ROWS, SKETCHES, part_path, progression_runs
from backlight.store.merged_sketches import GROUP_ROWS as SKETCH_GROUP_ROWS
from backlight.store.merged_sketches import MERGED, by_levels
from backlight.store.merged_sketches import levels_for as sketch_levels
from backlight.store.messages import DamagedError
from backlight.store.part_writer import GROUP_ROWS, GroupedFile, group_rows, publish_part
from backlight.store.tiles import TILES, WIDTH, TileMaker, levels_for

SORTED_BY: Final[dict[str, tuple[str, ...]]] = {
    "stats": ("site", "quantity", "step", "iteration", "order"),
    "sites": (),  # as they were seen: that is how they got their numbers
    "steps": ("step",),
    "scalars": ("name", "step"),
    "notes": ("step",),
    "events": ("step",),
    "samples": ("site", "quantity", "step", "iteration", "sample"),
    "calls": ("step", "order"),
}

BY_STEP_ORDER: Final = ("step", "order")
SKETCH_COLUMNS: Final = ("sketch_keys", "sketch_counts")
WITHOUT_SKETCHES: Final = [name for name in TABLES["stats"].names if name not in SKETCH_COLUMNS]

_CHUNK_ROWS: Final = 1 << 17
_BY_STEP_FROM_ROWS: Final = 4 * GROUP_ROWS
_TILES_FROM_ROWS: Final = 1 << 19


class Rows(Protocol):
    """Where rows come from: the streams that were read, or a part."""

    rows: int
    steps: npt.NDArray[np.int64]

    @property
    def problems(self) -> Sequence[str]:
        """One sentence for each file of which not all could be read."""

    def rows_of(self, keys: list[int] | None, columns: list[str]) -> pa.Table:
        """At least all rows that have one of the keys."""

    def rows_at(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """At least all rows of some steps."""


class HeldRows:
    """Rows of streams, held in memory."""

    problems: Final = ()

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self.rows = table.num_rows
        self.steps = np.unique(table["step"].to_numpy()) if "step" in table.schema.names else _NONE

    def rows_of(self, keys: list[int] | None, columns: list[str]) -> pa.Table:
        """At least all rows that have one of the keys."""
        if keys is None:
            return self._table.select(columns)
        within = pc.is_in(self._table["site"], pa.array(keys, pa.int32()))
        return self._table.filter(within).select(columns)

    def rows_at(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """At least all rows of some steps."""
        return self._table.select(columns).filter(_between(self._table["step"], first, last))


_NONE: Final = np.empty(0, np.int64)


def _between(column: pa.ChunkedArray, first: int, last: int) -> Any:
    return pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))


Tell = Callable[[str], None]
"""Is told what is being done, in a few words, where that takes long."""


def nobody(doing: str) -> None:
    """Nobody wants to know."""


def merge(table_folder: Path, target: Source, sources: list[Rows], *, tell: Tell = nobody) -> None:
    """Write the part `target` of all rows of the sources; nothing is left of one that fails."""
    name = table_folder.name
    steps = np.unique(np.concatenate([_NONE, *(each.steps for each in sources)]))
    content: dict[str, Any] = {"rows": sum(each.rows for each in sources), "quantities": []}
    content |= {"steps": progression_runs(steps), "levels": {}}
    with ExitStack() as stack:
        files: dict[str, GroupedFile] = {}

        def file(
            kind: str, schema: pa.Schema, key: str | None, at_once: int | None = None
        ) -> GroupedFile:
            if kind not in files:
                path = part_path(table_folder, target, kind)
                files[kind] = GroupedFile(path, schema, key=key, group_rows=at_once)
                stack.callback(files[kind].abandon)
            return files[kind]

        if name == "stats":
            _write_stats(sources, steps, content, file, tell)
        else:
            rows = pa.concat_tables(each.rows_of(None, TABLES[name].names) for each in sources)
            key = "site" if name == "samples" else None
            file(ROWS, TABLES[name], key).add(_sorted(rows, SORTED_BY[name]))
        _check_whole(sources, content["rows"], files)
        publish_part(table_folder, target, files, content)
        stack.pop_all()


def _write_stats(
    sources: list[Rows],
    steps: npt.NDArray[np.int64],
    content: dict[str, Any],
    file: Any,
    tell: Tell,
) -> None:
    total = content["rows"]
    quantities: set[str] = set()
    is_large = total >= _TILES_FROM_ROWS
    # A part of which nothing is left is a part.
    file(ROWS, TABLES["stats"], "site", group_rows(total))
    for rows in _by_site(sources, total):
        written = file(ROWS, TABLES["stats"], "site")
        written.add(rows)
        tell(f"{written.rows:,} of {total:,} observations by site")
        for level, merged in by_levels(rows, sketch_levels(steps) if is_large else []):
            file(f"{SKETCHES}.{level}", MERGED, "site", SKETCH_GROUP_ROWS).add(merged)
        quantities |= set(pc.unique(rows["quantity"]).to_pylist())
    content["quantities"] = sorted(quantities)
    if total < _BY_STEP_FROM_ROWS:
        return
    schema = pa.schema([TABLES["stats"].field(name) for name in WITHOUT_SKETCHES])
    maker = TileMaker(levels_for(steps) if is_large else [])

    def add_tiles(made: Iterator[tuple[str, int, pa.Table]]) -> None:
        for quantity, level, blocks in made:
            file(f"{quantity}.{level}", TILES, "block").add(blocks)
            content["levels"].setdefault(quantity, {})[level] = True

    for rows in _by_step(sources, steps, total):
        written = file(BY_STEP, schema, "step")
        written.add(rows)
        tell(f"{written.rows:,} of {total:,} observations by step")
        add_tiles(maker.add(rows))
    add_tiles(maker.finish())
    content["levels"] = {name: sorted(found) for name, found in content["levels"].items()}


def _by_site(sources: list[Rows], total: int) -> Iterator[pa.Table]:
    """All rows by site, a few sites at a time."""
    names = TABLES["stats"].names
    sites = np.unique(np.concatenate([_NONE, *(_sites_of(each) for each in sources)]))
    at_once = max(1, _CHUNK_ROWS * len(sites) // max(1, total))
    for start in range(0, len(sites), at_once):
        keys = sites[start : start + at_once].tolist()
        found = [_only(each.rows_of(keys, names), "site", keys[0], keys[-1]) for each in sources]
        yield _sorted(pa.concat_tables(found), SORTED_BY["stats"])


def _sites_of(source: Rows) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.unique(source.rows_of(None, ["site"])["site"]).to_numpy()
    return found.astype(np.int64)


def _by_step(sources: list[Rows], steps: npt.NDArray[np.int64], total: int) -> Iterator[pa.Table]:
    """All rows by step without their sketches: as many whole widths of steps as fit a chunk."""
    widths, starts = np.unique(steps // WIDTH, return_index=True)
    at_once = max(1, _CHUNK_ROWS * len(widths) // max(1, total))
    starts = starts[::at_once]
    for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
        first, last = int(steps[start]), int(steps[stop - 1])
        within = [each for each in sources if _meets(each.steps, first, last)]
        found = [
            _only(each.rows_at(first, last, WITHOUT_SKETCHES), "step", first, last)
            for each in within
        ]
        yield _sorted(pa.concat_tables(found), BY_STEP_ORDER)


def _meets(steps: npt.NDArray[np.int64], first: int, last: int) -> bool:
    return bool(np.searchsorted(steps, first, "left") < np.searchsorted(steps, last, "right"))


def _only(rows: pa.Table, column: str, first: int, last: int) -> pa.Table:
    return rows.filter(_between(rows[column], first, last))


def _sorted(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    if not keys:
        return rows
    return rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys]))


def _check_whole(sources: list[Rows], total: int, files: dict[str, GroupedFile]) -> None:
    """A part must hold every row once, or it must not be."""
    problems = [problem for each in sources for problem in each.problems]
    if problems:
        raise DamagedError(problems[0])
    for kind in (ROWS, BY_STEP):
        if kind in files and files[kind].rows != total:
            raise DamagedError(f"{files[kind].rows} rows were read instead of {total}")
