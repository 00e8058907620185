"""The dependency graph of a step: which site's tensor was made from which other sites' tensors.

Autograd's graph is walked backwards from what was seen, and copied as numbers. What counts is where
a tensor stood in it when it was seen; in-place operations may move it afterwards. Sites that saw
the very same tensor (a container and its last child, an input and the output before it) are aliases
of one value, and edges lead from one alias to the next.

A step that saw the same sites in the same calls, made by the same kinds of operations, is taken to
have the graph of the earlier one, and is not walked; every sixteenth time it is, because code
between two sites may have come to read another tensor while nothing of that changed.

Until a step is walked, autograd's own nodes are held, but never a tensor. They outlive the backward
pass by no more than the user's `loss` does. A step of many forward passes, which the user may have
dropped, is walked as it goes and holds nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from backlight.capture.dataflow import DataFlow, Lineage, Ref

AUTOGRAD, MANUAL, DATA = "autograd", "manual", "data"
_KINDS = (AUTOGRAD, MANUAL, DATA)  # where one pair is found in several ways, the first is kept
_MOST_GRAPHS = 64
_MOST_PASSES = 4
_USES = 16
_NOWHERE = -1

Call = tuple[str, int]
"""A module's qualified name and the number of its call."""


@dataclass(frozen=True, order=True)
class Edge:
    """The tensor at `sink` was made from the one at `source`, without another site in between.

    `kind` says how that is known: by autograd, by the user, or by following data.
    """

    source: int
    sink: int
    kind: str


