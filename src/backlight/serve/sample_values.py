"""The raw values of one sample, where all of them were kept, as rows with their sketches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlight.schema import STATS
from backlight.serve.kept_values import ValueFiles, value_files
from backlight.store.heatmap import Columns
from backlight.store.one_sample import SampleKey
from backlight.store.reader import RunReader
from backlight.store.sketch import Sketch
from backlight.store.sketch_sample import SketchSample
from backlight.store.values import KeptValues

VALUE_STATISTICS: Final = ("min", "max", "zero_share", "nan_share", "inf_share")
"""What is known of a sample only where all its values were kept."""

_MOST_BYTES: Final = 64 << 20
"""So much is read for a picture over steps."""

_COUNTED: Final = ("count", "zeros", "nans", "infs", "min", "max")
_ROWS: Final = pa.schema(
    [
        *(STATS.field(name) for name in ("step", "iteration", "site", "quantity", "backward")),
        *(STATS.field(name) for name in ("dtype", *_COUNTED, "sketch_keys")),
        pa.field("sketch_counts", pa.list_(pa.int64())),
    ]
)


def value_rows(
    files: ValueFiles,
    reader: RunReader,
    steps: Iterable[int],
    sample: SampleKey,
    *,
    quantity: str,
    sites: Collection[int] | None = None,
) -> pa.Table:
    """A row for each place at which all values of a sample were kept, of its lowest rank."""
    known = value_files(reader.path)
    rows: list[dict[str, Any]] = []
    for step in steps:
        for rank, path in sorted(known.get(step, {}).items()):
            found = list(_of_file(files, reader, (rank, step, path), sample, quantity, sites))
            rows += found
            if found:
                break
    return pa.Table.from_pylist(rows, schema=_ROWS)


def sample_over_steps(
    files: ValueFiles,
    reader: RunReader,
    sample: SampleKey,
    *,
    quantity: str,
    columns: int,
    steps: npt.NDArray[np.int64] | None = None,
    sites: Collection[int] | None = None,
) -> SketchSample:
    """The same over the recorded steps: of as many as can be read at once, the newest always."""
    recorded = reader.snapshot.recorded_steps if steps is None else steps
    used = _readable(reader.path, recorded)
    width = max(1, min(columns, len(recorded), len(used)))
    numbers = np.arange(len(recorded)) * width // max(1, len(recorded))
    rows = value_rows(files, reader, used.tolist(), sample, quantity=quantity, sites=sites)
    asked = len(reader.snapshot.held["sites"]) if sites is None else len(set(sites))
    return SketchSample(Columns(recorded, numbers), rows, len(used), asked, asked)


def said_of(read: SketchSample) -> dict[str, str]:
    """What the metadata of an answer says: its columns, and how much was read of how much."""
    return {
        "columns": json.dumps(read.columns.ranges),
        "steps": json.dumps([read.steps_used, len(read.columns.steps)]),
        "sites": json.dumps([read.sites_read, read.sites_asked]),
    }


def batch_dims(
    files: ValueFiles, reader: RunReader, step: int | None = None
) -> dict[int, int | None]:
    """Of each named tensor which dimension counts samples, as the values of one step say it.

    Of all other tensors it is the first.
    """
    sites = reader.snapshot.held["sites"]
    pairs = zip(sites["site"].to_pylist(), sites["tensor_class"].to_pylist(), strict=True)
    found: dict[int, int | None] = {site: None for site, kind in pairs if kind == "tensor"}
    known = value_files(reader.path)
    at = step if step in known else max(known, default=None)
    if not found or at is None:
        return found
    for rank, path in known[at].items():
        for entry in files.read(path):
            site = reader.snapshot.sites.number_of(rank, entry.site)
            if site in found and entry.quantity == "value":
                found[site] = entry.batch_dim
    return found


def _of_file(
    files: ValueFiles,
    reader: RunReader,
    at: tuple[int, int, Path],
    sample: SampleKey,
    quantity: str,
    sites: Collection[int] | None,
) -> Iterable[dict[str, Any]]:
    rank, step, path = at
    numbers = reader.snapshot.sites
    for entry in files.read(path):
        if entry.quantity != quantity or not _is_whole(entry):
            continue
        site = numbers.number_of(rank, entry.site)
        place = sample.place_in(entry.samples, entry.data_indices)
        if place is not None and site is not None and (sites is None or site in sites):
            yield {"step": step, "site": site, **_row(entry, np.asarray(entry.array)[place])}


def _is_whole(entry: KeptValues) -> bool:
    is_all = entry.chosen_neurons is None and entry.neuron_step == 1
    return is_all and entry.batch_dim is not None and not entry.note


def _row(entry: KeptValues, values: npt.NDArray[Any]) -> dict[str, Any]:
    if values.dtype.kind == "c":  # its parts are two numbers, as in the statistics
        values = np.stack([values.real, values.imag])
    sketch = Sketch.of_values(values)
    facts = {name: getattr(entry, name) for name in ("iteration", "quantity", "backward", "dtype")}
    return {
        **facts,
        **{name: getattr(sketch, name) for name in _COUNTED},
        "sketch_keys": sketch.keys,
        "sketch_counts": sketch.counts,
    }


def _readable(folder: Path, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The steps with values, or as many of them as can be read at once, evenly spread."""
    known = value_files(folder)
    kept = steps[np.isin(steps, np.fromiter(known, np.int64, len(known)))]
    sizes = [path.stat().st_size for step in kept.tolist() for path in known[step].values()]
    most = int(max(1, _MOST_BYTES / max(1.0, sum(sizes) / max(1, len(kept)))))
    if len(kept) <= most:
        return kept
    return kept[np.sort(len(kept) - 1 - np.arange(most) * len(kept) // most)]
