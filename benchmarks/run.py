"""How much slower training is while it is recorded.

One training goes on in blocks of steps that take turns, in an order that changes: bare, bare again
as a control, and recorded at every step, at every 10th, and never. Between any two blocks there is
a bare one, so that each is compared with what came right before and right after it: a virtual
machine's speed changes within seconds. A block's time is the median over its tens of steps, of
which each has its share of recorded ones, so that a pause that some other process made does not
count; a ratio is the median over all rounds. Where the control is off by more than 2%, the machine
is too busy to tell.

It is one training for all of them: each would keep the memory that it happened to get, which alone
makes it faster or slower by more than what is to be measured. The model is made anew a few times. A
block is timed after a warm-up that ends where the first steps of a run do, which are followed more
closely: what is measured are the steps of which a long run has most. What a block has written is
deleted after it, so that the next one is given memory that was used before: a virtual machine that
was started a while ago may wait longer for its first use of a page than it takes to fill it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
import torch
from loops import LOOPS
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tools import Watched, watch

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
    """How many steps of a block warm up, how many tens are timed, and how often all take turns."""

    warm_up: int
    tens: int
    rounds: int


# The graph is followed at the 1st, 2nd, 3rd, 5th, 9th, 17th, … recorded step: no timed one is such,
# and of those at every 10th as many are recorded as it says.
PLANS = {"MLP": Plan(81, 4, 20), "GPT": Plan(21, 1, 4), "ResNet": Plan(21, 1, 6)}
BARE_WARM_UP = 3


@dataclass
class Measured:
    """What was measured of one loop: times of single steps, in seconds, and ratios of them."""

    bare: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in VARIANTS})
    written_bytes: int = 0
    observations: int = 0


def time_block(watched: Watched, warm_up: int, tens: int) -> float:
    """Seconds that a step takes: the median over tens of steps, after some that do not count."""
    for _ in range(warm_up):
        watched.step()
    times = []
    for _ in range(tens):
        started = time.perf_counter()
        for _ in range(10):
            watched.step()
        times.append((time.perf_counter() - started) / 10)
    return median(times)


def measure(loop_name: str, repeats: int, root: Path) -> Measured:
    """Let all variants of one loop take turns with bare training."""
    measured, plan = Measured(), PLANS[loop_name]
    order, shuffle = list(VARIANTS), random.Random(0).shuffle
    for number in range(1, repeats + 1):
        torch.manual_seed(0)
        loop = LOOPS[loop_name]()
        bare = watch("bare", loop, root)
        before = time_block(bare, plan.warm_up, plan.tens)
        for _ in track(range(plan.rounds), f"{loop_name:>6} {number}/{repeats}"):
            shuffle(order)
            for name in order:
                watched = watch(VARIANTS[name], loop, root)
                own = time_block(watched, plan.warm_up, plan.tens)
                watched.finish()
                after = time_block(bare, BARE_WARM_UP, plan.tens)
                measured.ratios[name].append(own / ((before + after) / 2))
                measured.bare.append(after)
                before = after
                weigh(root, measured)
    return measured


def weigh(root: Path, measured: Measured) -> None:
    """Count what a block has written before compaction, and delete it."""
    for file in root.glob("*/*/stats/*.arrows"):
        measured.written_bytes += file.stat().st_size
        measured.observations += pa.ipc.open_stream(file).read_all().num_rows
    for project in root.iterdir():
        shutil.rmtree(project)


def show(results: dict[str, Measured]) -> None:
    """Print the table: ratios to bare training, each with the budget it must keep."""
    table = Table(title="time of a training step, as a ratio to bare training, of its budget")
    for heading in ("loop", "bare step", *VARIANTS):
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    noisy = []
    for loop, measured in results.items():
        cells = [loop, f"{median(measured.bare) * 1e3:.2f} ms"]
        ratios = {name: median(each) for name, each in measured.ratios.items()}
        for name in VARIANTS:
            budget = BUDGETS[loop].get(name)
            cells.append(f"{ratios[name]:.2f}" + (f" of {budget:.2f}" if budget else ""))
        table.add_row(*cells)
        if abs(ratios["control"] - 1) > NOISE:
            noisy.append(loop)
    console = Console()
    console.print(table)
    if noisy:
        console.print(f"too much else is running to tell: the control of {', '.join(noisy)} is off")
    written = sum(each.written_bytes for each in results.values())
    observations = sum(each.observations for each in results.values())
    console.print(f"{written / observations:.0f} bytes an observation, before compaction")


def main() -> None:
    """Measure the loops that are asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="how often a model is made")
    parser.add_argument("--loop", choices=sorted(BUDGETS), action="append", help="only this loop")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        loops = arguments.loop or list(BUDGETS)
        show({loop: measure(loop, arguments.repeats, root) for loop in loops})
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
