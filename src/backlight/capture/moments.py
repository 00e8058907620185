"""The statistics of single samples: mean, abs_mean, std and abs_max over the finite values.

Where all of a sample was copied, they are computed from the copies, of many tensors at once.
Otherwise they are computed when the tensor is seen, by the kernel or by torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from backlight.capture.copies import DTYPE_NAMES, to_host
from backlight.reduce import native
from backlight.reduce.reducer import Reducer
from backlight.store.values import STORED_AS

_REDUCED_ROWS: Final = 4096
"""How many rows the reducer holds: each has a sketch, which is not needed here."""

_CHUNK_BYTES: Final = 1 << 17
"""How much is looked at together: what is computed of it should fit a processor's cache."""

MOMENTS: Final = ("mean", "abs_mean", "std", "abs_max")

CopiedRows: TypeAlias = tuple[bytes, str, int]
"""Values, one sample after the other; the name of their dtype; how many samples they are."""


def copied_moments(copies: Sequence[CopiedRows]) -> list[Any]:
    """An array for each copy, with one row for each sample, and NaN where there is nothing.

    >>> values = np.array([1.0, 3.0, np.nan, -5.0], np.float32)
    >>> copied_moments([(values.tobytes(), "float32", 2)])[0].tolist()
    [[2.0, 2.0, 1.0, 3.0], [-5.0, 5.0, 0.0, 5.0]]
    """
    found = [None if data else np.full((rows, len(MOMENTS)), np.nan) for data, _, rows in copies]
    for places in _chunks(copies):
        moments, end = _chunk_moments([copies[place] for place in places]), 0
        for place in places:
            start, end = end, end + copies[place][2]
            found[place] = moments[start:end]
    return found


def _chunks(copies: Sequence[CopiedRows]) -> Iterator[list[int]]:
    """Places of copies that are looked at together: of one dtype, and not too many."""
    waiting: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for place, (data, dtype, _) in enumerate(copies):
        if data:
            waiting.setdefault(dtype, []).append(place)
            sizes[dtype] = sizes.get(dtype, 0) + len(data)
            if sizes[dtype] >= _CHUNK_BYTES:
                yield waiting.pop(dtype)
                del sizes[dtype]
    yield from waiting.values()


def _chunk_moments(copies: Sequence[CopiedRows]) -> Any:
    dtype = copies[0][1]
    rows = np.array([rows for _, _, rows in copies])
    item_bytes = np.dtype(STORED_AS[dtype]).itemsize
    sizes = np.array([len(data) for data, _, _ in copies]) // item_bytes // rows
    with np.errstate(all="ignore"):
        wide = _wide(b"".join([data for data, _, _ in copies]), dtype)
        return _row_moments(wide, np.repeat(sizes, rows))


def _wide(data: bytes, dtype: str) -> Any:
    """Stored values as float64, a complex number as two."""
    stored = np.frombuffer(data, STORED_AS[dtype])
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype.startswith("float8"):
        return _float8_values(dtype)[stored]
    return stored.astype(np.float64)


@lru_cache
def _float8_values(dtype: str) -> Any:
    """What each of the 256 bit patterns means."""
    bits = torch.arange(256, dtype=torch.uint8)
    return bits.view(getattr(torch, dtype)).to(torch.float64).numpy()


def _row_moments(wide: Any, sizes: Any) -> Any:
    """The moments of rows that lie one after the other; none is empty."""
    starts = np.cumsum(sizes) - sizes
    magnitude = np.abs(wide)
    abs_max = np.maximum.reduceat(magnitude, starts)
    if not np.all((abs_max < 2.0**500) & ((abs_max > 2.0**-400) | (abs_max == 0.0))):
        return _odd_row_moments(wide, sizes)
    mean = np.add.reduceat(wide, starts) / sizes
    abs_mean = np.add.reduceat(magnitude, starts) / sizes
    spread = np.subtract(wide, np.repeat(mean, sizes), out=magnitude)
    std = np.sqrt(np.add.reduceat(np.square(spread, out=spread), starts) / sizes)
    return np.stack([mean, abs_mean, std, abs_max], axis=1)


