"""What number formats would lose of a run: a row for each observation and format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlight.errors import BacklightError
from backlight.store.formats import Format, mantissa_bits, number_format
from backlight.store.precision import highest_scales, losses
from backlight.store.sketch import Real

DEFAULT_FORMATS: Final = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16")
_SAID: Final = ("name", "tensor_class", "quantity", "step", "iteration", "dtype")


def precision_table(rows: pa.Table, sizes: pa.Table, formats: Sequence[str]) -> pa.Table:
    """The shares that each format loses of each row of `stats`, as it is and scaled.

    `scale` is 0 where nothing is lost, and else the greatest power of two by which nothing finite
    overflows, unless that loses more than none does: then it is 0 too. `rounding_error` is the
    expected relative error, root mean square, of what the format holds as normal numbers.
    `update_lost`, of updates, is whether the typical one is too small a part of its parameter to
    change it; `sizes` says how large parameters are. Null is what is not known, because the sketch
    of the row was left out.
    """
    if isinstance(formats, str) or not formats:
        raise BacklightError("formats= is a list of names, such as ['float8_e4m3fn'].")
    parts = _update_parts(rows, sizes)
    return pa.concat_tables([_of_format(rows, name, parts) for name in formats])


def _of_format(rows: pa.Table, name: str, update_parts: Real) -> pa.Table:
    limits = number_format(name)
    totals = np.maximum(np.asarray(rows["count"].to_numpy(), np.float64), 1.0)
    plain = losses(rows, name)
    finite = plain.overflow - np.asarray(rows["infs"].to_numpy(), np.float64)
    is_unknown = np.isnan(plain.overflow)
    loses = finite + plain.underflow + plain.subnormal > 0
    highest = losses(rows, name, highest_scales(rows, name))
    is_worse = highest.overflow + highest.underflow > plain.overflow + plain.underflow
    scale = np.where(loses & ~is_worse, highest_scales(rows, name), 0)
    scaled = losses(rows, name, scale)
    said = {each: rows[each] for each in _SAID}
    error = rounding_error(limits)

    def known(numbers: npt.NDArray[Any]) -> pa.Array:
        return pa.array(numbers, mask=is_unknown)

    return pa.table(
        {
            **said,
            "format": [name] * rows.num_rows,
            "overflow": known(plain.overflow / totals),
            "underflow": known(plain.underflow / totals),
            "subnormal": known(plain.subnormal / totals),
            "scale": known(scale),
            "scaled_underflow": known(scaled.underflow / totals),
            "scaled_subnormal": known(scaled.subnormal / totals),
            "rounding_error": np.full(rows.num_rows, error),
            "update_lost": pa.array(
                update_parts < always_lost(limits), pa.bool_(), mask=np.isnan(update_parts)
            ),
        }
    )


def rounding_error(limits: Format) -> float:
    """The expected relative error, root mean square, of rounding a normal number.

    For mantissas spread evenly between two powers of two.

    >>> round(rounding_error(number_format("float16")), 6)
    0.000199
    """
    # The spacing is u, the error u/sqrt(12), and the mean of 1/x² over [1, 2] is 1/2.
    return float(2.0 ** -mantissa_bits(limits.name) / np.sqrt(24))


def always_lost(limits: Format) -> float:
    """Below this part of a normal number, whatever is added to it in a format changes nothing.

    >>> always_lost(number_format("bfloat16")) == 2.0**-9
    True
    """
    # Half of the spacing, which is least, as a part of it, just below a power of two.
    return float(2.0 ** -(mantissa_bits(limits.name) + 2))


def _update_parts(rows: pa.Table, sizes: pa.Table) -> Real:
    """The typical update as a part of the typical parameter; NaN of what is no update."""
    key = ("name", "step", "rank")
    columns = [sizes[name].to_pylist() for name in (*key, "rms")]
    parameters = {row[:3]: row[3] for row in zip(*columns, strict=True)}
    columns = [rows[name].to_pylist() for name in (*key, "quantity", "rms")]
    found = np.full(rows.num_rows, np.nan)
    for place, row in enumerate(zip(*columns, strict=True)):
        parameter = parameters.get(row[:3])
        if row[3] == "update" and row[4] is not None and parameter:
            found[place] = row[4] / parameter
    return found
