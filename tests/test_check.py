"""`backlight.check` finds what watching cannot tell, and leaves all as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import backlight
from backlight.errors import BacklightError


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(24, 6), torch.randint(0, 3, (24,))


def network(**changes: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = {"one": nn.Linear(6, 24), "act": nn.ReLU(), "two": nn.Linear(24, 3)}
    model = nn.Sequential()
    for name, layer in {**layers, **changes}.items():
        model.add_module(name, layer)
    return model


def check(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> list[tuple[str, str]]:
    found = backlight.check(model, batch(), functional.cross_entropy, optimizer)
    assert found.skipped == {}
    return [(each.fault, each.where) for each in found]


def test_a_healthy_model_has_no_findings_and_stays_as_it_was() -> None:
    model = network(norm=nn.BatchNorm1d(3), drop=nn.Dropout(0.2)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert check(model, optimizer) == []
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert (model.training and optimizer.state == {}) or len(optimizer.state) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.set_rng_state(random)


def test_random_numbers_are_not_drawn() -> None:
    model = network(drop=nn.Dropout(0.5))
    given = batch()
    before = torch.get_rng_state()
    backlight.check(model, given, functional.cross_entropy)
    assert torch.equal(before, torch.get_rng_state())


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5)


class Cutting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"act": Mixing()}, "cross_sample_mixing"),
        ({"act": Dropping()}, "mode_misuse"),
        ({"act": Cutting()}, "disconnected_graph"),
    ],
)
def test_a_faulty_part_is_found(changes: dict[str, nn.Module], fault: str) -> None:
    assert fault in [found for found, _ in check(network(**changes))]


@pytest.mark.parametrize(("rate", "fault"), [(100.0, "lr_too_high"), (1e-9, "lr_too_low")])
def test_a_learning_rate_that_cannot_learn_one_batch(rate: float, fault: str) -> None:
    model = network()
    assert check(model, torch.optim.SGD(model.parameters(), lr=rate)) == [(fault, "optimizer")]


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_that_goes_uphill(make: type[torch.optim.Optimizer]) -> None:
    model = network()
    uphill = make(model.parameters(), lr=1e-2, maximize=True)
    assert check(model, uphill) == [("optimizer_misconfig", "optimizer")]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_that_is_negated(sign: int) -> None:
    inputs, labels = batch()
    for loss_fn, target in (
        (functional.cross_entropy, labels),
        (functional.mse_loss, inputs[:, :3].clone()),
    ):
        found = backlight.check(
            network(), (inputs, target), lambda out, y, loss_fn=loss_fn: sign * loss_fn(out, y)
        )
        assert [each.fault for each in found] == (["loss_sign"] if sign < 0 else [])


class Looking(nn.Module):
    """Predicts the next token, and looks at all of them unless it is told not to."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.is_causal = is_causal

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        seen = functional.scaled_dot_product_attention(x, x, x, is_causal=self.is_causal)
        return self.head(x + seen)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_look_into_the_future(is_causal: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 9, (8, 6))

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(out.transpose(1, 2), target)

    found = backlight.check(Looking(is_causal=is_causal), (ids, ids.roll(-1, 1)), loss)
    assert [each.fault for each in found] == ([] if is_causal else ["information_leak"])


def test_what_cannot_be_checked_is_said_in_one_sentence() -> None:
    with pytest.raises(BacklightError, match="needs a batch"):
        backlight.check(network(), torch.randn(3, 6), functional.cross_entropy)
