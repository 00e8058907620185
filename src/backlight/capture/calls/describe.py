"""What is written down of an argument or a result.

A tensor becomes its shape, dtype, range and what made it; numbers, strings and None stay as they
are; anything else becomes the name of its type. The outcome is plain JSON and holds no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

MEASURED_ELEMENTS: Final = 1 << 22
"""A tensor with more elements than this is described without its range."""

_MEASURED_DTYPES: Final = frozenset(
    getattr(torch, name)
    for name in "float16 bfloat16 float32 float64 bool uint8 int8 int16 int32 int64".split()
)
_LONGEST: Final = 16  # of a tuple or list, as many items are described
_LONGEST_COUNTED: Final = 1 << 16
_MOST_VALUES: Final = 64  # of whole numbers, as many are told apart


def describe(
    value: object,
    *,
    is_measured: bool = True,
    counts_zeros: bool = False,
    is_told_apart: bool = False,
) -> Any:
    """A value as JSON.

    A tensor's `min` and `max` are those of its finite elements, beside `nans` and `infs` where it
    has any and `zeros` where they are asked for; `unmeasured` says why there is no range. `made_by`
    is the node of the autograd graph that made it, looking through views. Of what a loss compares
    (`is_told_apart`), `mean` and `std` are told, of few whole numbers how often each is there, and
    of three dimensions or more whether they are in another order than in memory (`is_turned`).

    >>> describe(torch.tensor([1.0, float("nan"), 3.0]))
    {'shape': [3], 'dtype': 'float32', 'requires_grad': False, 'min': 1.0, 'max': 3.0, 'nans': 1}
    >>> describe((2, "mean", None, float("inf"), {}))
    [2, 'mean', None, 'inf', 'dict']
    >>> describe(torch.ones(2, requires_grad=True).softmax(0).view(1, 2))["made_by"]
    'SoftmaxBackward0'
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, torch.Tensor):
        told = _describe_tensor(value, is_measured, counts_zeros)
        if is_told_apart and isinstance(told, dict) and told.get("max") is not None:
            told |= _spread(value)
        return told
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return [describe(item, is_measured=is_measured) for item in value[:_LONGEST]]
    return type(value).__name__


def _describe_tensor(tensor: torch.Tensor, is_measured: bool, counts_zeros: bool) -> Any:
    if tensor.is_nested or is_lazy(tensor):
        return type(tensor).__name__  # has no shape
    told: dict[str, Any] = {
        # str() of a symbolic size makes no guard, which int() would.
        "shape": [size if type(size) is int else str(size) for size in tensor.shape],
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "requires_grad": tensor.requires_grad,
    }
    # Reading the grad_fn of a view that was changed in place would rebuild it.
    maker = (tensor if tensor._base is None else tensor._base).grad_fn
    if maker is not None:
        told["made_by"] = maker.name()
    if is_measured:
        reason = _why_unmeasured(tensor)
        told |= {"unmeasured": reason} if reason else _measure(tensor, counts_zeros)
    return told


def _why_unmeasured(tensor: torch.Tensor) -> str:
    """Why reading the range would be slow, wrong or impossible; empty if it is none of these."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return "subclass"  # a distributed tensor, for one, would communicate
    if tensor.dtype not in _MEASURED_DTYPES or tensor.layout is not torch.strided:
        return "dtype or layout"
    if tensor.device.type == "meta":
        return "no values"
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return "graph capture"
    count = tensor.numel()
    if count > MEASURED_ELEMENTS:
        return f"more than {MEASURED_ELEMENTS} elements"
    return "" if count else "empty"


def _measure(tensor: torch.Tensor, counts_zeros: bool) -> dict[str, Any]:
    low, high = _extremes(tensor)
    if not (isfinite(low) and isfinite(high)):
        return _measure_non_finite(tensor)
    told = {"min": low, "max": high}
    if counts_zeros and low <= 0 <= high:
        told["zeros"] = tensor.numel() - int(torch.count_nonzero(tensor))
    return told


def _spread(tensor: torch.Tensor) -> dict[str, Any]:
    """How the values of a tensor differ: mean and deviation, and the counts of whole numbers."""
    flat = tensor.detach().reshape(-1)[:_LONGEST_COUNTED]
    real = flat.double()
    real = real[torch.isfinite(real)]
    if not real.numel():
        return {}
    told: dict[str, Any] = {"mean": real.mean().item(), "std": real.std(correction=0).item()}
    if tensor.ndim > 2:
        told["is_turned"] = list(tensor.stride()) != sorted(tensor.stride(), reverse=True)
    if not tensor.requires_grad:
        values, counts = torch.unique(real, return_counts=True)
        if len(values) <= _MOST_VALUES and bool((values == values.round()).all()):
            told["counts"] = [[int(v), int(c)] for v, c in zip(values, counts, strict=True)]
    return told


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    if tensor.numel() == 1:
        low = high = tensor.item()
    elif tensor.is_cpu:
        low, high = (extreme.item() for extreme in torch.aminmax(tensor))
    else:
        low, high = torch.stack(torch.aminmax(tensor)).tolist()  # one transfer
    return (int(low), int(high)) if tensor.dtype is torch.bool else (low, high)


def _measure_non_finite(tensor: torch.Tensor) -> dict[str, Any]:
    finite = tensor[torch.isfinite(tensor)]
    told: dict[str, Any] = {"min": None, "max": None}
    if finite.numel():
        told["min"], told["max"] = _extremes(finite)
    nans, infs = int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())
    return told | ({"nans": nans} if nans else {}) | ({"infs": infs} if infs else {})


_RANGE: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "min": min,
    "max": max,
    "nans": sum,
    "infs": sum,
    "zeros": sum,
    "mean": lambda both: both[0],
    "std": lambda both: both[0],
    "counts": lambda both: both[0],
}


def form(told: Any) -> Any:
    """A description without its ranges, hashable, for telling calls of the same kind.

    >>> form(describe(torch.zeros(3))) == form(describe(torch.ones(3)))
    True
    """
    if isinstance(told, dict):
        own = _RANGE if "shape" in told else {}  # an argument, too, may be named min
        return tuple((key, form(item)) for key, item in told.items() if key not in own)
    return tuple(map(form, told)) if isinstance(told, list) else told


def merge(told: Any, other: Any) -> Any:
    """Two descriptions of the same form as one: the range of both, and counts added up.

    >>> both = merge(describe(torch.tensor([0.0, 1.0])), describe(torch.tensor([-1.0, 0.5])))
    >>> both["min"], both["max"]
    (-1.0, 1.0)
    """
    if isinstance(told, list):
        return [merge(*pair) for pair in zip(told, other, strict=True)]
    if not isinstance(told, dict):
        return told
    own = _RANGE if "shape" in told else {}
    merged = {key: merge(told[key], other[key]) for key in told if key not in own}
    for key, join in own.items():
        if key in told or key in other:
            both = [side[key] for side in (told, other) if side.get(key) is not None]
            merged[key] = join(both) if both else None
    return merged
