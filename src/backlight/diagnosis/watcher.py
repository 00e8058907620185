"""Diagnoses a run while it is written, in a process of its own, and prints what is new.

`run.on_finding` starts it. The rules need the reader, which a trainer must not load, and time,
which training must not wait for; so they run beside it, at the lowest priority and for a small
share of the time. It ends with the process that started it, whose end closes its input.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from backlight.diagnosis.cause import SURE
from backlight.diagnosis.engine import all_rules, examine
from backlight.diagnosis.facts import facts_of
from backlight.store.arrow_alone import without_pandas
from backlight.store.sparse import SparseStats

SHARE: Final = 0.005
"""Of the machine's time, at most, once it has started; never more than twice that of a core's."""

_LEAST_STEPS: Final = 10
_LEAST_GAP_SECS: Final = 1.0


def main() -> None:
    """Watch the run that is named on the command line, until the input is closed."""
    _step_back()
    without_pandas()
    stats, told = SparseStats(Path(sys.argv[1])), set[str]()
    gap_secs = _LEAST_GAP_SECS
    while not select.select([sys.stdin], [], [], gap_secs)[0]:
        started = time.process_time()
        if stats.refresh() and len(stats.recorded_steps) >= _LEAST_STEPS:
            for finding in examine(facts_of(stats.reader, stats), all_rules()):
                if finding.score >= SURE and finding.id not in told:
                    told.add(finding.id)
                    print(json.dumps(finding.to_json()), flush=True)
        took = time.process_time() - started
        gap_secs = max(_LEAST_GAP_SECS, took / (SHARE * min(_cores(), 2)))


def _step_back() -> None:
    """Take the lowest priority, among all processes.

    Not SCHED_IDLE: where every core trains, it would not be heard of again. Where Linux shares the
    time out among sessions, this process is alone in its own, and so the session has to step back.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
