"""The step that is under way: all that is known of it, in one place for Python and the C kernel.

Most steps are not recorded. Where the kernel is there, its `Course` sees those through by itself,
for as many steps as the schedule says beforehand that it wants none of; `Course` in
`reduce/_kernel_course.h` says how. It ends steps that are recorded and like the last one, too, and
writes them, where it is told what must be as it was; see `backlight.capture.likeness`. Whatever is
unusual it leaves to the functions that it is made with, which do the same for any step. Without the
kernel, these do it all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from backlight.reduce import native

if TYPE_CHECKING:
    from backlight.reduce._kernel import Course as KernelCourse

Hook: TypeAlias = Callable[..., None]

WrittenStep: TypeAlias = tuple[float, float, bool]
"""What a step took, in seconds, how many of these recording did, and whether it was recorded."""


class PlainCourse:
    """The state of the step under way, where every step is seen through in Python."""

    def __init__(
        self,
        *,
        on_forward: Hook,
        on_loss: Hook,
        before_update: Hook,
        after_update: Hook,
        **_unused: Any,
    ) -> None:
        self.on_forward, self.on_loss = on_forward, on_loss
        self.before_update, self.after_update = before_update, after_update
        self.step = -1
        self.is_open = False
        self.is_plain = self.is_captured = self.ends_alike = self.is_writing = False
        self.reason: str | None = None
        self.is_over = self.must_send = self.sees_loss = False
        self.iterations = self.passes = 0
        self.losses = self.loss_iteration = 0
        self.loss: float | None = None
        self.started = self.started_at = self.recording_secs = self.sent_at = 0.0
        self.leased_steps, self.leased_secs = 0, 0.0
        self.root: Any = None
        self.optimizer: Any = None
        self.waiting = self.passed_steps = self.ended_steps = self.taken_scalars = 0
        self.observations, self.written_secs = 0, 0.0

    def log(self, scalars: dict[str, Any]) -> bool:
        """Whether what the user logs is taken; else it is for Python."""
        return False

    def learn_name(self, name: str) -> None:
        """A number of this name was logged."""

    def take_steps(self) -> tuple[list[WrittenStep], list[dict[str, Any]]]:
        """Steps that are written, and rows of `steps` that wait: none."""
        return [], []

    def take_scalars(self) -> tuple[list[tuple[str, float]], list[dict[str, Any]]]:
        """Scalars that are written, and rows of `scalars` that wait: none."""
        return [], []


Course: TypeAlias = "PlainCourse | KernelCourse"


def new_course(*, is_native: bool = True, **given: Any) -> Course:
    """A course by the kernel, or where there is none, or `is_native` is false, by Python.

    It is given the functions in Python, and where things are in torch; see `GIVEN_NAMES` there.
    """
    row = {
        "step": -1,
        "kind": "train",
        "recorded": False,
        "reason": "",
        "iterations": 1,
        "batch_size": None,
        "graph": "",
        "started_at": 0.0,
        "duration_secs": 0.0,
        "recording_secs": 0.0,
        "loss": None,
        "learning_rate": None,
    }
    if not (is_native and native.is_available()):
        return PlainCourse(**given)
    return native.new_course(row=row, perf=time.perf_counter, now=time.time, **given)
