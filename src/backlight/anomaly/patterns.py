"""Patterns of names, looked for in time that grows with the names and not with the pattern.

An expression may come from someone else: `run.json` keeps those of a run. Python's own regular
expressions can take hours on a short name (`(a+)+$`); RE2, which Arrow has, cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def is_found(pattern: str, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """In which names a regular expression is found.

    >>> is_found("^enc.*weight$", ["encoder.weight", "decoder.weight"]).tolist()
    [True, False]
    """
    found = pc.match_substring_regex(pa.array(names, pa.string()), pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def fault_of(pattern: str) -> str | None:
    """What is wrong with a regular expression, if anything is.

    >>> fault_of("(a+)+$"), fault_of("(")
    (None, 'missing ): (')
    """
    try:
        is_found(pattern, [""])
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None
