"""Reads tensors without anyone noticing."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


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
