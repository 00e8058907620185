"""Follows a table of a run: its streams as they grow, and its parts as they take their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import TABLES
from backlight.store.layout import Source, list_sources, lost_parts
from backlight.store.messages import DamagedError
from backlight.store.parts import Part
from backlight.store.stream_follower import StreamFollower as StreamFollower

_LOOKS: Final = 10
_LARGEST_PIECE_ROWS: Final = 1 << 17


@dataclass(frozen=True)
class RankBatch:
    """A batch and the rank that wrote it."""

    rank: int
    batch: pa.RecordBatch


@dataclass
class Change:
    """What is new in a table since the last look."""

    batches: list[tuple[Source, pa.RecordBatch]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    gone: list[Source] = field(default_factory=list)  # their rows are in one of the parts

    def __bool__(self) -> bool:
        return bool(self.batches or self.parts or self.gone)

    def __iter__(self) -> Iterator[RankBatch]:
        """Every row that is new, and those that were read before where they are now in a part."""
        for part in self.parts:
            names = TABLES[part.table].names
            for batch in part.rows_of(None, names).to_batches():
                yield RankBatch(part.source.rank, batch)
        yield from (RankBatch(source.rank, batch) for source, batch in self.batches)


class TableFollower:
    """Follows every source of every rank of one table."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        self.schema = schema
        self._streams: dict[Source, StreamFollower] = {}
        self._parts: dict[Source, Part | None] = {}
        self._part_problems: dict[Source, str] = {}

    def take(self) -> Change:
        """Every batch that has become whole since the last call, and what was compacted."""
        change = Change()
        for _ in range(_LOOKS):
            if self._look(change):
                break
        return change

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that cannot be read to its end."""
        streams = [stream.problem for stream in self._streams.values() if stream.problem]
        parts = [p for part in self._parts.values() if part is not None for p in part.problems]
        is_link = self.folder.is_symlink()
        links = [f"{str(self.folder)!r} is a link: what it leads to is not shown."] * is_link
        lost = [
            f"{str(self.folder / source.name)!r} is missing: its rows are lost."
            for source in lost_parts(self.folder)
        ]
        return [*links, *lost, *streams, *self._part_problems.values(), *parts]

    @property
    def torn(self) -> list[str]:
        """One sentence for each stream that stops in the middle of a message, or has none."""
        streams = self._streams.values()
        empty = [
            f"{str(stream.path)!r} is empty: what was written to it is lost."
            for stream in streams
            if stream.is_empty
        ]
        return empty + [
            f"{str(stream.path)!r} ends in the middle of a message: its last {stream.torn_bytes} "
            "bytes are not shown."
            for stream in streams
            if stream.torn_bytes and not stream.problem
        ]

    def _look(self, change: Change) -> bool:
        """Add what is new; whether the folder stayed as it was meanwhile."""
        listing = list_sources(self.folder)
        is_calm = True
        for source in listing.parts:
            if source not in self._parts:
                is_calm = self._open_part(source, change) and is_calm
        for known in [*self._streams, *self._parts]:
            if any(part.covers(known) for part in listing.parts):
                change.gone.append(known)
                change.batches = [each for each in change.batches if each[0] != known]
                change.parts = [part for part in change.parts if part.source != known]
                self._streams.pop(known, None)
                self._parts.pop(known, None)
                self._part_problems.pop(known, None)
        for source in listing.streams:
            if source not in self._streams:
                follower = StreamFollower(self.folder / source.name, self.schema)
                self._streams = dict(sorted([*self._streams.items(), (source, follower)]))
            follower = self._streams[source]
            change.batches += [(source, batch) for batch in follower.take()]
            is_calm = is_calm and not follower.is_missing
        return is_calm

    def _open_part(self, source: Source, change: Change) -> bool:
        """Open a part; False where it is there no more, for a larger one is."""
        part, problem = None, ""
        try:
            part = Part(self.folder, source)
        except DamagedError as damage:
            problem = str(damage)
        if not (self.folder / source.name).exists():
            return False
        if part is None:
            self._parts[source] = None
            self._part_problems[source] = (
                f"{str(self.folder / source.name)!r} cannot be read ({problem}): "
                "`backlight repair` can make its manifest anew."
            )
            return True
        self._parts[source] = part
        change.parts.append(part)
        return True


def read_table(folder: Path, schema: pa.Schema, columns: list[str]) -> pa.Table:
    """Some columns of all rows of a table, rank by rank in the order of its segments.

    >>> schema = pa.schema([pa.field("text", pa.utf8())])
    >>> read_table(Path("no/such/run/notes"), schema, ["text"]).num_rows
    0
    """
    change = TableFollower(folder, schema).take()
    found = [(source, pa.Table.from_batches([batch])) for source, batch in change.batches]
    found += [(part.source, part.rows_of(None, columns)) for part in change.parts]
    chosen = pa.schema([schema.field(name) for name in columns])
    tables = [table.select(columns) for _, table in sorted(found, key=lambda pair: pair[0])]
    return pa.concat_tables([chosen.empty_table(), *tables])


def latest_step(folder: Path, schema: pa.Schema) -> int:
    """The last step that a table has rows of; -1 where it has none.

    >>> latest_step(Path("no/such/run/steps"), pa.schema([pa.field("step", pa.int64())]))
    -1
    """
    change = TableFollower(folder, schema).take()
    steps = [int(part.steps[-1]) for part in change.parts if len(part.steps)]
    steps += [pc.max(batch.column("step")).as_py() for _, batch in change.batches]
    return max(steps, default=-1)


class GrowingTable:
    """Rows that only ever grow, in few pieces however many batches they came in.

    Queries pay for each piece. A piece is merged with the one before it while that is not much
    larger, so a row is copied a few times at most; and never past a size that would be felt.

    >>> table = GrowingTable(pa.schema([pa.field("step", pa.int64())]))
    >>> for step in range(1000):
    ...     table.append([pa.record_batch({"step": [step]})])
    >>> table.read().num_rows, table.read()["step"].num_chunks < 12
    (1000, True)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.pieces: list[pa.RecordBatch] = []

    def append(self, batches: list[pa.RecordBatch]) -> None:
        """Add rows at the end."""
        for batch in batches:
            self.pieces.append(batch)
            while len(self.pieces) > 1 and self._is_worth_merging(*self.pieces[-2:]):
                self.pieces[-2:] = [pa.concat_batches(self.pieces[-2:])]

    def read(self) -> pa.Table:
        """The rows so far; what is appended later does not change it."""
        return pa.Table.from_batches(self.pieces, self.schema)

    @staticmethod
    def _is_worth_merging(older: pa.RecordBatch, newer: pa.RecordBatch) -> bool:
        is_small: bool = older.num_rows + newer.num_rows <= _LARGEST_PIECE_ROWS
        return is_small and bool(older.num_rows <= 2 * newer.num_rows)
