"""The statistics of single samples, by the kernel where it can and by torch elsewhere."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from backlight.reduce import native
from backlight.reduce.reducer import Reducer

_REDUCED_ROWS: Final = 4096
"""How many rows the reducer holds: each has a sketch, which is not needed here."""

MOMENTS: Final = ("mean", "abs_mean", "std", "abs_max")


class Moments:
    """The mean, abs_mean, std and abs_max of each sample, over its finite values."""

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
            reduced[found] if isinstance(found, slice) else next(arrives).view(dtype_name(found))
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


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype, without torch's own."""
    return str(tensor.dtype).removeprefix("torch.")


def to_host(tensors: list[torch.Tensor]) -> list[Any]:
    """The rows of contiguous matrices as arrays of bytes; one copy for each device."""
    found: dict[int, Any] = {}
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        contents = [tensors[place].view(torch.uint8) for place in places]
        arrays = [c.numpy() for c in contents] if device.type == "cpu" else _in_one_copy(contents)
        found.update(zip(places, arrays, strict=True))
    return [found[place] for place in range(len(tensors))]


def _in_one_copy(contents: list[torch.Tensor]) -> list[Any]:
    host = torch.cat([content.reshape(-1) for content in contents]).cpu()
    parts = host.split([content.numel() for content in contents])
    return [
        part.numpy().reshape(content.shape) for part, content in zip(parts, contents, strict=True)
    ]
