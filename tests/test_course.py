"""Steps that are not recorded: the kernel's course says of them what Python's says."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import isinf
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from reading import read
from torch import nn
from torch.utils import checkpoint

import backlight
from backlight import recorder
from backlight.blackbox import SpikeDetector
from backlight.capture.apart import apart
from backlight.course import new_course
from backlight.reduce import native
from backlight.run import Run
from backlight.schedule import Budget, Every, lease

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the kernel is not compiled")

TIMES = ("started_at", "duration_secs", "recording_secs", "logged_at", "happened_at", "written_at")
Watch = Callable[..., Run]
X = torch.linspace(-1, 1, 12).reshape(4, 3)


def simple() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(X).square().mean()
    loss.backward()
    optimizer.step()
    return loss


# -- loops: each trains with a run that it makes, and ends it


def plain(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for _ in range(40):
            run.log(loss=train_once(model, optimizer))


def nothing_is_logged(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer):
        for _ in range(20):
            train_once(model, optimizer)


def accumulated(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(60):
            loss = model(X).square().mean() / (number + 1)
            loss.backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            run.log(loss=loss, number=number)


def evaluated_between(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(30):
            train_once(model, optimizer)
            if number % 4 == 0:
                with torch.no_grad():
                    run.log(evaluation=model(X).mean())
            if number % 7 == 0:
                model(X)  # with gradients: the next step has begun
                run.log(forward=1.0)


def logged_everywhere(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        run.log(before=1)
        for number in range(30):
            run.log(before=number, share=torch.tensor(number / 3, dtype=torch.float64))
            loss = model(X).square().mean()
            run.log(inside=loss, flag=number % 2 == 0, half=loss.detach().half())
            optimizer.zero_grad()
            loss.backward()
            run.log(**{"a name with spaces": 2.0, "inside": loss.item()})
            optimizer.step()
            run.log(after=float(number), loss=loss)
            if number == 12:
                run.note("a note between")


def scheduled_rates(watch: Watch) -> None:
    model, optimizer = simple()
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with watch(model, optimizer) as run:
        for number in range(30):
            run.log(loss=train_once(model, optimizer))
            rates.step()
            if number == 20:
                optimizer.param_groups[0]["lr"] = 1
            if number == 25:
                del optimizer.param_groups[0]["lr"]
                optimizer.param_groups[0]["lr"] = torch.tensor(0.01)


def exceptions(watch: Watch) -> None:
    model, optimizer = simple()

    def fail() -> torch.Tensor:
        raise ArithmeticError

    with watch(model, optimizer) as run:
        for number in range(30):
            with suppress(RuntimeError, ArithmeticError):
                if number % 5 == 1:
                    model(torch.ones(2, 2))
                if number % 5 == 2:
                    optimizer.step(fail)
                train_once(model, optimizer)
            run.log(number=number)


def spikes(watch: Watch) -> None:
    model, optimizer = simple()
    numbers = random.Random(0)
    with watch(model, optimizer) as run:
        for number in range(200):
            train_once(model, optimizer)
            far = numbers.choice([1.0, 1.0, 1.0, 2.5, 9.0, -3.0]) if number > 30 else 1.0
            run.log(loss=far * (1 + 0.1 * numbers.random()), other=far)


def not_finite(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(120):
            loss = model(X).square().mean()
            bad = {30: float("nan"), 32: float("inf"), 34: float("-inf")}.get(number, 1.0)
            loss = loss * bad
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            run.log(loss=loss)


def closures(watch: Watch) -> None:
    model, _ = simple()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    with watch(model, optimizer):
        for _ in range(12):
            optimizer.step(closure)


def odd_losses(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer):
        for number in range(40):
            out = model(X)
            match number % 8:
                case 0:
                    out.backward(torch.ones_like(out))  # no number
                case 1:
                    torch.autograd.backward([out.sum(), out.mean()], retain_graph=True)
                case 2:
                    out.double().mean().reshape(1, 1).backward()
                case 3:
                    out.mean().bfloat16().backward()
                case 4:
                    torch._neg_view(out.mean()).backward()
                case 5:
                    torch.autograd.grad(out.sum(), list(model.parameters()))
                case 6:
                    out[2, 0].backward()
                case _:
                    out.sum(0)[0].backward(retain_graph=True)
                    out.mean().backward()
            optimizer.step()


def two_optimizers(watch: Watch) -> None:
    model, optimizer = simple()
    other = torch.optim.Adam(model[2].parameters())
    with watch(model, [optimizer, other]) as run:
        for number in range(20):
            run.log(loss=train_once(model, optimizer))
            if number % 2:
                other.step()


def another_optimizer(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(30):
            run.log(loss=train_once(model, optimizer))
            if number == 11:
                optimizer = torch.optim.Adam(model.parameters())
                gc.collect()


def without_a_forward_pass(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(20):
            optimizer.step()
            run.log(number=float(number))


def said_by_hand(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(30):
            if number % 5 == 0:
                with run.step(kind="odd", batch_size=4):
                    run.log(loss=train_once(model, optimizer))
            elif number % 5 == 1:
                for _ in range(2):
                    with run.iteration():
                        model(X).mean().backward()
                optimizer.step()
            else:
                run.tensor("mine", X)
                run.log(loss=train_once(model, optimizer))


def beside_others(watch: Watch) -> None:
    model, optimizer = simple()
    other = nn.Linear(3, 3)
    with watch(model, optimizer) as run:
        for number in range(30):
            other(X).sum().backward()
            run.log(after_another=1.0)  # which has begun no step
            if number % 4 == 0:
                with apart():
                    model(X).sum().backward()
                run.log(apart=1.0)
            if number % 4 == 1:
                torch.jit.trace(model, X)
                run.log(traced=1.0)
            if number % 4 == 2:
                thread = threading.Thread(target=lambda: other(X).sum().backward())
                thread.start()
                thread.join()
            run.log(loss=train_once(model, optimizer))


def backward_inside_backward(watch: Watch) -> None:
    model, optimizer = simple()

    def start_another(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            nn.Parameter(torch.ones(())).mul(99).backward()

    with watch(model, optimizer):
        for _ in range(20):
            out = model(X)
            out.register_hook(start_another)
            out.square().mean().backward()
            optimizer.step()


def watched_for(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(40):
            if number == 15:
                run.anomaly("odd", "scalar('number') > 20")
            run.log(loss=train_once(model, optimizer), number=float(number))


def another_root(watch: Watch) -> None:
    """A part of the model is called by itself, the root is wrapped, modules come and go."""
    model, optimizer = simple()
    wrapped = nn.DataParallel(model)
    with watch(model, optimizer) as run:
        for number in range(40):
            if number == 20:
                model[1] = nn.ReLU()
            match number % 3:
                case 0:
                    out = wrapped(X)
                case 1:
                    out = model[2](torch.ones(2, 4))
                case _:
                    out = model(X)
            out.mean().backward()
            optimizer.step()
            run.log(loss=out.mean())


def checkpointed(watch: Watch) -> None:
    """Each step begins where gradients are disabled, which an evaluation does not do."""
    model, optimizer = simple()
    x = X.clone().requires_grad_()
    with watch(model, optimizer) as run:
        for number in range(40):
            optimizer.zero_grad()
            inner = checkpoint.checkpoint(lambda y: y * 2, x, use_reentrant=True)
            loss = checkpoint.checkpoint(model, inner, use_reentrant=True).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                checkpoint.checkpoint(model, x, use_reentrant=True)
            checkpoint.checkpoint(nn.Tanh(), x, use_reentrant=True)
            with torch.no_grad():
                model(x)
            run.log(loss=loss, number=number)
            run.note(f"after step {run.current_step}")


def cut_short(watch: Watch) -> None:
    model, optimizer = simple()
    run = watch(model, optimizer)
    for _ in range(15):
        run.log(loss=train_once(model, optimizer))
    model(X).mean().backward()
    run.log(loss=1.0)
    run.finish("failed")


LOOPS = [
    plain, nothing_is_logged, accumulated, evaluated_between, logged_everywhere, scheduled_rates,
    exceptions, spikes, not_finite, closures, odd_losses, two_optimizers, another_optimizer,
    without_a_forward_pass, said_by_hand, beside_others, watched_for, another_root, cut_short,
    backward_inside_backward, checkpointed,
]  # fmt: skip


@contextmanager
def course_by(*, kernel: bool) -> Iterator[None]:
    """Steps that are not recorded are seen through by the kernel or by Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "new_course", partial(new_course, is_native=kernel))
        yield


