"""Captured steps that are like the last one: begun by the kernel, they are as Python has them.

Each loop trains twice, once with no step begun by the kernel, and both runs have to say the same in
every table, to the bit.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import loops
import odd_loops
import pytest
import test_course
import torch
from reading import read
from test_course import TIMES, X, simple, train_once
from torch import nn
from torch.utils.checkpoint import checkpoint

import backlight
from backlight.capture.likeness import StepLikeness
from backlight.reduce import native
from backlight.run import Run

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the kernel is not compiled")

TABLES = ("sites", "stats", "steps", "scalars", "events", "notes", "calls")
STEPS = 12
Watch = Callable[..., Run]


def begun_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts how many steps it begins."""
    begun: dict[StepLikeness, list[int]] = {}
    take = StepLikeness.take_begun

    def counting(self: StepLikeness) -> int:
        begun.setdefault(self, []).append(take(self))
        return begun[self][-1]

    monkeypatch.setattr(StepLikeness, "take_begun", counting)
    return lambda: sum(sum(counts) + take(likeness) for likeness, counts in begun.items())


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python begin every step."""
    monkeypatch.setattr(StepLikeness, "expect", lambda self, *given, **told: None)


def tables_of(run: Run) -> dict[str, list[str]]:
    """All that a run has written but for times, as texts: a NaN is no NaN's equal."""
    return {
        table: [
            str({name: value for name, value in row.items() if name not in TIMES})
            for row in read(run.path, table)
        ]
        for table in TABLES
    }


def trained(loop: Callable[[Watch], None], root: Path, **options: Any) -> dict[str, list[str]]:
    """What the run of a loop has written."""
    made: list[Run] = []

    def watch(*given: Any) -> Run:
        made.append(backlight.watch(*given, root=root, **options))
        return made[0]

    loop(watch)
    (run,) = made
    return tables_of(run)


def twins(loop: Callable[[Watch], None], root: Path, **options: Any) -> int:
    """Compare both ways; the answer is how many steps the kernel has begun."""
    with pytest.MonkeyPatch.context() as patch:
        begun = begun_by_the_kernel(patch)
        found = trained(loop, root, **options)
        count = begun()
    with pytest.MonkeyPatch.context() as patch:
        never(patch)
        expected = trained(loop, root, **options)
    for table in TABLES:
        assert found[table] == expected[table], table
    return count


# -- loops that do something in the midst of steps that are alike


