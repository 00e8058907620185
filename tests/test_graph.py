"""What a user relies on in the graph: each dependency once, from where it comes, and no trace left.

The graphs of small networks are in `golden_graphs/`, one line for each edge. After a change that is
meant, `BACKLIGHT_REWRITE_GOLDEN=1` writes them anew; read the difference.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from backlight.capture.graph import Edge, Graph, GraphCapture

GOLDEN = Path(__file__).parent / "golden_graphs"


def tensors_in(value: object, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, (tuple, list)):
        for key, item in enumerate(value):
            yield from tensors_in(item, f"{place}.{key}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{place}.{key}")


@pytest.fixture(autouse=True)
def no_mode_is_left():
    yield
    assert _get_current_dispatch_mode_stack() == []


class Watcher:
    """Tells a GraphCapture of all that a model does, through hooks on its modules."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.capture = GraphCapture()
        self.sites: dict[str, int] = {}
        self.handles = []
        self.calls: Counter[str] = Counter()
        self.open: list[tuple[str, int]] = []
        for name, module in model.named_modules():
            self._hook(name or "(model)", module)

    def step(self, run: Callable[[], object], trace_data: bool = False) -> Graph:
        self.begin(trace_data)
        run()
        graph = self.capture.finish()
        assert graph is not None
        return graph

    def begin(self, trace_data: bool = False) -> None:
        self.calls.clear()
        self.open.clear()
        self.capture.begin(trace_data=trace_data)
        for name, parameter in self.model.named_parameters():
            self.capture.parameter(self.site(name), parameter)
        for name, buffer in self.model.named_buffers():
            self.capture.parameter(self.site(name), buffer)

    def name(self, name: str, tensor: torch.Tensor, iteration: int = 0) -> torch.Tensor:
        self.capture.see(self.site(name), tensor, iteration)
        return tensor

    def backward(self, loss: torch.Tensor) -> None:
        self.capture.loss(self.site("loss"), loss)
        loss.backward()

    def site(self, name: str) -> int:
        return self.sites.setdefault(name, len(self.sites))

    def lines(self, graph: Graph) -> list[str]:
        names = {site: name for name, site in self.sites.items()}
        return [f"{names[e.source]} -> {names[e.sink]} ({e.kind})" for e in graph.edges]

    def close(self) -> None:
        self.capture.finish()
        for handle in self.handles:
            handle.remove()

    def _hook(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            is_recomputed = torch._C._current_graph_task_id() != -1
            self.calls[name] += not is_recomputed
            self.open.append((name, 1 if is_recomputed else self.calls[name]))
            self.capture.enter(*self.open[-1])
            see((args, kwargs), "input")

        def after(_: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            while self.open[-1][0] != name:  # an exception ended those
                self.open.pop()
            see(output, "output")
            self.capture.leave(*self.open.pop())

        def see(value: object, role: str) -> None:
            call = self.open[-1][1]
            place = f"{name}#{call}:" if call > 1 else f"{name}:"
            value = value if role == "output" else [*value[0], value[1]]
            value = [value] if isinstance(value, torch.Tensor) else value
            for item, tensor in tensors_in(value, "in" if role == "input" else "out"):
                self.capture.see(self.site(place + item), tensor, role=role)

        self.handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self.handles.append(module.register_forward_hook(after, with_kwargs=True))


# -- the networks whose graphs are written down


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.layer(self.relu(self.layer(x))))


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        x = self.layer(x)
        return self(x.tanh(), depth - 1) if depth else x


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(self.norm(x))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)) + x


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, right = self.layer(x).chunk(2, dim=1)
        return left * scale, right, x


class SeveralInAndOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.join = nn.Bilinear(4, 4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        left, right, same = self.gate(x, scale=scale)
        return self.join(left, left + right) + same


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.policy = nn.Linear(4, 3)
        self.value = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x).relu()
        return {"policy": self.policy(hidden), "value": self.value(hidden), "hidden": hidden}


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 5)
        self.codes = nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.codes(self.scores(x).argmax(dim=1))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(4, 4)
        self.student = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = self.teacher(x)
        return (self.student(target.detach()) - target.detach()).square()


class TargetNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.target = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            goal = self.target(x) + 1
        return functional.mse_loss(self.online(x), goal)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class Fills(nn.Module):
    """Writes its results into a tensor made beforehand, slice by slice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 2)
        self.right = nn.Linear(4, 2)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        out[:, :2] = self.left(x)
        out[:, 2:] = self.right(x)
        return self.last(out)


class CheckpointedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = checkpoint(self.layer, x, use_reentrant=False)
        return checkpoint(self.layer, first.relu(), use_reentrant=False)


class Rounded(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.mark_non_differentiable(nearest := (x / step).round())
        return nearest * step, nearest

    @staticmethod
    def backward(ctx, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("step", torch.tensor(0.25))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rounded, levels = Rounded.apply(self.layer(x), self.step)
        return {"out": self.last(rounded), "levels": levels}


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(4, 4)
        self.judge = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def trains(model: nn.Module, *inputs: torch.Tensor) -> Callable[[Watcher], None]:
    def run(watcher: Watcher) -> None:
        out = model(*inputs)
        while not isinstance(out, torch.Tensor):
            out = sum(part.sum() for part in out.values())
        watcher.backward(out.sum())

    return run


def adversarial(model: Adversaries) -> Callable[[Watcher], None]:
    """The judge sees a made thing twice: cut off for its own loss, whole for the maker's."""

    def run(watcher: Watcher) -> None:
        made = model.maker(torch.ones(2, 4))
        watcher.backward(model.judge(made.detach()).mean())
        watcher.backward(-model.judge(made).mean())

    return run


def recurrent(model: nn.RNNCell) -> Callable[[Watcher], None]:
    """The iterations of a step share their sites."""

    def run(watcher: Watcher) -> None:
        hidden = torch.zeros(2, 4)
        for iteration in range(3):
            watcher.calls.clear()
            hidden = model(X, watcher.name("state", hidden, iteration))
        watcher.backward(hidden.sum())

    return run


def named_late(model: nn.Module) -> Callable[[Watcher], None]:
    """A tensor gets its name after it was used."""

    def run(watcher: Watcher) -> None:
        scaled = watcher.name("x", torch.ones(2, 4)) * 2
        out = model(scaled)
        watcher.name("scaled", scaled)
        watcher.capture.connect(watcher.site("hint"), watcher.site("scaled"))
        watcher.backward(out.sum())

    return run


X, TOKENS = torch.linspace(-1, 1, 8).view(2, 4), torch.tensor([[1, 2, 3]])


def case(make: Callable[[], nn.Module], *inputs: torch.Tensor, run=trains):
    def prepare() -> tuple[Watcher, Callable[[], None]]:
        torch.manual_seed(0)
        model = make()
        watcher = Watcher(model)
        act = run(model, *inputs)
        return watcher, lambda: act(watcher)

    return prepare


CASES = {
    "reuse": case(Reused, X),
    "recursion": case(Recursive, X),
    "skip_connections": case(Blocks, X),
    "several_inputs_and_outputs": case(SeveralInAndOut, X, torch.ones(4)),
    "dict_outputs": case(TwoHeads, X),
    "argmax_and_embedding": case(Chooses, X),
    "detach": case(Detached, X),
    "target_network": case(TargetNetwork, X),
    "tied_weights": case(Tied, TOKENS),
    "filled_in_place": case(Fills, X),
    "in_place_resnet": case(lambda: models.InPlaceBlock(2), torch.ones(2, 2, 4, 4)),
    "lstm": case(models.SequenceTagger, TOKENS),
    "checkpoint": case(lambda: models.Checkpointed(False), torch.ones(2, 6)),
    "checkpoint_reentrant": case(
        lambda: models.Checkpointed(True), torch.ones(2, 6, requires_grad=True)
    ),
    "checkpoint_of_one_module_twice": case(CheckpointedTwice, X),
    "custom_function": case(Quantized, X),
    "iterations": case(lambda: nn.RNNCell(4, 4), run=recurrent),
    "gan": case(Adversaries, run=adversarial),
    "named_late": case(lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()), run=named_late),
}
"""Each gives a watcher and what to do for one step."""


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
    compare(name, "\n".join([*watcher.lines(graph), ""]))


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


