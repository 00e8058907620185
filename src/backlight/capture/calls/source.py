"""The line of the user's code that a call stands in."""

from __future__ import annotations

import linecache
import os
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.amp import grad_scaler
from torch.nn.utils import clip_grad


class Line(NamedTuple):
    """A line of code, and the code of a function that calls another in its name."""

    source: str
    text: str
    calling: CodeType


def line_of(frame: FrameType) -> Line:
    """The line that a frame stands in."""
    file, number = frame.f_code.co_filename, frame.f_lineno or 1  # made-up code may have no line
    text = linecache.getline(file, number, frame.f_globals).strip()
    # Torch aims warnings, such as that of a loss that broadcasts, at its caller's line. Called from
    # here they would name this file, so the call is made in the name of the user's line.
    calling = _call.__code__.replace(co_filename=file, co_firstlineno=number - 1)
    return Line(f"{file}:{number}", text, calling)


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def find_caller(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code, or else of a library; None if we called."""
    library = None
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner == "recorder" and library is None:
            return None
        # A mode of the user's only hands on what others called.
        if owner != "torch" and frame.f_code.co_name != "__torch_function__":
            if owner == "user":
                return frame
            library = library or frame
        frame = frame.f_back
    return library


@cache
def _owner(file: str) -> str:
    """Whose code a file is: the user's, a library's, the recorder's, or torch's and Python's."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    if "site-packages" in file or "dist-packages" in file:
        return "library"
    return "torch" if file.startswith((_STANDARD_LIBRARY, "<frozen ", _FX)) else "user"


_HERE: Final = str(Path(__file__).parents[2]) + os.sep
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib") + os.sep
_FX: Final = "<eval_with_key>"  # the code that torch.fx writes
_OWNERS: Final = (
    (_HERE + "demo", "user"),
    (_HERE, "recorder"),
    # What these compute for themselves is no call of the user's.
    (clip_grad.__file__, "recorder"),
    (grad_scaler.__file__, "recorder"),
    (_TORCH + "optim", "recorder"),
    (_TORCH, "torch"),
)