def losses_of_several_kinds(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(30):
            optimizer.zero_grad()
            out = model(X)
            match number % 5:
                case 0:
                    out.mean().backward()
                case 1:  # the same twice, and another
                    loss = out.square().mean()
                    loss.backward(retain_graph=True)
                    loss.backward(retain_graph=True)
                    out.sum().backward()
                case 2:
                    loss = out.mean()
                    run.tensor("mine", loss, kind="loss")
                    loss.backward()
                case 3:
                    loss = out.mean()
                    run.tensor("other", loss)
                    loss.data.mul_(2)
                    loss.backward()
                case _:
                    out.double().mean().reshape(1, 1).backward()
            optimizer.step()


def passes_and_iterations(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(36):
            optimizer.zero_grad()
            match number % 6:
                case 0:
                    for _ in range(2):
                        with run.iteration():
                            model(X).mean().backward()
                case 1:
                    with run.iteration():
                        model(X).mean().backward()
                        optimizer.step()
                    continue
                case 2:
                    for _ in range(3):
                        model(X).mean().backward()
                case 3:
                    with run.backward("mine"):
                        model(X).mean().backward()
                case 4:
                    out = model(X)
                    with run.iteration():
                        out.mean().backward()
                case _:
                    train_once(model, optimizer)
                    continue
            optimizer.step()


def updates_that_fail(watch: Watch) -> None:
    model, optimizer = simple()
    is_bad = False

    def fail(*_: Any) -> None:
        if is_bad:
            raise ArithmeticError

    optimizer.register_step_post_hook(fail)
    with watch(model, optimizer):
        optimizer.register_step_pre_hook(fail)
        for number in range(40):
            is_bad = number % 9 in (3, 4)
            with suppress(ArithmeticError):
                train_once(model, optimizer)
            if number % 9 == 4:
                is_bad = False
                optimizer.step()


def checkpoints_after_iterations(watch: Watch) -> None:
    """What runs again in a backward pass is of another iteration only where there were some."""
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(60):
            optimizer.zero_grad()
            x = X.clone().requires_grad_()
            if number % 12 < 4:
                for _ in range(2):
                    with run.iteration():
                        checkpoint(model, x, use_reentrant=True).mean().backward()
            else:
                model[1](model[0](x)).sum().backward()
                if number % 12 > 8:
                    checkpoint(model, x, use_reentrant=True).mean().backward()
            optimizer.step()


def inner_updates(watch: Watch) -> None:
    """An optimizer whose `step` calls that of the class that it is derived from."""
    model, _ = simple()

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if self.is_deep:
                super().step(closure)
            return super().step(closure)

    optimizer = Outer(model.parameters(), lr=0.1, momentum=0.5)
    with watch(model, optimizer):
        for number in range(25):
            optimizer.is_deep = number % 4 == 1  # type: ignore[attr-defined]
            train_once(model, optimizer)


def closures_now_and_then(watch: Watch) -> None:
    """Between updates without one, of which Python reads the end: states come in another order."""
    model, _ = simple()
    optimizer = torch.optim.Adam([*model.parameters()][::-1], lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss

    with watch(model, optimizer):
        for number in range(40):
            if number % 5 == 3:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()


def parts_that_change(watch: Watch) -> None:
    """Parameters and modules come, go and are replaced, between steps and within one."""
    model, optimizer = simple()
    with watch(model, optimizer):
        for number in range(60):
            if number == 12:
                model[2].weight = nn.Parameter(torch.ones(1, 4))
                optimizer.add_param_group({"params": [model[2].weight]})
            if number == 24:
                model[0], model[2] = nn.Linear(3, 4), nn.Linear(4, 1)
            if number == 30:
                kept, model[1] = model[1], nn.Sequential(nn.ReLU())
            if number == 31:
                model[1][0] = kept
            if number == 36:
                model.append(nn.Linear(1, 1))
            optimizer.zero_grad()
            loss = model(X).square().mean()
            if number == 44:
                model[2].bias = nn.Parameter(torch.zeros(1))
            loss.backward()
            if number == 50:
                model[0].weight.requires_grad_(False)
            if number == 55:
                optimizer.param_groups[0]["params"] = list(model[0].parameters())
            optimizer.step()


def empty_places(watch: Watch) -> None:
    """Places for tensors that are empty are filled, emptied again, and take turns."""
    torch.manual_seed(5)
    first, last = nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False)
    for name in ("one", "other"):
        first.register_buffer(name, None)
    model = nn.Sequential(first, nn.Sequential(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fill_in_forward(module: nn.Module, args: Any) -> None:
        if module.bias is None and is_late:
            module.bias = nn.Parameter(torch.ones(1))

    last.register_forward_pre_hook(fill_in_forward)
    is_late = False
    with watch(model, optimizer):
        for number in range(60):
            is_late = number > 46
            if number == 12:
                first.bias = nn.Parameter(torch.ones(4))
                optimizer.add_param_group({"params": [first.bias]})
            if number == 22:
                first.one = torch.ones(2)
            if number == 28:
                first.one, first.other = None, torch.zeros(3)
            if number == 36:
                first.bias, last.bias = None, nn.Parameter(torch.zeros(1))
            if number == 42:
                last.bias = None
            train_once(model, optimizer)


def parameters_that_are_swapped(watch: Watch) -> None:
    """As `model.to(…)` does it, if torch is told to, and between two of one model."""
    model, optimizer = simple()
    with watch(model, optimizer):
        for number in range(40):
            if number in (12, 20):
                other = nn.Parameter(model[0].weight.detach().clone())
                torch.utils.swap_tensors(model[0].weight, other)
                del other
            if number == 20:
                model[0].weight.register_hook(lambda grad: grad * 2)
            if number == 30:
                model[2].weight.grad, model[2].bias.grad = None, None
                torch.utils.swap_tensors(model[0].bias, model[2].bias)
                torch.utils.swap_tensors(model[0].bias, model[2].bias)
            train_once(model, optimizer)


def memory_and_modes(watch: Watch) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer):
        for number in range(40):
            model.train(number % 7 != 5)
            train_once(model, optimizer)
            if number == 20:
                optimizer.state.clear()
            if number == 30:
                optimizer.state[model[0].weight]["mine"] = torch.ones(2)
        model.eval()(X)  # and no update comes


def updates_that_are_left_out(watch: Watch) -> None:
    """By a scaler of gradients, while modes change: in some rounds none takes place at all."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with watch(model, optimizer):
        for number in range(40):
            model.train(number % 5 != 3)
            optimizer.zero_grad()
            factor = torch.inf if number % 16 < 13 else 1.0
            scaler.scale(model(X).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()


def more_is_asked_for(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(30):
            if number == 10:
                run.statistic("largest", lambda tensor: tensor.abs().max())
            optimizer.zero_grad()
            loss = model(X).square().mean()
            if number == 20:
                run.statistic("least", lambda tensor: tensor.abs().min())
            loss.backward()
            optimizer.step()
            run.log(loss=loss)


def modules_beside_the_model(watch: Watch) -> None:
    """The loss is a module, another one is called before, and one of them becomes a part."""
    model, optimizer = simple()
    loss, before, shift = nn.MSELoss(), nn.Identity(), nn.Identity()
    with watch(model, optimizer) as run:
        for number in range(40):
            if number == 21:
                kept, model[1] = model[1], shift
            optimizer.zero_grad()
            value = loss(shift(model(before(X))), torch.zeros(4, 1))
            value.backward()
            optimizer.step()
            run.log(loss=value)
    assert kept is not shift


def kinds(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(50):
            if number % 6 == 5:
                with run.step("evaluation"), torch.no_grad():
                    model(X)
                    model(X)
            if number % 10 == 7:
                with run.step("odd", decide=True) as step:
                    train_once(model, optimizer)
                    step.keep("odd") if number % 20 == 7 else step.drop()
            train_once(model, optimizer)


def structures(watch: Watch) -> None:
    """Some modules are called in some steps only, and one of no model between steps."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other = nn.Linear(3, 3)
    with watch(model, optimizer):
        for number in range(60):
            x = model["a"](X)
            if number > 20 and number % 5 == 0:
                x = model["b"](x)
            model["c"](x).square().mean().backward()
            if number % 3 == 0:
                other(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def more_structures_than_are_followed(watch: Watch) -> None:
    """Each comes twice, and one only once: that is waited for, and steps are followed meanwhile."""
    torch.manual_seed(0)
    parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
    orders = [[*order] for order in permutations(range(4))]
    with watch(parts, optimizer):
        for number in range(100):
            x = X
            for part in [0, 1] if number == 46 else orders[number // 2 if number < 46 else 0]:
                x = parts[part](x)
            x.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def a_structure_that_never_comes_again(watch: Watch) -> None:
    """Until more steps are followed in search of it than can be spared."""
    model, optimizer = simple()
    with watch(model, optimizer):
        for number in range(60):
            if number == 31:
                model(X)  # with gradients: the next step has begun
            train_once(model, optimizer)


def other_threads(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer), ThreadPoolExecutor(1) as thread:
        for number in range(24):
            if number % 8 < 4:
                train_once(model, optimizer)
            else:
                thread.submit(train_once, model, optimizer).result()


def not_always_finite(watch: Watch) -> None:
    model, optimizer = simple()
    with watch(model, optimizer) as run:
        for number in range(40):
            optimizer.zero_grad()
            x = X / 0 if number in (10, 11, 20) else X
            loss = model(x).square().mean()
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            run.log(loss=loss)


NEVER_ALIKE = [
    test_course.closures,
    test_course.two_optimizers,
    test_course.without_a_forward_pass,
    test_course.checkpointed,
    test_course.said_by_hand,  # only every 5th step could be, and then Python looks at more
]

# In threads of the user's, rows come in any order.
DETERMINED = [make for make in odd_loops.ALL if make is not odd_loops.calls_from_threads]

OWN = [
    losses_of_several_kinds, passes_and_iterations, updates_that_fail, inner_updates,
    checkpoints_after_iterations,
    closures_now_and_then, modules_beside_the_model, parts_that_change, empty_places,
    parameters_that_are_swapped, memory_and_modes, updates_that_are_left_out, more_is_asked_for,
    kinds, structures,
    more_structures_than_are_followed, a_structure_that_never_comes_again, other_threads,
    not_always_finite,
]  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("loop", [*test_course.LOOPS, *OWN])
def test_both_ways_write_the_same(loop: Callable[[Watch], None], every: int, root: Path) -> None:
    begun = twins(loop, root, every=every)
    assert begun > 0 or loop in NEVER_ALIKE or every > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [*loops.ALL, *DETERMINED], ids=lambda make: make.__name__)
def test_both_ways_write_the_same_of_whole_loops(make: loops.Make, root: Path) -> None:
    def loop(watch: Watch) -> None:
        torch.manual_seed(0)
        made = make()
        with watch(made.watched, made.optimizers):
            for number in range(STEPS):
                made.step(number)

    twins(loop, root, every=1)


@pytest.mark.parametrize("options", [{"samples": 2}, {"blackbox": 4, "every": 5}, {"budget": 1.0}])
def test_both_ways_write_the_same_with_options(options: dict[str, Any], root: Path) -> None:
    if "budget" not in options:
        twins(test_course.plain, root, **{"every": 1, **options})
        return
    assert twins(test_course.plain, root, every=2) > 0


def test_most_steps_of_a_plain_loop_are_begun_by_the_kernel(root: Path) -> None:
    # Python begins the 1st, 2nd, 3rd, 5th, 9th, … captured step, in which it looks at more.
    assert twins(test_course.plain, root, every=1) == 40 - len([1, 2, 3, 5, 9, 17, 33])


def test_in_such_a_step_python_is_not_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = simple()
    asked: list[str] = []
    names = (
        "_begin_step", "_begin_capture", "_on_number", "_before_update", "_end_step", "_take",
        "_prepare_step", "_send_if_due",
    )  # fmt: skip
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        run.log(loss=train_once(model, optimizer))
        for _ in range(5):
            run.log(loss=train_once(model, optimizer))
        for name in names:
            original = getattr(run, name)

            def noted(*given: Any, name: str = name, original: Any = original) -> Any:
                asked.append(name)
                return original(*given)

            monkeypatch.setattr(run, name, noted)
        run.log(loss=train_once(model, optimizer))
        assert asked == []


def test_what_such_a_step_has_seen_dies_with_it(root: Path) -> None:
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(6):
            train_once(model, optimizer)
        before = run._course.ended_steps
        gone = [weakref.ref(train_once(model, optimizer))]
        assert run._course.ended_steps == before + 1
        gone.append(weakref.ref(train_once(model, optimizer)))
        assert [each() for each in gone] == [None, None]
        gone = [weakref.ref(model), weakref.ref(optimizer)]
        with suppress(ArithmeticError):

            def fail(*_: Any) -> None:
                raise ArithmeticError

            optimizer.register_step_post_hook(fail)
            train_once(model, optimizer)
        model(X)
        del model, optimizer
        gc.collect()
        assert [each() for each in gone] == [None, None]


def test_training_is_the_same_to_the_bit(root: Path) -> None:
    states = []
    for way in ("bare", "kernel", "python"):
        model, optimizer = simple()
        torch.manual_seed(7)
        with pytest.MonkeyPatch.context() as patch:
            if way == "python":
                never(patch)
            run = backlight.watch(model, optimizer, root=root, every=2) if way != "bare" else None
            for _ in range(30):
                train_once(model, optimizer)
            if run is not None:
                run.finish()
        states.append((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    loops.assert_same_bits(states[0], states[1])
    loops.assert_same_bits(states[0], states[2])