@dataclass(frozen=True)
class Graph:
    """The sites of a step, what was made from what, and which module call ran inside which.

    Iterations of a step share their sites, so a graph may lead back to where it came from.

    >>> graph = Graph((0, 1), (Edge(0, 1, "autograd"),), {("", 1): None}, {0: "input", 1: "output"})
    >>> graph.to_json()["edges"]
    {'autograd': [[0, 1]], 'manual': [], 'data': []}
    """

    nodes: tuple[int, ...]  # in order of sight
    edges: tuple[Edge, ...]  # sorted
    nesting: Mapping[Call, Call | None]  # of each call the one around it; in order of call
    roles: Mapping[int, str]  # parameter, input, output, tensor or loss
    is_traced: bool = False  # whether data flow was followed

    @property
    def calls(self) -> tuple[Call, ...]:
        """The module calls, in order."""
        return tuple(self.nesting)

    @cached_property
    def signature(self) -> str:
        """A hash that is equal for equal sites, edges and calls."""
        text = json.dumps(self._content(), separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Nodes as [site, role], calls as [module, call, place of the one around it or -1]."""
        return {"signature": self.signature, **self._content()}

    def _content(self) -> dict[str, Any]:
        places: dict[Call | None, int] = {call: place for place, call in enumerate(self.nesting)}
        return {
            "nodes": [[site, self.roles[site]] for site in self.nodes],
            "edges": {
                kind: [[edge.source, edge.sink] for edge in self.edges if edge.kind == kind]
                for kind in _KINDS
            },
            "calls": [[*call, places.get(around, -1)] for call, around in self.nesting.items()],
        }


class GraphCapture:
    """Makes the graph of a step out of what is seen in it.

    A module's call is told as `enter`, `see` of its inputs, whatever happens inside, `see` of its
    outputs, `leave`. Calls that checkpointing runs again in the backward pass are told likewise.

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

    def __init__(self) -> None:
        self._step: _Step | None = None
        self._known: dict[int, _Known] = {}

    def begin(self, *, trace_data: bool) -> None:
        """A step starts; `trace_data` follows data too, which makes the step slower."""
        self.finish()
        flow = DataFlow() if trace_data else None
        self._step = _Step(flow)
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
            step.see(site, tensor, role)

    def parameter(self, site: int, parameter: torch.Tensor) -> None:
        """A parameter or buffer of the model; data is followed from it from now on."""
        step = self._listening()
        if step is not None:
            step.see(site, parameter, "parameter")

    def connect(self, source: int, sink: int) -> None:
        """The user says that `sink` was made from `source`."""
        if self._step is not None:
            self._step.manual[source, sink] = None

    def loss(self, site: int, tensor: torch.Tensor) -> None:
        """The tensor that the backward pass starts from."""
        self.see(site, tensor, role="loss")

    def finish(self) -> Graph | None:
        """The graph of the step, which ends; None if none was begun."""
        step, self._step = self._step, None
        if step is None:
            return None
        is_traced = step.flow is not None and step.flow.stop()
        known = self._known.get(step.key())
        if known is None or known.is_due(is_traced):
            known = self._look_again(step, known, is_traced)
        known.uses += 1
        return known.graph

    def _listening(self) -> _Step | None:
        step = self._step
        if step is None:
            return None
        # The backward pass runs in torch's own threads; any other thread is none of our business.
        is_ours = threading.get_ident() == step.thread or _is_backward()
        return step if is_ours else None

    def _look_again(self, step: _Step, known: _Known | None, is_traced: bool) -> _Known:
        step.settle()
        fingerprint = step.fingerprint()
        if known is None or known.lacks(is_traced) or known.fingerprint != fingerprint:
            known = _Known(_graph_of(step, is_traced), fingerprint)
        if step.key() not in self._known and len(self._known) >= _MOST_GRAPHS:
            del self._known[next(iter(self._known))]
        self._known[step.key()] = known
        return known


@dataclass(slots=True)
class _Known:
    graph: Graph
    fingerprint: int
    uses: int = 0

    def lacks(self, is_traced: bool) -> bool:
        return is_traced and not self.graph.is_traced

    def is_due(self, is_traced: bool) -> bool:
        return self.uses % _USES == 0 or self.lacks(is_traced)


class _Seen(NamedTuple):
    """A sight that is not yet walked."""

    site: int
    role: str
    call: int
    has_grad: bool
    is_sink: bool
    grad_fn: Any
    output: int
    tensor: weakref.ref[torch.Tensor]
    version: int
    thread: int
    is_backward: bool


class _Sight(NamedTuple):
    value: int
    site: int
    role: str
    call: int
    has_grad: bool
    is_sink: bool


class _CallRecord(NamedTuple):
    module: str
    number: int
    around: int
    is_again: bool  # run in the backward pass, by checkpointing


class _Step:
    """What was seen in a step. A value is a tensor that was seen, under any of its aliases."""

    def __init__(self, flow: DataFlow | None) -> None:
        self.thread = threading.get_ident()
        self.flow = flow
        self.sights: list[_Sight] = []
        self.calls: list[_CallRecord] = []
        self.manual: dict[tuple[int, int], None] = {}
        self.autograd = Lineage()
        self.origins: list[Ref | None] = []  # of each value, where autograd had it when first seen
        self.data_origins: dict[int, Ref] = {}
        self._trail: list[tuple[int, str, type, int, bool]] = []
        self._waiting: list[_Seen] = []
        self._is_patient = flow is None
        self._passes = 0
        self._open: list[int] = []
        self._differentiable: set[int] = set()
        self._from_forward: set[int] = set()
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self._operations: dict[tuple[int, type, int], int] = {}
        self._leaves: dict[int, int] = {}

    def enter(self, module: str, number: int) -> None:
        self.calls.append(_CallRecord(module, number, self._call, _is_backward()))
        if not self._open:
            self._passes += 1
            self._is_patient &= self._passes <= _MOST_PASSES
        self._open.append(len(self.calls) - 1)

    def leave(self, module: str, number: int) -> None:
        for place in range(len(self._open) - 1, -1, -1):
            if self.calls[self._open[place]][:2] == (module, number):
                del self._open[place:]
                return

    def see(self, site: int, tensor: torch.Tensor, role: str) -> None:
        grad_fn, has_grad, is_backward = tensor.grad_fn, tensor.requires_grad, _is_backward()
        # What checkpointing computes again is news only where there were no gradients before.
        is_again = is_backward and site in self._differentiable
        if is_again and grad_fn is not None:
            return
        if has_grad:
            self._differentiable.add(site)
        output = tensor.output_nr
        self._trail.append((site, role, type(grad_fn), output, has_grad))
        self._waiting.append(
            _Seen(
                site, role, self._call, has_grad, not is_again, grad_fn, output,
                weakref.ref(tensor), _version(tensor), threading.get_ident(), is_backward,
            )
        )  # fmt: skip
        if not self._is_patient:
            self.settle()
        if self.flow is not None and not is_backward:
            self._follow(self.flow, self.sights[-1].value, tensor, role)

    def settle(self) -> None:
        """Walk what was seen and not yet walked, and let go of it."""
        waiting, self._waiting = self._waiting, []
        for seen in waiting:
            value = self._value(seen)
            if not seen.is_backward:
                self._from_forward.add(value)
            elif value in self._from_forward:
                continue  # checkpointing gives a module its input again
            self.sights.append(_Sight(value, *seen[:5]))

    def key(self) -> int:
        """A hash of what was seen that needs no walk."""
        return hash((tuple(self._trail), tuple(self.calls), tuple(self.manual)))

    def fingerprint(self) -> int:
        """A hash of all that the graph is made from, but for data flow."""
        autograd = tuple(self.autograd.inputs), tuple(self.autograd.values.items())
        return hash((tuple(self.sights), tuple(self.calls), tuple(self.manual), autograd))

    @property
    def _call(self) -> int:
        return self._open[-1] if self._open else _NOWHERE

    def _follow(self, flow: DataFlow, value: int, tensor: torch.Tensor, role: str) -> None:
        ref = flow.ref(tensor, is_pinned=role == "parameter")
        if ref is not None:
            flow.lineage.bind(ref, value)
            self.data_origins.setdefault(value, ref)

    def _value(self, seen: _Seen) -> int:
        if seen.grad_fn is None:
            return self._tensor_value(seen.tensor, seen.version)
        ref = self._operation(seen.grad_fn, seen.thread), seen.output
        value = self.autograd.values.get(ref)
        if value is None:
            # A checkpoint's output is the same tensor without gradients before.
            value = self._same_tensor(seen.tensor, seen.version)
            if value is None:
                value = len(self.origins)
                self.origins.append(ref)
            self.autograd.values[ref] = value
        return value

    def _tensor_value(self, tensor: weakref.ref[torch.Tensor], version: int) -> int:
        value = self._same_tensor(tensor, version)
        if value is None:
            value = len(self.origins)
            self.origins.append(None)
            self._tensors[id(tensor)] = tensor, version, value
        return value

    def _same_tensor(self, tensor: weakref.ref[torch.Tensor], version: int) -> int | None:
        # While a tensor has a weak reference, Python gives out the same one for it again.
        known = self._tensors.get(id(tensor))
        return known[2] if known is not None and known[1] == version else None

    def _operation(self, grad_fn: Any, thread: int) -> int:
        """The number of an operation of autograd, after those of all that it came from.

        Torch numbers operations itself, but each thread does so from 0.
        """
        todo = [grad_fn]
        while todo:
            key = todo[-1]._sequence_nr(), type(todo[-1]), thread
            if key not in self._operations:
                inputs = self._inputs(todo, thread)
                if inputs is None:
                    continue
                self._operations[key] = self.autograd.add(inputs)
            todo.pop()
        return self._operations[key]

    def _inputs(self, todo: list[Any], thread: int) -> tuple[Ref, ...] | None:
        """What the last operation of `todo` read, or None after adding what must come first."""
        inputs: list[Ref] = []
        count = len(todo)
        for source, output in todo[-1].next_functions:
            if source is None:
                continue
            kind = type(source)
            if kind.__name__ == "AccumulateGrad":
                number: int | None = self._leaf(source.variable)
            else:
                number = self._operations.get((source._sequence_nr(), kind, thread))
            if number is None:
                todo.append(source)
            else:
                inputs.append((number, output))
        return tuple(inputs) if len(todo) == count else None

    def _leaf(self, tensor: torch.Tensor) -> int:
        value = self._tensor_value(weakref.ref(tensor), _version(tensor))
        if value not in self._leaves:
            self._leaves[value] = self.autograd.add(())
            self.autograd.bind((self._leaves[value], 0), value)
        return self._leaves[value]


class _Aliases:
    """Under which of its sites a value is known at a place of the program.

    Inside a module's call a value goes by the call's input, outside it by the call's output, so
    that a skip connection starts where the value was made and not at its other consumer.
    """

    def __init__(self, step: _Step) -> None:
        self._calls = step.calls
        self._inputs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._others: dict[int, list[tuple[int, _Sight]]] = {}
        self._first: set[int] = set()
        for order, sight in enumerate(step.sights):
            self._add(order, sight)

    def before(self, order: int, sink: _Sight) -> int | None:
        """The site that saw the same value before `sink` did, which is sight number `order`."""
        return self.find(sink.value, -1 if order in self._first else order, sink)

    def find(self, value: int, before: int, sink: _Sight) -> int | None:
        """The site by which `sink` knows a value: the last that was seen from where it is."""
        scope = self._scope(sink)
        known = [pair for call in scope for pair in self._inputs.get((value, call), ())]
        for since, sight in reversed(self._others.get(value, ())):
            if since < before and (sight.role != "output" or sight.call not in scope):
                known.append((since, sight.site))
                break
        return max((pair for pair in known if pair[0] < before), default=(-1, None))[1]

    def _add(self, order: int, sight: _Sight) -> None:
        if sight.role == "input":
            self._inputs.setdefault((sight.value, sight.call), []).append((order, sight.site))
            return
        others = self._others.setdefault(sight.value, [])
        if not others and sight.role != "output" and self.find(sight.value, order, sight) is None:
            # A parameter, or a tensor that is named late, was there from the beginning.
            self._first.add(order)
            order = -1
        others.append((order, sight))

    def _scope(self, sink: _Sight) -> list[int]:
        """The calls that a sight is made in; an input is made before its call."""
        scope, call = [], sink.call
        while call != _NOWHERE:
            scope.append(call)
            call = self._calls[call].around
        return scope[1:] if sink.role == "input" else scope


def _graph_of(step: _Step, is_traced: bool) -> Graph:
    roles: dict[int, str] = {}
    for sight in step.sights:
        if sight.role == "loss":
            roles[sight.site] = "loss"
        roles.setdefault(sight.site, sight.role)
    for pair in step.manual:
        for site in pair:
            roles.setdefault(site, "tensor")
    return Graph(tuple(roles), _edges(step), _nesting(step), roles, is_traced)


def _nesting(step: _Step) -> dict[Call, Call | None]:
    nesting: dict[Call, Call | None] = {}
    for call in step.calls:
        if not call.is_again:
            around = None if call.around == _NOWHERE else step.calls[call.around][:2]
            nesting.setdefault(call[:2], around)
    return nesting


def _edges(step: _Step) -> tuple[Edge, ...]:
    found: dict[str, set[tuple[int, int]]] = {kind: set() for kind in _KINDS}
    found[MANUAL].update(step.manual)
    aliases = _Aliases(step)
    autograd, data = _autograd_sources(step), _data_sources(step)
    for order, sink in enumerate(step.sights):
        if not sink.is_sink:
            continue
        alias = aliases.before(order, sink)
        if alias is None:
            for kind, sources in ((AUTOGRAD, autograd), (DATA, data)):
                sites = _sites_behind(sources, aliases, order, sink)
                found[kind].update((site, sink.site) for site in sites)
        elif alias != sink.site:
            found[AUTOGRAD if sink.has_grad else DATA].add((alias, sink.site))
    kinds = {pair: kind for kind in reversed(_KINDS) for pair in found[kind]}
    return tuple(sorted(Edge(*pair, kind) for pair, kind in kinds.items()))


_Sources = Callable[[int], frozenset[int]]


def _sites_behind(sources: _Sources, aliases: _Aliases, before: int, sink: _Sight) -> set[int]:
    """The sites that a value was made from; one that `sink` knows no name of is looked through."""
    sites: set[int] = set()
    todo, done = list(sources(sink.value)), {sink.value}
    while todo:
        value = todo.pop()
        if value in done:
            continue
        done.add(value)
        site = aliases.find(value, before, sink)
        if site is None:
            todo.extend(sources(value))
        else:
            sites.add(site)
    return sites


def _autograd_sources(step: _Step) -> _Sources:
    reached = step.autograd.reached()

    def sources(value: int) -> frozenset[int]:
        origin = step.origins[value]
        return frozenset() if origin is None else reached[origin[0]]

    return sources


def _data_sources(step: _Step) -> _Sources:
    reached = [] if step.flow is None else step.flow.lineage.reached()

    def sources(value: int) -> frozenset[int]:
        origin = step.data_origins.get(value)
        return frozenset() if origin is None else reached[origin[0]]

    return sources


def _is_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; an update of a leaf that is trained is no change."""
    if tensor.is_inference() or (tensor.requires_grad and tensor.grad_fn is None):
        return -1
    return tensor._version
