"""Steps, kinds, iterations, named tensors; when a step is recorded, and deciding it afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from math import nan

import models
import numpy as np
import pytest
import torch
from reading import find, observations, read
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import _global_optimizer_pre_hooks

import backlight
from backlight import recorder
from backlight.capture.optimizer import MOST_UPDATES
from backlight.samples import balanced, highest_loss
from backlight.schedule import Budget, Chosen, Every, PerKind
from backlight.store.runs import read_info
from backlight.store.values import read_values, values_path
from backlight.store.writer import RunWriter


def simple(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_once(model, optimizer, x=None):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 3) if x is None else x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


class TestSaidSteps:
    def test_a_step_is_what_is_inside_and_has_its_kind(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for length in (1, 3):
                with run.step(kind=f"{length:02}_iterations", batch_size=5) as step:
                    for _ in range(length):
                        with run.iteration():
                            model(torch.randn(5, 3))
                    train_once(model, optimizer)
                    run.log(length=length)
                assert step.number == run.current_step
        rows = read(run.path, "steps")
        assert [(r["kind"], r["iterations"], r["batch_size"]) for r in rows] == [
            ("01_iterations", 1, 5),
            ("03_iterations", 3, 5),
        ]
        assert [(r["step"], r["value"]) for r in read(run.path, "scalars")] == [(0, 1), (1, 3)]

    def test_an_evaluation_is_a_step_of_its_own_kind(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            train_once(model, optimizer)
            model.eval()
            with run.step(kind="evaluation"), torch.inference_mode():
                model(torch.ones(64, 3))
            model.train()
            train_once(model, optimizer)
        rows = read(run.path, "steps")
        assert [row["kind"] for row in rows] == ["train", "evaluation", "train"]
        seen = find(run.path, "0:out.0", step=1)
        assert [row["shape"] for row in seen] == [[64, 4]]
        assert find(run.path, "0:out.0", "grad", step=1) == []

    def test_several_updates_in_one_said_step(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run, run.step():
            for _ in range(3):
                train_once(model, optimizer)
        assert len(read(run.path, "steps")) == 1
        assert len(find(run.path, "0.weight", "update")) == 3

    def test_a_step_inside_a_step_is_told_and_is_part_of_the_outer(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            told = pytest.warns(backlight.BacklightWarning, match="inside")
            with run.step(kind="outer"), told, run.step(kind="inner"):
                train_once(model, optimizer)
            train_once(model, optimizer)
        assert [row["kind"] for row in read(run.path, "steps")] == ["outer", "train"]

    def test_an_exception_inside_a_step_passes_and_state_stays_sound(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            with pytest.raises(KeyError), run.step():
                model(torch.ones(1, 3))
                raise KeyError("mine")
            train_once(model, optimizer)
        assert [row["step"] for row in read(run.path, "steps")] == [0, 1]

    def test_what_was_recorded_is_decided_at_the_end(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set()) as run:
            for number in range(4):
                with run.step(decide=True) as step:
                    loss = train_once(model, optimizer)
                    if number in (1, 2):
                        step.keep(f"loss {loss.item():.1f}")
        with backlight.watch(*simple(), root=root, every=1) as dropped, dropped.step() as step:
            step.drop()
        rows = read(run.path, "steps")
        assert [row["step"] for row in rows if row["recorded"]] == [1, 2]
        assert rows[1]["reason"].startswith("loss")
        assert {row["step"] for row in read(run.path, "stats")} == {1, 2}
        assert read(dropped.path, "stats") == []


class TestOptimizersThatComeAndGo:
    def test_one_that_stays_idle_is_not_waited_for_until_it_steps_again(self, root):
        generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
        both = {"generator": generator, "critic": critic}
        of_generator, of_critic = (torch.optim.SGD(m.parameters(), lr=0.1) for m in both.values())
        with backlight.watch(both, [of_generator, of_critic], root=root, every=10) as run:
            for _ in range(MOST_UPDATES + 20):
                train_once(critic, of_critic)
            assert run.current_step == 20
            train_once(generator, of_generator, torch.ones(5, 2))
            train_once(critic, of_critic)
            assert run.current_step == 21
        updates = find(run.path, "critic.weight", "update")
        assert len(updates) == MOST_UPDATES + 2
        assert [row["step"] for row in updates][-2:] == [10, 20]
        [event] = read(run.path, "events")
        assert event["kind"] == "optimizer" and "SGD" in event["text"]

    @pytest.mark.parametrize("every", [1, 4])
    def test_one_that_is_replaced_midway_is_followed(self, root, every):
        model, optimizer = simple()
        before = len(_global_optimizer_pre_hooks)
        with backlight.watch(model, optimizer, root=root, every=every) as run:
            for _ in range(4):
                train_once(model, optimizer)
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(4):
                train_once(model, optimizer)
            assert run.current_step == 7
        assert [row["step"] for row in find(run.path, "0.weight:exp_avg")] == [
            step for step in range(4, 8) if step % every == 0
        ]
        assert [e["text"] for e in read(run.path, "events")] == [
            "Adam steps in place of SGD, which is gone"
        ]
        assert len(_global_optimizer_pre_hooks) == before

    def test_those_of_two_runs_are_replaced_midway(self, root):
        pairs = [simple(), simple()]
        before = len(_global_optimizer_pre_hooks)
        runs = [backlight.watch(*pair, root=root / str(i), every=1) for i, pair in enumerate(pairs)]
        for _ in range(2):
            for model, optimizer in pairs:
                train_once(model, optimizer)
        pairs = [(model, torch.optim.Adam(model.parameters())) for model, _ in pairs]
        del optimizer
        for model, _ in pairs:
            model(torch.ones(5, 3))  # so that both look for another one
        for _ in range(2):
            for model, optimizer in pairs:
                train_once(model, optimizer)
        for run in runs:
            run.finish()
            assert len(find(run.path, "0.weight:exp_avg")) == 2
        assert len(_global_optimizer_pre_hooks) == before

    def test_a_step_that_nothing_ends_does_not_grow_and_is_told(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        monkeypatch.setattr(recorder, "_MOST_PASSES", 20)
        model, optimizer = simple()
        another = torch.optim.Adam(model.parameters())
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            with pytest.warns(backlight.errors.BacklightWarning, match="20 backward passes .* SGD"):
                for _ in range(50):
                    train_once(model, another)
            train_once(model, optimizer)
            train_once(model, optimizer)
        assert {row["iteration"] for row in find(run.path, "0:out.0", step=0)} == set(range(20))
        assert len(find(run.path, "0.weight", "update")) == 2
        assert len(find(run.path, "0:out.0", step=1)) == 1


class TestNamedTensors:
    def test_values_gradients_roles_and_kinds(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            x = run.tensor("x", torch.randn(5, 3), kind="input")
            assert not x.requires_grad
            run.tensor("memory", torch.zeros(5, 2), kind="hidden", is_initial=True)
            for number in range(2):
                with run.iteration():
                    out = model(x)
                    run.tensor("out", out)
                    run.tensor("sums/a", out.sum(0), node="sums", role="a", kind="helper")
                    run.tensor("labels", torch.arange(5), kind="target")
                    run.tensor("memory", torch.full((5, 2), float(number)))
            loss = run.tensor("loss", out.square().mean(), kind="loss")
            loss.backward()
            optimizer.step()
        sites = {site["name"]: site for site in read(run.path, "sites")}
        assert (sites["sums/a"]["node"], sites["sums/a"]["role"]) == ("sums", "a")
        assert {name: sites[name]["kind"] for name in ("x", "labels", "loss")} == {
            "x": "input",
            "labels": "target",
            "loss": "loss",
        }
        assert [row["iteration"] for row in find(run.path, "memory")] == [-1, 0, 1]
        assert find(run.path, "loss", "grad")[0]["mean"] == 1.0
        assert find(run.path, "out", "grad")[0]["count"] == 5
        assert find(run.path, "labels")[0]["dtype"] == "int64"

    @pytest.mark.parametrize("every", [1, 3])
    @pytest.mark.parametrize("disabled", [torch.no_grad, torch.inference_mode])
    def test_what_is_named_without_gradients_before_a_step_is_of_that_step(
        self, root, every, disabled
    ):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=every) as run:
            for number in range(13):
                with disabled():
                    memory = run.tensor("memory", torch.full((5, 2), number), is_initial=True)
                    target = run.tensor("target", torch.full((5, 1), float(number)), kind="target")
                    changed = run.tensor("changed", torch.ones(3))
                    changed += 1
                    run.tensor("gone", torch.ones(3))
                assert run.current_step == number - 1
                train_once(model, optimizer)
                assert memory.sum() >= target.sum()
        recorded = list(range(0, 13, every))
        for name, iteration in {"memory": -1, "target": 0}.items():
            rows = find(run.path, name)
            assert [(row["step"], row["mean"]) for row in rows] == [(n, n) for n in recorded]
            assert {row["iteration"] for row in rows} == {iteration}
        names = {site["name"] for site in read(run.path, "sites")}
        assert not names & {"changed", "gone"}

    def test_what_an_evaluation_names_is_of_no_step(self, root):
        model, optimizer = simple()
        x, state = torch.randn(5, 3), torch.zeros(2)

        def evaluate() -> None:
            for _ in range(2):
                run.tensor("x", x)
                run.tensor("state", state, is_initial=True)
                run.tensor("out", model(x))

        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for number in range(12):
                with torch.no_grad():
                    outs = evaluate()
                    if number > 3:
                        run.tensor("own state", state, is_initial=True)
                    if number == 5:
                        run.tensor("before", state)
                if number == 6:
                    with run.step(kind="said"):
                        model(x)
                if number == 7:
                    with run.step(kind="said") as step:
                        step.drop()
                train_once(model, optimizer)
                assert outs is None
        assert not any(find(run.path, name) for name in ("x", "state", "out", "before"))
        rows = find(run.path, "own state")
        assert [row["step"] for row in rows] == [4, 5, 10, 11, 12, 13]

    def test_tap_names_a_tensor_inside_a_forward(self, root):
        class Tapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 3)

            def forward(self, x):
                return backlight.tap(self.layer(x) * 2, "doubled").sum()

        model = nn.Sequential(Tapped())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 3))  # without a run it does nothing
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            model(torch.ones(4, 3)).backward()
            optimizer.step()
        row = find(run.path, "0:doubled", "grad")[0]
        assert (row["module"], row["mean"], row["count"]) == ("0", 1.0, 12)

    def test_tap_tells_the_whole_model_from_what_is_outside(self, root):
        class Tapped(nn.Linear):
            def forward(self, x):
                return backlight.tap(super().forward(x), "inside")

        model = Tapped(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1):
            backlight.tap(model(torch.ones(4, 3)), "outside").sum().backward()
            optimizer.step()
        (path,) = root.glob("*/*")
        nodes = {site["name"]: site["node"] for site in read(path, "sites")}
        assert (nodes["inside"], nodes["outside"]) == ("(model)", "outside")

    def test_tap_tells_calls_of_a_module_apart(self, root):
        class Tapped(nn.Module):
            def forward(self, x):
                return backlight.tap(x * 2, "doubled")

        layer, twice = nn.Linear(3, 3), Tapped()
        model = nn.Sequential(layer, twice, twice)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            hidden = layer(torch.ones(1, 3)).abs().max().item()
            train_once(model, optimizer, torch.ones(1, 3))
        with backlight.watch(model, optimizer, resume=run.path, every=1):
            train_once(model, optimizer, torch.ones(1, 3))
        for name, factor in {"1:doubled": 2, "1#2:doubled": 4}.items():
            rows = find(run.path, name)
            assert [row["step"] for row in rows] == [0, 1]
            assert rows[0]["abs_max"] == pytest.approx(factor * hidden)
            assert len(find(run.path, name, "grad")) == 2
        assert len({site["name"] for site in read(run.path, "sites")}) == len(
            read(run.path, "sites")
        )

    @pytest.mark.parametrize(
        ("arguments", "saying"),
        [
            (("a", 3.0), "pass a torch.Tensor"),
            (("", torch.ones(1)), "as name"),
            (("a", torch.ones(1), {"kind": "odd"}), "kind"),
        ],
    )
    def test_bad_input_is_one_sentence(self, root, arguments, saying):
        *positional, options = arguments if len(arguments) == 3 else (*arguments, {})
        with backlight.watch(*simple(), root=root, every=1) as run:
            with pytest.raises(backlight.BacklightError, match=saying) as caught:
                run.tensor(*positional, **options)
            assert "\n" not in str(caught.value)

    def test_two_tensors_of_one_name_are_told(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            run.tensor("a", torch.ones(1))
            with pytest.raises(backlight.BacklightError, match="Two tensors"):
                run.tensor("a", torch.ones(2))
            train_once(model, optimizer)
        assert len(find(run.path, "a")) == 1

    def test_after_finish_it_is_told(self, root):
        run = backlight.watch(*simple(), root=root)
        run.finish()
        for call in (lambda: run.tensor("a", torch.ones(1)), lambda: run.log(loss=1)):
            with pytest.raises(backlight.BacklightError, match="the run has ended"):
                call()


@pytest.mark.parametrize("every", [1, 1000])
def test_a_run_that_is_finished_before_a_forward_pass_sees_nothing_of_it(root, every):
    model, optimizer = simple()

    def finish(module, args):
        if module is model and run.current_step == 7:
            run.finish()

    handle = register_module_forward_pre_hook(finish)  # which is called before Backlight's
    run = backlight.watch(model, optimizer, root=root, every=every)
    for _ in range(10):
        train_once(model, optimizer)
    handle.remove()
    assert run.current_step == 7
    assert [row["step"] for row in read(run.path, "steps")] == list(range(8))
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_hook_of_an_optimizer_may_finish_the_run(root, every, is_before):
    model, optimizer = simple()
    calls = []

    def finish(*_):
        calls.append(run.current_step)
        if len(calls) == 21:
            run.finish()

    if is_before:
        optimizer.register_step_pre_hook(finish)  # Backlight's come behind
        run = backlight.watch(model, optimizer, root=root, every=every)
    else:
        run = backlight.watch(model, optimizer, root=root, every=every)
        optimizer.register_step_post_hook(finish)
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.register_step_post_hook(lambda *_: None)
    for _ in range(25):
        train_once(model, optimizer)
    assert len(calls) == 25
    assert json.loads((run.path / "run.json").read_text())["ended"] == "finished"


class TestSelection:
    @pytest.mark.parametrize(
        ("options", "has", "has_not"),
        [
            ({"include": r"^0"}, "0:out.0", "2.weight"),
            ({"exclude": [r":out", r"^2"]}, "0.weight", "0:out.0"),
            ({"classes": {"parameter"}}, "0.weight", "0:out.0"),
            ({"include": lambda site: site.module_class == "Tanh"}, "1:out.0", "0:out.0"),
        ],
    )
    def test_by_name_class_and_predicate(self, root, options, has, has_not):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, **options) as run:
            train_once(model, optimizer)
        names = {site["name"] for site in read(run.path, "sites")}
        assert has in names and has_not not in names
        assert {row["name"] for row in observations(run.path)} == names

    @pytest.mark.parametrize(
        ("options", "saying"),
        [
            ({"include": "("}, "regular expression"),
            ({"classes": {"weights"}}, "classes has"),
            ({"classes": "output"}, "classes has"),
            ({"every": 1, "budget": 0.1}, "only one"),
            ({"budget": 2.0}, "budget"),
            ({"schedule": "often"}, "schedule is"),
            ({"blackbox": -1}, "blackbox"),
            ({"resume": "nowhere"}, "is no run"),
        ],
    )
    def test_bad_options_are_one_sentence(self, root, options, saying):
        with pytest.raises(backlight.BacklightError, match=saying) as caught:
            backlight.watch(*simple(), root=root, **options)
        assert "\n" not in str(caught.value)
        assert list(root.iterdir()) == []

    def test_a_model_is_watched_once_at_a_time(self, root):
        model, optimizer = simple()
        told = pytest.raises(backlight.BacklightError, match="watched already")
        with backlight.watch(model, optimizer, root=root), told:
            backlight.watch(model, optimizer, root=root)
        backlight.watch(model, optimizer, root=root).finish()


class TestSchedules:
    def recorded(self, root, steps=12, **options):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, **options) as run:
            for _ in range(steps):
                train_once(model, optimizer)
        rows = read(run.path, "steps")
        assert [row["step"] for row in rows] == list(range(steps))
        recorded = [row["step"] for row in rows if row["recorded"]]
        assert sorted({row["step"] for row in read(run.path, "stats")}) == recorded
        return recorded

    def test_the_options(self, root):
        assert self.recorded(root, every=5) == [0, 5, 10]
        assert self.recorded(root, schedule={2, 3}) == [2, 3]
        assert self.recorded(root, schedule=lambda step: step > 9) == [10, 11]
        assert self.recorded(root, schedule=lambda step, kind: kind == "other") == []
        assert self.recorded(root, schedule=PerKind(gap=2, backoff=2.0)) == [0, 2, 6]
        assert self.recorded(root, steps=6) == list(range(6))

    @pytest.mark.parametrize("is_said", [True, False])
    def test_gaps_are_between_steps_of_a_kind_however_steps_are_told(self, root, is_said):
        model, optimizer = simple()
        schedule = PerKind(gap=2, backoff=2.0)
        with backlight.watch(model, optimizer, root=root, schedule=schedule) as run:
            for _ in range(20):
                with run.step() if is_said else nullcontext():
                    train_once(model, optimizer)
                with run.step("evaluation"), torch.no_grad():
                    model(torch.ones(2, 3))
        rows = [row for row in read(run.path, "steps") if row["recorded"]]
        places = [0, 2, 6, 14, 30]
        assert [row["step"] for row in rows if row["kind"] == "train"] == places
        assert [row["step"] - 1 for row in rows if row["kind"] == "evaluation"] == places

    def test_a_step_of_another_kind_takes_no_turn_of_a_kind(self):
        schedule = PerKind(gap=4)
        assert schedule.wants(0, "train") and not schedule.wants(1, "train")
        for step in (4, 5):  # asked for as training, and then it is an evaluation
            assert schedule.wants(step, "train")
            schedule.wants(step, "evaluation")
        assert schedule.wants(6, "train")
        assert not schedule.wants(7, "train")

    def test_a_function_is_asked_once_for_each_step_of_training(self, root):
        model, optimizer = simple()
        asked = []
        with backlight.watch(model, optimizer, root=root, schedule=asked.append) as run:
            for _ in range(3):
                with run.step():
                    train_once(model, optimizer)
        assert asked == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("gap", "backoff"), [("2", 1.0), (None, 1.0), (0, 1.0), (1, 0.5), (1, nan)]
    )
    def test_gaps_that_cannot_be_are_refused(self, gap, backoff):
        with pytest.raises(backlight.BacklightError, match="at least 1"):
            PerKind(gap=gap, backoff=backoff)

    def test_each_kind_is_counted_on_its_own(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=2) as run:
            for number in range(9):
                train_once(model, optimizer)
                with run.step("evaluation"), torch.no_grad():
                    model(torch.ones(2, 3))
                if number == 6:
                    with run.step("rare"):
                        train_once(model, optimizer)
        kinds = [row["kind"] for row in read(run.path, "steps") if row["recorded"]]
        assert kinds == [
            *3 * ["train", "evaluation"],
            "train",
            "evaluation",
            "rare",
            "train",
            "evaluation",
        ]
        for kind in ("train", "evaluation"):
            rows = [row["recorded"] for row in read(run.path, "steps") if row["kind"] == kind]
            assert rows == [True, False] * 4 + [True]

    def test_a_run_that_goes_on_counts_on(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=5) as run:
            for _ in range(7):
                train_once(model, optimizer)
        with backlight.watch(model, optimizer, resume=run.path, every=5):
            for _ in range(7):
                train_once(model, optimizer)
        rows = read(run.path, "steps")
        assert [row["step"] for row in rows if row["recorded"]] == [0, 5, 10]

    def test_nonsense_of_a_schedule_is_told_and_training_goes_on(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        with pytest.warns(backlight.BacklightWarning, match="return True or False") as told:
            assert self.recorded(root, schedule=lambda step: f"maybe {step}") == []
        assert len(told) == 1

        def broken(step):
            raise ZeroDivisionError

        with pytest.warns(backlight.BacklightWarning, match="The schedule failed"):
            assert self.recorded(root, schedule=broken) == []

    @pytest.mark.parametrize("answer", [5, True, [1], 0.5, object(), "\ud800", "why", None])
    def test_what_is_no_reason_is_told_and_the_steps_are_written(self, root, answer, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")

        class Odd:
            def wants(self, step, kind):
                return answer

            def learn(self, *args): ...

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            recorded = self.recorded(root, schedule=Odd())
        assert recorded == (list(range(12)) if isinstance(answer, str) else [])
        is_fine = answer is None or isinstance(answer, str)
        assert ["return why it is" in str(each.message) for each in told] == [True] * (not is_fine)

    @pytest.mark.parametrize("wanted", [None, "why"])
    def test_a_schedule_that_cannot_learn_is_told_and_the_steps_are_written(
        self, root, wanted, monkeypatch
    ):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")

        class Broken:
            def wants(self, step, kind):
                return wanted

            def learn(self, *args):
                raise ValueError("much")

        with pytest.warns(backlight.BacklightWarning, match=r"learn\(\) failed .*much") as told:
            assert self.recorded(root, schedule=Broken()) == (list(range(12)) if wanted else [])
        assert len(told) == 1

    def test_a_truth_of_numpys_is_one(self, root):
        assert self.recorded(root, schedule=lambda step: np.arange(13)[step] > 9) == [10, 11]

    def test_a_budget_is_kept_and_no_rare_kind_starves(self):
        schedule = Budget(0.03)
        recorded = {"common": 0, "rare": 0}
        for step in range(20_000):
            kind = "rare" if step % 500 == 499 else "common"
            is_recorded = schedule.wants(step, kind) is not None
            recorded[kind] += is_recorded
            schedule.learn(kind, 1.2 if is_recorded else 1.0, 0.2 if is_recorded else 0.0)
        assert schedule.share < 0.031
        assert recorded["common"] > 2000
        assert recorded["rare"] >= Budget.dense_steps + 1

    def test_a_budget_is_dense_at_the_start(self):
        schedule = Budget(0.001)
        wanted = []
        for step in range(50):
            reason = schedule.wants(step, "train")
            wanted.append(reason is not None)
            schedule.learn("train", 2.0, 1.0 if reason else 0.0)
        assert all(wanted[: Budget.dense_steps])
        assert sum(wanted) == Budget.dense_steps + 2  # and its 16th and 32nd

    @pytest.mark.parametrize("schedule", [Every(2), Chosen({1}), Budget(0.1), PerKind()])
    def test_every_schedule_is_one(self, schedule):
        assert isinstance(schedule, backlight.schedule.Schedule)


class TestBlackBox:
    def test_a_nonfinite_value_opens_it(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=3) as run:
            for step in range(10):
                x = torch.randn(5, 3)
                if step == 6:
                    x[0, 0] = torch.inf
                train_once(model, optimizer, x)
                if step == 7:
                    early = [row["step"] for row in read(run.path, "stats")]
        assert sorted(set(early)) == [4, 5, 6]
        (event,) = (row for row in read(run.path, "events") if row["kind"] == "nonfinite")
        names = {site["site"]: site["name"] for site in read(run.path, "sites")}
        assert (event["step"], names[event["site"]]) == (6, "(model):in.0")
        reasons = {r["step"]: r["reason"] for r in read(run.path, "steps") if r["recorded"]}
        assert reasons[5] == "black box: nonfinite"
        assert {7, 8, 9} <= reasons.keys()  # the last ones before the end

    def test_a_spike_of_the_loss_opens_it(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set(), blackbox=2) as run:
            for step in range(30):
                train_once(model, optimizer)
                run.log(loss=50.0 if step == 25 else 1.0 + 0.01 * (step % 5))
        kinds = {row["kind"]: row["step"] for row in read(run.path, "events")}
        assert kinds["spike"] == 25
        assert {24, 25} <= {row["step"] for row in read(run.path, "stats")}

    def test_an_exception_and_the_user_open_it(self, root):
        model, optimizer = simple()
        with (
            pytest.raises(RuntimeError),
            backlight.watch(
                model, optimizer, root=root, schedule=set(), blackbox=2, project="p", name="n"
            ) as run,
        ):
            for step in range(9):
                train_once(model, optimizer)
                if step == 3:
                    run.open_blackbox("I want to see this")
            raise RuntimeError("mine")
        recorded = [row["step"] for row in read(run.path, "steps") if row["recorded"]]
        assert recorded == [2, 3, 7, 8]
        assert [row["kind"] for row in read(run.path, "events")] == ["condition", "exception"]

    def test_its_memory_is_bounded_and_what_it_lets_go_is_known(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=4, blackbox=2) as run:
            for _ in range(12):
                train_once(model, optimizer)
        rows = read(run.path, "steps")
        assert sorted(row["step"] for row in rows) == list(range(12))
        assert [r["step"] for r in rows if r["reason"] == "every 4"] == [0, 4, 8]


class TestRawValues:
    def train(self, root, **options):
        model, optimizer = simple()
        kept = []
        with backlight.watch(model, optimizer, root=root, every=2, **options) as run:
            for step in range(4):
                x = torch.randn(5, 3)
                run.batch(indices=torch.arange(5) + 100 * step)
                out = model(x)
                run.tensor("x", x, kind="input")
                losses = out.square().mean(1)
                run.batch(losses=losses, categories=["a", "a", "a", "a", "b"])
                optimizer.zero_grad()
                losses.mean().backward()
                optimizer.step()
                kept.append((x, losses.detach()))
        return run, kept

    def entries(self, run, step):
        names = {site["site"]: site["name"] for site in read(run.path, "sites")}
        entries = read_values(values_path(run.path, 0, step))
        return {(names[entry.site], entry.quantity): entry for entry in entries}

    def test_the_first_samples_of_recorded_steps_are_on_disk(self, root):
        run, kept = self.train(root, samples=2)
        files = sorted(path.name for path in (run.path / "values").iterdir())
        assert len(files) == 2
        entry = self.entries(run, 2)["x", "value"]
        assert entry.array.tolist() == kept[2][0][:2].tolist()
        assert list(entry.data_indices) == [200, 201]
        assert ("2:out.0", "grad") in self.entries(run, 2)

    def test_samples_can_be_chosen_by_their_loss(self, root):
        run, kept = self.train(root, samples=highest_loss(1))
        worst = int(kept[0][1].argmax())
        entry = self.entries(run, 0)["x", "value"]
        assert list(entry.samples) == [worst]
        rows = [r for r in read(run.path, "samples") if r["step"] == 0]
        assert {row["sample"] for row in rows} == {worst}
        by_hand = kept[0][0][worst].abs().mean().item()
        assert any(row["abs_mean"] == pytest.approx(by_hand) for row in rows)

    @pytest.mark.parametrize(
        ("most_bytes", "expected"),
        [
            (1 << 20, []),
            (4000, ["step"]),
            ((1 << 20, 12_000), ["run"]),
            ((4000, 5000), ["step", "run"]),
        ],
    )
    def test_an_event_says_once_that_a_budget_of_bytes_does_not_suffice(
        self, root, most_bytes, expected
    ):
        run, _ = self.train(root, samples=2, value_bytes=most_bytes)
        told = [row for row in read(run.path, "events") if row["kind"] == "values"]
        assert [row["text"].split(" may have")[0].split()[-1] for row in told] == expected
        assert [row["step"] for row in told] == [0, 2][: len(told)] or expected == ["run"]
        left_out = sum(backlight.open(run.path).info.recorder["values_left_out"].values())
        assert (left_out > 0) == bool(expected)

    def test_samples_can_be_balanced_over_categories(self, root):
        run, _ = self.train(root, samples=balanced(2))
        assert sorted(self.entries(run, 0)["x", "value"].samples) == [0, 4]

    @pytest.mark.parametrize("told", ["before", "after", "late", "in iterations", "between them"])
    def test_micro_batches_tell_of_their_own_samples(self, root, told):
        model, optimizer = simple()
        expected = []
        with backlight.watch(model, optimizer, root=root, every=1, samples=highest_loss(1)) as run:
            for number in range(2):
                indices = range(100 * number, 100 * number + 4)
                if told in ("before", "between them"):
                    run.batch(indices=indices)
                with run.iteration() if "iter" in told or "them" in told else nullcontext():
                    if told == "in iterations":
                        run.batch(indices=indices)
                    x = torch.randn(4, 3)
                    losses = model(x).square().mean(1)
                    if told == "after":
                        run.batch(indices=indices)
                    if told != "late":
                        run.batch(losses=losses)
                    losses.mean().backward()
                    if told == "late":
                        run.batch(indices=indices, losses=losses)
                worst = int(losses.argmax())
                expected.append((number, (worst,), (indices[worst],)))
            optimizer.step()
        found = [
            (entry.iteration, entry.samples, entry.data_indices)
            for name, _, entry in backlight.open(run.path).values("2:out", quantity="value")
        ]
        assert found == expected

    def test_what_is_told_of_a_micro_batch_is_of_no_other(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=1) as run:
            for number in range(2):
                if number == 0:
                    run.batch(indices=range(7, 11))
                model(torch.randn(4, 3)).mean().backward()
            optimizer.step()
        found = backlight.open(run.path).values("2:out", quantity="value")
        assert [entry.data_indices for _, _, entry in found] == [(7,), (None,)]

    def test_what_is_told_outside_of_iterations_is_of_all(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=1) as run:
            for _ in range(3):
                with run.iteration():
                    out = model(torch.randn(4, 3))
            out.mean().backward()
            run.batch(indices=range(7, 11))
            optimizer.step()
        found = backlight.open(run.path).values("2:out", quantity="value")
        assert [entry.data_indices for _, _, entry in found] == [(7,)] * 3

    @pytest.mark.parametrize("batch_dim", [0, 1, -2])
    def test_values_and_gradients_follow_the_dimension_of_samples(self, root, batch_dim):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=[3, 1]) as run:
            h = model(torch.randn(7, 5, 3))
            h.retain_grad()
            run.tensor("h", h, batch_dim=batch_dim)
            (h * torch.randn(7, 5, 1)).sum().backward()
            optimizer.step()
        by_hand = {"value": h.detach(), "grad": h.grad}
        chosen = {key: x.movedim(batch_dim, 0)[[3, 1]] for key, x in by_hand.items()}
        opened = backlight.open(run.path)
        values = {entry.quantity: entry for _, _, entry in opened.values("^h$")}
        assert values.keys() == chosen.keys()
        for quantity, entry in values.items():
            assert entry.batch_dim == batch_dim % 3
            assert entry.array.tolist() == chosen[quantity].flatten(1).tolist()
        rows = list(opened.samples("^h$"))
        assert len(rows) == 4
        for row in rows:
            sample = by_hand[row["quantity"]].movedim(batch_dim, 0)[row["sample"]]
            assert row["abs_max"] == pytest.approx(sample.abs().max().item())
        (row,) = find(run.path, "h")
        spread = h.detach().std(batch_dim, correction=0).mean().item()
        assert row["batch_std"] == pytest.approx(spread, rel=1e-5)
        assert row["shape"] == [7, 5, 1]

    def test_a_tensor_without_samples_has_no_units(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=[1]) as run:
            for _ in range(2):  # the first step is followed, the second one is not
                weights = model[0].weight * 2
                run.tensor("none", weights, batch_dim=None)
                run.tensor("some", weights)
                (model(torch.randn(2, 3)).sum() + weights.sum()).backward()
                optimizer.step()
        for row in find(run.path, "none"):
            assert (row["units"], row["batch_std"]) == (None, None)
        assert [row["units"] for row in find(run.path, "some")] == [3, 3]
        entries = backlight.open(run.path).values("^none$")
        assert {(e.quantity, e.batch_dim, e.array.size) for _, _, e in entries} == {
            ("value", None, 12),
            ("grad", None, 12),
        }

    def test_bad_input_is_one_sentence(self, root):
        with pytest.raises(backlight.BacklightError, match="samples"):
            backlight.watch(*simple(), root=root, samples="all")
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=1) as run:
            model(torch.randn(5, 3))
            with pytest.raises(backlight.BacklightError):
                run.batch(losses=["high"])
            with pytest.raises(backlight.BacklightError, match="batch_dim"):
                run.tensor("x", torch.ones(2), batch_dim=3)


_KILLED = """
import os, sys, torch, backlight
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = backlight.watch(
    model, optimizer, root=sys.argv[1], project="p", name="n", every=100, blackbox=50
)
for number in range(20):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    run.log(number=number)
    run.flush()
