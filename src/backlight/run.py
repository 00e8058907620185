"""A run as the user sees it: what is said to it besides what it records by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import torch

from backlight import telling
from backlight.alarm import Happening
from backlight.anomaly.watching import WatchedAnomaly
from backlight.capture.apart import is_apart
from backlight.capture.modules import is_in_backward
from backlight.capture.named import EarlyNames
from backlight.capture.sites import ROOT
from backlight.ending import under_way
from backlight.errors import BacklightError, BacklightWarning, StopTraining
from backlight.findings import FindingWatch
from backlight.own.asking import TakesStatistics
from backlight.recorder import Recorder, Step
from backlight.samples import Fact
from backlight.schema import Finding


class Run(Recorder, TakesStatistics):
    """A run that is being recorded. `backlight.watch` makes one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._watches: list[FindingWatch] = []
        self._early = EarlyNames()
        super().__init__(*arguments, **options)

    def __repr__(self) -> str:
        return f"<backlight.Run {str(self.path)!r}, step {self.current_step}>"

    @property
    def current_step(self) -> int:
        """The number of the step that is under way, or has just ended; -1 before the first."""
        return self._course.step

    def log(self, **scalars: Any) -> None:
        """Log numbers for the current step.

        What is logged after `optimizer.step()` and before the next forward pass belongs to the
        step that has just ended.

        >>> import tempfile, backlight
        >>> from torch import nn
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> run = backlight.watch(model, optimizer, root=tempfile.mkdtemp())
        >>> run.log(loss=0.25, accuracy=0.5)
        >>> run.finish()
        """
        if self._course.log(scalars) or self._is_over("log"):
            return
        self._ledger.come_between()
        for name, value in scalars.items():
            number = self._journal.scalar(max(self._course.step, 0), name, value)
            if number is not None:
                self._ledger.logged[name] = number
            if name == "loss" and number is not None:
                self._ledger.loss(self._course.step, number)
            if number is not None and telling.text(name) == name:
                self._course.learn_name(name)
        self._journal.send_if_due(is_between_steps=not self._course.is_open)

    def anomaly(self, name: str, expression: str) -> None:
        """Look for an anomaly at each step; where it begins, write an event and open the black box.

        The language is that of docs/anomalies.md. Statistics are known at the steps that are
        captured: with a black box, all of them.

        >>> import tempfile, backlight
        >>> from torch import nn
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp()) as run:
        ...     run.anomaly("hot", "abs_max('out') > 1")
        """
        if self._is_over("anomaly") or self._is_wrong(telling.wrong_name("run.anomaly", name)):
            return
        try:
            watched = WatchedAnomaly(
                telling.text(name), str(expression), self._sites.name_of, self._own.names
            )
        except BacklightError as error:
            self._guard.mistake(f"run.anomaly({name!r}) got what is no anomaly: {error}")
            return
        self._ledger.watch_for(watched)
        self._journal.anomaly(watched.name, watched.expression.text)

    def flow(
        self,
        source: str,
        sink: str,
        *,
        every: int = 1,
        top: int = 20_000,
        sample: int = 0,
        products: int = 1024,
    ) -> None:
        """Record how the gradient flows between two layers, cell by cell, at recorded steps.

        Each is a module, which stands for its first output, a site or a named tensor. `every` says
        after how many steps they are recorded again, at the next step that is recorded; `top` how
        many of the largest are kept; `sample` of which sample of the batch they are. It takes a
        backward pass between the two layers for each of at most so many `products`: a channel
        times the cells of a receptive field, or without geometry a cell; see docs/lab.md.

        >>> import tempfile, backlight
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp(), every=1) as run:
        ...     run.flow("0", "2", every=10)
        ...     model(torch.ones(2, 4)).sum().backward()
        ...     optimizer.step()
        >>> [file.name for file in (run.path / "flows").iterdir()]
        ['0-0.safetensors']
        """
        from backlight.laboratory.recording import FlowRecording, Wanted, canonical, checked

        if self._is_over("flow"):
            return
        try:
            checked(source, sink, every=every, top=top, sample=sample, products=products)
        except BacklightError as error:
            self._guard.mistake(str(error))
            return
        if self._flows is None:
            self._likeness.expect_nothing()
            self._flows = FlowRecording(self._names, self._observer, self._guard)
        modules = {each["name"] or ROOT for each in self._names.describe()}
        ends = canonical(source, modules), canonical(sink, modules)
        self._flows.want(Wanted(*ends, every, top, sample, products))

    def on_finding(self, tell: Callable[[Finding], Any]) -> None:
        """Call a function for each fault that is found while the run trains, at a step's end.

        The rules are those of `backlight.diagnose`, in a process beside this one. Each finding is
        an event, and opens the black box. To end training, raise `backlight.StopTraining` in the
        function; what else it raises is reported, and training goes on.
        """
        if self._is_over("on_finding"):
            return
        with self._guard("starting to diagnose"):
            self._watches.append(FindingWatch(self.path, tell))
            self._at_end = [self._hear_of_findings]
            self._course.leased_steps, self._course.ends_alike = 0, False

    def _lease(self) -> tuple[int, float]:
        return (0, 0.0) if self._watches else super()._lease()

    def _hear_of_findings(self) -> None:
        for watch in self._watches:
            found: list[Finding] = []
            with self._guard("hearing of findings"):
                found = watch.new()
            for finding in found:
                self._found(watch, finding)

    def _found(self, watch: FindingWatch, finding: Finding) -> None:
        text = f"{finding.fault} in {finding.where or 'the model'}: {finding.why}"
        self._ledger.happened(self._course.step, Happening("finding", text))
        try:
            watch.tell(finding)
        except StopTraining:
            raise
        except Exception as error:
            self._guard.mistake(
                f"The function given to run.on_finding failed ({type(error).__name__}: {error}): "
                "training goes on."
            )

    def abandon(self) -> None:
        """In a forked child: leave the run, and what watches it, to the process that began it."""
        self._watches.clear()
        super().abandon()

    def end_with(self, status: Any, why: str) -> None:
        """End the run, and what watches it."""
        for watch in self._watches:
            watch.close()
        self._watches.clear()
        super().end_with(status, why)

    def note(self, text: str) -> None:
        """Write a note for the current step."""
        if not self._is_over("note"):
            self._journal.note(max(self._course.step, 0), text)

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
        wrong = (
            telling.wrong_name("run.tensor", name)
            or telling.wrong_own_name(name)
            or telling.wrong_tensor(name, tensor, kind, batch_dim)
            or telling.wrong_part(name, "node", node)
            or telling.wrong_part(name, "role", role)
        )
        if self._is_over("tensor") or self._is_wrong(wrong):
            return tensor
        told: dict[str, Any]
        told = {"batch_dim": batch_dim, "node": node, "role": role, "kind": kind}
        if torch.is_grad_enabled() and not self._course.is_open:
            self._open_step()
        if self._course.is_open:
            iteration = -1 if is_initial else self._observer.iteration
            self._name(name, "", tensor, iteration, **told)
        elif self._is_captured:
            self._likeness.expect_nothing()  # the next step begins with it
            with self._guard("naming a tensor"):
                self._early.put(name, tensor, is_initial=is_initial, **told)
        return tensor

    def on_pass(self) -> bool:
        """A forward pass begins: a part of a step, or an evaluation."""
        is_part = super().on_pass()
        if not is_part:
            self._early.see_evaluation()
        return is_part

    def _begin_capture(self) -> None:
        super()._begin_capture()
        for name, tensor, told in self._early.take():
            iteration = -1 if told.pop("is_initial") else 0
            self._name(name, "", tensor, iteration, **told)

    def connect(self, source: torch.Tensor | str, sink: torch.Tensor | str) -> None:
        """Say that `sink` depends on `source`, where neither autograd nor data flow can tell.

        Each is a tensor, or the name of a site. The edge is part of the graph of this step.
        """
        if self._is_over("connect"):
            return
        if self._is_wrong(telling.wrong_end(source) or telling.wrong_end(sink)):
            return
        if self._following.is_on:
            with self._guard("connecting two tensors"):
                self._following.graphs.connect(source, sink)

    def detach(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor.detach()`, of which the graph keeps that it was made from `tensor`.

        What is no tensor is given back as it is.
        """
        if self._is_wrong(telling.wrong_detached(tensor)):
            return tensor
        copy = tensor.detach()
        if not self._is_finished and self._following.is_on:
            with self._guard("detaching a tensor"):
                self._following.graphs.detached(tensor, copy)
        return copy

    def batch(self, *, indices: Any = None, losses: Any = None, categories: Any = None) -> None:
        """Tell of each sample of the batch: its place in the data set, its loss, its category.

        The samples whose raw values are kept may be chosen by them. It is about the iteration that
        it is told in; outside of `run.iteration()` about the part of the step under way, such as a
        micro-batch. Between a backward pass and the next forward pass, it is about the one to
        come, unless it tells losses: those are of a forward pass that has been.
        """
        if self._is_over("batch") or not self._is_captured:
            return
        if torch.is_grad_enabled() and not self._course.is_open:
            self._open_step()
        told: dict[Fact, Any]
        told = {"data_indices": indices, "losses": losses, "categories": categories}
        iteration = self._observer.iteration if self._is_in_iteration else None
        is_ahead = self._observer.has_backward and iteration is None and losses is None
        for fact, values in told.items():
            if values is not None:
                self._tell(fact, values, iteration, is_ahead=is_ahead)

    def _tell(self, fact: Fact, values: Any, iteration: int | None, *, is_ahead: bool) -> None:
        with self._guard("taking what is told of a batch"):
            try:
                self._keeper.learn(fact, values, iteration, is_ahead=is_ahead)
            except BacklightError as error:
                self._guard.mistake(str(error))

    def _name(
        self,
        name: str,
        module: str,
        tensor: torch.Tensor,
        iteration: int,
        batch_dim: int | None = 0,
        *,
        node: str | None = None,
        role: str | None = None,
        kind: str = "",
        call: int = 1,
    ) -> None:
        if not (self._course.is_open and self._is_captured):
            return
        name = telling.text(name)
        if self._flows is not None:
            self._flows.see(f"{module}:{name}" if module else name, tensor)
        with self._guard("reading a named tensor"):
            try:
                site = self._sites.named(
                    name,
                    module=module,
                    node=telling.text(node or module or name),
                    role=telling.text(role or name),
                    kind=kind,
                    step=self._course.step,
                    call=call,
                )
            except BacklightError as error:
                self._guard.mistake(str(error))
                return
            if not self._observer.on_named(site, tensor, iteration, batch_dim):
                self._guard.mistake(
                    f"Two tensors are named {name!r} in one iteration: name the second one "
                    "otherwise, or use run.iteration() around each pass of a loop, also the first: "
                    "what comes before it is part of it."
                )
                return
            self._losses.named.add(tensor, site)

    def _tap(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor that `backlight.tap` names inside a forward, after the module that runs."""
        module, call = self._modules.current_module, self._modules.current_call
        if call and not is_in_backward():
            node = module or (ROOT if self._modules.is_inside else None)
            self._name(name, module, tensor, self._observer.iteration, node=node, call=call)

    def _is_wrong(self, sentence: str | None) -> bool:
        """Whether something is wrong; if so, the user is told."""
        if sentence is not None:
            self._guard.mistake(sentence)
        return sentence is not None

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
        >>> from torch import nn
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
            yield self._explicit or Step(self._course.step, kind)
            return
        self._end_step_under_way()
        self._early.take()  # what was named before is not of this step
        self._prepare_step(telling.text(kind), decide=decide)
        is_wrong = self._is_wrong(telling.wrong_batch_size(batch_size))
        self._batch_size = None if is_wrong else batch_size
        self._course.is_plain = False
        self._explicit = step = Step(self._course.step + 1, self._kind)
        self._open_step()
        try:
            yield step
        finally:
            self._explicit = None
            if not self._is_finished:
                self._end_step(step)

    @contextmanager
    def iteration(self) -> Iterator[int]:
        """A part of a step that repeats, such as one step of a recurrent network.

        Iterations of a step are numbered from 0, and calls of modules are counted anew in each.
        """
        if self._is_over("iteration"):
            yield 0
            return
        if torch.is_grad_enabled() and not self._course.is_open:
            self._open_step()
        outer = self._observer.iteration, self._is_in_iteration
        number = self._next_iteration()
        self._is_in_iteration = True
        try:
            yield number
        finally:
            self._observer.iteration, self._is_in_iteration = outer

    @contextmanager
    def backward(self, name: str) -> Iterator[None]:
        """Name the backward passes inside, so that those of one step are told apart."""
        is_wrong = self._is_wrong(telling.wrong_name("run.backward", name))
        if is_wrong or self._is_over("backward"):
            yield
            return
        names, outer = self._observer.reducer.backwards, self._observer.backward
        name = telling.text(name)
        if name not in names:
            names.append(name)
        self._observer.backward = names.index(name)
        try:
            yield
        finally:
            self._observer.backward = outer

    def flush(self) -> None:
        """Wait until all that is recorded so far is written; `finish` does that too."""
        if not self._is_over("flush"):
            self._journal.flush()

    def show(self, view: str = "overview", **options: Any) -> Any:
        """The page on this run, in a notebook; see `backlight.notebook.show` for the options."""
        from backlight import open as open_run

        if not self._is_finished:
            self._journal.flush()
        return open_run(self.path).show(view=view, **options)

    def open_blackbox(self, why: str) -> None:
        """Write the steps that the black box holds, because of something that the user noticed."""
        if self._is_over("open_blackbox"):
            return
        self._ledger.happened(self._course.step, Happening("condition", telling.text(why)))

    def finish(
        self, status: Literal["finished", "failed"] = "finished", *, compact: bool = False
    ) -> None:
        """End the run: write what is left, remove every hook. A second call does nothing.

        With `compact` its files are then made smaller and faster to read, as by
        `backlight compact`; that takes a second for some 50 MB.
        """
        self.end_with(status, "")
        if compact:
            self._compact()

    def _compact(self) -> None:
        from backlight.store.compact import compact

        try:
            compact(self.path)
        except BacklightError as error:  # the run is whole all the same
            warnings.warn(str(error), BacklightWarning, stacklevel=3)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish("finished" if error is None else "failed")


def runs_under_way() -> list[Run]:
    """Every run that records now."""
    return [run for run in under_way() if isinstance(run, Run)]


def tap(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Name a tensor for every run that records now; see `backlight.tap`."""
    if is_apart():
        return tensor
    for run in runs_under_way():
        is_tensor = isinstance(tensor, torch.Tensor)
        wrong = (
            None
            if is_tensor
            else f"backlight.tap() got a {type(tensor).__name__}: " + ("pass a torch.Tensor.")
        )
        if not run._is_wrong(wrong or telling.wrong_name("backlight.tap", name)):
            run._tap(name, tensor)
    return tensor
