"""A run being recorded: wires capture to reduce to the store.

A step begins with the first forward pass after the last one ended, and ends when every optimizer
has stepped; or the user says where it begins and ends. Whether it is recorded is decided before it
begins, so that a step that is not recorded runs without hooks.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from backlight import telling
from backlight.alarm import Happening
from backlight.blackbox import StepRecord
from backlight.capture import backward, checkpoints, scaling
from backlight.capture.calls import FunctionCall
from backlight.capture.compiling import Unseen, keep_out
from backlight.capture.following import Following, steps_before_power_of_two
from backlight.capture.graph import Graph, is_swept, sweep
from backlight.capture.likeness import StepLikeness
from backlight.capture.losses import LossCapture
from backlight.capture.modules import FirstForward, ModuleCapture, is_in_backward
from backlight.capture.names import ModelNames
from backlight.capture.observer import Observer
from backlight.capture.optimizer import OptimizerCapture, Optimizers
from backlight.capture.own import OwnStatistics
from backlight.capture.samples import ValueKeeper
from backlight.capture.sights import Call
from backlight.capture.sites import SiteBook
from backlight.course import Course, new_course
from backlight.ending import dismiss, enlist
from backlight.environment import describe_environment, torch_facts
from backlight.errors import BacklightError, Guard
from backlight.journal import Journal
from backlight.ledger import Ledger
from backlight.options import Options
from backlight.own.statistic import Statistic, StatisticBook
from backlight.samples import NeuronSelection, SampleSelection, ValueBytes
from backlight.store.resume import read_progress
from backlight.store.writer import RunWriter

if TYPE_CHECKING:
    from torch.amp import GradScaler

    from backlight.laboratory.recording import FlowRecording

_perf = time.perf_counter
_MOST_PASSES: Final = 1024
_MOST_ROWS: Final = 300_000
"""So long may a step be that no optimizer ends: its rows are held in memory."""
_MOST_LEASED: Final = 1 << 62  # which the kernel can count; `every=` may be any number


class Step:
    """A step that the user began with `with run.step(…) as step`."""

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.decision: tuple[bool, str] | None = None
        self.samples: Any = None

    def keep(
        self, reason: str = "kept", *, samples: SampleSelection | Sequence[int] | None = None
    ) -> None:
        """Keep this step, if it was captured, whatever the schedule said.

        With `samples`, the raw values of these samples of the batch are kept, and of no others:
        positions, or a rule of `backlight.samples`. In a step that was begun with `decide=True`,
        any sample can be chosen so.
        """
        self.decision, self.samples = (True, telling.text(reason)), samples

    def drop(self) -> None:
        """Do not keep this step, whatever the schedule said."""
        self.decision = False, "dropped"


class Recorder:
    """Records a run: what happens by itself, while the user trains."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        path: Path,
        options: Options,
        samples: SampleSelection | None,
        neurons: NeuronSelection | None,
        value_bytes: ValueBytes,
        is_resumed: bool,
    ) -> None:
        self.path = path
        self.has_blackbox = options.blackbox > 0
        self._guard = Guard()
        earlier = read_progress(path) if is_resumed else None
        self._sites = SiteBook(
            options.selection, earlier.sites if earlier else [], self._guard.mistake
        )
        self._names = ModelNames(models)
        self._keeper = ValueKeeper(
            samples,
            neurons=neurons,
            most_bytes=value_bytes,
            site_name=self._sites.name_of,
            spent_bytes=earlier.value_bytes if earlier else 0,
        )
        self._is_keeping = samples is not None
        self._has_told_cut = self._has_told_spent = False  # a budget of raw values, by an event
        self._own = StatisticBook(self._guard, earlier.info.statistics if earlier else ())
        self._observer = Observer(self._names, self._sites, self._guard, self._keeper)
        self._modules = ModuleCapture(self._names, self, self._observer)
        self._observer.of_other_iterations = self._modules.of_other_iterations
        self._following = Following(
            current_module=lambda: self._modules.current_module,
            site_of=self._sites.number_of,
            on_fault=self.on_fault,
        )
        # What the modules say is passed on at once: there is much of it.
        self.on_enter: Callable[[str, int], None] = self._following.enter
        self.on_tensor: Callable[..., None] = self._observer.on_activation
        self._first_forward = FirstForward(self._names, self._begin_with, self.on_fault)
        self._journal = Journal(
            RunWriter(path),
            path.parent.name,
            options.config,
            self._guard,
            earlier.info if earlier else None,
        )
        self._ledger = Ledger(
            self._journal,
            options.schedule,
            self._guard,
            blackbox=options.blackbox,
            give_back=self._keeper.give_back,
        )
        self._course = self._new_course()
        self._course.step = earlier.last_step if earlier else -1
        self._kind = "train"
        self._batch_size: int | None = None
        self._explicit: Step | None = None
        self._must_decide = False
        self._is_in_iteration = self._is_given_up = False
        self._losses = LossCapture(self._course, self._observer, self._sites)
        self._modes = self._names.modes()
        self._captures = 0  # steps that were captured
        self._likeness = StepLikeness(
            self._course,
            self._names,
            self._modules,
            self._observer,
            self._losses,
        )
        self._generation = -1  # of the names, when a module was found that steps begin with
        self._updates = 0  # that were not seen through by the course alone
        self._before_scaled = (0, 0)  # steps and updates when a scaler was asked for an update
        self._scale, self._left_out = 1.0, 0  # of a captured step, as its record has them
        self._checkpoints = 0  # that are under way, which run without gradients at first
        self._is_finished = self._is_compiled = False
        self._unseen = Unseen()
        self._flows: FlowRecording | None = None  # where the user asked for some
        self._at_end: list[Callable[[], None]] = []  # called when a step has ended
        self._optimizers = Optimizers(
            optimizers,
            before=self._course.before_update,
            after=self._course.after_update,
            own=self._own_parameters,
            on_change=self._on_other_optimizers,
            guard=self._guard,
        )
        enlist(self)
        try:
            self._start()
        except BaseException:
            self._let_go()  # of a model that nobody watches: the disk refused the run
            raise

    def _start(self) -> None:
        """Write who the run is, and wait for its first step."""
        held = {identity for each in self._optimizers.all for identity in each.held()}
        own = self._own_parameters()
        self._journal.start(
            describe_environment(**torch_facts()),
            self._names.describe(held),
            [each.describe(own) for each in self._optimizers.all],
        )
        self._listen()
        checkpoints.listen(self)  # in the first step's thread, whichever that will be
        self._prepare_step("train")

    def _listen(self) -> None:
        """Hear of backward passes and scalers in this thread, and in no other."""
        backward.listen(self._course.on_loss)
        scaling.listen(self)

    def _new_course(self) -> Course:
        """What sees steps through: itself those that are plain, the functions here all others."""
        course = new_course(
            on_loss=self._on_loss,
            see_loss=self._on_number,
            before_update=self._on_update,
            after_update=self._on_updated,
            updated=self._on_alike_updated,
            passed=self._on_passed,
            send=self._send_if_due,
            models=self._names.references(),
            losses=self._ledger.losses,
            **self._first_forward.places(),
        )
        self._first_forward.hook = course.on_forward
        self._ledger.follow(course)
        return course

    def has_module(self, module: nn.Module) -> bool:
        """Whether a module is part of what is watched."""
        return self._names.has(module)

    def end_with(self, status: Any, why: str) -> None:
        """End the run, and say why in an event, where that is not the usual end."""
        if self._is_finished:
            return
        self._ledger.take_over()
        self._look_for_trainer()
        with self._guard("ending the run"):
            self._end_step_under_way(is_cut_short=True)
            if self.has_blackbox or why:
                kind = "signal" if why else "exception" if status == "failed" else "end"
                self._ledger.happened(
                    self._course.step, Happening(kind, why or f"the run {status}")
                )
        self._let_go()
        self._journal.leave_out(self._keeper.left_out)
        self._journal.finish(status)

    def _let_go(self) -> None:
        """Remove every hook, and see nothing more."""
        self._is_finished = True
        self._course.is_plain = False
        self._course.is_over = True
        self._ledger.take_over()
        dismiss(self)
        self._look_for_trainer()
        self._remove_hooks()
        backward.ignore(self._course.on_loss)
        checkpoints.ignore(self)
        scaling.ignore(self)
        self._following.close()
        self._observer.end()
        self._optimizers.detach()

    def _look_for_trainer(self) -> None:
        """Before a run ends: in the midst of another thread's step hooks on parameters stay there.

        Autograd does not expect one to go while it calls them; ours do nothing any more.
        """
        if self._course.is_open and self._modules.is_elsewhere():
            self._observer.owned.is_in_use = True

    def _remove_hooks(self) -> None:
        """Wait for no step, and leave nothing on modules and parameters."""
        self._course.is_plain = False
        self._first_forward.disarm()
        self._modules.remove()
        self._observer.owned.release()

    def abandon(self) -> None:
        """In a forked child: leave the run to the process that began it."""
        self._course.is_writing = False  # if so, by a thread that is not here
        self._journal.abandon()
        self.end_with("finished", "")

    def _compute(self, statistics: list[Statistic]) -> None:
        """Compute statistics of the user's own from the next tensor on."""
        self._likeness.expect_nothing()
        self._own.add(statistics)
        self._journal.statistics(self._own.told())
        if self._observer.reducer.own is None:
            self._observer.reducer.own = OwnStatistics(self._own, self._sites.site_of)

    # -- the course of a step

    def _prepare_step(self, kind: str, *, decide: bool = False) -> None:
        """Decide whether the step to come is recorded, and wait for it to begin."""
        keep_out()
        self._count_alike()
        self._course.is_open = self._is_in_iteration = self._is_given_up = False
        self._scale, self._left_out = 1.0, 0
        self._kind, self._batch_size = kind, None
        self._must_decide = decide
        self._optimizers.end()
        was_captured = self._is_captured
        self._course.reason = self._ledger.wants(self._course.step + 1, kind)
        is_wanted = self._course.reason is not None or self.has_blackbox or decide
        self._course.is_captured = is_wanted and not self._journal.is_stopped
        if not self._is_compiled and self._names.is_compiled():
            self.on_compiled()
        if self._is_captured:
            self._modules.attach()
            if not was_captured:
                self._first_forward.disarm()
        elif was_captured:
            self._modules.detach()
            self._observer.owned.release()
        if not self._is_captured:
            if self._is_compiled:
                self._first_forward.disarm()
            else:
                self._first_forward.arm()
        self._prepare_course()
        if self._is_finished:  # by another thread, in between
            self._remove_hooks()

    def _prepare_course(self) -> None:
        """Say whether the step to come, and those after it, can do without the functions here."""
        course = self._course
        is_usual = self._kind == "train" and is_swept()
        course.is_plain = is_usual and not (self._is_captured or self._is_compiled)
        course.sees_loss = self._is_captured
        course.optimizer = self._optimizers.sole()
        if is_usual and self._is_captured and not self._likeness.is_expected:
            self._expect_alike()
        if course.is_plain:
            course.leased_steps, course.leased_secs = self._lease()
            if self._generation != self._names.generation:
                self._generation, course.root = self._names.generation, None
        course.ends_alike = False
        if is_usual and self._has_statistics_alone():
            self._let_end_alike()

    def _has_statistics_alone(self) -> bool:
        """Whether nothing but statistics is captured of the step to come."""
        is_more = self._is_keeping or self._must_decide or self._flows is not None
        return not (is_more or self._is_compiled)

    def _expect_alike(self) -> None:
        """Let the kernel deal with the step to come, if nothing unusual has to be done."""
        if not self._has_statistics_alone():
            return
        steps = min(steps_before_power_of_two(self._captures), self._following.usual_steps("train"))
        self.on_tensor = self._observer.on_activation
        self._likeness.expect(self._optimizers, loss_site=self._losses.first_site, steps=steps)

    def _let_end_alike(self) -> None:
        """Let the kernel end it too, if nobody has to look at its end."""
        cycle, last = self._ledger.cycle(), self._following.usual_end("train")
        if cycle is None or last is None or self._at_end or self._optimizers.sole() is None:
            return
        if self._is_captured:
            self._journal.send()  # what waits, which else would wait for the end of that step
        if not self._journal.is_clear:
            return
        reason, gap = cycle
        self._likeness.let_end(
            self._optimizers.all[0],
            self._modes,
            self._sites,
            last=last,
            cycle=(reason, min(gap, _MOST_LEASED)),
            sinks=self._journal.sinks(),
        )

    @property
    def _is_captured(self) -> bool:
        """Whether the step under way, or the one to come, is captured."""
        return self._course.is_captured

    def _count_alike(self) -> None:
        """Count the steps that the kernel has begun."""
        begun = self._likeness.take_begun()
        self._captures += begun
        self._following.note_usual("train", begun)

    def _lease(self) -> tuple[int, float]:
        """For how many steps after the next, and how many seconds, nobody has to be asked."""
        steps, secs = self._ledger.lease(self._course.step + 1, self._kind)
        return min(steps, _MOST_LEASED), secs

    def _begin_with(self, module: nn.Module) -> None:
        """A step begins with a module, with which others then may begin as well."""
        if self._is_finished:
            return
        self._generation, self._course.root = self._names.generation, weakref.ref(module)
        self._begin_step()

    def _send_if_due(self) -> None:
        course = self._course
        try:
            self._ledger.gather()
            self._journal.send_if_due(is_between_steps=course.must_send)
        except Exception as error:
            self._guard.catch("writing", error)
        course.sent_at = self._journal.sent_at
        course.ends_alike = course.ends_alike and self._journal.is_clear

    def _open_step(self) -> None:
        if not self._is_captured:
            self._first_forward.disarm()
        self._begin_step()

    def _begin_step(self) -> None:
        course = self._course
        self._count_alike()
        self._likeness.end()
        course.is_open, course.must_send = True, False
        course.loss = None
        course.step += 1
        course.iterations = course.passes = course.losses = course.loss_iteration = 0
        self._modules.hooks_secs = 0.0
        keep_out()
        sweep()
        if self._is_captured and not self._modules.is_here:
            self._train_here()
        self._optimizers.begin()
        if self._is_captured or self._is_compiled:
            self._modules.restart_calls()
            self._modules.begin_part()
        course.started, course.started_at = started, _ = _perf(), time.time()
        try:
            self._journal.send_if_due()
            if self._is_captured:
                self._begin_capture()
        except Exception as error:
            self._guard.catch("beginning a step", error)
        course.recording_secs = self._observer.recording_secs = _perf() - started

    def _train_here(self) -> None:
        """Take this thread for the one that trains."""
        self._modules.train_here()
        self._listen()

    def _find_trainer(self) -> None:
        """A step ends in this thread: if another had no backward pass in it, this one trains."""
        if not self._course.passes and not self._modules.is_here:
            self._train_here()

    def _begin_capture(self) -> None:
        is_keeping = self._is_keeping or self._must_decide
        if is_keeping:
            self._keeper.begin(batch_size=self._batch_size, holds_all=self._must_decide)
        self._observer.begin(self._course.step, is_keeping=is_keeping)
        self._losses.begin()
        # Parts of the model may be compiled when they run next: now and then, look at all.
        times, self._captures = self._captures, self._captures + 1
        if times & (times - 1) == 0:
            self._look_for_compiled()
        if self._flows is not None and (self._course.reason is not None or self._must_decide):
            self._flows.begin(self._course.step)
        self.on_tensor = self._observer.on_activation
        if self._following.begin(self._kind, can_follow=not self._is_compiled):
            self._observer.follow(self._following.graphs)
            self.on_tensor = self._see_quietly
        self._modules.entered = self._following.entered
        self._modules.is_quick = (
            self._observer.is_quick and not self._is_compiled and not self._observer.owned.waiting
        )

    def _look_for_compiled(self) -> None:
        if not self._is_compiled and self._names.is_compiled(in_parts=True):
            self.on_compiled()

    def _stop_following(self) -> tuple[Graph | None, str]:
        """The graph of the step that ends, if it was followed, and its signature."""
        self._observer.graph = None
        graph, signature = None, ""
        try:
            graph, signature = self._following.stop()
            for name in self._following.graphs.unknown_names if graph is not None else ():
                self._guard.mistake(
                    f"run.connect() got {name!r}, which names no site of this step: "
                    "pass the tensor itself, or the name of a site."
                )
        except Exception as error:
            self._guard.catch("following the graph", error)
        if not signature:
            self._likeness.expect_nothing()  # a structure that is new is followed soon
        return graph, signature

    def _on_loss(self, tensor: torch.Tensor) -> None:
        """A backward pass starts from this tensor: it is the loss, whatever it is called."""
        if not self._course.is_open or is_in_backward():
            return
        try:
            with torch._C.DisableTorchFunction():
                self._course.loss = backward.number_of(tensor)
                self._course.passes += 1
                if self._is_endless():
                    self._give_up()
                if self._is_captured and not self._is_given_up:
                    self._losses.see(tensor)
        except Exception as error:
            self._guard.catch("reading the loss", error)

    def _on_number(self, tensor: torch.Tensor) -> None:
        """The same, where the course has read the loss, of a step that is captured."""
        try:
            if self._is_endless():
                self._give_up()
            if not self._is_given_up:
                self._losses.see(tensor)
        except Exception as error:
            self._guard.catch("reading the loss", error)

    def _is_endless(self) -> bool:
        return self._course.passes >= _MOST_PASSES or len(self._observer.reducer) >= _MOST_ROWS

    def _give_up(self) -> None:
        """Read no more of a step that does not end: its rows would gather for ever."""
        if self._explicit is not None or self._is_given_up:
            return
        self._is_given_up = True
        graph, _ = self._stop_following() if self._is_captured else (None, "")
        if graph is not None:
            self._journal.graph(graph.signature, graph.to_json())
        self._modules.detach()
        self._observer.end()
        names = " or ".join(each.name for each in self._optimizers.all)
        self._guard.mistake(
            f"A step has had {self._course.passes} backward passes without an end, so the rest of "
            f"it is not recorded: is {names} still what trains? If not, watch what does."
        )

    def _own_parameters(self) -> set[int]:
        """The identities of the models' parameters."""
        self._names.refresh()
        return {each.identity for each in self._names.parameters()}

    def _on_other_optimizers(self, text: str) -> None:
        self._journal.event(self._course.step, "optimizer", text)

    def _tell_modes(self) -> None:
        """Note which modules are in evaluation mode in a training step, when that changes."""
        text = self._modes.changed()
        if text is not None:
            self._journal.event(self._course.step, "mode", text, -1)

    def _next_iteration(self) -> int:
        self._observer.iteration = number = self._course.iterations
        self._following.begin_iteration(number)
        self._course.iterations += 1
        if number > 0:  # what came before the first one counts as part of it
            self._modules.restart_calls()
            if self._flows is not None:
                self._flows.restart_calls()
        return number

    def _on_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        found = self._optimizers.find(optimizer)
        if found is None:
            return
        # After a pass, or in another step, what was under way has ended, by an exception or unseen.
        course = self._course
        is_inner = found.depth and course.is_open and found.passes == course.passes
        if not is_inner:
            found.begin(args, kwargs)
            self._before_update(found)
            found.depth, found.passes = 0, course.passes
        found.depth += 1

    def _on_updated(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._updates += 1
        found = self._optimizers.find(optimizer)
        if found is None:
            return
        # One that calls the step of the class it is derived from is hooked twice: the outer counts.
        found.depth = max(found.depth - 1, 0)
        if not found.depth and self._course.is_open:
            self._after_update(found)

    def _on_alike_updated(self) -> None:
        """The only optimizer has stepped, in a step that the kernel has seen so far."""
        self._updates += 1
        if self._course.is_open:
            self._end_update(self._optimizers.all[0])

    def _begin_update(self, optimizer: OptimizerCapture) -> None:
        """Find the iteration that an update is of.

        One that the user says, or where the optimizer has made another one in the step; the only
        update, of micro-batches before it, is of the step, as what is seen before iterations is.
        """
        is_apart = self._is_in_iteration or optimizer.last_step == self._course.step
        self._observer.update_iteration = self._observer.iteration if is_apart else 0
        optimizer.last_step = self._course.step

    def before_checkpoint(self) -> bool:
        """Something is run without gradients that is run again to have them: a step may begin."""
        if self._modules.is_elsewhere():
            return False
        self._checkpoints += 1
        if not self._course.is_open:
            self._first_forward.enter_checkpoint()
        return True

    def after_checkpoint(self) -> None:
        """It has run."""
        self._checkpoints -= 1
        if not self._checkpoints:
            self._first_forward.leave_checkpoint()

    def before_scaled(self, optimizer: torch.optim.Optimizer, scaler: GradScaler) -> None:
        """A scaler of gradients is to step an optimizer, unless these are not finite."""
        self._before_scaled = self._steps_and_updates()
        if self._is_captured and self.has_blackbox:
            with self._guard("reading a scale"):
                self._scale = scaler.get_scale() or 1.0  # 0 where it was halved for ever

    def after_scaled(self, optimizer: torch.optim.Optimizer) -> None:
        """It has done so, or it has not: then the step ends all the same, without an update."""
        found = self._optimizers.find(optimizer)
        if found is None:
            return
        if self._before_scaled != self._steps_and_updates():
            found.left_out = 0
            return
        found.left_out += 1
        try:
            self._without_update(found)
        except Exception as error:
            self._guard.catch("ending a step without an update", error)

    def _steps_and_updates(self) -> tuple[int, int]:
        """How many steps were seen through by the course, and how many updates by others."""
        return self._course.passed_steps + self._course.ended_steps, self._updates

    def _before_update(self, optimizer: OptimizerCapture) -> None:
        if not self._course.is_open:
            self._open_step()
        if self._is_captured:
            started = _perf()
            if self._following.is_on:
                with self._guard("following the graph"):
                    self._following.pause()
            try:
                self._begin_update(optimizer)
                self._observer.owned.before_update(optimizer)
                self._tell_modes()
            except Exception as error:
                self._guard.catch("reading parameters and their gradients", error)
            self._observer.recording_secs += _perf() - started

    def _after_update(self, optimizer: OptimizerCapture) -> None:
        if self._is_captured:
            started = _perf()
            try:
                self._observer.owned.after_update(optimizer)
            except Exception as error:
                self._guard.catch("reading the optimizer's state", error)
            self._observer.recording_secs += _perf() - started
        self._end_update(optimizer)

    def _without_update(self, optimizer: OptimizerCapture) -> None:
        """An update was left out: what it would have changed is as it was."""
        if not self._course.is_open:
            self._open_step()
        if self._is_captured:
            started = _perf()
            self._left_out = max(self._left_out, optimizer.left_out)
            try:
                self._begin_update(optimizer)
                self._observer.owned.without_update(optimizer)
                self._tell_modes()
            except Exception as error:
                self._guard.catch("reading parameters", error)
            self._observer.recording_secs += _perf() - started
        if scaling.is_told(optimizer.left_out):
            times = f", {optimizer.left_out} times in a row" if optimizer.left_out > 1 else ""
            text = (
                f"the update of {optimizer.name} was left out, as gradients are not finite{times}"
            )
            self._journal.event(self._course.step, "skipped", text)
        self._end_update(optimizer)

    def _end_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer has stepped, or has left it out: a step may end with that."""
        if self._explicit is None and self._optimizers.has_ended(optimizer):
            if self._is_captured:
                self._end_step(None)
            else:
                self._end_unrecorded()
        elif self._is_captured:
            with self._guard("following the graph"):
                self._following.go_on()

    def _end_step_under_way(self, *, is_cut_short: bool = False) -> None:
        """End a step that was begun and not ended, such as a forward pass without an update."""
        if self._course.is_open:
            step = Step(self._course.step, self._kind)
            if is_cut_short and not self.has_blackbox:
                step.decision = False, "cut short"
            self._end_step(step)

    def _end_step(self, step: Step | None) -> None:
        started = _perf()
        self._find_trainer()
        if self._likeness.take_end():
            self._end_alike()
        record = StepRecord({})
        graph, signature = self._stop_following() if self._is_captured else (None, "")
        try:
            decision = None if step is None else step.decision
            if self._is_captured:
                self._take(record, None if step is None else step.samples, decision)
            if graph is not None:
                self._journal.graph(graph.signature, graph.to_json())
            self._settle(record, decision, signature, started)
        except Exception as error:
            self._guard.catch("writing a step", error)
        self._course.must_send = True
        self._prepare_step("train")
        for tell in self._at_end:
            tell()

    def _end_alike(self) -> None:
        """Note what the kernel has not, of a step that it began."""
        self._count_alike()
        if self._optimizers.all[0].last_step != self._course.step:
            return  # modes are looked at where an optimizer steps
        try:
            self._tell_modes()
        except Exception as error:
            self._guard.catch("looking at modes", error)

    def _end_unrecorded(self) -> None:
        """As `_end_step`, for a step of which nothing was captured: most are such."""
        started = _perf()
        self._find_trainer()
        try:
            row = self._row(is_recorded=False, reason="", signature="")
            row["recording_secs"] += _perf() - started
            self._course.is_open = False  # as in _settle
            self._ledger.pass_over(row)
        except Exception as error:
            self._guard.catch("writing a step", error)
        self._course.must_send = False
        self._prepare_step("train")
        for tell in self._at_end:
            tell()

    def _on_passed(self) -> None:
        """The course has seen a step through by itself, and does not know what the next one is."""
        if self._is_finished:
            return  # by another thread, while the step was written
        self._prepare_step("train")
        for tell in self._at_end:
            tell()

    def _take(self, record: StepRecord, samples: Any, decision: tuple[bool, str] | None) -> None:
        """What was captured of the step that ends."""
        if self._is_compiled and self._unseen.is_news(has_calls=bool(self._following.entered)):
            self._guard.mistake(Unseen.sentence)
        if self._flows is not None:
            has_backward = self._observer.has_backward
            record.flows = self._flows.take(self._course.loss, has_backward=has_backward)
        is_kept = self._course.reason is not None if decision is None else decision[0]
        if self.has_blackbox and not is_kept and decision is None:
            self._ledger.make_room()  # first: what is lost with the step that leaves is read again
        record.tell_written = self._observer.owned.observe_rest(
            self._optimizers.all, is_kept=is_kept
        )
        record.stats = self._observer.reducer.take_packed(self._course.step)
        if self._observer.is_keeping:
            try:
                kept = self._keeper.take(self._course.step, keep=samples)
            except BacklightError as error:
                self._guard.mistake(str(error))
                kept = self._keeper.take(self._course.step)
            record.samples, record.values = kept
        calls = self._following.take_calls()
        if calls:
            record.calls = [_call_row(self._course.step, *each) for each in enumerate(calls)]
        self._observer.end()
        new_sites = self._sites.take_new()
        if new_sites:
            self._journal.sites(new_sites)
        if self._observer.is_keeping:
            self._tell_of_values()

    def _tell_of_values(self) -> None:
        """Say what came of the raw values of the step that ends."""
        if self._keeper.is_cut and not self._has_told_cut:
            self._has_told_cut = True
            text = "raw values take more bytes than a step may have: less of the largest is kept"
            self._journal.event(self._course.step, "values", text)
        if self._keeper.is_spent and not self._has_told_spent:
            self._has_told_spent = True
            text = "raw values take as many bytes as the run may have: less of them is kept"
            self._journal.event(self._course.step, "values", text)
        if self._keeper.misfit is not None:
            self._guard.mistake(self._keeper.misfit)

    def _settle(
        self,
        record: StepRecord,
        decision: tuple[bool, str] | None,
        signature: str,
        started: float,
    ) -> None:
        """Say what the step was, and let the ledger decide what becomes of it."""
        is_kept, reason = decision or (self._course.reason is not None, self._course.reason or "")
        has_stats = record.stats is not None
        if decision is not None and is_kept and not self._is_captured:
            reason = ""
            if not self._journal.is_stopped:
                self._guard.mistake(
                    "step.keep() was called in a step that the schedule did not want, so nothing "
                    "of it was captured: begin such a step with run.step(decide=True)."
                )
        record.row = row = self._row(
            is_recorded=is_kept and has_stats, reason=reason, signature=signature
        )
        # A captured step is yet to be written, which takes about as long as the last one did.
        writing_secs = self._ledger.writing_secs if has_stats else 0.0
        row["duration_secs"] += writing_secs
        row["recording_secs"] += self._modules.hooks_secs + _perf() - started + writing_secs
        record.scale, record.left_out = self._scale, self._left_out
        self._course.is_open = False  # so that nobody ends it again, should the user interrupt
        self._ledger.settle(record, is_decided=decision is not None)

    def _row(self, *, is_recorded: bool, reason: str, signature: str) -> dict[str, Any]:
        """The step's row of the `steps` table."""
        course = self._course
        # What recording took of the step so far; a plain one may have begun in the course.
        source = self._observer if self._is_captured or self._is_compiled else course
        return {
            "step": course.step,
            "kind": self._kind,
            "recorded": is_recorded,
            "reason": reason,
            "iterations": course.iterations or 1,
            "batch_size": self._batch_size,
            "graph": signature,
            "started_at": course.started_at,
            "duration_secs": _perf() - course.started,
            "recording_secs": source.recording_secs,
            "loss": course.loss,
            "learning_rate": self._optimizers.all[0].learning_rate(),
        }

    # -- what the modules say

    @property
    def is_in_iteration(self) -> bool:
        """Whether the user has said that an iteration is under way."""
        return self._is_in_iteration

    def on_pass(self) -> bool:
        """A forward pass begins: a step, or after a backward pass another part of one."""
        if is_in_backward():
            return self._course.is_open
        if self._is_finished:
            return False  # by a hook of the user's before this one
        if not self._course.is_open and (self._checkpoints or torch.is_grad_enabled()):
            self._open_step()
            self._observer.recording_secs = 0.0  # the hook that is under way counts it
        if self._course.is_open and self._observer.has_backward:
            self._begin_part()
        return self._course.is_open

    def _begin_part(self) -> None:
        self._observer.has_backward = False
        if not self._is_in_iteration:
            self._course.iterations = max(self._course.iterations, 1)
            number = self._next_iteration()
            if self._observer.is_keeping:
                self._keeper.begin_part(number)
        elif self._observer.is_keeping:
            self._keeper.reach(self._observer.iteration)
        self._modules.begin_part()

    def _see_quietly(self, tensor_class: str, call: Call, place: str, tensor: torch.Tensor) -> None:
        # Otherwise each attribute of the tensor would be asked for through the mode.
        with torch._C.DisableTorchFunction():
            self._observer.on_activation(tensor_class, call, place, tensor)

    def on_leave(self, call: Call) -> None:
        """A module's call has ended."""
        if self._following.is_on:
            self._following.leave(call.module, call.number)
        if self._observer.owned.waiting:
            self._observer.owned.hook_late()

    def on_names(self) -> None:
        """Modules were found in the midst of a step, or before it: so were their parameters."""
        if self._course.is_open and self._is_captured:
            self._observer.owned.look_again()

    def on_compiled(self) -> None:
        """The model is compiled: its modules get hooks of their own, before they are compiled."""
        self._is_compiled, self._course.is_plain = True, False
        self._stop_following()
        self._first_forward.disarm()
        self._modules.settle()

    def on_fault(self, doing: str, error: Exception) -> None:
        """A hook on a module failed."""
        self._guard.catch(doing, error)


def _call_row(step: int, order: int, call: FunctionCall) -> dict[str, Any]:
    return {
        "step": step,
        "iteration": call.iteration,
        "order": order,
        "function": call.function,
        "module": call.module,
        "arguments": json.dumps(call.arguments),
        "result": json.dumps(call.result),
        "source": call.source,
        "code": call.code,
    }
