"""What observers and hooks on modules are made of: the kernel's types, or the same in Python."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import unserializable_hook

from backlight.capture import apart
from backlight.reduce import native

if TYPE_CHECKING or native.is_available():
    from backlight.reduce._kernel import (
        Call,
        Callee,
        CallHooks,
        Held,
        Seen,
        Sights,
        are_held,
        connect_sight,
        find_held,
        has_strangers,
        hook_held,
        sizes_differ,
        unhook_held,
    )

    connect_sight(
        OrderedDict,
        torch._C._current_graph_task_id,
        torch._C._get_tracing_state,
        apart.threads,
    )
else:
    from backlight.capture.plain import (
        Call,
        Callee,
        CallHooks,
        Held,
        Seen,
        Sights,
        are_held,
        find_held,
        has_strangers,
        hook_held,
        sizes_differ,
        unhook_held,
    )

for hook in (Seen, Held):
    unserializable_hook(hook)  # torch would warn of it where a tensor is saved in a step

__all__ = [
    "Call",
    "CallHooks",
    "Callee",
    "Held",
    "Seen",
    "Sights",
    "are_held",
    "find_held",
    "has_strangers",
    "hook_held",
    "sizes_differ",
    "unhook_held",
]
