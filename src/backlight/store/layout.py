"""The files of a table: the streams that are written, and the parts that they are compacted to.

`<table>/<rank>-<segment>.arrows` is a stream. `<table>/<rank>-<first>-<last>.parquet` is a part: it
holds all rows of the segments from first to last, and from the moment it has that name they and all
smaller parts inside it count no more, whether or not they are still there. A part that is made
anew has a generation too, `<rank>-<first>-<last>.<generation>.parquet`, and the newest counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_STREAM: Final = re.compile(r"(\d{1,9})-(\d{1,9})\.arrows")
_PART: Final = re.compile(r"(\d{1,9})-(\d{1,9})-(\d{1,9})(?:\.(\d{1,9}))?\.parquet")
_LOOKS: Final = 20

PARTS_FOLDER: Final = "parts"
"""What each part holds, and the checksums of its files."""

BY_STEP_FOLDER: Final = "by_step"
"""The rows of large parts of `stats` once more: without sketches, sorted by step."""

TILES_FOLDER: Final = "tiles"
"""For heatmaps of large parts: each statistic's extreme over blocks of steps."""

DRAFT: Final = ".draft-"
"""What the name of a file begins with until it is whole."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Segments of one rank, from first to last: as one stream, or compacted to one part.

    >>> Source(0, 3, 3).name, Source(0, 0, 3, is_part=True).name
    ('0-0003.arrows', '0-0000-0003.parquet')
    """

    rank: int
    first: int
    last: int
    is_part: bool = False
    generation: int = 0

    @property
    def stem(self) -> str:
        """The name without its ending."""
        if self.is_part:
            generation = f".{self.generation}" if self.generation else ""
            return f"{self.rank}-{self.first:04}-{self.last:04}{generation}"
        return f"{self.rank}-{self.first:04}"

    @property
    def name(self) -> str:
        """The name of the file in the table's folder."""
        return f"{self.stem}.{'parquet' if self.is_part else 'arrows'}"

    def covers(self, other: Source) -> bool:
        """Whether the rows of the other are among this one's."""
        inside = self.first <= other.first and other.last <= self.last
        return self.is_part and self.rank == other.rank and inside and self != other

    def renewed(self) -> Source:
        """The part that takes this one's place."""
        return replace(self, generation=self.generation + 1)


def parse(name: str) -> Source | None:
    """The source that a file's name says, or None.

    >>> parse("1-0002.arrows"), parse("notes.txt")
    (Source(rank=1, first=2, last=2, is_part=False, generation=0), None)
    """
    if match := _STREAM.fullmatch(name):
        source = Source(int(match[1]), int(match[2]), int(match[2]))
    elif match := _PART.fullmatch(name):
        first, last, generation = int(match[2]), int(match[3]), int(match[4] or 0)
        source = Source(int(match[1]), first, last, is_part=True, generation=generation)
    else:
        return None
    # One file for each source: `0-1.arrows` is not `0-0001.arrows`.
    return source if source.name == name and source.first <= source.last else None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a table's folder holds: the sources that count, in order, and those that do not."""

    current: tuple[Source, ...]
    superseded: tuple[Source, ...]

    @property
    def streams(self) -> list[Source]:
        """The sources that are streams."""
        return [source for source in self.current if not source.is_part]

    @property
    def parts(self) -> list[Source]:
        """The sources that are parts."""
        return [source for source in self.current if source.is_part]


def list_sources(folder: Path) -> Listing:
    """What is in a table's folder now.

    A folder that is read while a part takes the place of its streams can show neither, so it is
    read until it looks the same twice.
    """
    found = _scan(folder)
    for _ in range(_LOOKS):
        again = _scan(folder)
        if again == found:
            break
        found = again
    return arrange(found)


def lost_parts(folder: Path) -> list[Source]:
    """The parts of a table that are told of, and whose rows are nowhere."""
    # First what is told and then what is there: a part is told of before it takes its place.
    told = _told(folder)
    if not told:
        return []
    listing = list_sources(folder)
    there = {*listing.current, *listing.superseded}
    return [
        source
        for source in sorted(told - there)
        if not any(_overlap(source, each) for each in listing.current)
    ]


def _told(folder: Path) -> set[Source]:
    start = f"{folder.name}-"
    try:
        names = [file.name for file in (folder.parent / PARTS_FOLDER).iterdir()]
    except OSError:
        return set()
    stems = [n[len(start) : -5] for n in names if n.startswith(start) and n.endswith(".json")]
    return {source for stem in stems if (source := parse(f"{stem}.parquet")) is not None}


def arrange(found: Iterable[Source]) -> Listing:
    """Tell the sources that count from those whose rows are in a larger part.

    >>> streams, part = [Source(0, 0, 0), Source(0, 1, 1)], Source(0, 0, 0, is_part=True)
    >>> [source.name for source in arrange([*streams, part]).current]
    ['0-0000-0000.parquet', '0-0001.arrows']
    """
    parts: list[Source] = []
    largest_first = sorted(
        (source for source in found if source.is_part),
        key=lambda source: (source.first - source.last, -source.generation, source),
    )
    for source in largest_first:
        # Parts that overlap are not ours; the first of them counts, so that nothing doubles.
        if not any(_overlap(source, part) for part in parts):
            parts.append(source)
    streams = [s for s in found if not s.is_part and not any(p.covers(s) for p in parts)]
    current = tuple(sorted([*parts, *streams]))
    return Listing(current, tuple(sorted(set(found) - set(current))))


def _overlap(one: Source, other: Source) -> bool:
    return one.rank == other.rank and one.first <= other.last and other.first <= one.last


def _scan(folder: Path) -> set[Source]:
    try:
        # Not through links: a run shows nothing that is not in its folder.
        if folder.is_symlink():
            return set()
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return set()
    return {source for name in names if (source := parse(name)) is not None}
