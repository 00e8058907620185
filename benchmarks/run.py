"""How much slower training is while it is recorded.

One training goes on in blocks of steps that take turns, in an order that changes: bare, bare again
as a control, and recorded at every step, at every 10th, and never. A ratio is the median over
rounds of a block's time divided by that of the bare block in the same round. Where the control is
off by more than 2%, the machine is too busy to tell.

It is one training for all of them: each would keep the memory that it happened to get, which alone
makes it faster or slower by more than what is to be measured. The model is made anew a few times. A
block is timed after a warm-up that ends where the first steps of a run do, which are followed more
closely: what is measured are the steps of which a long run has most.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from loops import LOOPS
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tools import watch
from trainer import ratio

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


@dataclass(frozen=True)
class Plan:
    """How many steps of a block warm up, how many are timed, and how often all take turns."""

    warm_up: int
    timed: int
    rounds: int


# The graph is followed at the 1st, 2nd, 3rd, 5th, 9th, 17th, … recorded step: no timed one is such,
# and of those at every 10th as many are recorded as it says.
PLANS = {"MLP": Plan(81, 40, 20), "GPT": Plan(21, 10, 4), "ResNet": Plan(21, 10, 6)}


def measure(loop_name: str, repeats: int, root: Path) -> dict[str, float]:
    """The ratios of one loop, and `step_ms`, the bare step's milliseconds."""
    tools = {"bare": "bare", **VARIANTS}
    times: dict[str, list[float]] = {name: [] for name in tools}
    plan, order, shuffle = PLANS[loop_name], list(tools), random.Random(0).shuffle
    for number in range(1, repeats + 1):
        torch.manual_seed(0)
        loop = LOOPS[loop_name]()
        for _ in track(range(plan.rounds), f"{loop_name:>6} {number}/{repeats}"):
            shuffle(order)
            for name in order:
                watched = watch(tools[name], loop, root)
                for _ in range(plan.warm_up):
                    watched.step()
                started = time.perf_counter()
                for _ in range(plan.timed):
                    watched.step()
                times[name].append((time.perf_counter() - started) / plan.timed)
                watched.finish()
    ratios = {name: ratio(times[name], times["bare"]) for name in VARIANTS}
    return {**ratios, "step_ms": median(times["bare"]) * 1e3}


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
    parser.add_argument("--repeats", type=int, default=3, help="how often a model is made")
    parser.add_argument("--loop", choices=sorted(BUDGETS), action="append", help="only this loop")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        loops = arguments.loop or list(BUDGETS)
        results = {loop: measure(loop, arguments.repeats, root) for loop in loops}
        show(results, bytes_per_observation(root))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
