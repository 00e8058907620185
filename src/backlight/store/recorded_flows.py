"""Flows that were recorded while training: one safetensors file for each step that has any.

The file is `flows/<rank>-<step>.safetensors`. The flows between two layers are several tensors in
it, `<number>.<what>`, and an entry `<number>` of JSON in its metadata. Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from backlight.errors import BacklightError

FOLDER: Final = "flows"
_FILE: Final = re.compile(r"(\d+)-(\d+)\.safetensors")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RecordedFlows:
    """The flows between two layers in one step: all of them, or the largest."""

    source: str
    sink: str
    sample: int | None  # of the batch; None where there is no batch
    orders: tuple[int, int]  # when each layer was seen in the forward pass
    classes: tuple[str, str]  # of the modules
    loss: float | None
    count: int  # of the flows that were computed and are not 0
    size: float  # the sum of their magnitudes
    products: int  # that were computed
    products_wanted: int  # that all flows would have taken
    residual: float | None  # how far all flows are from what passes through the sink
    reach: tuple[tuple[float, float, float], ...] | None  # scale, low, high of each dimension
    secs: float
    # Arrays: cells are numbered in the order of the flattened sample.
    source_cells: Array
    sink_cells: Array
    flows: Array
    source_value: Array  # these have the shapes of a sample
    source_grad: Array
    sink_value: Array
    sink_grad: Array
    around: Array  # what of the source's gradient does not pass through the sink
    left_out: Array  # what passes through the sink by flows that are not kept

    @property
    def data_bytes(self) -> int:
        """What the arrays take."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)


_ARRAYS: Final = tuple(each.name for each in fields(RecordedFlows) if each.type in ("Array", Array))


def write_flows(path: Path, rank: int, step: int, recorded: tuple[RecordedFlows, ...]) -> int:
    """Write the flows of a step, in one piece; the answer is how many bytes that took."""
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    arrays, metadata = {}, {}
    for number, each in enumerate(recorded):
        own = {one.name: getattr(each, one.name) for one in fields(each)}
        for name in _ARRAYS:
            arrays[f"{number}.{name}"] = np.ascontiguousarray(own.pop(name))
        metadata[str(number)] = json.dumps(own)
    content = save(arrays, metadata)
    draft = folder / f".draft-{os.getpid()}"
    draft.write_bytes(content)
    draft.replace(folder / f"{rank}-{step}.safetensors")
    return len(content)


def files_of_steps(path: Path) -> dict[int, Path]:
    """The files of a run's flows by step; of several ranks, the first one's."""
    found: dict[int, Path] = {}
    folder = path / FOLDER
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _FILE.fullmatch(file.name)
        if name and not file.is_symlink():
            found.setdefault(int(name[2]), file)
    return dict(sorted(found.items()))


def read_flows(file: Path) -> list[RecordedFlows]:
    """The flows of a step, pair by pair."""
    try:
        with safe_open(str(file), "numpy") as opened:
            told = opened.metadata() or {}
            return [_read(opened, n, json.loads(told[n])) for n in sorted(told, key=int)]
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise BacklightError(
            f"The flows in {str(file)!r} cannot be read ({error}): delete the file, or restore it."
        ) from None


def _read(opened: Any, number: str, told: dict[str, Any]) -> RecordedFlows:
    lists = {name: _tuple(value) for name, value in told.items() if isinstance(value, list)}
    arrays = {name: opened.get_tensor(f"{number}.{name}") for name in _ARRAYS}
    read = RecordedFlows(**{**told, **lists}, **arrays)
    sizes = read.source_grad.size, read.sink_grad.size
    for cells, size in zip((read.source_cells, read.sink_cells), sizes, strict=True):
        if cells.shape != read.flows.shape or (
            len(cells) and not 0 <= cells.min() <= cells.max() < size
        ):
            raise ValueError("a flow is of a cell that is not there")
    return read


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
