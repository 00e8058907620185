"""How much slower training is while it is recorded.

For each loop, five processes take turns: bare training, bare training again as a control, and
training recorded at every step, at every 10th, and never. Blocks of steps alternate, so that what
else the machine does hits all of them alike; a ratio is the median over rounds of a process's
time divided by that of the bare process in the same round.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

HERE = Path(__file__).parent
BLOCK_SECS = 0.6
VARIANTS = {"control": "bare", "every step": "1", "every 10th": "10", "not recorded": "1000000000"}
BUDGETS = {
    "MLP": {"every step": 1.50, "every 10th": 1.06, "not recorded": 1.01},
    "GPT": {"every step": 1.15, "every 10th": 1.03, "not recorded": 1.01},
    "ResNet": {"every step": 1.25, "every 10th": 1.03, "not recorded": 1.01},
}


class Trainer:
    """A worker process that trains blocks of steps on demand."""

    def __init__(self, loop: str, every: str, root: Path) -> None:
        command = [sys.executable, str(HERE / "worker.py"), loop, every, str(root)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def train(self, steps: int) -> float:
        """Seconds that a block of steps took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process as a finished script would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(loop: str, rounds: int, root: Path) -> dict[str, float]:
    """The ratios of one loop, and `step_ms`, the bare step's milliseconds."""
    trainers = {"bare": Trainer(loop, "bare", root)}
    trainers |= {name: Trainer(loop, every, root) for name, every in VARIANTS.items()}
    try:
        for trainer in trainers.values():
            trainer.train(20)
        steps = max(10, round(BLOCK_SECS / trainers["bare"].train(20) * 20 / 10) * 10)
        times: dict[str, list[float]] = {name: [] for name in trainers}
        for number in track(range(rounds), description=f"{loop:>6}, {steps} steps a block"):
            order = list(trainers) if number % 2 else list(reversed(trainers))
            for name in order:
                times[name].append(trainers[name].train(steps))
    finally:
        for trainer in trainers.values():
            trainer.close()
    ratios = {
        name: median(own / bare for own, bare in zip(times[name], times["bare"], strict=True))
        for name in VARIANTS
    }
    return {**ratios, "step_ms": median(times["bare"]) / steps * 1000}


def bytes_per_observation(root: Path) -> float:
    """What an observation takes on disk before compaction, over all runs under `root`."""
    import pyarrow as pa

    size = rows = 0
    for file in root.glob("*/*/stats/*.arrows"):
        size += file.stat().st_size
        rows += pa.ipc.open_stream(file).read_all().num_rows
    return size / rows


def show(results: dict[str, dict[str, float]], bytes_each: float) -> None:
    """Print the table: ratios to bare training, each with the budget it must keep."""
    table = Table(title="time of a training step, as a ratio to bare training, of its budget")
    for heading in ("loop", "bare step", *VARIANTS):
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    for loop, result in results.items():
        cells = [loop, f"{result['step_ms']:.2f} ms"]
        for name in VARIANTS:
            budget = BUDGETS[loop].get(name)
            cells.append(f"{result[name]:.2f}" + (f" of {budget:.2f}" if budget else ""))
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(f"{bytes_each:.0f} bytes an observation in the stream, before compaction")


def main() -> None:
    """Measure the loops that are asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="blocks that each process trains")
    parser.add_argument("--loop", choices=sorted(BUDGETS), action="append", help="only this loop")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        loops = arguments.loop or list(BUDGETS)
        results = {loop: measure(loop, arguments.rounds, root) for loop in loops}
        show(results, bytes_per_observation(root))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
