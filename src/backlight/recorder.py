"""A run being recorded: wires capture to reduce to the store, and does nothing else.

A step begins with the first forward pass after the last one ended, and ends when the optimizer has
stepped. Whether it is recorded is decided when the step before it ends, so that a step that is not
recorded runs without hooks.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from backlight.capture.modules import Call, FirstForward, ModuleCapture
from backlight.capture.optimizer import OptimizerCapture, check_belongs, named_parameters
from backlight.capture.sites import SiteBook
from backlight.environment import describe_environment, describe_modules
from backlight.errors import BacklightError, Guard
from backlight.journal import Journal
from backlight.reduce import Reducer
from backlight.reduce.spec import GRAD, VALUE, unit_dim
from backlight.schedule import Schedule, every
from backlight.store.writer import RunWriter, create_run_folder

_perf = time.perf_counter


class Run:
    """A run that is being recorded. `backlight.watch` makes one."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        path: Path,
        project: str,
        config: Mapping[str, Any],
        schedule: Schedule,
    ) -> None:
        self.path = path
        self._guard = Guard()
        self._schedule = schedule
        self._reducer = Reducer()
        self._sites = SiteBook()
        self._parameters = named_parameters(model)
        self._modules = ModuleCapture(model, self)
        self._first_forward = FirstForward(self._modules.names, self._begin_step)
        self._optimizer = OptimizerCapture(
            optimizer, before=self._before_update, after=self._after_update
        )
        self._journal = Journal(RunWriter(path), project, config, self._guard)
        self._journal.start(describe_environment(), describe_modules(model))
        self._step = -1
        self._iteration = self._iterations = 0
        self._is_open = self._is_recorded = False
        self._has_grad_hook: set[tuple[int, int]] = set()
        self._leaf_hooks: list[Any] = []
        self._last_output = SeenTensor(None, -1)
        self._recording_secs = 0.0
        self._started_at = self._started = 0.0
        self._is_finished = False
        self._at_exit = partial(_finish_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        _live_runs.add(self)
        self._prepare_step()

    def __repr__(self) -> str:
        return f"<backlight.Run {str(self.path)!r}, step {self.step}>"

    @property
    def step(self) -> int:
        """The number of the step that is under way, or has just ended; -1 before the first."""
        return self._step

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
        for name, value in scalars.items():
            self._journal.scalar(self._step_or_first, name, value)

    def note(self, text: str) -> None:
        """Write a note for the current step."""
        self._journal.note(self._step_or_first, text)

    @contextmanager
    def iteration(self) -> Iterator[int]:
        """A part of a step that repeats, such as one step of a recurrent network.

        Iterations of a step are numbered from 0, and calls of modules are counted anew in each.
        """
        if torch.is_grad_enabled() and not self._is_open and not self._is_finished:
            self._first_forward.disarm()
            self._begin_step()
        self._iteration = self._iterations
        self._iterations += 1
        self._modules.restart_calls()
        try:
            yield self._iteration
        finally:
            self._iteration = 0

    def finish(self, status: Literal["finished", "failed"] = "finished") -> None:
        """End the run: write what is left, remove every hook. A second call does nothing."""
        if self._is_finished:
            return
        self._is_finished = True
        atexit.unregister(self._at_exit)
        self._first_forward.disarm()
        self._modules.detach()
        self._optimizer.detach()
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

    @property
    def _step_or_first(self) -> int:
        return max(self._step, 0)

    # -- the course of a step

    def _prepare_step(self) -> None:
        """Decide whether the step to come is recorded, and wait for it to begin."""
        self._is_open = self._is_recorded = False
        with self._guard("asking the schedule"):
            self._is_recorded = bool(self._schedule(self._step + 1))
        if self._is_recorded:
            self._modules.attach()
        else:
            self._modules.detach()
        self._first_forward.arm()

    def _begin_step(self) -> None:
        self._is_open = True
        self._step += 1
        self._iteration = self._iterations = 0
        self._started, self._started_at = _perf(), time.time()
        self._last_output = SeenTensor(None, -1)
        with self._guard("beginning a step"):
            self._reducer.clear()
            self._journal.flush_if_due()
        self._recording_secs = _perf() - self._started

    def _before_update(self) -> None:
        self._first_forward.disarm()
        if not self._is_open:
            self._begin_step()
        if self._is_recorded:
            started = _perf()
            with self._guard("reading parameters and their gradients"):
                self._observe_parameters()
            self._recording_secs += _perf() - started

    def _after_update(self) -> None:
        started = _perf()
        with self._guard("writing a step"):
            if self._is_recorded:
                self._observe_optimizer_state()
                self._journal.stats(self._reducer.take(self._step), self._sites.take_new())
                self._release_hooks()
        ended = _perf()
        self._recording_secs += ended - started
        self._journal.step(
            step=self._step,
            kind="train",
            recorded=self._is_recorded,
            reason="schedule",
            started_at=self._started_at,
            duration_secs=ended - self._started,
            recording_secs=self._recording_secs,
        )
        self._prepare_step()

    # -- what is observed

    def on_output(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """Observe an output of a module's call, and its gradient once there is one."""
        if not self._is_open:
            return
        started = _perf()
        site = self._sites.output(
            call.module, call.module_class, place, call=call.number, step=self._step
        )
        if self._last_output.is_again(tensor):
            # A container returns what its last child returned: one tensor, seen at two sites.
            self._last_output.sites.append(site)
            if not call.is_recomputed:
                self._reducer.repeat(site)
        else:
            self._last_output = SeenTensor(tensor, site)
            if not call.is_recomputed:
                units = unit_dim(tensor.dim(), call.module_class)
                self._reducer.observe(tensor, site, VALUE, self._iteration, units)
            if tensor.requires_grad:
                self._hook_gradient(tensor, self._last_output.sites)
        self._recording_secs += _perf() - started

    def _hook_gradient(self, tensor: torch.Tensor, sites: list[int]) -> None:
        key = (sites[0], self._iteration)
        if key in self._has_grad_hook:
            return
        self._has_grad_hook.add(key)
        handle = tensor.register_hook(partial(self._on_grad, self._step, self._iteration, sites))
        if tensor.is_leaf:
            self._leaf_hooks.append(handle)

    def on_fault(self, doing: str, error: Exception) -> None:
        """A hook on a module failed."""
        self._guard.catch(doing, error)

    def _on_grad(self, step: int, iteration: int, sites: list[int], grad: torch.Tensor) -> None:
        if step != self._step or not self._is_open:
            return
        started = _perf()
        with self._guard("reading a gradient"):
            self._reducer.observe(grad, sites[0], GRAD, iteration)
            for site in sites[1:]:
                self._reducer.repeat(site)
        self._recording_secs += _perf() - started

    def _observe_parameters(self) -> None:
        for named in self._parameters:
            parameter = named.parameter()
            if parameter is None or is_lazy(parameter):
                continue
            site = self._sites.parameter(
                named.module,
                named.module_class,
                named.place,
                aliases=named.aliases,
                step=self._step,
            )
            self._reducer.observe(parameter, site, VALUE)
            if parameter.grad is not None:
                self._reducer.observe(parameter.grad, site, GRAD)

    def _observe_optimizer_state(self) -> None:
        for named in self._parameters:
            parameter = named.parameter()
            if parameter is None:
                continue
            for key, state in self._optimizer.states(parameter):
                site = self._sites.optimizer_state(
                    named.module, named.module_class, named.place, key, step=self._step
                )
                self._reducer.observe(state, site, VALUE)

    def _release_hooks(self) -> None:
        """A hook on a leaf would outlive its graph, so it is removed; the others go with theirs."""
        self._has_grad_hook.clear()
        for handle in self._leaf_hooks:
            handle.remove()
        self._leaf_hooks.clear()


class SeenTensor:
    """A tensor as it was when it was observed, without keeping it alive, and its sites."""

    def __init__(self, tensor: torch.Tensor | None, site: int) -> None:
        self._tensor = None if tensor is None else weakref.ref(tensor)
        self._version = -1 if tensor is None else _version(tensor)
        self.sites = [site]

    def is_again(self, tensor: torch.Tensor) -> bool:
        """Whether this is that tensor, unchanged."""
        return (
            self._tensor is not None
            and self._tensor() is tensor
            and self._version == _version(tensor)
        )


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


_live_runs: weakref.WeakSet[Run] = weakref.WeakSet()


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
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    project: str,
    name: str,
    root: str | Path,
    config: Mapping[str, Any] | None,
    every_steps: int,
) -> Run:
    """Check the arguments of `backlight.watch`, make the run's folder, and start to record."""
    check_belongs(model, optimizer)
    schedule = every(every_steps)
    if config is not None and not isinstance(config, Mapping):
        raise BacklightError(f"config is a {type(config).__name__}: pass a dict of settings.")
    path = create_run_folder(Path(root), project, name)
    return Run(model, optimizer, path=path, project=project, config=config or {}, schedule=schedule)
