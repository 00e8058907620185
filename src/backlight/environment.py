"""What `run.json` says of the machine and the versions."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from backlight._version import __version__
from backlight.reduce import native


def describe_environment(**framework: Any) -> dict[str, Any]:
    """The versions and the machine that a run was recorded with, and what the framework tells."""
    return {
        "backlight": __version__,
        "python": platform.python_version(),
        "kernel": native.is_available(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "command": " ".join(sys.argv),
        **framework,
    }


def jax_facts() -> dict[str, Any]:
    """The version of JAX and what it computes on."""
    import jax

    devices = jax.devices()
    return {
        "jax": jax.__version__,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
    }


def torch_facts() -> dict[str, Any]:
    """The version of PyTorch and what it computes on."""
    import torch

    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