def test_what_the_user_connects_is_kept_where_autograd_does_not_know_better():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    x = torch.ones(2, requires_grad=True)
    capture.see(0, x)
    capture.see(1, x * 2)
    capture.see(2, x.detach() * 2)
    for sink in (1, 2):
        capture.connect(0, sink)
    assert capture.finish().edges == (Edge(0, 1, "autograd"), Edge(0, 2, "manual"))


def test_a_forward_that_raises_leaves_the_next_one_in_order():
    watcher, _ = CASES["skip_connections"]()
    model = watcher.model

    def run() -> None:
        with pytest.raises(RuntimeError):
            model.blocks(torch.ones(2, 3))
        model(X)

    graph = watcher.step(run)
    assert graph.nesting["blocks.0.norm", 1] == ("blocks.0", 1)


# -- following data


def traced_sources(compute: Callable[..., torch.Tensor]) -> set[int]:
    """Which of two seen tensors, 0 and 1, the result was made from."""
    capture = GraphCapture()
    capture.begin(trace_data=True)
    inputs = torch.linspace(0, 1, 6).view(2, 3), torch.linspace(1, 2, 6).view(2, 3)
    for site, tensor in enumerate(inputs):
        capture.see(site, tensor)
    capture.see(2, compute(*inputs))
    graph = capture.finish()
    assert graph.is_traced
    return {edge.source for edge in graph.edges if edge.sink == 2}


def write_slices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(3, 3)
    view = out[0]
    out[1].copy_(x[0])
    view.add_(y[0])
    return out.t()


def write_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, 3).copy_(x).copy_(y)


def write_through_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.data.mul_(y)
    return z


def write_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x + 1
    torch.mul(y, 2, out=out)
    return out


@pytest.mark.parametrize(
    ("compute", "sources"),
    [
        (lambda x, y: x.detach().argmax(), {0}),
        (lambda x, y: torch.where(x > 0.5, y, 0.0), {0, 1}),
        (lambda x, y: y[:, x[0].long()], {0, 1}),
        (lambda x, y: x.sort(dim=1).indices, {0}),
        (lambda x, y: x.topk(2)[1] + y.max(dim=0)[0][0].long(), {0, 1}),
        (lambda x, y: torch.cat([x, y])[2:], {0, 1}),
        (lambda x, y: torch._foreach_add([x, y], 1)[1], {0, 1}),
        (lambda x, y: torch.zeros_like(x) + y, {1}),
        (lambda x, y: x.new_ones(3) * y, {1}),
        (lambda x, y: torch.rand_like(x), set()),
        (lambda x, y: x.view(6).unflatten(0, (3, 2)).t(), {0}),
        (write_slices, {0, 1}),
        (write_twice, {1}),
        (write_through_data, {0, 1}),
        (write_out, {1}),
    ],
)
def test_data_is_followed_through(compute, sources):
    assert traced_sources(compute) == sources


class Centers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(dim=0), 0.1)
        return x - self.mean


def test_buffers_do_not_tie_one_call_to_the_next():
    model = Centers()
    watcher = Watcher(model)

    def run() -> None:
        model(watcher.name("first", X * 2))
        model(watcher.name("second", X * 3))

    lines = watcher.lines(watcher.step(run, trace_data=True))
    assert "mean -> (model)#2:out.0 (data)" in lines
    assert [line for line in lines if line.startswith("first ->")] == [
        "first -> (model):in.0 (data)"
    ]


def test_what_is_not_understood_is_given_up():
    """A sparse tensor has no storage that could tell what shares its memory."""
    capture = GraphCapture()
    capture.begin(trace_data=True)
    x = torch.eye(3)
    capture.see(0, x)
    capture.see(1, x.to_sparse().to_dense())
    graph = capture.finish()
    assert not graph.is_traced and graph.edges == ()


def test_higher_order_operators_run_as_ever():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    branches = (lambda x: (x.sin(),)), (lambda x: (x.cos(),))
    out = torch.ops.higher_order.cond(torch.tensor(True), *branches, (torch.ones(2),))
    assert not capture.finish().is_traced
    assert torch.equal(out[0], torch.ones(2).sin())


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
        torch.utils._python_dispatch._pop_mode()


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
