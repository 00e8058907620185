"""Which functions are watched, and what of their calls is written down."""

from __future__ import annotations

import inspect
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import FunctionType
from typing import Any, Final

import torch
from torch.nn import functional

from backlight.capture.calls.describe import describe

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
        " multi_head_attention_forward backward grad clip_grad_norm_ clip_grad_value_"
        " sub subtract view reshape".split()
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
    "sub": "input other alpha=1",
    "subtract": "input other alpha=1",
    "__rsub__": "other input",
    "view": "input",
    "reshape": "input",
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

_OPERATORS: Final = {
    "div": ("__rdiv__",),
    "pow": ("__pow__", "__ipow__", "__rpow__"),
    "sub": ("__sub__", "__rsub__"),
}
_MEASURED_ARGUMENTS: Final = {
    "view": frozenset[str](),
    "reshape": frozenset[str](),
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
    is_loss: bool = False

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
                is_told_apart=self.is_loss,
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
        is_loss=name in _LOSSES or name in ("sub", "subtract"),
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


def _compares(bound: dict[str, Any]) -> bool:
    """What a network says, minus what it should say; or shapes that were not meant to meet."""
    one, other = bound.get("input"), bound.get("other")
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    if one.requires_grad == other.requires_grad or min(one.numel(), other.numel()) < 2:
        return False
    if one.shape == other.shape:
        return True
    size = torch.broadcast_shapes(one.shape, other.shape).numel()
    return one.dim() != other.dim() and size > max(one.numel(), other.numel())


def _turns(bound: dict[str, Any]) -> bool:
    """A new shape that has the second dimension first, as if dimensions had been swapped."""
    tensor, *asked = bound.values()
    if len(asked) == 1 and isinstance(asked[0], (tuple, list)):
        asked = list(asked[0])
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or len(asked) < 2:
        return False
    if asked[0] == -1:
        asked[0] = tensor.numel() // max(1, prod(asked[1:]))
    first, second = tensor.shape[:2]
    return bool(asked[0] == second and 1 < first != second > 1)


def _cuts_the_graph(bound: dict[str, Any]) -> bool:
    tensor = bound.get("input")
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad


_WORTH: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "div": _divides_by_tensor,
    "divide": _divides_by_tensor,
    "true_divide": _divides_by_tensor,
    "pow": _has_a_singular_power,
    "sub": _compares,
    "subtract": _compares,
    "view": _turns,
    "reshape": _turns,
    "detach": _cuts_the_graph,
    "data": _cuts_the_graph,
}
