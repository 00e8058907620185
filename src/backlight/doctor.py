"""Says what is installed and what is missing, and what that means for recording and viewing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final

from backlight._version import __version__

OLDEST_PYTHON: Final = (3, 10)
OLDEST_TORCH: Final = (2, 4)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: str  # "ok", "warning" or "missing"
    what: str
    found: str
    meaning: str
    is_fatal: bool = False  # neither recording nor viewing works without it

    def as_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything that Backlight needs or can use.

    >>> [finding.what for finding in examine()][:2]
    ['Python', 'backlight']
    """
    looks: tuple[Callable[[], Finding], ...] = (
        _python,
        _backlight,
        _kernel,
        _compiler,
        _torch,
        lambda: _library("numpy", "recording and viewing need it"),
        lambda: _library("pyarrow", "recording and viewing need it"),
        lambda: _library("duckdb", "viewing needs it"),
        lambda: _library("starlette", "viewing needs it"),
        lambda: _library("uvicorn", "viewing needs it"),
        _page,
    )
    return [look() for look in looks]


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("missing", "Python", version, "Backlight needs 3.10 or newer", True)
    return Finding("ok", "Python", version, "new enough")


def _backlight() -> Finding:
    return Finding("ok", "backlight", __version__, "this package")


def _kernel() -> Finding:
    try:
        from backlight.reduce import native
    except Exception as error:  # whatever a broken installation raises
        return Finding("warning", "kernel", _brief(error), "recording is slower without it")
    if native.is_available():
        lanes = f"compiled, {native.use_lanes()} floats at a time"
        return Finding("ok", "kernel", lanes, "recording on CPU is fast")
    meaning = f"recording is slower: {native.why_unavailable()}"
    return Finding("warning", "kernel", "not there", meaning)


def _compiler() -> Finding:
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    names = [str(named).split()[0], "cc", "gcc", "clang", "cl"]
    found = next((name for name in names if shutil.which(name)), None)
    if found:
        return Finding("ok", "C compiler", found, "the kernel can be compiled again")
    return Finding("warning", "C compiler", "not there", "only compiling the kernel needs one")


def _torch() -> Finding:
    try:
        version = str(import_module("torch").__version__)
    except ImportError:
        meaning = "recording PyTorch needs torch>=2.4; viewing works without"
        return Finding("missing", "torch", "not there", meaning)
    except Exception as error:  # whatever a broken installation raises
        return Finding("missing", "torch", _brief(error), "torch is broken: install it again", True)
    if _leading_numbers(version) < OLDEST_TORCH:
        return Finding("warning", "torch", version, "recording PyTorch needs torch>=2.4", True)
    return Finding("ok", "torch", version, "PyTorch can be recorded")


def _library(name: str, meaning: str) -> Finding:
    try:
        version = str(import_module(name).__version__)
    except Exception as error:  # whatever a broken installation raises
        return Finding("missing", name, _brief(error), f"{meaning}: pip install {name}", True)
    return Finding("ok", name, version, meaning)


def _page() -> Finding:
    try:
        from backlight.serve.app import NO_BUNDLE, has_bundle
    except Exception as error:  # a library that is missing has its own line
        return Finding("missing", "page", _brief(error), "viewing needs it", True)
    if has_bundle():
        return Finding("ok", "page", "built", "the viewer can be opened")
    return Finding("missing", "page", "not built", NO_BUNDLE, True)


def _leading_numbers(version: str) -> tuple[int, int]:
    """The first two numbers of a version.

    >>> _leading_numbers("2.13.0+cpu"), _leading_numbers("nightly")
    ((2, 13), (0, 0))
    """
    parts = version.split(".")[:2]
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        return 0, 0
    return int(parts[0]), int(parts[1])


def _brief(error: Exception) -> str:
    return type(error).__name__