os._exit(3)
"""


class TestResume:
    def test_a_number_that_was_logged_under_is_not_given_to_another_step(self, root):
        killed = subprocess.run([sys.executable, "-c", _KILLED, str(root)], check=False)
        assert killed.returncode == 3
        model, optimizer = simple()
        with backlight.watch(model, optimizer, resume=root / "p" / "n", every=1) as run:
            for number in range(20, 23):
                train_once(model, optimizer)
                run.log(number=number)
        told = [(row["step"], row["value"]) for row in read(run.path, "scalars")]
        assert told == [(number, number) for number in range(23)]
        # The black box had the others, and nobody opened it.
        assert [row["step"] for row in read(run.path, "steps")] == [0, 20, 21, 22]

    def test_a_run_goes_on_where_it_was(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, config={"lr": 0.1}) as run:
            for _ in range(3):
                train_once(model, optimizer)
        created = json.loads((run.path / "run.json").read_text())["created_at"]
        with backlight.watch(model, optimizer, root=root, every=1, resume=run.path) as again:
            train_once(model, optimizer)
            model.append(nn.Tanh())
            train_once(model, optimizer)
        assert again.path == run.path
        assert [row["step"] for row in read(run.path, "steps")] == list(range(5))
        sites = read(run.path, "sites")
        assert len({site["name"] for site in sites}) == len(sites)
        assert [site["site"] for site in sites] == list(range(len(sites)))
        info = json.loads((run.path / "run.json").read_text())
        assert (info["created_at"], info["config"]) == (created, {"lr": 0.1})

    @pytest.mark.parametrize("is_killed", [False, True])
    def test_what_recording_cost_is_that_of_all_parts(self, root, is_killed):
        model, optimizer = simple()
        path = None
        for _ in range(3):
            with backlight.watch(model, optimizer, root=root, every=2, resume=path) as run:
                for _ in range(4):
                    train_once(model, optimizer)
            path = run.path
            info = json.loads((path / "run.json").read_text())
            ended = info["recorder"]
            rows = read(path, "steps")
            assert ended["steps"] == len(rows)
            assert ended["recorded_steps"] == sum(row["recorded"] for row in rows)
            for name in ("recording_secs", "training_secs"):
                column = name.replace("training", "duration")
                total = sum(row[column] for row in rows)
                assert ended[name] == pytest.approx(total, abs=1e-4)
            if not is_killed:
                assert ended["observations"] == len(read(path, "stats"))
            else:
                self.forget_the_end(path)

    def forget_the_end(self, path):
        """As if the process had been killed."""
        info = read_info(path)
        info.ended_at = info.ended = None
        info.recorder, info.pid, info.pid_started = {}, 2**22 + 1, 0.0
        RunWriter(path).write_info(info)

    @pytest.mark.parametrize(("spent_bytes", "is_kept"), [(1 << 20, True), (1 << 30, False)])
    def test_raw_values_of_all_parts_share_a_budget(self, root, spent_bytes, is_kept):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1, samples=2) as run:
            train_once(model, optimizer)
        os.truncate(values_path(run.path, 0, 0), spent_bytes)  # as if the step had kept so much
        with backlight.watch(model, optimizer, resume=run.path, every=1, samples=2) as run:
            train_once(model, optimizer)
        assert values_path(run.path, 0, 1).exists() == is_kept
        assert {row["step"] for row in read(run.path, "samples")} == {0, 1}

    def test_a_run_that_is_written_cannot_be_resumed(self, root):
        told = pytest.raises(backlight.BacklightError, match="still being written")
        with backlight.watch(*simple(), root=root) as run, told:
            backlight.watch(*simple(), root=root, resume=run.path)


def test_the_recorder_says_what_it_cost(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 20)
    account = json.loads((run.path / "run.json").read_text())["recorder"]
    assert account["recorded_steps"] >= Budget.dense_steps
    rows = read(run.path, "steps")
    total = sum(row["recording_secs"] for row in rows)
    assert account["recording_secs"] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("write", ["append", "append_rows", "write_graph"])
def test_an_interrupt_while_a_step_is_written_costs_that_step_at_most(root, monkeypatch, write):
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=1)
    original, interrupts = getattr(RunWriter, write), [KeyboardInterrupt]

    def interrupted(*arguments):
        if interrupts:
            raise interrupts.pop()
        original(*arguments)

    monkeypatch.setattr(RunWriter, write, interrupted)
    with run:
        with pytest.raises(KeyboardInterrupt):
            train_once(model, optimizer)
        for _ in range(3):
            train_once(model, optimizer)
    assert {row["name"] for row in observations(run.path)} > {"0.weight", "(loss)"}  # all known
    sites = [row["site"] for row in read(run.path, "sites")]
    assert len(sites) == len(set(sites))
    assert len(find(run.path, "0.weight", "update")) >= 3


def test_a_forward_that_fails_and_is_tried_again(root):
    class Shaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.fails = nn.Linear(3, 1), True

        def forward(self, x):
            out = self.layer(x)
            if self.fails:
                raise ValueError("mine")
            return out

    model = nn.Sequential(Shaky())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for fails in (True, False, False):
            model[0].fails = fails
            if fails:
                with pytest.raises(ValueError, match="mine"):
                    model(torch.ones(2, 3))
            else:
                train_once(model, optimizer)
    assert [row["step"] for row in read(run.path, "steps")] == [0, 1]
    assert len(find(run.path, "(model):out.0", step=1)) == 1


class TestCalls:
    def test_functional_calls_are_seen_with_their_line_and_the_loss_is_found(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(3):
                out = model(torch.randn(5, 3))
                loss = functional.mse_loss(out, torch.zeros(5, 1))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        calls = read(run.path, "calls")
        (first, *_) = [row for row in calls if row["function"].endswith("mse_loss")]
        assert "test_steps.py" in first["source"]
        assert first["code"] == "loss = functional.mse_loss(out, torch.zeros(5, 1))"
        assert json.loads(first["arguments"])["input"]["shape"] == [5, 1]
        assert any(row["function"].endswith("clip_grad_norm_") for row in calls)
        (row, *_) = find(run.path, "(loss)")
        assert (row["kind"], row["count"]) == ("loss", 1)
        assert find(run.path, "(loss)", "grad")[0]["mean"] == 1.0
        assert torch._C._len_torch_function_stack() == 0


class TestGraph:
    def test_the_graph_of_a_step_is_stored_once_for_each_structure(self, root):
        class Gap(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(3, 4), nn.Embedding(4, 2)

            def forward(self, x):
                return self.second(self.first(x).argmax(1))

        model = Gap()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(3):
                model(torch.randn(5, 3)).sum().backward()
                optimizer.step()
        (file,) = (run.path / "graphs").iterdir()
        graph = json.loads(file.read_text())
        names = {site["site"]: site["name"] for site in read(run.path, "sites")}
        steps = read(run.path, "steps")
        assert steps[0]["graph"] == steps[1]["graph"] == file.stem
        edges = {
            (names[source], names[sink], kind)
            for kind, pairs in graph["edges"].items()
            for source, sink in pairs
        }
        assert ("second.weight", "second:out.0", "autograd") in edges
        assert ("first:out.0", "second:in.0", "data") in edges


class Branching(nn.Module):
    """Goes another way when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rarely = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, is_rare: bool) -> torch.Tensor:
        hidden = self.always(x)
        return self.rarely(hidden) if is_rare else hidden


