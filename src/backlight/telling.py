"""Checks what the user tells a run, and says in one sentence what is wrong with it."""

from __future__ import annotations

from typing import Any, Final

LOSS: Final = "(loss)"
"""The name of the site where the loss is seen that a backward pass starts from."""

TENSOR_KINDS: Final = ("input", "hidden", "target", "loss", "helper")


def text(value: object) -> str:
    r"""Text that can be written: halves of characters, which UTF-8 has none for, become '?'.

    >>> text("name"), text(5), text("half\ud800")
    ('name', '5', 'half?')
    """
    words = str(value)
    return words if words.isascii() else words.encode("utf-8", "replace").decode("utf-8")


def wrong_name(method: str, name: object) -> str | None:
    """What is wrong with a name that a method is given, or None.

    >>> wrong_name("run.tensor", 5)
    'run.tensor() got 5 as name: pass a text.'
    """
    if isinstance(name, str) and name:
        return None
    return f"{method}() got {name!r} as name: pass a text."


def wrong_own_name(name: str) -> str | None:
    """What is wrong with a tensor's name that Backlight itself gives, or None.

    >>> wrong_own_name("loss")
    >>> wrong_own_name("(loss)")[:60]
    "run.tensor() got '(loss)' as name, which is that of the loss"
    """
    if name != LOSS and not name.startswith(f"{LOSS}#"):
        return None
    return (
        f"run.tensor() got {name!r} as name, which is that of the loss that Backlight finds: "
        "use another one, and the loss goes by that."
    )


def wrong_tensor(name: str, tensor: Any, kind: object, batch_dim: object) -> str | None:
    """What is wrong with a tensor that is named, or None."""
    import torch

    call = f"run.tensor({name!r})"
    if not isinstance(tensor, torch.Tensor):
        return f"{call} got a {type(tensor).__name__}: pass a torch.Tensor."
    if kind not in TENSOR_KINDS:
        return f"{call} got kind={kind!r}: use {', '.join(TENSOR_KINDS)}."
    if batch_dim is None:
        return None
    if isinstance(batch_dim, bool) or not isinstance(batch_dim, int):
        return f"{call} got batch_dim={batch_dim!r}: give a number of a dimension, or None."
    if not -tensor.dim() <= batch_dim < max(tensor.dim(), 1):
        return (
            f"{call} got batch_dim={batch_dim} for a tensor of "
            f"{tensor.dim()} dimensions: give one that it has, or None."
        )
    return None


def wrong_part(name: str, part: str, value: object) -> str | None:
    """What is wrong with the node or the role of a named tensor, or None."""
    if value is None or (isinstance(value, str) and value):
        return None
    return f"run.tensor({name!r}) got {part}={value!r}: pass a text."


def wrong_batch_size(size: object) -> str | None:
    """What is wrong with a step's batch size, or None."""
    if size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0):
        return None
    return f"run.step() got batch_size={size!r}: give the number of samples, or None."


def wrong_detached(tensor: object) -> str | None:
    """What is wrong with what is to be detached, or None.

    >>> wrong_detached(5)
    'run.detach() got a int: pass a torch.Tensor.'
    """
    import torch

    if isinstance(tensor, torch.Tensor):
        return None
    return f"run.detach() got a {type(tensor).__name__}: pass a torch.Tensor."


def wrong_end(end: object) -> str | None:
    """What is wrong with an end of a connection, or None."""
    import torch

    if isinstance(end, (torch.Tensor, str)):
        return None
    return f"run.connect() got a {type(end).__name__}: pass tensors or names of sites."
