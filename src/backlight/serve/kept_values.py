"""What was kept of single samples: their raw values at a step, their statistics over steps."""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES
from backlight.store.reader import RunReader
from backlight.store.values import FOLDER, KeptValues, read_values

_OPEN_FILES: Final = 4
_LARGEST_HELD_BYTES: Final = 64 << 20
_FILE: Final = re.compile(r"(\d{1,9})-(\d{1,18})\.safetensors")
_MOST_STEPS: Final = 1_000_000
_NARROW: Final = ("float16", "float32", "bfloat16")
_SAMPLE_STATISTICS: Final = ("mean", "abs_mean", "std", "abs_max")
_FACTS: Final = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("iteration", pa.int32()),
        pa.field("backward", pa.utf8()),
        pa.field("sample", pa.int32()),  # null where the tensor has no batch
        pa.field("data_index", pa.int64()),
        pa.field("dtype", pa.utf8()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("batch_dim", pa.int32()),
        pa.field("neurons", pa.int64()),
        pa.field("neuron_step", pa.int64()),
        pa.field("positions", pa.list_(pa.int64())),  # null where every neuron_step-th is kept
        pa.field("note", pa.utf8()),
    ]
)


class ValueFiles:
    """The files of raw values that were read last: moving from site to site reads none again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: OrderedDict[tuple[Path, int, int], list[KeptValues]] = OrderedDict()

    def read(self, path: Path) -> list[KeptValues]:
        """What a file holds."""
        found = path.stat()
        key = path, found.st_mtime_ns, found.st_size
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        entries = read_values(path)
        if found.st_size <= _LARGEST_HELD_BYTES:
            with self._lock:
                self._held[key] = entries
                while len(self._held) > _OPEN_FILES:
                    self._held.popitem(last=False)
        return entries

    def at(self, reader: RunReader, site: int, step: int, *, quantity: str = "value") -> pa.Table:
        """A row for each kept sample of a site at a step; metadata: the nearest steps with any."""
        _check_quantity(quantity)
        files = _files(reader.path)
        rows: list[dict[str, Any]] = []
        values: list[npt.NDArray[Any]] = []
        for rank, path in sorted(files.get(step, {}).items()):
            own = set(reader.snapshot.sites.own(rank, {site}))
            for entry in self.read(path):
                if entry.site in own and entry.quantity == quantity:
                    for facts, row in _rows(rank, entry):
                        rows.append(facts)
                        values.append(row)
        is_narrow = all(row["dtype"] in _NARROW for row in rows)
        item = pa.float32() if is_narrow else pa.float64()
        arrays = [np.asarray(row, item.to_pandas_dtype()) for row in values]
        table = pa.Table.from_pylist(rows, schema=_FACTS)
        table = table.append_column("values", pa.array(arrays, pa.list_(item)))
        return table.replace_schema_metadata({"beside": json.dumps(_beside(files, step))})


def samples_at(reader: RunReader, step: int) -> pa.Table:
    """`sample, data_index`: which samples of a step's batch were kept, the first choice first."""
    rows = reader.snapshot.at_steps(step, step, ["sample", "data_index"], table="samples")
    return (
        rows.select(["sample", "data_index"])
        .group_by(["sample", "data_index"], use_threads=False)
        .aggregate([])
    )


def sample_history(
    reader: RunReader, site: int, *, quantity: str = "value", points: int = 500
) -> pa.Table:
    """The statistics of single samples at a site, of about `points` steps.

    Where there are more steps, each stretch of them keeps its first and the one in which a
    sample has the greatest magnitude.
    """
    _check_quantity(quantity)
    if not 0 < points <= _MOST_STEPS:
        raise BacklightError(f"'points' is {points}: use a number from 1 to {_MOST_STEPS}.")
    names = ["step", "iteration", "quantity", "backward", "sample", "data_index"]
    columns = [*names, *_SAMPLE_STATISTICS]
    rows = reader.snapshot.of_sites([site], columns, table="samples")
    rows = rows.filter(pc.field("quantity") == quantity).select(
        [name for name in columns if name != "quantity"]
    )
    step = rows["step"].to_numpy()
    order = np.lexsort((rows["iteration"].to_numpy(), step))
    rows = rows.take(pa.array(order))
    kept = _thinned(rows["step"].to_numpy(), rows["abs_max"].to_numpy(), points)
    return rows.filter(pa.array(np.isin(rows["step"].to_numpy(), kept)))


def _thinned(
    step: npt.NDArray[np.int64], value: npt.NDArray[np.float64], points: int
) -> npt.NDArray[np.int64]:
    """About so many of the steps: of each stretch the first, and that of the greatest value.

    >>> _thinned(np.arange(8), np.array([0, 1, 9, 1, 0, 0, 0, 5.0]), 4).tolist()
    [0, 2, 4, 7]
    """
    steps, place = np.unique(step, return_inverse=True)
    if len(steps) <= points:
        return np.asarray(steps)
    greatest = np.full(len(steps), -np.inf)
    np.fmax.at(greatest, place, np.where(np.isnan(value), np.inf, value))
    kept = [steps[-1:]] if points > 1 else []
    for stretch in np.array_split(np.arange(len(steps)), max(1, points // 2)):
        kept.append(steps[[stretch[0], stretch[np.argmax(greatest[stretch])]]])
    return np.asarray(np.unique(np.concatenate(kept)))


def _files(folder: Path) -> dict[int, dict[int, Path]]:
    """The files of raw values: by step, then by rank."""
    files: dict[int, dict[int, Path]] = {}
    try:
        with os.scandir(folder / FOLDER) as entries:
            for entry in entries:
                named = _FILE.fullmatch(entry.name)
                if named and entry.is_file(follow_symlinks=False):
                    files.setdefault(int(named[2]), {})[int(named[1])] = Path(entry.path)
    except OSError:
        return files
    return files


def _beside(files: dict[int, dict[int, Path]], step: int) -> list[int | None]:
    """The last step before and the first after one for which there are values."""
    before = max((other for other in files if other < step), default=None)
    return [before, min((other for other in files if other > step), default=None)]


def _rows(rank: int, entry: KeptValues) -> Iterator[tuple[dict[str, Any], npt.NDArray[Any]]]:
    """A row for each sample; one without a sample for a tensor that has no batch."""
    array, note = np.asarray(entry.array), entry.note
    if array.dtype.kind == "c":
        array, note = np.abs(array), "magnitudes of complex numbers"
    chosen = entry.chosen_neurons
    facts = {
        "rank": rank,
        "iteration": entry.iteration,
        "backward": entry.backward,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "batch_dim": entry.batch_dim,
        "neurons": entry.neurons,
        "neuron_step": entry.neuron_step,
        "positions": None if chosen is None else list(chosen),
        "note": note,
    }
    if entry.batch_dim is None:
        yield facts, array
        return
    for sample, index, row in zip(entry.samples, entry.data_indices, array, strict=True):
        yield {**facts, "sample": sample, "data_index": index}, row


def _check_quantity(quantity: str) -> None:
    if quantity not in QUANTITIES:
        raise BacklightError(
            f"There is no quantity {quantity!r}: use one of {', '.join(QUANTITIES)}."
        )
