"""What `run.json` says of the machine, the versions and the model."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch
from torch import nn

from backlight._version import __version__
from backlight.reduce import native


def describe_environment() -> dict[str, Any]:
    """The versions and the machine that a run was recorded with."""
    return {
        "backlight": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": native.is_available(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": " ".join(sys.argv),
    }


def describe_modules(model: nn.Module) -> list[dict[str, Any]]:
    """The module tree, each module with its own parameters' size and its `extra_repr`.

    >>> describe_modules(nn.Sequential(nn.PReLU()))[1]
    {'name': '0', 'class': 'PReLU', 'parameters': 1, 'extra': 'num_parameters=1'}
    """
    return [
        {
            "name": name,
            "class": type(module).__name__,
            "parameters": sum(_size(p) for p in module.parameters(recurse=False)),
            "extra": _extra_repr(module),
        }
        for name, module in model.named_modules()
    ]


def _size(parameter: nn.Parameter) -> int:
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


def _extra_repr(module: nn.Module) -> str:
    try:
        return str(module.extra_repr())
    except Exception:
        # It is the user's code, and only words: a module whose description fails is still watched.
        return ""
