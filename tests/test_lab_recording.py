"""Flows that are recorded while a model trains: the truth, the same bits, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loops import assert_same_bits
from torch import nn

import backlight
from backlight.errors import BacklightError, BacklightWarning
from backlight.laboratory.interface import Objective, Question
from backlight.laboratory.opening import adapter_of
from backlight.laboratory.session import Session
from backlight.store.recorded_flows import RecordedFlows, files_of_steps, read_flows


class Net(nn.Module):
    """In-place operations, dropout, batch normalisation and a skip connection between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        around = first.mean((1, 2, 3))
        second = self.second(self.drop(self.act(first)))
        mixed = backlight.tap(self.norm(second).relu(), "mixed")
        return self.head(mixed.flatten(1)) + around[:, None] * torch.eye(3)[0]


def train(
    root: Path | None,
    ask: Callable[[backlight.Run], object] = lambda run: None,
    *,
    steps: int = 4,
    make: Callable[[], nn.Module] = Net,
    on_step: Callable[[int, nn.Module], object] = lambda step, model: None,
    **options: Any,
) -> tuple[dict[str, Any], Path | None]:
    """Train a little, and give all that training leaves behind."""
    torch.manual_seed(5)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = None
    if root is not None:
        run = backlight.watch(model, optimizer, root=root, **{"every": 1, **options})
        ask(run)
    with run or nullcontext():
        for step in range(steps):
            on_step(step, model)
            x = torch.randn(5, 1, 6, 6)
            loss = nn.functional.cross_entropy(model(x), torch.randint(3, (5,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "hooks": [torch.Tensor.register_hook, torch.Tensor.retain_grad],
        "held": model.held.grad if hasattr(model, "held") and model.held.retains_grad else None,
    }
    return state, None if run is None else run.path


def ask_for_all(run: backlight.Run) -> None:
    run.flow("first", "second", sample=2)
    run.flow("second", "mixed", sample=2)
    run.flow("mixed", "head:out.0", sample=2)


def test_training_ends_in_the_same_bits(tmp_path: Path) -> None:
    bare, _ = train(None)
    recorded, path = train(tmp_path, ask_for_all)
    assert_same_bits(bare, recorded)
    assert path is not None
    assert [len(read_flows(file)) for file in files_of_steps(path).values()] == [3] * 4


def brute_force(model: Net, x: torch.Tensor, target: torch.Tensor, sample: int) -> dict[str, Any]:
    """The Jacobian from the first to the second layer, one product for each cell of it."""
    first = model.first(x)
    first.retain_grad()
    second = model.second(model.drop(first.relu()))
    second.retain_grad()
    mixed = model.norm(second).relu()
    out = model.head(mixed.flatten(1)) + first.mean((1, 2, 3))[:, None] * torch.eye(3)[0]
    nn.functional.cross_entropy(out, target).backward(retain_graph=True)
    grads = [each.grad[sample].clone() for each in (first, second)]
    flows = []
    for cell in range(second[sample].numel()):
        chosen = second[sample].reshape(-1)[cell]
        (grad,) = torch.autograd.grad(chosen, first, retain_graph=True)
        flows.append(grad[sample].reshape(-1) * grads[1].reshape(-1)[cell])
    return {
        "flows": torch.stack(flows, 1).numpy(),
        "first": grads[0].numpy(),
        "second": grads[1].numpy(),
        "values": second[sample].detach().numpy(),
    }


def dense(read: RecordedFlows) -> np.ndarray[Any, Any]:
    matrix = np.zeros((read.source_grad.size, read.sink_grad.size))
    matrix[read.source_cells, read.sink_cells] = read.flows
    return matrix


def test_flows_are_those_of_the_jacobian_with_the_same_dropout(tmp_path: Path) -> None:
    expected: list[dict[str, Any]] = []

    def look(step: int, model: nn.Module) -> None:
        state, buffers = torch.get_rng_state(), [b.clone() for b in model.buffers()]
        x, target = torch.randn(5, 1, 6, 6), None
        # The step draws its input, its dropout and its target in this order.
        after_input = torch.get_rng_state()
        model.drop(torch.ones(5, 3, 6, 6))
        target = torch.randint(3, (5,))
        torch.set_rng_state(after_input)
        grads = [p.grad for p in model.parameters()]
        expected.append(brute_force(model, x, target, 2))  # type: ignore[arg-type]
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        for buffer, copy in zip(model.buffers(), buffers, strict=True):
            buffer.data.copy_(copy)
        torch.set_rng_state(state)

    # Looked at outside of the run: the same steps, the same random numbers.
    train(None, on_step=look)
    _, path = train(tmp_path, ask_for_all)
    assert path is not None
    for step, file in files_of_steps(path).items():
        read = next(each for each in read_flows(file) if each.sink == "second")
        truth = expected[step]
        np.testing.assert_allclose(read.sink_grad, truth["second"], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(read.sink_value, truth["values"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dense(read), truth["flows"], atol=1e-6)
        assert np.abs(read.around).max() > 1e-4  # the skip connection
        sums = dense(read).sum(1) + (read.around + read.left_out).reshape(-1)
        np.testing.assert_allclose(sums, read.source_grad.reshape(-1), atol=1e-6)
        np.testing.assert_allclose(read.source_grad, truth["first"], atol=1e-6)
        assert read.residual is not None and read.residual < 1e-5
        assert read.reach == ((2, -1, 1), (2, -1, 1)) and read.products <= 4 * 4


def test_the_largest_are_kept_and_the_rest_is_summed(tmp_path: Path) -> None:
    _, whole = train(tmp_path, lambda run: run.flow("first", "second"), steps=1)
    _, few = train(tmp_path, lambda run: run.flow("first", "second", top=20), steps=1)
    _, cheap = train(tmp_path, lambda run: run.flow("first", "second", products=3), steps=1)
    assert whole and few and cheap
    everything, thin, asked = (
        read_flows(files_of_steps(each)[0])[0] for each in (whole, few, cheap)
    )
    assert len(thin.flows) == 20 and thin.count == everything.count == len(everything.flows)
    largest = np.sort(np.abs(everything.flows))[::-1][:20]
    np.testing.assert_array_equal(np.sort(np.abs(thin.flows))[::-1], largest)
    for read in (thin, asked):
        sums = dense(read).sum(1) + (read.around + read.left_out).reshape(-1)
        np.testing.assert_allclose(sums, read.source_grad.reshape(-1), atol=1e-6)
    assert asked.products == 3 < asked.products_wanted and asked.residual is None


def test_flows_have_a_rhythm_of_their_own(tmp_path: Path) -> None:
    ask = lambda run: run.flow("first", "head", every=4)  # noqa: E731
    _, path = train(tmp_path, ask, steps=10, every=3)
    assert path is not None
    assert list(files_of_steps(path)) == [0, 6]  # of the recorded steps 0, 3, 6 and 9


def test_statistics_are_the_same_with_flows_and_without(tmp_path: Path) -> None:
    def stats(path: Path | None) -> Any:
        assert path is not None
        return backlight.open(path).stats().arrow().drop_columns(["order"])

    plain, with_flows = (stats(train(tmp_path, ask)[1]) for ask in (lambda run: None, ask_for_all))
    assert plain.equals(with_flows)


@pytest.mark.parametrize("where", ["tensor", "module", "retained"])
def test_hooks_of_the_users_are_not_called_more_often(tmp_path: Path, where: str) -> None:
    calls: list[int] = []

    class Hooked(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if where != "module":
                self.held = x = self.act(self.first(x))
                x.register_hook(
                    lambda grad: calls.append(1)
                ) if where == "tensor" else x.retain_grad()
                return self.head(self.norm(self.second(x)).flatten(1))
            return super().forward(x)

    def make() -> nn.Module:
        model = Hooked()
        if where == "module":
            model.act = nn.ReLU()
            model.second.register_full_backward_hook(lambda *_: calls.append(1))
        return model

    ask = lambda run: run.flow("first", "second")  # noqa: E731
    bare, _ = train(None, make=make)
    before = len(calls)
    with pytest.raises(BacklightError, match="a hook of yours"):
        train(tmp_path, ask, make=make)
    calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKLIGHT_STRICT", "0")
        with pytest.warns(BacklightWarning, match="a hook of yours"):
            recorded, path = train(tmp_path, ask, make=make)
    assert_same_bits(bare, recorded)
    assert len(calls) == before and path is not None and not files_of_steps(path)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.flow("first", "nowhere"), "found no tensor 'nowhere'"),
        (lambda run: run.flow("second", "first"), "does not depend on the first"),
        (lambda run: run.flow("first", "second", every=0), "every=0: pass a number"),
        (lambda run: run.flow("first", 3), "got 3 as name"),
        (lambda run: run.flow("first", "second", sample=9), "sample 9 of 5"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Any, message: str
) -> None:
    bare, _ = train(None, steps=2)
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    with pytest.warns(BacklightWarning, match=message):
        recorded, _ = train(tmp_path, ask, steps=2)
    assert_same_bits(bare, recorded)


def test_a_fault_while_computing_never_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, _ = train(None, steps=2)
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    monkeypatch.setattr("backlight.laboratory.flows.plan", lambda *_: 1 / 0)
    with pytest.warns(BacklightWarning, match="while computing flows: ZeroDivisionError"):
        recorded, path = train(tmp_path, ask_for_all, steps=2)
    assert_same_bits(bare, recorded)
    assert path is not None and not files_of_steps(path)


def test_an_evaluation_is_no_reason_to_complain(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        run.flow("first", "second")
        with run.step(kind="evaluation"), torch.no_grad():
            model(torch.ones(3, 1, 6, 6))
        model(torch.ones(3, 1, 6, 6)).sum().backward()
        optimizer.step()
    assert list(files_of_steps(run.path)) == [1]


def links(session: Session, **asked: Any) -> dict[str, dict[str, Any]]:
    found = session.picture(asked, lambda: None)
    return {each["sink"]: each for each, _ in found if each["event"] == "links"}


def test_the_lab_shows_a_recorded_run_step_by_step(tmp_path: Path) -> None:
    def ask(run: backlight.Run) -> None:
        run.flow("first", "second", sample=2, top=40)
        run.flow("mixed", "head", sample=2)

    _, path = train(tmp_path, ask)
    assert path is not None
    adapter = adapter_of(path)
    session = Session(adapter)
    assert session.description.steps == (0, 1, 2, 3)
    assert session.description.chosen == ("first", "second", "mixed", "head")
    assert not session.description.can_edit
    for step in (0, 3):
        recorded = {each.sink: each for each in read_flows(files_of_steps(path)[step])}
        found = links(session, step=step)
        assert found["second"]["residual"] < 1e-5 and found["head"]["residual"] < 1e-5
        assert found["second"]["count"] == 40 and not found["second"]["is_exact"]
        assert "The 40 largest of" in found["second"]["note"]
        assert found["head"]["count"] == recorded["head"].count and found["head"]["is_exact"]
        assert "Interpolated" in found["mixed"]["note"] and not found["mixed"]["is_exact"]
        activity = adapter.run(Question(0, ("mixed", "head"), Objective(), step=step))
        cell = int(np.abs(activity.grads["head"]).argmax())
        traced = adapter.trace("head", [cell])
        np.testing.assert_allclose(traced["mixed"], dense(recorded["head"])[:, cell], atol=1e-7)
    with pytest.raises(BacklightError, match="No flows were recorded at step 9"):
        links(session, step=9)


def test_a_run_without_flows_says_what_to_do(tmp_path: Path) -> None:
    _, path = train(tmp_path, steps=1)
    assert path is not None
    with pytest.raises(BacklightError, match=r"call run.flow\(source, sink\)"):
        adapter_of(path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    _, path = train(tmp_path, ask_for_all, steps=1)
    assert path is not None
    file = files_of_steps(path)[0]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(BacklightError, match=r"0-0\.safetensors"):
        read_flows(file)