def _odd_row_moments(wide: Any, sizes: Any) -> Any:
    """The same, where some values are not finite, or so extreme that their squares are not."""
    starts = np.cumsum(sizes) - sizes
    finite = np.isfinite(wide)
    kept = np.where(finite, wide, 0.0)
    count = np.add.reduceat(finite, starts, dtype=np.float64)
    abs_max = np.maximum.reduceat(np.abs(kept), starts)
    scale = np.where(abs_max > 2.0**500, 2.0**-540, np.where(abs_max < 2.0**-400, 2.0**540, 1.0))
    scaled = kept * np.repeat(scale, sizes)
    mean = np.add.reduceat(scaled, starts) / count
    abs_mean = np.add.reduceat(np.abs(scaled), starts) / count
    spread = np.where(finite, scaled - np.repeat(mean, sizes), 0.0)
    std = np.sqrt(np.add.reduceat(np.square(spread), starts) / count)
    abs_max[count == 0] = np.nan
    return np.stack([mean / scale, abs_mean / scale, std / scale, abs_max], axis=1)


class Moments:
    """The moments of tensors of which not all is copied, computed when they are seen."""

    def __init__(self) -> None:
        self._codes = native.dtype_codes() if native.is_available() else {}
        self._reducer = Reducer()
        self.clear()

    def add(self, rows: torch.Tensor) -> int:
        """Compute them for each row, and say where `take` will have them."""
        if self._suits_kernel(rows):
            self._found.append(slice(self._reduced, self._reduced + len(rows)))
            for row in rows.unbind():
                self._reducer.observe(row, 0, 0)
                self._reduced += 1
                if self._reduced % _REDUCED_ROWS == 0:
                    self._flush()
        else:
            self._found.append(sample_moments(rows))
        return len(self._found) - 1

    def take(self) -> list[Any]:
        """An array for each `add`, with one row for each sample, and NaN where there is nothing."""
        self._flush()
        reduced = np.concatenate(self._flushed)
        others = [found for found in self._found if isinstance(found, torch.Tensor)]
        arrives = iter(to_host(others))
        return [
            reduced[found]
            if isinstance(found, slice)
            else np.frombuffer(next(arrives), DTYPE_NAMES[found.dtype]).reshape(found.shape)
            for found in self._found
        ]

    def clear(self) -> None:
        """Forget what was added."""
        self._reduced = 0
        self._flushed: list[Any] = [np.empty((0, len(MOMENTS)))]
        self._found: list[slice | torch.Tensor] = []
        self._reducer.clear()

    def _suits_kernel(self, rows: torch.Tensor) -> bool:
        """Whether the kernel can read the rows, and they are not many short ones.

        The kernel is called once for each row, and of those the calls would take longest.
        """
        is_readable = rows.is_cpu and rows.dtype in self._codes and type(rows) is torch.Tensor
        return is_readable and (len(rows) <= 64 or rows[0].numel() >= 256)

    def _flush(self) -> None:
        batch = self._reducer.take(0)
        if batch is not None:
            columns = [batch[name].to_numpy(zero_copy_only=False) for name in MOMENTS]
            self._flushed.append(np.stack(columns, axis=1))


def sample_moments(rows: torch.Tensor) -> torch.Tensor:
    """The same by torch operations, for what the kernel cannot read; it stays on its device.

    >>> sample_moments(torch.tensor([[1.0, 3.0], [float("nan"), -5.0]])).tolist()
    [[2.0, 2.0, 1.0, 3.0], [-5.0, 5.0, 0.0, 5.0]]
    """
    if rows.is_complex():
        rows = torch.view_as_real(rows)
    # Apple's devices have no float64.
    wide_dtype = torch.float32 if rows.device.type == "mps" else torch.float64
    wide = rows.unsqueeze(-1).flatten(1).to(wide_dtype)
    if wide.shape[1] == 0:
        return wide.new_full((len(wide), len(MOMENTS)), torch.nan)
    finite = wide.isfinite()
    count = finite.sum(1)
    kept = torch.where(finite, wide, 0.0)
    abs_max = kept.abs().amax(1)
    scale = _scale(abs_max)
    scaled = kept * scale.unsqueeze(1)
    mean = scaled.sum(1) / count
    spread = torch.where(finite, scaled - mean.unsqueeze(1), 0.0)
    std = (spread.square().sum(1) / count).sqrt()
    abs_mean = scaled.abs().sum(1) / count
    abs_max.masked_fill_(count == 0, torch.nan)
    return torch.stack([mean / scale, abs_mean / scale, std / scale, abs_max], 1)


def _scale(abs_max: torch.Tensor) -> torch.Tensor:
    """A power of two that keeps the squares of extreme values in the range of float64."""
    scale = torch.ones_like(abs_max)
    if scale.dtype is torch.float64:
        scale.masked_fill_(abs_max > 2.0**500, 2.0**-540)
        scale.masked_fill_(abs_max < 2.0**-400, 2.0**540)
    return scale
