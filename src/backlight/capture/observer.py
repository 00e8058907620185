"""What is observed while a step is recorded: every tensor that is seen becomes a row.

A tensor that is seen at several sites, such as the output of one module that is the input of the
next, is read once: its row is repeated, and one hook on it brings the gradient for all of them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from ctypes import string_at
from functools import partial
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from backlight.capture.graph import GraphCapture
from backlight.capture.modules import Call
from backlight.capture.names import ModelNames, OwnedTensor
from backlight.capture.optimizer import OptimizerCapture
from backlight.capture.samples import ValueKeeper
from backlight.capture.sites import SiteBook
from backlight.errors import Guard
from backlight.reduce.reducer import Reducer
from backlight.reduce.spec import GRAD, GRAD_APPLIED, UPDATE, VALUE, unit_dim
from backlight.schema import QUANTITIES

_perf = time.perf_counter
_PROBE_BYTES = 64


class Seen:
    """A tensor as it was when it was read, without keeping it alive."""

    __slots__ = ("_tensor", "_version", "row", "sites")

    def __init__(self, tensor: torch.Tensor, row: tuple[bool, int] | None) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = version_of(tensor)
        self.row = row
        self.sites: list[int] = []

    def is_again(self, tensor: torch.Tensor) -> bool:
        """Whether this is that tensor, unchanged."""
        return self._tensor() is tensor and self._version == version_of(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; one of inference mode does not count."""
    return -1 if tensor.is_inference() else tensor._version


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be read, and is no placeholder of a tracer or a transform."""
    return (
        tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not is_lazy(tensor)
        and type(tensor).__name__ != "FakeTensor"
        and _has_memory(tensor)
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements are there: sharding and offloading free them and keep the tensor."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return True
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + extent) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def _identity(tensor: torch.Tensor) -> tuple[int, int, bytes] | None:
    """What tells that a tensor has not changed since; None where that cannot be told.

    Some operations change a tensor without counting it as a change: the unscaling of gradients,
    the running statistics of a batch norm. So a few of its bytes are looked at too; where they are
    all 0, they say nothing.
    """
    if not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return None
    start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    probe = b"".join(
        string_at(start + at, min(_PROBE_BYTES, size - at))
        for at in (0, size // 2, size - size // 8)
    )
    return (start, version_of(tensor), probe) if any(probe) else None


class Observer:
    """Turns what is seen in a recorded step into rows. Between steps it sees nothing."""

    def __init__(
        self,
        names: ModelNames,
        sites: SiteBook,
        guard: Guard,
        keeper: ValueKeeper | None = None,
    ) -> None:
        self.reducer = Reducer()
        self.keeper = keeper
        self.graph: GraphCapture | None = None  # while the graph of the step is followed
        if keeper is not None:
            keeper.backwards = self.reducer.backwards
        self.recording_secs = 0.0
        self.iteration = 0
        self.backward = 0  # which of the reducer's backward passes is under way
        self._names = names
        self._sites = sites
        self._guard = guard
        self._step = -1
        self._is_open = False
        self._seen: dict[int, Seen] = {}
        self._hooked: set[tuple[int, int]] = set()
        self._hooks: list[Any] = []
        self._grads: dict[int, tuple[int, int, bytes] | None] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._unchanged: dict[int, tuple[int, int, bytes]] = {}
        self._named: set[tuple[int, int]] = set()
        self.has_backward = False

    # -- the course of a step

    def begin(self, step: int, batch_size: int | None = None) -> None:
        """A step that is recorded begins."""
        if self.keeper is not None:
            self.keeper.begin(batch_size=batch_size)
        self._step, self._is_open, self.has_backward = step, True, False
        self.iteration = self.backward = 0
        self.recording_secs = 0.0
        self.reducer.clear()
        self._forget()
        self._names.refresh()
        if self._sites.has_class("parameter"):
            self._hook_parameters()

    def end(self) -> None:
        """The step has ended: let go of everything that it saw."""
        self._is_open = False
        self.graph = None
        self._forget()

    def _forget(self) -> None:
        self._seen.clear()
        self._hooked.clear()
        self._grads.clear()
        self._named.clear()
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()

    # -- modules and named tensors

    def on_input(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """A module's call is given a tensor."""
        if self._is_open:
            self._on_activation("input", call, place, tensor)

    def on_output(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """A module's call has returned a tensor."""
        if self._is_open:
            self._on_activation("output", call, place, tensor)

    def _on_activation(
        self, tensor_class: str, call: Call, place: str, tensor: torch.Tensor
    ) -> None:
        if call.number == 0 or not has_values(tensor):
            return
        started = _perf()
        site = self._sites.activation(
            tensor_class,
            call.module,
            call.module_class,
            place,
            call=call.number,
            step=self._step,
        )
        if site >= 0:
            if self.graph is not None:
                self.graph.see(site, tensor, self.iteration, role=tensor_class)
            units = unit_dim(tensor.dim(), call.module_class)
            self._see(tensor, site, units, is_recomputed=call.is_recomputed)
        self.recording_secs += _perf() - started

    def on_named(
        self, site: int, tensor: torch.Tensor, iteration: int, batch_dim: int | None = 0
    ) -> bool:
        """The user has named a tensor; False if the name has another tensor in this iteration."""
        if not self._is_open or site < 0 or not has_values(tensor):
            return True
        if (site, iteration) in self._named:
            return False
        started = _perf()
        self._named.add((site, iteration))
        before, self.iteration = self.iteration, iteration
        if self.graph is not None:
            self.graph.see(site, tensor, iteration, role="tensor")
        units = unit_dim(tensor.dim())
        self._see(tensor, site, units, is_recomputed=False, batch_dim=batch_dim)
        self.iteration = before
        self.recording_secs += _perf() - started
        return True

    def _see(
        self,
        tensor: torch.Tensor,
        site: int,
        units: int,
        *,
        is_recomputed: bool,
        batch_dim: int | None = 0,
    ) -> None:
        if self.keeper is not None and not is_recomputed:
            self.keeper.observe(tensor, site, VALUE, self.iteration, batch_dim=batch_dim)
        seen = self._seen.get(id(tensor))
        if seen is not None and seen.is_again(tensor):
            if not is_recomputed and seen.row is not None:
                self.reducer.repeat(seen.row, site, self.iteration)
        else:
            row = None
            if not is_recomputed:
                self.reducer.observe(tensor, site, VALUE, self.iteration, units)
                row = self.reducer.last_row
            seen = self._seen[id(tensor)] = Seen(tensor, row)
        key = (site, self.iteration)
        if tensor.requires_grad and key not in self._hooked:
            self._hooked.add(key)
            if not seen.sites:
                self._hook(tensor, seen.sites)
            seen.sites.append(site)

    def _hook(self, tensor: torch.Tensor, sites: list[int]) -> None:
        handle = tensor.register_hook(partial(self._on_grad, self._step, self.iteration, sites))
        if tensor.is_leaf:
            # It would outlive the graph; the others go with theirs.
            self._hooks.append(handle)

    def _on_grad(self, step: int, iteration: int, sites: list[int], grad: torch.Tensor) -> None:
        if step != self._step or not self._is_open:
            return
        started = _perf()
        self.has_backward = True
        with self._guard("reading a gradient"):
            self.reducer.observe(grad, sites[0], self._grad_code, iteration)
            row = self.reducer.last_row
            for site in sites[1:]:
                self.reducer.repeat(row, site, iteration)
            if self.keeper is not None:
                for site in sites:
                    self.keeper.observe(grad, site, self._grad_code, iteration)
        self.recording_secs += _perf() - started

    @property
    def _grad_code(self) -> int:
        return GRAD + len(QUANTITIES) * self.backward

    # -- parameters, buffers and optimizers

    def show_owned(self, graph: GraphCapture) -> None:
        """Show parameters and buffers to the graph of this step, and follow it."""
        self.graph = graph
        owned = [("parameter", each) for each in self._names.parameters()]
        owned += [("buffer", each) for each in self._names.buffers()]
        for tensor_class, each in owned:
            tensor = each.tensor()
            if tensor is not None and self._sites.has_class(tensor_class) and has_values(tensor):
                site = self._site_of(tensor_class, each)
                if site >= 0:
                    graph.parameter(site, tensor)

    def _hook_parameters(self) -> None:
        for owned in self._names.parameters():
            parameter = owned.tensor()
            if parameter is None or not parameter.requires_grad or not has_values(parameter):
                continue
            site = self._site_of("parameter", owned)
            if site >= 0:
                hook = partial(self._on_parameter_grad, self._step, site)
                self._hooks.append(parameter.register_hook(hook))

    def _on_parameter_grad(self, step: int, site: int, grad: torch.Tensor) -> None:
        if step != self._step or not self._is_open:
            return
        started = _perf()
        self.has_backward = True
        with self._guard("reading a parameter's gradient"):
            self.reducer.observe(grad, site, self._grad_code, self.iteration)
            self._grads[site] = None if site in self._grads else _identity(grad)
        self.recording_secs += _perf() - started

    def before_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer is about to step: its parameters as they were used, its gradients."""
        held = optimizer.held()
        for owned in self._names.parameters():
            parameter = owned.tensor()
            if parameter is None or id(parameter) not in held or not has_values(parameter):
                continue
            site = self._site_of("parameter", owned)
            if site < 0:
                continue
            self.reducer.observe(parameter, site, VALUE)
            if parameter.grad is not None:
                self._observe_applied(parameter.grad, site)
                self._keep(parameter, site)

    def _observe_applied(self, grad: torch.Tensor, site: int) -> None:
        """The gradient as the optimizer sees it, if it is not the one that autograd made."""
        made = self._grads.get(site)
        if made is None or made != _identity(grad):
            self.reducer.observe(grad, site, GRAD_APPLIED)

    def _keep(self, parameter: torch.Tensor, site: int) -> None:
        """Remember a parameter's value, in the same memory each time."""
        kept = self._before.get(site)
        if kept is None or kept.shape != parameter.shape or kept.dtype != parameter.dtype:
            kept = self._before[site] = torch.empty_like(parameter, requires_grad=False)
        kept.copy_(parameter.detach())

    def after_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer has stepped: what it did to its parameters, and what it keeps for them."""
        held = optimizer.held()
        has_states = self._sites.has_class("optimizer")
        for owned in self._names.parameters():
            parameter = owned.tensor()
            if parameter is None or id(parameter) not in held or not has_values(parameter):
                continue
            site = self._site_of("parameter", owned)
            kept = self._before.get(site)
            if site >= 0 and kept is not None and parameter.grad is not None:
                with torch.no_grad():
                    self.reducer.observe(torch.sub(parameter, kept, out=kept), site, UPDATE)
            if has_states:
                self._observe_states(owned, optimizer.states(parameter))

    def _observe_states(
        self, owned: OwnedTensor, states: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        for key, state in states:
            site = self._sites.owned(
                "optimizer",
                owned.module,
                owned.module_class,
                f"{owned.place}:{key}",
                step=self._step,
            )
            if site >= 0:
                self.reducer.observe(state, site, VALUE)

    def observe_rest(self, optimizers: Iterable[OptimizerCapture]) -> None:
        """At a step's end: parameters that no optimizer holds, and buffers, if they changed."""
        held = set().union(*(optimizer.held() for optimizer in optimizers))
        for owned in self._names.parameters():
            parameter = owned.tensor()
            if parameter is not None and id(parameter) not in held:
                self._observe_if_changed("parameter", owned, parameter)
        for owned in self._names.buffers():
            buffer = owned.tensor()
            if buffer is not None:
                self._observe_if_changed("buffer", owned, buffer)

    def _observe_if_changed(
        self, tensor_class: str, owned: OwnedTensor, tensor: torch.Tensor
    ) -> None:
        if not self._sites.has_class(tensor_class) or not has_values(tensor):
            return
        site = self._site_of(tensor_class, owned)
        state = _identity(tensor)
        if site < 0 or (state is not None and self._unchanged.get(site) == state):
            return
        if state is not None:
            self._unchanged[site] = state
        self.reducer.observe(tensor, site, VALUE)

    def _site_of(self, tensor_class: str, owned: OwnedTensor) -> int:
        return self._sites.owned(
            tensor_class,
            owned.module,
            owned.module_class,
            owned.place,
            aliases=owned.aliases,
            step=self._step,
        )
