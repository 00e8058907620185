"""Makes the graph of a step, and knows it again.

Autograd's graph is walked backwards from what was seen. What counts is where a tensor stood in it
when it was seen; in-place operations may move it afterwards. Sites that saw the very same tensor (a
container and its last child, an input and the output before it) are aliases of one value, and edges
lead from one alias to the next.

A step that saw the same sites in the same calls, made by the same kinds of operations, is taken to
have the graph of the earlier one, and is not walked. Code between two sites may come to read
another tensor while nothing of that changes: so it is walked every sixteenth time, and whenever
data is followed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import Final

import torch

from backlight.capture.graph.dataflow import DataFlow
from backlight.capture.graph.edges import graph_of
from backlight.capture.graph.links import resolve
from backlight.capture.graph.sights import StepSights, Told
from backlight.capture.modules import is_in_backward
from backlight.capture.structure import DATA, MANUAL, Graph

_MOST_GRAPHS: Final = 64
_USES: Final = 16


class GraphCapture:
    """Makes the graph of a step out of what is seen in it.

    A module's call is told as `enter`, `see` of its inputs, whatever happens inside, `see` of its
    outputs, `leave`. Calls that checkpointing runs again in the backward pass are told likewise.
    `site_of` knows sites by their names.

    >>> capture, layer = GraphCapture(), torch.nn.Linear(2, 2)
    >>> capture.begin(trace_data=True)
    >>> capture.parameter(0, layer.weight)
    >>> hidden = layer(torch.ones(1, 2))
    >>> capture.see(1, hidden)
    >>> capture.see(2, hidden.argmax())
    >>> graph = capture.finish()
    >>> [(edge.source, edge.sink, edge.kind) for edge in graph.edges]
    [(0, 1, 'autograd'), (1, 2, 'data')]
    """

    def __init__(self, site_of: Callable[[str], int | None] = lambda name: None) -> None:
        self.unknown_names: set[str] = set()
        """What was connected in the last step by a name that no site has."""
        self._site_of = site_of
        self._step: StepSights | None = None
        self._known: dict[int, _Known] = {}

    def begin(self, *, trace_data: bool) -> None:
        """A step starts; `trace_data` follows data too, which makes the step slower."""
        self.finish()
        flow = DataFlow() if trace_data else None
        self._step = StepSights(flow)
        if flow is not None:
            flow.start()

    def enter(self, module: str, call: int) -> None:
        """A module's call starts."""
        step = self._listening()
        if step is not None:
            step.enter(module, call)

    def leave(self, module: str, call: int) -> None:
        """A module's call ends; those inside it that an exception cut short end with it."""
        step = self._listening()
        if step is not None:
            step.leave(module, call)

    def see(
        self, site: int, tensor: torch.Tensor, iteration: int = 0, *, role: str = "tensor"
    ) -> None:
        """A tensor is seen at a site, as `role` "input", "output" or "tensor".

        The iterations of a step share their sites, so the graph is the same whatever `iteration`.
        """
        step = self._listening()
        if step is not None:
            with torch._C.DisableTorchFunction():
                step.see(site, tensor, role)

    def parameter(self, site: int, parameter: torch.Tensor) -> None:
        """A parameter or buffer of the model; data is followed from it from now on."""
        self.see(site, parameter, role="parameter")

    def loss(self, site: int, tensor: torch.Tensor) -> None:
        """The tensor that the backward pass starts from."""
        self.see(site, tensor, role="loss")

    def connect(self, source: Told, sink: Told) -> None:
        """The user says that `sink` was made from `source`: tensors, or sites by name or number.

        A tensor need not be seen at a site: the edge leads from what `source` was made from, to
        what is made from `sink`.
        """
        self._link(source, sink, MANUAL)

    def detached(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        """The user has cut a tensor off from autograd; where its data goes stays known."""
        self._link(original, copy, DATA)

    def without_data(self) -> AbstractContextManager[None]:
        """Inside of it data is not followed: a backward pass is faster so, and makes none."""
        flow = None if self._step is None else self._step.flow
        return nullcontext() if flow is None else flow.paused()

    def finish(self) -> Graph | None:
        """The graph of the step, which ends; None if none was begun."""
        step, self._step = self._step, None
        if step is None:
            return None
        is_traced = step.flow is not None and step.flow.stop()
        step.links, self.unknown_names = resolve(step.told, self._site_of)
        key = step.key()
        known = self._known.get(key)
        if known is None or is_traced or known.is_due:
            known = self._look_again(step, key, is_traced)
        known.uses += 1
        return known.graph

    def _listening(self) -> StepSights | None:
        step = self._step
        if step is None:
            return None
        # The backward pass runs in torch's own threads; any other thread is none of our business.
        is_ours = get_ident() == step.thread or is_in_backward()
        return step if is_ours else None

    def _link(self, source: Told, sink: Told, kind: str) -> None:
        step = self._listening()
        # What checkpointing runs again was told before.
        if step is not None and not is_in_backward():
            with torch._C.DisableTorchFunction():
                step.link(source, sink, kind)

    def _look_again(self, step: StepSights, key: int, is_traced: bool) -> _Known:
        step.settle()
        fingerprint = step.fingerprint()
        known = self._known.get(key)
        if known is None or is_traced or known.fingerprint != fingerprint:
            known = _Known(graph_of(step, is_traced=is_traced), fingerprint)
        if key not in self._known and len(self._known) >= _MOST_GRAPHS:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known


@dataclass(slots=True)
class _Known:
    graph: Graph
    fingerprint: int
    uses: int = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look whether it still holds."""
        return self.uses % _USES == 0
