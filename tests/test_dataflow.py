"""Data is followed where autograd cannot see, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graph_cases import Watcher, X
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from backlight.capture.calls import CallCapture
from backlight.capture.graph import Edge, GraphCapture


@pytest.fixture(autouse=True)
def no_mode_is_left():
    yield
    assert _get_current_dispatch_mode_stack() == []


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


@pytest.mark.parametrize("is_training", [True, False])
def test_a_batch_norm_reads_its_running_statistics_only_in_evaluation(is_training):
    model = nn.BatchNorm1d(4).train(is_training)
    watcher = Watcher(model)
    lines = watcher.lines(watcher.step(lambda: model(X), trace_data=True))
    read = {"running_mean -> (model):out.0 (data)", "running_var -> (model):out.0 (data)"}
    assert read & set(lines) == (set() if is_training else read)
    assert "(model):in.0 -> (model):out.0 (data)" in lines


# -- backward passes run without the mode


def test_a_backward_pass_that_is_seen_runs_without_the_mode():
    capture = GraphCapture()
    calls = CallCapture(lambda: "", around_backward=capture.without_data)
    stacks = []
    capture.begin(trace_data=True)
    calls.attach()
    mode = _get_current_dispatch_mode_stack()
    x = torch.ones(3, requires_grad=True)
    capture.see(0, x)
    hidden = x.exp()
    hidden.register_hook(lambda grad: stacks.append(_get_current_dispatch_mode_stack()))
    hidden.sum().backward(retain_graph=True)
    torch.autograd.grad(hidden.sum(), x)
    assert stacks == [[], []] and _get_current_dispatch_mode_stack() == mode
    capture.see(1, hidden.detach().argmax())
    calls.detach()
    graph = capture.finish()
    assert graph.is_traced and graph.edges == (Edge(0, 1, "data"),)


def test_a_backward_pass_that_fails_is_followed_by_more_data():
    capture, x = GraphCapture(), torch.ones(3, requires_grad=True)
    capture.begin(trace_data=True)
    capture.see(0, x)
    with pytest.raises(RuntimeError, match="scalar"), capture.without_data():
        x.exp().backward()
    capture.see(1, x.argmax())
    assert capture.finish().edges == (Edge(0, 1, "data"),)


def test_a_step_that_ends_inside_a_backward_pass_ends():
    capture = GraphCapture()
    capture.begin(trace_data=True)
    with capture.without_data():
        assert capture.finish().is_traced
    assert _get_current_dispatch_mode_stack() == []


def test_without_data_to_follow_there_is_nothing_to_leave():
    capture = GraphCapture()
    with capture.without_data():
        capture.begin(trace_data=False)
        with capture.without_data():
            capture.see(0, torch.ones(1))
    assert capture.finish().nodes == (0,)
