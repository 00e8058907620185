"""What is wrong with the runs that are looked at, worked out again while they grow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

from backlight.diagnosis.engine import Diagnosis, all_rules, examine
from backlight.diagnosis.facts import facts_of
from backlight.store.reader import RunReader

_LEAST_GAP_SECS: Final = 2.0
_GAP_FACTOR: Final = 10
"""A run that grows is diagnosed again after so many times what it took: it may not be all we do."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A diagnosis, how much of the run it knows, and from when on it may be made again."""

    diagnosis: Diagnosis
    rows: dict[str, int]
    again_at: float


class Diagnoses:
    """The newest diagnosis of each run that was asked for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[Path, _Made] = {}

    def of(self, reader: RunReader) -> dict[str, Any]:
        """The findings and what was not checked; `is_behind` where the run has grown since."""
        rows = dict(reader.rows)
        with self._lock:  # two pages that ask at once wait for one answer
            made = self._made.get(reader.path)
            if made is None or (rows != made.rows and time.monotonic() >= made.again_at):
                made = self._made[reader.path] = _diagnosed(reader, rows)
        return {**made.diagnosis.to_json(), "is_behind": made.rows != rows}


def _diagnosed(reader: RunReader, rows: dict[str, int]) -> _Made:
    started = time.monotonic()
    diagnosis = examine(facts_of(reader), all_rules())
    took = time.monotonic() - started
    return _Made(diagnosis, rows, started + took + max(_LEAST_GAP_SECS, _GAP_FACTOR * took))