def trained(loop: Callable[[Watch], None], root: Path, *, kernel: bool, **options: Any) -> Any:
    """The run of a loop, with what it has written but for times."""
    made: list[Run] = []

    def watch(*given: Any) -> Run:
        made.append(backlight.watch(*given, root=root, **options))
        return made[0]

    with course_by(kernel=kernel):
        loop(watch)
    (run,) = made
    tables = {
        table: [
            {name: value for name, value in row.items() if name not in TIMES}
            for row in read(run.path, table)
        ]
        for table in ("steps", "scalars", "events", "notes")
    }
    return run, tables


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("every", [7, 10**6])
@pytest.mark.parametrize("loop", LOOPS)
def test_both_courses_write_the_same(loop: Callable[[Watch], None], every: int, root: Path) -> None:
    by_kernel, found = trained(loop, root, kernel=True, every=every)
    by_python, expected = trained(loop, root, kernel=False, every=every)
    assert str(found) == str(expected)  # as texts: a NaN is no NaN's equal
    assert by_kernel.current_step == by_python.current_step
    assert by_python._course.passed_steps == 0
    assert (by_kernel._course.passed_steps > 0) == (loop is not two_optimizers)
    totals = [run._journal._account()["steps"] for run in (by_kernel, by_python)]
    assert totals == [len(expected["steps"])] * 2
    assert by_kernel._ledger.logged.keys() == by_python._ledger.logged.keys()
    assert list(map(str, by_kernel._ledger.losses)) == list(map(str, by_python._ledger.losses))


