"""What is seen in a step: calls of modules, tensors at sites, and what the user says of them.

Until a step is walked, autograd's own nodes are held, but never a tensor. They outlive the backward
pass by no more than the user's `loss` does. A step of many forward passes, which the user may have
dropped, is walked as it goes and holds nothing.
"""

from __future__ import annotations

from threading import get_ident
from typing import Final, NamedTuple

import torch

from backlight.capture.graph.dataflow import DataFlow
from backlight.capture.graph.lineage import Ref
from backlight.capture.graph.links import End, Link, ToldLink, Value
from backlight.capture.graph.walk import AutogradWalk, Place, place_of
from backlight.capture.modules import is_in_backward

NOWHERE: Final = -1
"""The call that a tensor is seen in outside of all calls."""

Told = torch.Tensor | str | int
"""What the user connects: a tensor, or a site by its name or its number."""

_MOST_PASSES: Final = 4


class CallRecord(NamedTuple):
    """A call of a module."""

    module: str
    number: int
    around: int  # the place of the call around it
    is_again: bool  # run in the backward pass, by checkpointing


class Sight(NamedTuple):
    """A value that was seen at a site."""

    value: int
    site: int
    role: str
    call: int
    has_grad: bool
    is_sink: bool


_Seen = tuple[Place, bool, int, str, int, bool, bool]
"""A sight that is not yet walked: where, whether in the backward pass, and all but its value."""


class StepSights:
    """What was seen in one step."""

    def __init__(self, flow: DataFlow | None) -> None:
        self.thread = get_ident()
        self.flow = flow
        self.walk = AutogradWalk()
        self.sights: list[Sight] = []
        self.calls: list[CallRecord] = []
        self.told: dict[ToldLink, None] = {}
        self.links: dict[Link, None] = {}  # once what was told is resolved
        self.data_origins: dict[int, Ref] = {}
        self._trail: list[tuple[int, str, type, int, bool]] = []
        self._waiting: list[_Seen] = []
        self._is_patient = flow is None
        self._passes = 0
        self._open: list[int] = []
        self._differentiable: set[int] = set()
        self._from_forward: set[int] = set()

    def enter(self, module: str, number: int) -> None:
        """A call of a module starts."""
        around = self._open[-1] if self._open else NOWHERE
        if around == NOWHERE:
            self._passes += 1
            self._is_patient &= self._passes <= _MOST_PASSES
        self.calls.append(CallRecord(module, number, around, is_in_backward()))
        self._open.append(len(self.calls) - 1)

    def leave(self, module: str, number: int) -> None:
        """A call of a module ends, and with it those inside."""
        for place in range(len(self._open) - 1, -1, -1):
            if self.calls[self._open[place]][:2] == (module, number):
                del self._open[place:]
                return

    def see(self, site: int, tensor: torch.Tensor, role: str) -> None:
        """A tensor is seen at a site."""
        place, has_grad, is_backward = place_of(tensor), tensor.requires_grad, is_in_backward()
        grad_fn, output, *_ = place
        # What checkpointing computes again is news only where there were no gradients before.
        is_again = is_backward and site in self._differentiable
        if is_again and grad_fn is not None:
            return
        if has_grad:
            self._differentiable.add(site)
        self._trail.append((site, role, type(grad_fn), output, has_grad))
        call = self._open[-1] if self._open else NOWHERE
        self._waiting.append((place, is_backward, site, role, call, has_grad, not is_again))
        if not self._is_patient:
            self.settle()
        if self.flow is not None and not is_backward:
            self._follow(self.flow, self.sights[-1].value, tensor, role)

    def link(self, source: Told, sink: Told, kind: str) -> None:
        """The user says that `sink` was made from `source`."""
        self.told[ToldLink(self._end(source), self._end(sink), kind)] = None

    def settle(self) -> None:
        """Walk what was seen and not yet walked, and let go of it."""
        waiting, self._waiting = self._waiting, []
        for place, is_backward, site, role, call, has_grad, is_sink in waiting:
            value = self.walk.value(place)
            if not is_backward:
                self._from_forward.add(value)
            elif value in self._from_forward:
                continue  # checkpointing gives a module its input again
            self.sights.append(Sight(value, site, role, call, has_grad, is_sink))

    def key(self) -> int:
        """A hash of what was seen, without a walk where that is possible."""
        if any(isinstance(end, Value) for link in self.links for end in link[:2]):
            # What a tensor was made from that no site saw, only a walk can tell.
            self.settle()
            return self.fingerprint()
        return hash((tuple(self._trail), tuple(self.calls), tuple(self.links)))

    def fingerprint(self) -> int:
        """A hash of all that the graph is made from, but for data flow."""
        seen = tuple(self.sights), tuple(self.calls), tuple(self.links)
        return hash((seen, self.walk.content()))

    def _end(self, end: Told) -> End | str:
        if not isinstance(end, torch.Tensor):
            return end
        self.settle()  # values are numbered in order of sight
        value = self.walk.value(place_of(end))
        if self.flow is not None:
            self._follow(self.flow, value, end, "")
        return Value(value)

    def _follow(self, flow: DataFlow, value: int, tensor: torch.Tensor, role: str) -> None:
        ref = flow.ref(tensor, is_pinned=role == "parameter")
        if ref is not None:
            flow.lineage.bind(ref, value)
            self.data_origins.setdefault(value, ref)
