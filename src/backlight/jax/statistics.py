"""The statistics of one array, inside of a compiled program: a row of words, as `words.py` says.

On a CPU XLA calls the C kernel. Elsewhere a row is made by operations of JAX, which accumulate in
float32 where 64 bits are not enabled; sums go by parts, so that the error hardly grows with size.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from backlight.jax.words import NUMBERS, Layout, is_native, layout_of
from backlight.reduce import native
from backlight.reduce.spec import NO_UNITS

_TARGET: Final = "backlight_observe"
_PART: Final = 256
_observe_p: Final = Primitive("backlight_observe")


def has_statistics(dtype: Any) -> bool:
    """Whether there are statistics of a dtype: keys of random numbers have none.

    >>> has_statistics(jnp.bfloat16), has_statistics(jax.random.key(0).dtype)
    (True, False)
    """
    return not jnp.issubdtype(dtype, jax.dtypes.extended) and dtype != jax.dtypes.float0


def observe(
    array: Any, old: Any = None, *, unit_dim: int = NO_UNITS, by_kernel: bool = True
) -> Any:
    """The row of an array, or of what it differs by from an `old` one; for units see `spec.py`.

    >>> words = observe(jnp.array([1.0, -3.0]))
    >>> int(words[1]), np.asarray(words[8:10]).view(np.float64)
    (2, array([-1.]))
    """
    arrays = [readable(each) for each in (array, old) if each is not None]
    if len(arrays) == 2 and not jnp.issubdtype(arrays[0].dtype, jnp.floating):
        arrays = [arrays[0] - arrays[1]]
    layout = layout_of(str(arrays[0].dtype))
    return _observe_p.bind(*arrays, unit_dim=unit_dim, layout=layout, by_kernel=by_kernel)


def readable(array: Any) -> Any:
    """The array in a dtype that is read as it is; of complex numbers both parts."""
    array = jnp.asarray(array)
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag], axis=-1)
    return array if is_native(str(array.dtype)) else array.astype(jnp.float32)


# -- by operations of JAX


def _by_operations(array: Any, *old: Any, unit_dim: int, layout: Layout, by_kernel: bool) -> Any:
    if old:
        array = array - old[0]
    counts, numbers = _moments(array.reshape(-1))
    dead, constant, batch_std = _units(array, unit_dim)
    counts = [1, *counts, dead, constant, 0]
    header = jnp.stack([jnp.asarray(count).astype(jnp.uint32) for count in counts])
    doubles = double_words(jnp.stack([*numbers, batch_std]))
    return jnp.concatenate([header, doubles, _sketch(array.reshape(-1), layout)])


def _moments(flat: Any) -> tuple[list[Any], list[Any]]:
    """How many are finite, 0, NaN, infinite; and the statistics, as `spec.py` says."""
    if flat.size == 0:
        return [0] * 4, [jnp.float32(0)] * (len(NUMBERS) - 1)
    wide = as_real(flat)
    finite = jnp.isfinite(wide)
    count = finite.sum()
    kept = jnp.where(finite, wide, 0)
    abs_max = jnp.abs(kept).max()
    # So that no square leaves the range of the numbers.
    exponent = jnp.clip(jnp.frexp(abs_max)[1], -120, 120)
    scaled, unit = jnp.ldexp(kept, -exponent), jnp.ldexp(jnp.ones_like(abs_max), exponent)
    mean = sum_by_parts(scaled) / count
    variance = sum_by_parts(jnp.where(finite, scaled - mean, 0) ** 2) / count
    zeros = (_magnitude(flat)[0] == 0).sum()
    return [count, zeros, jnp.isnan(wide).sum(), jnp.isinf(wide).sum()], [
        mean * unit,
        jnp.sqrt(variance) * unit,
        jnp.where(finite, wide, jnp.inf).min(),
        jnp.where(finite, wide, -jnp.inf).max(),
        sum_by_parts(jnp.abs(scaled)) / count * unit,
        abs_max,
        jnp.sqrt(variance + mean**2) * unit,
    ]


def as_real(array: Any) -> Any:
    """float64 where 64 bits are enabled and the numbers need them, else float32."""
    is_long = array.dtype.itemsize >= 4 and array.dtype != jnp.float32
    return array.astype(jnp.promote_types(array.dtype, jnp.float32) if is_long else jnp.float32)


def sum_by_parts(flat: Any) -> Any:
    """The sum, added up part by part, so that the error hardly grows with the size."""
    while flat.size > _PART:
        flat = jnp.pad(flat, (0, -flat.size % _PART)).reshape(-1, _PART).sum(axis=1)
    return flat.sum()


def _units(array: Any, unit_dim: int) -> tuple[Any, Any, Any]:
    has_batch = array.size > 0 and array.shape[0] > 1 if array.ndim else False
    if not (1 <= unit_dim < array.ndim and has_batch):
        return 0, 0, jnp.float32(0)
    shape = (array.shape[0], array.shape[unit_dim], -1)
    by_unit = jnp.moveaxis(as_real(array), unit_dim, 1).reshape(shape)
    dead = (by_unit == 0).all(axis=(0, 2)).sum()
    constant = (by_unit == by_unit[:1]).all(axis=(0, 2)).sum()
    spread = (by_unit - by_unit[:1]).std(axis=0).reshape(-1)
    known = jnp.isfinite(spread)
    return dead, constant, sum_by_parts(jnp.where(known, spread, 0)) / known.sum()


def _magnitude(flat: Any) -> tuple[Any, Any, Any]:
    """Each number as its sign and a whole number times a power of two, by its bits.

    So subnormals are told from 0 even where the processor flushes them to it.
    """
    if jnp.issubdtype(flat.dtype, jnp.floating):
        return _magnitude_of_bits(_float_bits(flat))
    whole = flat.astype(jnp.uint8) if flat.dtype == jnp.bool_ else flat
    unsigned = f"uint{8 * whole.dtype.itemsize}"
    negative = whole < 0
    return jnp.where(negative, -whole, whole).astype(unsigned), jnp.int32(0), negative


def _float_bits(flat: Any) -> Any:
    if flat.dtype == jnp.float64:
        return lax.bitcast_convert_type(flat, jnp.uint64)
    if flat.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(flat, jnp.uint16).astype(jnp.uint32) << 16
    return lax.bitcast_convert_type(flat.astype(jnp.float32), jnp.uint32)


def _magnitude_of_bits(bits: Any) -> tuple[Any, Any, Any]:
    mantissa_bits, exponent_bits = (52, 11) if bits.dtype == jnp.uint64 else (23, 8)
    one = bits.dtype.type(1)
    mantissa = bits & ((one << mantissa_bits) - one)
    field = ((bits >> mantissa_bits) & ((one << exponent_bits) - one)).astype(jnp.int32)
    whole = jnp.where(field > 0, mantissa | (one << mantissa_bits), mantissa)
    bias = (1 << (exponent_bits - 1)) - 1 + mantissa_bits
    return whole, jnp.maximum(field, 1) - bias, bits >> (mantissa_bits + exponent_bits) == 1


def _sketch(flat: Any, layout: Layout) -> Any:
    whole, exponent, negative = _magnitude(flat)
    top = 8 * whole.dtype.itemsize - 1 - lax.clz(whole).astype(jnp.int32)
    down = jnp.maximum(top - 2, 0).astype(whole.dtype)
    up = jnp.maximum(2 - top, 0).astype(whole.dtype)
    quarter = (((whole >> down) << up) & 3).astype(jnp.int32)
    place = 4 * (exponent + top - layout.lowest) + quarter
    half = layout.bins // 2
    is_counted = (whole != 0) & jnp.isfinite(as_real(flat))
    place = jnp.where(negative, half - 1 - place, half + place)
    counts = jnp.zeros(layout.bins + 1, jnp.uint32)
    return counts.at[jnp.where(is_counted, place, layout.bins)].add(1)[:-1]


def double_words(numbers: Any) -> Any:
    """Numbers as words of float64, low word first, without 64-bit types."""
    if numbers.dtype == jnp.float64:
        return lax.bitcast_convert_type(numbers, jnp.uint32).reshape(-1)
    bits = lax.bitcast_convert_type(numbers.astype(jnp.float32), jnp.uint32)
    field, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    wide = jnp.where(field == 0xFF, 0x7FF, field + 896)
    # What is subnormal in float32 is a normal float64.
    top = 31 - lax.clz(mantissa)
    wide = jnp.where(field == 0, jnp.where(mantissa == 0, 0, top + 874), wide)
    up = jnp.where((field == 0) & (mantissa != 0), 23 - top, 0)
    mantissa = (mantissa << up) & 0x7FFFFF
    high, low = ((bits >> 31) << 31) | (wide << 20) | (mantissa >> 3), mantissa << 29
    return jnp.stack([low, high], axis=-1).reshape(-1)


# -- by the kernel


@cache
def _has_kernel() -> bool:
    """Whether XLA can call the kernel; it is told where it is, once."""
    handler = native.xla_handler()
    if handler is not None:
        jax.ffi.register_ffi_target(_TARGET, handler, platform="cpu")
    return handler is not None


_lower_operations = mlir.lower_fun(_by_operations, multiple_results=False)


def _lower_on_cpu(
    context: Any, *arrays: Any, unit_dim: int, layout: Layout, by_kernel: bool
) -> Any:
    if not (by_kernel and _has_kernel()):
        parameters = {"unit_dim": unit_dim, "layout": layout, "by_kernel": by_kernel}
        return _lower_operations(context, *arrays, **parameters)
    rule = jax.ffi.ffi_lowering(_TARGET)
    attributes = {"first_key": np.int64(layout.first_key), "unit_dim": np.int64(unit_dim)}
    return rule(context, *arrays, **attributes)


def _shape_of_row(*arrays: Any, unit_dim: int, layout: Layout, by_kernel: bool) -> Any:
    return jax.core.ShapedArray((layout.words,), jnp.dtype(jnp.uint32))


_observe_p.def_impl(
    lambda *arrays, **parameters: jax.jit(partial(_observe_p.bind, **parameters))(*arrays)
)
_observe_p.def_abstract_eval(_shape_of_row)
mlir.register_lowering(_observe_p, _lower_operations)
mlir.register_lowering(_observe_p, _lower_on_cpu, platform="cpu")