def test_what_is_logged_after_a_recorded_step_is_written_at_once(tmp_path):
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=tmp_path, every=1)
    for step in range(4):
        run.log(loss=train_once(model, optimizer))
        assert [row["step"] for row in read(run.path, "scalars")] == list(range(step + 1))
    run.finish()


def test_steps_are_passed_over_and_scalars_taken_without_python(root: Path) -> None:
    run, tables = trained(plain, root, kernel=True, every=10)
    # Of 40 steps four are recorded.
    assert run._course.passed_steps == 40 - 4
    # The first has to make its name known.
    assert run._course.taken_scalars == 40 - 1
    assert [row["step"] for row in tables["steps"]] == list(range(40))


def test_a_schedule_of_the_users_own_is_asked_at_each_step(root: Path) -> None:
    asked: list[int] = []
    model, optimizer = simple()
    schedule = lambda step: asked.append(step) or step == 5  # noqa: E731
    with backlight.watch(model, optimizer, root=root, schedule=schedule) as run:
        for _ in range(10):
            train_once(model, optimizer)
    assert asked == list(range(11)) and run._course.passed_steps == 0
    assert [row["recorded"] for row in read(run.path, "steps")] == [n == 5 for n in range(10)]


def test_times_are_those_of_the_step(root: Path) -> None:
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        for _ in range(50):
            run.log(loss=train_once(model, optimizer))
    rows = read(run.path, "steps")
    logged = [row["logged_at"] for row in read(run.path, "scalars")]
    for row, after, at in zip(rows, rows[1:], logged, strict=False):
        assert 0 <= row["recording_secs"] < row["duration_secs"]
        ended_at = row["started_at"] + row["duration_secs"]
        # Two clocks: one of them may be set while the other runs.
        assert ended_at - 1e-3 < at < after["started_at"] + 1e-3


def test_what_waits_is_there_after_a_flush(root: Path) -> None:
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        for _ in range(20):
            run.log(loss=train_once(model, optimizer))
        assert run._course.waiting > 0
        run.flush()
        assert run._course.waiting == 0
        assert len(read(run.path, "steps")) == len(read(run.path, "scalars")) == 20


def test_what_waits_is_written_after_a_while(root: Path) -> None:
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        for _ in range(10):
            run.log(loss=train_once(model, optimizer))
        run._course.sent_at = run._journal.sent_at = run._journal.sent_at - 1
        model(X)
        assert len(read(run.path, "steps")) == 10


def test_a_fault_in_python_is_raised_as_strict_says(root: Path) -> None:
    """What the course calls may fail; it is not the course that swallows it."""
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        for _ in range(5):
            run.log(loss=train_once(model, optimizer))
        with pytest.raises(backlight.BacklightError, match="not one number"):
            run.log(loss="much")
        with pytest.raises(backlight.BacklightError, match="not one number"):
            run.log(loss=torch.ones(2))
        run.log(loss=train_once(model, optimizer))
    assert len(read(run.path, "scalars")) == 6


