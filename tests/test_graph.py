"""What a user relies on in the graph: each dependency once, from where it comes, and no trace left.

The graphs of small networks are in `golden_graphs/`: the calls of modules, each inside of those
around it, and the edges, one on a line, in the order in which sites are first seen. After a change
that is meant, `BACKLIGHT_REWRITE_GOLDEN=1` writes them anew; read the difference.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import models
import pytest
import torch
from graph_cases import CASES, Residual, Watcher, X
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from backlight.capture.graph import Edge, GraphCapture, sweep
from backlight.capture.graph.aliases import Aliases
from backlight.capture.graph.sights import NOWHERE, CallRecord, Sight

GOLDEN = Path(__file__).parent / "golden_graphs"


@pytest.fixture(autouse=True)
def no_mode_is_left():
    yield
    assert _get_current_dispatch_mode_stack() == []


def compare(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("BACKLIGHT_REWRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_golden_graph(name):
    watcher, run = CASES[name]()
    graph = watcher.step(run, trace_data=True)
    assert graph.is_traced
    calls, edges = watcher.calls_of(graph), watcher.lines(graph)
    compare(name, "\n".join(["calls", *calls, "", "edges", *edges, ""]))


@pytest.mark.parametrize("name", CASES)
def test_without_tracing_the_rest_of_the_graph_is_the_same(name):
    """Of a tensor without gradients, only whether it is the very same one is known then."""
    traced_watcher, run = CASES[name]()
    traced = traced_watcher.lines(traced_watcher.step(run, trace_data=True))
    watcher, run = CASES[name]()
    graph = watcher.step(run)
    lines = watcher.lines(graph)
    assert not graph.is_traced
    assert set(lines) <= set(traced)
    assert all(line.endswith("(data)") for line in set(traced) - set(lines))


# -- which steps have the same graph


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.takes_left = True
        self.skips_from_left = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.left(x)
        second = self.left(first) if self.takes_left else self.right(first)
        return second + (first if self.skips_from_left else second)


def count_calls(action: Callable[[], object], name: str | None = None) -> int:
    """How many calls the action makes, of functions of that name."""
    count = 0

    def profile(frame, event, argument) -> None:
        nonlocal count
        if event == "call":
            count += name is None
        elif event == "c_call":
            count += name is None or argument.__name__ == name

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def branches() -> tuple[Branches, Watcher, Callable[[], None]]:
    model = Branches()
    watcher = Watcher(model)
    return model, watcher, lambda: watcher.backward(model(X).sum())


def test_control_flow_has_a_signature_for_each_way():
    model, watcher, run = branches()
    signatures = []
    for model.takes_left in [True, False, True, True, False]:
        signatures.append(watcher.step(run).signature)
    left, right = signatures[:2]
    assert left != right
    assert signatures == [left, right, left, left, right]


def test_an_unchanged_step_is_not_walked():
    model, watcher, run = branches()
    for model.takes_left in (True, False):
        watcher.step(run)
    assert count_calls(lambda: watcher.step(run), "_sequence_nr") == 0
    model.takes_left = True
    assert count_calls(lambda: watcher.step(run), "_sequence_nr") == 0


def test_data_edges_stay_with_the_structure_they_were_found_in():
    watcher, run = CASES["argmax_and_embedding"]()
    before = watcher.step(run)
    traced = watcher.step(run, trace_data=True)
    assert [watcher.step(run) for _ in range(20)] == [traced] * 20
    assert before.signature != traced.signature
    assert not before.is_traced and traced.is_traced


def test_other_reading_between_the_same_sites_is_noticed_in_the_end():
    model, watcher, run = branches()
    before = [watcher.step(run) for _ in range(3)][-1]
    model.skips_from_left = False
    after = [watcher.step(run) for _ in range(20)][-1]
    assert set(watcher.lines(before)) - set(watcher.lines(after)) == {
        "left:out.0 -> (model):out.0 (autograd)"
    }


def test_other_data_between_the_same_sites_is_noticed_when_it_is_followed():
    capture = GraphCapture()
    found = []
    for source in (0, 1):
        capture.begin(trace_data=True)
        tensors = torch.ones(2), torch.ones(2)
        for site, tensor in enumerate(tensors):
            capture.see(site, tensor)
        capture.see(2, tensors[source].argmax())
        found.append(capture.finish().edges)
    assert found == [(Edge(0, 2, "data"),), (Edge(1, 2, "data"),)]


def test_equal_graphs_of_two_captures_have_equal_signatures_and_json():
    first, second = (CASES["gan"]() for _ in range(2))
    graphs = [watcher.step(run, trace_data=True) for watcher, run in (first, second)]
    texts = [json.dumps(graph.to_json()) for graph in graphs]
    assert texts[0] == texts[1] and graphs[0].signature == graphs[1].signature
    assert len(graphs[0].signature) == 16


def test_many_structures_do_not_pile_up():
    capture = GraphCapture()
    for site in range(200):
        capture.begin(trace_data=False)
        capture.see(site, torch.ones(1))
        assert capture.finish().nodes == (site,)
    assert len(capture._known) == 64


# -- what a graph holds besides edges


def test_calls_nesting_and_roles():
    watcher, run = CASES["skip_connections"]()
    graph = watcher.step(run)
    assert graph.calls[:4] == (("(model)", 1), ("blocks", 1), ("blocks.0", 1), ("blocks.0.norm", 1))
    assert graph.nesting["blocks.0.norm", 1] == ("blocks.0", 1)
    assert graph.nesting["(model)", 1] is None
    roles = {name: graph.roles[site] for name, site in watcher.sites.items()}
    assert roles["head.weight"] == "parameter" and roles["loss"] == "loss"
    assert roles["head:in.0"] == "input" and roles["head:out.0"] == "output"
    assert graph.nodes == tuple(watcher.sites.values())
    calls = graph.to_json()["calls"]
    assert calls[0] == ["(model)", 1, -1] and calls[2] == ["blocks.0", 1, 1]


def test_a_forward_that_raises_leaves_the_next_one_in_order():
    watcher, _ = CASES["skip_connections"]()
    model = watcher.model

    def run() -> None:
        with pytest.raises(RuntimeError):
            model.blocks(torch.ones(2, 3))
        model(X)

    graph = watcher.step(run)
    assert graph.nesting["blocks.0.norm", 1] == ("blocks.0", 1)


# -- nothing of the user's is changed or kept


@pytest.mark.parametrize("make", models.ALL, ids=lambda make: make.__name__)
def test_training_ends_in_the_same_bits(make):
    assert_same_bits(final_state(make, is_watched=False), final_state(make, is_watched=True))


def final_state(make: Callable[[], models.Problem], is_watched: bool) -> list[torch.Tensor]:
    torch.manual_seed(11)
    problem = make()
    watcher = Watcher(problem.model) if is_watched else None
    for step in range(4):
        if watcher is not None:
            watcher.begin(trace_data=True)
        problem.optimizer.zero_grad()
        problem.loss(step).backward()
        problem.optimizer.step()
    if watcher is not None:
        assert watcher.capture.finish().is_traced
        watcher.close()
    state = [*problem.model.state_dict().values()]
    for kept in problem.optimizer.state.values():
        state += [value for value in kept.values() if isinstance(value, torch.Tensor)]
    return [*state, torch.get_rng_state()]


def assert_same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


class Remembers(torch.autograd.Function):
    """Keeps something in its node that can be watched for being let go."""

    kept: weakref.WeakSet

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.mark = type("Mark", (), {})()
        Remembers.kept.add(ctx.mark)
        return x * 2

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@pytest.mark.parametrize("trace_data", [True, False])
def test_nothing_is_kept_alive(trace_data):
    Remembers.kept = weakref.WeakSet()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    watcher = Watcher(model)
    hidden_tensors = []

    def run() -> None:
        hidden = watcher.name("hidden", Remembers.apply(watcher.model(X)))
        hidden_tensors.append(weakref.ref(hidden))
        watcher.backward(hidden.sum())

    gc.disable()  # whoever must wait for the collector keeps memory for long
    try:
        for _ in range(3):
            watcher.step(run, trace_data=trace_data)
            assert len(Remembers.kept) == 0
            assert hidden_tensors[-1]() is None
    finally:
        gc.enable()
    watcher.close()
    parameters = [weakref.ref(parameter) for parameter in model.parameters()]
    del model, watcher.model
    gc.collect()
    assert [parameter() for parameter in parameters] == [None, None]


def test_tensors_and_their_memory_are_free_during_the_step():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    tensor = torch.ones(5)
    capture.see(0, tensor)
    alive, memory = weakref.ref(tensor), StorageWeakRef(tensor.untyped_storage())
    del tensor
    assert alive() is None and memory.expired()
    capture.finish()


def test_passes_that_the_user_drops_are_dropped():
    """As in a rollout whose outputs are used without their gradients."""
    Remembers.kept = weakref.WeakSet()
    model = nn.Linear(4, 4)
    watcher = Watcher(model)
    watcher.begin()
    for _ in range(50):
        watcher.name("action", Remembers.apply(model(X)))
    assert len(Remembers.kept) <= 5
    assert watcher.capture.finish() is not None
    assert len(Remembers.kept) == 0


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_users_modes_come_and_go_around_a_traced_step():
    capture, around, inside, late = GraphCapture(), Counting(), Counting(), Counting()
    x = torch.ones(2)
    with around:
        capture.begin(trace_data=True)
        capture.see(0, x)
        with inside:
            y = x + 1
        assert _get_current_dispatch_mode_stack()[1:] == [around]
    assert around not in _get_current_dispatch_mode_stack()
    z = y.argmax()
    with late:
        capture.see(1, z)
        graph = capture.finish()
        assert _get_current_dispatch_mode_stack() == [late]
        z + 1
    assert _get_current_dispatch_mode_stack() == []
    assert graph.edges == (Edge(0, 1, "data"),)
    assert (around.count, inside.count, late.count) == (1, 1, 1)


def test_an_exception_and_a_step_that_never_ends_leave_the_stack_in_order():
    capture, mode = GraphCapture(), Counting()
    with pytest.raises(RuntimeError), mode:
        capture.begin(trace_data=True)
        torch.ones(2) @ torch.ones(3)
    capture.begin(trace_data=True)
    assert len(_get_current_dispatch_mode_stack()) == 1
    capture.finish()
    assert _get_current_dispatch_mode_stack() == []
    assert capture.finish() is None


def test_other_threads_are_left_alone():
    watcher, _ = CASES["reuse"]()
    stacks = []

    def elsewhere() -> None:
        watcher.model(X)
        stacks.append(_get_current_dispatch_mode_stack())

    def run() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    graph = watcher.step(run, trace_data=True)
    assert stacks == [[]]
    assert graph.calls == () and graph.edges == ()


def test_a_step_that_ends_in_another_thread_is_only_stilled():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    mode = _get_current_dispatch_mode_stack()[0]
    thread = threading.Thread(target=capture.finish)
    thread.start()
    thread.join()
    try:
        assert _get_current_dispatch_mode_stack() == [mode]
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    finally:
        sweep()
    assert _get_current_dispatch_mode_stack() == []


def test_a_mode_that_an_interrupt_left_behind_is_taken_away_at_the_end():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    flow = capture._step.flow
    capture._step = None  # as where an interrupt comes while a step ends
    sweep(is_last=True)
    assert len(_get_current_dispatch_mode_stack()) == 1  # for it may yet be another run's
    del flow
    sweep(is_last=True)
    assert _get_current_dispatch_mode_stack() == []


def test_fake_tensors_are_not_followed():
    capture = GraphCapture()
    with torch._subclasses.FakeTensorMode():
        capture.begin(trace_data=True)
        capture.see(0, torch.ones(2))
        graph = capture.finish()
    assert graph.nodes == (0,) and not graph.is_traced
    capture.begin(trace_data=True)
    with torch._subclasses.FakeTensorMode():
        torch.ones(2) + 1
    assert capture.finish().is_traced


def test_compiled_models_are_compiled_as_ever():
    frames = []
    for is_traced in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        compiled = torch.compile(model, backend="aot_eager")
        capture = GraphCapture()
        if is_traced:
            capture.begin(trace_data=True)
        for _ in range(2):
            loss = compiled(X).sum()
            loss.backward()
        capture.finish()
        frames.append((dict(torch._dynamo.utils.counters["frames"]), loss.item()))
    assert frames[0] == frames[1]
    torch._dynamo.reset()


# -- cost


@pytest.mark.parametrize("trace_data", [True, False])
def test_the_cost_of_a_deep_model_is_linear(trace_data):
    def cost(depth: int) -> int:
        model = nn.Sequential(*(Residual() for _ in range(depth)))
        watcher = Watcher(model)
        calls = count_calls(lambda: watcher.step(lambda: model(X), trace_data))
        watcher.close()
        return calls

    cost(2)
    assert cost(120) < 2.2 * cost(60)


def test_the_cost_of_a_tensor_that_all_modules_get_is_linear():
    def cost(width: int) -> int:
        model = nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(width))
        watcher = Watcher(model)
        mask = torch.ones(2, 4)
        calls = count_calls(lambda: watcher.step(lambda: [part(X, mask) for part in model]))
        watcher.close()
        return calls

    cost(2)
    assert cost(200) < 2.2 * cost(100)


def test_the_cost_of_a_value_that_a_chain_hands_on_is_linear():
    def secs(length: int) -> float:
        calls = [CallRecord(str(number), 1, NOWHERE, False) for number in range(length)]
        sights = [Sight(0, number, "output", number, False, True) for number in range(length)]
        started = time.thread_time()
        aliases = Aliases(sights, calls)
        found = [aliases.before(order, sight) for order, sight in enumerate(sights)]
        assert found == [None, *range(length - 1)]
        return time.thread_time() - started

    # 64 times as much, if each looked at all.
    assert min(secs(8000) for _ in range(3)) < 30 * min(secs(1000) for _ in range(3))
