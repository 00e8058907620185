"""Loops with a scaler of gradients: an update that it leaves out is a step like others."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import find, read
from torch import nn

import backlight
from backlight.capture import scaling

ORIGINAL = torch.amp.GradScaler.step


class OwnScaler(torch.amp.GradScaler):
    """One that does more, as those of other libraries."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)


def simple(lr: float = 0.01) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.Adam(model.parameters(), lr=lr)


def train(model, optimizer, scaler, factors) -> None:
    """A pass for each factor of the loss."""
    for factor in factors:
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def events(path: Path, kind: str) -> list[int]:
    return [row["step"] for row in read(path, "events") if row["kind"] == kind]


def opened(path: Path, kind: str = "nonfinite") -> list[int]:
    reason = f"black box: {kind}"
    return [row["step"] for row in read(path, "steps") if row["reason"] == reason]


NAN = [1.0] * 6 + [torch.nan] * 4


class TestAnUpdateThatIsLeftOut:
    @pytest.mark.parametrize("options", [{"every": 1}, {"every": 100}, {"blackbox": 2}])
    @pytest.mark.parametrize("scaler", [torch.amp.GradScaler, OwnScaler])
    def test_ends_a_step_of_its_own_and_is_told(self, root, options, scaler):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, **options) as run:
            train(model, optimizer, scaler("cpu"), [1.0, torch.inf, 1.0, torch.nan, torch.nan, 1.0])
            assert run.current_step == 5
        assert [row["step"] for row in read(run.path, "steps")] == list(range(6))
        assert events(run.path, "skipped") == [1, 3, 4]
        texts = [row["text"] for row in read(run.path, "events") if row["kind"] == "skipped"]
        assert texts[0] == "the update of Adam was left out, as gradients are not finite"
        assert texts[2].endswith("2 times in a row")

    def test_has_parameters_and_states_but_no_update(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            train(model, optimizer, torch.amp.GradScaler("cpu"), [1.0, torch.nan, 1.0])
        for quantity, steps in {
            "value": [0, 1, 2],
            "grad": [0, 1, 2],
            "grad_applied": [0, 2],
            "update": [0, 2],
        }.items():
            rows = find(run.path, "0.weight", quantity)
            assert [row["step"] for row in rows] == steps, quantity
        assert [row["step"] for row in find(run.path, "0.weight:exp_avg")] == [0, 1, 2]
        kept = [row["mean"] for row in find(run.path, "0.weight:exp_avg")]
        assert kept[0] == kept[1] != kept[2]
        values = [row["mean"] for row in find(run.path, "0.weight")]
        assert values[0] != values[1] == values[2]  # each as it was used

    @pytest.mark.parametrize("options", [{"every": 1}, {"every": 3}, {"blackbox": 2}, None])
    def test_changes_nothing(self, root, options):
        results = []
        for is_watched in (False, True):
            model, optimizer = simple()
            scaler = torch.amp.GradScaler("cpu", growth_interval=2)
            run = None
            if is_watched:
                run = backlight.watch(model, optimizer, root=root, **(options or {}))
            train(model, optimizer, scaler, [1.0, torch.inf, 1.0, torch.nan, torch.nan, 1.0, 1.0])
            if run is not None:
                run.finish()
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scaler.state_dict()))
            results.append((repr(state), torch.get_rng_state().tolist()))
        assert results[0] == results[1]
        assert torch.amp.GradScaler.step is ORIGINAL

    def test_in_a_step_that_is_said_is_part_of_it(self, root):
        model, optimizer = simple()
        scaler = torch.amp.GradScaler("cpu")
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for factors in ([1.0, torch.nan, 1.0], [1.0]):
                with run.step():
                    train(model, optimizer, scaler, factors)
        assert [row["step"] for row in read(run.path, "steps")] == [0, 1]
        assert events(run.path, "skipped") == [0]
        assert Counter(r["step"] for r in find(run.path, "0.weight", "update")) == {0: 2, 1: 1}

    @pytest.mark.parametrize("every", [1, 5])
    def test_of_one_of_several_optimizers_is_waited_for_no_longer(self, root, every):
        both = {"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)}
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in both.values()]
        scaler = torch.amp.GradScaler("cpu")
        with backlight.watch(both, optimizers, root=root, every=every) as run:
            for number in range(6):
                for which, (model, optimizer) in enumerate(
                    zip(both.values(), optimizers, strict=True)
                ):
                    optimizer.zero_grad()
                    factor = torch.nan if which == number % 3 else 1.0
                    scaler.scale(model(torch.randn(5, 3)).mean() * factor).backward()
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()
            assert run.current_step == 5
        assert events(run.path, "skipped") == [0, 1, 3, 4]
        if every == 1:
            assert [r["step"] for r in find(run.path, "a.weight", "update")] == [1, 2, 4, 5]
            assert [r["step"] for r in find(run.path, "b.weight", "update")] == [0, 2, 3, 5]

    def test_of_an_optimizer_that_is_not_watched_is_not_told(self, root):
        model, optimizer = simple()
        other, of_other = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            train(other, of_other, torch.amp.GradScaler("cpu"), [torch.nan])
        assert read(run.path, "events") == [] and read(run.path, "steps") == []

    def test_for_ever_is_told_ever_more_seldom(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, blackbox=2, schedule=set()) as run:
            train(model, optimizer, torch.amp.GradScaler("cpu"), [torch.nan] * 200)
        assert events(run.path, "skipped") == [0, 1, 2, 3, 4, 5, 6, 7, 15, 31, 63, 127]
        assert len(read(run.path, "steps")) == 200

    def test_a_scaler_that_is_off_is_as_none(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            train(model, optimizer, torch.amp.GradScaler("cpu", enabled=False), [1.0] * 3)
        assert len(read(run.path, "steps")) == 3 and events(run.path, "skipped") == []


class TestTheBlackBox:
    def watched(self, root, factors, *, blackbox=4, **options):
        model, optimizer = simple()
        scaler = torch.amp.GradScaler("cpu", **options)
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=blackbox) as run:
            train(model, optimizer, scaler, factors)
        return run

    def test_a_loss_that_stays_nan_opens_it_at_once(self, root):
        run = self.watched(root, NAN)
        assert events(run.path, "nonfinite") == [6]
        assert opened(run.path) == [3, 4, 5, 6]

    @pytest.mark.parametrize(("blackbox", "told"), [(1, 6), (2, 6), (3, 7), (4, 7), (5, 8)])
    def test_gradients_that_stay_nan_open_it_while_it_has_the_step_before(
        self, root, blackbox, told
    ):
        model, optimizer = simple()
        scaler = torch.amp.GradScaler("cpu")
        options = {"schedule": set(), "blackbox": blackbox}
        with backlight.watch(model, optimizer, root=root, **options) as run:
            for step in range(12):
                optimizer.zero_grad()
                out = model(torch.randn(5, 3)).square().sum()
                # The square root of nothing is nothing, and its gradient is not finite.
                loss = (out * 0).sqrt() if step >= 6 else out
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        assert events(run.path, "nonfinite") == [told]
        assert opened(run.path) == list(range(told - blackbox + 1, told + 1))

    def test_an_overflow_that_the_scaler_handles_does_not(self, root):
        model, optimizer = simple(lr=1e-5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=5)
        nan_at = 150
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=8) as run:
            for step in range(nan_at + 10):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(torch.randn(5, 3)).float().square().mean()
                scaler.scale(loss * (torch.nan if step >= nan_at else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
        skipped = [step for step in events(run.path, "skipped") if step < nan_at]
        assert skipped[0] < 5 and len(skipped) > 10
        assert events(run.path, "nonfinite") == [nan_at]
        assert opened(run.path) == list(range(nan_at - 7, nan_at + 1))

    def test_a_scale_that_grows_is_no_spike(self, root):
        torch.manual_seed(0)
        x = torch.randn(64, 3)
        model, optimizer = simple(lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_factor=4.0, growth_interval=30)
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=4) as run:
            for step in range(100):
                optimizer.zero_grad()
                loss = model(x).square().mean() * (20 if step == 95 else 1)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        assert set(events(run.path, "spike")) == {95}


def test_what_somebody_else_put_there_since_stays(root):
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root)

    def mine(*args: Any, **kwargs: Any) -> None:
        raise AssertionError

    torch.amp.GradScaler.step = mine
    try:
        run.finish()
        assert torch.amp.GradScaler.step is mine
    finally:
        torch.amp.GradScaler.step = ORIGINAL
    assert not scaling._listeners
