"""A long history is shown from sketches that were merged before: the same ones, sooner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sample_runs import write_sample_run

import backlight
from backlight.store import merge, merged_sketches, part_writer
from backlight.store.compact import compact
from backlight.store.heatmap import columns_of
from backlight.store.manifest import manifest_text, read_manifest
from backlight.store.reader import RunReader
from backlight.store.sketch import Sketch

COLUMNS = 15
SITE = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes at which a small run has merged sketches, in several row groups."""
    monkeypatch.setattr(part_writer, "GROUP_ROWS", 500)
    monkeypatch.setattr(merge, "_CHUNK_ROWS", 1000)
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 200)
    monkeypatch.setattr(merge, "_TILES_FROM_ROWS", 500)
    monkeypatch.setattr(merge, "SKETCH_GROUP_ROWS", 16)
    monkeypatch.setattr(merged_sketches, "_FEWEST_BLOCKS", 2)
    monkeypatch.setattr(merged_sketches, "_EXACT_STEPS", 10)
    return


@pytest.fixture
def run(root: Path) -> Path:
    return write_sample_run(root, steps=300, sites=6, with_nan=True)


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def slices(reader: RunReader, quantity: str = "value") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = reader.sketches(
        SITE, quantity=quantity, columns=COLUMNS
    ).to_pylist()
    return rows


def manifest_of(path: Path) -> Path:
    (found,) = (path / "parts").glob("stats-*.json")
    return found


def test_they_are_the_sketches_of_their_steps(run: Path) -> None:
    before = {quantity: slices(read(run), quantity) for quantity in ("value", "grad")}
    compact(run)
    reader = read(run)
    (part,) = reader.snapshot.parts["stats"]
    blocks = part.merged_sketches([SITE], 16, merged_sketches.MERGED)
    assert blocks is not None
    assert 0 < blocks.num_rows < 100  # a few row groups of them, and not a row for each step
    opened = backlight.open(run)
    (name,) = opened.sites().arrow().filter(pc.field("site") == SITE)["name"].to_pylist()
    for quantity, expected in before.items():
        assert slices(reader, quantity) == expected
        assert COLUMNS / 2 <= len(expected) <= COLUMNS
        for row in expected:
            steps = range(row["first_step"], row["last_step"] + 1)
            pattern = f"^{name}$".replace(".", "[.]")
            all_of_it = opened.sketches(pattern, quantity=quantity, steps=steps)
            told = Sketch.merged(all_of_it)
            assert (row["keys"], row["counts"]) == (told.keys.tolist(), told.counts.tolist())
            assert [row[n] for n in ("count", "zeros", "nans", "infs", "min", "max")] == [
                *(told.count, told.zeros, told.nans, told.infs, told.min, told.max)
            ]


def test_without_them_the_answer_is_the_same(run: Path) -> None:
    compact(run)
    expected = slices(read(run))
    for file in (run / "tiles").glob("*.sketches.*.parquet"):
        file.unlink()
    reader = read(run)
    assert slices(reader) == expected
    assert all("sketches." in problem for problem in reader.problems)
    assert reader.problems
    # As a part that was made before there were any.
    path = manifest_of(run)
    described = read_manifest(path)
    described.pop("sketches")
    path.write_text(manifest_text(described), encoding="utf-8")
    reader = read(run)
    assert slices(reader) == expected
    assert reader.problems == []


