"""Plain calls, gradients and updates are seen by the kernel, all others by Python, alike."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import loops
import odd_loops
import pytest
import torch
from reading import find, read
from torch import nn

import backlight
from backlight.capture.likeness import StepLikeness
from backlight.capture.modules import ModuleCapture
from backlight.capture.observer import Observer
from backlight.capture.owned import OwnedCapture
from backlight.reduce import native

pytestmark = [
    pytest.mark.skipif(not native.is_available(), reason="the kernel is not compiled"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STEPS = 7
FOLLOWED = {0, 1, 2, 4}
"""The steps whose graph is followed, which is not for the kernel."""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture
def in_python(monkeypatch):
    """Count what is left to Python, by name and step."""
    counts: Counter[tuple[str, int]] = Counter()

    def count(owner: type, name: str, step: Any) -> None:
        original = getattr(owner, name)

        def counting(self: Any, *arguments: Any) -> Any:
            answer = original(self, *arguments)
            counts[name, step(self)] += 1  # a model's own call begins the step
            return answer

        monkeypatch.setattr(owner, name, counting)

    count(ModuleCapture, "_before_call", lambda capture: capture._sights.step)
    count(ModuleCapture, "_after_call", lambda capture: capture._sights.step)
    count(Observer, "_on_grad", lambda observer: observer.step)
    count(Observer, "_on_parameter_grad", lambda observer: observer.step)
    count(OwnedCapture, "_state_site", lambda owned: owned._sights.step)
    return counts


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all to Python."""
    begin = Observer.begin

    def begin_slowly(self: Observer, step: int, *, is_keeping: bool) -> None:
        begin(self, step, is_keeping=is_keeping)
        self.is_native = self.is_plain = self.is_quick = False

    monkeypatch.setattr(Observer, "begin", begin_slowly)
    monkeypatch.setattr(StepLikeness, "expect", lambda self, *given, **told: None)


def test_of_a_plain_step_no_call_and_no_gradient_is_left_to_python(tmp_path, in_python):
    model = layers()
    optimizer = adam(model)
    with backlight.watch(model, optimizer, root=tmp_path, every=1):
        for _ in range(STEPS):
            train(model, optimizer, torch.ones(2, 3))
    for step in set(range(STEPS)) - FOLLOWED:
        left = {name: count for (name, at), count in in_python.items() if at == step}
        assert left == {}, step
    assert in_python["_before_call", 0] > 0  # or nothing would be counted at all


class TestParametersThatAreHookedNowAndThen:
    def test_plain_ones_are_not_left_to_python(self, tmp_path, monkeypatch):
        left: Counter[str] = Counter()
        for name in ("_hook", "_unhook"):
            original = getattr(OwnedCapture, name)

            def counting(self: Any, place: Any, name: str = name, original: Any = original) -> None:
                left[name] += place is not None
                original(self, place)

            monkeypatch.setattr(OwnedCapture, name, counting)
        model = layers()
        optimizer = adam(model)
        model[2].bias.register_hook(lambda grad: None)
        with backlight.watch(model, optimizer, root=tmp_path, every=2):
            for _ in range(STEPS):
                train(model, optimizer, torch.ones(2, 3))
        assert left == {"_hook": 4, "_unhook": 4}  # that with a hook of the user's, at each of four

    @pytest.mark.parametrize("step", range(4))
    def test_whatever_becomes_of_them_nothing_is_left_on_them(self, step, tmp_path):
        model = layers()
        optimizer = adam(model)
        with backlight.watch(model, optimizer, root=tmp_path, every=2) as run:
            for number in range(6):
                loss = model(torch.ones(2, 3)).square().mean()
                if number == step:
                    old, model[2].weight = model[2].weight, nn.Parameter(torch.ones(4, 5))
                    optimizer.add_param_group({"params": [model[2].weight]})
                    handle = model[4].weight.register_hook(lambda grad: 0 * grad)
                loss.backward()
                optimizer.step()
                if number == step + 1:
                    handle.remove()
        for parameter in (old, *model.parameters()):
            assert not parameter._backward_hooks
        grads = {row["step"] for row in rows(run.path) if row["site"] == "4.weight"}
        assert grads == {0, 2, 4}


def rows(path: Path) -> list[dict[str, Any]]:
    names = {site["site"]: site["name"] for site in read(path, "sites")}
    return [{**row, "site": names[row["site"]]} for row in read(path, "stats")]


def recorded(make: loops.Make, root: Path, **options: Any) -> Path:
    torch.manual_seed(17)
    loop = make()
    with backlight.watch(loop.watched, loop.optimizers, root=root, every=1, **options) as run:
        for step in range(STEPS):
            loop.step(step)
    return run.path


UNPLAIN = [make for make in odd_loops.ALL if make not in odd_loops.UNSEEN]


@pytest.mark.parametrize(
    "make", [pytest.param(make, id=make.__name__) for make in [*loops.ALL, *UNPLAIN]]
)
def test_python_would_have_recorded_the_same(make, tmp_path, monkeypatch):
    quick = recorded(make, tmp_path / "quick")
    slowly(monkeypatch)
    slow = recorded(make, tmp_path / "slow")
    assert str(rows(quick)) == str(rows(slow))  # as text, so that NaN equals NaN


def test_shapes_and_modules_may_change_between_steps(tmp_path, monkeypatch):
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = layers()
            self.times = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.times += 1
            if self.times == 6:
                self.inside[1] = nn.Sigmoid()
            if self.times == 7:
                self.inside.extend([nn.Tanh()])
            if self.times > 7:
                x = x[None]
            return self.inside(x) + (self.inside(x) if self.times % 2 else 0)

    paths = []
    for way in ("quick", "slow"):
        torch.manual_seed(0)
        model = Changing()
        optimizer = adam(model)
        with backlight.watch(model, optimizer, root=tmp_path / way, every=1) as run:
            for _ in range(14):
                train(model, optimizer, torch.ones(2, 3))
        paths.append(run.path)
        slowly(monkeypatch)
    assert str(rows(paths[0])) == str(rows(paths[1]))


