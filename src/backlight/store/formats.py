"""The ranges of number formats: what is too large for each, too small, or subnormal."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import floor, log2
from typing import Any, Final

import numpy as np

from backlight.errors import BacklightError

_NUMPY_FORMATS: Final = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16")


@dataclass(frozen=True, slots=True)
class Format:
    """What a number format can hold, after rounding to the nearest.

    A magnitude above `overflow` (for negative numbers `negative_overflow`) is rounded past the
    largest number, one below `underflow` to 0, and one below `normal` has fewer digits.
    """

    name: str
    overflow: float
    negative_overflow: float
    underflow: float
    normal: float

    def before_scaling(self, power: int) -> Format:
        """What the format can hold of numbers that are multiplied by 2 to a power first.

        >>> number_format("float16").before_scaling(4).overflow
        4095.0
        """
        limits = (self.overflow, self.negative_overflow, self.underflow, self.normal)
        with np.errstate(over="ignore"):  # past float64 nothing overflows
            return Format(self.name, *(float(np.ldexp(limit, -power)) for limit in limits))


def known_formats() -> list[Format]:
    """The formats of real numbers that NumPy and, where it is installed, `ml_dtypes` know.

    The widest range first.

    >>> [each.name for each in known_formats()][:3]
    ['float64', 'float32', 'bfloat16']
    """
    found = [number_format(name) for name in ("float64", "float32", "float16")]
    try:
        ml_dtypes: Any = import_module("ml_dtypes")
    except ImportError:
        return found
    names = [name for name in dir(ml_dtypes) if name.startswith(("bfloat", "float"))]
    found += [number_format(name) for name in names]
    return sorted(found, key=lambda each: (-each.overflow, each.underflow, each.name))


def number_format(name: str) -> Format:
    """The format of a name that NumPy or `ml_dtypes` knows.

    >>> number_format("float16").overflow
    65520.0
    >>> number_format("float8_e4m3fn").overflow
    464.0
    """
    dtype = _dtype(name)
    try:
        info = _finfo(dtype)
        highest, lowest = float(info.max), float(info.min)
        half_unit = 2.0 ** (floor(log2(highest)) - int(info.nmant) - 1)
        smallest, normal = float(info.smallest_subnormal), float(info.smallest_normal)
    except ValueError:
        info = _iinfo(dtype)
        highest, lowest, half_unit, smallest, normal = int(info.max), int(info.min), 0.5, 1.0, 1.0
    return Format(
        name,
        overflow=_beyond(highest, half_unit),
        negative_overflow=_beyond(-lowest, half_unit) if lowest < 0 else 0.0,
        underflow=smallest / 2,
        normal=normal,
    )


def mantissa_bits(name: str) -> int:
    """The bits of a format's numbers after the leading one.

    >>> mantissa_bits("float8_e4m3fn"), mantissa_bits("bfloat16")
    (3, 7)
    """
    try:
        return int(_finfo(_dtype(name)).nmant)
    except ValueError:
        raise BacklightError(f"{name!r} holds whole numbers, which have no mantissa.") from None


def _beyond(highest: float, half_unit: float) -> float:
    beyond = highest + half_unit
    return beyond if np.isfinite(beyond) else highest


def _dtype(name: str) -> Any:
    if name in _NUMPY_FORMATS:
        return np.dtype(name)
    try:
        ml_dtypes = import_module("ml_dtypes")
    except ImportError:
        raise BacklightError(
            f"The format {name!r} is described by ml_dtypes, which is missing: "
            "`pip install ml_dtypes`."
        ) from None
    found = getattr(ml_dtypes, name, None)
    if not isinstance(found, type) or name in ("finfo", "iinfo") or "complex" in name:
        raise BacklightError(
            f"There is no number format {name!r}: use a name of ml_dtypes such as "
            "'bfloat16' or 'float8_e4m3fn', or one of " + ", ".join(_NUMPY_FORMATS) + "."
        )
    return np.dtype(found)


def _finfo(dtype: Any) -> Any:
    """What is known of a format of real numbers; a ValueError of one of whole numbers."""
    library: Any = np if dtype.name in _NUMPY_FORMATS else import_module("ml_dtypes")
    return library.finfo(dtype)


def _iinfo(dtype: Any) -> Any:
    library: Any = np if dtype.name in _NUMPY_FORMATS else import_module("ml_dtypes")
    return library.iinfo(dtype)
