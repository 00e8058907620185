"""One training process of a measurement: trains a block of steps whenever it is told to.

Reads the number of steps from each line of standard input, answers with the seconds they took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from loops import LOOPS

import backlight


def main(loop_name: str, every: str, root: Path) -> None:
    """Serve blocks of one loop, bare (`every` is "bare") or recorded each n-th step."""
    torch.manual_seed(0)
    loop = LOOPS[loop_name]()
    run = None
    if every != "bare":
        run = backlight.watch(
            loop.model, loop.optimizer, root=root, project=loop_name, every=int(every)
        )
    for line in sys.stdin:
        steps = int(line)
        started = time.perf_counter()
        for _ in range(steps):
            loss = loop.step()
            if run is not None:
                run.log(loss=loss)
            else:
                loss.item()
        print(time.perf_counter() - started, flush=True)
    if run is not None:
        run.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
