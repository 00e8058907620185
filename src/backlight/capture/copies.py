"""Copies of tensors' values: bytes in the host's memory, and elsewhere tensors on their device.

Nothing here changes the tensor that is copied, or waits for its device. A NumPy array of it would:
torch never again lets the memory be resized that NumPy was shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import string_at
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from backlight.store.values import STORED_AS

Copy: TypeAlias = bytes | torch.Tensor
"""Rows of values, one after the other: bytes, or a contiguous matrix that is not on the host."""

DTYPE_NAMES: Final = {getattr(torch, name): name for name in STORED_AS if hasattr(torch, name)}
"""The dtypes that can be kept."""

_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the host's memory holds the tensor's values one after the other, and some at all."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.dtype in DTYPE_NAMES
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not _is_transformed(tensor)
        and tensor.data_ptr() != 0
    )


def has_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values can be copied and stored."""
    is_known = tensor.is_quantized or tensor.dtype in DTYPE_NAMES
    return is_known and not (tensor.is_nested or tensor.is_meta or _is_transformed(tensor))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with nothing between them and their bytes."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def runs(places: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Places that follow each other, as (first, how many).

    >>> runs([3, 4, 5, 0, 9])
    ((3, 3), (0, 1), (9, 1))
    """
    found: list[tuple[int, int]] = []
    for place in places:
        if found and sum(found[-1]) == place:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((place, 1))
    return tuple(found)


def picked(rows: torch.Tensor, parts: Sequence[tuple[int, int]]) -> torch.Tensor:
    """These runs of rows: a view if it is one run, else a copy, without an index tensor.

    An index tensor would have to be sent to the device, and that waits for it.
    """
    found = [rows[first : first + length] for first, length in parts]
    return found[0] if len(found) == 1 else torch.cat(found)


def copy_of(values: torch.Tensor) -> Copy:
    """A copy that holds these values and no others."""
    if not _is_on_host(values):
        return values.clone(memory_format=torch.contiguous_format)
    solid = values.contiguous()
    if solid.data_ptr() == 0:  # there is nothing, or they are zeros that have no memory yet
        solid = solid.clone()
    return string_at(solid.data_ptr(), solid.nbytes)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and type(tensor) is torch.Tensor


def size_of(copy: Copy) -> int:
    """How many bytes a copy takes."""
    return len(copy) if isinstance(copy, bytes) else copy.nbytes


def pick_rows(copy: Copy, row_count: int, places: Sequence[int]) -> Copy:
    """A copy of some rows of a copy.

    >>> pick_rows(b"aabbcc", 3, [2, 0])
    b'ccaa'
    """
    if isinstance(copy, bytes):
        size = len(copy) // row_count
        return b"".join([copy[place * size : (place + 1) * size] for place in places])
    return copy_of(picked(copy, runs(places)))


def thin(copy: Copy, row_count: int, item_bytes: int, rows: int, step: int) -> Copy:
    """A copy of the first rows of a copy, and of those every `step`th column.

    >>> thin(b"abcdefgh", row_count=2, item_bytes=1, rows=1, step=2)
    b'ac'
    """
    if isinstance(copy, bytes):
        items = np.frombuffer(copy, f"V{item_bytes}").reshape(row_count, -1)
        return items[:rows, ::step].tobytes()
    return copy_of(copy[:rows, ::step])


def pick_columns(rows: torch.Tensor, places: tuple[int, ...]) -> Copy:
    """A copy of some columns of a matrix."""
    if not _is_on_host(rows):
        return copy_of(picked(rows.t(), runs(places)).t())
    items = rows.view(_ITEMS[rows.element_size()])
    return copy_of(items.index_select(1, torch.from_numpy(_index(places))))


_ITEMS: Final = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}
"""A dtype of each size of which torch can pick columns, which it cannot of all."""


@lru_cache(maxsize=256)
def _index(places: tuple[int, ...]) -> Any:
    return np.array(places, np.int64)


def to_host(copies: Sequence[Copy]) -> list[bytes]:
    """The copies as bytes; what is elsewhere comes in one transfer for each device."""
    found: dict[int, bytes] = {}
    elsewhere: dict[torch.device, list[int]] = {}
    for place, copy in enumerate(copies):
        if isinstance(copy, bytes):
            found[place] = copy
        else:
            elsewhere.setdefault(copy.device, []).append(place)
    for places in elsewhere.values():
        parts = [_flat_bytes(copies[place]) for place in places]
        host, end = torch.cat(parts).cpu().numpy(), 0
        for place, part in zip(places, parts, strict=True):
            start, end = end, end + len(part)
            found[place] = host[start:end].tobytes()
    return [found[place] for place in range(len(copies))]


def _flat_bytes(copy: Copy) -> torch.Tensor:
    assert isinstance(copy, torch.Tensor)
    return copy.reshape(-1).view(torch.uint8)
