"""Modules that compute otherwise while a function mode stands on the stack.

In evaluation, attention and the transformer's encoder run as one native operation, unless someone
looks at torch's functions. The results differ in their last bits, so nobody may look meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import (
    _global_forward_hooks,
    _global_forward_hooks_always_called,
    _global_forward_pre_hooks,
)

_HAVE_ONE: Final = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPaths:
    """Calls `leave` before a module runs that has a fast path, and `come_back` after it.

    >>> import torch
    >>> told = []
    >>> paths = FastPaths(lambda: told.append("leave"), lambda: told.append("come back"))
    >>> paths.attach()
    >>> layer = nn.TransformerEncoderLayer(4, 2, batch_first=True).eval()
    >>> _ = layer(torch.ones(1, 3, 4))
    >>> paths.detach()
    >>> told
    ['leave', 'come back']
    """

    def __init__(self, leave: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._leave = leave
        self._come_back = come_back
        self._open: list[nn.Module] = []
        self._hooks: tuple[tuple[Any, Any], ...] = (
            (_global_forward_pre_hooks, self._before),
            (_global_forward_hooks_always_called, True),
            (_global_forward_hooks, self._after),
        )
        self._thread = 0

    def attach(self) -> None:
        """Wait for such modules, in this thread."""
        self._thread = get_ident()
        # As torch registers a hook, without a handle, which an interrupt could come before.
        for places, hook in self._hooks:
            places[self] = hook

    def detach(self) -> None:
        """Wait no more."""
        self._open.clear()
        for places, _ in self._hooks:
            places.pop(self, None)

    def _before(self, module: nn.Module, args: Any) -> None:
        if isinstance(module, _HAVE_ONE) and not module.training and get_ident() == self._thread:
            self._open.append(module)
            if len(self._open) == 1:
                self._leave()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._open and self._open[-1] is module:
            self._open.pop()
            if not self._open:
                self._come_back()
