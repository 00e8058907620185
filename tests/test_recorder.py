"""What a user relies on when a loop is watched: the same bits, the right numbers, nothing left."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import models
import pyarrow as pa
import pytest
import torch
from reading import find, observations, read
from torch import nn
from torch.nn.modules import module as torch_module

import backlight
from backlight.capture import modules as capture_modules
from backlight.errors import MOST_KINDS, Guard

pytestmark = pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")


def assert_same(left: object, right: object, where: str = "state") -> None:
    """Equal to the bit, NaN included."""
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        assert left.dtype == right.dtype and left.shape == right.shape, where
        assert left.numpy().tobytes() == right.numpy().tobytes(), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}[{key!r}]")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{where}[{place}]")
    else:
        assert left == right, where


def final_state(make, root: Path | None, steps: int = 7, every: int = 1) -> dict:
    torch.manual_seed(11)
    problem = make()
    if root is None:
        models.train(problem, steps)
    else:
        with backlight.watch(problem.model, problem.optimizer, root=root, every=every) as run:
            models.train(problem, steps, lambda loss: run.log(loss=loss))
    return {
        "model": problem.model.state_dict(),
        "optimizer": problem.optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("make", models.ALL, ids=lambda make: make.__name__)
def test_training_ends_in_the_same_bits(make, every, root):
    assert_same(final_state(make, None), final_state(make, root, every=every))


def test_the_comparison_of_bits_can_fail():
    torch.manual_seed(11)
    other = models.mlp()
    models.train(other, 6)
    with pytest.raises(AssertionError):
        assert_same(final_state(models.mlp, None)["model"], other.model.state_dict())


def hand_statistics(tensor: torch.Tensor) -> tuple[float, float, float]:
    wide = tensor.detach().double()
    return wide.mean().item(), wide.std(correction=0).item(), wide.abs().max().item()


def test_statistics_are_those_of_the_tensors(root):
    torch.manual_seed(0)
    layer, activation = nn.Linear(4, 3), nn.Tanh()
    model = nn.Sequential(layer, activation)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root) as run:
        x = torch.randn(6, 4)
        weight = layer.weight.detach().clone()
        hidden = layer(x)
        hidden.retain_grad()
        out = activation(hidden)
        out.square().sum().backward()
        grads = {"0:out.0": hidden.grad.clone(), "0.weight": layer.weight.grad.clone()}
        optimizer.step()
    expected = {
        ("0:out.0", "value"): hidden,
        ("1:out.0", "value"): out,
        ("0:out.0", "grad"): grads["0:out.0"],
        ("0.weight", "value"): weight,
        ("0.weight", "grad"): grads["0.weight"],
        ("0.weight:exp_avg", "value"): optimizer.state[layer.weight]["exp_avg"],
    }
    rows = {(row["name"], row["quantity"]): row for row in observations(run.path)}
    for key, tensor in expected.items():
        row = rows[key]
        found = row["mean"], row["std"], row["abs_max"]
        assert found == pytest.approx(hand_statistics(tensor), rel=1e-6, abs=1e-12), key
        assert row["shape"] == list(tensor.shape)


def test_in_place_operations_do_not_change_what_was_seen(root):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    before = hand_statistics(nn.functional.linear(x, model[0].weight, model[0].bias))
    with backlight.watch(model, optimizer, root=root) as run:
        model(x).sum().backward()
        optimizer.step()
    rows = {(row["name"], row["quantity"]): row for row in observations(run.path)}
    assert rows["0:out.0", "value"]["min"] < 0
    assert rows["0:out.0", "value"]["std"] == pytest.approx(before[1])
    # The gradient before the ReLU is 0 where it cut off, and 1 elsewhere.
    assert rows["0:out.0", "grad"]["zeros"] == rows["1:out.0", "value"]["zeros"] > 0
    assert rows["1:out.0", "grad"]["zeros"] == 0


@pytest.mark.parametrize("make", [models.checkpointed, models.checkpointed_reentrant])
def test_checkpointing_shows_each_value_and_each_gradient_once(make, root):
    problem = make()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 1)
    rows = [(row["name"], row["quantity"]) for row in observations(run.path)]
    for name in ("first:out.0", "inner.0:out.0", "inner.2:out.0", "last:out.0"):
        assert rows.count((name, "value")) == 1, name
        assert rows.count((name, "grad")) == 1, name


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_a_step_may_begin_in_a_checkpoint_and_an_evaluation_in_one_is_none(every, root):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run_again = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
    losses = []
    with backlight.watch(model, optimizer, root=root, every=every) as run:
        for number in range(7):
            x = torch.randn(8, 4, requires_grad=True)
            with torch.no_grad():
                run_again(model, x)
            assert run.current_step == number - 1
            loss = run_again(model, run_again(torch.sin, x)).square().mean()
            assert run.current_step == number
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
    assert [row["loss"] for row in read(run.path, "steps")] == losses
    recorded = len(range(0, 7, every))
    for name in ("(model):in.0", "0:out.0", "(model):out.0", "2.weight"):
        for quantity in ("value", "grad"):
            assert len(find(run.path, name, quantity)) == recorded, (name, quantity)


@pytest.mark.parametrize("every", [1, 2])
def test_the_first_step_may_begin_in_a_checkpoint_in_another_thread(every, root):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(4):
            x = torch.ones(2, 4, requires_grad=True)
            torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum().backward()
            optimizer.step()

    with backlight.watch(model, optimizer, root=root, every=every) as run:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    steps = list(range(0, 4, every))
    for quantity in ("value", "grad"):
        assert [row["step"] for row in find(run.path, "(model):out.0", quantity)] == steps


def test_a_checkpoint_that_fails_leaves_no_evaluation_to_begin_a_step(root):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root) as run:
        x = torch.ones(1, requires_grad=True)
        with pytest.raises(ZeroDivisionError):
            torch.utils.checkpoint.checkpoint(lambda _: 1 / 0, x, use_reentrant=True)
        with torch.no_grad():
            model(torch.ones(1, 4))
        assert run.current_step == -1


def test_calls_iterations_and_nested_outputs_have_names(root):
    problem = models.changing()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 3)
    names = {site["name"] for site in read(run.path, "sites")}
    assert {"split:out.left", "split#3:out.right", "join#2:out.0", "(model):out.out"} <= names
    by_step = {row["step"] for row in observations(run.path) if row["name"] == "rare:out.0"}
    assert by_step == {2}


def test_iterations_are_numbered_and_count_calls_anew(root):
    model = nn.RNNCell(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root) as run:
        for length in (2, 4):
            state = torch.zeros(2, 3)
            for _ in range(length):
                with run.iteration():
                    state = model(torch.ones(2, 3), state)
            state.sum().backward()
            optimizer.step()
    rows = [row for row in observations(run.path) if row["name"] == "(model):out.0"]
    seen = [(r["step"], r["iteration"]) for r in rows if r["quantity"] == "value"]
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert sorted((r["step"], r["iteration"]) for r in rows if r["quantity"] == "grad") == seen


def test_tied_parameters_are_recorded_once_with_all_names(root):
    problem = models.tied_transformer()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 1)
    sites = {site["name"]: site for site in read(run.path, "sites")}
    assert sites["embed.weight"]["aliases"] == ["head.weight"]
    assert "head.weight" not in sites


def test_a_log_belongs_to_the_step_around_it(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        run.log(before=1)
        for step in range(3):
            problem.optimizer.zero_grad()
            loss = problem.loss(step)
            run.log(inside=step)
            loss.backward()
            problem.optimizer.step()
            run.log(after=step)
            with torch.no_grad():
                problem.model(torch.ones(1, 12))
            run.log(evaluated=step)
    logged = [(row["name"], row["step"], row["value"]) for row in read(run.path, "scalars")]
    assert logged[0] == ("before", 0, 1.0)
    for name in ("inside", "after", "evaluated"):
        assert [(s, v) for n, s, v in logged if n == name] == [(0, 0), (1, 1), (2, 2)], name
    assert max(row["step"] for row in read(run.path, "stats")) == 2


def test_an_evaluation_between_steps_is_not_part_of_a_step(root):
    problem = models.mlp()

    def evaluate(_: torch.Tensor) -> None:
        with torch.no_grad():
            problem.model(torch.ones(64, 12))

    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 2, evaluate)
    shapes = {tuple(row["shape"]) for row in observations(run.path) if row["place"] == "out.0"}
    assert all(shape[0] == 16 for shape in shapes)


def test_only_every_nth_step_is_recorded_and_each_step_is_known(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root, every=3) as run:
        models.train(problem, 7, lambda loss: run.log(loss=loss))
    assert [row["step"] for row in read(run.path, "steps")] == list(range(7))
    assert [row["step"] for row in read(run.path, "steps") if row["recorded"]] == [0, 3, 6]
    assert sorted({row["step"] for row in read(run.path, "stats")}) == [0, 3, 6]
    assert len(read(run.path, "scalars")) == 7


def hooks_of(model: nn.Module) -> int:
    on_modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    process_wide = len(torch_module._global_forward_hooks) + len(
        torch_module._global_forward_pre_hooks
    )
    on_parameters = sum(len(p._backward_hooks or ()) for p in model.parameters())
    return on_modules + process_wide + on_parameters


def test_finish_removes_every_hook_and_may_be_called_again(root):
    problem = models.mlp()
    run = backlight.watch(problem.model, problem.optimizer, root=root)
    models.train(problem, 2)
    assert hooks_of(problem.model) > 0
    run.finish()
    written = read(run.path, "stats")
    run.finish()
    assert hooks_of(problem.model) == 0
    assert not problem.optimizer._optimizer_step_pre_hooks
    assert not problem.optimizer._optimizer_step_post_hooks
    models.train(problem, 1)
    assert read(run.path, "stats") == written


def test_a_step_that_is_not_recorded_finds_parameters_as_they_were(root):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    early, late, plain = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []
    early.register_hook(seen.append)
    with backlight.watch(model, optimizer, root=root, every=2):
        for step in range(4):
            loss = model(torch.ones(1, 2)).sum()
            assert len(plain._backward_hooks or ()) == (step % 2 == 0)
            if step == 2:
                late.register_hook(seen.append)
            loss.backward()
            optimizer.step()
            assert plain._backward_hooks is None or step % 2 == 1
    assert len(seen) == 4 + 2
    assert len(early._backward_hooks) == len(late._backward_hooks) == 1
    assert plain._backward_hooks is None


def test_writing_counts_as_recording(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
        models.train(problem, 8)
    secs = [row["recording_secs"] for row in read(run.path, "steps")]
    told = json.loads((run.path / "run.json").read_text())["recorder"]
    assert told["recording_secs"] == pytest.approx(sum(secs), abs=1e-4)
    assert told["recording_secs"] > told["writing_secs"] * 7 / 8 > 0


class ReturnsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self) -> torch.Tensor:
        return self.weight


@pytest.mark.parametrize("every", [1, 2])
def test_a_parameter_that_is_swapped_has_its_hooks_and_those_of_the_user(root, every):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    with backlight.watch(model, optimizer, root=root, every=every) as run:
        for step in range(16):
            if step in (8, 12):
                torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(1, 2)))
            if step == 12:
                model.weight.register_hook(lambda _, step=step: seen.append(step))
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert len(seen) == 4
    steps = [row["step"] for row in find(run.path, "weight", "grad")]
    assert steps == list(range(0, 16, every))
    assert not find(run.path, "weight", "grad_applied")
    assert len(model.weight._backward_hooks) == 1


def test_a_swap_leaves_the_hooks_of_the_user_behind_as_it_does_without_a_run(root):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []
    with backlight.watch(model, optimizer, root=root, every=1):
        for step in range(14):
            if step in (4, 10):
                model.weight.register_hook(seen.append)
            if step == 8:
                torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(1, 2)))
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert len(seen) == 4


def test_a_parameter_that_is_an_output_gathers_no_hooks(root):
    model = ReturnsItsWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root) as run:
        for _ in range(5):
            optimizer.zero_grad()
            model().sum().backward()
            optimizer.step()
            assert len(model.weight._backward_hooks) == 1  # and not one more each time
    assert not model.weight._backward_hooks
    grads = [r for r in observations(run.path) if r["tensor_class"] == "output"]
    assert sum(row["quantity"] == "grad" for row in grads) == 5


def test_a_watched_model_can_be_copied_saved_and_exported(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 1)
        copied = copy.deepcopy(problem.model)
        buffer = io.BytesIO()
        torch.save(problem.model, buffer)
        rows = len(read(run.path, "stats"))
        copied(torch.ones(2, 12))
        assert b"backlight" not in buffer.getvalue()
        exported = torch.export.export(problem.model, (torch.ones(2, 12),))
        models.train(problem, 1)
    assert_same(copied.state_dict().keys(), problem.model.state_dict().keys())
    assert len(list(exported.graph.nodes)) > 3
    assert len(read(run.path, "stats")) == 2 * rows


def test_tensors_can_be_saved_in_a_recorded_step_without_a_warning(root):
    problem = models.mlp()
    x = torch.randn(4, next(problem.model.parameters()).shape[1], requires_grad=True)
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1):
        out = problem.model(x)
        assert x._backward_hooks
        assert out._backward_hooks
        for tensor in (x, out):
            with io.BytesIO() as file:
                torch.save(tensor, file)
                file.seek(0)
                assert torch.equal(torch.load(file), tensor)
        for parameter in problem.model.parameters():  # as it is sent to another process
            assert parameter._backward_hooks
            ForkingPickler.dumps(parameter)


def test_modules_added_later_are_seen(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 1)
        problem.model.append(nn.Tanh())
        models.train(problem, 1)
    assert "4:out.0" in {site["name"] for site in read(run.path, "sites")}


@pytest.mark.parametrize("is_kept", [False, True], ids=["gone", "kept elsewhere"])
def test_gradients_have_the_names_that_parameters_have_since(root, is_kept):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grads, elsewhere = [], []
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for step in range(8):
            if step == 5:  # the graph is not followed here
                model.insert(1, nn.Linear(3, 3))
                optimizer.add_param_group({"params": list(model[1].parameters())})
            if step == 6:
                elsewhere += [model[1]] if is_kept else []
                del model[1], optimizer.param_groups[1]
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            grads += [(step, n, p.grad.abs().max().item()) for n, p in model.named_parameters()]
            optimizer.step()
    rows = [row for row in observations(run.path) if row["tensor_class"] == "parameter"]
    found = [(r["step"], r["name"], r["abs_max"]) for r in rows if r["quantity"] == "grad"]
    assert sorted(found) == sorted(grads)


def test_a_second_run_of_the_same_name_gets_a_new_folder(root):
    paths = []
    for _ in range(3):
        problem = models.mlp()
        with backlight.watch(
            problem.model, problem.optimizer, root=root, project="p", name="r"
        ) as run:
            models.train(problem, 1)
        paths.append(run.path)
    assert [path.name for path in paths] == ["r", "r-2", "r-3"]
    assert all(len(read(path, "stats")) > 0 for path in paths)


def test_run_json_says_what_was_recorded_and_what_it_cost(root):
    problem = models.mlp()
    with backlight.watch(
        problem.model, problem.optimizer, root=root, name="n", config={"lr": 0.1, "path": Path("x")}
    ) as run:
        models.train(problem, 2)
        assert json.loads((run.path / "run.json").read_text())["ended"] is None
    info = json.loads((run.path / "run.json").read_text())
    assert info["ended"] == "finished" and info["ended_at"] >= info["created_at"]
    assert info["config"] == {"lr": 0.1, "path": "x"}
    assert [module["name"] for module in info["modules"]] == ["", "0", "1", "2", "3"]
    assert info["recorder"]["recorded_steps"] == 2
    assert 0 < info["recorder"]["recording_secs"] < info["recorder"]["training_secs"]
    assert info["recorder"]["faults"] == {}


def test_an_exception_in_the_loop_ends_the_run_as_failed(root):
    problem = models.mlp()
    with (
        pytest.raises(ZeroDivisionError),
        backlight.watch(problem.model, problem.optimizer, root=root, name="n", project="p"),
    ):
        models.train(problem, 1)
        _ = 1 / 0
    assert json.loads((root / "p" / "n" / "run.json").read_text())["ended"] == "failed"


SCRIPT = """
import os, signal, sys, torch, backlight
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
run = backlight.watch(model, optimizer, root=sys.argv[1], project="p", name="n", every=1)
for step in range(20):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); run.log(loss=loss)
{ending}
"""


def run_script(root: Path, ending: str) -> subprocess.CompletedProcess[str]:
    code = SCRIPT.format(ending=textwrap.dedent(ending))
    return subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("ending", "ended"), [("", "finished"), ("raise ValueError('mine')", "failed")]
)
def test_the_end_of_the_script_ends_the_run(root, ending, ended):
    done = run_script(root, ending)
    assert ("mine" in done.stderr) == (ended == "failed")
    info = json.loads((root / "p" / "n" / "run.json").read_text())
    assert info["ended"] == ended
    assert len(read(root / "p" / "n", "scalars")) == 20


def test_a_killed_process_leaves_every_step_but_the_one_under_way(root):
    done = run_script(root, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    path = root / "p" / "n"
    reader = pa.ipc.open_stream(path / "stats" / "0-0000.arrows")
    steps = {step for batch in _whole_batches(reader) for step in batch["step"].to_pylist()}
    assert steps == set(range(20))
    assert {row["step"] for row in _rows(path / "scalars" / "0-0000.arrows")} >= set(range(19))


def _whole_batches(reader):
    while True:
        try:
            yield reader.read_next_batch()
        except (StopIteration, OSError, pa.ArrowInvalid):
            return


def _rows(file: Path) -> list[dict]:
    return [row for b in _whole_batches(pa.ipc.open_stream(file)) for row in b.to_pylist()]


def test_a_forked_child_writes_nothing(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root) as run:
        models.train(problem, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                run.log(loss=1.0)
                run.note("from the child")
                run.finish()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert read(run.path, "notes") == []
        assert json.loads((run.path / "run.json").read_text())["ended"] is None
        models.train(problem, 1)
    assert [row["step"] for row in read(run.path, "steps")] == [0, 1]
    assert read(run.path, "scalars") == []


class TestBadInput:
    def watch(self, root, model=None, optimizer=None, **options):
        model = nn.Linear(2, 2) if model is None else model
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return backlight.watch(model, optimizer, root=root, **options)

    def refuses(self, root, saying, **options):
        before = sorted(root.rglob("*"))
        with pytest.raises(backlight.BacklightError, match=saying) as caught:
            self.watch(root, **options)
        assert "\n" not in str(caught.value)
        assert sorted(root.rglob("*")) == before, "a refused run left something behind"

    def test_a_model_without_parameters(self, root):
        elsewhere = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        self.refuses(root, "no parameters", model=nn.ReLU(), optimizer=elsewhere)

    def test_an_optimizer_of_another_model(self, root):
        elsewhere = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        self.refuses(root, "none of the parameters", optimizer=elsewhere)

    def test_arguments_in_the_wrong_order(self, root):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.refuses(root, "as model", model=optimizer, optimizer=model)

    @pytest.mark.parametrize("name", ["a/b", "..", "", "  ", "a\nb", "\x00", ".hidden", "x" * 300])
    def test_a_name_that_is_no_folder(self, root, name):
        self.refuses(root, "name", name=name)
        self.refuses(root, "name", project=name)

    @pytest.mark.parametrize("every", [0, -1, 2.5, True, "3"])
    def test_a_schedule_that_is_none(self, root, every):
        self.refuses(root, "every", every=every)

    def test_a_config_that_is_no_dict(self, root):
        self.refuses(root, "config", config=[1, 2])

    def test_a_root_that_cannot_be_written(self, root):
        (root / "file").write_text("mine")
        with pytest.raises(backlight.BacklightError, match="Cannot write runs"):
            self.watch(root / "file")
        assert (root / "file").read_text() == "mine"

    def test_logging_what_is_no_number_is_told_once_and_training_goes_on(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        run = self.watch(root)
        with pytest.warns(backlight.BacklightWarning, match="not one number") as caught:
            for _ in range(3):
                run.log(loss="low", text="3.5", bytes=b"3", pair=torch.ones(2), good=1.0)
        run.finish()
        assert len(caught) == 4
        assert [row["name"] for row in read(run.path, "scalars")] == ["good"] * 3

    def test_code_that_belongs_to_no_module_is_told_too(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        with (
            self.watch(root) as run,
            pytest.warns(backlight.BacklightWarning, match="not one number") as caught,
        ):
            code = compile("\n\nrun.log(loss='low')", "elsewhere", "exec")
            exec(code, {"run": run, "__name__": 5})
        assert [(each.filename, each.lineno) for each in caught] == [("elsewhere", 3)]

    def test_logging_what_is_no_number_is_raised_in_strict_mode(self, root):
        with self.watch(root) as run, pytest.raises(backlight.BacklightError, match="not one"):
            run.log(loss="low")


def test_a_fault_in_the_recorder_never_reaches_training(root, monkeypatch):
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    problem = models.mlp()
    run = backlight.watch(problem.model, problem.optimizer, root=root)
    # The recorder has no known fault to provoke, so one is put in.
    run._observer.reducer.observe = lambda *_, **__: 1 / 0
    with pytest.warns(backlight.BacklightWarning, match="fault of its own"):
        models.train(problem, 3)
    run.finish()
    faults = json.loads((run.path / "run.json").read_text())["recorder"]["faults"]
    assert sum(faults.values()) > 3


def test_a_folder_that_vanishes_stops_recording_and_not_training(root, monkeypatch):
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    problem = models.mlp()
    run = backlight.watch(problem.model, problem.optimizer, root=root)
    run.path.rename(root / "elsewhere")
    with pytest.warns(backlight.BacklightWarning, match="stops recording") as caught:
        models.train(problem, 3, lambda loss: run.log(loss=loss))
        run.note("still here")
        run.finish()
    assert len(caught) == 1


def test_a_folder_that_is_deleted_midway_is_told_soon(root, monkeypatch):
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    problem = models.mlp()
    run = backlight.watch(problem.model, problem.optimizer, root=root, every=1)
    models.train(problem, 3, lambda loss: run.log(loss=loss))
    shutil.rmtree(run.path)
    with pytest.warns(backlight.BacklightWarning, match="No such file or directory") as caught:
        deadline = time.monotonic() + 20
        while not caught and time.monotonic() < deadline:
            models.train(problem, 1, lambda loss: None)
    models.train(problem, 3, lambda loss: run.log(loss=loss))
    run.finish()
    assert not run.path.exists()


def test_warnings_as_errors_do_not_stop_training(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Guard(strict=False)("testing"):
            raise ValueError("a fault")
    assert "a fault" in capsys.readouterr().err


def test_faults_that_are_always_others_do_not_pile_up():
    guard = Guard(strict=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(1000):
            guard.mistake(f"The value {number} is wrong.")
    assert len(told) == len(guard.as_dict()) == MOST_KINDS + 1
    assert guard.count == 1000


class TestHarm:
    """What a hostile reader found once, and must never find again."""

    def test_an_evaluation_between_steps_does_not_rename_the_next_step(self, root):
        problem = models.mlp()

        def evaluate(_: torch.Tensor) -> None:
            problem.model.eval()
            with torch.no_grad():
                for _ in range(3):
                    problem.model(torch.ones(4, 12))
            problem.model.train()

        with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
            models.train(problem, 3, evaluate)
        assert {site["call"] for site in read(run.path, "sites")} == {1}

    def test_what_comes_after_finish_changes_nothing_on_disk(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        problem = models.mlp()
        run = backlight.watch(problem.model, problem.optimizer, root=root)
        run.note("important")
        run.finish()
        with pytest.warns(backlight.BacklightWarning, match="the run has ended"):
            run.note("later")
            run.log(loss=1.0)
        assert [row["text"] for row in read(run.path, "notes")] == ["important"]

    @pytest.mark.parametrize("config", [{("a", 1): 2}, {"x": {1, 2}}, {"f": torch.nan}], ids=str)
    def test_any_config_can_be_kept(self, root, config):
        problem = models.mlp()
        with backlight.watch(problem.model, problem.optimizer, root=root, config=config) as run:
            models.train(problem, 1)
        assert json.loads((run.path / "run.json").read_text())["config"]

    def test_a_config_that_contains_itself_can_be_kept(self, root):
        config: dict = {}
        config["me"] = config
        problem = models.mlp()
        backlight.watch(problem.model, problem.optimizer, root=root, config=config).finish()

    def test_a_tensor_without_storage_is_not_read(self, root):
        class Freed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.same = nn.Linear(3, 3), nn.Identity()

            def forward(self, x):
                gone = torch.ones(1000, 1000)
                part = gone[10:]
                gone.untyped_storage().resize_(0)
                self.same(gone)
                self.same(part)
                self.same(torch.ones(2, device="meta"))
                return self.layer(x)

        model = Freed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert any(row["name"] == "layer:out.0" for row in observations(run.path))
        assert not any(row["name"].startswith("same") for row in observations(run.path))

    def test_a_tensor_that_loses_its_storage_later_is_not_read_then(self, root):
        class Freed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.same = nn.Linear(3, 3), nn.Identity()
                self.times = 0

            def forward(self, x):
                self.times += 1
                memory = torch.ones(100, 100)
                parts = memory, memory[10:]
                if self.times > 6:  # by then the calls are known, and seen without Python
                    memory.untyped_storage().resize_(0)
                for part in parts:
                    self.same(part)
                return self.layer(x)

        model = Freed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(9):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
        steps = {row["step"] for row in observations(run.path) if row["name"].startswith("same")}
        assert steps == set(range(6))

    def test_passes_that_no_optimizer_ends_do_not_gather_for_ever(self, root, monkeypatch):
        monkeypatch.setattr(capture_modules, "MOST_CALLS", 5)
        problem = models.mlp()
        with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
            for _ in range(20):
                problem.model(torch.randn(4, 12))
            models.train(problem, 2)
        calls = {row["call"] for row in observations(run.path) if row["tensor_class"] == "output"}
        assert calls == {1, 2, 3, 4, 5}

    def test_a_module_that_cannot_be_hashed_may_stand_beside(self, root):
        class Unhashable(nn.Module):
            __hash__ = None

            def forward(self, x):
                return x.square().mean()

        problem = models.mlp()
        criterion = Unhashable()
        with backlight.watch(problem.model, problem.optimizer, root=root, every=2) as run:
            for _ in range(3):
                criterion(torch.ones(2))
                criterion(problem.model(torch.ones(2, 12))).backward()
                problem.optimizer.step()
        assert [row["step"] for row in read(run.path, "steps")] == [0, 1, 2]

    def test_inside_a_transform_nothing_is_recorded_and_nothing_breaks(self, root):
        model = nn.Sequential(nn.Linear(3, 3), nn.Identity())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            torch.vmap(model)(torch.ones(5, 3)).sum().backward()
            optimizer.step()
        outputs = [r for r in observations(run.path) if r["tensor_class"] == "output"]
        assert outputs == []
        assert any(row["name"] == "0.weight" for row in observations(run.path))

    def test_odd_logs_and_notes_reach_nobody(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        problem = models.mlp()
        with backlight.watch(problem.model, problem.optimizer, root=root) as run:
            with pytest.warns(backlight.BacklightWarning):
                run.log(huge=10**400)
            run.note("half a character: \ud800")
            run.log(**{"half \ud800": 1.0})
        assert [row["text"] for row in read(run.path, "notes")] == ["half a character: ?"]
        assert [row["name"] for row in read(run.path, "scalars")] == ["half ?"]

    def test_checkpointed_calls_that_cannot_be_told_apart_get_no_gradient(self, root):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(1, 1)

            def forward(self, x):
                run = torch.utils.checkpoint.checkpoint
                return run(self.a, x, use_reentrant=True) + 100 * run(
                    self.a, x + 1, use_reentrant=True
                )

        model = Twice()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            model(torch.ones(1, 1, requires_grad=True)).sum().backward()
            optimizer.step()
        rows = [r for r in observations(run.path) if r["name"].startswith("a")]
        assert {row["name"] for row in rows if row["quantity"] == "value"} >= {
            "a:out.0",
            "a#2:out.0",
        }
        assert not [row for row in rows if row["quantity"] == "grad" and ":out" in row["name"]]

    def test_other_threads_may_use_the_model(self, root):
        problem = models.mlp()
        with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
            thread = threading.Thread(target=lambda: problem.model(torch.ones(9, 12)))
            problem.optimizer.zero_grad()
            loss = problem.loss(0)
            thread.start()
            thread.join()
            loss.backward()
            problem.optimizer.step()
        assert {r["shape"][0] for r in observations(run.path) if r["name"] == "0:out.0"} == {16}

    def test_a_failed_start_leaves_nothing_on_the_optimizer(self, root):
        problem = models.mlp()
        for wrong in ({"root": None}, {"root": "a\0b"}, {"name": "a\udcff"}, {"name": 5}):
            with pytest.raises(backlight.BacklightError) as caught:
                backlight.watch(problem.model, problem.optimizer, **{"root": root, **wrong})
            assert "\n" not in str(caught.value)
        models.train(problem, 1)
        assert not problem.optimizer._optimizer_step_pre_hooks