def test_a_call_from_another_thread_is_not_part_of_the_step(tmp_path):
    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=self.inside, args=(x * 0,))
            thread.start()
            thread.join()
            return self.last(self.inside(x))

    model = Threaded()
    optimizer = adam(model)
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        for _ in range(STEPS):
            train(model, optimizer, torch.ones(2, 3))
    seen = [row for row in rows(run.path) if row["site"] == "inside:in.0"]
    assert [row["step"] for row in seen] == list(range(STEPS))
    assert {row["max"] for row in seen} == {1.0}


def test_a_fault_of_the_kernel_is_told_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("BACKLIGHT_STRICT", raising=False)
    model = layers()
    optimizer = adam(model)
    run = backlight.watch(model, optimizer, root=tmp_path, every=1)
    for _ in range(STEPS - 1):
        train(model, optimizer, torch.ones(2, 3))
    begin = run._begin_capture

    def begin_badly() -> None:
        begin()
        run._modules.entered = ()  # to which nothing can be added

    monkeypatch.setattr(run, "_begin_capture", begin_badly)
    run._likeness.expect_nothing()
    with pytest.warns(backlight.errors.BacklightWarning, match="a fault of its own while entering"):
        loss = train(model, optimizer, torch.ones(2, 3))
    assert torch.isfinite(loss)
    run.finish()


KEPT = ("Seen", "_Place", "Tensor", "Parameter", "OrderedDict")


class TestNothingIsKept:
    def test_tensors_die_as_they_would(self, tmp_path):
        model = layers()
        optimizer = adam(model)
        gone = []

        class Noting(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                gone.append(weakref.ref(x))
                return x

        model.insert(2, Noting())
        with backlight.watch(model, optimizer, root=tmp_path, every=1):
            for _ in range(STEPS):
                train(model, optimizer, torch.ones(2, 3))
            gc.disable()
            train(model, optimizer, torch.ones(2, 3))
            died = gone[-1]() is None
            gc.enable()
        assert died

    def test_a_run_that_is_let_go_of_in_the_middle_of_a_step_can_be_collected(self, tmp_path):
        model = layers()
        optimizer = adam(model)
        run = backlight.watch(model, optimizer, root=tmp_path, every=1)
        for _ in range(STEPS - 1):
            train(model, optimizer, torch.ones(2, 3))
        loss = model(torch.ones(2, 3)).mean()
        observer = weakref.ref(run._observer)
        run.finish()
        del run, loss
        gc.collect()
        assert observer() is None

    def test_objects_do_not_add_up(self, tmp_path):
        model = layers()
        optimizer = adam(model)
        counts = []
        with backlight.watch(model, optimizer, root=tmp_path, every=1):
            for step in range(600):
                train(model, optimizer, torch.ones(2, 3))
                if step in (300, 599):
                    gc.collect()
                    kinds = Counter(type(each).__name__ for each in gc.get_objects())
                    counts.append({kind: kinds[kind] for kind in KEPT})
        assert counts[0] == counts[1]


def test_without_the_kernel_the_same_is_seen(tmp_path):
    script = """
import sys
sys.modules["backlight.reduce._kernel"] = None
import loops, backlight
from backlight.reduce import native
assert not native.is_available()
from test_sights import recorded
for name in sys.argv[2:]:
    make = next(make for make in loops.ALL if make.__name__ == name)
    print(recorded(make, sys.argv[1]))
"""
    names = ["gan", "accumulation_with_clipping", "shared_modules", "recurrence_that_stops"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "without"), *names],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    exact = ("site", "step", "iteration", "quantity", "count", "zeros", "nans", "max")

    def told(seen: list[dict[str, Any]]) -> list[list[Any]]:
        # Whether a gradient is applied as it was made cannot be told without the kernel.
        made = [row for row in seen if row["quantity"] != "grad_applied"]
        return [[row[key] for key in exact] for row in made]

    for name, path in zip(names, done.stdout.split("\n"), strict=False):
        make = next(make for make in loops.ALL if make.__name__ == name)
        own, others = rows(recorded(make, tmp_path / name)), rows(Path(path))
        assert told(own) == told(others)


class UsesUp(nn.Module):
    """Doubles in place what it is given, now and then by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor | None = None, *, z: torch.Tensor | None = None) -> Any:
        used = x if z is None else z
        assert used is not None
        return self.layer(used.mul_(2))


@pytest.mark.parametrize("has_both", [False, True], ids=["only a keyword", "a tensor before it"])
def test_a_keyword_is_never_read_after_the_call_has_changed_it(tmp_path, has_both):
    model = nn.ModuleDict({"uses": UsesUp()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given, first = {}, 3  # that is not followed
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        for step in range(7):
            x = torch.randn(2, 3)
            before = (x.clone(),) if has_both or step < first else ()
            keywords = {"z": torch.randn(2, 3)} if step >= first else {}
            given[step] = {name: each.max().item() for name, each in keywords.items()}
            model["uses"](*before, **keywords).sum().backward()
            optimizer.step()
    found = {row["step"]: row["max"] for row in find(run.path, "uses:in.z")}
    # The kernel enters a call with one tensor without a look for keywords, until there is one.
    assert found == {
        step: each["z"] for step, each in given.items() if each and not (has_both and step == first)
    }
