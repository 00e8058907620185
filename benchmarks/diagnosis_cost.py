"""What diagnosis costs: of a long run, and beside training.

A run of 10,000 steps and 500 sites is written as a recorder writes it, and diagnosed by the
command, as it was left and once more compacted. Then a loop trains in turns, with and without
`run.on_finding`.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

STEPS, SITES = 10_000, 500
LONGEST_SECS, LARGEST_SHARE = 5.0, 0.01
_TURN_STEPS = 5


class Cost(NamedTuple):
    """What something took."""

    secs: float
    cpu_secs: float

    @classmethod
    def now(cls, who: int = resource.RUSAGE_SELF) -> Cost:
        """What this process, or those that it waited for, took so far."""
        used = resource.getrusage(who)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime)

    def since(self, before: Cost) -> Cost:
        """The difference."""
        return Cost(self.secs - before.secs, self.cpu_secs - before.cpu_secs)


# -- a long run


def write_long_run(root: Path) -> Path:
    """A finished run in streams, a batch for each step, as a trainer leaves it."""
    from store_data import made_site, rows

    from backlight.schema import FORMAT_VERSION, RunInfo
    from backlight.store.writer import RunWriter, create_run_folder

    path = create_run_folder(root, "bench", "long")
    writer = RunWriter(path)
    now = time.time()
    info = RunInfo(FORMAT_VERSION, "bench", "bench", "long", now, "bench", os.getpid(), 0.0)
    writer.write_info(info)
    writer.append_rows("sites", [asdict(made_site(number)) for number in range(SITES)])
    sites = np.arange(SITES)
    for step in range(STEPS):
        table = rows(sites, np.full(SITES, step), with_sketches=True)
        writer.append("stats", table.combine_chunks().to_batches()[0])
        told = {"kind": "train", "recorded": True, "reason": "every step", "iterations": 1}
        times = {"started_at": now + step, "duration_secs": 0.1, "recording_secs": 0.01}
        loss = {"batch_size": 32, "graph": "", "loss": 4 / (1 + step / 100), "learning_rate": 1e-3}
        writer.append_rows("steps", [{"step": step, **told, **times, **loss}])
    writer.close()
    info.ended, info.ended_at = "finished", now + STEPS
    writer.write_info(info)
    return path


def diagnosed(path: Path, times: int = 3) -> Cost:
    """What the command takes, its start included: the best of several."""
    costs = []
    for _ in range(times):
        before, children = Cost.now(), Cost.now(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "backlight", "diagnose", str(path)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        after = Cost.now(resource.RUSAGE_CHILDREN).since(children)
        costs.append(Cost(Cost.now().since(before).secs, after.cpu_secs))
    return min(costs)


def forget(path: Path) -> None:
    """Have the system forget what it holds of a run's files."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def long_run(root: Path) -> bool:
    """Print how long a long run takes; whether that is short enough."""
    from backlight.store.compact import compact

    print(f"A run of {STEPS} steps and {SITES} sites is written.", flush=True)
    path, is_fast = write_long_run(root), True
    for state in ("as it was left", "compacted"):
        if state == "compacted":
            compact(path)
        forget(path)
        cold, warm = diagnosed(path, times=1), diagnosed(path)
        is_fast &= warm.secs < LONGEST_SECS
        print(
            f"  {state:15} {warm.secs:5.2f} s, of which {warm.cpu_secs:.2f} s of processor time; "
            f"{cold.secs:.2f} s from a cold disk"
        )
    return is_fast


# -- beside training


def beside_training(root: Path, secs: float) -> bool:
    """Print what `run.on_finding` costs; whether that is little enough.

    One loop trains in turns of a few steps, and its run listens in every other turn: two loops
    would differ by the memory that they happened to get. What else the machine does hits both.
    """
    import torch
    from loops import LOOPS

    import backlight

    torch.set_num_threads(1)
    loop, chance = LOOPS["MLP"](), random.Random(0)
    costs: dict[bool, list[float]] = {False: [], True: []}
    children, started = Cost.now(resource.RUSAGE_CHILDREN), Cost.now()
    with backlight.watch(loop.model, loop.optimizer, root=root, project="beside") as run:
        run.on_finding(lambda _: None)
        watches, deaf = run._watches, []
        while time.perf_counter() - started.secs < secs:
            # By chance: a regular order could go along with that of the recorded steps.
            listens = chance.random() < 0.5
            run._watches = watches if listens else deaf
            before = time.process_time()
            for _ in range(_TURN_STEPS):
                loop.step()
            costs[listens].append((time.process_time() - before) / _TURN_STEPS)
        run._watches = watches
        took = Cost.now().since(started).secs
    beside = Cost.now(resource.RUSAGE_CHILDREN).since(children).cpu_secs
    own = median(costs[True]) / median(costs[False]) - 1
    share = beside / took / (os.cpu_count() or 1)
    print(
        f"run.on_finding, {len(costs[True]) * _TURN_STEPS} steps with it and about as many "
        f"without, in turns, {1e3 * median(costs[False]):.2f} ms a step:\n"
        f"  the trainer's own processor time {own:+.2%}\n"
        f"  the process beside it used {beside:.2f} s in {took:.0f} s, its start included: "
        f"{share:.2%} of the machine"
    )
    return own + share < LARGEST_SHARE


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=180.0, help="how long to train")
    parser.add_argument("--only", choices=["long", "beside"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backlight-bench-") as root:
        is_fast = asked.only == "beside" or long_run(Path(root))
        is_light = asked.only == "long" or beside_training(Path(root), asked.secs)
    if not is_fast or not is_light:
        sys.exit("Diagnosis costs more than it may.")


if __name__ == "__main__":
    main()
