"""Writes the Parquet files of a part and its manifest; a part is there once its rows' file is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from backlight.schema import FORMAT_VERSION
from backlight.store.layout import DRAFT, TILES_FOLDER, Source
from backlight.store.manifest import (
    BY_STEP,
    ROWS,
    SKETCHES,
    manifest_path,
    manifest_text,
    part_path,
)
from backlight.store.parts import chunk_range, footer_start

GROUP_ROWS: Final = 1 << 15
"""The rows of a row group: what one question reads at least."""

_FEW_GROUPS: Final = 256
_ZSTD_LEVEL: Final = 3


def group_rows(rows: int) -> int:
    """How many rows a row group has that are read by site: few, as long as that makes few groups.

    >>> group_rows(500_000), group_rows(50_000_000)
    (8192, 32768)
    """
    return GROUP_ROWS if rows > _FEW_GROUPS * GROUP_ROWS else max(1, GROUP_ROWS // 4)


class GroupedFile:
    """A Parquet file that is written in row groups of equal size, sorted by `key`."""

    def __init__(
        self, path: Path, schema: pa.Schema, *, key: str | None, group_rows: int | None = None
    ) -> None:
        import pyarrow.parquet as pq

        self._target = path
        path.parent.mkdir(exist_ok=True)
        self._draft = path.with_name(f"{DRAFT}{path.name}")
        self._key = key
        self._group_rows = group_rows or GROUP_ROWS
        self.rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._groups: dict[str, list[int]] = {"rows": [], "low": [], "high": []}
        self._writer = pq.ParquetWriter(self._draft, schema, **_options(schema))

    def add(self, table: pa.Table) -> None:
        """Add rows that do not sort before those that were added earlier."""
        self.rows += table.num_rows
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        if self._waiting_rows >= self._group_rows:
            whole = pa.concat_tables(self._waiting)
            start = 0
            while whole.num_rows - start >= self._group_rows:
                self._write(whole.slice(start, self._group_rows))
                start += self._group_rows
            self._waiting = [whole.slice(start)]
            self._waiting_rows = whole.num_rows - start

    def finish(self) -> dict[str, Any]:
        """End the draft and force it to the disk; the answer describes it."""
        if self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        self._writer.close()
        sync(self._draft)
        return {**describe_file(self._draft), **self._groups}

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._writer.close()
        self._draft.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give the file its name."""
        self._draft.replace(self._target)

    def _write(self, group: pa.Table) -> None:
        group = group.combine_chunks()
        self._writer.write_table(group, row_group_size=self._group_rows)
        self._groups["rows"].append(group.num_rows)
        ends = (0, 0) if self._key is None else (group[self._key][0], group[self._key][-1])
        self._groups["low"].append(int(str(ends[0])))
        self._groups["high"].append(int(str(ends[1])))


def _options(schema: pa.Schema) -> dict[str, Any]:
    """How each column is encoded: by what makes it smallest and any reader still reads."""
    words = [_leaf(each) for each in schema if pa.types.is_string(each.type)]
    words += [_leaf(each) for each in schema if each.name in ("shape", "aliases")]
    encodings = {_leaf(each): _encoding(each) for each in schema if _leaf(each) not in words}
    return {
        "compression": "zstd",
        "compression_level": _ZSTD_LEVEL,
        "use_dictionary": words,
        "column_encoding": {name: each for name, each in encodings.items() if each},
        "write_page_checksum": True,
        "write_statistics": [n for n in ("site", "quantity", "step", "name") if n in schema.names],
    }


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def _encoding(field: pa.Field) -> str:
    if pa.types.is_floating(field.type) or field.name == "sketch_counts":
        return "BYTE_STREAM_SPLIT"
    return "DELTA_BINARY_PACKED" if pa.types.is_integer(field.type) else ""


def describe_file(path: Path) -> dict[str, Any]:
    """The size and the checksums of a Parquet file."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    size, start = path.stat().st_size, footer_start(path)
    with path.open("rb") as file:

        def checksum(start: int, length: int) -> int:
            return crc32(os.pread(file.fileno(), length, start))

        return {
            "bytes": size,
            "footer": start,
            "footer_crc": checksum(start, size - start),
            "crcs": [
                _column_crcs(metadata.row_group(i), checksum)
                for i in range(metadata.num_row_groups)
            ],
        }


def _column_crcs(group: Any, checksum: Callable[[int, int], int]) -> list[int]:
    return [checksum(*chunk_range(group.column(i))) for i in range(group.num_columns)]


def publish_part(
    table_folder: Path, source: Source, files: dict[str, GroupedFile], content: dict[str, Any]
) -> None:
    """Put a part in its place: the file with its rows comes last, and makes the others count."""
    described = {name: file.finish() for name, file in files.items()}
    for name, file in files.items():
        if name != ROWS:
            file.publish()
    # Apart from the others: a reader that does not know them reads the part without them.
    merged = {name: described.pop(name) for name in files if name.startswith(f"{SKETCHES}.")}
    manifest = {
        "format": list(FORMAT_VERSION),
        "table": table_folder.name,
        "part": source.stem,
        **content,
        "files": described,
        SKETCHES: merged,
    }
    write_manifest(table_folder, source, manifest)
    files[ROWS].publish()
    sync(table_folder)


def write_manifest(table_folder: Path, source: Source, manifest: dict[str, Any]) -> None:
    """Write a part's manifest, in one piece."""
    target = manifest_path(table_folder, source)
    target.parent.mkdir(exist_ok=True)
    draft = target.with_name(f"{DRAFT}{target.name}")
    draft.write_text(manifest_text(manifest), encoding="utf-8")
    sync(draft)
    draft.replace(target)


def remove_part(table_folder: Path, source: Source) -> None:
    """Remove a part whose rows are elsewhere; the file with its rows first."""
    (table_folder / source.name).unlink(missing_ok=True)
    if table_folder.name == "stats":
        part_path(table_folder, source, BY_STEP).unlink(missing_ok=True)
        tiles = table_folder.parent / TILES_FOLDER
        for tile in [*tiles.glob(f"{source.stem}.*.*.parquet")]:
            tile.unlink(missing_ok=True)
    manifest_path(table_folder, source).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
