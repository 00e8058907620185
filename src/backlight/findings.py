"""Findings while a run trains: heard from the process that diagnoses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from backlight.schema import Finding

_LOOK_EVERY_SECS: Final = 0.1
"""A look asks the system, which a short step would feel; a finding comes after seconds anyway."""


class FindingWatch:
    """Hears of findings from a process beside the trainer, without ever waiting for it."""

    def __init__(self, path: Path, tell: Callable[[Finding], Any]) -> None:
        self.tell = tell
        self._rest = b""
        self._look_at_secs = 0.0
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "backlight.diagnosis.watcher", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    def new(self) -> list[Finding]:
        """What was found since the last call."""
        now = time.monotonic()
        if self._process is None or now < self._look_at_secs:
            return []
        self._look_at_secs = now + _LOOK_EVERY_SECS
        try:
            heard = os.read(self._output, 1 << 20)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + heard).split(b"\n")
        return [Finding.from_json(json.loads(line)) for line in lines]

    def close(self) -> None:
        """Let the process end."""
        process, self._process = self._process, None
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()
