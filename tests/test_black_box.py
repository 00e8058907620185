"""What opens the black box, and how often; what its steps have of what seldom changes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from reading import observations, read
from torch import nn

import backlight
from backlight.alarm import Alarm
from backlight.schema import PLAIN_STATS


def simple() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def told(path: Path, kind: str) -> list[int]:
    """The steps of the events of a kind."""
    return [row["step"] for row in read(path, "events") if row["kind"] == kind]


def opened_by(path: Path, kind: str) -> list[int]:
    """The steps that the black box had when it was opened for such an event."""
    reason = f"black box: {kind}"
    return [row["step"] for row in read(path, "steps") if row["reason"] == reason]


MASK = torch.tensor([0.0, -torch.inf])


class TestNotFinite:
    """A mask is infinite on purpose, and a scaler of gradients tries out how far it can go."""

    @pytest.mark.parametrize("is_buffer", [False, True])
    def test_what_is_always_infinite_hides_nothing(self, is_buffer, root):
        model, optimizer = simple()
        if is_buffer:
            model.register_buffer("mask", MASK)
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=3) as run:
            for step in range(20):
                optimizer.zero_grad()
                run.tensor("given", MASK[:1] if is_buffer else MASK)
                loss = model(torch.randn(5, 3)).square().mean()
                (loss * torch.nan if step == 12 else loss).backward()
                optimizer.step()
        # Once, although from then on there is NaN in more and more places.
        assert told(run.path, "nonfinite") == [0, 12]
        assert opened_by(run.path, "nonfinite") == [0, 10, 11, 12]

    def test_a_logged_loss_that_is_nan_and_never_trained_on_opens_it(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=3) as run:
            for step in range(40):
                with run.step():
                    loss = model(torch.randn(5, 3)).square().mean()
                    run.log(loss=loss * torch.nan if step in (5, 6, 20) else loss)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        assert told(run.path, "nonfinite") == [5, 20]
        assert opened_by(run.path, "nonfinite") == [2, 3, 4, 17, 18, 19]

    def test_a_loss_that_is_nan_is_told_once_whether_seen_or_logged(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=3) as run:
            for step in range(20):
                loss = model(torch.randn(5, 3)).square().mean() * (torch.nan if step > 9 else 1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
        assert told(run.path, "nonfinite") == [10]

    def test_what_was_finite_in_between_is_told_again(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=2) as run:
            for step in range(20):
                is_bad = step in (0, 1, 2, 9, 14)
                loss = model(torch.randn(5, 3)).square().mean()
                (loss * torch.inf if is_bad else loss).backward()
                optimizer.zero_grad(set_to_none=not is_bad)
                optimizer.step()
        assert told(run.path, "nonfinite") == [0, 9, 14]
        assert opened_by(run.path, "nonfinite") == [0, 8, 9, 13, 14]

    def test_a_healthy_loop_opens_nothing(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=2) as run:
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.randn(5, 3)).square().mean().backward()
                optimizer.step()
        assert told(run.path, "nonfinite") == [] and told(run.path, "end") == [19]

    def test_nan_after_infinity_at_the_same_place_is_news(self):
        alarm = Alarm()
        values = [0, "inf", "inf", 0, "inf", "nan", "nan", 0, "nan"]
        steps = [step for step, value in enumerate(values) if alarm.nonfinite(rows(value))]
        assert steps == [1, 4, 5, 8]

    def test_what_comes_and_goes_is_told_ever_more_seldom_and_is_not_forgotten(self):
        alarm = Alarm()
        steps = [step for step in range(10_000) if alarm.nonfinite(rows("nan" if step % 2 else 0))]
        assert 100 < len(steps) < 500 and steps[:4] == [1, 3, 5, 7]
        assert not any(alarm.nonfinite(rows(0)) for _ in range(5))
        # It lasts, so it is told once the pause is over, and once.
        assert sum(alarm.nonfinite(rows("nan")) is not None for _ in range(200)) == 1


class TestSpikesOfTheLoss:
    """Of the loss that backward passes start from, whether or not the user logs one."""

    def train(self, root, *, log=lambda run, step, loss: None, kinds=("train",), factor=50.0):
        model, optimizer = simple()
        x = torch.randn(64, 3)
        options = {"schedule": set(), "blackbox": 3}
        with backlight.watch(model, optimizer, root=root, **options) as run:
            for step in range(30 * len(kinds)):
                of_kind = step % len(kinds)
                with run.step(kind=kinds[of_kind]) if len(kinds) > 1 else nullcontext():
                    loss = model(x).square().mean() + of_kind * 1000
                    if step == 25 * len(kinds):
                        loss = loss * factor
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
                    optimizer.step()
                    log(run, step, loss.item())
        return run

    def spikes(self, run) -> list[tuple[int, str]]:
        rows = [row for row in read(run.path, "events") if row["kind"] == "spike"]
        return [(row["step"], row["text"].split()[0]) for row in rows]

    def test_a_loss_that_nobody_logs_opens_it(self, root):
        run = self.train(root)
        assert (25, "loss") in self.spikes(run)
        assert opened_by(run.path, "spike") == [23, 24, 25]

    def test_a_steady_loss_does_not(self, root):
        run = self.train(root, factor=1.0)
        assert self.spikes(run) == [] and opened_by(run.path, "spike") == []

    @pytest.mark.parametrize("every", [1, 7])
    def test_one_that_is_logged_too_is_told_once(self, root, every):
        def log(run, step, loss):
            if step % every == 0 or step == 25:
                run.log(loss=loss)

        assert self.spikes(self.train(root, log=log)).count((25, "loss")) == 1

    def test_what_is_logged_may_spike_where_the_loss_does_not(self, root):
        def log(run, step, loss):
            run.log(loss=9.0 if step == 20 else 1.0)

        spikes = self.spikes(self.train(root, log=log))
        assert (20, "loss") in spikes and (25, "loss") in spikes

    def test_steps_are_compared_with_those_of_their_kind(self, root):
        run = self.train(root, kinds=("short", "long"))
        assert [step for step, what in self.spikes(run) if what == "loss"] == [50]


class TestWhatSeldomChanges:
    """Frozen weights and constant buffers are read again only when they change."""

    CONSTANTS = frozenset({"0.weight", "0.bias", "constant"})

    def frozen(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = simple()
        model[0].requires_grad_(False)
        model.register_buffer("constant", torch.ones(3))
        return model, torch.optim.SGD(model[2].parameters(), lr=0.01)

    def found(self, path: Path) -> dict[int, set[str]]:
        """Those of them that are written, by step."""
        rows = [row for row in observations(path) if row["name"] in self.CONSTANTS]
        steps = {row["step"] for row in rows}
        return {step: {row["name"] for row in rows if row["step"] == step} for step in steps}

    def test_they_are_in_the_first_step_that_is_kept(self, root):
        model, optimizer = self.frozen()
        with backlight.watch(model, optimizer, root=root, schedule=set()) as run:
            for number in range(6):
                with run.step(decide=True) as step:
                    model(torch.randn(5, 3)).square().mean().backward()
                    optimizer.step()
                    if number >= 3:
                        step.keep()
        assert self.found(run.path) == {3: self.CONSTANTS}

    def test_they_are_in_the_next_step_if_the_first_is_dropped(self, root):
        model, optimizer = self.frozen()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for number in range(3):
                with run.step() as step:
                    model(torch.randn(5, 3)).square().mean().backward()
                    optimizer.step()
                    if number == 0:
                        step.drop()
        assert self.found(run.path) == {1: self.CONSTANTS}

    @pytest.mark.parametrize("length", [1, 2, 3, 5])
    @pytest.mark.parametrize("opened", [4, 5, 6, 7, 8])
    def test_whenever_the_black_box_opens_one_of_its_steps_has_them(self, opened, length, root):
        model, optimizer = self.frozen()
        run = backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=length)
        for step in range(10):
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
            if step == opened:
                run.open_blackbox("now")
                run.flush()
                assert list(self.found(run.path).values()) == [self.CONSTANTS]
        run.finish()
        assert len(self.found(run.path)) == 1  # written once, as they do not change

    def test_a_step_that_the_schedule_wants_has_them_though_the_black_box_has_them_too(self, root):
        model, optimizer = self.frozen()
        run = backlight.watch(model, optimizer, root=root, schedule={4, 8}, blackbox=3)
        for step in range(9):
            if step == 6:
                model.constant += 1
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
        run.flush()
        assert self.found(run.path) == {4: self.CONSTANTS, 8: {"constant"}}
        run.finish()


def rows(*values: object) -> pa.RecordBatch:
    """The statistics of a step that saw one value at each of several sites."""
    row = {
        "step": 0, "iteration": 0, "quantity": "value", "backward": "", "dtype": "float32",
        "shape": [1], "count": 1, "zeros": 0, "sketch_keys": [], "sketch_counts": [],
    }  # fmt: skip
    return pa.RecordBatch.from_pylist(
        [
            {**row, "order": n, "site": n, "nans": int(value == "nan"), "infs": int(value == "inf")}
            for n, value in enumerate(values)
        ],
        schema=PLAIN_STATS,
    )


def test_what_is_told_is_the_row_that_is_not_finite(root):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for step in range(3):
            optimizer.zero_grad()
            for part in range(2):
                loss = model(torch.randn(4, 3)).square().mean()
                (loss * (float("inf") if (step, part) == (1, 1) else 1.0)).backward()
            optimizer.step()
    (told,) = (row for row in backlight.open(run.path).events() if row["kind"] == "nonfinite")
    assert told["text"].startswith("0 NaN and 1 infinite of 1 elements")
