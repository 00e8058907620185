"""Training loops that do what loops seldom do, and that a recorder must leave alone as well."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import models
import test_world
import torch
from loops import Loop, Make, of_model
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def _batch() -> torch.Tensor:
    return torch.randn(5, 4)


def _mixed(model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """How far a model is from mixing four numbers as it should."""
    x = _batch()
    return models.error(model(x), x)


def generates_inside_a_step() -> Loop:
    problem = test_world.gpt2()

    def step(number: int) -> None:
        problem.optimizer.zero_grad()
        loss = problem.loss(number)
        words = problem.model.generate(
            test_world.tokens(length=3), max_new_tokens=4, do_sample=True, pad_token_id=0
        )
        (loss + problem.model(input_ids=words, labels=words).loss).backward()
        problem.optimizer.step()

    return Loop({"": problem.model}, [problem.optimizer], step)


def data_parallel() -> Loop:
    model = nn.DataParallel(_layers())
    return of_model(model, lambda: _mixed(model), _sgd(model))


def calls_from_threads() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        inputs, outputs = [_batch() for _ in range(3)], [torch.zeros(()) for _ in range(3)]

        def run(place: int) -> None:
            outputs[place] = models.error(model(inputs[place]), inputs[place])

        threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        run(2)
        for thread in threads:
            thread.join()
        return torch.stack(outputs).mean()

    return of_model(model, loss, _sgd(model))


def nested_autocast() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        x = _batch()
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            hidden = model[0](x)
            with torch.autocast("cpu", enabled=False):
                hidden = model[1](hidden.float())
            with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
                out = model[2](hidden)
            return models.error(out.float(), x) + models.error(model(x).float(), x)

    return of_model(model, loss, _sgd(model))


def functional_call() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        halved = {name: p / 2 for name, p in model.named_parameters()}
        x = _batch()
        out = torch.func.functional_call(model, halved, (x,))
        return models.error(4 * out, x) / 10 + models.error(model(x), x)

    return of_model(model, loss, _sgd(model))


def gradients_of_single_samples() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def of_one(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, values, (x,)).square().mean()

        grads = torch.vmap(torch.func.grad(of_one), (None, 0))(parameters, _batch())
        norm = sum(grad.square().sum() for grad in grads.values())
        return _mixed(model) / (1 + norm)

    return of_model(model, loss, _sgd(model))


def hooks_of_the_user() -> Loop:
    model = _layers()
    model[0].register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda _, args, out: out / 2)
    model[2].register_full_backward_hook(lambda _, given, made: tuple(g * 3 for g in given))
    model[2].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))

    def loss() -> torch.Tensor:
        x = _batch()
        out = model(x)
        out.register_hook(lambda grad: grad * 2)
        return models.error(out, x)

    return of_model(model, loss, _sgd(model))


class Views(nn.Module):
    """Changes views of what its parts return, in place, and a part's input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.same = nn.Linear(4, 6), nn.Linear(6, 2), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden[:, :3].mul_(2)
        self.same(hidden.view(-1)).add_(1)
        left, right = hidden.chunk(2, dim=1)
        return self.last(torch.cat([left.relu(), self.same(right) * 2], 1)).squeeze_()


def changes_views_in_place() -> Loop:
    model = Views()
    return of_model(model, lambda: _mixed(model), _sgd(model))


