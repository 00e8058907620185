"""What the user says was made from what becomes an edge, whether or not a site saw the tensors."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from graph_cases import Watcher, X
from tensor_classes import Tagged
from torch import nn
from torch.utils.checkpoint import checkpoint

from backlight.capture.graph import GraphCapture

NAMES = {"x": 0, "other": 1, "y": 2, "z": 3, "left out": -1}

Tell = Callable[[GraphCapture], None]


def edges_of(tell: Tell, trace_data: bool = False, capture: GraphCapture | None = None) -> set[str]:
    """The edges of a step, such as "x -> y (manual)"."""
    capture = capture or GraphCapture(NAMES.get)
    capture.begin(trace_data=trace_data)
    tell(capture)
    graph = capture.finish()
    names = {site: name for name, site in NAMES.items()}
    return {f"{names[e.source]} -> {names[e.sink]} ({e.kind})" for e in graph.edges}


def lost(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that neither autograd nor data flow knows the origin of."""
    return torch.tensor(tensor.tolist())


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


either = pytest.mark.parametrize("trace_data", [False, True], ids=["autograd", "traced"])


@either
@pytest.mark.parametrize("source", ["name", "number", "tensor"])
@pytest.mark.parametrize("sink", ["name", "number", "tensor"])
def test_sites_are_connected_by_name_by_number_and_by_tensor(source, sink, trace_data):
    def tell(capture: GraphCapture) -> None:
        x = torch.ones(2)
        y = lost(x)
        capture.see(NAMES["x"], x)
        ways = {"name": ("x", "y"), "number": (NAMES["x"], NAMES["y"]), "tensor": (x, y)}
        capture.connect(ways[source][0], ways[sink][1])
        capture.see(NAMES["y"], y)

    assert edges_of(tell, trace_data) == {"x -> y (manual)"}


