"""Which functions are watched, and what is written down of their arguments and results.

A tensor becomes its shape, dtype, range and what made it; numbers, strings and None stay as they
are; anything else becomes the name of its type. The outcome is plain JSON and holds no tensor.
"""

from __future__ import annotations

import inspect
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from types import FunctionType
from typing import Any, Final

import torch
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

MEASURED_ELEMENTS: Final = 1 << 22
"""A tensor with more elements than this is described without its range."""

_MEASURED_DTYPES: Final = frozenset(
    getattr(torch, name)
    for name in "float16 bfloat16 float32 float64 bool uint8 int8 int16 int32 int64".split()
)
_LONGEST: Final = 16  # of a tuple or list, as many items are described

# Their tensors are activations, which are measured at the modules already.
_UNMEASURED: Final = frozenset(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout batch_norm"
    " layer_norm group_norm instance_norm rms_norm argmax argmin detach data".split()
)
_LOSSES: Final = frozenset(
    "cross_entropy kl_div binary_cross_entropy binary_cross_entropy_with_logits".split()
) | {name for name in dir(functional) if name.endswith("_loss")}

FUNCTIONS: Final[frozenset[str]] = (
    _LOSSES
    | _UNMEASURED
    | frozenset(
        "softmax log_softmax softmin gumbel_softmax sigmoid expit logsigmoid logit log log1p log2"
        " log10 exp sqrt rsqrt reciprocal acos asin div divide true_divide pow clamp clip clamp_min"
        " clamp_max one_hot normalize cosine_similarity scaled_dot_product_attention"
        " multi_head_attention_forward backward grad clip_grad_norm_ clip_grad_value_".split()
    )
)
"""What is watched, by its last name: `softmax` is also the Tensor's method, and also in place."""

# Of what is written in C, Python knows no signature.
_SIGNATURES: Final = {
    "softmax": "input dim dtype=None",
    "log_softmax": "input dim dtype=None",
    "logit": "input eps=None",
    "clamp": "input min=None max=None",
    "clip": "input min=None max=None",
    "clamp_min": "input min",
    "clamp_max": "input max",
    "div": "input other rounding_mode=None",
    "divide": "input other rounding_mode=None",
    "true_divide": "input other",
    "__rdiv__": "other input",
    "pow": "input exponent",
    "__pow__": "input exponent",
    "__ipow__": "input exponent",
    "__rpow__": "exponent input",
    "argmax": "input dim=None keepdim=False",
    "argmin": "input dim=None keepdim=False",
    "one_hot": "input num_classes=-1",
    "dropout": "input p training",
    "layer_norm": "input normalized_shape weight=None bias=None eps=1e-05",
    "group_norm": "input num_groups weight=None bias=None eps=1e-05",
    "rms_norm": "input normalized_shape weight=None eps=None",
    "batch_norm": "input weight bias running_mean running_var training momentum eps",
    "cosine_similarity": "x1 x2 dim=1 eps=1e-08",
    "scaled_dot_product_attention": "query key value attn_mask=None dropout_p=0.0 is_causal=False"
    " scale=None enable_gqa=False",
}
_ALIASES: Final = {"axis": "dim", "keepdims": "keepdim", "train": "training", "self": "input"}
_DULL: Final = {"_stacklevel", "only_inputs"}
_DULL_IF_NONE: Final = {"size_average", "reduce", "out"}

_OPERATORS: Final = {"div": ("__rdiv__",), "pow": ("__pow__", "__ipow__", "__rpow__")}
_MEASURED_ARGUMENTS: Final = {
    "scaled_dot_product_attention": frozenset({"attn_mask"}),
    "multi_head_attention_forward": frozenset({"attn_mask", "key_padding_mask"}),
    "backward": frozenset({"input", "tensors"}),
    "grad": frozenset({"outputs"}),
}
# Where a zero is a singularity of the function or of its gradient.
_ZEROS: Final = dict.fromkeys(("div", "divide", "true_divide"), "other") | dict.fromkeys(
    "log log1p log2 log10 sqrt rsqrt reciprocal pow".split(), "input"
)


@dataclass(frozen=True, slots=True)
class Watched:
    """A function that is watched, and what of its calls is written down."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    measured: frozenset[str] | None  # the arguments whose range is wanted; None: all, and results
    zeros: str  # the argument whose zeros are counted
    is_worth: Callable[[dict[str, Any]], bool]
    starts_backward: bool

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        names = self.parameters
        bound = dict(self.defaults)
        for place, value in enumerate(args):
            bound[names[place] if place < len(names) else f"argument_{place}"] = value
        for name, value in kwargs.items():
            bound[_ALIASES.get(name, name)] = value
        return bound

    def describe(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as JSON."""
        return {
            name: describe(
                value,
                is_measured=self.measured is None or name in self.measured,
                counts_zeros=name == self.zeros,
            )
            for name, value in bound.items()
            if name not in _DULL and not (value is None and name in _DULL_IF_NONE)
        }


