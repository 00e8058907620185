"""Gradients that mean one thing each: as autograd made them, as the optimizer saw them, and what
the step did."""

from __future__ import annotations

import weakref

import pytest
import torch
from reading import find, observations, read
from torch import nn

import backlight


def numbers(tensor: torch.Tensor) -> tuple[float, float, float]:
    wide = tensor.detach().double()
    return wide.mean().item(), wide.std(correction=0).item(), wide.abs().max().item()


def assert_is(row: dict, tensor: torch.Tensor) -> None:
    found = row["mean"], row["std"], row["abs_max"]
    assert found == pytest.approx(numbers(tensor), rel=1e-6, abs=1e-12)


def linear(seed: int = 0) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def test_a_plain_step_has_one_gradient_and_its_update(root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.randn(4, 3)).square().sum().backward()
        before, grad = model.weight.detach().clone(), model.weight.grad.clone()
        optimizer.step()
    assert_is(find(run.path, "weight")[0], before)
    assert_is(find(run.path, "weight", "grad")[0], grad)
    assert_is(find(run.path, "weight", "update")[0], model.weight - before)
    # What the optimizer saw is what autograd made, so it is not stored a second time.
    assert find(run.path, "weight", "grad_applied") == []


def test_clipping_shows_in_what_the_optimizer_saw(root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.randn(4, 3)).square().sum().backward()
        made = model.weight.grad.clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        applied = model.weight.grad.clone()
        optimizer.step()
    assert applied.abs().max() < made.abs().max()
    assert_is(find(run.path, "weight", "grad")[0], made)
    assert_is(find(run.path, "weight", "grad_applied")[0], applied)


