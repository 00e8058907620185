"""Blocks of a tensor that share a scale, as block-scaled formats have them, in whole numbers.

A tensor is a matrix here: its last dimension counts the columns, all others together the rows. A
scale is the greatest power of two by which nothing finite of what shares it overflows. With
magnitudes as m × 2^e, where m is at least 1/2 and below 1, comparing them with a format's limits is
a matter of exponents; so every framework gets the same shares, to the last element.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, log2

from backlight.errors import BacklightError
from backlight.store.formats import mantissa_bits, number_format


@dataclass(frozen=True)
class Blocks:
    """The shape of blocks, and of the format what decides over a scale and a loss.

    >>> blocks = Blocks.of((1, 32), "float8_e4m3fn")
    >>> blocks.top, blocks.bottom  # it holds magnitudes below 464, and above 2 to the -10
    ((0.90625, 9), -10)
    """

    rows: int
    columns: int
    top: tuple[float, int]  # as a mantissa and an exponent: what is as large is too large
    bottom: int  # 2 to this power, and all that is less, becomes 0

    @classmethod
    def of(cls, shape: object, format_name: str) -> Blocks:
        """Blocks of a shape for a format, or one sentence on what is wrong."""
        sides = list(shape) if isinstance(shape, (tuple, list)) else []
        if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
            raise BacklightError(
                f"blocks of {shape!r} have no shape: pass two numbers, such as (1, 32)."
            )
        limits = number_format(format_name)
        mantissa_bits(format_name)  # says of whole numbers that they are none
        if limits.negative_overflow == 0 or not 0 < limits.underflow < limits.normal:
            raise BacklightError(
                f"Blocks cannot be told of {format_name!r}, which holds no zero, or all of float64:"
                " use a format such as 'float8_e4m3fn'."
            )
        top = frexp(min(limits.overflow, limits.negative_overflow))
        return cls(sides[0], sides[1], top, int(log2(limits.underflow)))
