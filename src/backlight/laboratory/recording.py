"""Computes flows inside the user's own backward pass, at the steps where they are asked for.

When the gradient of the sink arrives, all that lies between it and the source is still there: its
products are taken on the user's own graph, with the random choices of that very pass, and nothing
is run again. Hooks of the user's on that way would be called once more for each product, so where
there are any, nothing is computed and that is said.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from threading import get_ident
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from backlight.capture.modules import is_in_backward, is_symbolic
from backlight.capture.names import ModelNames
from backlight.capture.observer import Observer
from backlight.capture.sights import Held, Seen
from backlight.capture.sites import ROOT
from backlight.capture.trees import inputs_in, outputs_in
from backlight.errors import BacklightError, Guard
from backlight.laboratory import flows as flowing
from backlight.laboratory.interface import Array, FlowChunk
from backlight.laboratory.receptive import Fields, fields_on_way, nodes_between
from backlight.laboratory.untouched import random_numbers_kept
from backlight.store.recorded_flows import RecordedFlows

_perf = time.perf_counter
_OUT: Final = ":out.0"


@dataclass(frozen=True)
class Wanted:
    """Two sites between which flows are asked for, and how many of them."""

    source: str
    sink: str
    every: int
    top: int
    sample: int
    products: int

    def __str__(self) -> str:
        return f"run.flow({short(self.source)!r}, {short(self.sink)!r})"


@dataclass
class Sight:
    """A tensor of the forward pass: where its gradient arrives, and a copy of one sample."""

    edge: GradientEdge
    shape: torch.Size
    order: int
    module_class: str
    value: torch.Tensor
    grad: torch.Tensor | None = None


@dataclass
class Through:
    """What passes from a source through a sink: the largest flows, and the sums of all."""

    most: int
    sums: Array
    source: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    sink: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    value: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    count: int = 0
    size: float = 0.0

    def add(self, chunk: FlowChunk) -> None:
        """Take in some flows, and let the smallest go."""
        self.count += len(chunk.value)
        self.size += float(np.abs(chunk.value).sum(dtype=np.float64))
        self.sums += np.bincount(chunk.source, chunk.value, len(self.sums))
        parts = [(self.source, chunk.source), (self.sink, chunk.sink), (self.value, chunk.value)]
        self.source, self.sink, self.value = (np.concatenate(each) for each in parts)
        if len(self.value) > self.most:
            kept = np.argpartition(-np.abs(self.value), self.most - 1)[: self.most]
            self.source, self.sink, self.value = (
                each[kept] for each in (self.source, self.sink, self.value)
            )


class FlowRecording:
    """The flows of a run. `begin` and `take` are called around each step that is recorded."""

    def __init__(self, names: ModelNames, observer: Observer, guard: Guard) -> None:
        self._names, self._observer, self._guard = names, observer, guard
        self._wanted: dict[Wanted, int | None] = {}  # with the last step that has it
        self._due: list[Wanted] = []
        self._step = -1
        self._sights: dict[str, Sight] = {}
        self._found: dict[Wanted, dict[str, Any]] = {}
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[nn.Module, str, str]] = []
        self._hooked: list[Any] = []  # nodes that have hooks of the user's
        self._undo: list[Callable[[], None]] = []
        self._refused: set[Wanted] = set()
        self._is_computing = False
        self._thread = 0

    def want(self, wanted: Wanted) -> None:
        """Record these flows from the next recorded step on."""
        self._wanted = {
            each: last
            for each, last in self._wanted.items()
            if (each.source, each.sink) != (wanted.source, wanted.sink)
        }
        self._wanted[wanted] = None

    # -- the course of a step

    def begin(self, step: int) -> None:
        """A step that is recorded begins: listen, if flows are due."""
        self.stop()
        self._step = step
        self._due = [
            wanted
            for wanted, last in self._wanted.items()
            if last is None or step - last >= wanted.every
        ]
        if not self._due:
            return
        self._thread = get_ident()
        handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
        ]
        self._undo = [handle.remove for handle in handles]
        self._undo.append(self._notice_hooks())

    def restart_calls(self) -> None:
        """Another iteration begins, in which calls are counted anew."""
        self._calls.clear()

    def take(self, loss: float | None, *, has_backward: bool) -> tuple[RecordedFlows, ...] | None:
        """The step has ended: its flows, if there are any."""
        taken = []
        for wanted in self._due:
            found = self._found.get(wanted)
            if found is not None and found["source"].grad is not None:
                taken.append(_recorded(wanted, loss, **found))
                self._wanted[wanted] = self._step
            elif has_backward and found is None:
                self._tell_missing(wanted)
        self.stop()
        return tuple(taken) or None

    def stop(self) -> None:
        """Let go of everything of the step."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()
        for held in (self._due, self._sights, self._found, self._calls, self._open, self._hooked):
            held.clear()

    def _tell_missing(self, wanted: Wanted) -> None:
        missing = [name for name in (wanted.source, wanted.sink) if name not in self._sights]
        if missing and wanted not in self._refused:
            self._guard.mistake(
                f"{wanted} found no tensor {short(missing[0])!r} that needs a gradient: "
                "name a module that runs while training, one of its sites, or a named tensor."
            )

    # -- what is seen

    def see(self, name: str, tensor: Any, module_class: str = "") -> None:
        """A tensor that has a name; the first one of a step counts."""
        ends = [each for each in self._due if name in (each.source, each.sink)]
        if not ends or name in self._sights or not isinstance(tensor, torch.Tensor):
            return
        if not tensor.requires_grad or not tensor.is_floating_point():
            return
        sample = ends[0].sample
        if tensor.dim() and sample >= tensor.shape[0]:
            self._refused.update(ends)
            self._guard.mistake(
                f"{ends[0]} asks for sample {sample} of {tensor.shape[0]}: "
                "pass sample= one that each batch has."
            )
            return
        self._sights[name] = Sight(
            get_gradient_edge(tensor),
            tensor.shape,
            len(self._sights),
            module_class,
            _of_sample(tensor, sample).detach().clone(),
        )
        handle = tensor.register_hook(partial(self._on_grad, name, self._step))
        self._undo.append(handle.remove)

    def _before(self, module: nn.Module, args: Any) -> None:
        if get_ident() != self._thread or is_in_backward() or is_symbolic():
            return
        found = self._names.find(module)
        if found is None:
            return
        with self._guard("looking for flows"):
            self._calls[found[0]] += 1
            number = self._calls[found[0]]
            caller = (found[0] or ROOT) + ("" if number == 1 else f"#{number}")
            self._open.append((module, caller, found[1]))
            for place, tensor in inputs_in(args, {}):
                self.see(f"{caller}:{place}", tensor, found[1])

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if get_ident() != self._thread or is_in_backward():
            return
        with self._guard("looking for flows"):
            places = [n for n, each in enumerate(self._open) if each[0] is module]
            if not places:
                return
            _, caller, module_class = self._open[places[-1]]
            del self._open[places[-1] :]
            for place, tensor in outputs_in(output):
                self.see(f"{caller}:{place}", tensor, module_class)

    def _notice_hooks(self) -> Callable[[], None]:
        """Notice, for as long as the step lasts, which tensors the user hooks or retains."""
        names = ("register_hook", "retain_grad")
        own = {name: vars(torch.Tensor).get(name) for name in names}

        def noticing(name: str) -> Any:
            original = getattr(torch.Tensor, name)

            @wraps(original)
            def notice(tensor: torch.Tensor, *hook: Any) -> Any:
                given = hook[0] if hook else None
                owner = getattr(getattr(given, "func", None), "__self__", None)
                is_ours = isinstance(given, (Held, Seen)) or owner in (self, self._observer)
                if not is_ours and tensor.requires_grad:
                    self._hooked.append(get_gradient_edge(tensor).node)
                return original(tensor, *hook)

            return notice

        put = {name: noticing(name) for name in names}
        for name in names:
            setattr(torch.Tensor, name, put[name])

        def undo() -> None:
            for name in names:
                if vars(torch.Tensor).get(name) is not put[name]:
                    continue
                if own[name] is None:
                    delattr(torch.Tensor, name)
                else:
                    setattr(torch.Tensor, name, own[name])

        return undo

    # -- computing

    def _on_grad(self, name: str, step: int, grad: torch.Tensor) -> None:
        sight = self._sights.get(name)
        if self._is_computing or step != self._step or sight is None or sight.grad is not None:
            return
        started = _perf()
        due = [each for each in self._due if name in (each.source, each.sink)]
        with self._guard("computing flows"):
            self._is_computing = True
            try:
                with torch._C.DisableTorchFunction():
                    sight.grad = _of_sample(grad, due[0].sample).detach().clone()
                for wanted in due:
                    if wanted.sink == name and wanted.source in self._sights:
                        self._compute(wanted, grad)
            finally:
                self._is_computing = False
                self._observer.recording_secs += _perf() - started

    def _compute(self, wanted: Wanted, grad: torch.Tensor) -> None:
        started = _perf()
        source, sink = self._sights[wanted.source], self._sights[wanted.sink]
        between = nodes_between(sink.edge.node, source.edge.node)
        if not between:
            self._guard.mistake(f"{wanted} asks for flows to what does not depend on the first.")
            return
        hooked = next((each for each in self._hooked if each in between), None)
        if hooked is not None or self._has_module_hooks():
            self._guard.mistake(
                f"{wanted} is not recorded: a hook of yours or a retained gradient lies between, "
                "which each product would change."
            )
            return
        fields = None
        if len(source.shape) == len(sink.shape) >= 3:
            fields = fields_on_way(sink.edge.node, source.edge.node, len(sink.shape))
        with self._observer.paused(), torch._C.DisableTorchFunction(), random_numbers_kept():
            self._found[wanted] = {
                **_through(wanted, source, sink, grad.detach(), fields),
                "source": source,
                "sink": sink,
                "reach": None
                if fields is None
                else tuple((float(f.scale), float(f.low), float(f.high)) for f in fields),
            }
        self._found[wanted]["secs"] = _perf() - started

    def _has_module_hooks(self) -> bool:
        return any(
            module._backward_hooks or module._backward_pre_hooks for module in self._names.modules()
        )


