"""A row of statistics as it leaves the device: words of 32 bits, the same for every way to make it.

The first `HEADER` words are counts and numbers, the others count the bins of the dtype's sketch,
the most negative one first. A row whose first word is 0 was not made: its branch did not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from backlight.schema import SKETCH_BIAS

COUNTS: Final = ("present", "finite", "zeros", "nans", "infs", "dead_units", "constant_units")
NUMBERS: Final = ("mean", "std", "min", "max", "abs_mean", "abs_max", "rms", "batch_std")
FIRST_NUMBER: Final = 8
HEADER: Final = FIRST_NUMBER + 2 * len(NUMBERS)
"""Counts, a word that is not used, and then each number as the two words of a float64."""

_EXPONENTS: Final = {
    "float64": (-1074, 1023),
    "float32": (-149, 127),
    "bfloat16": (-133, 127),
    "float16": (-24, 15),
    "float8_e4m3fn": (-9, 8),
    "float8_e5m2": (-16, 15),
    "float8_e4m3fnuz": (-10, 7),
    "float8_e5m2fnuz": (-17, 15),
    "int64": (0, 63),
    "int32": (0, 31),
    "int16": (0, 15),
    "int8": (0, 7),
    "uint64": (0, 63),
    "uint32": (0, 31),
    "uint16": (0, 15),
    "uint8": (0, 7),
    "bool": (0, 0),
}
"""The exponents of the smallest and of the largest magnitude of a dtype other than 0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the sketch of a dtype lies in its words.

    >>> layout_of("float16")
    Layout(lowest=-24, bins=320)
    >>> layout_of("float16").words
    344
    """

    lowest: int
    bins: int

    @property
    def words(self) -> int:
        """The length of a row."""
        return HEADER + self.bins

    @property
    def first_key(self) -> int:
        """The key of the smallest positive number."""
        return 4 * (self.lowest + SKETCH_BIAS) + 1


def is_native(dtype: str) -> bool:
    """Whether numbers of a dtype are read as they are, and not converted to float32 before."""
    return dtype in _EXPONENTS


def layout_of(dtype: str) -> Layout:
    """The layout of a dtype's rows; what has none of its own is read as float32."""
    dtype = "float64" if dtype == "complex128" else dtype
    lowest, highest = _EXPONENTS.get(dtype, _EXPONENTS["float32"])
    return Layout(lowest, 8 * (highest - lowest + 1))
