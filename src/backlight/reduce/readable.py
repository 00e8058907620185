"""What tells of a tensor whether it can be read, and whether it has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from backlight.reduce import native

if native.is_available():
    native.connect()


State: TypeAlias = tuple[int, int]

_WITHOUT_NUMBERS: Final = frozenset(
    getattr(torch, name, None)
    for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2")
)
"""Dtypes that torch only stores: it cannot tell what number an element is."""


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be read, and is no placeholder of a tracer or a transform.

    >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
    (True, False)
    """
    return (
        tensor.device.type != "meta"
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not is_lazy(tensor)
        and type(tensor).__name__ != "FakeTensor"
        and tensor.dtype not in _WITHOUT_NUMBERS
        and _has_memory(tensor)
    )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor that is spread over several; any other tensor is itself.

    Operations on the whole would wait for the other processes, which need not record the step.
    """
    part = getattr(tensor, "_local_tensor", None) if type(tensor).__name__ == "DTensor" else None
    return tensor if part is None else part


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements are there: sharding and offloading free them and keep the tensor."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return True
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + extent) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; one of inference mode does not count."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def states_of(tensors: Sequence[torch.Tensor]) -> list[State | None]:
    """The state of each, read together."""
    numbers = native.fingerprints(tensors)
    return [
        (number, version_of(tensor)) if number else None
        for number, tensor in zip(numbers, tensors, strict=True)
    ]


def state_of(tensor: torch.Tensor, *, is_quick: bool = False) -> State | None:
    """What stays equal while a tensor does not change; None where that cannot be told.

    Some operations change a tensor without counting it as a change: the unscaling of gradients,
    the running statistics of a batch norm, whatever is done to `.data`. So its bytes are summed up
    too; where that `is_quick`, of a large tensor only some of them.

    >>> numbers = torch.ones(2)
    >>> before = state_of(numbers)
    >>> before == state_of(numbers), before == state_of(numbers.mul_(2))
    (True, False)
    """
    if not is_quick:
        return states_of([tensor])[0]
    fingerprint = native.quick_fingerprint(tensor)
    return (fingerprint, version_of(tensor)) if fingerprint else None


def mark_of(tensor: torch.Tensor) -> State | None:
    """What tells a tensor that is seen again from one that has changed; None where nothing does.

    What is written through `.data` or NumPy is not counted as a change, so some of the bytes are
    looked at. In inference mode no change is counted, so all of them are.

    >>> numbers = torch.ones(2)
    >>> before = mark_of(numbers)
    >>> numbers.data[0] = 2.0
    >>> before == mark_of(numbers)
    False
    """
    if tensor.is_inference():
        return state_of(tensor)
    return native.quick_fingerprint(tensor), tensor._version
