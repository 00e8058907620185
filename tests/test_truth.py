"""Every number that is recorded is what a hand finds that takes the same step without Backlight."""

from __future__ import annotations

from contextlib import nullcontext

import loops
import odd_loops
import pytest
import torch
from by_hand import Hand, Sight, assert_row_is, assert_run_is
from loops import assert_same_bits
from reading import find
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _pop_mode
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import backlight

STEPS = 7
"""The graph is followed at the 1st, 2nd, 3rd and 5th; at the others, plain calls need no Python."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*(Sparse CSR|quantize_per|ComplexHalf).*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*[Aa]nomaly.*:UserWarning"),
]


def named(makes: list[loops.Make]) -> list:
    """Loops as parameters."""
    return [pytest.param(make, id=make.__name__) for make in makes]


SEEN = [*loops.ALL, *(make for make in odd_loops.ALL if make not in odd_loops.UNSEEN)]


@pytest.fixture(autouse=True)
def _own_modes():
    """A mode that one test leaves behind must not disturb the next."""
    before = torch._C._len_torch_dispatch_stack()
    yield
    while torch._C._len_torch_dispatch_stack() > before:
        _pop_mode()


def started(make: loops.Make) -> loops.Loop:
    torch.manual_seed(17)
    return make()


def watched(loop: loops.Loop, root, **options):
    """Train a loop with Backlight beside it."""
    with backlight.watch(loop.watched, loop.optimizers, root=root, every=1, **options) as run:
        for step in range(STEPS):
            loop.step(step)
    return run


@pytest.mark.parametrize("make", named(SEEN))
def test_all_that_is_recorded_is_what_a_hand_finds(make, root, monkeypatch):
    by_hand = started(make)
    hand = Hand.watches(by_hand, STEPS, monkeypatch)
    loop = started(make)
    run = watched(loop, root)
    assert_same_bits(by_hand.state(), loop.state())
    assert assert_run_is(run.path, hand) > 10 * STEPS


class TestTheHand:
    """The comparison itself can fail."""

    def test_what_is_missing_too_much_or_another_number_is_found(self, root, monkeypatch):
        loop = started(loops.accumulation_with_clipping)
        hand = Hand.watches(loop, STEPS, monkeypatch)
        run = watched(started(loops.accumulation_with_clipping), root)
        assert_run_is(run.path, hand)
        for place in list(hand.seen):
            taken = hand.seen.pop(place)
            with pytest.raises(AssertionError, match="only in the run"):
                assert_run_is(run.path, hand)
            hand.seen[place] = taken
        place, sights = next(item for item in hand.seen.items() if item[0].quantity == "update")
        hand.seen[place._replace(name="elsewhere")] = sights
        with pytest.raises(AssertionError, match="not in the run"):
            assert_run_is(run.path, hand)
        del hand.seen[place._replace(name="elsewhere")]
        for grad, _ in hand.applied[1, 0, "0.weight"]:
            grad[0, 0] *= 1.001
        with pytest.raises(AssertionError, match="grad_applied"):
            assert_run_is(run.path, hand)

    @pytest.mark.parametrize("factor", [1.0 + 1e-6, -1.0, 0.0, torch.nan, torch.inf])
    def test_one_other_element_is_found(self, root, factor):
        loop = started(loops.whole(loops.models.mlp))
        hand = loop.models[""][0].weight.detach().clone()
        row = find(watched(loop, root).path, "0.weight")[0]
        assert_row_is(row, Sight(hand, "parameter"), "as it was")
        hand[3, 5] *= factor
        with pytest.raises(AssertionError):
            assert_row_is(row, Sight(hand, "parameter"), "changed")

    def test_another_bit_is_found(self):
        first, other = started(loops.bfloat16_parameters), started(loops.bfloat16_parameters)
        assert_same_bits(first.state(), other.state())
        other.step(0)
        with pytest.raises(AssertionError):
            assert_same_bits(first.state(), other.state())


@pytest.mark.parametrize("options", [{}, {"blackbox": 2, "samples": 2}], ids=["plain", "all"])
@pytest.mark.parametrize("make", named(odd_loops.ALL))
def test_odd_loops_end_in_the_same_bits(make, options, root):
    alone = started(make)
    for step in range(STEPS):
        alone.step(step)
    expected = alone.state()
    loop = started(make)
    watched(loop, root, **options)
    assert_same_bits(expected, loop.state())


def hooks(loop: loops.Loop) -> dict[str, object]:
    """Everything that can be hung on a process, a module, a parameter or an optimizer."""
    found: dict[str, object] = {
        "modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "backward": torch.Tensor.backward,
        "checkpoints": vars(CheckpointFunction).get("apply"),
    }
    owners: list[tuple[str, object]] = [
        ("torch.nn", torch_module),
        ("torch.optim", torch_optimizer),
        *((f"optimizer {n}", optimizer) for n, optimizer in enumerate(loop.optimizers)),
    ]
    for prefix, model in loop.models.items():
        owners += model.named_modules(prefix=f"{prefix}/module")
        owners += model.named_parameters(prefix=f"{prefix}/parameter")
        owners += model.named_buffers(prefix=f"{prefix}/buffer")
    for name, owner in owners:
        if isinstance(owner, nn.Module):
            found[f"{name} has"] = set(vars(owner))
        attributes = dir(type(owner)) if isinstance(owner, torch.Tensor) else vars(owner)
        for attribute in (each for each in attributes if "hook" in each):
            value = getattr(owner, attribute)
            if value is None or isinstance(value, dict):  # torch makes some when it needs them
                found[f"{name}.{attribute}"] = list(value or ())
    return found


@pytest.mark.parametrize("make", named([*loops.ALL, *odd_loops.ALL]))
def test_finish_leaves_every_hook_as_it_was(make, root):
    loop = started(make)
    loop.step(0)  # torch and its optimizers make things of their own in a first step
    before = hooks(loop)
    run = backlight.watch(loop.watched, loop.optimizers, root=root, every=1)
    assert hooks(loop) != before
    loop.step(1)
    loop.step(2)
    run.finish()
    after = hooks(loop)
    same = {name: kept for name, kept in before.items() if name in after}
    assert len(same) > len(before) / 2
    assert {name: after[name] for name in same} == same
    assert not any(after[name] for name in after.keys() - same.keys() if "hook" in name)


def test_an_exception_leaves_no_hook_either(root):
    loop = started(loops.whole(loops.models.mlp))
    before = hooks(loop)
    with (
        pytest.raises(ZeroDivisionError),
        backlight.watch(loop.watched, loop.optimizers, root=root, every=1),
    ):
        loop.step(0)
        loop.models[""](torch.ones(2, 12)).sum().backward()
        raise ZeroDivisionError
    assert hooks(loop) == before


def test_what_torch_forgets_to_clear_does_not_grow(root):
    loop = started(loops.whole(loops.models.mlp))
    before = len(torch_module._global_forward_hooks_with_kwargs)
    with backlight.watch(loop.watched, loop.optimizers, root=root, every=2):
        for step in range(20):
            loop.step(step)
    assert len(torch_module._global_forward_hooks_with_kwargs) == before


def test_gradients_belong_to_the_iteration_that_their_value_belongs_to(root):
    torch.manual_seed(0)
    cell = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    states = [torch.zeros(2, 3, requires_grad=True)]
    with backlight.watch(cell, optimizer, root=root, every=1) as run:
        for _ in range(4):
            with run.iteration():
                states.append(cell(torch.ones(2, 3), states[-1]))
                states[-1].retain_grad()
        states[-1].sum().backward()
        optimizer.step()
    rows = {row["iteration"]: row for row in find(run.path, "(model):in.1", "grad")}
    assert sorted(rows) == [0, 1, 2, 3]
    for iteration, row in rows.items():
        assert_row_is(row, Sight(states[iteration].grad, "input"), iteration)


@pytest.mark.parametrize("times", [1, 2])
def test_what_runs_before_the_first_iteration_is_told_from_what_runs_in_it(times, root):
    torch.manual_seed(0)
    cell = Tapping(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with backlight.watch(cell, optimizer, root=root, every=1) as run:
        for _ in range(5):
            states = [torch.zeros(2, 3, requires_grad=True)]
            for _ in range(times):
                states.append(cell(states[-1]))
            for _ in range(2):
                with run.iteration():
                    states.append(cell(states[-1]))
            for state in states:
                state.retain_grad()
            states[-1].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for name in ("(model){}:out.0", "{}state"):
        for number, state in enumerate(states[1:], start=1):
            call = f"#{number}" if 1 < number < times + 2 else ""
            full = name.format(call if "model" in name else f"(model){call}:" if call else "")
            for quantity, tensor in {"value": state.detach(), "grad": state.grad}.items():
                [row] = find(run.path, full, quantity, step=4, iteration=max(number - times - 1, 0))
                expected = Sight(tensor, row["tensor_class"], 1 if quantity == "value" else None)
                assert_row_is(row, expected, (full, quantity))


@pytest.mark.parametrize("where", ["after all", "in the last", "in each", "in micro-batches"])
def test_a_checkpoints_gradients_are_of_the_iteration_that_ran_it_or_missing(where, root):
    """Reentrant ones run again in the backward pass, where nothing tells iterations apart."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"before": nn.Linear(3, 3), "cell": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3, requires_grad=True)
    expected: dict[tuple[str, int], torch.Tensor] = {}

    def run_again(name: str, given: torch.Tensor, iteration: int) -> torch.Tensor:
        hidden = checkpoint(model[name], given, use_reentrant=True)
        hidden.register_hook(lambda grad: expected.update({(name, iteration): grad}))
        return hidden.tanh() * (iteration + 1)

    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(7):
            expected.clear()
            state = run_again("before", x, 0)
            for number in range(3):
                is_apart = where == "in micro-batches"
                with nullcontext() if is_apart else run.iteration():
                    state = run_again("cell", state, number)
                    if where.startswith("in ") and (where != "in the last" or number == 2):
                        state.sum().backward()
                        state = state.detach().requires_grad_()
            if where == "after all":
                state.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {
        (name, row["iteration"]): row
        for name in ("before", "cell")
        for row in find(run.path, f"{name}:out.0", "grad", step=6)
    }
    for (name, iteration), row in found.items():
        assert_row_is(row, Sight(expected[name, iteration], "output"), (name, iteration))
    is_told = {"after all": {("before", 0)}, "in the last": set()}
    assert set(found) == is_told.get(where, set(expected))


class Tapping(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return backlight.tap(super().forward(x), "state")


def test_in_inference_mode_a_change_in_place_is_seen(root):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 4)
    run = backlight.watch(model, optimizer, root=root, every=1)
    with run, run.step(kind="evaluation"), torch.inference_mode():
        model(x)
    hidden = model[0](x).detach()
    for name, tensor in {
        "1:in.0": hidden,
        "1:out.0": hidden.relu(),
        "2:in.0": hidden.relu(),
    }.items():
        [row] = find(run.path, name)
        assert_row_is(row, Sight(tensor, name[2:].rstrip(".0") + "put", 1), name)
