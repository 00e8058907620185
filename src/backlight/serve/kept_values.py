"""What was kept of single samples: their raw values at a step, their statistics over steps."""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES
from backlight.serve.responses import narrowed
from backlight.store.one_sample import RECORDED
from backlight.store.reader import RunReader
from backlight.store.values import FOLDER, KeptValues, read_values

_OPEN_FILES: Final = 4
_LARGEST_HELD_BYTES: Final = 64 << 20
_FILE: Final = re.compile(r"(\d{1,9})-(\d{1,18})\.safetensors")
_MOST_STEPS: Final = 1_000_000
_COMPLEX: Final = "magnitudes of complex numbers"
_NARROW: Final = ("float16", "float32", "bfloat16")
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


_Entry = tuple[int, KeptValues]  # with the rank that kept it


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
        files = value_files(reader.path)
        found: list[_Entry] = []
        for rank, path in sorted(files.get(step, {}).items()):
            own = set(reader.snapshot.sites.own(rank, {site}))
            entries = (each for each in self.read(path) if each.quantity == quantity)
            found += [(rank, entry) for entry in entries if entry.site in own]
        return _table(found, _beside(files, step))

    def all_at(self, reader: RunReader, step: int) -> Iterator[tuple[int, str, pa.Table]]:
        """Every site and quantity that has values at a step, with what `at` says of it."""
        files = value_files(reader.path)
        numbers = reader.snapshot.sites
        found: dict[tuple[int, str], list[_Entry]] = {}
        for rank, path in sorted(files.get(step, {}).items()):
            for entry in self.read(path):
                site = numbers.number_of(rank, entry.site)
                if site is not None:
                    found.setdefault((site, entry.quantity), []).append((rank, entry))
        beside = _beside(files, step)
        for (site, quantity), entries in found.items():
            yield site, quantity, _table(entries, beside)


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
    columns = [*names, *RECORDED]
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


def value_files(folder: Path) -> dict[int, dict[int, Path]]:
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


def _table(entries: Sequence[_Entry], beside: list[int | None]) -> pa.Table:
    """A row for each sample of these entries, which are of one site and quantity."""
    facts = _facts(tuple(_Kept.of(rank, entry) for rank, entry in entries))
    is_narrow = all(entry.dtype in _NARROW for _, entry in entries)
    item = pa.float32() if is_narrow else pa.float64()
    rows = [np.asarray(row, item.to_pandas_dtype()) for _, entry in entries for row in _rows(entry)]
    offsets = np.cumsum([0, *(row.size for row in rows)]).astype(np.int32)
    flat = np.concatenate([np.empty(0, item.to_pandas_dtype()), *(row.reshape(-1) for row in rows)])
    values = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, item))
    table = facts.append_column(pa.field("values", pa.list_(item)), values)
    return table.replace_schema_metadata({"beside": json.dumps(beside)})


class _Kept(NamedTuple):
    """What is said of an entry besides its values: the same of most tensors of a step."""

    rank: int
    iteration: int
    backward: str
    dtype: str
    shape: tuple[int, ...]
    batch_dim: int | None
    neurons: int
    neuron_step: int
    positions: tuple[int, ...] | None
    note: str
    samples: tuple[tuple[int | None, int | None], ...]

    @classmethod
    def of(cls, rank: int, entry: KeptValues) -> _Kept:
        has_batch = entry.batch_dim is not None
        samples = tuple(zip(entry.samples, entry.data_indices, strict=True))
        return cls(
            rank,
            *(entry.iteration, entry.backward, entry.dtype, tuple(entry.shape), entry.batch_dim),
            *(entry.neurons, entry.neuron_step, entry.chosen_neurons),
            _COMPLEX if np.asarray(entry.array).dtype.kind == "c" else entry.note,
            samples if has_batch else ((None, None),),
        )


@lru_cache(maxsize=256)
def _facts(entries: tuple[_Kept, ...]) -> pa.Table:
    """A row for each sample; one without a sample for a tensor that has no batch.

    An export asks for thousands of them, of which a few are different.
    """
    rows = [
        {**kept._asdict(), "sample": sample, "data_index": index}
        for kept in entries
        for sample, index in kept.samples
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in _FACTS]
    return narrowed(pa.Table.from_arrays(columns, schema=_FACTS))


def _rows(entry: KeptValues) -> Iterable[npt.NDArray[Any]]:
    """The values of each sample, or of a tensor that has no batch."""
    array = np.asarray(entry.array)
    array = np.abs(array) if array.dtype.kind == "c" else array
    return [array] if entry.batch_dim is None else array


def _check_quantity(quantity: str) -> None:
    if quantity not in QUANTITIES:
        raise BacklightError(
            f"There is no quantity {quantity!r}: use one of {', '.join(QUANTITIES)}."
        )
