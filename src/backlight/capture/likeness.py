"""What a captured step has in common with the one before, so that the kernel can deal with it.

Most captured steps are like the last one: the same modules hold the same parameters, one optimizer
trains them, nothing but statistics is kept, and the graph is not followed. What Python does at the
beginning of such a step, for its loss and around its update then only finds out that it is so.
Before the step this is said to the kernel, which looks whether it still holds when the step comes,
and does the rest; `Likeness` in `reduce/_kernel_alike.h` says how. Where it does not hold, or there
is no kernel, Python sees the step through as ever.
"""

from __future__ import annotations

import sys

from backlight.capture.compiling import rules_told
from backlight.capture.graph import stranded
from backlight.capture.losses import LossCapture
from backlight.capture.modules import ModuleCapture
from backlight.capture.names import ModelNames
from backlight.capture.observer import Observer
from backlight.capture.optimizer import Optimizers
from backlight.course import Course, PlainCourse
from backlight.reduce import native


class StepLikeness:
    """Says of each captured step, before it begins, whether it may be like the last one."""

    def __init__(
        self,
        course: Course,
        names: ModelNames,
        modules: ModuleCapture,
        observer: Observer,
        losses: LossCapture,
    ) -> None:
        self._names = names
        self._modules = modules
        self._observer = observer
        self._kernel = None
        if not isinstance(course, PlainCourse):
            self._kernel = native.new_likeness(
                modules,
                observer,
                names,
                observer.named,
                losses.found.known,
                losses.named.known,
                stranded(),
                sys.modules,
                observer.owned.stepping,
            )
            course.compare_by(self._kernel)
            modules.course = course

    @property
    def is_expected(self) -> bool:
        """Whether the kernel will look at the next step, and needs not be told what to look for."""
        return self._kernel is None or self._kernel.left > 0

    def take_end(self) -> bool:
        """A step ends; whether the kernel has begun it."""
        return self._kernel is not None and self._kernel.take_end()

    def take_begun(self) -> int:
        """How many steps the kernel has begun since that was last asked."""
        return 0 if self._kernel is None else self._kernel.take_begun()

    def expect_nothing(self) -> None:
        """The steps to come are not like the last one, whatever was said of them."""
        if self._kernel is not None:
            self._kernel.left = 0

    def end(self) -> None:
        """A step begins that the kernel does not see through."""
        if self._kernel is not None:
            self._kernel.end()

    def expect(self, optimizers: Optimizers, *, loss_site: int, steps: int) -> None:
        """At most so many training steps come of which statistics alone are captured."""
        is_other = (
            len(optimizers.all) != 1
            or self._modules.generation != self._names.generation
            or self._observer.reducer.own is not None
        )
        sole = optimizers.all[0]
        known = None if is_other else self._observer.owned.known_of(sole)
        if self._kernel is None or known is None or steps < 1:
            return
        optimizers.begin()
        sole.has_closure = False  # the kernel leaves an update that has one to Python
        now = rules_told(), self._names.generation, sole
        self._kernel.expect(
            known.held, self._names.sizes, known.unhooked, known.key, *known.trained, *now,
            loss_site, known.has_states, steps,
        )  # fmt: skip
