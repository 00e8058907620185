"""Statistics that are built in and computed only where they are asked for, inside of a program.

Magnitudes are compared by their bits, so that numbers which the processor takes for 0 are told
apart. Sums are accumulated in float32, by parts, or in float64 where 64 bits are enabled.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import jax.numpy as jnp
from jax import lax

from backlight.jax.statistics import as_real, readable, sum_by_parts
from backlight.own.blocks import Blocks
from backlight.own.statistic import Statistic


def built_in(statistic: Statistic, array: Any) -> Any:
    """One of them; NaN where the array has nothing finite.

    >>> half = jnp.array([1e-7, -6e4, 0.0], jnp.float16)
    >>> round(float(built_in(Statistic("rm8"), half)))
    52301
    """
    array = as_real(readable(array))
    if array.size == 0:
        return jnp.float32(jnp.nan)
    is_finite = jnp.isfinite(array)
    bits = _magnitude_bits(array)
    if statistic.blocks is not None:
        blocks, part = statistic.blocks
        return _of_blocks(jnp.where(is_finite, bits, 0), blocks, part)
    if statistic.name == "min_abs":
        infinity = _magnitude_bits(jnp.full((), jnp.inf, array.dtype))
        return lax.bitcast_convert_type(jnp.where(is_finite, bits, infinity).min(), array.dtype)
    flat, power = array.reshape(-1), int(statistic.name.removeprefix("rm"))
    return _power_mean(flat, is_finite.reshape(-1), power)


def _magnitude_bits(array: Any) -> Any:
    """The bits of the magnitudes, which grow with them."""
    is_double = array.dtype == jnp.float64
    bits = lax.bitcast_convert_type(array, jnp.uint64 if is_double else jnp.uint32)
    return bits & bits.dtype.type((1 << (63 if is_double else 31)) - 1)


def _parts(bits: Any) -> tuple[Any, Any]:
    """Magnitudes as m × 2^e with m from 1/2 to 1: the bits of m after the first, and e."""
    size, lowest = (52, -1074) if bits.dtype == jnp.uint64 else (23, -149)
    one = bits.dtype.type(1)
    mantissa, exponent = bits & ((one << size) - one), (bits >> size).astype(jnp.int32)
    top = 8 * bits.dtype.itemsize - 1 - lax.clz(mantissa).astype(jnp.int32)
    up = jnp.clip(size - top, 0, size).astype(bits.dtype)
    shifted = (mantissa << up) & ((one << size) - one)
    is_normal = exponent > 0
    return (
        jnp.where(is_normal, mantissa, shifted),
        jnp.where(is_normal, exponent + lowest + size, top + lowest + 1),
    )


def _power_mean(flat: Any, is_finite: Any, power: int) -> Any:
    """(mean |x|^power)^(1/power), with numbers scaled so that no power overflows."""
    kept = jnp.where(is_finite, jnp.abs(flat), 0)
    exponent = jnp.clip(jnp.frexp(kept.max())[1], -120, 120)
    scaled = jnp.ldexp(kept, -exponent)
    for _ in range(power.bit_length() - 1):
        scaled = scaled * scaled
    mean = sum_by_parts(scaled) / is_finite.sum()
    return jnp.ldexp(mean ** (1 / power), exponent)


# -- blocks


def _of_blocks(bits: Any, blocks: Blocks, part: str) -> Any:
    if part == "lost":
        return _lost(bits.reshape(1, -1), blocks) / bits.size
    cells = _cells(bits, blocks)
    if part == "block_lost":
        return _lost(cells, blocks) / bits.size
    most = cells.max(axis=1)
    mantissa, exponent = _parts(most)
    size = 52 if bits.dtype == jnp.uint64 else 23
    real = jnp.float64 if size == 52 else jnp.float32
    powers = exponent - 1 + jnp.log2(1 + mantissa.astype(real) / (1 << size))
    has_any = most > 0
    count = has_any.sum()
    mean = sum_by_parts(jnp.where(has_any, powers, 0)) / count
    return jnp.sqrt(sum_by_parts(jnp.where(has_any, (powers - mean) ** 2, 0)) / count)


def _cells(bits: Any, blocks: Blocks) -> Any:
    """A row for each block, with zeros where it reaches over the array's end."""
    matrix = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)
    down, right = -matrix.shape[0] % blocks.rows, -matrix.shape[1] % blocks.columns
    matrix = jnp.pad(matrix, ((0, down), (0, right)))
    shape = (-1, blocks.rows, matrix.shape[1] // blocks.columns, blocks.columns)
    return matrix.reshape(shape).swapaxes(1, 2).reshape(-1, blocks.rows * blocks.columns)


def _lost(cells: Any, blocks: Blocks) -> Any:
    """How many elements become 0, with a scale for each row."""
    size = 52 if cells.dtype == jnp.uint64 else 23
    mantissa, exponent = _parts(cells.max(axis=1, keepdims=True))
    too_large = ceil((2 * blocks.top[0] - 1) * (1 << size))
    scale = blocks.top[1] - exponent - (mantissa >= too_large).astype(jnp.int32)
    limit = blocks.bottom - scale
    mantissa, exponent = _parts(cells)
    is_small = (exponent <= limit) | ((exponent == limit + 1) & (mantissa == 0))
    return (is_small & (cells > 0)).sum()