def two_backward_passes() -> Loop:
    model = _layers()
    optimizer = _sgd(model)

    def step(_: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        x = _batch()
        out = model(x)
        models.error(out, x).backward(retain_graph=True)
        (out - models.wanted(x, 2)).abs().mean().backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


def gradient_penalty() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        x = _batch().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return models.error(out, x.detach()) + 0.1 * (slope.norm(dim=1) - 1).square().mean()

    return of_model(model, loss, _sgd(model))


def closure() -> Loop:
    model = _layers()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def step(_: int) -> None:
        x = _batch()

        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = models.error(model(x), x)
            loss.backward()
            return loss

        optimizer.step(evaluate)

    return Loop({"": model}, [optimizer], step)


def one_optimizer_for_each_parameter() -> Loop:
    model = _layers()
    optimizers = [torch.optim.Adam([p], lr=1e-2) for p in model.parameters()]

    def step(_: int) -> None:
        _mixed(model).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return Loop({"": model}, list(optimizers), step)


def optimizers_inside_the_backward_pass() -> Loop:
    model = _layers()
    optimizers = {p: torch.optim.Adam([p], lr=1e-2) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return Loop({"": model}, list(optimizers.values()), lambda _: _mixed(model).backward())


def parameters_replaced_midway() -> Loop:
    model = _layers()
    optimizer = _sgd(model)

    def step(number: int) -> None:
        if number == 1:
            model[2].weight = nn.Parameter(torch.randn(3, 6))
            model[2].bias = nn.Parameter(torch.randn(3))
        model[0].bias = nn.Parameter(model[0].bias.detach() / 2)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        for gone in set(optimizer.state) - set(model.parameters()):
            del optimizer.state[gone]
        optimizer.zero_grad()
        _mixed(model).backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


class Growing(nn.Module):
    """Puts another buffer in the place of one, fills one that was empty, and makes one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        self.last = x.clone()
        if not hasattr(self, "passes"):
            self.register_buffer("passes", torch.tensor(0))
        self.passes += 1
        return self.layer(x)


def tensors_that_come_later() -> Loop:
    model = Growing()
    optimizer = _sgd(model)

    def step(number: int) -> None:
        if number == 3:
            model.layer.bias = nn.Parameter(torch.zeros(2))
            model.layer.unused = nn.Parameter(torch.ones(2), requires_grad=False)
            optimizer.add_param_group({"params": [model.layer.bias]})
        optimizer.zero_grad()
        _mixed(model).backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


def updates_by_hand() -> Loop:
    model = _layers()
    optimizer = _sgd(model)  # as asked for, and never used

    def step(_: int) -> None:
        loss = _mixed(model)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter -= 0.1 * grad

    return Loop({"": model}, [optimizer], step)


def sharpness_aware() -> Loop:
    model = _layers()
    optimizer = _sgd(model)

    def step(_: int) -> None:
        x, moved = _batch(), {}
        models.error(model(x), x).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                moved[parameter] = 0.05 * parameter.grad
                parameter += moved[parameter]
        optimizer.zero_grad()
        models.error(model(x), x).backward()
        with torch.no_grad():
            for parameter, move in moved.items():
                parameter -= move
        optimizer.step()
        optimizer.zero_grad()

    return Loop({"": model}, [optimizer], step)


class Recursive(nn.Module):
    """Calls itself, and now and then fails inside and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        if depth == 1:
            try:
                self.layer(torch.ones(1, 3))
            except RuntimeError:
                x = x * 2
        return self.layer(x) if depth == 0 else self(self.layer(x), depth - 1)


def calls_itself_and_fails_inside() -> Loop:
    model = Recursive()
    return of_model(model, lambda: _mixed(model), _sgd(model))


class Labelled(torch.Tensor):
    """A tensor of a class of the user's own, whose operations give the same class."""


class Through(nn.Module):
    """Hands something on that is no plain tensor, beside what it trains."""

    def __init__(self, make: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.layer, self.same = nn.Linear(4, 4), nn.Identity()
        self.make = make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        handed = self.same(self.make(out))
        return out + sum(handed) if isinstance(handed, Iterator) else out


def _inference(out: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return out * 2


ODD_TENSORS: dict[str, Callable[[torch.Tensor], object]] = {
    "iterator that is read once": lambda out: iter([out / 4, out / 4]),
    "sparse": lambda out: out.to_sparse(),
    "sparse rows": lambda out: out.detach().to_sparse_csr(),
    "jagged": lambda out: torch.nested.nested_tensor([out[:2], out[2:]], layout=torch.jagged),
    "jagged with gradient": lambda out: torch.nested.as_nested_tensor(
        [out[:2], out[2:]], layout=torch.jagged
    ),
    "nested": lambda out: torch.nested.nested_tensor([out[:2].detach(), out[2:].detach()]),
    "quantized": lambda out: torch.quantize_per_tensor(out.detach(), 0.1, 0, torch.qint8),
    "float8": lambda out: out.detach().to(torch.float8_e4m3fn),
    "mkldnn": lambda out: out.to_mkldnn(),
    "half complex": lambda out: torch.view_as_complex(out.detach().view(5, 2, 2).half()),
    "conjugated": lambda out: torch.view_as_complex(out.view(5, 2, 2)).conj(),
    "negated": lambda out: torch.view_as_complex(out.view(5, 2, 2)).conj().imag,
    "nothing": lambda out: {"a": [out[:0], {1: (out > 0, None, "text")}]},
    "large integers": lambda out: torch.tensor([2**62, -(2**63)]),
    "unsigned": lambda out: torch.tensor([7, 2**64 - 1], dtype=torch.uint64),
    "expanded": lambda out: out.expand(3, 5, 4),
    "single number": lambda out: out.sum(),
    "many dimensions": lambda out: out.view(5, *[1] * 20, 4),
    "class of the user": lambda out: out.as_subclass(Labelled),
    "parameter": lambda out: nn.Parameter(out.detach()),
    "inference": _inference,
    "permuted": lambda out: out.view(5, 2, 2).permute(2, 0, 1)[:, ::2],
    "read-only": lambda out: torch.from_numpy(out.detach().numpy().copy()),
    "meta": lambda out: out.to("meta"),
}


def hands_on(kind: str) -> Make:
    def odd_tensor() -> Loop:
        model = Through(ODD_TENSORS[kind])
        return of_model(model, lambda: _mixed(model), _sgd(model))

    odd_tensor.__name__ = kind.replace(" ", "_")
    return odd_tensor


def packed_sequences() -> Loop:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5)

        def forward(self, sequences: list[torch.Tensor]) -> Any:
            return self.lstm(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))

    model = Packed()

    def loss() -> torch.Tensor:
        sequences = [torch.randn(length, 4) for length in (2, 5, 3)]
        packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False).data
        return models.error(model(sequences)[0].data, packed / 2)

    return of_model(model, loss, torch.optim.Adam(model.parameters(), lr=1e-2))


def saved_tensors_are_moved() -> Loop:
    model = _layers()
    optimizer = _sgd(model)

    def step(_: int) -> None:
        optimizer.zero_grad()
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t + 0),
            torch.autograd.set_detect_anomaly(True),
        ):
            _mixed(model).backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


