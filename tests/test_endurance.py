"""Long runs, disks that fail, and mistakes: nothing grows, and training goes on as it would."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import loops
import pytest
import torch
from loops import assert_same_bits
from reading import find, observations, read
from torch import nn

import backlight
from backlight.run import Run, runs_under_way
from backlight.schedule import PerKind
from backlight.store.reader import RunReader


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A run that a known fault keeps from ending must not disturb the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in runs_under_way():
            run._guard.strict = False
            run.finish()


# -- memory

LONG_RUN = """
import gc, json, sys, warnings
import torch
from torch import nn
from torch.nn.modules import module
import backlight

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x = torch.randn(4, 3)
run = backlight.watch(model, optimizer, root=sys.argv[1], **json.loads(sys.argv[2]))

def count():
    warnings.simplefilter("ignore")  # looking at everything touches what is deprecated
    gc.collect()
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    every = gc.get_objects()
    return {
        "rss_bytes": pages * 4096,
        "tensors": sum(isinstance(each, torch.Tensor) for each in every),
        "objects": len(every),
        "hooks": len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)
        + sum(len(p._backward_hooks or ()) for p in model.parameters())
        + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks),
    }

every, last, leak = (int(each) for each in sys.argv[3:])
counted, leaked = [], []
for step in range(last):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    run.log(loss=loss)
    if leak:
        leaked.append([loss.detach(), bytearray(1_000)])
    if (step + 1) % every == 0:
        counted.append(count())
