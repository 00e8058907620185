"""Where in a step recording takes its time: how much longer each part of a step takes than bare.

For a look at single causes, where `run.py` says only how much it is in all: a step is taken apart
into zero_grad, forward, backward, the optimizer's step, and what the user logs. Every step is
recorded, or every 10th; of the latter, each of ten steps has a line of its own, because a step that
is not recorded is slower, too, right after one that is: the caches hold something else.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from loops import LOOPS, Loop
from rich.console import Console
from rich.progress import track
from rich.table import Table

import backlight

PARTS = ("zero_grad", "forward", "backward", "optimizer", "log")
WARM_UP, STEPS, TENTH = 81, 80, 10
"""The graph is followed in none of the steps after the warm-up; see `run.py`."""


def step(loop: Loop, run: backlight.Run | None) -> list[float]:
    """The seconds that each part of one step takes."""
    times = [time.perf_counter()]
    loop.optimizer.zero_grad()
    times.append(time.perf_counter())
    loss = loop.loss()
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    loop.optimizer.step()
    times.append(time.perf_counter())
    if run is None:
        loss.item()
    else:
        run.log(loss=loss)
    del loss  # and the graph with it, as at the end of a user's loop
    times.append(time.perf_counter())
    return [end - start for start, end in pairwise(times)]


def block(loop: Loop, root: Path, every: int | None) -> list[list[float]]:
    """The parts of some steps, bare where `every` is None."""
    if every is None:
        return [step(loop, None) for _ in range(STEPS + 5)][5:]
    with backlight.watch(loop.model, loop.optimizer, root=root, project="p", every=every) as run:
        for _ in range(WARM_UP):
            step(loop, run)
        times = [step(loop, run) for _ in range(STEPS)]
    shutil.rmtree(root / "p")
    return times


def middle(rows: list[list[float]]) -> list[float]:
    """The median of each part, and of all together, in microseconds."""
    parts = [median(part) * 1e6 for part in zip(*rows, strict=True)]
    return [*parts, median(map(sum, rows)) * 1e6]


def measure(loop_name: str, rounds: int, root: Path) -> dict[str, list[float]]:
    """The bare step, and how much more the others take."""
    torch.manual_seed(0)
    loop = LOOPS[loop_name]()
    block(loop, root, None)
    bare: list[list[float]] = []
    each: list[list[float]] = []
    tenth: list[list[float]] = []
    for _ in track(range(rounds), loop_name):
        tenth += block(loop, root, TENTH)
        bare += block(loop, root, None)
        each += block(loop, root, 1)
        bare += block(loop, root, None)
    usual = middle(bare)

    def more(rows: list[list[float]]) -> list[float]:
        return [found - known for found, known in zip(middle(rows), usual, strict=True)]

    # The last step of the warm-up is recorded, so the recorded one comes last here, too.
    found = {"bare": usual, "every step": more(each)}
    for place in range(TENTH):
        name = "the 10th" if place == TENTH - 1 else f"{place + 1} after the 10th"
        found[name] = more(tenth[place::TENTH])
    return found


def main() -> None:
    """Measure a loop and print a table in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=sorted(LOOPS), default="MLP")
    parser.add_argument("--rounds", type=int, default=12, help="how often all take turns")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        found = measure(arguments.loop, arguments.rounds, root)
    finally:
        shutil.rmtree(root)
    bare = found["bare"][-1]
    table = Table(title="µs of a bare step, and how many more others take")
    for heading in (arguments.loop, *PARTS, "in all"):
        table.add_column(heading, justify="left" if heading == arguments.loop else "right")
    for name, parts in found.items():
        table.add_row(name, *(f"{part:.0f}" for part in parts))
    console = Console()
    console.print(table)
    tenths = sum(parts[-1] for name, parts in found.items() if name.endswith("10th"))
    console.print(
        f"every step {1 + found['every step'][-1] / bare:.3f}, "
        f"every 10th {1 + tenths / TENTH / bare:.3f} of bare"
    )


if __name__ == "__main__":
    main()
