"""Compacts a run: its streams become Parquet parts, small parts become larger ones.

It needs no word from the writer and none from readers: it takes only streams that nobody writes any
more, a part counts from the moment its file has its name, and what it replaces is removed after
that. Killed at any moment, it has lost nothing and doubled nothing; the next one cleans up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from backlight.errors import BacklightError
from backlight.schema import TABLES, RunInfo
from backlight.store.files import check_no_links, open_plain
from backlight.store.layout import (
    BY_STEP_FOLDER,
    DRAFT,
    PARTS_FOLDER,
    TILES_FOLDER,
    Source,
    list_sources,
)
from backlight.store.manifest import manifest_path
from backlight.store.merge import HeldRows, Rows, Tell, merge, nobody
from backlight.store.messages import END, DamagedError
from backlight.store.part_writer import remove_part
from backlight.store.parts import Part
from backlight.store.runs import read_info, status_of
from backlight.store.stream_follower import StreamFollower
from backlight.store.streams import is_open_elsewhere

_LOCK_FILE: Final = ".compacting"
_BATCH_BYTES: Final = 192 << 20
_FEWEST_PARTS: Final = 4
_SILENT_SECS: Final = 3600.0


@dataclass
class Compaction:
    """What a compaction did."""

    parts: int = 0
    streams: int = 0
    problems: list[str] = field(default_factory=list)


def compact(path: Path, *, tell: Tell = nobody) -> Compaction:
    """Compact the run in `path`, as far as its streams are closed; `tell` hears how far it is.

    Raises BacklightError where it cannot be done, such as in a folder that may not be written to.
    """
    info = read_info(path)
    done = Compaction()
    try:
        with only_one(path):
            is_over = status_of(path, info) != "live"
            for table in TABLES:
                if (path / table).is_dir():
                    _compact_table(path / table, done, info, is_over=is_over, tell=tell)
    except OSError as error:
        raise BacklightError(
            f"Cannot compact {str(path)!r} ({error.strerror or error}): nothing is lost; "
            "make room or ask for the right to write there, and try again."
        ) from None
    return done


def uncompacted_bytes(path: Path) -> int:
    """How many bytes of a run's statistics are in streams that could be compacted."""
    folder = path / "stats"
    is_over = status_of(path, read_info(path)) != "live"
    return sum(_size(folder / source.name) for source in _closed(folder, is_over=is_over))


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Keep a second compaction of the same run out; a lock ends with the process that holds it."""
    check_no_links(path)
    with os.fdopen(open_plain(path / _LOCK_FILE, os.O_WRONLY | os.O_CREAT), "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except BlockingIOError:
            raise BacklightError(
                f"The run {str(path)!r} is being compacted by another process: wait for it."
            ) from None
        yield


def _compact_table(
    folder: Path, done: Compaction, info: RunInfo, *, is_over: bool, tell: Tell
) -> None:
    _clean(folder)
    streams = len(_closed(folder, is_over=is_over))
    for group in _groups(folder, is_over=is_over):
        tell(f"{folder.name}: {streams} streams are left")
        _compact_streams(folder, group, done, info)
        streams -= len(group)
    _merge_parts(folder, done, is_over=is_over, tell=tell)


def _clean(folder: Path) -> None:
    """Remove what an earlier compaction, killed in its middle, has left."""
    for source in list_sources(folder).superseded:
        _remove(folder, source)
    run = folder.parent
    for place in (folder, run / PARTS_FOLDER, run / BY_STEP_FOLDER, run / TILES_FOLDER):
        with suppress(OSError):
            for draft in place.glob(f"{DRAFT}*"):
                draft.unlink(missing_ok=True)


def _remove(folder: Path, source: Source) -> None:
    if not source.is_part:
        (folder / source.name).unlink(missing_ok=True)
        return
    remove_part(folder, source)


def _closed(folder: Path, *, is_over: bool) -> list[Source]:
    """The streams that nobody writes any more."""
    return [s for s in list_sources(folder).streams if _is_closed(folder / s.name, is_over=is_over)]


def _is_closed(path: Path, *, is_over: bool) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-len(END), os.SEEK_END)
            if file.read() == END:
                return True
        silent_secs = time.time() - path.stat().st_mtime
    except OSError:
        return False
    if not is_over or is_open_elsewhere(path):
        return False
    # A lock does not always reach another machine, and a silent writer can wake up.
    return silent_secs > _SILENT_SECS or _is_local(path)


def _is_local(path: Path) -> bool:
    """Whether the run was written on this machine, where locks tell who is still there."""
    import platform

    return read_info(path.parent.parent).host == platform.node()


def _groups(folder: Path, *, is_over: bool) -> Iterator[list[Source]]:
    """Closed streams of a rank that follow one another, as many as are sorted at once."""
    closed = set(_closed(folder, is_over=is_over))
    group: list[Source] = []
    size_bytes = 0
    for source in list_sources(folder).current:
        own_bytes = _size(folder / source.name)
        is_next = bool(group) and source.rank == group[-1].rank and source in closed
        if not is_next or size_bytes + own_bytes > _BATCH_BYTES:
            if group:
                yield group
            group, size_bytes = [], 0
        if source in closed:
            group.append(source)
            size_bytes += own_bytes
    if group:
        yield group


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _compact_streams(folder: Path, group: list[Source], done: Compaction, info: RunInfo) -> None:
    """Make parts of streams; a damaged one is left as it is, for `backlight repair`."""
    schema = TABLES[folder.name]
    whole: list[Source] = []
    batches: list[pa.RecordBatch] = []
    for source in [*group, None]:
        follower = StreamFollower(folder / source.name, schema) if source else None
        taken = follower.take() if follower else []
        problem = _problem(follower, info) if follower else None
        if source is not None and follower is not None and problem is None:
            whole.append(source)
            batches += taken
            continue
        if problem is not None:
            done.problems.append(problem)
        if whole:
            _replace(folder, whole, batches)
            done.parts, done.streams = done.parts + 1, done.streams + len(whole)
        whole, batches = [], []


def _problem(follower: StreamFollower, info: RunInfo) -> str | None:
    """Why a stream must not be replaced by what can be read of it."""
    if follower.problem is None and follower.torn_bytes and info.ended is not None:
        return f"{str(follower.path)!r} ends in the middle of a message, though its run has ended."
    return follower.problem


def _replace(folder: Path, streams: list[Source], batches: list[pa.RecordBatch]) -> None:
    target = Source(streams[0].rank, streams[0].first, streams[-1].last, is_part=True)
    merge(folder, target, [HeldRows(pa.Table.from_batches(batches, TABLES[folder.name]))])
    for source in streams:
        _remove(folder, source)


def _merge_parts(folder: Path, done: Compaction, *, is_over: bool, tell: Tell) -> None:
    """Merge parts of a rank, so that a run of any length has few of them."""
    current = list_sources(folder).current
    for rank in sorted({source.rank for source in current}):
        mine = [source for source in current if source.rank == rank]
        # Only parts between which no stream is: a part stands for all segments of its range.
        parts: list[Source] = []
        for source in reversed(mine):
            if not source.is_part and parts:
                break
            if source.is_part:
                parts.insert(0, source)
        _merge_last(folder, parts, done, fewest=2 if is_over else _FEWEST_PARTS, tell=tell)


def _merge_last(
    folder: Path, sources: list[Source], done: Compaction, *, fewest: int, tell: Tell
) -> None:
    """Merge the last parts, each of which is not much larger than all that follow it."""
    parts: list[Part] = []
    for source in reversed(sources):
        try:
            part = Part(folder, source)
        except DamagedError as damage:
            done.problems.append(f"{str(manifest_path(folder, source))!r} is damaged: {damage}.")
            break
        if parts and part.rows > 2 * sum(each.rows for each in parts):
            break
        parts.insert(0, part)
    if len(parts) < fewest:
        return
    target = Source(
        parts[0].source.rank, parts[0].source.first, parts[-1].source.last, is_part=True
    )
    inputs: list[Rows] = list(parts)
    try:
        merge(folder, target, inputs, tell=tell)
    except DamagedError as damage:
        done.problems.append(f"The parts of {str(folder)!r} cannot be merged: {damage}")
        return
    done.parts += 1
    for part in parts:
        _remove(folder, part.source)
