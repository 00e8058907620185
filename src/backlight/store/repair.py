"""Saves what can be read of damaged files, and puts the damaged ones aside."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import FORMAT_VERSION, RUN_FILE, TABLES, RunInfo
from backlight.store.compact import only_one
from backlight.store.files import check_no_links
from backlight.store.follow import read_table
from backlight.store.layout import Source, list_sources, lost_parts
from backlight.store.merge import HeldRows, Tell, merge, nobody
from backlight.store.messages import DamagedError
from backlight.store.part_writer import remove_part
from backlight.store.parts import Part
from backlight.store.runs import readable_info, salvaged_info, status_of
from backlight.store.stream_follower import StreamFollower, conform
from backlight.store.streams import is_open_elsewhere
from backlight.store.writer import RunWriter

DAMAGED_FOLDER: Final = "damaged"


def repair(path: Path, *, tell: Tell = nobody) -> list[str]:
    """Repair the run in `path`; one sentence for each file that was damaged."""
    said: list[str] = []
    try:
        info = readable_info(path)
        if info is None:
            said.append(_renew_info(path))
        elif status_of(path, info) == "live":
            raise BacklightError(f"The run {str(path)!r} is still being written: end it first.")
        with only_one(path):
            for table in TABLES:
                said += _repair_table(path / table, tell)
    except OSError as error:
        raise BacklightError(
            f"Cannot repair {str(path)!r} ({error.strerror or error}): nothing more is lost; "
            "make room or ask for the right to write there, and try again."
        ) from None
    return said


def _renew_info(path: Path) -> str:
    """Make `run.json` anew: of what can be read of it, and of the run's tables."""
    streams = [file for table in TABLES for file in (path / table).glob("*.arrows")]
    if any(map(is_open_elsewhere, streams)):
        raise BacklightError(f"The run {str(path)!r} is still being written: end it first.")
    check_no_links(path)
    file = path / RUN_FILE
    said = salvaged_info(file)
    started = read_table(path / "steps", TABLES["steps"], ["started_at"])["started_at"]
    created_at = pc.min(started).as_py() or file.stat().st_mtime
    known: dict[str, Any] = {"id": path.name, "created_at": created_at, **said}
    known |= {"project": path.parent.name, "name": path.name}
    # Nobody writes it, which can be told of this machine's processes only.
    known |= {"host": platform.node(), "pid": 0, "pid_started": 0.0}
    aside = path / DAMAGED_FOLDER
    aside.mkdir(exist_ok=True)
    (aside / RUN_FILE).write_bytes(file.read_bytes())
    RunWriter(path).write_info(RunInfo(format=FORMAT_VERSION, **known))
    return (
        f"{RUN_FILE} was damaged: {len(said)} of its entries were saved, the rest is told from the "
        f"run's tables, and the file is now {DAMAGED_FOLDER}/{RUN_FILE}."
    )


def _repair_table(folder: Path, tell: Tell) -> list[str]:
    said = []
    for source in list_sources(folder).current:
        tell(f"{folder.name}/{source.name}")
        saved = _saved_part(folder, source) if source.is_part else _saved_stream(folder, source)
        if saved is not None:
            said.append(_replace(folder, source, saved))
    for source in lost_parts(folder):
        remove_part(folder, source)
        said.append(f"{folder.name}/{source.name} is missing: nothing of it could be saved.")
    return said


def _saved_stream(folder: Path, source: Source) -> pa.Table | None:
    """The rows of a damaged stream that can be read; None of one that is whole."""
    follower = StreamFollower(folder / source.name, TABLES[folder.name])
    batches = follower.take()
    if follower.problem is None and not follower.torn_bytes:
        return None
    return pa.Table.from_batches(batches, TABLES[folder.name])


def _saved_part(folder: Path, source: Source) -> pa.Table | None:
    names = TABLES[folder.name].names
    try:
        part = Part(folder, source)
        return None if part.is_whole() else part.rows_of(None, names)
    except DamagedError:
        return _by_page_checksums(folder / source.name, TABLES[folder.name])


def _by_page_checksums(path: Path, schema: pa.Schema) -> pa.Table:
    """The row groups of a Parquet file without its manifest whose own checksums are right."""
    import pyarrow.parquet as pq

    tables: list[Any] = [schema.empty_table()]
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError):
        return tables[0]
    with file:
        for group in range(file.metadata.num_row_groups):
            try:
                batches = file.read_row_group(group).to_batches()
                tables.append(pa.Table.from_batches([conform(b, schema) for b in batches], schema))
            except (pa.ArrowException, OSError, ValueError, DamagedError):
                continue
    return pa.concat_tables(tables)


def _replace(folder: Path, source: Source, saved: pa.Table) -> str:
    aside = folder.parent / DAMAGED_FOLDER / folder.name
    aside.mkdir(parents=True, exist_ok=True)
    damaged = folder / source.name
    target = source.renewed() if source.is_part else Source(*_span(source), is_part=True)
    merge(folder, target, [HeldRows(saved)])
    # From here on the new part counts, whether or not the old file is still there.
    damaged.replace(aside / source.name)
    if source.is_part:
        remove_part(folder, source)
    return (
        f"{folder.name}/{source.name} was damaged: {saved.num_rows} rows were saved, and the file "
        f"is now {DAMAGED_FOLDER}/{folder.name}/{source.name}."
    )


def _span(source: Source) -> tuple[int, int, int]:
    return source.rank, source.first, source.last
