"""What a run writes besides statistics, and when: steps, scalars, notes and `run.json`.

A recorded step is written as soon as it ends, and what is logged after it at once. Other steps, and
the scalars logged in them, are written together, every fifth of a second.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from backlight.blackbox import StepRecord
from backlight.errors import Guard
from backlight.schema import FORMAT_VERSION, SCALARS, STEPS, RunInfo
from backlight.store.runs import process_started
from backlight.store.writer import RunWriter

_FLUSH_SECS = 0.2


class Journal:
    """The written side of a run. Once the disk fails, it stops and says so; training goes on."""

    def __init__(
        self,
        writer: RunWriter,
        project: str,
        config: Mapping[str, Any],
        guard: Guard,
        earlier: RunInfo | None = None,
    ) -> None:
        self._writer = writer
        self._guard = guard
        self._steps: list[dict[str, Any]] = []
        self._scalars: list[tuple[int, str, float, float]] = []
        self._flushed_at = time.monotonic()
        self._is_last_recorded = False
        self._graphs: set[str] = set()
        self._is_stopped = False
        self._totals = {"steps": 0, "recorded_steps": 0, "observations": 0}
        self._secs = {"training": 0.0, "recording": 0.0}
        self._info = RunInfo(
            format=FORMAT_VERSION,
            id=uuid.uuid4().hex,
            project=project,
            name=writer.path.name,
            created_at=time.time(),
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_started=process_started(os.getpid()),
            config=dict(config),
        )
        if earlier is not None:
            self._info.id, self._info.created_at = earlier.id, earlier.created_at
            self._info.config = {**earlier.config, **config}

    def start(self, environment: dict[str, Any], modules: list[dict[str, Any]]) -> None:
        """Write `run.json` for the first time."""
        self._info.environment = environment
        self._info.modules = modules
        self._writer.write_info(self._info)

    def sites(self, new_sites: list[dict[str, Any]]) -> None:
        """Write sites, before the first statistics that name them."""
        self._try(self._writer.append_rows, "sites", new_sites)

    def record(self, record: StepRecord) -> None:
        """Write what was captured of a step, and note the step."""
        if record.stats is not None and record.row["recorded"]:
            self._try(self._writer.append, "stats", record.stats)
            self._totals["observations"] += record.stats.num_rows
            self._try(self._writer.append_rows, "calls", record.calls)
            if record.samples is not None:
                self._try(self._writer.append, "samples", record.samples)
            if record.values is not None:
                self._try(self._writer.write_values, record.row["step"], record.values)
        row = record.row
        self._steps.append(row)
        self._is_last_recorded = row["recorded"]
        self._totals["steps"] += 1
        self._totals["recorded_steps"] += row["recorded"]
        self._secs["training"] += row["duration_secs"]
        self._secs["recording"] += row["recording_secs"]
        if row["recorded"]:
            self.flush()

    def scalar(self, step: int, name: str, value: Any) -> float | None:
        """Take a number that the user logged, and return it; None if it is no number."""
        try:
            # item() and not float(): a tensor that requires a gradient would warn.
            number = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            self._guard.mistake(
                f"log({name}=…) got a {type(value).__name__} that is not one number: "
                "log a float, an int or a tensor of one element."
            )
            return None
        self._scalars.append((step, _text(name), number, time.time()))
        return number

    def note(self, step: int, text: str) -> None:
        """Write a note at once."""
        row = {"step": step, "text": _text(text), "written_at": time.time()}
        self._try(self._writer.append_rows, "notes", [row])

    def graph(self, signature: str, graph: dict[str, Any]) -> None:
        """Write a graph, once for each structure."""
        if signature not in self._graphs:
            self._graphs.add(signature)
            self._try(self._writer.write_graph, signature, graph)

    def event(self, step: int, kind: str, text: str, site: int = -1) -> None:
        """Write that something happened, at once."""
        row = {
            "step": step,
            "kind": kind,
            "site": site,
            "text": _text(text),
            "happened_at": time.time(),
        }
        self._try(self._writer.append_rows, "events", [row])

    def flush_if_due(self, *, is_between_steps: bool = False) -> None:
        """Write what waits, if it has waited long enough or belongs to a step that is written."""
        is_late = is_between_steps and self._is_last_recorded
        if is_late or time.monotonic() - self._flushed_at > _FLUSH_SECS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        steps, self._steps = self._steps, []
        scalars, self._scalars = self._scalars, []
        self._flushed_at = time.monotonic()
        if steps:
            columns = [[row[name] for row in steps] for name in STEPS.names]
            self._append("steps", columns)
        if scalars:
            self._append("scalars", [list(column) for column in zip(*scalars, strict=True)])

    def abandon(self) -> None:
        """Write nothing more: the files belong to another process."""
        self._is_stopped = True

    def finish(self, status: Literal["finished", "failed"]) -> None:
        """Write what waits and how the run ended."""
        self.flush()
        self._info.ended_at, self._info.ended = time.time(), status
        self._info.recorder = self._account()
        self._try(self._writer.close)
        self._try(self._writer.write_info, self._info)

    def _account(self) -> dict[str, Any]:
        """What recording cost, and what went wrong."""
        return {
            **self._totals,
            "training_secs": round(self._secs["training"], 6),
            "recording_secs": round(self._secs["recording"], 6),
            "bytes": self._writer.bytes_written,
            "faults": self._guard.as_dict(),
        }

    def _append(self, table: str, columns: list[list[Any]]) -> None:
        schema = {"steps": STEPS, "scalars": SCALARS}[table]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        self._try(self._writer.append, table, pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _try(self, write: Any, *arguments: Any) -> None:
        if self._is_stopped:
            return
        try:
            write(*arguments)
        except OSError as error:
            self._stop(error)
        except Exception as error:
            self._guard.catch("writing", error)

    def _stop(self, error: OSError) -> None:
        self._is_stopped = True
        self._guard.mistake(
            f"Backlight cannot write to {str(self._writer.path)!r} any more "
            f"({error.strerror or error}) and stops recording; training goes on, "
            "and what was written so far stays readable."
        )


def _text(value: object) -> str:
    """Text that can be written: halves of characters, which UTF-8 has none for, become '?'."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