def canonical(name: str, modules: Any) -> str:
    """The name of a site: of a module, its first output; of a named tensor, its own.

    >>> canonical("conv1", {"conv1"}), canonical("relu#2", {"relu"}), canonical("mix", {"conv1"})
    ('conv1:out.0', 'relu#2:out.0', 'mix')
    """
    return f"{name}{_OUT}" if name.partition("#")[0] in modules else name


def short(name: str) -> str:
    """A site's name as the lab has it: a module stands for its first output."""
    return name.removesuffix(_OUT)


def checked(source: Any, sink: Any, **numbers: Any) -> None:
    """Say what is wrong with what `run.flow` was given."""
    for name in (source, sink):
        if not isinstance(name, str) or not name:
            raise BacklightError(f"run.flow() got {name!r} as name: pass a text.")
    for name, value in numbers.items():
        least = 0 if name == "sample" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BacklightError(f"run.flow() got {name}={value!r}: pass a number from {least} on.")


def _through(
    wanted: Wanted, source: Sight, sink: Sight, grad: torch.Tensor, fields: Fields | None
) -> dict[str, Any]:
    """The flows of one sample, and what passes through the sink in all."""
    own = _of_sample(grad, wanted.sample)
    shapes = tuple(source.value.shape), tuple(sink.value.shape)
    vjp = _products(wanted, source, sink)
    probes = flowing.plan(own, *shapes, fields)
    try:
        return _gathered(wanted, source, probes, own, vjp)
    except flowing.OutsideFieldError:
        return _gathered(wanted, source, flowing.plan(own, *shapes, None), own, vjp)


