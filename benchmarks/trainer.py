"""Training processes that take turns, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from rich.progress import track

HERE = Path(__file__).parent
BLOCK_SECS = 0.4
WARM_UP_STEPS = 20
PATIENCE_SECS = 60


class ToolError(Exception):
    """A tool cannot watch this loop; the text says why."""


class Trainer:
    """A worker process that trains blocks of steps on demand."""

    def __init__(
        self, loop: str, tool: str, root: Path, *, python: str | Path = sys.executable
    ) -> None:
        self.steps = WARM_UP_STEPS
        self._process = subprocess.Popen(
            [str(python), str(HERE / "worker.py"), loop, tool, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def train(self) -> float:
        """Seconds that a step took, on average over a block of `steps`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{self.steps}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says why before it ends
        if not select.select([self._process.stdout], [], [], PATIENCE_SECS)[0]:
            self._process.kill()
            raise ToolError(f"{self.steps} steps took longer than {PATIENCE_SECS} s")
        answer = self._process.stdout.readline().strip()
        if not answer or answer.startswith("failed"):
            raise ToolError(answer.partition(": ")[2] or "the process ended without a word")
        return float(answer) / self.steps

    def warm_up(self, shortest_block: int) -> None:
        """Train a little, and find out how many steps make a block."""
        for self.steps in (2, WARM_UP_STEPS):
            secs = self.train()
            if secs * WARM_UP_STEPS > BLOCK_SECS * 5:
                break
        tens = round(BLOCK_SECS / secs / 10) * 10
        self.steps = max(tens, shortest_block)

    def close(self) -> None:
        """End the process as a finished script would."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def take_turns(
    trainers: Mapping[str, Trainer],
    rounds: int,
    description: str,
    *,
    shortest_block: int = 10,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The seconds of a step in each round, by name, and why any trainer failed."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    failures: dict[str, str] = {}
    try:
        for name, trainer in trainers.items():
            try:
                trainer.warm_up(shortest_block)
            except ToolError as failure:
                failures[name] = str(failure)
        for number in track(range(rounds), description):
            for name in list(trainers)[:: 1 if number % 2 else -1]:
                if name in failures:
                    continue
                try:
                    times[name].append(trainers[name].train())
                except ToolError as failure:
                    failures[name] = str(failure)
    finally:
        for trainer in trainers.values():
            trainer.close()
    return times, failures


def ratio(own: list[float], bare: list[float]) -> float:
    """The median over rounds of a trainer's time by that of the bare one in the same round."""
    return median(a / b for a, b in zip(own, bare, strict=True))
