"""Raw values on disk: one safetensors file for each step, and how much of it fits a budget.

The file is `values/<rank>-<step>.safetensors`. Each tensor in it has an entry of the same name in
the file's metadata, which is JSON: where it was seen, what it was cut from, and what each of its
rows and columns is; one more, `crc32`, is the checksum of the file. Neither writing nor reading
needs torch.

Safetensors as NumPy knows it has no bfloat16, no float8 and no complex numbers: the first two are
stored as the integers that have their bits, and complex numbers as pairs of real ones. `dtype` in
the metadata says what they were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
from safetensors import SafetensorError, safe_open

from backlight.errors import BacklightError
from backlight.store.files import check_plain, read_plain

FOLDER: Final = "values"

STORED_AS: Final = {
    **{name: name for name in ("bool", "float16", "float32", "float64")},
    **{f"{sign}{bits}": f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
}
"""The dtypes that can be kept, and the NumPy dtype that holds each; complex ones as pairs."""

_FEWEST_NEURONS = 64  # before a sample is given up
_HEADER_BYTES = 640  # at most what an entry takes in the file's header, without its samples
_SAMPLE_HEADER_BYTES = 32  # a position and a data index, as text
_COLUMN_HEADER_BYTES = 20  # the position of a chosen neuron, as text
_MOST_EMPTY_COLUMNS = 1 << 20
_LARGEST_FILE_BYTES = 1 << 33


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a tensor is kept: rows of samples, and every `neuron_step`th of its neurons.

    >>> Extent(samples=4, neurons=10, neuron_step=3, item_bytes=4).columns
    4
    """

    samples: int
    neurons: int
    neuron_step: int
    item_bytes: int
    is_open: bool = False  # which samples are kept is not known yet, so none may be given up
    has_positions: bool = False  # the header says of each neuron where it is

    @property
    def columns(self) -> int:
        """How many neurons are kept of each sample."""
        return -(-self.neurons // self.neuron_step)

    @property
    def data_bytes(self) -> int:
        """What the values take."""
        return self.samples * self.columns * self.item_bytes

    @property
    def file_bytes(self) -> int:
        """At most what the values and their entry in the header take; 0 if nothing is kept."""
        header = _HEADER_BYTES + _SAMPLE_HEADER_BYTES * self.samples
        if self.has_positions:
            header += _COLUMN_HEADER_BYTES * self.columns
        return self.data_bytes + header if self.samples else 0

    def less(self) -> Extent:
        """The next smaller extent: half the neurons, then half the samples, then nothing."""
        if self.columns > _FEWEST_NEURONS:
            return replace(self, neuron_step=2 * self.neuron_step)
        if self.samples > 1 and not self.is_open:
            return replace(self, samples=(self.samples + 1) // 2)
        return replace(self, samples=0)


def fit(wanted: Sequence[Extent], budget_bytes: int) -> list[Extent]:
    """The extents that fit a budget: the largest lose detail first, and of equals the last.

    >>> large, small = Extent(8, 4096, 1, 4), Extent(8, 64, 1, 4)
    >>> [(extent.samples, extent.columns) for extent in fit([large, small], 40_000)]
    [(8, 1024), (8, 64)]
    """
    if budget_bytes < _HEADER_BYTES:
        return [replace(extent, samples=0) for extent in wanted]
    kept = list(wanted)
    total = sum(extent.file_bytes for extent in kept)
    largest = [(-extent.file_bytes, -place) for place, extent in enumerate(kept)]
    heapify(largest)
    while total > budget_bytes and largest:
        place = -heappop(largest)[1]
        less = kept[place].less()
        total -= kept[place].file_bytes - less.file_bytes
        kept[place] = less
        if less.samples:
            heappush(largest, (-less.file_bytes, -place))
    return kept


@dataclass(slots=True, eq=False)  # not frozen: that would take longer than all the rest of it
class KeptValues:
    """The values that were kept of one tensor.

    `array` has a row for each of `samples` and a column for each kept neuron; of a tensor without
    a batch dimension it has the columns only. A neuron is a position in the flattened sample, and
    `neuron_positions` says which ones the columns are. What NumPy has no dtype for is written from
    its bits, and complex32 from pairs of float16.
    """

    site: int
    quantity: str
    backward: str
    iteration: int
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    batch_dim: int | None
    samples: tuple[int, ...]  # positions in the batch, the first choice first
    data_indices: tuple[int | None, ...]  # positions in the user's data set, where given
    neurons: int  # of a whole sample
    neuron_step: int  # the kept neurons are 0, neuron_step, 2 * neuron_step, …
    array: Any
    note: str = ""  # where the array is not what its dtype says: what it is, and what to do
    chosen_neurons: tuple[int, ...] | None = None  # the kept neurons, where the user chose them

    @property
    def neuron_positions(self) -> Any:
        """Where each column is in the flattened sample."""
        if self.chosen_neurons is not None:
            return np.array(self.chosen_neurons, np.int64)
        return np.arange(0, self.neurons, self.neuron_step)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape that the array has to have, whatever its dtype."""
        kept = self.chosen_neurons
        columns = len(range(0, self.neurons, self.neuron_step) if kept is None else kept)
        return (columns,) if self.batch_dim is None else (len(self.samples), columns)


@dataclass(frozen=True, slots=True)
class StepValues:
    """The raw values of one step, as they are written."""

    entries: tuple[KeptValues, ...]
    most_file_bytes: int = 0  # what they count for in the run's budget

    @property
    def data_bytes(self) -> int:
        """What the values take, without the file's header."""
        return sum(int(entry.array.nbytes) for entry in self.entries)


_DAMAGE = (
    SafetensorError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def values_path(folder: Path, rank: int, step: int) -> Path:
    """Where the values of a rank's step are, in a run's folder.

    >>> values_path(Path("run"), 0, 12).as_posix()
    'run/values/0-12.safetensors'
    """
    return folder / FOLDER / f"{rank}-{step}.safetensors"


def write_values(folder: Path, rank: int, step: int, values: StepValues) -> int:
    """Write a step's values into a run's folder, in one piece, and say how many bytes they took.

    >>> import tempfile
    >>> kept = KeptValues(
    ...     site=0, quantity="value", backward="", iteration=0, dtype="float32", shape=(8, 2),
    ...     batch_dim=0, samples=(5,), data_indices=(205,), neurons=2, neuron_step=1,
    ...     array=np.array([[1.0, 2.0]], np.float32),
    ... )
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_values(folder, 0, 12, StepValues((kept,))) < 1000
    True
    >>> read_values(values_path(folder, 0, 12))[0].array.tolist()
    [[1.0, 2.0]]
    """
    target = values_path(folder, rank, step)
    target.parent.mkdir(exist_ok=True)
    content = _serialized(values)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return len(content)


_STORED_CODES: Final = {
    "bool": "BOOL",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""What safetensors calls the dtypes in which arrays are stored."""


def _serialized(values: StepValues) -> bytearray:
    """The file's content. By hand, because the library takes longer than all the rest."""
    tensors: list[str] = []
    metadata: list[str] = []
    arrays: list[Any] = []
    end = 0
    for number, entry in _by_item_size(values):
        # The number keeps apart what was seen twice, such as a gradient under double backward.
        name, described = _described(number, entry)
        array = np.ascontiguousarray(entry.array)
        start, end = end, end + array.nbytes
        shape = (*array.shape, 2) if array.dtype.kind == "c" else array.shape
        tensors.append(
            f'"{name}":{{"dtype":"{_STORED_CODES[STORED_AS[entry.dtype]]}",'
            f'"shape":{list(shape)},"data_offsets":[{start},{end}]}}'
        )
        metadata.append(f'"{name}":"{described}"')
        arrays.append(array)
    parts = [",".join([_CHECKSUM, *metadata]) + "}", *tensors]
    header = (",".join(parts) + "}").encode()
    header += b" " * (-len(header) % 8)
    content = bytearray().join([len(header).to_bytes(8, "little"), header, *arrays])
    content[_CRC] = b"%010d" % crc32(content)
    return content


_CHECKSUM: Final = '{"__metadata__":{"crc32":"0000000000"'
"""How the header begins; the CRC-32 of the file, in which this stands, takes its place."""

_CRC: Final = slice(8 + len(_CHECKSUM) - 11, 8 + len(_CHECKSUM) - 1)


def _check(content: bytes) -> None:
    """That a file is as it was written; before there were checksums it had an entry less."""
    if content[8 : _CRC.start] != _CHECKSUM[:-11].encode():
        if b'"crc32"' in content[: _CRC.stop]:
            raise ValueError("its header is not as it was written")
        return
    view = memoryview(content)
    crc = crc32(view[_CRC.stop :], crc32(b"0000000000", crc32(view[: _CRC.start])))
    if content[_CRC] != b"%010d" % crc:
        raise ValueError("its checksum is wrong")


def _by_item_size(values: StepValues) -> list[tuple[int, KeptValues]]:
    """The entries with their numbers, the largest items first, so that all are aligned."""
    numbered = list(enumerate(values.entries))
    numbered.sort(key=lambda pair: -int(pair[1].array.itemsize))
    return numbered


def _described(number: int, entry: KeptValues) -> tuple[str, str]:
    """The name of an entry, and what is said of it, as text inside of JSON's quotes."""
    source, place = _source_text(
        entry.site,
        entry.quantity,
        entry.backward,
        entry.iteration,
        entry.dtype,
        entry.shape,
        entry.batch_dim,
        entry.neurons,
        entry.neuron_step,
        entry.chosen_neurons,
    )
    return f"{number}.{place}", f"{source}{_samples_text(entry.samples, entry.data_indices)}"


@lru_cache(maxsize=1 << 14)
def _source_text(
    site: int,
    quantity: str,
    backward: str,
    iteration: int,
    dtype: str,
    shape: tuple[int, ...],
    batch_dim: int | None,
    neurons: int,
    neuron_step: int,
    chosen_neurons: tuple[int, ...] | None,
) -> tuple[str, str]:
    """What is the same in every step, and is therefore put into words once."""
    described = {
        "site": site,
        "quantity": quantity,
        "backward": backward,
        "iteration": iteration,
        "dtype": dtype,
        "shape": shape,
        "batch_dim": batch_dim,
        "neurons": neurons,
        "neuron_step": neuron_step,
    }
    if chosen_neurons is not None:
        described["chosen_neurons"] = chosen_neurons
    return _quoted(_json(described)[:-1]), _quoted(f"{site}.{quantity}.{iteration}")


@lru_cache(maxsize=64)
def _samples_text(samples: tuple[int, ...], data_indices: tuple[int | None, ...]) -> str:
    """What most entries of a step have in common."""
    return _quoted("," + _json({"samples": samples, "data_indices": data_indices})[1:])


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _quoted(text: str) -> str:
    """Text as it stands inside of JSON's quotes."""
    return json.dumps(text)[1:-1]


def read_values(path: str | Path) -> list[KeptValues]:
    """The values of a step, in the order in which they were seen.

    bfloat16 and float8 arrays have the dtypes of `ml_dtypes`; where that is not installed, bfloat16
    is widened to float32, which is exact, float8 stays the integers that have its bits, and `note`
    says so.
    """
    try:
        check_plain(Path(path))
        _check(read_plain(Path(path), _LARGEST_FILE_BYTES))
        with safe_open(str(path), framework="numpy") as file:
            told = {**(file.metadata() or {})}
            told.pop("crc32", None)
            described = {name: json.loads(text) for name, text in told.items()}
            if described.keys() != set(file.keys()):
                raise ValueError("it describes what it does not hold")
            names = sorted(file.keys(), key=lambda name: int(name.partition(".")[0]))
            return [_entry(described[name], file.get_tensor(name)) for name in names]
    except OSError as error:
        raise BacklightError(
            f"There are no raw values to read at {str(path)!r} ({error.strerror or error}): "
            "choose a step for which they were kept."
        ) from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BacklightError(
            f"The raw values in {str(path)!r} cannot be read ({reason}): "
            "the file is torn or damaged, so delete it or restore it from a copy."
        ) from None


def _entry(described: dict[str, Any], stored: Any) -> KeptValues:
    """One tensor of a file; whatever does not fit together is a ValueError or a TypeError."""
    lists = {key: tuple(value) for key, value in described.items() if isinstance(value, list)}
    entry = KeptValues(**{**described, **lists}, array=None)
    for key, is_fit in _FIT.items():
        if not is_fit(getattr(entry, key)):
            raise ValueError(f"{key} is {str(described.get(key))[:40]}")
    array, note = _decoded(stored, entry.dtype)
    if array.shape != entry.array_shape:
        raise ValueError(f"{entry.array_shape} values described, {array.shape} found")
    _check_places(entry)
    return replace(entry, array=array, note=note)


def _is_number(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_counts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_count, value))


_FIT: Final[dict[str, Callable[[Any], bool]]] = {
    "site": _is_count,
    "quantity": _is_text,
    "backward": _is_text,
    "iteration": _is_number,
    "dtype": _is_text,
    "shape": _are_counts,
    "batch_dim": lambda value: value is None or _is_count(value),
    "samples": _are_counts,
    "data_indices": lambda value: all(index is None or _is_number(index) for index in value),
    "neurons": _is_count,
    "neuron_step": lambda value: _is_count(value) and value > 0,
    "chosen_neurons": lambda value: value is None or _are_counts(value),
}
"""What is written of each; a file may say anything."""


def _check_places(entry: KeptValues) -> None:
    """That samples and neurons are places in the tensor, and that they can be listed."""
    dim, columns = entry.batch_dim, entry.array_shape[-1]
    if dim is not None and dim >= len(entry.shape):
        raise ValueError(f"no dimension {dim} in {entry.shape}")
    if len(entry.data_indices) != len(entry.samples):
        raise ValueError(f"{len(entry.samples)} samples, {len(entry.data_indices)} indices")
    if dim is not None and max(entry.samples, default=-1) >= entry.shape[dim]:
        raise ValueError(f"sample {max(entry.samples)} of {entry.shape[dim]}")
    if max(entry.chosen_neurons or (), default=-1) >= entry.neurons:
        raise ValueError(f"a neuron chosen that is not one of {entry.neurons}")
    # Without samples the file has no values, however many columns it speaks of.
    if columns > _MOST_EMPTY_COLUMNS and not entry.samples and dim is not None:
        raise ValueError(f"{columns} neurons of no sample")


def _decoded(stored: Any, dtype: str) -> tuple[Any, str]:
    """The numbers of a stored array, and a note where they are not of the dtype that it had."""
    if stored.dtype != STORED_AS[dtype]:
        raise ValueError(f"{dtype} is stored as {STORED_AS[dtype]}, and {stored.dtype} was found")
    if dtype == "complex32":  # NumPy has none
        return stored.astype(np.float32).view(np.complex64)[..., 0], ""
    if dtype.startswith("complex"):
        return stored.view(dtype)[..., 0], ""
    if STORED_AS[dtype] == dtype:
        return stored, ""
    return _small_floats(stored, dtype)


def _small_floats(bits: Any, dtype: str) -> tuple[Any, str]:
    try:
        import ml_dtypes
    except ImportError:
        if dtype == "bfloat16":
            return (bits.astype(np.uint32) << 16).view(np.float32), "bfloat16, widened to float32"
        return bits, f"the bits of {dtype}: install ml_dtypes to read them as numbers"
    if not hasattr(ml_dtypes, dtype):
        return bits, f"the bits of {dtype}: install a newer ml_dtypes to read them as numbers"
    return bits.view(getattr(ml_dtypes, dtype)), ""
