"""Makes runs of any size in the store's own format, without training anything.

Every number is a function of its site and its step, so the same rows can be written in any order,
and in any other format to compare with.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from backlight.schema import FORMAT_VERSION, STATS, TABLES, RunInfo, Site
from backlight.store.compact import compact
from backlight.store.layout import Source
from backlight.store.merge import merge
from backlight.store.writer import RunWriter, create_run_folder

PAIRS = 100
_PROFILE = np.exp(-(np.linspace(-3.0, 2.5, PAIRS) ** 2) / 2)


def noise(site: Any, step: Any, salt: int) -> Any:
    """Uniform numbers from 0 to 1 that depend on nothing but their arguments."""
    mixed = (
        (site.astype(np.uint64) << np.uint64(32)) + step.astype(np.uint64) + np.uint64(salt << 58)
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def rows(site: Any, step: Any, *, with_sketches: bool) -> pa.Table:
    """The observations of sites at steps, each pair given once."""
    count = len(site)
    scale = np.exp2(-(site % 12).astype(np.float64)) * (1 + 0.3 * np.sin(step / 500 + site))
    a, b, c = (noise(site, step, salt) for salt in (1, 2, 3))
    std = scale * (0.9 + 0.2 * a)
    high = (std * (3 + b)).astype(np.float32).astype(np.float64)
    low = -(std * (3 + c)).astype(np.float32).astype(np.float64)
    is_broken = (site % 97 == 5) & (step % 1000 == 7)
    columns: dict[str, Any] = {
        "step": step,
        "iteration": np.zeros(count, np.int32),
        "order": site,
        "site": site,
        "quantity": _repeated("value", count),
        "backward": _repeated("", count),
        "dtype": _repeated("float32", count),
        "shape": pa.ListArray.from_arrays(
            np.arange(0, 2 * count + 1, 2, dtype=np.int32), np.tile([128, 256], count)
        ),
        "count": np.full(count, 32768),
        "zeros": (a * 16000).astype(np.int64),
        "nans": np.where(is_broken, 12, 0),
        "infs": np.zeros(count, np.int64),
        "mean": scale * (b - 0.5) * 0.01,
        "std": std,
        "min": low,
        "max": high,
        "abs_mean": std * 0.8,
        "abs_max": np.maximum(high, -low),
        "rms": np.sqrt(std**2 + (scale * (b - 0.5) * 0.01) ** 2),
        "units": np.full(count, 256),
        "dead_units": (c * 20).astype(np.int64),
        "constant_units": np.zeros(count, np.int64),
        "batch_std": std * 0.97,
    }
    if with_sketches:
        columns["sketch_keys"], columns["sketch_counts"] = _sketches(site, step, count)
    columns["own"] = pa.nulls(count)  # no statistics of the user's own
    schema = pa.schema([STATS.field(name) for name in columns])
    arrays = [
        (each if isinstance(each, pa.Array) else pa.array(each)).cast(field.type)
        for each, field in zip(columns.values(), schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _sketches(site: Any, step: Any, count: int) -> tuple[pa.Array, pa.Array]:
    generator = np.random.Generator(np.random.SFC64(int(site[0]) * 1_000_003 + int(step[0])))
    counts = (generator.random((count, PAIRS), np.float32) * 0.3 + 0.85) * (_PROFILE * 600 + 1)
    first = 4200 - 4 * (site % 12) + (noise(site, step, 4) * 3).astype(np.int64)
    keys = (first[:, None] + np.arange(PAIRS)).astype(np.int16)
    offsets = np.arange(0, PAIRS * count + 1, PAIRS, dtype=np.int32)
    return (
        pa.ListArray.from_arrays(offsets, keys.ravel()),
        pa.ListArray.from_arrays(offsets, counts.astype(np.uint32).ravel()),
    )


def write_run(root: Path, *, sites: int, steps: int) -> Path:
    """Write a finished, compacted run of `sites * steps` observations."""
    path = create_run_folder(root, "bench", f"{sites}x{steps}")
    now = time.time()
    info = RunInfo(
        FORMAT_VERSION, "bench", "bench", path.name, now, platform.node(), os.getpid(), 0.0
    )
    writer = RunWriter(path)
    writer.append_rows("sites", [asdict(_site(number)) for number in range(sites)])
    numbers = np.arange(steps)
    losses = {"step": numbers, "name": ["loss"] * steps, "value": 4 / (1 + numbers / 100)}
    writer.append("scalars", _batch("scalars", {**losses, "logged_at": now + numbers}))
    times = {"duration_secs": [0.1] * steps, "recording_secs": [0.01] * steps}
    what = {"kind": ["train"] * steps, "recorded": [True] * steps, "reason": ["every step"] * steps}
    more = {"iterations": [1] * steps, "batch_size": [32] * steps, "graph": [""] * steps}
    writer.append(
        "steps",
        _batch("steps", {"step": numbers, **what, **more, "started_at": now + numbers, **times}),
    )
    writer.close()
    info.ended, info.ended_at = "finished", now + steps
    writer.write_info(info)
    compact(path)
    (path / "stats").mkdir()
    merge(path / "stats", Source(0, 0, 0, is_part=True), [MadeRows(sites, steps)])
    return path


def _site(number: int) -> Site:
    name = f"blocks.{number // 20}.part{number % 20}"
    return Site(number, f"{name}:out.0", "output", name, "Linear", "out.0", node=name, role="out.0")


def _batch(table: str, columns: dict[str, Any]) -> pa.RecordBatch:
    schema = TABLES[table]
    rows = len(columns["step"])
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class MadeRows:
    """All observations of a run, made when they are asked for."""

    problems = ()

    def __init__(self, sites: int, steps: int) -> None:
        self.rows = sites * steps
        self.steps = np.arange(steps)
        self._sites = sites

    def rows_of(self, keys: list[int] | None, columns: list[str]) -> pa.Table:
        """The rows of some sites."""
        if keys is None:  # which sites there are
            return pa.table({"site": np.arange(self._sites, dtype=np.int32)})
        chosen, steps = np.array(keys), self.steps
        return rows(np.repeat(chosen, len(steps)), np.tile(steps, len(chosen)), with_sketches=True)

    def rows_at(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """The rows of some steps."""
        chosen, sites = np.arange(first, last + 1), np.arange(self._sites)
        return rows(np.tile(sites, len(chosen)), np.repeat(chosen, len(sites)), with_sketches=False)
