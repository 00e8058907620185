"""Reading chosen steps alone gives what reading everything gives, wherever the rows are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sample_runs import SampleRun, observed_places, stats_batch
from test_store_damage import flip

from backlight.store import merge, part_writer, streams
from backlight.store.compact import compact
from backlight.store.reader import RunReader
from backlight.store.sparse import SparseStats
from backlight.store.writer import RunWriter

COLUMNS = ["step", "site", "quantity", "order", "dtype", "shape", "rms", "nans"]
GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())


def whole(path: Path, steps: list[int]) -> list[str]:
    reader = RunReader(path)
    reader.refresh()
    return texts(reader.snapshot.of_steps(np.array(steps, np.int64), COLUMNS))


def sparse(stats: SparseStats, steps: list[int]) -> list[str]:
    stats.refresh()
    return texts(stats.of_steps(np.array(steps, np.int64), COLUMNS))


def texts(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.fixture
def sample(root: Path, monkeypatch: pytest.MonkeyPatch) -> SampleRun:
    """A run in small segments."""
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 20_000)
    sample = SampleRun(root, "p", "r", sites=6, seed=0)
    for step in range(30):
        sample.append_step(step)
    return sample


def test_it_follows_a_run_that_grows_and_is_compacted(
    sample: SampleRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, steps = SparseStats(sample.path), [0, 7, 29, 35, 99]
    assert stats.refresh() and not stats.refresh()
    assert len(list((sample.path / "stats").glob("*.arrows"))) > 3
    before = sparse(stats, steps)
    assert before == whole(sample.path, steps) and len(before) > 0
    for step in range(30, 40):
        sample.append_step(step)
    assert stats.refresh()
    assert stats.recorded_steps.tolist() == list(range(40))
    grown = sparse(stats, steps)
    assert grown == whole(sample.path, steps) and len(grown) > len(before)
    sample.end("finished")
    monkeypatch.setattr(part_writer, "GROUP_ROWS", 16)
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 1)
    compact(sample.path)
    assert not list((sample.path / "stats").glob("*.arrows"))
    # Its files went away since it looked.
    assert texts(stats.of_steps(np.array(steps, np.int64), COLUMNS)) == grown
    assert sparse(stats, steps) == whole(sample.path, steps) == grown


def test_several_ranks(sample: SampleRun) -> None:
    other = RunWriter(sample.path, rank=1)
    # What is site 0 of the one is site 1 of the other.
    sites = [sample.sites[1], sample.sites[0]]
    other.append_rows("sites", [asdict(replace(s, site=at)) for at, s in enumerate(sites)])
    places = observed_places(sample.sites[:2])
    other.append("stats", stats_batch(7, places, np.random.default_rng(1), False))
    other.close()
    stats = SparseStats(sample.path)
    found = sparse(stats, [6, 7])
    assert found == whole(sample.path, [6, 7])
    assert any("'rank': 1" in row for row in found)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_runs_of_every_version(path: Path) -> None:
    if not (path / "stats").is_dir():
        pytest.skip("it has no statistics")
    stats = SparseStats(path)
    stats.refresh()
    steps = stats.recorded_steps.tolist()
    assert steps and sparse(stats, steps) == whole(path, steps)
    assert sparse(stats, steps[1:2]) == whole(path, steps[1:2])


def test_a_message_that_is_not_all_there_is_waited_for(sample: SampleRun) -> None:
    sample.end("finished")
    *_, last = sorted((sample.path / "stats").glob("*.arrows"))
    content = last.read_bytes()
    last.write_bytes(content[:-200])
    stats, steps = SparseStats(sample.path), list(range(30))
    torn = sparse(stats, steps)
    assert torn == whole(sample.path, steps)
    last.write_bytes(content)
    assert len(sparse(stats, steps)) > len(torn)
    assert sparse(stats, steps) == whole(sample.path, steps)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_damaged_is_never_a_number(sample: SampleRun, root: Path, seed: int) -> None:
    sample.end("finished")
    steps, sound = list(range(30)), whole(sample.path, list(range(30)))
    damaged = Path(shutil.copytree(sample.path, root / "p" / f"damaged-{seed}"))
    files = sorted((damaged / "stats").glob("*.arrows"))
    generator = np.random.default_rng(seed)
    file = files[generator.integers(len(files))]
    # Half of them in the first header, where lengths and places are.
    size = file.stat().st_size * 8 if seed % 2 else 3000 * 8
    flip(file, int(generator.integers(size)))
    found = sparse(SparseStats(damaged), steps)
    assert set(found) <= set(sound)
    assert len(found) > len(sound) / 2


def test_arrow_does_without_pandas_and_others_may_have_it() -> None:
    program = """
import sys
from backlight.store.arrow_alone import without_pandas
without_pandas()
import pyarrow as pa
assert pa.array([1, 2]).to_pylist() == [1, 2] and "pandas" not in sys.modules
import pandas
assert pandas.Series([1, 2]).sum() == 3
"""
    subprocess.run([sys.executable, "-c", program], check=True)