def counts_flops() -> Loop:
    model = _layers()
    optimizer = _sgd(model)

    def step(_: int) -> None:
        with FlopCounterMode(display=False) as counter:
            loss = _mixed(model)
            loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 * counter.get_total_flops()
        optimizer.step()
        optimizer.zero_grad()

    return Loop({"": model}, [optimizer], step)


def averages_and_copies() -> Loop:
    model = _layers()
    optimizer = _sgd(model)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)

    def step(_: int) -> None:
        optimizer.zero_grad()
        teacher = copy.deepcopy(model).eval()
        x = _batch()
        with torch.inference_mode():
            told = teacher(x).clone()
        told = (told.clone() + average(x).detach()) / 2
        target = 0.8 * models.wanted(x, 2) + 0.2 * told
        functional.mse_loss(model(x), target).backward()
        optimizer.step()
        average.update_parameters(model)

    return Loop({"": model}, [optimizer], step)


def scheduler_and_skipped_updates() -> Loop:
    model = _layers()
    optimizer = _sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = _mixed(model) * (torch.inf if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if number != 1:
            scheduler.step()

    return Loop({"": model}, [optimizer], step)


ALL: list[Make] = [
    generates_inside_a_step,
    data_parallel,
    calls_from_threads,
    nested_autocast,
    functional_call,
    gradients_of_single_samples,
    hooks_of_the_user,
    changes_views_in_place,
    two_backward_passes,
    gradient_penalty,
    closure,
    one_optimizer_for_each_parameter,
    optimizers_inside_the_backward_pass,
    parameters_replaced_midway,
    tensors_that_come_later,
    updates_by_hand,
    sharpness_aware,
    calls_itself_and_fails_inside,
    packed_sequences,
    saved_tensors_are_moved,
    counts_flops,
    averages_and_copies,
    scheduler_and_skipped_updates,
    *(hands_on(kind) for kind in ODD_TENSORS),
]

UNSEEN: list[Make] = [
    data_parallel,  # its names are those inside the wrapper, which the hand does not know
    calls_from_threads,
    gradients_of_single_samples,
    updates_by_hand,  # a step that no optimizer ends
    hooks_of_the_user,  # what is seen is from before them
    *(
        make
        for make in ALL
        if make.__name__ in ("meta", "nested", "jagged", "jagged_with_gradient")
    ),
]
"""The loops of which docs/recording.md says that not everything is seen."""
