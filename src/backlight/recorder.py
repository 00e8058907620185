"""A run being recorded: wires capture to reduce to the store.

A step begins with the first forward pass after the last one ended, and ends when every optimizer
has stepped; or the user says where it begins and ends. Whether it is recorded is decided before it
begins, so that a step that is not recorded runs without hooks.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from backlight.blackbox import BlackBox, SpikeDetector, StepRecord, first_nonfinite, gradient_norm
from backlight.capture.calls import CallCapture, FunctionCall
from backlight.capture.graph import Graph, GraphCapture
from backlight.capture.modules import Call, FirstForward, ModuleCapture, is_in_backward
from backlight.capture.names import ModelNames, is_compiled
from backlight.capture.observer import Observer
from backlight.capture.optimizer import OptimizerCapture, check_models, check_optimizers
from backlight.capture.samples import ValueKeeper
from backlight.capture.select import Selection
from backlight.capture.sites import SiteBook
from backlight.environment import describe_environment
from backlight.errors import BacklightError, Guard, tell
from backlight.journal import Journal
from backlight.samples import SampleSelection, as_selection
from backlight.schedule import Schedule, make_schedule
from backlight.store.resume import read_progress
from backlight.store.writer import RunWriter, create_run_folder

_perf = time.perf_counter
LOSS = "(loss)"
"""The name of the site where the loss is seen that a backward pass starts from."""

_TENSOR_KINDS = ("input", "hidden", "target", "loss", "helper")


class Step:
    """A step that the user began with `with run.step(…) as step`."""

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self._decision: tuple[bool, str] | None = None

    def keep(self, reason: str = "kept") -> None:
        """Keep this step, if it was captured, whatever the schedule said."""
        self._decision = True, str(reason)

    def drop(self) -> None:
        """Do not keep this step, whatever the schedule said."""
        self._decision = False, "dropped"


class Run:
    """A run that is being recorded. `backlight.watch` makes one."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        path: Path,
        project: str,
        config: Mapping[str, Any],
        schedule: Schedule,
        selection: Selection,
        blackbox: int,
        samples: SampleSelection | None,
        is_resumed: bool,
    ) -> None:
        self.path = path
        self._guard = Guard()
        self._schedule = schedule
        self._box = BlackBox(blackbox)
        earlier = read_progress(path) if is_resumed else None
        self._sites = SiteBook(selection, known=earlier.sites if earlier else [])
        self._names = ModelNames(models)
        keeper = None if samples is None else ValueKeeper(samples)
        self._observer = Observer(self._names, self._sites, self._guard, keeper)
        self._modules = ModuleCapture(self._names, self)
        self._calls = CallCapture(
            lambda: self._modules.current_module, on_loss=self._on_loss, on_fault=self.on_fault
        )
        self._graphs = GraphCapture()
        self._graph: Graph | None = None
        self._traces_left = 4  # some steps can never be traced, so it is not tried for ever
        self._times_captured: Counter[str] = Counter()
        self._first_forward = FirstForward(self._names, self._begin_step, self.on_fault)
        self._optimizers: list[OptimizerCapture] = []
        info = earlier.info if earlier else None
        self._journal = Journal(RunWriter(path), project, config, self._guard, info)
        self._journal.start(describe_environment(), self._names.describe())
        self._step = earlier.last_step if earlier else -1
        self._kind = "train"
        self._batch_size: int | None = None
        self._explicit: Step | None = None
        self._iterations = 0
        self._reason: str | None = None
        self._is_open = self._is_captured = False
        self._is_in_iteration = False
        self._stepped: set[OptimizerCapture] = set()
        self._started_at = self._started = 0.0
        self._spikes = {"loss": SpikeDetector(), "gradient norm": SpikeDetector()}
        self._has_been_nonfinite = False
        self._is_finished = self._is_compiled = False
        self._at_exit = partial(_finish_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        _live_runs.add(self)
        self._optimizers = [
            OptimizerCapture(each, before=self._before_update, after=self._after_update)
            for each in optimizers
        ]
        self._prepare_step("train")

    def __repr__(self) -> str:
        return f"<backlight.Run {str(self.path)!r}, step {self.current_step}>"

    @property
    def current_step(self) -> int:
        """The number of the step that is under way, or has just ended; -1 before the first."""
        return self._step

    # -- what the user says

    def log(self, **scalars: Any) -> None:
        """Log numbers for the current step.

        What is logged after `optimizer.step()` and before the next forward pass belongs to the
        step that has just ended.

        >>> import tempfile, backlight
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> run = backlight.watch(model, optimizer, root=tempfile.mkdtemp())
        >>> run.log(loss=0.25, accuracy=0.5)
        >>> run.finish()
        """
        if self._is_over("log"):
            return
        for name, value in scalars.items():
            number = self._journal.scalar(max(self._step, 0), name, value)
            if name == "loss" and number is not None:
                self._look_for_spike("loss", number)
        self._journal.flush_if_due(is_between_steps=not self._is_open)

    def note(self, text: str) -> None:
        """Write a note for the current step."""
        if not self._is_over("note"):
            self._journal.note(max(self._step, 0), text)

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        *,
        node: str | None = None,
        role: str | None = None,
        kind: str = "hidden",
        batch_dim: int | None = 0,
        is_initial: bool = False,
    ) -> torch.Tensor:
        """Name a tensor, of any dtype, so that it and its gradient are recorded; return it.

        Several tensors can be roles of one node. `kind` is input, hidden, target, loss or helper.
        `batch_dim` says which dimension counts samples, None that there is none. A value from
        before the first iteration is given with `is_initial`.
        """
        if self._is_over("tensor") or not self._is_fit(name, tensor, kind, batch_dim):
            return tensor
        if torch.is_grad_enabled() and not self._is_open:
            self._open_step()
        with self._guard("reading a named tensor"):
            site = self._sites.named(
                name, module="", node=node or name, role=role or name, kind=kind, step=self._step
            )
            iteration = -1 if is_initial else self._observer.iteration
            self._name(name, site, tensor, iteration, batch_dim)
        return tensor

    def batch(self, *, indices: Any = None, losses: Any = None, categories: Any = None) -> None:
        """Tell of each sample of the batch: its place in the data set, its loss, its category.

        The samples whose raw values are kept may be chosen by them.
        """
        keeper = self._observer.keeper
        if self._is_over("batch") or keeper is None or not self._is_captured:
            return
        if torch.is_grad_enabled() and not self._is_open:
            self._open_step()
        told = {"data_indices": indices, "losses": losses, "categories": categories}
        for fact, values in told.items():
            if values is not None:
                self._tell(getattr(keeper, fact), values)

    def _tell(self, fact: Callable[[Any], None], values: Any) -> None:
        with self._guard("taking what is told of a batch"):
            try:
                fact(values)
            except BacklightError as error:
                self._guard.mistake(str(error))

    def _name(
        self,
        name: str,
        site: int,
        tensor: torch.Tensor,
        iteration: int,
        batch_dim: int | None = 0,
    ) -> None:
        is_recorded = self._is_open and self._is_captured
        if is_recorded and not self._observer.on_named(site, tensor, iteration, batch_dim):
            self._guard.mistake(
                f"Two tensors are named {name!r} in one iteration: name the second one "
                "otherwise, or use run.iteration() around each pass of a loop."
            )

    def _tap(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor that `backlight.tap` names inside a forward, after the module that runs."""
        module = self._modules.current_module
        if self._is_open and self._is_captured and not is_in_backward():
            with self._guard("reading a tapped tensor"):
                site = self._sites.named(
                    name, module=module, node=module or name, role=name, kind="", step=self._step
                )
                self._name(name, site, tensor, self._observer.iteration)

    def _is_fit(self, name: object, tensor: object, kind: object, batch_dim: int | None) -> bool:
        """Whether a tensor can be named so; if not, the user is told."""
        if not isinstance(name, str) or not name:
            self._guard.mistake(f"run.tensor() got {name!r} as name: pass a text.")
        elif not isinstance(tensor, torch.Tensor):
            self._guard.mistake(
                f"run.tensor({name!r}) got a {type(tensor).__name__}: pass a torch.Tensor."
            )
        elif batch_dim is not None and not -tensor.dim() <= batch_dim < max(tensor.dim(), 1):
            self._guard.mistake(
                f"run.tensor({name!r}) got batch_dim={batch_dim} for a tensor of "
                f"{tensor.dim()} dimensions: give one that it has, or None."
            )
        elif kind not in _TENSOR_KINDS:
            self._guard.mistake(
                f"run.tensor({name!r}) got kind={kind!r}: use {', '.join(_TENSOR_KINDS)}."
            )
        else:
            return True
        return False

    def _is_over(self, method: str) -> bool:
        if self._is_finished:
            self._guard.mistake(
                f"run.{method}() was called after run.finish(): the run has ended, "
                "so it is not recorded."
            )
        return self._is_finished

    @contextmanager
    def step(
        self, kind: str = "train", *, batch_size: int | None = None, decide: bool = False
    ) -> Iterator[Step]:
        """Say where a step begins and ends, and of which kind it is.

        Each kind is scheduled on its own. An evaluation is a step too, of its own kind. With
        `decide` the step is captured in any case, and `step.keep()` decides at its end.

        >>> import tempfile, backlight
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp()) as run:
        ...     with run.step(kind="evaluation"), torch.no_grad():
        ...         run.log(accuracy=model(torch.ones(1, 2)).item() > 0)
        """
        if self._explicit is not None or self._is_over("step"):
            if self._explicit is not None:
                self._guard.mistake(
                    "run.step() was called inside run.step(): end the outer one first; "
                    "the inner one is taken as part of it."
                )
            yield self._explicit or Step(self._step, kind)
            return
        self._end_step_under_way()
        self._prepare_step(str(kind), decide=decide)
        self._batch_size = batch_size
        self._explicit = step = Step(self._step + 1, self._kind)
        self._open_step()
        try:
            yield step
        finally:
            self._explicit = None
            if not self._is_finished:
                self._end_step(step._decision)

    @contextmanager
    def iteration(self) -> Iterator[int]:
        """A part of a step that repeats, such as one step of a recurrent network.

        Iterations of a step are numbered from 0, and calls of modules are counted anew in each.
        """
        if torch.is_grad_enabled() and not self._is_open and not self._is_finished:
            self._open_step()
        number = self._next_iteration()
        self._is_in_iteration = True
        try:
            yield number
        finally:
            self._observer.iteration, self._is_in_iteration = 0, False

    @contextmanager
    def backward(self, name: str) -> Iterator[None]:
        """Name the backward passes inside, so that those of one step are told apart."""
        names = self._observer.reducer.backwards
        if name not in names:
            names.append(name)
        self._observer.backward = names.index(name)
        try:
            yield
        finally:
            self._observer.backward = 0

    def open_blackbox(self, why: str) -> None:
        """Write the steps that the black box holds, because of something that the user noticed."""
        if self._is_over("open_blackbox"):
            return
        self._happened("condition", why)

    def finish(self, status: Literal["finished", "failed"] = "finished") -> None:
        """End the run: write what is left, remove every hook. A second call does nothing."""
        if self._is_finished:
            return
        with self._guard("ending the run"):
            self._end_step_under_way(is_cut_short=True)
            if self._box.steps:
                self._happened("exception" if status == "failed" else "end", f"the run {status}")
        self._is_finished = True
        atexit.unregister(self._at_exit)
        self._first_forward.disarm()
        self._modules.remove()
        self._stop_listening()
        self._observer.end()
        for optimizer in self._optimizers:
            optimizer.detach()
        self._journal.finish(status)

    def _abandon(self) -> None:
        """In a forked child: leave the run to the process that began it."""
        self._journal.abandon()
        self.finish()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish("finished" if error is None else "failed")

    # -- the course of a step

    def _prepare_step(self, kind: str, *, decide: bool = False) -> None:
        """Decide whether the step to come is recorded, and wait for it to begin."""
        self._is_open = self._is_in_iteration = False
        self._kind, self._batch_size = kind, None
        self._stepped.clear()
        self._reason = None
        with self._guard("asking the schedule"):
            self._reason = self._ask_schedule(kind)
        self._is_captured = self._reason is not None or self._box.steps > 0 or decide
        if not self._is_compiled and self._names.is_compiled():
            self.on_compiled()
        if self._is_captured:
            self._modules.attach()
        else:
            self._modules.detach()
        if self._is_captured or self._is_compiled:
            self._first_forward.disarm()
        else:
            self._first_forward.arm()

    def _ask_schedule(self, kind: str) -> str | None:
        try:
            return self._schedule.wants(self._step + 1, kind)
        except BacklightError as error:
            self._guard.mistake(str(error))
            return None

    def _open_step(self) -> None:
        self._first_forward.disarm()
        self._begin_step()

    def _begin_step(self) -> None:
        self._is_open = True
        self._step += 1
        self._iterations = 0
        self._modules.restart_calls()
        self._started, self._started_at = _perf(), time.time()
        with self._guard("beginning a step"):
            self._journal.flush_if_due()
            if self._is_captured:
                self._observer.begin(self._step, self._batch_size)
                self._listen_to_calls()
        self._observer.recording_secs = _perf() - self._started

    def _listen_to_calls(self) -> None:
        """See functional calls and the graph, ever more rarely: they seldom change."""
        times = self._times_captured[self._kind]
        self._times_captured[self._kind] += 1
        if times & (times - 1) == 0 and not self._is_compiled:
            self._graphs.begin(trace_data=self._traces_left > 0)
            self._traces_left -= 1
            self._observer.show_owned(self._graphs)
            self._calls.iteration = 0
            self._calls.attach()

    def _stop_listening(self) -> None:
        """Before an update: functional calls and the graph are complete."""
        self._calls.detach()
        if self._observer.graph is not None:
            self._observer.graph = None
            with self._guard("following the graph"):
                self._graph = self._graphs.finish()

    def _on_loss(self, tensor: torch.Tensor) -> None:
        """A backward pass starts from this tensor: it is the loss, whatever it is called."""
        site = self._sites.named(
            LOSS, module="", node=LOSS, role=LOSS, kind="loss", step=self._step
        )
        if self._is_open and self._is_captured:
            if self._observer.graph is not None and site >= 0:
                self._observer.graph.loss(site, tensor)
            self._observer.on_named(site, tensor, self._observer.iteration, batch_dim=None)

    def _next_iteration(self) -> int:
        self._observer.iteration = self._calls.iteration = number = self._iterations
        self._iterations += 1
        self._modules.restart_calls()
        return number

    def _before_update(self, optimizer: OptimizerCapture) -> None:
        self._stop_listening()
        if not self._is_open:
            self._open_step()
        if self._is_captured:
            started = _perf()
            with self._guard("reading parameters and their gradients"):
                self._observer.before_update(optimizer)
            self._observer.recording_secs += _perf() - started

    def _after_update(self, optimizer: OptimizerCapture) -> None:
        if self._is_captured:
            started = _perf()
            with self._guard("reading the optimizer's state"):
                self._observer.after_update(optimizer)
            self._observer.recording_secs += _perf() - started
        self._stepped.add(optimizer)
        if self._explicit is None and len(self._stepped) == len(self._optimizers):
            self._end_step(None)

    def _end_step_under_way(self, *, is_cut_short: bool = False) -> None:
        """End a step that was begun and not ended, such as a forward pass without an update."""
        if self._is_open:
            self._end_step((False, "cut short") if is_cut_short and self._box.steps == 0 else None)

    def _end_step(self, decision: tuple[bool, str] | None) -> None:
        started = _perf()
        self._stop_listening()
        record = StepRecord({})
        with self._guard("writing a step"):
            if self._is_captured:
                self._observer.observe_rest(self._optimizers)
                record.stats = self._observer.reducer.take(self._step)
                if self._observer.keeper is not None:
                    record.samples, record.values = self._observer.keeper.take(self._step)
                record.calls = [
                    _call_row(self._step, *each) for each in enumerate(self._calls.take())
                ]
                self._observer.end()
                self._journal.sites(self._sites.take_new())
            self._settle(record, decision, started)
        self._prepare_step("train")

    def _settle(
        self, record: StepRecord, decision: tuple[bool, str] | None, started: float
    ) -> None:
        """Write a step that is kept; let the black box hold one that is not."""
        has_stats = record.stats is not None
        is_kept, reason = decision or (self._reason is not None, self._reason or "")
        recording_secs = self._observer.recording_secs + _perf() - started
        duration_secs = _perf() - self._started
        record.row = {
            "step": self._step,
            "kind": self._kind,
            "recorded": is_kept and has_stats,
            "reason": reason,
            "iterations": max(self._iterations, 1),
            "batch_size": self._batch_size,
            "graph": "" if self._graph is None else self._graph.signature,
            "started_at": self._started_at,
            "duration_secs": duration_secs,
            "recording_secs": recording_secs,
        }
        self._schedule.learn(self._kind, duration_secs, recording_secs if has_stats else 0.0)
        if self._graph is not None:
            self._journal.graph(self._graph.signature, self._graph.to_json())
            self._graph = None
        leaving: StepRecord | None = record
        if self._box.steps and has_stats and not record.row["recorded"] and decision is None:
            leaving = self._box.hold(record)
        if leaving is not None:
            self._journal.record(leaving)
        self._look_for_trouble(record.stats)

    # -- what happens, and the black box

    def _look_for_trouble(self, stats: Any) -> None:
        found = first_nonfinite(stats)
        if found is not None and not self._has_been_nonfinite:
            self._has_been_nonfinite = True
            text = (
                f"{found['nans']} NaN and {found['infs']} infinite of {found['count']} elements "
                f"({found['quantity']})"
            )
            self._happened("nonfinite", text, found["site"])
        if self._box.steps:
            norm = gradient_norm(stats)
            if norm is not None:
                self._look_for_spike("gradient norm", norm)

    def _look_for_spike(self, what: str, value: float) -> None:
        if self._spikes[what].is_spike(value):
            self._happened("spike", f"{what} {value:.4g}")

    def _happened(self, kind: str, text: str, site: int = -1) -> None:
        """Note an event, and write the steps that led to it."""
        self._journal.event(max(self._step, 0), kind, text, site)
        for record in self._box.open(kind):
            self._journal.record(record)

    # -- what the modules say

    def on_enter(self, call: Call) -> None:
        """A module's call begins."""
        if self._observer.graph is not None:
            self._observer.graph.enter(call.module, call.number)

    def on_pass(self) -> bool:
        """A forward pass begins: a step, or after a backward pass another part of one."""
        if is_in_backward():
            return self._is_open
        if not self._is_open and torch.is_grad_enabled():
            self._open_step()
        if self._is_open and self._observer.has_backward:
            self._begin_part()
        return self._is_open

    def _begin_part(self) -> None:
        self._observer.has_backward = False
        if not self._is_in_iteration:
            self._iterations = max(self._iterations, 1)
            self._next_iteration()

    def on_input(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """A module's call is given a tensor."""
        if self._is_open:
            self._observer.on_input(call, place, tensor)

    def on_output(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """A module's call has returned a tensor."""
        if self._is_open:
            self._observer.on_output(call, place, tensor)

    def on_leave(self, call: Call) -> None:
        """A module's call has ended."""
        if self._observer.graph is not None:
            self._observer.graph.leave(call.module, call.number)

    def on_compiled(self) -> None:
        """The model is compiled: its modules get hooks of their own, before they are compiled."""
        self._is_compiled = True
        self._first_forward.disarm()
        self._modules.settle()

    def on_fault(self, doing: str, error: Exception) -> None:
        """A hook on a module failed."""
        self._guard.catch(doing, error)


_live_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def tap(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Name a tensor for every run that records now; see `backlight.tap`."""
    for run in list(_live_runs):
        run._tap(name, tensor)
    return tensor


def _abandon_all() -> None:
    for run in list(_live_runs):
        run._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _finish_at_exit(run: weakref.ref[Run]) -> None:
    """End a run that nobody ended; the interpreter remembers an exception that ended the script."""
    found = run()
    if found is not None:
        failed = getattr(sys, "last_value", None) is not None
        found.finish("failed" if failed else "finished")


def start(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    project: str,
    name: str,
    root: str | Path,
    config: Mapping[str, Any] | None,
    every: int | None,
    budget: float | None,
    schedule: object | None,
    include: Any,
    exclude: Any,
    classes: Any,
    blackbox: int,
    samples: Any,
    resume: str | Path | None,
) -> Run:
    """Check the arguments of `backlight.watch`, make the run's folder, and start to record."""
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    check_models(models)
    check_optimizers(models, optimizers)
    _check_uncompiled(models)
    _check_unwatched(models)
    chosen = make_schedule(every, budget, schedule)
    selection = Selection(include=include, exclude=exclude, classes=classes)
    if not isinstance(root, (str, Path)) or "\0" in str(root):
        raise BacklightError(f"root={root!r} is no folder: pass a path to write runs to.")
    if config is not None and not isinstance(config, Mapping):
        raise BacklightError(f"config is a {type(config).__name__}: pass a dict of settings.")
    if isinstance(blackbox, bool) or not isinstance(blackbox, int) or blackbox < 0:
        raise BacklightError(f"blackbox={blackbox!r} is no number of steps: use 0 or more.")
    kept = as_selection(samples)
    path = _folder(root, project, name, resume)
    return Run(
        models,
        optimizers,
        path=path,
        project=path.parent.name,
        config=config or {},
        schedule=chosen,
        selection=selection,
        blackbox=blackbox,
        samples=kept,
        is_resumed=resume is not None,
    )


def _folder(root: str | Path, project: str, name: str, resume: str | Path | None) -> Path:
    if resume is None:
        return create_run_folder(Path(root), project, name)
    path = Path(resume)
    if not (path / "run.json").is_file():
        raise BacklightError(f"resume={str(path)!r} is no run: pass the path of an earlier run.")
    return path


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


def _check_uncompiled(models: Mapping[str, nn.Module]) -> None:
    """Say what is not seen of a model that was compiled before it is watched."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are")
    if any(is_compiled(model) for model in models.values()):
        tell(
            "The model was compiled before it was watched: what has been compiled already shows no "
            "activations; call backlight.watch(model, optimizer) first, then torch.compile(model)."
        )


def _check_unwatched(models: Mapping[str, nn.Module]) -> None:
    """One model, one run: a second one would record everything twice."""
    own = [module for model in models.values() for module in model.modules()]
    for run in list(_live_runs):
        if not run._is_finished and any(run._names.has(module) for module in own):
            raise BacklightError(
                f"This model is watched already, by the run {str(run.path)!r}: "
                "finish() that run first."
            )
