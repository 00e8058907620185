"""How much slower training is while it is recorded.

For each loop, five processes take turns: bare training, bare training again as a control, and
training recorded at every step, at every 10th, and never. Blocks of steps alternate, so that what
else the machine does hits all of them alike; a ratio is the median over rounds of a process's
time divided by that of the bare process in the same round, and of that the median over several
starts. Where the control is off by more than 2%, the machine is too busy to tell.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from trainer import Trainer, ratio, take_turns

NOISE = 0.02
VARIANTS = {
    "control": "bare",
    "every step": "backlight:1",
    "every 10th": "backlight:10",
    "not recorded": "backlight:1000000000",
}
BUDGETS = {
    "MLP": {"every step": 1.50, "every 10th": 1.06, "not recorded": 1.01},
    "GPT": {"every step": 1.15, "every 10th": 1.03, "not recorded": 1.01},
    "ResNet": {"every step": 1.25, "every 10th": 1.03, "not recorded": 1.01},
}


def measure(loop: str, repeats: int, rounds: int, root: Path) -> dict[str, float]:
    """The ratios of one loop, and `step_ms`, the bare step's milliseconds.

    A process keeps the memory that it happened to get, which makes it faster or slower for good by
    more than what is to be measured. So all are started anew several times.
    """
    tools = {"bare": "bare", **VARIANTS}
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    steps: list[float] = []
    for number in range(1, repeats + 1):
        trainers = {name: Trainer(loop, tool, root) for name, tool in tools.items()}
        times, failures = take_turns(trainers, rounds, f"{loop:>6} {number}/{repeats}")
        if failures:
            raise SystemExit(f"{loop}: {failures}")
        steps += times["bare"]
        for name in VARIANTS:
            ratios[name].append(ratio(times[name], times["bare"]))
    return {**{name: median(each) for name, each in ratios.items()}, "step_ms": median(steps) * 1e3}


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
    noisy = [loop for loop, each in results.items() if abs(each["control"] - 1) > NOISE]
    if noisy:
        console.print(f"too much else is running to tell: the control of {', '.join(noisy)} is off")
    console.print(f"{bytes_each:.0f} bytes an observation in the stream, before compaction")


def main() -> None:
    """Measure the loops that are asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often all processes start")
    parser.add_argument("--rounds", type=int, default=4, help="blocks of each process")
    parser.add_argument("--loop", choices=sorted(BUDGETS), action="append", help="only this loop")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        loops = arguments.loop or list(BUDGETS)
        results = {loop: measure(loop, arguments.repeats, arguments.rounds, root) for loop in loops}
        show(results, bytes_per_observation(root))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
