"""Compacts a run in a process of its own, beside the viewer that shows it.

To sort rows takes several times their memory, and an allocator keeps most of that; it also takes
time, for which questions must not wait. The process ends with the one that started it, whose end
closes its input: wherever it is stopped, nothing is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from backlight.errors import BacklightError
from backlight.store.arrow_alone import without_pandas
from backlight.store.compact import compact
from backlight.store.messages import DamagedError

_NICENESS: Final = 10


def compact_beside(path: Path) -> None:
    """Compact a run, and wait for that; where it cannot be done, the run is read as it is."""
    words = [sys.executable, "-m", "backlight.serve.compactor", str(path)]
    with (
        suppress(OSError),
        subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        process.wait()


def main() -> None:
    """Compact the run that is named on the command line."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    Thread(target=_end_with_input, daemon=True).start()
    without_pandas()
    with suppress(BacklightError, DamagedError):
        compact(Path(sys.argv[1]))


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
