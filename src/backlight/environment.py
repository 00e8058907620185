"""What `run.json` says of the machine and the versions."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

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
