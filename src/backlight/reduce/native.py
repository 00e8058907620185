"""Rows by the C kernel: CPU tensors, one or many in a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from backlight.schema import PLAIN_STATS, QUANTITIES
from backlight.store.packed import Packed

try:
    from backlight.reduce import _kernel
except ImportError as _error:
    _kernel = None  # type: ignore[assignment]
    _why = f"the kernel was not compiled when Backlight was installed ({_error})"
else:
    _why = ""

can_write: Final = hasattr(_kernel, "Sink")
"""Whether the kernel writes messages to files here."""

pack_rows: Final[Callable[..., tuple[int, bytes, bytes, bytes] | None]] = getattr(
    _kernel, "pack_rows", None
)  # type: ignore[assignment]
"""What `Packed` has beside a schema, of rows whose columns have these names and kinds.

A kind is q for int64, i for int32, d for double, b for bool, s for text. The answer is None where a
value is of another one."""


def is_available() -> bool:
    """Whether the C kernel was compiled and loads here."""
    return _kernel is not None


def why_unavailable() -> str:
    """Why the kernel cannot be used, in a few words; empty if it can."""
    return _why


def dtype_codes() -> dict[Any, int]:
    """The kernel's number for each torch dtype that it reads."""
    import torch

    known = ((getattr(torch, name, None), code) for code, name in enumerate(_kernel.DTYPES))
    return {dtype: code for dtype, code in known if dtype is not None}


def connect(*, use_exchange: bool = True) -> None:
    """Tell the kernel where torch's classes and functions are.

    Where torch has DLPack's exchange API (2.10 and later), tensors are read by the C function that
    it names; otherwise, or where `use_exchange` is false, by their attributes.
    """
    import torch

    name = "__dlpack_c_exchange_api__"
    _kernel.connect(
        torch.Tensor,
        torch.nn.Parameter,
        torch.Tensor.is_neg,
        torch.Tensor.untyped_storage,
        torch.UntypedStorage.data_ptr,
        torch.UntypedStorage.nbytes,
        torch.get_num_threads,
        dtype_codes(),
        getattr(torch.Tensor, name, None) if use_exchange else None,
    )


def new_course(**given: Any) -> _kernel.Course:
    """What sees steps through that are not recorded; see `backlight.course`."""
    connect()
    return _kernel.Course(**given)


def new_ear(
    original: Callable[..., Any], listeners: dict[Any, int], tell: Callable[[Any], None]
) -> Callable[..., Any]:
    """A function that calls `original`, and before it what listens to its first argument.

    Where several listen, or it is not one tensor, that is done by `tell`.
    """
    connect()
    return _kernel.Ear(original, listeners, tell)


def new_likeness(*given: Any) -> _kernel.Likeness:
    """What begins captured steps that are like the last one; see `backlight.capture.likeness`."""
    return _kernel.Likeness(*given)


def new_sink(*given: Any) -> _kernel.Sink:
    """What messages of a stream are written by; see `backlight.store.streams`.

    It takes the `pattern` and `places` of the `Heading` of their schema, the schema's checksum, and
    how many bytes a file may have before it is full.
    """
    return _kernel.Sink(*given)


def new_table() -> _kernel.Table:
    """An empty table that the kernel fills, tensor by tensor."""
    connect()
    return _kernel.Table()


def quick_fingerprint(tensor: Any) -> int:
    """A number that changes with where a tensor lies and with its bytes.

    Of more than a few pages only 128 lines of memory, far apart, are looked at. It is 0 where the
    kernel cannot read the tensor.
    """
    return 0 if _kernel is None else _kernel.fingerprint(tensor)


def fingerprints(tensors: Sequence[Any]) -> list[int]:
    """A number for each tensor that changes with where it lies and with any of its bytes."""
    return [0] * len(tensors) if _kernel is None else _kernel.fingerprints(tensors)


def use_lanes(most: int = 16) -> int:
    """Let the kernel work on at most so many floats at a time; the answer is how many that are.

    As many as the processor can, if it is not told otherwise: 1, 8 (AVX2) or 16 (AVX-512).
    """
    return _kernel.use_lanes(most)


def xla_handler() -> object | None:
    """What XLA calls on a CPU for the row of a buffer, as a capsule; None without the kernel."""
    return None if _kernel is None else _kernel.xla_handler()


def pack(table: _kernel.Table, step: int, backwards: list[str]) -> Packed:
    """The table's rows as rows of `stats`.

    A row's quantity counts through `QUANTITIES` once for each of the `backwards`.
    """
    packed = table.pack(step, QUANTITIES, tuple(backwards))
    return Packed(PLAIN_STATS, *packed, is_finite=table.is_finite())
