"""Small networks, each of a different kind, whose graphs are known; and who watches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import models
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from backlight.capture.graph import Graph, GraphCapture
from backlight.capture.trees import inputs_in, outputs_in


class Watcher:
    """Tells a GraphCapture of all that a model does, through hooks on its modules."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.sites: dict[str, int] = {}
        self.capture = GraphCapture(self.sites.get)
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
        """The edges, in the order in which their sites were first seen."""
        names = {site: name for name, site in self.sites.items()}
        return [f"{names[e.source]} -> {names[e.sink]} ({e.kind})" for e in graph.edges]

    def calls_of(self, graph: Graph) -> list[str]:
        """The calls of modules in their order, each indented by the calls around it."""
        depths: dict[object, int] = {None: -1}
        for call, around in graph.nesting.items():
            depths[call] = depths[around] + 1
        return [
            "  " * depths[name, n] + (f"{name}#{n}" if n > 1 else name) for name, n in graph.calls
        ]

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
            see("input", inputs_in(args, kwargs))

        def after(_: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            while self.open[-1][0] != name:  # an exception ended those
                self.open.pop()
            see("output", outputs_in(output))
            self.capture.leave(*self.open.pop())

        def see(role: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
            call = self.open[-1][1]
            caller = f"{name}#{call}" if call > 1 else name
            for place, tensor in tensors:
                self.capture.see(self.site(f"{caller}:{place}"), tensor, role=role)

        self.handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self.handles.append(module.register_forward_hook(after, with_kwargs=True))


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


class GivenTwice(nn.Module):
    """One tensor is both the input and what it is compared with, as language models are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (self.body(x) - labels).square()


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
        watcher.backward(out.sum())

    return run


def connected(model: nn.Module) -> Callable[[Watcher], None]:
    """What goes through Python numbers is lost, unless the user says what it was made from."""

    def run(watcher: Watcher) -> None:
        hidden = model[0](watcher.name("x", X))
        watcher.name("levels", torch.tensor([round(each, 1) for each in hidden[0].tolist()]))
        watcher.capture.connect("0:out.0", "levels")
        doubled = hidden * 2
        again = torch.tensor(doubled.tolist())
        watcher.capture.connect(doubled, again)
        watcher.backward(model[1](again).sum())

    return run


def cut_off(model: nn.Module) -> Callable[[Watcher], None]:
    """The user cuts a tensor off from autograd and says so."""

    def run(watcher: Watcher) -> None:
        hidden = model[0](X)
        copy = hidden.detach()
        watcher.capture.detached(hidden, copy)
        watcher.backward(model[1](copy).sum())

    return run


def with_target(model: nn.Module) -> Callable[[Watcher], None]:
    """What the loop names: what goes in, what should come out, and how far that is off."""

    def run(watcher: Watcher) -> None:
        out = model(watcher.name("x", X))
        target = watcher.name("target", torch.tensor([1, 0]))
        loss = watcher.name("mean loss", functional.cross_entropy(out, target))
        watcher.backward(loss * 8)

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
    "one_tensor_as_two_inputs": case(GivenTwice, X, X),
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
    "connected": case(lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)]), run=connected),
    "cut_off": case(lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)]), run=cut_off),
    "target_and_loss": case(lambda: nn.Linear(4, 3), run=with_target),
}
"""Each gives a watcher and what to do for one step."""
