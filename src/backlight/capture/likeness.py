"""What a captured step has in common with the one before, so that the kernel can deal with it.

Most captured steps are like the last one: the same modules hold the same parameters, one optimizer
trains them, nothing but statistics is kept, and the graph is not followed. What Python does at the
beginning of such a step, for its loss, around its update and at its end then only finds out that
it is so. Before the step this is said to the kernel, which looks whether it still holds when the
step comes, and does the rest; `reduce/_kernel_alike.h` and `reduce/_kernel_ending.h` say how. Where
it does not hold, or there is no kernel, Python sees the step through as ever.
"""

from __future__ import annotations

import sys

from backlight.capture.compiling import rules_told
from backlight.capture.graph import stranded
from backlight.capture.losses import LossCapture
from backlight.capture.modules import ModuleCapture
from backlight.capture.names import ModelNames, Modes
from backlight.capture.observer import Observer
from backlight.capture.optimizer import OptimizerCapture, Optimizers
from backlight.capture.sites import SiteBook
from backlight.course import Course, PlainCourse
from backlight.reduce import native
from backlight.schema import QUANTITIES
from backlight.store.streams import Sink


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
        self._course = course
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
        self._course.ends_alike = False
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

    def let_end(
        self,
        sole: OptimizerCapture,
        modes: Modes,
        sites: SiteBook,
        *,
        last: tuple[list[tuple[str, int]], str],
        cycle: tuple[str, int],
        sinks: tuple[Sink | None, ...],
    ) -> None:
        """Let the kernel end captured steps that are like the last one, and wait for the next.

        `last` are the calls of that one, and its graph; `cycle` is why steps are captured, and how
        many after each are not; the `sinks` are those of `stats`, `steps` and `scalars`.
        """
        course, owned = self._course, self._observer.owned
        if isinstance(course, PlainCourse) or self._kernel is None or not native.can_write:
            return
        stats, steps, scalars = sinks
        is_begun = stats is not None and steps is not None
        if not is_begun or self._kernel.left < 1 or owned.has_rest(sole):
            return
        (entered, graph), (reason, gap) = last, cycle
        reducer = self._observer.reducer
        course.may_end(
            entered, modes.known(), self._observer.leaf_hooks, sites.new, reducer.other_rows,
            QUANTITIES, tuple(reducer.backwards), graph, reason, owned.with_gradients,
            stats, steps, scalars, gap,
        )  # fmt: skip
