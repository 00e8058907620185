"""The loss is the tensor that a backward pass starts from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import autograd, nn

from backlight.capture import backward

ORIGINAL = torch.autograd.backward


@pytest.fixture
def losses():
    found: list[torch.Tensor] = []
    backward.listen(found.append)
    yield found
    backward.ignore(found.append)
    assert torch.autograd.backward is ORIGINAL


@pytest.mark.parametrize(
    "start",
    [
        torch.Tensor.backward,
        lambda loss: torch.autograd.backward(loss),
        lambda loss: autograd.backward([loss]),
    ],
)
def test_it_is_told_before_the_pass_runs(losses, start: Callable[[torch.Tensor], Any]):
    weight = nn.Parameter(torch.ones(3))
    grads: list[Any] = []
    backward.listen(listener := lambda loss: grads.append(weight.grad))
    loss = weight.square().mean()
    start(loss)
    backward.ignore(listener)
    assert len(losses) == 1 and losses[0] is loss
    assert grads == [None] and weight.grad is not None


def test_several_roots_are_all_told(losses):
    weight = nn.Parameter(torch.ones(3))
    roots = [weight.mean(), weight.sum()]
    torch.autograd.backward(roots)
    assert [id(loss) for loss in losses] == [id(root) for root in roots]


def test_a_gradient_that_is_asked_for_starts_from_no_loss(losses):
    weight = nn.Parameter(torch.ones(3))
    autograd.grad(weight.sum(), weight)
    assert losses == []


def test_a_scaled_loss_is_told_as_it_is(losses):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = nn.Parameter(torch.ones(3)).sum()
    scaler.scale(loss).backward()
    assert losses[0].item() == 8 * loss.item()


def test_another_thread_is_not_listened_to(losses):
    thread = threading.Thread(target=lambda: nn.Parameter(torch.ones(3)).sum().backward())
    thread.start()
    thread.join()
    assert losses == []


def test_what_somebody_else_put_there_since_stays():
    backward.listen(print)

    def mine(*args: Any, **kwargs: Any) -> None:
        raise AssertionError

    torch.autograd.backward = mine
    try:
        backward.ignore(print)
        assert torch.autograd.backward is mine
    finally:
        torch.autograd.backward = ORIGINAL
