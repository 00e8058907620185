"""One training process of a measurement: trains a block of steps whenever it is told to.

Reads the number of steps from each line of standard input, and answers with the seconds they took,
or with why it cannot.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import torch
from loops import LOOPS
from tools import watch

LARGEST_BYTES = 8 * 2**30


def serve(loop_name: str, tool: str, root: Path) -> None:
    """Train blocks of one loop under one tool."""
    # What a tool prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # A tool that keeps every value must not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))
    try:
        torch.manual_seed(0)
        watched = watch(tool, LOOPS[loop_name](), root)
        for line in sys.stdin:
            steps = int(line)
            watched.step()  # brings back to the caches what other processes took
            started = time.perf_counter()
            for _ in range(steps):
                watched.step()
            print(time.perf_counter() - started, file=answers)
        watched.finish()
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        print(f"failed: {type(error).__name__}: {first_line}", file=answers)
        raise


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
