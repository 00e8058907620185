"""Environments of other tools, made once under the user's cache folder.

Each has its tool, and by a path file everything that is installed here: torch first of all.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

INSTALL_SECS = 240


class UnavailableError(Exception):
    """A tool cannot be had here; the text says why."""


def cache_folder() -> Path:
    """Where the environments stay between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "backlight-bench"


def environment(requirement: str) -> Path:
    """The Python of a tool's environment, which is made if there is none."""
    torch = importlib.metadata.version("torch").partition("+")[0]
    tag = f"{requirement.replace('==', '-')}-torch-{torch}-{sys.implementation.cache_tag}"
    folder = cache_folder() / tag
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _install(requirement, folder, python, torch)
        (folder / "installed").touch()
    return python


def _install(requirement: str, folder: Path, python: Path, torch: str) -> None:
    try:
        _run("making an environment", sys.executable, "-m", "venv", str(folder))
        packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        borrowed = packages / "site-packages" / "borrowed.pth"
        borrowed.write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "constraints.txt").write_text(f"torch=={torch}\n")
        constraints = ["-c", str(folder / "constraints.txt")]
        _run(
            "pip",
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--no-input",
            *constraints,
            requirement,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"it could not be installed: {error}") from error


def _run(doing: str, *command: str) -> None:
    """Run a command quietly, or say how it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECS)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UnavailableError(f"it could not be installed: {doing} failed: {last}")
