"""What the files of a run take, by what they hold."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backlight.schema import TABLES
from backlight.store.layout import (
    BY_STEP_FOLDER,
    PARTS_FOLDER,
    TILES_FOLDER,
    Source,
    list_sources,
)
from backlight.store.messages import DamagedError
from backlight.store.parts import Part
from backlight.store.stream_follower import StreamFollower

KINDS: Final = {
    "streams": "what was recorded and is not compacted yet",
    "statistics": "the compacted statistics and sketches",
    "by step": "the statistics once more, by step",
    "tiles": "what heatmaps are made of",
    "values": "raw values of samples",
    "flows": "flows between layers",
    "graphs": "dependency graphs",
    "damaged": "what `backlight repair` put aside",
    "rest": "all else",
}

_FOLDERS: Final = {
    "stats": "statistics",
    BY_STEP_FOLDER: "by step",
    TILES_FOLDER: "tiles",
    "values": "values",
    "flows": "flows",
    "graphs": "graphs",
    "damaged": "damaged",
    PARTS_FOLDER: "rest",
}


@dataclass(frozen=True)
class Usage:
    """How many bytes each kind of content takes, and how many observations there are."""

    size_bytes: dict[str, int]
    observations: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self.size_bytes.values())

    @property
    def bytes_per_observation(self) -> float | None:
        """What an observation takes with its sketch, and all that is derived from it."""
        kinds = ("streams", "statistics", "by step", "tiles")
        own = sum(self.size_bytes[kind] for kind in kinds)
        return own / self.observations if self.observations else None


def measure(path: Path) -> Usage:
    """Measure the run in `path`."""
    sizes = dict.fromkeys(KINDS, 0)
    for parent, _, names in os.walk(path):
        relative = Path(parent).relative_to(path)
        folder = relative.parts[0] if relative.parts else ""
        for name in names:
            kind = _FOLDERS.get(folder, "rest")
            if folder in TABLES and name.endswith(".arrows"):
                kind = "streams"
            sizes[kind] += _size(Path(parent) / name)
    sources = list_sources(path / "stats").current
    return Usage(sizes, sum(_rows(path / "stats", source) for source in sources))


def _rows(folder: Path, source: Source) -> int:
    """How many rows can be read; one file after the other, so that any run fits into memory."""
    if not source.is_part:
        batches = StreamFollower(folder / source.name, TABLES[folder.name]).take()
        return sum(batch.num_rows for batch in batches)
    try:
        return Part(folder, source).rows
    except DamagedError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