# -- what is decided beforehand


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [partial(Every, 7), partial(Budget, 0.03), partial(Budget, 0.5)])
def test_within_a_lease_nothing_is_wanted(make: Callable[[], Any], seed: int) -> None:
    numbers = random.Random(seed)
    schedule, steps, secs = make(), 0, 0.0
    leased = 0
    for step in range(3000):
        is_wanted = schedule.wants(step, "train") is not None
        if steps > 0 and secs > 0:
            assert not is_wanted
            leased += 1
        recording_secs = numbers.uniform(0.5, 2) if is_wanted else 0.0
        duration_secs = numbers.uniform(0.1, 1)
        schedule.learn("train", duration_secs + recording_secs, recording_secs)
        if is_wanted:
            steps = 0
            continue
        if steps <= 0 or secs - duration_secs <= 0:
            continue_with = schedule.wants(step + 1, "train")
            steps, secs = lease(schedule, step + 1, "train") if continue_with is None else (0, 0.0)
            steps += 1
        else:
            steps, secs = steps - 1, secs - duration_secs
    assert leased > 1000


@pytest.mark.parametrize("every", [2**62, 2**63, 10**30])
def test_an_interval_may_be_longer_than_any_run(every: int, root: Path) -> None:
    _, tables = trained(plain, root, kernel=True, every=every)
    assert [row["step"] for row in tables["steps"] if row["recorded"]] == [0]
    assert len(tables["steps"]) == 40


def test_only_schedules_that_are_known_give_a_lease() -> None:
    class Mine(Every):
        def wants(self, step: int, kind: str) -> str | None:
            return "mine"

    assert lease(Mine(10), 3, "train") == (0, 0.0)
    steps, secs = lease(Every(10), 3, "train")
    assert steps == 6 and isinf(secs)


# -- spikes


@pytest.mark.parametrize("seed", range(4))
def test_a_spike_is_found_where_python_finds_it(seed: int, root: Path) -> None:
    numbers = random.Random(seed)
    model, optimizer = simple()
    detector, expected = SpikeDetector(), []
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        train_once(model, optimizer)
        model(X)
        for number in range(600):
            loss = numbers.gauss(seed, 1)
            if number % 5 == 4:
                middle = median(detector.values)
                spread = median(abs(each - middle) for each in detector.values)
                loss = middle + numbers.uniform(9, 11) * spread
            if detector.is_spike(loss):
                expected.append(f"loss {loss:.4g}")
            run.log(loss=torch.tensor(loss, dtype=torch.float64) if number % 2 else loss)
    assert [row["text"] for row in read(run.path, "events") if row["kind"] == "spike"] == expected
    assert 0 < len(expected) < run._course.taken_scalars < 600


# -- what is kept alive


def test_tensors_models_and_optimizers_are_not_kept_alive(root: Path) -> None:
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=10**6)
    for _ in range(5):
        run.log(loss=train_once(model, optimizer))
    loss = train_once(model, optimizer)
    run.log(loss=loss)
    gone = [weakref.ref(each) for each in (loss, model, optimizer)]
    del loss, model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    run.finish()


def test_a_run_that_has_ended_can_be_collected(root: Path) -> None:
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=10**6)
    for _ in range(5):
        run.log(loss=train_once(model, optimizer))
    run.finish()
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_nothing_gathers_over_many_steps(root: Path) -> None:
    model, optimizer = simple()
    rate, name = 0.0625, "".join(["sca", "lar"])
    optimizer.param_groups[0]["lr"] = rate
    watched = (rate, name, model, optimizer, None)
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:

        def train() -> tuple[list[int], int]:
            for _ in range(300):
                run.log(loss=train_once(model, optimizer), **{name: rate})
            run.flush()
            gc.collect()
            return [sys.getrefcount(each) for each in watched], len(gc.get_objects())

        train()
        (before, objects), (after, later) = train(), train()
    assert run._course.passed_steps > 890
    assert all(abs(b - a) < 100 for b, a in zip(before, after, strict=True))
    assert abs(later - objects) < 100


def test_what_logs_while_rows_are_taken_is_neither_lost_nor_written_twice(root: Path) -> None:
    """The collector may run at any time, and with it what the user does at an object's end."""
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=10**6) as run:
        train_once(model, optimizer)
        run.log(number=-1.0)
        model(X)

        class Logs:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                run.log(number=-2.0)

        threshold = gc.get_threshold()
        for number in range(200):
            run.log(number=float(number))
        made = [Logs() for _ in range(50)]
        gc.set_threshold(1)
        made.clear()
        run.flush()
        gc.set_threshold(*threshold)
        gc.collect()
    numbers = [row["value"] for row in read(run.path, "scalars")]
    assert [number for number in numbers if number >= 0] == list(range(200))
    assert numbers.count(-2.0) == 50
