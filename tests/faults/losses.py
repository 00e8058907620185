"""Faults of the loss, of the output and of numbers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import Tensor, Training, blobs, curve, faulty, mlp, plain


@faulty("loss_shape_mismatch", "loss", is_fast=True)
def column_against_row(bug: bool) -> Training:
    model, draw = mlp(6, 32, 1), curve()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return plain(
        model,
        optimizer,
        lambda n: (lambda x, y: (x, y.squeeze(1) if bug else y))(*draw(n)),
        nn.MSELoss(),
    )


@faulty("loss_shape_mismatch", "loss")
def squares_by_hand(bug: bool) -> Training:
    model, draw = mlp(6, 32, 1), curve()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(_: int) -> None:
        x, y = draw(64)
        pred = model(x)
        loss = ((pred - (y.squeeze() if bug else y)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("loss_output_mismatch", "loss", "4", is_fast=True)
def softmax_before_cross_entropy(bug: bool) -> Training:
    layers: list[nn.Module] = [nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers, *([nn.Softmax(dim=1)] if bug else []))
    return plain(
        model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), nn.CrossEntropyLoss()
    )


@faulty("loss_output_mismatch", "loss")
def sigmoid_before_logits(bug: bool) -> Training:
    model, draw = mlp(10, 32, 1), blobs(2)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        out = torch.sigmoid(out) if bug else out
        return F.binary_cross_entropy_with_logits(out.squeeze(1), y.float())

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), draw, loss_of)


@faulty("loss_output_mismatch", "loss")
def nll_of_logits(bug: bool) -> Training:
    model = mlp(10, 32, 4)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(out if bug else F.log_softmax(out, dim=1), y)

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.02), blobs(), loss_of)


@faulty("loss_output_mismatch", "loss", "")
def softmax_of_one_unit(bug: bool) -> Training:
    model, draw = mlp(10, 32, 1), blobs(2)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        share = F.softmax(out, dim=1) if bug else torch.sigmoid(out)
        return F.binary_cross_entropy(share.squeeze(1), y.float())

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, loss_of)


@faulty("loss_sign", "loss", is_fast=True)
def negated_cross_entropy(bug: bool) -> Training:
    model = mlp(10, 32, 4)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return -F.cross_entropy(out, y) if bug else F.cross_entropy(out, y)

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), blobs(), loss_of)


@faulty("loss_sign", "loss")
def reward_instead_of_penalty(bug: bool) -> Training:
    model = mlp(6, 32, 1)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        error = (out - y).abs().mean()
        return -error if bug else error

    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2), curve(), loss_of, steps=200)


@faulty("wrong_loss", "loss", is_fast=True)
def squares_of_class_numbers(bug: bool) -> Training:
    model = mlp(10, 32, 1 if bug else 6)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out.squeeze(1), y.float()) if bug else F.cross_entropy(out, y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(6), loss_of)


@faulty("wrong_loss", "loss")
def cross_entropy_of_amounts(bug: bool) -> Training:
    model, draw = mlp(6, 32, 3), curve()

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        target = y.repeat(1, 3)
        return F.cross_entropy(out, target) if bug else F.mse_loss(out, target)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, loss_of)


@faulty("wrong_loss", "loss")
def cross_entropy_of_one_output(bug: bool) -> Training:
    model, draw = mlp(10, 32, 1 if bug else 2), blobs(2)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y * 0 if bug else y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, loss_of)


@faulty("loss_scale", "loss", is_fast=True)
def loss_times_a_hundred_thousandth(bug: bool) -> Training:
    model = mlp(10, 32, 4)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) * (1e-5 if bug else 1.0)

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs(), loss_of)


@faulty("loss_scale", "loss")
def sum_over_a_large_batch(bug: bool) -> Training:
    model = mlp(6, 32, 1)
    criterion = nn.MSELoss(reduction="sum" if bug else "mean")
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.02), curve(), criterion, batch=256)


@faulty("loss_term_imbalance", "loss", is_fast=True)
def second_task_drowned(bug: bool) -> Training:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(10, 32)
            self.label, self.amount = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(self.body(x))
            return self.label(h), self.amount(h)

    model, draw = Two(), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, y = draw(64)
        label, amount = model(x)
        first = F.cross_entropy(label, y)
        second = F.mse_loss(amount, x[:, :1] * (120.0 if bug else 1.0))
        loss = first + second
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("posterior_collapse", "mu", "logvar", "fc_mu", is_fast=True)
def kl_far_too_heavy(bug: bool) -> Training:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
            self.mu, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
            self.decoder = mlp(4, 32, 10)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.encoder(x)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
            return self.decoder(z), mu, logvar

    model, draw = Vae(), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, _ = draw(64)
        out, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = F.mse_loss(out, x) + (20.0 if bug else 0.01) * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 250)


@faulty("output_range", "3", is_fast=True)
def relu_on_a_regression(bug: bool) -> Training:
    layers: list[nn.Module] = [nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)]
    model = nn.Sequential(*layers, *([nn.ReLU()] if bug else []))
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), curve(), F.mse_loss)


@faulty("output_range", "out", "loss")
def sigmoid_for_large_targets(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 32), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            out = self.out(torch.relu(self.hidden(x)))
            return torch.sigmoid(out) if bug else out

    model, draw = Net(), curve()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, y = draw(64)
        loss = ((model(x) - (3 * y + 2)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("output_range", "5", "4")
def relu_on_logits(bug: bool) -> Training:
    layers: list[nn.Module] = [
        nn.Linear(10, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    ]
    model = nn.Sequential(*layers, *([nn.ReLU()] if bug else []))
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("nonfinite", "loss", "", is_fast=True)
def logarithm_of_zero(bug: bool) -> Training:
    model, draw = mlp(10, 32, 4), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, y = draw(64)
        share = torch.relu(model(x))
        share = share / (share.sum(1, keepdim=True) + 1e-6)
        picked = share[torch.arange(64), y]
        loss = -torch.log(picked if bug else picked + 1e-3).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 60)


@faulty("nonfinite", "loss", "")
def root_of_zero(bug: bool) -> Training:
    model, draw = mlp(6, 16, 6), curve()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        x, _ = draw(32)
        pairs = torch.cat([x[:8], x[8:].flip(0)])
        distance = torch.sqrt(((model(x) - model(pairs)) ** 2).sum(1) + (0.0 if bug else 1e-6))
        loss = (distance - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 40)


@faulty("nonfinite", "scale", "norm")
def division_by_a_zero_deviation(bug: bool) -> Training:
    class Standard(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            gap = x - x.mean(dim=1, keepdim=True)
            return gap / (
                (gap**2).mean(dim=1, keepdim=True) if bug else gap.std(dim=1, keepdim=True) + 1e-3
            )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.out = nn.Linear(6, 16), Standard(), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.fc(x))
            x = torch.where(x[:, :1] > 0.5, torch.zeros_like(x), x)
            return self.out(self.norm(x))

    model = Net()
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.01), curve(), F.mse_loss, steps=40)


@faulty("numerical_precision", "0", "2", "4", is_fast=True)
def bfloat16_parameters_with_a_small_rate(bug: bool) -> Training:
    dtype = torch.bfloat16 if bug else torch.float32
    model = mlp(10, 32, 32, 4).to(dtype)
    draw = blobs()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x.to(dtype), y

    return plain(model, torch.optim.SGD(model.parameters(), lr=2e-3), data)


@faulty("numerical_precision", "loss", "")
def logarithm_of_a_softmax(bug: bool) -> Training:
    model, draw = mlp(10, 32, 4), blobs(spread=0.2)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        out = out * 40
        log = torch.log(torch.softmax(out, dim=1)) if bug else torch.log_softmax(out, dim=1)
        return -log[torch.arange(len(y)), y].clamp(min=-1e4).mean()

    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), draw, loss_of, steps=60)


@faulty("wrong_dim", "loss", "", is_fast=True)
def softmax_over_the_batch(bug: bool) -> Training:
    model = mlp(10, 32, 4)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(out, dim=0 if bug else 1), y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), loss_of)


@faulty("wrong_dim", "loss", is_fast=True)
def classes_over_time(bug: bool) -> Training:
    """As many positions as classes: cross-entropy cannot tell which dimension is which."""
    model = nn.Sequential(nn.Embedding(8, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        tokens = torch.randint(0, 8, (32, 8))
        logits = model(tokens)
        loss = F.cross_entropy(logits if bug else logits.transpose(1, 2), (tokens * 3 + 1) % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("wrong_dim", "gate")
def gates_over_the_batch(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(10, 8)
            self.gate = nn.Softmax(dim=0 if bug else -1)
            self.values, self.out = nn.Linear(10, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.gate(self.scores(x)) * self.values(x))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())
