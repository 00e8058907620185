"""Statistics that are built in and computed only where they are asked for, by torch operations.

In float64, a piece at a time that fits into a processor's cache. Nothing waits for the device.
"""

from __future__ import annotations

from typing import Final

import torch

from backlight.own.blocks import Blocks
from backlight.own.statistic import Statistic

_PIECE: Final = 1 << 15


def built_in(statistic: Statistic, tensor: torch.Tensor) -> torch.Tensor:
    """One of them, as a tensor of one float64; NaN where the tensor has nothing finite.

    >>> half = torch.tensor([1e-7, -6e4, 0.0], dtype=torch.float16)
    >>> built_in(Statistic("rm8"), half)
    tensor(52301.1326, dtype=torch.float64)
    """
    if statistic.blocks is not None:
        return _of_blocks(tensor, *statistic.blocks)
    if statistic.name == "min_abs":
        return _least_magnitude(tensor)
    return _power_mean(tensor, int(statistic.name.removeprefix("rm")))


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a format that every operation knows: what is narrow or whole is widened."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = torch.float64 if tensor.dtype in (torch.float64, torch.int64) else torch.float32
    return tensor.to(wide)


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    flat = as_numbers(tensor).reshape(-1)
    size = _PIECE if flat.device.type == "cpu" else max(1, flat.numel())
    return list(flat.split(size)) if flat.numel() else []


def _magnitudes(piece: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The magnitudes of a piece as float64, and which of them are finite."""
    wide = piece.to(torch.float64).abs()
    return wide, torch.isfinite(wide)


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full((), torch.nan, dtype=torch.float64, device=tensor.device)


def _least_magnitude(tensor: torch.Tensor) -> torch.Tensor:
    found = []
    for piece in _pieces(tensor):
        wide, is_finite = _magnitudes(piece)
        found.append(wide.masked_fill_(~is_finite, torch.inf).min())
    return torch.stack(found).min() if found else _nan(tensor)


def _power_mean(tensor: torch.Tensor, power: int) -> torch.Tensor:
    """(mean |x|^power)^(1/power), with numbers scaled so that no power overflows."""
    pieces = _pieces(tensor)
    if not pieces:
        return _nan(tensor)
    largest = torch.stack([_largest(piece) for piece in pieces]).max()
    exponent = torch.frexp(largest).exponent
    total, count = torch.zeros_like(largest), torch.zeros_like(largest)
    for piece in pieces:
        wide, is_finite = _magnitudes(piece)
        scaled = torch.ldexp(wide, -exponent).masked_fill_(~is_finite, 0.0)
        for _ in range(power.bit_length() - 1):
            scaled.mul_(scaled)
        total += scaled.sum()
        count += is_finite.sum()
    return torch.ldexp((total / count).pow(1 / power), exponent)


def _largest(piece: torch.Tensor) -> torch.Tensor:
    wide, is_finite = _magnitudes(piece)
    return wide.masked_fill_(~is_finite, 0.0).max()


# -- blocks


def _of_blocks(tensor: torch.Tensor, blocks: Blocks, part: str) -> torch.Tensor:
    wide = as_numbers(tensor).to(torch.float64).abs()
    if wide.numel() == 0:
        return _nan(tensor)
    wide = wide.masked_fill(~torch.isfinite(wide), 0.0)
    if part == "lost":
        return _lost(wide.reshape(1, -1), blocks) / wide.numel()
    cells = _cells(wide, blocks)
    if part == "block_lost":
        return _lost(cells, blocks) / wide.numel()
    most = cells.amax(dim=1)
    has_any = most > 0
    powers = torch.where(has_any, most, 1.0).log2()
    count = has_any.sum()
    mean = torch.where(has_any, powers, 0.0).sum() / count
    squares = torch.where(has_any, (powers - mean) ** 2, 0.0)
    return (squares.sum() / count).sqrt()


def _cells(wide: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """A row for each block, with zeros where it reaches over the tensor's end."""
    matrix = wide.reshape(-1, wide.shape[-1] if wide.dim() else 1)
    down, right = -matrix.shape[0] % blocks.rows, -matrix.shape[1] % blocks.columns
    matrix = torch.nn.functional.pad(matrix, (0, right, 0, down))
    shape = (-1, blocks.rows, matrix.shape[1] // blocks.columns, blocks.columns)
    return matrix.reshape(shape).transpose(1, 2).reshape(-1, blocks.rows * blocks.columns)


def _lost(cells: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """How many elements become 0, with a scale for each row."""
    mantissa, exponent = torch.frexp(cells.amax(dim=1, keepdim=True))
    scale = blocks.top[1] - exponent - (mantissa >= blocks.top[0]).to(exponent.dtype)
    limit = blocks.bottom - scale
    mantissa, exponent = torch.frexp(cells)
    is_small = (exponent <= limit) | ((exponent == limit + 1) & (mantissa == 0.5))
    return (is_small & (cells > 0)).sum().to(torch.float64)
