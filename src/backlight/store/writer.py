"""Writes a run's folder: `run.json` and one series of Arrow IPC streams for each table.

Every batch reaches the operating system before `append` returns, so a trainer that is killed loses
only what it had not yet appended. Nothing that exists is overwritten: a run's folder is always new.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa

from backlight.errors import BacklightError
from backlight.schema import RUN_FILE, TABLES, RunInfo
from backlight.store.columns import batch_of
from backlight.store.layout import parse
from backlight.store.packed import Packed
from backlight.store.recorded_flows import RecordedFlows, write_flows
from backlight.store.row_packer import RowPacker
from backlight.store.seal import sealed
from backlight.store.streams import Sink, StreamSeries
from backlight.store.values import StepValues, write_values

# Slashes, control characters, marks that turn the direction of text, halves of characters.
_FORBIDDEN = re.compile(
    "[/\\\\\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_NAME_BYTES = 200
_DEEPEST = 12
_ROWS = {table: pa.struct(list(schema)) for table, schema in TABLES.items()}


def check_name(kind: str, name: str) -> str:
    """Return `name` if it can name a folder, or say in one sentence why it cannot.

    >>> check_name("run", "baseline")
    'baseline'
    """
    if not isinstance(name, str) or not name.strip():
        raise BacklightError(
            f"The {kind} name is {name!r}: give it at least one visible character."
        )
    if _FORBIDDEN.search(name):
        raise BacklightError(
            f"The {kind} name {name!r} has a slash or a control character: "
            "use letters, digits, spaces, '-', '_' or '.'."
        )
    if name.startswith("."):
        raise BacklightError(
            f"The {kind} name {name!r} starts with a dot: put something before it."
        )
    length = len(name.encode())
    if length > _LONGEST_NAME_BYTES:
        raise BacklightError(
            f"The {kind} name is {length} bytes long: use at most {_LONGEST_NAME_BYTES}."
        )
    return name


def create_run_folder(root: Path, project: str, name: str) -> Path:
    """Make a new folder for a run; where the name is taken, `name-2`, `name-3`, … is used."""
    parent = root / check_name("project", project)
    check_name("run", name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return _first_free_folder(parent, name)
    except OSError as error:
        raise BacklightError(
            f"Cannot write runs to {str(parent)!r} ({error.strerror or error}): "
            "pass root= a folder that you can write to."
        ) from None


def _first_free_folder(parent: Path, name: str) -> Path:
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _first_free_segment(path: Path, rank: int) -> int:
    """The number after the last segment: a run that goes on never writes into old files."""
    found = (parse(file.name) for table in TABLES for file in (path / table).glob(f"{rank}-*"))
    return max((source.last for source in found if source is not None), default=-1) + 1


class RunWriter:
    """The only writer of a run's folder, for one rank.

    >>> import tempfile
    >>> from backlight.schema import NOTES
    >>> folder = create_run_folder(Path(tempfile.mkdtemp()), "project", "run")
    >>> writer = RunWriter(folder)
    >>> writer.append("notes", pa.table([[0], ["hello"], [0.0]], schema=NOTES).to_batches()[0])
    >>> writer.close()
    >>> pa.ipc.open_stream(folder / "notes" / "0-0000.arrows").read_all()["text"].to_pylist()
    ['hello']
    """

    def __init__(self, path: Path, *, rank: int = 0) -> None:
        self.path = path
        self.rank = rank
        self.segment = _first_free_segment(path, rank)
        self._other_bytes = 0  # than those in open streams
        self._streams: dict[str, StreamSeries] = {}
        self._packers = {table: RowPacker(schema) for table, schema in TABLES.items()}

    @property
    def bytes_written(self) -> int:
        """How much was written, but for `run.json` and graphs."""
        return self._other_bytes + sum(each.written_bytes for each in self._streams.values())

    def sink_of(self, table: str) -> Sink | None:
        """Where a table's messages go, if there are any yet."""
        stream = self._streams.get(table)
        return None if stream is None else stream.sink

    def write_info(self, info: RunInfo) -> None:
        """Write `run.json`, in one piece: a reader sees the old one or the new one."""
        target = self.path / RUN_FILE
        own = {each.name: getattr(info, each.name) for each in fields(info)}
        draft = target.with_suffix(f".json.{os.getpid()}")
        _write_whole(sealed(json.dumps(_plain(own), indent=1)), target, draft)

    def append(self, table: str, batch: pa.RecordBatch | Packed) -> None:
        """Append rows to a table and hand them to the operating system."""
        stream = self._streams.get(table) or self._open(table)
        stream.append(batch)

    def append_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Append rows that are given as dictionaries; nothing happens where there are none."""
        if not rows:
            return
        packer = self._packers[table]
        batch = packer.pack(rows) if packer.is_able else batch_of(rows, TABLES[table])
        if batch is None:
            # By way of a struct: several times faster than column by column.
            columns = pa.array(rows, _ROWS[table])
            batch = pa.RecordBatch.from_struct_array(columns)
        self.append(table, batch)

    def write_graph(self, signature: str, graph: dict[str, Any]) -> None:
        """Write the graph of one structure, in a file of its own, in one piece."""
        folder = self.path / "graphs"
        folder.mkdir(exist_ok=True)
        target, draft = folder / f"{signature}.json", folder / f"{signature}.{os.getpid()}"
        _write_whole(sealed(json.dumps(graph)), target, draft)

    def write_values(self, step: int, values: StepValues) -> None:
        """Write a step's raw values, in a file of their own."""
        self._other_bytes += write_values(self.path, self.rank, step, values)

    def write_flows(self, step: int, flows: tuple[RecordedFlows, ...]) -> None:
        """Write a step's flows, in a file of their own."""
        self._other_bytes += write_flows(self.path, self.rank, step, flows)

    def close(self) -> None:
        """End every stream. The run stays readable whether or not this is called."""
        streams, self._streams = self._streams, {}
        self._other_bytes += sum(stream.written_bytes for stream in streams.values())
        with ExitStack() as stack:
            for stream in streams.values():
                stack.callback(stream.close)

    def _open(self, table: str) -> StreamSeries:
        self._streams[table] = StreamSeries(
            self.path / table, TABLES[table], rank=self.rank, segment=self.segment
        )
        return self._streams[table]


def _write_whole(text: str, target: Path, draft: Path) -> None:
    """Write a file in one piece, or nothing of it."""
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # a part of it, on a full disk
        raise


def _plain(value: object, depth: int = 0) -> object:
    """What JSON has no word for is written as text: a config may hold anything."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth + 1) for item in value]
    return str(value) if depth < _DEEPEST else "…"
