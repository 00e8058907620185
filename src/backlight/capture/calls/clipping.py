"""Gradient clipping: a plain function that no mode sees, but it calls some that are seen."""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch.nn.utils import clip_grad

from backlight.capture.calls.describe import describe
from backlight.capture.calls.functions import Watched

CLIPPING: Final = vars(clip_grad)
"""The globals of every frame in which gradients are clipped."""

CLIPPERS: Final = frozenset(
    "clip_grad_norm_ clip_grad_norm clip_grad_value_ _clip_grads_with_norm_".split()
)
_CALLS: Final = (
    torch.clamp,  # of the coefficient, by which norms are clipped
    torch.tensor,  # of 0, where there are no gradients
    torch._foreach_clamp_min_,  # of the values
    torch.Tensor.clamp_,
)
_WATCHED: Final = Watched("gradient clipping", (), {}, None, "", lambda bound: False, False)

CLIPPING_CALLS: Final = dict.fromkeys(_CALLS, _WATCHED)
"""What clipping calls, each once, and what the user's code may call too."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """A call of one of the clipping functions."""

    function: str
    arguments: dict[str, Any]
    total_norm: Any
    caller: FrameType | None


def clipping_in(frame: FrameType | None, args: tuple[Any, ...]) -> Clipping | None:
    """The clipping whose frames begin with this one, or None if it is not its first call."""
    known: dict[str, Any] = {}
    clipper = ""
    while frame is not None and frame.f_globals is CLIPPING:
        if frame.f_code.co_name in CLIPPERS:
            clipper = frame.f_code.co_name.lstrip("_")
            known |= frame.f_locals
        frame = frame.f_back
    if not clipper or ("clip_value" in known and not _is_first(known, args)):
        return None
    names = "max_norm norm_type error_if_nonfinite clip_value".split()
    arguments = {name: describe(known[name]) for name in names if name in known}
    arguments["gradients"] = len(_gradients(known))
    total_norm = None if "clip_value" in known else describe(known.get("total_norm", 0.0))
    return Clipping(f"torch.nn.utils.{clipper}", arguments, total_norm, frame)


def _gradients(known: dict[str, Any]) -> list[torch.Tensor]:
    if "grouped_grads" not in known:
        return list(known.get("grads", ()))
    return [each for lists, _ in known["grouped_grads"].values() for each in lists[0]]


def _is_first(known: dict[str, Any], args: tuple[Any, ...]) -> bool:
    """Values are clipped group by group or tensor by tensor, and that is one call."""
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    return first is _gradients(known)[0]