run.finish()
print(json.dumps(counted))
"""


def long_run(root: Path, options: dict, *, every: int, last: int, leak: bool) -> dict[str, int]:
    """How much more there is after `every` steps, at the least, once the first have passed.

    What leaks grows in every part of a run; a thread that starts, or a buffer that doubles, in one.
    """
    numbers = [str(int(each)) for each in (every, last, leak)]
    done = subprocess.run(
        [sys.executable, "-c", LONG_RUN, str(root), json.dumps(options), *numbers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    return {
        name: min(late[name] - early[name] for early, late in itertools.pairwise(counted))
        for name in counted[0]
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says it so")
class TestMemory:
    @pytest.mark.parametrize(
        "options",
        [{"every": 1, "samples": 2}, {"every": 3, "blackbox": 5}, {"every": 10}],
        ids=["samples", "blackbox", "every-tenth"],
    )
    def test_nothing_grows_over_10000_steps(self, root, options):
        grown = long_run(root, options, every=2_000, last=10_000, leak=False)
        assert grown["rss_bytes"] < 200_000
        assert grown["tensors"] <= 0 and grown["hooks"] <= 0
        assert grown["objects"] < 10

    def test_what_grows_is_found(self, root):
        grown = long_run(root, {"every": 10}, every=1_000, last=4_000, leak=True)
        assert grown["rss_bytes"] > 200_000
        assert grown["tensors"] >= 1_000 and grown["objects"] >= 1_000


# -- disks

MIB = 2**20


def tell_mount(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{arguments[0]} is not permitted here: {done.stderr.strip()}")


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    tell_mount("mount", *arguments, str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as folder:
        yield folder


def mlp() -> loops.Loop:
    torch.manual_seed(3)
    return loops.whole(loops.models.mlp)()


class Told(list[str]):
    """What was told while a loop was trained."""


def train(
    root: Path, steps: int, midway: Callable[[Run], None] | None = None, **options
) -> tuple[Path, Told]:
    """Train with something happening halfway, and to the same bits as without Backlight."""
    alone = mlp()
    for step in range(steps):
        alone.step(step)
    expected = alone.state()
    loop, told = mlp(), Told()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with backlight.watch(loop.watched, loop.optimizers, root=root, name="n", **options) as run:
            for step in range(steps):
                if step == steps // 2 and midway is not None:
                    run.flush()  # on a machine that stalls, a thread may still write
                    midway(run)
                loop.step(step)
                run.log(step=step)
    told += [str(each.message) for each in caught]
    assert_same_bits(expected, loop.state())
    return run.path, told


def open_files() -> set[str]:
    return {
        str(target)
        for link in Path("/proc/self/fd").iterdir()
        if (target := Path(os.path.realpath(link))).suffix in (".arrows", ".json", ".safetensors")
    }


def assert_readable_up_to_a_step(path: Path, *, least: int, below: int) -> None:
    """What was written until then is all there, in whole steps."""
    reader = RunReader(path)
    reader.refresh()
    assert reader.problems == []
    seen = [row["step"] for row in reader.steps().to_pylist() if row["recorded"]]
    assert least <= len(seen) < below
    assert seen == list(range(len(seen)))
    assert reader.heatmap().num_rows > 0
    sites = {row["name"]: row["site"] for row in reader.sites().to_pylist()}
    for name in ("(model):in.0", "3:out.0", "3.bias"):
        history = [row["step"] for row in reader.history(sites[name]).to_pylist()]
        assert history in (seen, [*seen, len(seen)]), name


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")


@pytest.mark.usefixtures("lenient")
class TestDisks:
    def test_with_room_nothing_is_told(self, tmp_path):
        path, told = train(tmp_path / "runs", 6, every=1)
        assert told == []
        assert_readable_up_to_a_step(path, least=6, below=7)

    @pytest.mark.parametrize("options", [{}, {"samples": 4}], ids=["statistics", "values"])
    def test_a_disk_that_becomes_full(self, small_disk, options):
        path, told = train(small_disk, 300, every=1, **options)
        (sentence,) = told
        assert os.strerror(errno.ENOSPC) in sentence and "stops recording" in sentence
        assert_readable_up_to_a_step(path, least=10, below=300)

    def test_a_failed_run_leaves_no_file_open(self, small_disk):
        before = open_files()
        train(small_disk, 300, every=1)
        assert open_files() <= before

    def test_a_disk_that_is_full_from_the_start(self, small_disk, tmp_path):
        with pytest.raises(OSError, match="No space"), (small_disk / "full").open("wb") as file:
            while True:
                file.write(bytes(MIB))
                file.flush()
        loop, enlisted = mlp(), runs_under_way()
        with pytest.raises(backlight.BacklightError) as caught:
            backlight.watch(loop.watched, loop.optimizers, root=small_disk, name="n", blackbox=1)
        assert "\n" not in str(caught.value)
        assert list(small_disk.glob("*/*")) == []  # no folder of a run that there is not
        assert runs_under_way() == enlisted and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        for optimizer in loop.optimizers:
            assert not optimizer._optimizer_step_pre_hooks
            assert not optimizer._optimizer_step_post_hooks
        with backlight.watch(
            loop.watched, loop.optimizers, root=tmp_path / "large", every=1
        ) as run:
            loop.step(0)
        assert_readable_up_to_a_step(run.path, least=1, below=2)

    def test_a_disk_that_dies(self, tmp_path):
        image = tmp_path / "image"
        image.write_bytes(bytes(8 * MIB))
        tell_mount("mkfs.ext4", "-q", str(image))
        with mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk:
            # In a process of its own: a file that is open keeps a file system, even a dead one.
            done = elsewhere(disk, midway=f"test_endurance.shut_down(Path({str(disk)!r}))")
        assert os.strerror(errno.EIO) in done["told"][0] and len(done["told"]) == 1
        with mounted(tmp_path / "disk", "-o", "loop", str(image)):
            assert_readable_up_to_a_step(Path(done["path"]), least=10, below=60)

    def test_a_disk_that_becomes_read_only(self, small_disk):
        def protect(run):
            # Files that are open keep a file system from it, so it is done by what covers it.
            tell_mount("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(run.path))

        path, told = train(small_disk, 20, midway=protect, every=1, samples=1)
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        (sentence,) = told
        assert os.strerror(errno.EROFS) in sentence
        assert_readable_up_to_a_step(path, least=10, below=20)

    def test_a_disk_that_is_read_only_before_the_first_step(self, small_disk):
        loop = mlp()
        run = backlight.watch(loop.watched, loop.optimizers, root=small_disk, every=1)
        tell_mount("mount", "-o", "remount,ro", str(small_disk))
        with pytest.warns(backlight.BacklightWarning, match="Read-only") as caught:
            loop.step(0)
            run.note("still here")
            run.finish()
        assert len(caught) == 1
        assert RunReader(run.path).rows["stats"] == 0

    @pytest.mark.parametrize("options", [{}, {"samples": 1}], ids=["statistics", "values"])
    def test_a_folder_that_is_removed_midway(self, root, options):
        path, told = train(root, 20, midway=lambda run: shutil.rmtree(run.path), every=1, **options)
        assert len(told) == 1 and "stops recording" in told[0]
        assert not path.exists()

    @pytest.mark.parametrize("options", [{"every": 1}, {"every": 2, "blackbox": 3}])
    def test_what_cannot_be_written_is_not_captured(self, small_disk, options):
        hooks = nn.modules.module._global_forward_hooks
        counts = []
        loop = mlp()
        (model,) = loop.models.values()
        model.register_forward_pre_hook(lambda module, args: counts.append(len(hooks)))
        with (
            pytest.warns(backlight.BacklightWarning, match="stops recording"),
            backlight.watch(model, loop.optimizers, root=small_disk, samples=1, **options) as run,
        ):
            for step in range(10):
                if step == 2:
                    tell_mount("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(run.path))
                loop.step(step)
                run.flush()
        subprocess.run(["umount", "--lazy", str(run.path)], check=True)
        assert all(counts[:2]) and not any(counts[-5:]), counts

    def test_a_limit_on_the_size_of_files(self, root):
        done = elsewhere(root, midway="limit('RLIMIT_FSIZE', 100_000)")
        assert os.strerror(errno.EFBIG) in done["told"][0] and len(done["told"]) == 1
        assert_readable_up_to_a_step(Path(done["path"]), least=5, below=60)
        info = json.loads((Path(done["path"]) / "run.json").read_text())
        assert info["ended"] == "finished"  # there is room for that
        (fault,) = info["recorder"]["faults"]
        assert os.strerror(errno.EFBIG) in fault

    def test_a_limit_on_open_files(self, root):
        midway = "limit('RLIMIT_NOFILE', len(os.listdir('/proc/self/fd')) - 1)"
        done = elsewhere(root, midway=midway, samples=1)
        assert os.strerror(errno.EMFILE) in done["told"][0] and len(done["told"]) == 1
        RunReader(Path(done["path"])).refresh()


def shut_down(disk: Path) -> None:
    """Have an ext4 answer every further access with an error, as one does whose disk is gone."""
    os.sync()
    folder = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(folder, 0x8004587D, (2).to_bytes(4, sys.byteorder))  # EXT4_IOC_SHUTDOWN, at once
    os.close(folder)


def elsewhere(root: Path, *, midway: str, **options: object) -> dict:
    """Train in a process of its own, with something happening halfway, and say what was told."""
    code = f"""
    import json, os, resource, sys
    from pathlib import Path
    import test_endurance

    def limit(name, value):
        _, most = resource.getrlimit(getattr(resource, name))
        resource.setrlimit(getattr(resource, name), (value, most))

    path, told = test_endurance.train(
        Path(sys.argv[1]), 60, midway=lambda run: {midway}, every=1, **{options}
    )
    print(json.dumps({{"path": str(path), "told": told}}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(root)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        env={**os.environ, "BACKLIGHT_STRICT": "0"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- mistakes


def simple() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


Mistake = Callable[[Run, nn.Module], object]


def with_step(**options: object) -> Mistake:
    def mistake(run: Run, model: nn.Module) -> None:
        with run.step(**options):
            model(torch.ones(5, 3))

    return mistake


def with_backward(name: object) -> Mistake:
    def mistake(run: Run, model: nn.Module) -> None:
        with run.backward(name):
            model(torch.ones(5, 3)).sum().backward()

    return mistake


def twice(run: Run, model: nn.Module) -> None:
    run.tensor("a", torch.ones(1))
    run.tensor("a", torch.ones(2))


ONE = torch.ones(2)
IN_A_STEP: dict[str, Mistake] = {
    "two tensors of one name": twice,
    "a batch dimension that is not there": lambda r, m: r.tensor("a", ONE, batch_dim=3),
    "a kind that is none": lambda r, m: r.tensor("a", ONE, kind="odd"),
    "a number as tensor": lambda r, m: r.tensor("a", 3.0),
    "nothing as name": lambda r, m: r.tensor("", ONE),
    "a step inside a step": with_step(),
    "a text as scalar": lambda r, m: r.log(loss="low"),
    "several numbers as scalar": lambda r, m: r.log(loss=ONE),
    "losses that are none": lambda r, m: r.batch(losses="high"),
    "the name of a parameter": lambda r, m: r.tensor("0.weight", ONE),
    "the name of an output": lambda r, m: r.tensor("0:out.0", ONE),
    "a text as batch dimension": lambda r, m: r.tensor("a", ONE, batch_dim="first"),
    "a number as node": lambda r, m: r.tensor("a", ONE, node=5),
    "half a character as name": lambda r, m: r.tensor("\ud800", ONE),
    "a number as name of a tap": lambda r, m: backlight.tap(ONE, 5),
    "a text as tapped tensor": lambda r, m: backlight.tap("text", "a"),
    "a number as name of a backward pass": with_backward(5),
}
BETWEEN_STEPS: dict[str, Mistake] = {
    "a text as batch size": with_step(batch_size="many"),
    "half a character as kind": with_step(kind="\ud800"),
}
MISTAKES = IN_A_STEP | BETWEEN_STEPS
OR_TAKEN_AS_TEXT = [what for what in MISTAKES if what.startswith(("half", "a number as n"))]


def record(root: Path, what: str | None = None) -> tuple[Path, list[str]]:
    """Two steps, a mistake, two steps; and what was told."""
    model, optimizer = simple()
    told: list[str] = []

    def train() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with backlight.watch(model, optimizer, root=root, every=1, samples=1) as run:
            train()
            try:
                if what in IN_A_STEP:
                    with run.step():
                        model(torch.ones(5, 3))
                        IN_A_STEP[what](run, model)
                elif what is not None:
                    BETWEEN_STEPS[what](run, model)
            except backlight.BacklightError as error:
                told.append(str(error))
            torch.manual_seed(1)
            train()
    assert {each.filename for each in caught} <= {__file__}  # whoever reads it finds the line
    return run.path, told + [str(each.message) for each in caught]


def last_steps(path: Path) -> list[tuple]:
    """What is known of the last two steps, but for their numbers."""
    rows = observations(path)
    last = max(row["step"] for row in rows)
    names = ("name", "quantity", "iteration", "count", "mean", "abs_max", "kind")
    found = [
        (row["step"] - last, *(row[name] for name in names))
        for row in rows
        if last - row["step"] < 2 and row["name"] != "(loss)"  # it is seen in ever fewer steps
    ]
    return sorted(found)


@pytest.mark.parametrize("strict", ["0", "1"], ids=["told", "raised"])
@pytest.mark.parametrize("what", list(MISTAKES))
def test_a_mistake_is_one_sentence_and_leaves_a_sound_state(root, monkeypatch, what, strict):
    monkeypatch.setenv("BACKLIGHT_STRICT", strict)
    clean, nothing = record(root)
    assert nothing == []
    path, told = record(root, what)
    assert len(told) == 1 or (not told and what in OR_TAKEN_AS_TEXT)
    for sentence in told:
        assert "\n" not in sentence and sentence.endswith(".")
        assert "fault of its own" not in sentence
    assert last_steps(path) == last_steps(clean)
    names = [site["name"] for site in read(path, "sites")]
    assert sorted(names) == sorted(set(names))
    steps = [row["step"] for row in read(path, "steps")]
    assert steps == list(range(len(steps)))


def in_context(context: Callable[[Run], object]) -> Mistake:
    def mistake(run: Run, model: nn.Module) -> None:
        with context(run):
            model(torch.ones(5, 3)).sum().backward()

    return mistake


AFTER: dict[str, Mistake] = {
    "tensor": lambda r, m: r.tensor("a", ONE),
    "log": lambda r, m: r.log(a=1.0),
    "note": lambda r, m: r.note("a"),
    "batch": lambda r, m: r.batch(losses=[1.0]),
    "open_blackbox": lambda r, m: r.open_blackbox("a"),
    "step": in_context(lambda run: run.step()),
    "iteration": in_context(lambda run: run.iteration()),
    "backward": in_context(lambda run: run.backward("a")),
}


@pytest.mark.parametrize("method", list(AFTER))
def test_after_finish_it_is_told_and_nothing_is_written(root, lenient, method):
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=1, samples=1)
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    run.finish()
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    saying = rf"run\.{method}\(\) was called after"
    with pytest.warns(backlight.BacklightWarning, match=saying) as told:
        AFTER[method](run, model)
        AFTER[method](run, model)
    assert len(told) == 1
    optimizer.step()
    assert {f: f.read_bytes() for f in run.path.rglob("*") if f.is_file()} == before


class Wrapper(torch.optim.Optimizer):
    """Hands its steps on to optimizers, and has no hooks, as those of some libraries."""

    def __init__(self, *inside: torch.optim.Optimizer) -> None:
        self.param_groups = inside[0].param_groups
        for number, each in enumerate(inside):
            setattr(self, f"inside{number}", each)

    def step(self) -> None:
        self.inside0.step()


WRONG: dict[str, Callable[[nn.Module, torch.optim.Optimizer], dict]] = {
    "a schedule that is no schedule": lambda m, o: {"schedule": object()},
    "a schedule of halves": lambda m, o: {"schedule": {1.5}},
    "no number of samples": lambda m, o: {"samples": 1.5},
    "no optimizer": lambda m, o: {"optimizer": None},
    "something as root": lambda m, o: {"root": b"x"},
    "a schedule's class": lambda m, o: {"schedule": PerKind},
    "numbers as names of models": lambda m, o: {"model": {1: m}},
    "names of models that meet": lambda m, o: {"model": {"a": m, "a.0": nn.Linear(2, 2)}},
    "no models": lambda m, o: {"model": {}},
    "no optimizers": lambda m, o: {"optimizer": []},
    "one optimizer twice": lambda m, o: {"optimizer": [o, o]},
    "a wrapper of several optimizers": lambda m, o: {"optimizer": Wrapper(o, simple()[1])},
    "a number as pattern": lambda m, o: {"include": 5},
    "a number as classes": lambda m, o: {"classes": 5},
    "a number as run": lambda m, o: {"resume": 5},
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_cannot_be_watched_is_refused_in_one_sentence(root, what):
    model, optimizer = simple()
    wrong = WRONG[what](model, optimizer)
    with pytest.raises(backlight.BacklightError) as caught:
        run = backlight.watch(**{"model": model, "optimizer": optimizer, "root": root, **wrong})
        run.finish()
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".") and " of :" not in sentence
    assert list(root.iterdir()) == [] and not optimizer._optimizer_step_pre_hooks
    backlight.watch(model, optimizer, root=root).finish()


def test_an_optimizer_without_hooks_is_watched_through_the_one_that_it_wraps(root):
    model, optimizer = simple()
    wrapper = Wrapper(optimizer)
    with backlight.watch(model, wrapper, root=root, every=1) as run:
        for _ in range(2):
            model(torch.ones(5, 3)).sum().backward()
            wrapper.step()
    assert [row["step"] for row in find(run.path, "0.weight", "update")] == [0, 1]
    assert vars(wrapper).keys() == {"param_groups", "inside0"}


@pytest.mark.parametrize("part", [lambda m: m, lambda m: m[0], nn.DataParallel, nn.Sequential])
def test_a_model_that_is_watched_is_refused_and_recorded_on(root, part):
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        with pytest.raises(backlight.BacklightError, match="watched already") as caught:
            backlight.watch(part(model), optimizer, root=root)
        assert "\n" not in str(caught.value)
        for _ in range(2):
            model(torch.ones(5, 3)).sum().backward()
            optimizer.step()
    assert len(list(run.path.parent.iterdir())) == 1
    assert len(find(run.path, "0.weight", "update")) == 2
