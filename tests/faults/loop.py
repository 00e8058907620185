"""Faults of the optimizer and of the training loop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import Tensor, Training, blobs, curve, faulty, images, mlp, plain


@faulty("stale_gradients", "optimizer", is_fast=True)
def no_zero_grad(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer, draw = torch.optim.SGD(model.parameters(), lr=0.05), blobs()

    def step(_: int) -> None:
        x, y = draw(64)
        loss = F.cross_entropy(model(x), y)
        if not bug:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("stale_gradients", "optimizer")
def zero_grad_once_an_epoch(bug: bool) -> Training:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=1e-3), images()
    criterion = nn.CrossEntropyLoss()

    def step(number: int) -> None:
        if not bug or number % 40 == 0:
            optimizer.zero_grad()
        inputs, labels = draw(32)
        criterion(model(inputs), labels).backward()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("lr_too_high", "optimizer", is_fast=True)
def adam_at_one_half(bug: bool) -> Training:
    model = mlp(10, 32, 32, 4)
    return plain(model, torch.optim.Adam(model.parameters(), lr=0.5 if bug else 3e-3), blobs())


@faulty("lr_too_high", "optimizer")
def sgd_at_ten(bug: bool) -> Training:
    model = mlp(6, 32, 32, 1)
    return plain(
        model, torch.optim.SGD(model.parameters(), lr=10.0 if bug else 0.05), curve(), F.mse_loss
    )


@faulty("lr_too_high", "optimizer")
def momentum_with_a_large_rate(bug: bool) -> Training:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0 if bug else 0.02, momentum=0.9)
    return plain(model, optimizer, images(), batch=32)


@faulty("lr_too_low", "optimizer", is_fast=True)
def sgd_at_a_millionth(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    return plain(model, torch.optim.SGD(model.parameters(), lr=1e-6 if bug else 0.1), blobs())


@faulty("lr_too_low", "optimizer")
def adam_at_a_ten_millionth(bug: bool) -> Training:
    model = mlp(6, 32, 32, 1, act=nn.Tanh)
    return plain(
        model, torch.optim.Adam(model.parameters(), lr=1e-7 if bug else 3e-3), curve(), F.mse_loss
    )


@faulty("gradient_clipping", "optimizer", is_fast=True)
def norm_clipped_to_nothing(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer, draw = torch.optim.SGD(model.parameters(), lr=0.05), blobs()

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4 if bug else 5.0)
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("gradient_clipping", "optimizer")
def values_clipped_to_nothing(bug: bool) -> Training:
    model = mlp(6, 32, 1)
    optimizer, draw = torch.optim.SGD(model.parameters(), lr=0.05), curve()

    def step(_: int) -> None:
        x, y = draw(64)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-6 if bug else 1.0)
        optimizer.step()

    return Training(model, optimizer, step)


def _scheduled(bug: bool, kind: str) -> Training:
    model = mlp(10, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw, steps = blobs(), 200
    if kind == "exponential":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 if bug else 0.995)
    elif kind == "steps":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10 if bug else 100, gamma=0.1)
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.05 if bug else 0.99)

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()

    return Training(model, optimizer, step, steps)


@faulty("lr_schedule", "optimizer", is_fast=True)
def decay_each_batch(bug: bool) -> Training:
    return _scheduled(bug, "exponential")


@faulty("lr_schedule", "optimizer")
def steps_of_the_rate_each_batch(bug: bool) -> Training:
    return _scheduled(bug, "steps")


@faulty("lr_schedule", "optimizer")
def rate_that_grows(bug: bool) -> Training:
    return _scheduled(bug, "growing")


@faulty("optimizer_misconfig", "optimizer", is_fast=True)
def momentum_of_almost_one(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.999 if bug else 0.9)
    return plain(model, optimizer, blobs())


@faulty("optimizer_misconfig", "optimizer")
def betas_swapped(bug: bool) -> Training:
    model = mlp(6, 32, 1)
    betas = (0.999, 0.9) if bug else (0.9, 0.999)
    return plain(
        model, torch.optim.Adam(model.parameters(), lr=3e-3, betas=betas), curve(), F.mse_loss
    )


@faulty("optimizer_misconfig", "optimizer")
def eps_that_divides(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1.0 if bug else 1e-8)
    return plain(model, optimizer, blobs())


@faulty("over_regularisation", "optimizer", is_fast=True)
def decay_of_one(bug: bool) -> Training:
    model = mlp(10, 32, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1.0 if bug else 1e-4)
    return plain(model, optimizer, blobs(), steps=200)


@faulty("over_regularisation", "optimizer")
def adamw_with_a_decay_of_thirty(bug: bool) -> Training:
    model = mlp(6, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=30.0 if bug else 0.01)
    return plain(model, optimizer, curve(), F.mse_loss, steps=200)


@faulty("over_regularisation", "drop", "2")
def dropout_of_almost_all(bug: bool) -> Training:
    model = nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.95 if bug else 0.1), nn.Linear(32, 4)
    )
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("grad_accumulation_scale", "loss", is_fast=True)
def accumulation_without_division(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer, draw = torch.optim.SGD(model.parameters(), lr=0.05), blobs()

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(4):
            x, y = draw(16)
            loss = F.cross_entropy(model(x), y)
            if not bug:
                loss = loss / 4
            loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 60)


@faulty("mode_misuse", "2", "drop", is_fast=True)
def evaluation_mode_left_on(bug: bool) -> Training:
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=3e-3), blobs()

    def step(number: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number % 20 == 10:
            model.eval()
            with torch.no_grad():
                model(draw(64)[0])
            if not bug:
                model.train()

    return Training(model, optimizer, step, 150)


@faulty("mode_misuse", "bn", "1")
def batch_norm_in_evaluation(bug: bool) -> Training:
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    training = plain(model, torch.optim.SGD(model.parameters(), lr=0.05), blobs())
    model.train(not bug)
    return training


@faulty("mode_misuse", "net", "")
def functional_dropout_always(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(10, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.fc1(x))
            if bug:
                x = F.dropout(x, 0.5)
            else:
                x = F.dropout(x, 0.5, training=self.training)
            return self.fc2(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model = Outer()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("batch_size_too_small", "1", "bn", is_fast=True)
def batch_norm_of_two(bug: bool) -> Training:
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return plain(
        model, torch.optim.SGD(model.parameters(), lr=0.05), blobs(), batch=2 if bug else 64
    )


@faulty("divergence", "loss", "optimizer")
def targets_that_run_away(bug: bool) -> Training:
    model = mlp(6, 32, 1)
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=1e-3), curve()

    def step(number: int) -> None:
        x, y = draw(64)
        if bug:
            y = y * (1 + 0.15 * number)
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)
