"""What diagnosis costs: of a long run, and beside training.

A run of 10,000 steps and 500 sites is written as a recorder writes it, or trained, and diagnosed
by the command, as it was left and compacted. Then a loop trains with and without `run.on_finding`.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from long_runs import SITES, STEPS, record_trained_run, write_made_run

LONGEST_SECS, LARGEST_SHARE = 5.0, 0.01
_BLOCK_STEPS = 20


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


def drop_caches(path: Path) -> str:
    """Have the system forget all that it read, or at least the run's files; say which."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        forget(path)
        return "the run's files"
    return "everything"


def long_run(path: Path, state: str) -> bool:
    """Print how long the diagnosis of a long run takes; whether that is short enough."""
    warm = diagnosed(path)
    colds = []
    for _ in range(2):
        forgotten = drop_caches(path)
        colds.append(diagnosed(path, times=1).secs)
    print(
        f"  {state:24} {warm.secs:5.2f} s, of which {warm.cpu_secs:.2f} s of processor time; "
        f"{min(colds):.2f} to {max(colds):.2f} s from a cold disk ({forgotten} forgotten)",
        flush=True,
    )
    return max(warm.secs, *colds) < LONGEST_SECS


def long_runs(root: Path, *, is_trained: bool) -> bool:
    """Diagnose a long run as it was left, and compacted; those that are there are used again."""
    from backlight.store.compact import compact

    how = "trained" if is_trained else "made"
    left, compacted = root / how / "as it was left", root / how / "compacted"
    print(f"A {how} run of {STEPS} steps and about {SITES} sites:", flush=True)
    if not left.exists():
        unfinished = left.with_name("unfinished")
        write = record_trained_run if is_trained else write_made_run
        write(unfinished).rename(left)
        shutil.rmtree(unfinished)
    if not compacted.exists():
        unfinished = left.with_name("unfinished")
        shutil.copytree(left, unfinished)
        compact(unfinished)
        unfinished.rename(compacted)
    return all([long_run(left, "as it was left,"), long_run(compacted, "compacted,")])


# -- beside training


class Block(NamedTuple):
    """The processor time that some steps took, and that of the process beside them meanwhile."""

    secs: float
    beside_secs: float


def beside_training(root: Path, secs: float) -> bool:
    """Print what `run.on_finding` costs; whether that is little enough.

    One loop trains in blocks of steps, of which equally many are recorded: two loops would differ
    by the memory that they happened to get, and blocks by what is recorded in them. Three blocks
    belong together, in an order by chance: in one the run listens for findings, in two it is deaf,
    and what these two differ by is what the measurement is worth. The process beside it goes on
    meanwhile; what it takes away, of caches and memory, shows in the blocks in which it was busy.
    """
    import torch
    from loops import LOOPS

    import backlight

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the time that threads wait for each other is nobody's
    loop, chance = LOOPS["MLP"](), random.Random(0)
    blocks: dict[str, list[Block]] = {"listening": [], "deaf": [], "deaf too": []}
    children, started = Cost.now(resource.RUSAGE_CHILDREN), Cost.now()
    with backlight.watch(
        loop.model, loop.optimizer, root=root, project="beside", every=_BLOCK_STEPS // 2
    ) as run:
        run.on_finding(lambda _: None)
        watches = run._watches
        process = watches[0]._process
        while time.perf_counter() - started.secs < secs:
            for kind in chance.sample(list(blocks), len(blocks)):
                run._watches = watches if kind == "listening" else []
                before, busy = time.process_time(), _used_secs(process.pid)
                for _ in range(_BLOCK_STEPS):
                    loop.step()
                took = time.process_time() - before
                blocks[kind].append(Block(took, _used_secs(process.pid) - busy))
        run._watches = watches
        took = Cost.now().since(started).secs
    beside = Cost.now(resource.RUSAGE_CHILDREN).since(children).cpu_secs
    return _report(blocks, beside, took)


def _report(blocks: dict[str, list[Block]], beside_secs: float, secs: float) -> bool:
    own, low, high = _compared(blocks["listening"], blocks["deaf"])
    same, same_low, same_high = _compared(blocks["deaf too"], blocks["deaf"])
    every = [block for kind in blocks.values() for block in kind]
    quiet = median(block.secs for block in every if not block.beside_secs)
    busy = [block for block in every if block.beside_secs]
    taken = sum(block.secs - quiet for block in busy) / sum(block.secs for block in every)
    share = beside_secs / secs / (os.cpu_count() or 1)
    print(
        f"run.on_finding, processor time, {len(every)} blocks of {_BLOCK_STEPS} steps, "
        f"{1e3 * quiet / _BLOCK_STEPS:.2f} ms a step:\n"
        f"  the trainer that listens, against itself deaf: {own:+.2%} ({low:+.2%} to {high:+.2%})\n"
        f"  deaf against deaf, as a control:               {same:+.2%} "
        f"({same_low:+.2%} to {same_high:+.2%})\n"
        f"  {len(busy)} blocks in which the process beside it was busy took more: "
        f"{taken:+.2%} of the whole\n"
        f"  that process used {beside_secs:.2f} s in {secs:.0f} s, its start included: "
        f"{share:.2%} of the machine"
    )
    return own + share < LARGEST_SHARE


def _compared(blocks: list[Block], others: list[Block]) -> tuple[float, float, float]:
    """The median of how much longer blocks took than their neighbours, and where it surely is."""
    ratios = np.array([one.secs / other.secs for one, other in zip(blocks, others, strict=True)])
    drawn = np.random.default_rng(0).choice(ratios, (1000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(ratios)) - 1, float(low) - 1, float(high) - 1


def _used_secs(process: int) -> float:
    """The processor time that a process has used, in the ticks of Linux."""
    used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=180.0, help="how long to train")
    parser.add_argument("--only", choices=["long", "beside"])
    parser.add_argument(
        "--trained", action="store_true", help="diagnose a run that was trained, in 6 minutes"
    )
    parser.add_argument("--keep", type=Path, help="a folder to keep the long runs in")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backlight-bench-") as root:
        kept = asked.keep or Path(root)
        is_fast = asked.only == "beside" or long_runs(kept, is_trained=asked.trained)
        is_light = asked.only == "long" or beside_training(Path(root), asked.secs)
    if not is_fast or not is_light:
        sys.exit("Diagnosis costs more than it may.")


if __name__ == "__main__":
    main()