@lru_cache(maxsize=8)
def watched_functions(names: frozenset[str]) -> dict[Any, Watched]:
    """The functions that have one of these names, each with what is written down of it.

    >>> watched = watched_functions(frozenset({"sqrt"}))
    >>> sorted(each.name for each in watched.values())
    ['torch.Tensor.sqrt', 'torch.Tensor.sqrt_', 'torch.sqrt', 'torch.sqrt_']
    """
    found: dict[Any, Watched] = {}
    for name in sorted(names):
        for path, attribute, function in _places(name):
            if callable(function):
                found.setdefault(function, _watched(name, path, attribute, function))
    return found


def _places(name: str) -> Iterator[tuple[str, str, Any]]:
    for space in (functional, torch, torch.Tensor, torch.special, torch.autograd):
        path = "torch.Tensor" if space is torch.Tensor else space.__name__
        for attribute in (name, f"{name}_"):
            yield f"{path}.{attribute}", attribute, getattr(space, attribute, None)
    for operator in _OPERATORS.get(name, ()):
        yield f"torch.Tensor.{name}", operator, getattr(torch.Tensor, operator)
    if name == "data":
        # Reading the attribute is a call of its descriptor.
        yield "torch.Tensor.data", name, vars(torch._C.TensorBase)[name].__get__


def _watched(name: str, path: str, attribute: str, function: Any) -> Watched:
    parameters, defaults = _signature(name, attribute, function)
    is_measured = name not in _UNMEASURED
    return Watched(
        name=path,
        parameters=parameters,
        defaults=defaults,
        measured=_MEASURED_ARGUMENTS.get(name) if is_measured else frozenset(),
        zeros=_ZEROS.get(name, ""),
        is_worth=_WORTH.get(name, lambda bound: True),
        starts_backward=name in ("backward", "grad"),
    )


def _signature(name: str, attribute: str, function: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The parameters in their order, and the defaults of those that a call may leave out."""
    if isinstance(function, FunctionType) and not attribute.startswith("__"):
        # Functions in Python hand all their arguments over, so their defaults are not needed.
        return tuple(
            _ALIASES.get(each, each) for each in inspect.signature(function).parameters
        ), {}
    text = _SIGNATURES.get(attribute) or _SIGNATURES.get(name) or _fallback(name)
    pairs = [each.partition("=") for each in text.split()]
    defaults = {key: literal_eval(value) for key, equals, value in pairs if equals}
    return tuple(key for key, _, _ in pairs), defaults


def _fallback(name: str) -> str:
    return "input target" if name in _LOSSES else "input"


def _divides_by_tensor(bound: dict[str, Any]) -> bool:
    """A division by a constant, such as a scale, says nothing, unless the constant is 0."""
    divisor = bound.get("other")
    return isinstance(divisor, torch.Tensor) or divisor == 0


def _has_a_singular_power(bound: dict[str, Any]) -> bool:
    """Squares and other whole powers are smooth everywhere."""
    exponent = bound.get("exponent")
    if not isinstance(exponent, (int, float)):
        return True
    return exponent < 0 or not float(exponent).is_integer()


def _cuts_the_graph(bound: dict[str, Any]) -> bool:
    tensor = bound.get("input")
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad


_WORTH: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "div": _divides_by_tensor,
    "divide": _divides_by_tensor,
    "true_divide": _divides_by_tensor,
    "pow": _has_a_singular_power,
    "detach": _cuts_the_graph,
    "data": _cuts_the_graph,
}


def describe(value: object, *, is_measured: bool = True, counts_zeros: bool = False) -> Any:
    """A value as JSON.

    A tensor's `min` and `max` are those of its finite elements, beside `nans` and `infs` where it
    has any and `zeros` where they are asked for; `unmeasured` says why there is no range. `made_by`
    is the node of the autograd graph that made it, looking through views.

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
        return _describe_tensor(value, is_measured, counts_zeros)
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return [describe(item, is_measured=is_measured) for item in value[:_LONGEST]]
    return type(value).__name__


class Quiet:
    """Inside it tensors are read unseen: by autograd, by the user's modes and tensor classes.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with Quiet():
    ...     y = x * 2
    >>> y.requires_grad, torch.is_grad_enabled()
    (False, True)
    """

    __slots__ = ("_functions", "_had_grad", "_modes")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._had_grad = torch._C.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._modes is not None:
            self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._modes is not None:
            self._modes.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._had_grad)
        self._functions.__exit__(None, None, None)


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
