"""Numbers for people: counts, times and sizes in few characters."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SIZES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def count(value: int) -> str:
    """A whole number with its thousands apart.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def number(value: float | None) -> str:
    """Four digits of a number; a dash where there is none.

    >>> number(0.123456), number(None), number(float("nan"))
    ('0.1235', '-', 'nan')
    """
    return "-" if value is None else f"{value:.4g}"


def age(secs: float) -> str:
    """A time that has passed.

    >>> age(4), age(90), age(7200), age(200_000)
    ('4 s', '2 min', '2 h', '2 d')
    """
    return _scaled(secs, _TIMES, "s")


def size(value_bytes: int) -> str:
    """How many bytes.

    >>> size(512), size(7_676_080)
    ('512 B', '8 MB')
    """
    return _scaled(value_bytes, _SIZES, "B")


def _scaled(value: float, units: tuple[tuple[float, str], ...], least: str) -> str:
    for factor, unit in units:
        if value >= factor:
            return f"{value / factor:.0f} {unit}"
    return f"{value:.0f} {least}"
