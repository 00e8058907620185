"""What a run writes, and when: statistics, steps, scalars, notes, events, graphs and `run.json`.

A recorded step is written as soon as it ends, and what is logged after it at once, so that a
trainer that is killed loses at most the step under way. Other steps, and the scalars logged in
them, are written together, every fifth of a second.

Where the disk is slow, a thread writes, so that training does not wait for it; where it is too slow
for the recording, detail is left out before steps are, and counted.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import RLock
from typing import Any, Final, Literal

import pyarrow as pa

from backlight.blackbox import StepRecord
from backlight.course import WrittenStep
from backlight.errors import Guard, tell
from backlight.schema import FORMAT_VERSION, RunInfo
from backlight.scribe import Scribe
from backlight.store.packed import Packed, as_batch
from backlight.store.runs import process_started
from backlight.store.streams import Sink
from backlight.store.writer import RunWriter
from backlight.telling import text as printable

MOST_WAITING_BYTES: Final = 256 << 20
"""How much may wait for the disk. From half of it on raw values and samples are left out, from
three quarters on sketches, and beyond it a step's statistics."""

END_SECS: Final = 30.0
"""How long the end of a run waits for the disk."""

_perf = time.perf_counter
_FLUSH_SECS = 0.2
_SLOW_SECS = 0.1
_SKETCH: Final = ("sketch_keys", "sketch_counts")
_Rows = dict[str, list[dict[str, Any]]]
_Calls = list[tuple[Callable[..., None], tuple[Any, ...]]]
_Page = tuple[_Rows, _Calls]


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
        self._scribe: Scribe[_Page] = Scribe(self._write)
        self._is_slow = False
        self._unlock()
        self._rows: _Rows = {}
        self._calls: _Calls = []
        self._bytes = 0
        self.sent_at = _perf()
        self.before_writing: Callable[[], None] = lambda: None  # rows that come first are put
        self.before_putting: Callable[[], None] = lambda: None  # the same, before others wait
        self._is_last_recorded = False
        self._troubles: deque[Exception] = deque()  # met by the thread, told by the trainer's
        self._left_out: Counter[str] = Counter()
        self._values_left_out: Counter[str] = Counter()
        self._graphs: set[str] = set()
        self._is_stopped = self._is_abandoned = False
        self._writing_secs, self._earlier_bytes = 0.0, 0
        self._earlier_faults: Counter[str] = Counter()
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
            self._info.anomalies = dict(earlier.anomalies)
            self._info.statistics = list(earlier.statistics)
            self._go_on_from(earlier.recorder)

    def _unlock(self) -> None:
        """Let several threads put rows and write them, none of which may get lost."""
        self._putting, self._writing = RLock(), RLock()

    def _go_on_from(self, account: Mapping[str, Any]) -> None:
        """Add what this part of the run costs to what those before it did."""
        self._info.recorder = dict(account)  # should this part not come to its end

        def known(name: str) -> Any:
            value = account.get(name)
            return value if isinstance(value, (int, float)) else 0

        self._totals = {name: int(known(name)) for name in self._totals}
        self._secs = {name: float(known(f"{name}_secs")) for name in self._secs}
        self._writing_secs = float(known("writing_secs"))
        self._earlier_bytes = int(known("bytes"))
        self._left_out.update(_counts(account.get("left_out")))
        self._values_left_out.update(_counts(account.get("values_left_out")))
        self._earlier_faults = _counts(account.get("faults"))

    def start(
        self,
        environment: dict[str, Any],
        modules: list[dict[str, Any]],
        optimizers: list[dict[str, Any]],
    ) -> None:
        """Write `run.json` for the first time."""
        self._info.environment = environment
        self._info.modules = modules
        self._info.optimizers = optimizers
        self._writer.write_info(self._info)

    def describe(self, modules: list[dict[str, Any]]) -> None:
        """Write which modules there are, where that is known only after the run has begun."""
        self._info.modules = modules
        self._put(self._writer.write_info, self._info)

    def anomaly(self, name: str, expression: str) -> None:
        """Write that the user looks for an anomaly."""
        self._info.anomalies = {**self._info.anomalies, name: expression}
        self._put(self._writer.write_info, self._info)
        self.send()

    def statistics(self, told: list[dict[str, str]]) -> None:
        """Write which statistics of its own the run has, before the first rows that have them."""
        self._info.statistics = told
        self._put(self._writer.write_info, self._info)
        self.send()

    def sites(self, new_sites: list[dict[str, Any]]) -> None:
        """Write sites, before the first statistics that name them."""
        if new_sites:
            self._put_rows("sites", new_sites)

    def record(self, record: StepRecord) -> None:
        """Write what was captured of a step, and note it. Nothing may wait that comes first."""
        if self._troubles:
            self._tell_troubles()
        if record.stats is not None and record.row["recorded"]:
            self._put_record(record)
        self.steps([record.row])
        if record.row["recorded"]:
            self._totals["recorded_steps"] += 1
            self._hand_over()

    def step(self, row: dict[str, Any]) -> None:
        """Note a step; it is written with the next one that is recorded, or soon."""
        self.steps([row])

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Note several steps in a row. Nothing may wait that comes first."""
        self._add_rows("steps", rows)
        self._totals["steps"] += len(rows)
        secs = self._secs
        for row in rows:
            self._is_last_recorded = row["recorded"]
            secs["training"] += row["duration_secs"]
            secs["recording"] += row["recording_secs"]

    def note_written(
        self, steps: list[WrittenStep], observations: int, writing_secs: float
    ) -> None:
        """Note steps that somebody else has written, in whose `sinks` they are."""
        self._totals["steps"] += len(steps)
        self._totals["observations"] += observations
        self._writing_secs += writing_secs
        for duration_secs, recording_secs, is_recorded in steps:
            self._totals["recorded_steps"] += is_recorded
            self._secs["training"] += duration_secs
            self._secs["recording"] += recording_secs
            self._is_last_recorded = is_recorded

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits, and what is written is so at once."""
        waits = self._rows or self._calls or self._troubles or not self._scribe.is_idle
        return not (waits or self._is_slow or self._is_stopped)

    def sinks(self) -> tuple[Sink | None, Sink | None, Sink | None]:
        """Where the messages of `stats`, `steps` and `scalars` go, of those that have begun."""
        sink_of = self._writer.sink_of
        return sink_of("stats"), sink_of("steps"), sink_of("scalars")

    def scalars(self, rows: list[dict[str, Any]]) -> None:
        """Take rows of numbers that the user logged. Nothing may wait that comes first."""
        self._add_rows("scalars", rows)

    def _put_record(self, record: StepRecord) -> None:
        self._leave_out(record)
        stats, samples, values = record.stats, record.samples, record.values
        if stats is None:
            return
        self._add_call(self._writer.append, "stats", stats, size=stats.nbytes)
        self._totals["observations"] += stats.num_rows
        if record.calls:
            self._put_rows("calls", record.calls)
        if samples is not None:
            self._put(self._writer.append, "samples", samples, size=samples.nbytes)
        if values is not None:
            self._put(self._writer.write_values, record.row["step"], values, size=values.data_bytes)
        if record.flows is not None:
            size = sum(each.data_bytes for each in record.flows)
            self._put(self._writer.write_flows, record.row["step"], record.flows, size=size)

    def _leave_out(self, record: StepRecord) -> None:
        """Where the disk cannot keep up: raw values, then sketches, then statistics."""
        waiting = 0 if self._scribe.is_idle else self._scribe.waiting_bytes
        if waiting <= MOST_WAITING_BYTES // 2:
            return
        if not self._left_out:
            tell(
                f"The disk of {str(self._writer.path)!r} is slower than the recording: raw values, "
                "histograms, then statistics are left out where it cannot keep up; training does "
                "not wait."
            )
        for name in ("values", "samples", "flows"):
            self._left_out[name] += getattr(record, name) is not None
            setattr(record, name, None)
        if record.stats is not None and MOST_WAITING_BYTES * 3 // 4 < waiting <= MOST_WAITING_BYTES:
            self._left_out["sketches"] += 1
            record.stats = without_sketches(record.stats)
        if waiting > MOST_WAITING_BYTES:
            self._left_out["stats"] += 1
            record.stats = None
            record.row = {**record.row, "recorded": False, "reason": "left out: slow disk"}

    def leave_out(self, values: Counter[str]) -> None:
        """Count what of raw values was not kept, for want of bytes or of what to choose them by."""
        self._values_left_out += values

    def scalar(self, step: int, name: str, value: Any) -> float | None:
        """Take a number that the user logged, and return it; None if it is no number."""
        try:
            if isinstance(value, (str, bytes, bytearray)):
                raise TypeError  # also where it reads like a number
            # item() and not float(): a tensor that requires a gradient would warn.
            number = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            self._guard.mistake(
                f"log({name}=…) got a {type(value).__name__} that is not one number: "
                "log a float, an int or a tensor of one element."
            )
            return None
        row = {"step": step, "name": printable(name), "value": number, "logged_at": time.time()}
        self._put_row("scalars", row)
        return number

    def note(self, step: int, text: str) -> None:
        """Write a note."""
        row = {"step": step, "text": printable(text), "written_at": time.time()}
        self._put_row("notes", row)
        self.send()

    def graph(self, signature: str, graph: dict[str, Any]) -> None:
        """Write a graph, once for each structure."""
        if signature not in self._graphs:
            self._graphs.add(signature)
            self._put(self._writer.write_graph, signature, graph)

    def event(self, step: int, kind: str, text: str, site: int = -1) -> None:
        """Write that something happened."""
        row = {
            "step": step,
            "kind": kind,
            "site": site,
            "text": printable(text),
            "happened_at": time.time(),
        }
        self._put_row("events", row)
        self.send()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is written: the disk has failed."""
        return self._is_stopped

    def send_if_due(self, *, is_between_steps: bool = False) -> None:
        """Write what waits, if it has waited long enough or belongs to a step that is written."""
        is_late = is_between_steps and self._is_last_recorded
        if is_late or _perf() - self.sent_at > _FLUSH_SECS:
            self.send()

    def send(self) -> None:
        """Write what waits."""
        self.before_writing()
        self._hand_over()

    def flush(self) -> None:
        """Write all of it, and wait until it is written."""
        self.before_putting()  # in any thread: no step that ends meanwhile may be written first
        self._hand_over()
        if not self._is_stopped:
            self._scribe.flush()
        self._tell_troubles()

    def abandon(self) -> None:
        """Write nothing more: the files belong to another process."""
        self._unlock()  # what a thread held that is not here
        self._is_stopped = self._is_abandoned = True

    def finish(self, status: Literal["finished", "failed"]) -> None:
        """Write what waits and how the run ended."""
        self.send()
        if self._is_abandoned:
            return
        if not self._scribe.close(END_SECS):
            self._is_stopped = True
            self._guard.mistake(
                f"The disk of {str(self._writer.path)!r} did not take what was recorded within "
                f"{END_SECS:.0f} s: the last steps are missing from the run."
            )
            return
        with suppress(OSError), self._writing:  # which another thread may be about
            self._writer.close()
        try:
            self._tell_troubles()
        finally:
            self._end_info(status)
        self._tell_troubles()

    def _end_info(self, status: Literal["finished", "failed"]) -> None:
        """Write how the run ended, also where no more rows could be written: that is little."""
        self._info.ended_at, self._info.ended = time.time(), status
        self._info.recorder = self._account()
        try:
            self._writer.write_info(self._info)
        except OSError as error:
            if not self._is_stopped:
                self._troubles.append(error)

    def _account(self) -> dict[str, Any]:
        """What recording cost, and what went wrong."""
        return {
            **self._totals,
            "training_secs": round(self._secs["training"], 6),
            "recording_secs": round(self._secs["recording"], 6),
            "writing_secs": round(self._writing_secs, 6),
            "bytes": self._earlier_bytes + self._writer.bytes_written,
            "left_out": dict(self._left_out),
            "values_left_out": dict(self._values_left_out),
            "faults": dict(self._earlier_faults + Counter(self._guard.as_dict())),
        }

    # -- to the disk, or to the thread

    def _put(self, write: Callable[..., None], *arguments: Any, size: int = 0) -> None:
        self.before_putting()
        self._add_call(write, *arguments, size=size)

    def _put_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        self.before_putting()
        self._add_rows(table, rows)

    def _put_row(self, table: str, row: dict[str, Any]) -> None:
        self.before_putting()
        self._add_rows(table, [row])

    def _add_call(self, write: Callable[..., None], *arguments: Any, size: int) -> None:
        with self._putting:
            self._calls.append((write, arguments))
            self._bytes += size

    def _add_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        with self._putting:
            self._rows.setdefault(table, []).extend(rows)

    def _hand_over(self) -> None:
        """Write it by the thread, if the disk is slow or the thread still writes, else at once."""
        self.sent_at = _perf()
        with self._putting:
            page, size = (self._rows, self._calls), self._bytes
            self._rows, self._calls, self._bytes = {}, [], 0
        if self._is_stopped or not any(page):
            return
        if self._is_slow or not self._scribe.is_idle:
            self._scribe.put(page, size)
        else:
            try:
                self._write([page])
            except BaseException:  # the user interrupts: what is not written yet waits on
                with self._putting:
                    self._calls[:0] = page[1]
                raise
            if self._troubles:
                self._tell_troubles()

    def _tell_troubles(self) -> None:
        """Tell what the thread met: only the thread that trains may warn or raise."""
        while self._troubles:
            error = self._troubles.popleft()
            if not isinstance(error, OSError):
                self._guard.catch("writing", error)
                continue
            self._guard.mistake(
                f"Backlight cannot write to {str(self._writer.path)!r} any more "
                f"({error.strerror or error}) and stops recording; training goes on, "
                "and what was written so far stays readable."
            )

    def _write(self, pages: list[_Page]) -> None:
        started = _perf()
        with self._writing:
            for page in pages:
                self._write_page(*page)
        secs = _perf() - started
        self._is_slow = secs > _SLOW_SECS * len(pages)
        self._writing_secs += secs

    def _write_page(self, rows: _Rows, calls: _Calls) -> None:
        # Sites before what names them, steps after what was recorded of them.
        append_rows = self._writer.append_rows
        if "sites" in rows:
            calls.insert(0, (append_rows, ("sites", rows.pop("sites"))))
        for each in rows.items():
            calls.append((append_rows, each))
        while calls and not self._is_stopped:
            write, arguments = calls[0]
            before = self._writer.bytes_written
            try:
                write(*arguments)
            except Exception as error:
                self._is_stopped = isinstance(error, OSError)
                self._troubles.append(error)
            except BaseException:  # the user interrupts: maybe when it was written
                if self._writer.bytes_written != before:
                    del calls[0]
                raise
            del calls[0]


def _counts(told: object) -> Counter[str]:
    items = told.items() if isinstance(told, Mapping) else ()
    return Counter({str(name): times for name, times in items if isinstance(times, int)})


def without_sketches(stats: Packed | pa.RecordBatch) -> pa.RecordBatch:
    """A step's statistics with empty sketches.

    >>> counts = pa.array([[1]], pa.list_(pa.uint32()))
    >>> batch = pa.record_batch({"sketch_keys": [[5]], "sketch_counts": counts})
    >>> without_sketches(batch).to_pylist()
    [{'sketch_keys': [], 'sketch_counts': []}]
    """
    rows = as_batch(stats)
    columns = [
        pa.array([[]] * rows.num_rows, field.type) if field.name in _SKETCH else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
