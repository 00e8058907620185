"""A part's manifest: which rows are in which row group of which file, and all checksums."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from backlight.schema import QUANTITIES
from backlight.store.files import check_plain, read_plain
from backlight.store.layout import BY_STEP_FOLDER, PARTS_FOLDER, TILES_FOLDER, Source
from backlight.store.messages import DamagedError

_LARGEST_MANIFEST_BYTES: Final = 1 << 28
_LARGEST_GROUP_ROWS: Final = 1 << 22
_MOST_ROWS_PER_BYTE: Final = 16
_MOST: Final = 1 << 53

ROWS: Final = "rows"
BY_STEP: Final = "by_step"
SKETCHES: Final = "sketches"
"""`sketches.<level>`: a part's sketches, merged over blocks of steps."""


def manifest_path(table_folder: Path, source: Source) -> Path:
    """Where the manifest of a table's part is."""
    return table_folder.parent / PARTS_FOLDER / f"{table_folder.name}-{source.stem}.json"


def part_path(table_folder: Path, source: Source, file: str) -> Path:
    """Where a file of a table's part is: its rows, `by_step`, or one of its tiles.

    >>> source = Source(0, 0, 3, is_part=True)
    >>> part_path(Path("run/stats"), source, "grad.64").as_posix()
    'run/tiles/0-0000-0003.grad.64.parquet'
    """
    if file == ROWS:
        return table_folder / source.name
    if file == BY_STEP:
        return table_folder.parent / BY_STEP_FOLDER / source.name
    quantity, _, level = file.partition(".")
    if quantity not in (*QUANTITIES, SKETCHES) or not level.isdigit():
        raise DamagedError("its manifest names a file that no part has")
    return table_folder.parent / TILES_FOLDER / f"{source.stem}.{file}.parquet"


def manifest_text(content: dict[str, Any]) -> str:
    """A manifest as it is written: with its own checksum.

    >>> read_manifest_text(manifest_text({"rows": 3}))
    {'rows': 3}
    """
    text = json.dumps(content, separators=(",", ":"))
    return f'{{"crc32":{crc32(text.encode())},"part":{text}}}\n'


def read_manifest(path: Path) -> dict[str, Any]:
    """What a manifest says, where that can be; raises DamagedError or OSError."""
    check_plain(path)
    try:
        described = read_manifest_text(read_plain(path, _LARGEST_MANIFEST_BYTES).decode())
    except (ValueError, RecursionError):
        raise DamagedError("its manifest is not as it was written") from None
    try:
        _check(described)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
        raise DamagedError("its manifest says what cannot be") from None
    return described


def _check(described: dict[str, Any]) -> None:
    """Whoever made it: nothing in it may cost more than the files that it is about."""
    files, rows = described["files"], described["rows"]
    for file in (*files.values(), *described.get(SKETCHES, {}).values()):
        _check_file(file)
    for name in (ROWS, *(each for each in (BY_STEP,) if each in files)):
        _must(sum(files[name]["rows"]) == rows)
    last = -1
    for first, count, distance in described["steps"]:
        _must(_are_whole([first, count, distance]) and first > last and count > 0 < distance)
        last = first + (count - 1) * distance
    _must(last < _MOST and sum(count for _, count, _ in described["steps"]) <= rows)
    _must(all(isinstance(each, str) for each in described["quantities"]))
    _must(all(_are_whole(levels) for levels in described["levels"].values()))


def _check_file(file: dict[str, Any]) -> None:
    rows, groups = file["rows"], len(file["rows"])
    _must(_are_whole([file["bytes"], file["footer"], *rows]) and file["footer"] <= file["bytes"])
    _must(max(rows, default=0) <= _LARGEST_GROUP_ROWS)
    _must(sum(rows) <= file["bytes"] * _MOST_ROWS_PER_BYTE)
    _must(_are_whole(map(abs, [*file["low"], *file["high"]])))
    _must(len(file["low"]) == len(file["high"]) == len(file["crcs"]) == groups)


def _are_whole(numbers: Iterable[object]) -> bool:
    return all(type(each) is int and 0 <= each < _MOST for each in numbers)


def _must(is_so: bool) -> None:
    if not is_so:
        raise ValueError


def read_manifest_text(text: str) -> dict[str, Any]:
    """What a manifest says; anything else than what was written is damaged."""
    head, mark, rest = text.partition(',"part":')
    content = rest.removesuffix("}\n")
    if not mark or not rest.endswith("}\n") or head != f'{{"crc32":{crc32(content.encode())}':
        raise DamagedError("its manifest is not as it was written")
    described = json.loads(content)
    if not isinstance(described, dict):
        raise DamagedError("its manifest is not an object")
    return described


def progression_runs(steps: npt.NDArray[np.int64]) -> list[list[int]]:
    """Ascending steps as runs of equal distance: [first, count, distance] each.

    >>> progression_runs(np.array([0, 1, 2, 10, 20, 30]))
    [[0, 3, 1], [10, 3, 10]]
    """
    runs: list[list[int]] = []
    position = 0
    while position < len(steps):
        rest = steps[position:]
        distance = int(rest[1] - rest[0]) if len(rest) > 1 else 1
        breaks = np.flatnonzero(np.diff(rest) != distance)
        count = int(breaks[0]) + 1 if len(breaks) else len(rest)
        runs.append([int(rest[0]), count, distance])
        position += count
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> npt.NDArray[np.int64]:
    """The steps that `progression_runs` was given.

    >>> from_runs([[0, 3, 1], [10, 3, 10]]).tolist()
    [0, 1, 2, 10, 20, 30]
    """
    pieces = [first + distance * np.arange(count) for first, count, distance in runs]
    return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64)
