"""What is observed while a step is recorded: every tensor that is seen becomes a row.

A tensor that is seen at several sites, such as the output of one module that is the input of the
next, is read once: its row is repeated, and one hook on it brings the gradient for all of them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from backlight.capture.graph import GraphCapture
from backlight.capture.names import ModelNames
from backlight.capture.owned import OwnedCapture
from backlight.capture.plans import checked_dim
from backlight.capture.samples import ValueKeeper
from backlight.capture.sights import Call, Held, Seen, Sights
from backlight.capture.sites import SiteBook
from backlight.errors import Guard
from backlight.reduce.readable import mark_of
from backlight.reduce.reducer import Reducer
from backlight.reduce.spec import GRAD, NO_UNITS, VALUE, unit_dim
from backlight.schema import QUANTITIES

_perf = time.perf_counter
_UNKNOWN = (-1, -1, -1)


class Observer(Sights):
    """Turns what is seen in a recorded step into rows. Between steps it sees nothing."""

    def __init__(
        self,
        names: ModelNames,
        sites: SiteBook,
        guard: Guard,
        keeper: ValueKeeper,
    ) -> None:
        self.reducer = Reducer()
        self.graph: GraphCapture | None = None  # while the graph of the step is followed
        self.is_keeping = False  # raw values, in this step
        self._keeper = keeper
        keeper.backwards = self.reducer.backwards
        self.step = -1
        self.backward = 0
        self.owned = OwnedCapture(names, sites, self.reducer, self)
        self._sites = sites
        self._guard = guard
        self._seen: dict[int, Seen] = {}
        self._hooked: set[tuple[int, int]] = set()
        self.leaf_hooks: list[Any] = []  # on tensors that outlive the step's graph
        self.of_other_iterations: Collection[Call] = ()  # maybe: calls whose gradients are missing
        self.named: dict[tuple[int, int], int | None] = {}  # which dimension counts samples
        if self.reducer.table is not None:
            self.use(self.reducer.table, self._seen, self._hooked)

    def follow(self, graph: GraphCapture) -> None:
        """Follow the graph of this step, from the parameters and buffers on."""
        self.graph = graph
        self.is_quick = False
        self.owned.show(graph)

    # -- the course of a step

    def begin(self, step: int, *, is_keeping: bool) -> None:
        """A step that is recorded begins, with raw values or without."""
        self.is_keeping = is_keeping
        self.step, self.is_open, self.has_backward = step, True, False
        self.is_native = self.reducer.table is not None and self.reducer.own is None
        self.is_plain = self.is_quick = self.is_native and not is_keeping
        self.iteration = 0  # and a pass that is named outside of the step keeps its name
        self.recording_secs = 0.0
        self.reducer.clear()
        self._forget()
        self.owned.begin()

    def end(self) -> None:
        """The step has ended: let go of everything that it saw."""
        self.is_open = False
        self.graph = None
        self._forget()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gradients inside are the recorder's own, and are not observed."""
        was_open, self.is_open = self.is_open, False
        try:
            yield
        finally:
            self.is_open = was_open

    def _forget(self) -> None:
        self._seen.clear()
        self._hooked.clear()
        self.named.clear()
        for handle in self.leaf_hooks:
            handle.remove()
        self.leaf_hooks.clear()

    # -- modules and named tensors

    def on_activation(
        self, tensor_class: str, call: Call, place: str, tensor: torch.Tensor
    ) -> None:
        """A module's call is given a tensor (`input`), or has returned one (`output`)."""
        if call.number == 0 or not self.is_open:
            return
        site, dims, units = call.places.get(place, _UNKNOWN)
        if dims != tensor.dim():
            site, dims, units = self._learn(tensor_class, call, place, tensor)
        if site >= 0:
            is_again = call.is_recomputed
            is_followed = not (is_again and call in self.of_other_iterations)
            self._see(
                tensor, site, tensor_class, units, is_recomputed=is_again, is_followed=is_followed
            )

    def _learn(
        self, tensor_class: str, call: Call, place: str, tensor: torch.Tensor
    ) -> tuple[int, int, int]:
        """What is to be known of a place where a tensor of so many dimensions is seen."""
        site = self._sites.activation(
            tensor_class, call.module, call.module_class, place, call=call.number, step=self.step
        )
        dims = tensor.dim()
        call.places[place] = learned = site, dims, unit_dim(dims, call.module_class)
        return learned

    def on_named(
        self, site: int, tensor: torch.Tensor, iteration: int, batch_dim: int | None = 0
    ) -> bool:
        """The user has named a tensor; False if the name has another tensor in this iteration."""
        if not self.is_open or site < 0:
            return True
        if (site, iteration) in self.named:
            return False
        started = _perf()
        if batch_dim is not None:
            batch_dim = checked_dim(tensor.shape, batch_dim)
        self.named[site, iteration] = batch_dim
        before, self.iteration = self.iteration, iteration
        units = NO_UNITS if batch_dim is None else unit_dim(tensor.dim())
        self._see(tensor, site, "tensor", units, is_recomputed=False, batch_dim=batch_dim)
        self.iteration = before
        self.recording_secs += _perf() - started
        return True

    def _see(
        self,
        tensor: torch.Tensor,
        site: int,
        role: str,
        units: int,
        *,
        is_recomputed: bool,
        is_followed: bool = True,
        batch_dim: int | None = 0,
    ) -> None:
        over = batch_dim or 0
        if self.is_quick and not (is_recomputed or over) and self.see(tensor, site, units):
            return
        counted = units + (over << 8)  # a row is repeated where the same was counted
        seen, mark = self._seen.get(id(tensor)), mark_of(tensor)
        if seen is None or not seen.is_again(tensor, mark):
            row = None
            if not is_recomputed:
                row = self.reducer.observe(tensor, site, VALUE, self.iteration, units, over)
                if row is None:
                    return
            seen = self._seen[id(tensor)] = Seen(self, tensor, mark, row, counted)
        elif not is_recomputed and seen.row is not None:
            if seen.units == counted:
                self.reducer.repeat(seen.row, site, self.iteration)
            else:
                self.reducer.observe(tensor, site, VALUE, self.iteration, units, over)
        if self.graph is not None:
            self.graph.see(site, tensor, self.iteration, role=role)
        if self.is_keeping and not is_recomputed:
            self._keeper.observe(tensor, site, VALUE, self.iteration, batch_dim=batch_dim)
        if is_followed and tensor.requires_grad:
            self._follow(tensor, seen, site)

    def _follow(self, tensor: torch.Tensor, seen: Seen, site: int) -> None:
        """Wait for the tensor's gradient, once for all sites where it is seen."""
        sight = (site, self.iteration)
        if sight not in self._hooked:
            self._hooked.add(sight)
            if not seen.has_sights:
                self._hook(tensor, seen)
            seen.add_sight(*sight)

    def _hook(self, tensor: torch.Tensor, hook: Seen) -> None:
        maker = tensor.grad_fn
        if maker is None or type(tensor) is not torch.Tensor or tensor._backward_hooks is not None:
            handle = tensor.register_hook(hook)
            if maker is None:
                # It would outlive the graph; the others go with theirs.
                self.leaf_hooks.append(handle)
            return
        # What register_hook does, but for a handle that nobody would use.
        tensor._backward_hooks = OrderedDict(backlight=hook)
        maker._register_hook_dict(tensor)

    def _on_grad(self, seen: Seen, grad: torch.Tensor | None) -> None:
        try:
            sights = seen.take_sights()
            if grad is None:  # a function of the user's own gave none back
                return
            site, iteration = sights[0]
            row = self.reducer.observe(grad, site, self.grad_code, iteration)
            if row is not None:
                for site, iteration in sights[1:]:
                    self.reducer.repeat(row, site, iteration)
                if self.is_keeping:
                    for site, iteration in sights:
                        batch_dim = self.named.get((site, iteration), 0)
                        self._keeper.observe(grad, site, self.grad_code, iteration, batch_dim)
        except Exception as error:
            self._guard.catch("reading a gradient", error)

    def _fail(self, doing: str, error: Exception) -> None:
        """The kernel failed."""
        self._guard.catch(doing, error)

    def _on_parameter_grad(self, place: Held, grad: torch.Tensor | None) -> None:
        if grad is None:
            return
        try:
            state = None
            if place.has_been_made:
                self.reducer.observe(grad, place.site, self.grad_code, self.iteration)
            else:
                state = self.reducer.observe_marked(
                    grad, place.site, self.grad_code, self.iteration
                )
            place.note_made(None if state is None else state[0])
        except Exception as error:
            self._guard.catch("reading a parameter's gradient", error)

    @property
    def backward(self) -> int:
        """Which of the reducer's backward passes is under way."""
        return self._backward

    @backward.setter
    def backward(self, number: int) -> None:
        self._backward = number
        self.grad_code = GRAD + len(QUANTITIES) * number