@pytest.mark.parametrize("has_closure", [False, True])
def test_a_clipping_that_has_nothing_to_clip_stores_nothing(has_closure, root):
    model, optimizer = linear()
    x = torch.randn(4, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        return loss

    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(6):
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert len(find(run.path, "weight", "grad")) == 6
    assert find(run.path, "weight", "grad_applied") == []


def test_accumulation_keeps_micro_batches_apart(root):
    model, optimizer = linear()
    made = []
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            before = 0 if model.weight.grad is None else model.weight.grad.clone()
            model(torch.randn(4, 3)).square().sum().backward()
            made.append(model.weight.grad - before)
        total = model.weight.grad.clone()
        optimizer.step()
    rows = find(run.path, "weight", "grad")
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    for row, grad in zip(rows, made, strict=True):
        assert row["abs_max"] == pytest.approx(grad.abs().max().item(), rel=1e-5)
    assert_is(find(run.path, "weight", "grad_applied")[0], total)
    values = find(run.path, "(model):out.0")
    assert [row["iteration"] for row in values] == [0, 1, 2]
    assert {site["call"] for site in read(run.path, "sites")} == {1}


def test_zeroing_in_place_still_gives_both(root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(4, 3)).square().sum().backward()
            applied = model.weight.grad.clone()
            optimizer.step()
    assert_is(find(run.path, "weight", "grad", step=1)[0], applied)
    assert_is(find(run.path, "weight", "grad_applied", step=1)[0], applied)


def test_a_scaled_loss_shows_scaled_and_unscaled_gradients(root):
    model, optimizer = linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        x = torch.randn(4, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().sum()
        scaler.scale(loss).backward()
        scaled = model.weight.grad.clone()
        scaler.step(optimizer)
        scaler.update()
    assert_is(find(run.path, "weight", "grad")[0], scaled)
    assert_is(find(run.path, "weight", "grad_applied")[0], scaled / 1024)
    assert find(run.path, "(model):out.0")[0]["dtype"] == "bfloat16"


def test_several_named_backward_passes_are_kept_apart(root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        out = model(torch.randn(4, 3))
        with run.backward("fit"):
            out.square().sum().backward(retain_graph=True)
        fit = model.weight.grad.clone()
        with run.backward("size"):
            out.abs().sum().backward()
        size = model.weight.grad - fit
        optimizer.step()
    rows = find(run.path, "weight", "grad")
    assert [row["backward"] for row in rows] == ["fit", "size"]
    assert_is(rows[0], fit)
    assert rows[1]["abs_max"] == pytest.approx(size.abs().max().item(), rel=1e-5)
    assert [row["backward"] for row in find(run.path, "(model):out.0", "grad")] == ["fit", "size"]


@pytest.mark.parametrize("every", [1, 2])
def test_a_named_pass_may_begin_the_step_and_has_its_name_in_each(every, root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=every) as run:
        for _ in range(6):
            optimizer.zero_grad()
            for name in ("left", "right"):
                with run.backward(name):
                    model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    for place in ("weight", "(model):out.0"):
        rows = find(run.path, place, "grad")
        expected = [(at, name) for at in range(0, 6, every) for name in ("left", "right")]
        assert [(row["step"], row["backward"]) for row in rows] == [*expected, (6, "")]


def test_double_backward_is_seen_each_time(root):
    model, optimizer = linear()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        x = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        grad = model.weight.grad.clone()
        optimizer.step()
    assert_is(find(run.path, "weight", "grad")[-1], grad)
    assert len(find(run.path, "(model):out.0", "grad")) == 2


def test_an_inputs_gradient_is_the_total_over_its_consumers(root):
    class Fan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            x = self.first(x)
            x.retain_grad()
            self.kept = x
            return self.left(x) + self.right(x)

    torch.manual_seed(0)
    model = Fan()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.randn(4, 3)).square().sum().backward()
        total = model.kept.grad.clone()
        optimizer.step()
    for name in ("first:out.0", "left:in.0", "right:in.0"):
        (row,) = find(run.path, name, "grad")
        assert_is(row, total)


class Branch(nn.Linear):
    """A user's hook may change the gradient of what it returns before anybody else sees it."""

    def __init__(self, change) -> None:
        super().__init__(3, 3)
        self.change = change
        self.made: list[torch.Tensor] = []
        self.kept: list[weakref.ref] = []

    def forward(self, x):
        out = super().forward(x)
        out.register_hook(self._on_grad)
        return out

    def _on_grad(self, grad):
        self.change(grad)
        self.kept.append(weakref.ref(grad))
        self.made.append(grad.clone())


class Residual(nn.Module):
    """The sum gives its gradient, the very same tensor, to the branch and to what is beside it."""

    def __init__(self, change) -> None:
        super().__init__()
        self.branch, self.last = Branch(change), nn.Linear(3, 2)
        self.made: list[torch.Tensor] = []

    def forward(self, x):
        total = self.branch(x) + x
        total.register_hook(lambda grad: self.made.append(grad.clone()))
        return self.last(total)


@pytest.mark.parametrize(
    "change",
    [lambda grad: None, lambda grad: grad.mul_(2), lambda grad: grad.data.mul_(2)],
    ids=["as it was", "in place", "unseen by autograd"],
)
@pytest.mark.parametrize("batch_size", [4, 30_000], ids=["small", "large"])
def test_a_gradient_that_two_tensors_share_is_that_of_both_unless_it_changes(
    root, change, batch_size
):
    torch.manual_seed(0)
    model = Residual(change)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(batch_size, 3)).square().mean().backward()
            optimizer.step()
    for site, made in (("last:in.0", model.made), ("branch:out.0", model.branch.made)):
        rows = find(run.path, site, "grad")
        assert [row["step"] for row in rows] == [0, 1, 2]
        for row, grad in zip(rows, made, strict=True):
            assert_is(row, grad)


@pytest.mark.parametrize("batch_size", [4, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("has_update", [True, False])
def test_no_gradient_is_kept_alive_beyond_its_step(root, has_update, batch_size):
    model = Residual(lambda grad: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(2):
            with run.step():
                model(torch.randn(batch_size, 3)).square().sum().backward()
                if has_update:
                    optimizer.step()
                    assert model.branch.kept[-1]() is None
            assert model.branch.kept[-1]() is None


class Blocked(torch.autograd.Function):
    """Hands its input on, and gives no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_where_a_function_gives_none_back_there_is_no_gradient(root):
    first, last = nn.Linear(3, 3), nn.Linear(3, 1)
    model = nn.Sequential(first, last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for number in range(8):
            optimizer.zero_grad()
            hidden = first(torch.randn(4, 3))
            scale = Blocked.apply(last.weight)
            is_blocked = number % 2 == 1
            last((Blocked.apply(hidden) if is_blocked else hidden) * scale).sum().backward()
            optimizer.step()
    for name in ("0:out.0", "0.weight"):
        assert [row["step"] for row in find(run.path, name, "grad")] == [0, 2, 4, 6]
    assert len(find(run.path, "1.weight", "grad")) == len(find(run.path, "1:in.0", "grad")) == 8
    assert len(find(run.path, "0:out.0")) == 8


def test_the_gradient_of_an_iteration_that_has_none_is_not_that_of_the_next(root):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3, requires_grad=True)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            for is_blocked in (True, False):
                with run.iteration():
                    out = model(x)
                    (Blocked.apply(out) if is_blocked else out).sum().backward()
            optimizer.step()
    assert [row["iteration"] for row in find(run.path, "(model):in.0", "grad")] == [1, 1, 1]
    assert [row["iteration"] for row in find(run.path, "weight", "grad")] == [1, 1, 1]


def test_an_in_place_change_of_a_view_leaves_the_gradient_out_and_never_0(root):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.view = nn.Linear(4, 4), nn.Flatten(0)

        def forward(self, x):
            out = self.view(self.layer(x))
            out *= 2
            return out

    model = Viewing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    assert all(row["zeros"] < row["count"] for row in find(run.path, "view:out.0", "grad"))
    assert len(find(run.path, "(model):out.0", "grad")) == 1


def test_two_models_and_two_optimizers_make_one_step(root):
    torch.manual_seed(0)
    models = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in models.values()]
    generator, critic = models.values()
    with backlight.watch(models, optimizers, root=root, every=1) as run:
        for _ in range(2):
            fake = generator(torch.randn(4, 2))
            optimizers[1].zero_grad()
            (critic(torch.randn(4, 3)) - critic(fake.detach())).sum().backward()
            of_critic = critic.weight.grad.clone()
            optimizers[1].step()
            optimizers[0].zero_grad()
            critic(fake).sum().backward()
            of_generator = generator.weight.grad.clone()
            optimizers[0].step()
    assert run.current_step == 1
    assert_is(find(run.path, "generator.weight", "grad", step=1)[-1], of_generator)
    seen = find(run.path, "critic.weight", "grad", step=1)
    assert_is(seen[0], of_critic)
    assert len(seen) == 2  # its own, and the one that the generator's loss leaves on it
    assert {row["step"] for row in find(run.path, "generator.weight", "update")} == {0, 1}


def test_lbfgs_runs_its_closure_inside_the_step(root):
    model, _ = linear()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(2):
            before = model.weight.detach().clone()
            optimizer.step(closure)
    assert run.current_step == 1
    assert_is(find(run.path, "weight", "value", step=1)[0], before)
    assert len(find(run.path, "weight", "grad", step=1)) >= 2


def test_a_frozen_part_is_recorded_once_and_stays_frozen(root):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
    assert not any(p.requires_grad for p in model[0].parameters())
    assert len(find(run.path, "0.weight")) == 1
    assert len(find(run.path, "1.weight")) == 3
    assert find(run.path, "0.weight", "grad") == []


def test_buffers_are_recorded_when_they_change(root):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_buffer("fixed", torch.arange(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            model(torch.randn(8, 3)).sum().backward()
            optimizer.step()
    assert len(find(run.path, "1.running_mean")) == 3
    assert len(find(run.path, "1.num_batches_tracked")) == 3
    assert len(find(run.path, "fixed")) == 1
    assert {r["tensor_class"] for r in observations(run.path) if r["name"] == "fixed"} == {"buffer"}


def test_sparse_gradients_are_read_in_full(root):
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters())
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
    row = find(run.path, "0.weight", "grad")[0]
    assert (row["count"], row["zeros"], row["max"]) == (10, 6, 2.0)


class TestNestedStates:
    """What an optimizer keeps in lists and dicts: histories, factors, copies."""

    def test_the_history_of_lbfgs(self, root):
        model, _ = linear()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)
        x = torch.randn(16, 3)

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - x.prod(1, keepdim=True)).abs().pow(3).mean()
            loss.backward()
            return loss

        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(2):
                optimizer.step(closure)
        [kept] = optimizer.state.values()
        assert len(kept["old_dirs"]) == 3
        for key in ("old_dirs", "old_stps", "ro"):
            for number, tensor in enumerate(kept[key]):
                assert_is(find(run.path, f"weight:{key}.{number}", step=1)[0], tensor)
        assert_is(find(run.path, "weight:d", step=1)[0], kept["d"])

    @pytest.mark.parametrize("every", [1, 2])
    def test_dicts_and_what_is_of_any_length(self, root, every):
        class Keeping(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        p -= 0.01 * p.grad
                        self.state[p].setdefault("history", []).append(p.grad.clone())
                        self.state[p]["factors"] = {"left": p * 2, "parts": (None, p * 3), "n": 5}
                        self.state[p]["plain"] = p * 4

        model, _ = linear()
        optimizer = Keeping(model.parameters(), {})
        with backlight.watch(model, optimizer, root=root, every=every) as run:
            for _ in range(41):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().sum().backward()
                optimizer.step()
        kept = optimizer.state[model.weight]
        assert_is(find(run.path, "weight:factors.left")[-1], kept["factors"]["left"])
        assert_is(find(run.path, "weight:factors.parts.1")[-1], kept["factors"]["parts"][1])
        assert_is(find(run.path, "weight:history.31")[-1], kept["history"][31])
        assert find(run.path, "weight:history.32") == []
        assert_is(find(run.path, "weight:plain")[-1], kept["plain"])


@pytest.mark.parametrize("is_again", [False, True])
def test_each_of_several_roots_of_a_backward_pass_is_recorded_once(root, is_again):
    model, optimizer = linear()
    losses = []
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(4):  # the first ones are followed, the last one is not
            optimizer.zero_grad()
            out = model(torch.randn(4, 3))
            roots = [out.square().mean(), out.abs().mean(), out.sum()]
            if is_again:
                torch.autograd.backward(roots, retain_graph=True)
            torch.autograd.backward(roots)
            optimizer.step()
            losses.append([each.item() for each in roots])
    passes = 2 if is_again else 1
    for number, name in enumerate(["(loss)", "(loss)#2", "(loss)#3"]):
        found = [row["mean"] for row in find(run.path, name)]
        assert found == pytest.approx([each[number] for each in losses])
        assert len(find(run.path, name, "grad")) == 4 * passes
    names = {row["name"] for row in read(run.path, "sites")}
    assert "(loss)#4" not in names
    assert len(find(run.path, "weight", "grad")) == 4 * passes


@pytest.mark.parametrize("every", [1, 2])
def test_an_optimizer_that_calls_the_step_of_its_class_ends_one_step(root, every):
    class Derived(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model, _ = linear()  # with an SGD, whose class torch hooks then
    optimizer = Derived(model.parameters(), lr=0.1, momentum=0.9)
    with backlight.watch(model, optimizer, root=root, every=every) as run:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
    assert [row["step"] for row in read(run.path, "steps")] == list(range(5))
    for name, quantity in {"weight": "value", "weight:momentum_buffer": "value"}.items():
        rows = find(run.path, name, quantity)
        assert [row["step"] for row in rows] == list(range(0, 5, every))
    assert len(find(run.path, "weight", "update")) == len(range(0, 5, every))