@either
def test_what_autograd_knows_it_knows_better(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = leaf()
        y, z = x * 2, x.detach() * 2
        for name, tensor in (("x", x), ("y", y), ("z", z)):
            capture.see(NAMES[name], tensor)
        capture.connect("x", "y")
        capture.connect(x, z)

    assert edges_of(tell, trace_data) == {"x -> y (autograd)", "x -> z (manual)"}


@either
def test_a_source_that_no_site_saw_stands_for_what_it_was_made_from(trace_data):
    def tell(capture: GraphCapture) -> None:
        x, other = leaf(), leaf()
        capture.see(NAMES["x"], x)
        capture.see(NAMES["other"], other)
        unseen = (x * 2) + other.exp()
        y = lost(unseen)
        capture.see(NAMES["y"], y)
        capture.connect(unseen, y)

    assert edges_of(tell, trace_data) == {"x -> y (manual)", "other -> y (manual)"}


@either
def test_a_sink_that_no_site_saw_stands_for_what_is_made_from_it(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = leaf()
        capture.see(NAMES["x"], x)
        unseen = lost(x).requires_grad_()
        capture.connect(x, unseen)
        capture.see(NAMES["y"], unseen.exp() * 3)
        capture.see(NAMES["z"], unseen.sum())

    assert edges_of(tell, trace_data) == {"x -> y (manual)", "x -> z (manual)"}


def test_a_sink_without_gradients_is_followed_with_the_data():
    def tell(capture: GraphCapture) -> None:
        x = torch.ones(2)
        capture.see(NAMES["x"], x)
        unseen = lost(x)
        capture.connect("x", unseen)
        capture.see(NAMES["y"], unseen.argmax())

    assert edges_of(tell, trace_data=True) == {"x -> y (manual)"}
    assert edges_of(tell) == set()


@either
def test_connections_form_chains(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = leaf()
        capture.see(NAMES["x"], x)
        first, second = lost(x), lost(x).requires_grad_()
        capture.connect(x.exp(), first)
        capture.detached(first, second)
        capture.see(NAMES["y"], second * 2)

    assert edges_of(tell, trace_data) == {"x -> y (manual)"}


@either
def test_a_source_may_be_seen_after_its_sink(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = torch.ones(2)
        y = lost(x)
        capture.see(NAMES["y"], y)
        capture.connect(x, y)
        capture.enter("layer", 1)
        capture.see(NAMES["x"], x, role="output")
        capture.leave("layer", 1)

    assert edges_of(tell, trace_data) == {"x -> y (manual)"}


def test_a_name_may_come_after_it_is_connected():
    names: dict[str, int] = {}
    capture = GraphCapture(names.get)
    capture.begin(trace_data=False)
    capture.connect("x", "y")
    names |= NAMES
    assert [(e.source, e.sink) for e in capture.finish().edges] == [(NAMES["x"], NAMES["y"])]


def test_unknown_names_are_told_and_those_left_out_are_not():
    capture = GraphCapture(NAMES.get)

    def tell(capture: GraphCapture) -> None:
        capture.connect("x", "nobody")
        capture.connect(torch.ones(2), "anybody")
        capture.connect("left out", "y")
        capture.connect("x", -1)

    assert edges_of(tell, capture=capture) == set()
    assert capture.unknown_names == {"nobody", "anybody"}
    assert edges_of(lambda capture: None, capture=capture) == set()
    assert capture.unknown_names == set()


@either
def test_tensors_that_nothing_is_known_of_change_nothing(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = torch.ones(2)
        capture.see(NAMES["x"], x)
        capture.connect(torch.ones(3), x)
        capture.connect(x, torch.ones(3))
        capture.connect(torch.ones(1), torch.ones(1))
        capture.connect(x, x)
        capture.connect("x", "x")
        capture.detached(x, x)

    assert edges_of(tell, trace_data) == set()


# -- tensors that the user cuts off


@either
def test_a_tensor_that_is_cut_off_keeps_its_edge(trace_data):
    def tell(capture: GraphCapture) -> None:
        x = leaf()
        capture.see(NAMES["x"], x)
        hidden = x.exp()
        copy = hidden.detach()
        capture.detached(hidden, copy)
        capture.enter("layer", 1)
        capture.see(NAMES["y"], copy, role="input")
        capture.leave("layer", 1)

    assert edges_of(tell, trace_data) == {"x -> y (data)"}


def test_what_is_cut_off_and_then_changed_is_something_else():
    def tell(capture: GraphCapture) -> None:
        x = leaf()
        capture.see(NAMES["x"], x)
        copy = x.exp().detach()
        capture.detached(x, copy)
        capture.see(NAMES["y"], copy.zero_())

    assert edges_of(tell) == set()


def test_what_checkpointing_runs_again_is_told_once():
    layer = nn.Linear(4, 4)
    watcher = Watcher(layer)

    def block(x: torch.Tensor) -> torch.Tensor:
        copy = x.detach()
        watcher.capture.detached(x, copy)
        return layer(copy) + x

    def run() -> None:
        x = watcher.name("x", X.clone().requires_grad_())
        watcher.backward(checkpoint(block, x, use_reentrant=False).sum())

    lines = watcher.lines(watcher.step(run))
    assert "x -> (model):in.0 (data)" in lines and "x -> loss (autograd)" in lines
    assert len(lines) == 5


# -- the same step again


def test_other_connections_are_another_graph_at_once():
    capture = GraphCapture(NAMES.get)

    def tell(capture: GraphCapture, *, is_other: bool) -> None:
        x, other = leaf(), leaf()
        y = lost(x)
        for name, tensor in (("x", x), ("other", other), ("y", y)):
            capture.see(NAMES[name], tensor)
        capture.connect((other if is_other else x) * 2, y)

    for is_other in (False, True, True, False):
        found = edges_of(lambda told, flag=is_other: tell(told, is_other=flag), capture=capture)
        assert found == {f"{'other' if is_other else 'x'} -> y (manual)"}
    assert len(capture._known) == 2


def test_a_connection_of_one_step_is_not_one_of_the_next():
    capture = GraphCapture(NAMES.get)
    assert edges_of(lambda told: told.connect("x", "y"), capture=capture) == {"x -> y (manual)"}
    assert edges_of(lambda told: None, capture=capture) == set()


# -- nothing is kept, nothing is disturbed


@either
def test_tensors_are_not_kept(trace_data):
    capture = GraphCapture(NAMES.get)
    capture.begin(trace_data=trace_data)
    x = leaf()
    hidden = x.exp()
    copy = hidden.detach()
    capture.connect(x, hidden)
    capture.detached(hidden, copy)
    gone = [weakref.ref(tensor) for tensor in (x, hidden, copy)]
    gc.disable()
    try:
        del x, hidden, copy
        assert [tensor() for tensor in gone] == [None, None, None]
    finally:
        gc.enable()
    assert capture.finish() is not None


def test_outside_of_a_step_and_in_other_threads_nothing_happens():
    capture = GraphCapture(NAMES.get)
    capture.connect("x", torch.ones(1))
    capture.detached(torch.ones(1), torch.ones(1))

    def tell(capture: GraphCapture) -> None:
        thread = threading.Thread(target=capture.connect, args=("x", "y"))
        thread.start()
        thread.join()

    assert edges_of(tell, capture=capture) == set()


def test_a_tensor_class_of_the_user_does_not_see_the_reading():
    x = torch.ones(2).as_subclass(Tagged)
    y = x * 2
    Tagged.seen.clear()

    def tell(capture: GraphCapture) -> None:
        capture.see(NAMES["x"], x)
        capture.see(NAMES["y"], y)
        capture.connect(x, y)

    assert edges_of(tell) == {"x -> y (manual)"}
    assert Tagged.seen == []
