"""What becomes of a step that has ended: it is written, held by the black box, or only counted."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from math import inf, isfinite
from typing import Any, Final

import pyarrow as pa

from backlight.alarm import Alarm, Happening
from backlight.anomaly.watching import WatchedAnomaly
from backlight.blackbox import BlackBox, StepRecord
from backlight.course import Course
from backlight.errors import BacklightError, Guard
from backlight.journal import Journal
from backlight.schedule import Schedule, cycle, lease
from backlight.store.packed import Packed, as_batch
from backlight.store.values import StepValues
from backlight.telling import text as printable

_perf = time.perf_counter
_MOMENT_SECS: Final = 50e-6
_FOR_EVER: Final = (sys.maxsize, inf)


class Ledger:
    """Asks the schedule before a step, and settles it afterwards."""

    def __init__(
        self,
        journal: Journal,
        schedule: Schedule,
        guard: Guard,
        *,
        blackbox: int,
        give_back: Callable[[StepValues], None] | None = None,
    ) -> None:
        self.box = BlackBox(blackbox)
        self.anomalies: list[WatchedAnomaly] = []
        self.logged: dict[str, float] = {}  # the last value of each name
        self.writing_secs = 0.0  # what the last captured step took after its row was made
        self._alarm = Alarm()
        self._journal = journal
        self._schedule = schedule
        self._guard = guard
        self._give_back = give_back  # the raw values of a step that is not written
        self._course: Course | None = None
        self._is_sole = False  # it writes nothing by itself any more
        self._asked: tuple[int, str] | None = None  # what the schedule was asked last
        self._reason: str | None = None  # and what it answered

    @property
    def losses(self) -> deque[float]:
        """The last losses that were logged, which a course that is followed may add to."""
        return self._alarm.losses

    def follow(self, course: Course) -> None:
        """Take in what a course has passed over, before anything else is written."""
        self._course = course
        self._journal.before_writing = self.gather
        self._journal.before_putting = self.come_between

    def come_between(self) -> None:
        """Something is to be written that the course knows nothing of, so it writes no more.

        Else it could write a step before those that wait in the journal from now on.
        """
        if self._course is not None:
            self._course.ends_alike = False
        self.gather()

    def take_over(self) -> None:
        """From now on the course ends and writes nothing, nor does it still, in another thread."""
        self._is_sole = True
        if self._course is not None:
            self._course.ends_alike = False
            while self._course.is_writing:
                time.sleep(_MOMENT_SECS)

    def gather(self) -> None:
        """Take in the steps and scalars that wait in the course, or that it has written."""
        course = self._course
        if course is None or not course.waiting:
            return
        (written_steps, steps), (known, scalars) = course.take_steps(), course.take_scalars()
        try:
            for duration_secs, recording_secs, is_recorded in written_steps:
                self._learn("train", duration_secs, recording_secs if is_recorded else 0.0)
            for row in steps:
                self._learn(row["kind"], row["duration_secs"], _recording_secs(row))
            if written_steps or course.observations:
                self._journal.note_written(written_steps, course.observations, course.written_secs)
                course.observations, course.written_secs = 0, 0.0
            if steps:
                self._journal.steps(steps)
        except Exception as error:
            self._guard.catch("writing a step", error)
        known += [(row["name"], row["value"]) for row in scalars]
        self.logged.update(known)
        self._alarm.remember([value for name, value in known if name == "loss"])
        if scalars:
            self._journal.scalars(scalars)

    def cycle(self) -> tuple[str, int] | None:
        """Why training steps are recorded, and how many after each are not, if that stays so.

        None also where the end of a step has to be looked at.
        """
        is_looked_at = self.anomalies or self.box.steps or not self._alarm.is_calm
        return None if self._is_sole or is_looked_at else cycle(self._schedule)

    def lease(self, step: int, kind: str) -> tuple[int, float]:
        """For how many steps after one that is not wanted, and seconds, none is looked at."""
        if self._journal.is_stopped:
            return _FOR_EVER
        return (0, 0.0) if self.anomalies else lease(self._schedule, step, kind)

    def watch_for(self, anomaly: WatchedAnomaly) -> None:
        """Look for an anomaly from the next step on."""
        self.gather()
        self.anomalies.append(anomaly)
        if self._course is not None:
            self._course.leased_steps, self._course.ends_alike = 0, False

    def wants(self, step: int, kind: str) -> str | None:
        """Why this step is recorded; None if it is not. The schedule is asked once for each.

        Once the disk has failed, none is.
        """
        if self._course is not None and self._course.waiting:
            self.gather()
        if self._journal.is_stopped:
            return None
        if self._asked != (step, kind):
            self._reason = self._ask(step, kind)
            self._asked = step, kind
        return self._reason

    def _ask(self, step: int, kind: str) -> str | None:
        reason: object = None
        try:
            reason = self._schedule.wants(step, kind)
        except BacklightError as error:
            self._guard.mistake(str(error))
        except Exception as error:
            self._guard.mistake(
                f"The schedule failed ({type(error).__name__}: {error}), so the step is not "
                "recorded: return whether it is, or why."
            )
        if isinstance(reason, str):
            return printable(reason)
        if reason is not None:
            self._guard.mistake(
                f"The schedule's wants() answered with a {type(reason).__name__}, so the step is "
                "not recorded: return why it is, as a text, or None."
            )
        return None

    def _learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """Tell the schedule what a step took; if it fails, the step is written all the same."""
        try:
            self._schedule.learn(kind, duration_secs, recording_secs)
        except Exception as error:
            self._guard.mistake(
                f"The schedule's learn() failed ({type(error).__name__}: {error}): steps are "
                "recorded as wants() says."
            )

    def pass_over(self, row: dict[str, Any]) -> None:
        """Note a step of which nothing was captured."""
        self.gather()
        self._learn(row["kind"], row["duration_secs"], 0.0)
        self._journal.step(row)
        if self.anomalies:
            self._look_for_anomalies(row, None)

    def settle(
        self,
        record: StepRecord,
        *,
        is_decided: bool = False,
        once_secs: float = 0.0,
        where: Callable[[int], str] | None = None,
    ) -> None:
        """Write a step that is kept; let the black box hold one that is not, unless it is decided.

        The schedule does not count `once_secs`, the part of recording that does not come again.
        `where` tells more of where a row, by its order, has a value that is not finite.
        """
        started = _perf()
        if self._course is not None and self._course.waiting:
            self.gather()
        row, has_stats = record.row, record.stats is not None
        recording_secs = row["recording_secs"] - once_secs if has_stats else 0.0
        self._learn(row["kind"], row["duration_secs"] - once_secs, recording_secs)
        if self.box.steps and has_stats and not row["recorded"] and not is_decided:
            self.make_room()
            self.box.hold(record)
        else:
            self._write(record)
        # A scaler of gradients tries out how far it can go. If that lasts, it is something else,
        # and told before the step that it began with, and one before that, leave the black box.
        is_usual = 0 < record.left_out < (self.box.steps + 1) // 2
        happening = self._alarm.nonfinite(record.stats, where, are_gradients_scaled=is_usual)
        if happening is not None:
            self.happened(row["step"], happening)
        if self.box.steps and has_stats:
            self._look_for_spikes(record)
        if self.anomalies:
            self._look_for_anomalies(row, record.stats)
        if has_stats:
            self.writing_secs = _perf() - started

    def _look_for_spikes(self, record: StepRecord) -> None:
        step, loss = record.row["step"], record.row["loss"]
        if loss is not None and isfinite(loss):
            loss /= record.scale
            self.happened(step, self._alarm.loss_spike(step, loss, record.row["kind"]))
        if not record.left_out:
            self.happened(step, self._alarm.gradient_spike(record.stats, record.scale))

    def make_room(self) -> None:
        """Let the black box be ready for a step: what leaves it is lost."""
        if self._course is not None and self._course.waiting:
            self.gather()
        leaving = self.box.make_room()
        if leaving is not None:
            self._write(leaving)

    def _look_for_anomalies(
        self, row: dict[str, Any], stats: Packed | pa.RecordBatch | None
    ) -> None:
        stats = None if stats is None else as_batch(stats)
        for anomaly in self.anomalies:
            if anomaly.happens(row, stats, self.logged):
                text = f"{anomaly.name}: {anomaly.expression.text}"
                self.happened(row["step"], Happening("anomaly", text))

    def loss(self, step: int, value: float) -> None:
        """A loss is logged: it may be a spike."""
        self.happened(step, self._alarm.loss_spike(step, value))

    def happened(self, step: int, happening: Happening | None) -> None:
        """Note an event, and write the steps that led to it."""
        if happening is not None:
            self._journal.event(max(step, 0), happening.kind, happening.text, happening.site)
            for record in self.box.open(happening.kind):
                self._write(record)

    def _write(self, record: StepRecord) -> None:
        if record.values is not None and not record.row["recorded"] and self._give_back:
            self._give_back(record.values)
        self._journal.record(record)
        if record.tell_written is not None:
            record.tell_written(record.row["recorded"])


def _recording_secs(row: dict[str, Any]) -> float:
    """What recording took of a step, if it was recorded."""
    return float(row["recording_secs"]) if row["recorded"] else 0.0