def test_a_step_whose_structure_was_not_followed_is_given_no_other_graph(root):
    model = Branching()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for step in range(12):  # the sixth turns out to be new when it has ended
            optimizer.zero_grad()
            model(torch.randn(2, 3), is_rare=step in (5, 9)).sum().backward()
            optimizer.step()
    opened = backlight.open(run.path)
    with pytest.raises(backlight.BacklightError, match=r"Step 5 .* was new and not followed"):
        opened.graph(5)
    assert [call[0] for call in opened.graph(9)["calls"]] == ["", "always", "rarely"]
    assert [call[0] for call in opened.graph(4)["calls"]] == ["", "always"]
    assert opened.graph() == opened.graph(11)


class TestSeveralUpdatesInOneStep:
    """Each is of the iteration that it was made in, whoever reads the parameters."""

    def updates(self, root, loop, **options):
        model, optimizer = simple()
        rows = []
        with backlight.watch(model, optimizer, root=root, every=1, **options) as run:
            for _ in range(3):  # the first ones are followed, the last one is not
                with run.step():
                    rows.append(list(loop(run, model, optimizer)))
        for step, expected in enumerate(rows):
            for quantity in ("value", "grad", "update"):
                found = find(run.path, "0.weight", quantity, step=step)
                assert [row["iteration"] for row in found] == [at for at, _ in expected], quantity
            found = find(run.path, "0.weight", "update", step=step)
            for row, (_, change) in zip(found, expected, strict=True):
                assert row["abs_max"] == pytest.approx(change.abs().max().item(), rel=1e-5)

    def update(self, model, optimizer):
        before = model[0].weight.detach().clone()
        train_once(model, optimizer)
        return model[0].weight.detach() - before

    @pytest.mark.parametrize("options", [{}, {"samples": 2}])
    def test_in_iterations_that_are_said(self, root, options):
        def loop(run, model, optimizer):
            for _ in range(3):
                with run.iteration() as number:
                    yield number, self.update(model, optimizer)

        self.updates(root, loop, **options)

    def test_in_an_inner_loop(self, root):
        def loop(run, model, optimizer):
            for number in range(3):
                yield number, self.update(model, optimizer)

        self.updates(root, loop)

    def test_two_in_one_iteration_are_two_rows(self, root):
        def loop(run, model, optimizer):
            with run.iteration():
                yield 0, self.update(model, optimizer)
                yield 0, self.update(model, optimizer)

        self.updates(root, loop)

    def test_of_two_models_by_turns(self, root):
        torch.manual_seed(0)
        both = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
        of_generator, of_critic = (torch.optim.Adam(m.parameters()) for m in both.values())
        with (
            backlight.watch(both, [of_generator, of_critic], root=root, every=1) as run,
            run.step(),
        ):
            for _ in range(2):
                with run.iteration():
                    train_once(both["critic"], of_critic)
            with run.iteration():
                train_once(both["generator"], of_generator, torch.ones(5, 2))
        for name, iterations in {"critic": [0, 1], "generator": [2]}.items():
            for place in ("weight", "weight:exp_avg"):
                rows = find(run.path, f"{name}.{place}")
                assert [row["iteration"] for row in rows] == iterations
            rows = find(run.path, f"{name}.weight", "update")
            assert [row["iteration"] for row in rows] == iterations

    def test_after_micro_batches_is_of_the_step(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(3):
                for _ in range(4):
                    model(torch.randn(5, 3)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        for step in range(3):
            found = find(run.path, "0.weight", "grad", step=step)
            assert [row["iteration"] for row in found] == [0, 1, 2, 3]
            for quantity in ("value", "grad_applied", "update"):
                (row,) = find(run.path, "0.weight", quantity, step=step)
                assert row["iteration"] == 0

    def test_after_iterations_is_of_the_step(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run, run.step():
            for _ in range(3):
                with run.iteration():
                    out = model(torch.randn(5, 3))
            out.mean().backward()
            optimizer.step()
        assert [row["iteration"] for row in find(run.path, "0.weight", "update")] == [0]


class TestWhatFails:
    """Functions of the user's: one sentence, and recording goes on."""

    @pytest.fixture
    def lenient(self, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")

    @staticmethod
    def picky(site):
        if site.tensor_class == "parameter":
            raise KeyError("mine")
        return True

    @pytest.mark.parametrize("option", ["include", "exclude"])
    @pytest.mark.usefixtures("lenient")
    def test_a_predicate_is_told_once_with_its_name_and_the_site(self, root, option):
        model, optimizer = simple()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with backlight.watch(
                model, optimizer, root=root, every=1, **{option: [self.picky]}
            ) as run:
                for _ in range(3):
                    train_once(model, optimizer)
        [sentence] = [str(each.message) for each in caught]
        assert sentence == (
            f"The function TestWhatFails.picky given as {option}= failed for the site '0.weight' "
            "(KeyError: 'mine'): sites that it fails for are recorded."
        )
        assert [row["step"] for row in read(run.path, "steps") if row["recorded"]] == [0, 1, 2]
        assert len(find(run.path, "0.weight", "update")) == 3
        assert len(find(run.path, "0:out.0")) == (3 if option == "include" else 0)

    def test_a_predicate_is_raised_where_faults_are(self, root):
        model, optimizer = simple()
        run = backlight.watch(model, optimizer, root=root, every=1, include=self.picky)
        with pytest.raises(backlight.BacklightError, match="picky given as include="):
            train_once(model, optimizer)
        run.finish()

    @pytest.mark.usefixtures("lenient")
    def test_a_schedule_is_told_once_and_steps_go_on(self, root):
        model, optimizer = simple()
        run = backlight.watch(model, optimizer, root=root, schedule=lambda step: 1 // (step - 2))
        told = pytest.warns(backlight.BacklightWarning, match="The schedule failed .*by zero")
        with told as caught:
            for _ in range(4):
                train_once(model, optimizer)
        run.finish()
        assert len(caught) == 1
        assert len(read(run.path, "steps")) == 4

    def test_detaching_what_is_no_tensor(self, root, monkeypatch):
        model, optimizer = simple()
        told = pytest.raises(backlight.BacklightError, match=r"run\.detach\(\) got a int")
        with backlight.watch(model, optimizer, root=root, every=1) as run, told:
            run.detach(5)
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            out = model(torch.randn(5, 3))
            with pytest.warns(backlight.BacklightWarning, match=r"run\.detach\(\) got a int"):
                assert run.detach(5) == 5
            out.mean().backward()
            optimizer.step()
        assert len(find(run.path, "0.weight", "update")) == 1


class TestAnOptimizerThatIsDerived:
    """Torch hooks its step, and that of its base class inside of it."""

    class Halving(torch.optim.SGD):
        def step(self, closure=None):
            loss = super().step(closure)
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(0.5)
            return loss

    @pytest.mark.parametrize("is_said", [True, False])
    def test_its_own_update_is_recorded_once(self, root, is_said):
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)  # now that class's step is hooked
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = self.Halving(model.parameters(), lr=0.1, momentum=0.9)
        changes = []
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(4):
                before = model.weight.detach().clone()
                with run.step() if is_said else nullcontext():
                    train_once(model, optimizer)
                changes.append(model.weight.detach() - before)
        for step, change in enumerate(changes):
            (update,) = find(run.path, "weight", "update", step=step)
            assert update["rms"] == pytest.approx(change.square().mean().sqrt().item(), rel=1e-5)
            for name in ("weight", "weight:momentum_buffer"):
                assert len(find(run.path, name, step=step)) == 1

    def test_one_that_fails_midway_is_seen_again(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            train_once(model, optimizer)
            model[0].weight.grad = None
            handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                train_once(model, optimizer)
            handle.remove()
            train_once(model, optimizer)
        steps = [row["step"] for row in find(run.path, "0.weight", "update")]
        assert len(steps) == 2


def test_the_name_of_the_found_loss_is_taken(root, monkeypatch):
    monkeypatch.delenv("BACKLIGHT_STRICT")
    model, optimizer = simple()
    with (
        pytest.warns(UserWarning, match="which is that of the loss that Backlight finds"),
        backlight.watch(model, optimizer, root=root, every=1) as run,
    ):
        run.tensor("(loss)", torch.ones(2))
        train_once(model, optimizer)
    assert len(find(run.path, "(loss)")) == 1


def test_samples_that_the_batch_does_not_have_are_told(root, monkeypatch):
    monkeypatch.delenv("BACKLIGHT_STRICT")
    model, optimizer = simple()
    with (
        pytest.warns(UserWarning, match="samples that the batch does not have, which has 5"),
        backlight.watch(model, optimizer, root=root, schedule=set()) as run,
    ):
        for samples in ([99], [99, 1]):
            with run.step(decide=True) as step:
                train_once(model, optimizer)
                step.keep("seen", samples=samples)
    kept = backlight.open(run.path).samples().rows()
    assert {(row["step"], row["sample"]) for row in kept} == {(1, 1)}


def test_a_said_step_that_is_not_recorded_does_not_cost_what_the_last_one_did(root):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(100)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=10) as run:
        for _ in range(40):
            with run.step():
                train_once(model, optimizer)
    costs = {True: [], False: []}
    for row in read(run.path, "steps"):
        costs[row["recorded"]].append(row["recording_secs"])
    assert np.median(costs[False]) < 0.2 * np.median(costs[True])
