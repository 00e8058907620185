"""A run of a JAX program as the user sees it: wraps a training step, and records some of its calls.

A step that is not recorded is the user's own function and nothing else. What a recorded
step has read is fetched when the next one begins or something is logged, so that JAX may run ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from backlight import telling
from backlight.alarm import Happening
from backlight.blackbox import StepRecord
from backlight.capture.sites import SiteBook
from backlight.ending import dismiss, enlist
from backlight.environment import describe_environment, jax_facts
from backlight.errors import Guard
from backlight.jax.arguments import put_back
from backlight.jax.description import describe_modules
from backlight.jax.programs import Programs, Recorded
from backlight.journal import Journal
from backlight.ledger import Ledger
from backlight.options import Options
from backlight.own.asking import TakesStatistics
from backlight.own.statistic import Statistic, StatisticBook
from backlight.store.packed import as_batch
from backlight.store.resume import read_progress
from backlight.store.writer import RunWriter
from backlight.telling import LOSS

Function = TypeVar("Function", bound=Callable[..., Any])
_perf = time.perf_counter


@dataclass(slots=True)
class _Pending:
    """A step whose function has returned; what was read of it may still be on its way."""

    step: int
    kind: str
    reason: str | None
    started: float
    started_at: float
    host_secs: float = 0.0
    recorded: Recorded | None = None


class JaxRun(TakesStatistics):
    """A run that is being recorded. `backlight.jax.watch` makes one."""

    def __init__(
        self, path: Path, options: Options, *, exact: bool, loss: str | None, is_resumed: bool
    ) -> None:
        self.path = path
        self.has_blackbox = options.blackbox > 0
        self._guard = Guard()
        earlier = read_progress(path) if is_resumed else None
        self._sites = SiteBook(
            options.selection, earlier.sites if earlier else [], self._guard.mistake
        )
        self._own = StatisticBook(self._guard, earlier.info.statistics if earlier else ())
        self._programs = Programs(self._sites, self._guard, loss, self._own)
        self._journal = Journal(
            RunWriter(path),
            path.parent.name,
            options.config,
            self._guard,
            earlier.info if earlier else None,
        )
        self._ledger = Ledger(
            self._journal, options.schedule, self._guard, blackbox=options.blackbox
        )
        self._journal.start(describe_environment(**jax_facts()), [], [])
        self._exact = exact
        self._step = earlier.last_step if earlier else -1
        self._pending: _Pending | None = None
        self._bare_secs: dict[str, float] = {}
        self._is_finished = False
        enlist(self)

    def __repr__(self) -> str:
        return f"<backlight.jax run {str(self.path)!r}, step {self.current_step}>"

    @property
    def current_step(self) -> int:
        """The number of the step that was called last; -1 before the first."""
        return self._step

    # -- steps

    def wrap(self, function: Function, *, kind: str = "train") -> Function:
        """The training step, to be called in place of `function`, with the same arguments.

        Args:
            function: a function of arrays that does one step: jitted or not, of any arguments.
            kind: what kind of steps these are; each kind is scheduled on its own.

        >>> import tempfile, jax, jax.numpy as jnp, backlight.jax
        >>> run = backlight.jax.watch(root=tempfile.mkdtemp(), every=1)
        >>> step = run.wrap(jax.jit(lambda w, x: (w - 0.1 * x.mean(), (w * x).sum())))
        >>> w, loss = step(jnp.ones(3), jnp.ones(3))
        >>> run.finish()
        """
        kind = telling.text(kind)

        @wraps(function)
        def step(*args: Any, **keywords: Any) -> Any:
            return self._call(function, kind, args, keywords)

        return step  # type: ignore[return-value]

    step = wrap
    """The same as a decorator: `@run.step`."""

    def intercept(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a training step once: `run.intercept(update, state, batch)`."""
        return self._call(function, "train", args, keywords)

    def _call(self, function: Callable[..., Any], kind: str, args: Any, keywords: Any) -> Any:
        if self._is_finished or _is_traced((args, keywords)):
            return function(*args, **keywords)
        self._settle()
        self._step += 1
        reason = self._ledger.wants(self._step, kind)
        pending = _Pending(self._step, kind, reason, _perf(), time.time())
        self._pending = pending
        if reason is None and not self.has_blackbox:
            return function(*args, **keywords)
        with self._guard("recording a step"):
            pending.recorded = self._programs.run(function, args, keywords, self._step)
        pending.host_secs = _perf() - pending.started
        recorded = pending.recorded
        if recorded is None or self._exact:
            return function(*args, **keywords)
        if recorded.state is not None:
            put_back(args, keywords, recorded.state)
        return recorded.result

    def _settle(self) -> None:
        """The step that was called last is over: write it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with self._guard("writing a step"):
            self._journal.send_if_due()
            record = StepRecord({})
            recorded, where = pending.recorded, None
            if recorded is not None:
                words = np.asarray(recorded.words)
                where = partial(recorded.program.plan.shard_of, words=words)
                waited = _perf()
                record.stats = recorded.program.plan.to_batch(words, pending.step)
                self._introduce(recorded)
                pending.host_secs += _perf() - waited + self._ledger.writing_secs
            writing_secs = 0.0 if recorded is None else self._ledger.writing_secs
            record.row = self._row(pending, record, _perf() - pending.started + writing_secs)
            once = 0.0 if recorded is None else recorded.compile_secs
            self._ledger.settle(record, once_secs=once, where=where)

    def _row(self, pending: _Pending, record: StepRecord, duration: float) -> dict[str, Any]:
        recorded = pending.recorded
        plan = None if recorded is None else recorded.program
        return {
            "step": pending.step,
            "kind": pending.kind,
            "recorded": pending.reason is not None and record.stats is not None,
            "reason": pending.reason or "",
            "iterations": 1 if plan is None else plan.plan.iterations,
            "batch_size": None if plan is None else plan.traced.roles.batch_size,
            "loss": self._loss_in(record),
            "learning_rate": None,
            "graph": "" if plan is None or plan.graph is None else plan.graph.signature,
            "started_at": pending.started_at,
            "duration_secs": duration,
            "recording_secs": self._recording_secs(pending, duration),
        }

    def _loss_in(self, record: StepRecord) -> float | None:
        site = self._sites.number_of(LOSS)
        if record.stats is None or site is None:
            return None
        stats = as_batch(record.stats)
        rows = np.flatnonzero(stats["site"].to_numpy() == site)
        return stats["mean"][int(rows[0])].as_py() if len(rows) else None

    def _recording_secs(self, pending: _Pending, duration: float) -> float:
        """What a recorded step took more than others do; learns from those."""
        usual = self._bare_secs.get(pending.kind)
        if pending.recorded is None:
            usual = duration if usual is None else usual + 0.2 * (duration - usual)
            self._bare_secs[pending.kind] = usual
            return 0.0
        more = 0.0 if usual is None else duration - usual
        return min(max(pending.host_secs, more), duration)

    def _introduce(self, recorded: Recorded) -> None:
        """Write what is new: sites, modules, the graph."""
        self._journal.sites(self._sites.take_new())
        program = recorded.program
        if recorded.compile_secs:
            self._journal.describe(describe_modules(self._programs.traced()))
        if program.graph is not None:
            self._journal.graph(program.graph.signature, program.graph.to_json())

    # -- what is said to a run

    def log(self, **scalars: Any) -> None:
        """Log numbers for the step that was called last.

        >>> import tempfile, backlight.jax
        >>> run = backlight.jax.watch(root=tempfile.mkdtemp())
        >>> run.log(loss=0.25)
        >>> run.finish()
        """
        if self._is_over("log"):
            return
        if _is_traced(scalars):
            self._guard.mistake(
                f"run.log({', '.join(scalars)}) was called inside of a function that JAX traces: "
                "return the value from the step, and log it outside."
            )
            return
        self._settle()
        for name, value in scalars.items():
            number = self._journal.scalar(max(self._step, 0), name, value)
            if name == "loss" and number is not None:
                self._ledger.loss(self._step, number)
        self._journal.send_if_due(is_between_steps=True)

    def note(self, text: str) -> None:
        """Write a note for the step that was called last."""
        if not self._is_over("note"):
            self._settle()
            self._journal.note(max(self._step, 0), text)

    def open_blackbox(self, why: str) -> None:
        """Write the steps that the black box holds, because of something that the user noticed."""
        if not self._is_over("open_blackbox"):
            self._settle()
            self._ledger.happened(self._step, Happening("condition", telling.text(why)))

    def flush(self) -> None:
        """Wait until all that is recorded so far is written; `finish` does that too."""
        if not self._is_over("flush"):
            self._settle()
            self._journal.flush()

    def _compute(self, statistics: list[Statistic]) -> None:
        self._settle()
        self._own.add(statistics)
        self._programs.forget()
        self._journal.statistics(self._own.told())

    def _is_over(self, method: str) -> bool:
        if self._is_finished:
            self._guard.mistake(
                f"run.{method}() was called after run.finish(): the run has ended, "
                "so it is not recorded."
            )
        return self._is_finished

    # -- the end

    def finish(self, status: Literal["finished", "failed"] = "finished") -> None:
        """End the run: write what is left. A second call does nothing."""
        self.end_with(status, "")

    def end_with(self, status: Any, why: str) -> None:
        """End the run, and say why in an event, where that is not the usual end."""
        if self._is_finished:
            return
        with self._guard("ending the run"):
            self._settle()
            if self.has_blackbox or why:
                kind = "signal" if why else "exception" if status == "failed" else "end"
                self._ledger.happened(self._step, Happening(kind, why or f"the run {status}"))
        self._is_finished = True
        dismiss(self)
        self._journal.finish(status)

    def abandon(self) -> None:
        """In a forked child: leave the run to the process that began it."""
        self._journal.abandon()
        self._pending = None
        self.end_with("finished", "")

    def __enter__(self) -> JaxRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish("finished" if error is None else "failed")


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