def test_damage_is_told_and_never_shown(run: Path) -> None:
    compact(run)
    expected = slices(read(run))
    (file,) = (run / "tiles").glob("*.sketches.16.parquet")
    data = bytearray(file.read_bytes())
    for place in range(100, len(data) // 2, 97):
        data[place] ^= 0xFF
    file.write_bytes(data)
    reader = read(run)
    assert slices(reader) == expected
    assert "damaged" in " ".join(reader.problems)


def test_a_reader_that_does_not_know_them_reads_the_part(run: Path) -> None:
    compact(run)
    described = json.loads(manifest_of(run).read_text(encoding="utf-8"))["part"]
    assert not [name for name in described["files"] if name.startswith("sketches")]
    assert described["sketches"].keys() >= {"sketches.16", "sketches.64"}


def rows_of(sketches: list[Sketch]) -> pa.Table:
    """Rows of `stats`, one for each step."""
    count = len(sketches)
    return pa.table(
        {
            "step": np.arange(count),
            "site": np.zeros(count, np.int32),
            "quantity": ["value"] * count,
            **{name: [getattr(s, name) for s in sketches] for name in merged_sketches.TOTALS},
            "min": pa.array([s.min for s in sketches], pa.float64()),
            "max": pa.array([s.max for s in sketches], pa.float64()),
            "sketch_keys": pa.array([s.keys for s in sketches], pa.list_(pa.int16())),
            "sketch_counts": pa.array([s.counts for s in sketches], pa.list_(pa.uint32())),
        }
    )


def test_exponents_of_every_size_take_no_more_memory_than_there_are() -> None:
    """Bins that are far apart: a table of all that could be would not fit."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=50) * 2.0 ** rng.integers(-1000, 1000) for _ in range(400)]
    sketches = [Sketch.of_values(each) for each in values]
    blocks = merged_sketches.by_block(rows_of(sketches), np.arange(400) // 2)
    pairs = zip(sketches[::2], sketches[1::2], strict=True)
    for row, pair in zip(blocks.to_pylist(), pairs, strict=True):
        told = Sketch.merged(pair)
        assert row["sketch_keys"] == told.keys.tolist()
        assert row["sketch_counts"] == told.counts.tolist()
        assert (row["min"], row["max"], row["count"]) == (told.min, told.max, told.count)


def test_what_a_slow_disk_left_out_is_not_counted() -> None:
    whole, zeros = Sketch.of_values([1.0, 2.0, 0.0]), Sketch.of_values([0.0, 0.0])
    missing = replace(whole, keys=whole.keys[:0], counts=whole.counts[:0])
    assert missing.is_missing
    rows = rows_of([whole, missing, zeros, missing, missing, missing, missing, whole])
    columns = merged_sketches.slices_of(np.arange(8), 4)
    pairs = merged_sketches.by_block(rows, np.arange(8) // 2)
    assert pairs["block"].to_pylist() == [0, 1, 3]
    asked = replace(columns, level=2)
    found = merged_sketches.as_slices(columns, [rows])
    assert found.equals(merged_sketches.as_slices(asked, [pairs]))
    assert found["count"].to_pylist() == [3, 2, 3]
    assert found["first_step"].to_pylist() == [0, 2, 6]
    nothing = rows_of([missing, missing])
    assert merged_sketches.by_block(nothing, np.arange(2)).num_rows == 0
    assert (
        merged_sketches.as_slices(merged_sketches.slices_of(np.arange(2), 4), [nothing]).num_rows
        == 0
    )


@pytest.mark.parametrize("every", [1, 2, 10])
def test_however_long_a_run_grows_it_has_as_many_columns(every: int) -> None:
    """Not more and more, until they are half as many again: a page would hold more and more."""
    for count in np.geomspace(2_500, 400_000, 40).astype(int):
        steps = every * np.arange(count)
        slices = merged_sketches.slices_of(steps, 600)
        few, many = (columns_of(steps, 500, rows_per_step=rows) for rows in (100.0, 10_000.0))
        assert [len(each.ranges) for each in (slices, few, many)] == [600, 500, 250], count
        for columns in (slices, few, many):
            lengths = np.diff(np.flatnonzero(np.diff(columns.numbers, prepend=-1)))
            assert lengths.max() <= 2 * lengths.min() + 2, count
        # What is read for them has a limit too.
        assert len(np.unique(steps // slices.level)) <= 16 * 600
        assert len(np.unique(steps // many.level)) <= 4 * 250