def _gathered(
    wanted: Wanted, source: Sight, probes: flowing.Probes, own: torch.Tensor, vjp: flowing.Vjp
) -> dict[str, Any]:
    through = Through(wanted.top, np.zeros(source.value.numel()))
    asked = probes.largest(wanted.products)
    for chunk in flowing.flows(vjp, asked, source.shape.numel(), lambda: None):
        through.add(chunk)
    total = _array(vjp(own.reshape(1, -1))[0]).reshape(-1)
    return {"through": through, "total": total, "asked": len(asked), "probes": len(probes)}


def _products(wanted: Wanted, source: Sight, sink: Sight) -> flowing.Vjp:
    def vjp(vectors: torch.Tensor) -> torch.Tensor:
        full = vectors.new_zeros(len(vectors), *sink.shape)
        own = full[:, wanted.sample] if sink.shape else full
        own.copy_(vectors.view(own.shape))
        try:
            found = _grad(source, sink, full, is_batched=True)
        except RuntimeError:
            found = torch.stack([_grad(source, sink, row, is_batched=False) for row in full])
        return found[:, wanted.sample] if source.shape else found

    return vjp


def _grad(source: Sight, sink: Sight, vectors: torch.Tensor, *, is_batched: bool) -> torch.Tensor:
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(
        sink.edge, source.edge, vectors, retain_graph=True, is_grads_batched=is_batched
    )
    return found[0]


def _recorded(
    wanted: Wanted,
    loss: float | None,
    *,
    source: Sight,
    sink: Sight,
    through: Through,
    total: Array,
    asked: int,
    probes: int,
    reach: Any,
    secs: float,
) -> RecordedFlows:
    source_grad, sink_grad = _array(source.grad), _array(sink.grad)
    largest = float(np.abs(source_grad).max(initial=0.0)) or 1.0
    residual = float(np.abs(through.sums - total).max(initial=0.0)) / largest
    kept = np.bincount(through.source, through.value, total.size)
    order = np.lexsort((through.sink, through.source))
    return RecordedFlows(
        source=short(wanted.source),
        sink=short(wanted.sink),
        sample=wanted.sample if source.shape else None,
        orders=(source.order, sink.order),
        classes=(source.module_class, sink.module_class),
        loss=loss,
        count=through.count,
        size=through.size,
        products=asked,
        products_wanted=probes,
        residual=residual if asked == probes else None,
        reach=reach,
        secs=secs,
        source_cells=through.source[order],
        sink_cells=through.sink[order],
        flows=through.value[order],
        source_value=_array(source.value),
        source_grad=source_grad,
        sink_value=_array(sink.value),
        sink_grad=sink_grad,
        around=source_grad - total.reshape(source_grad.shape),
        left_out=(total - kept).astype(np.float32).reshape(source_grad.shape),
    )


def _of_sample(tensor: torch.Tensor, sample: int) -> torch.Tensor:
    return tensor[sample] if tensor.dim() else tensor


def _array(tensor: torch.Tensor | None) -> Array:
    assert tensor is not None
    array: Array = flowing.to_numpy(tensor, np.float32)
    return array
