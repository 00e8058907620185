"""Captured steps that the kernel ends: they are on the disk at once, as Python would have them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
import test_course
import torch
from reading import read
from test_course import X, simple, train_once
from test_likeness import OWN, TABLES, trained
from torch import nn

import backlight
from backlight.capture.likeness import StepLikeness
from backlight.reduce import native
from backlight.run import Run
from backlight.schema import SCALARS, STEPS
from backlight.store import streams
from backlight.store.messages import END
from backlight.store.resume import read_progress

pytestmark = pytest.mark.skipif(not native.can_write, reason="the kernel does not write here")

WARM = 6  # so many steps of a plain loop, and one of the next is ended by the kernel


def ended_in(run: Run) -> int:
    """How many captured steps the kernel has ended."""
    return int(run._course.ended_steps)


def python_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python end every step, whoever has begun it."""
    monkeypatch.setattr(StepLikeness, "let_end", lambda self, *given, **told: None)


def plain_run(root: Path, steps: int, **options: Any) -> Run:
    """A run of a plain loop, which goes on, and that loop's one step."""
    model, optimizer = simple()
    run: Any = backlight.watch(model, optimizer, root=root, **{"every": 1, **options})
    run.train = lambda: train_once(model, optimizer)
    for _ in range(steps):
        run.log(loss=run.train())
    return run


def steps_in(run: Run, table: str) -> list[int]:
    return [row["step"] for row in read(run.path, table)]


def test_columns_are_those_of_the_tables() -> None:
    from backlight.reduce import _kernel

    assert list(_kernel.STEP_COLUMNS) == STEPS.names
    assert list(_kernel.SCALAR_COLUMNS) == SCALARS.names


@pytest.mark.parametrize("every", [1, 2, 5])
def test_most_steps_of_a_plain_loop_are_ended_by_the_kernel(root: Path, every: int) -> None:
    run = plain_run(root, 60, every=every)
    run.finish()
    recorded = len(range(0, 60, every))
    # Python ends those that it begins, the 1st, 2nd, 3rd, 5th, 9th, … captured one.
    python = [n for n in (1, 2, 3, 5, 9, 17, 33) if n <= recorded]
    assert ended_in(run) == recorded - len(python) > 0


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("loop", [*test_course.LOOPS, *OWN])
def test_both_ways_write_the_same(
    loop: Callable[..., None], every: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trained(loop, root, every=every)
    python_ends(monkeypatch)
    expected = trained(loop, root, every=every)
    for table in TABLES:
        assert found[table] == expected[table], table


def test_a_run_says_the_same_of_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for way in ("kernel", "python"):
        if way == "python":
            python_ends(monkeypatch)
        run = plain_run(root, 50, every=2)
        run.finish()
        assert (ended_in(run) > 10) == (way == "kernel")
        recorder = json.loads((run.path / "run.json").read_text())["recorder"]
        assert 0 < recorder.pop("recording_secs") < recorder.pop("training_secs")
        assert recorder.pop("writing_secs") > 0
        told.append(recorder)
    # Bytes differ by how many rows were written together.
    assert abs(told[0].pop("bytes") - told[1].pop("bytes")) < 50 * 1000
    assert told[0] == told[1]
    assert told[0]["recorded_steps"] == 25


def test_a_step_is_on_the_disk_when_it_ends_and_what_is_logged_after_it_at_once(
    root: Path,
) -> None:
    run: Any = plain_run(root, WARM)
    before = ended_in(run)
    run._course.sent_at += 3600  # nothing is due
    loss = run.train()
    assert ended_in(run) == before + 1
    assert steps_in(run, "steps")[-1] == run.current_step == steps_in(run, "stats")[-1]
    assert steps_in(run, "scalars")[-1] == run.current_step - 1
    run.log(loss=loss)
    assert read(run.path, "scalars")[-1]["step"] == run.current_step
    assert read(run.path, "scalars")[-1]["value"] == loss.item()
    run.finish()


def test_what_is_logged_inside_of_a_step_is_written_with_it(root: Path) -> None:
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for number in range(2 * WARM):
            optimizer.zero_grad()
            loss = model(X).square().mean()
            run.log(inside=number)
            loss.backward()
            run._course.sent_at += 3600
            optimizer.step()
            assert read(run.path, "scalars")[-1]["value"] == number
        assert ended_in(run) > 0


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_ending import ended_in, plain_run
run = plain_run(Path(sys.argv[2]), 120, every=10)
before = ended_in(run)
loss = run.train()
print(run.path, run.current_step, ended_in(run) - before, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_is_killed_right_after_a_step_has_lost_nothing(root: Path) -> None:
    tests = str(Path(__file__).parent)
    command = [sys.executable, "-c", KILLED, tests, str(root)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert child.returncode == -9
    path, step, ended = child.stdout.split()
    assert (int(step), int(ended)) == (120, 1)
    progress = read_progress(Path(path))
    assert progress.last_step == 120
    assert [row["step"] for row in read(Path(path), "steps")] == list(range(121))
    assert sorted({row["step"] for row in read(Path(path), "stats")}) == list(range(0, 121, 10))


@pytest.mark.parametrize("table", ["stats", "steps", "scalars"])
def test_a_disk_that_is_full_ends_recording_with_one_sentence(
    root: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    bare, bare_optimizer = simple()
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=1)
    for _ in range(WARM):
        run.log(loss=train_once(model, optimizer))
        train_once(bare, bare_optimizer)
    before = steps_in(run, "stats")
    sink: Any = run._journal._writer.sink_of(table)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink.descriptor)
    os.close(full)
    sink.has_links = False
    with pytest.warns(backlight.BacklightWarning, match=os.strerror(errno.ENOSPC)) as told:
        for _ in range(WARM):
            run.log(loss=train_once(model, optimizer))
            train_once(bare, bare_optimizer)
    run.finish()
    assert len([each for each in told if "stops recording" in str(each.message)]) == 1
    for mine, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(mine, other)
    # What was written is whole, and of a step that could not be written nothing came twice.
    after = steps_in(run, "stats")
    assert after[: len(before)] == before
    assert len(set(after)) * (len(before) // WARM) == len(after)


def test_segments_end_by_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 60_000)
    run = plain_run(root, 64)
    run.finish()
    assert ended_in(run) > 20
    assert len(list((run.path / "stats").iterdir())) > 4
    assert steps_in(run, "steps") == sorted({*steps_in(run, "stats")}) == list(range(64))


def test_python_hears_of_steps_before_they_are_too_many(root: Path) -> None:
    run: Any = plain_run(root, 1)
    most = 0
    for _ in range(700):
        run.train()
        most = max(most, run._course.waiting)
    assert 200 < most < 400
    run.finish()
    assert steps_in(run, "steps") == list(range(701))


def more(run: Run) -> list[Callable[[], Any]]:
    """What a user may ask for in the midst of training that ends or kinds of steps depend on."""
    return [
        lambda: run.note("a note"),
        lambda: run.anomaly("large", "abs_max('out') > 1e9"),
        lambda: run.statistic("median", lambda tensor: tensor.median()),
        lambda: run.flow("0", "2"),
        lambda: run.on_finding(lambda finding: None),
        lambda: run.log(other=1.0),
    ]


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("every", [1, 4])
def test_what_is_asked_for_in_between_is_done(
    root: Path, which: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for way in ("kernel", "python"):
        if way == "python":
            python_ends(monkeypatch)
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=every) as run:
            for number in range(60):
                loss = train_once(model, optimizer)
                if number == 42:
                    more(run)[which]()
                run.log(loss=loss)
            assert (ended_in(run) > 0) == (way == "kernel")
        tables = {table: read(run.path, table) for table in TABLES}
        for rows in tables.values():
            for row in rows:
                for name in test_course.TIMES:
                    row.pop(name, None)
        found.append(repr(tables))
        flows = run.path / "flows"
        assert flows.exists() == (which == 3)
    assert found[0] == found[1]


def test_other_threads_that_log_lose_nothing_and_say_nothing_twice(root: Path) -> None:
    run: Any = plain_run(root, 3 * WARM)
    names = [f"thread {number}" for number in range(3)]
    run.log(**dict.fromkeys(names, -1.0))
    is_over = False
    logged = dict.fromkeys(names, 0)

    def log(name: str) -> None:
        while not is_over:
            run.log(**{name: float(logged[name])})
            logged[name] += 1
            if logged[name] % 50 == 0:
                run.note(name)

    threads = [Thread(target=log, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for _ in range(150):
        run.log(loss=run.train())
    is_over = True
    for thread in threads:
        thread.join()
    run.finish()
    rows = read(run.path, "scalars")
    for name in names:
        values = [row["value"] for row in rows if row["name"] == name]
        assert sorted(values) == [-1.0, *map(float, range(logged[name]))]
    assert steps_in(run, "steps") == list(range(3 * WARM + 150))
    assert sorted({*steps_in(run, "stats")}) == list(range(3 * WARM + 150))


def test_a_model_with_batch_norm_is_left_to_python(root: Path) -> None:
    """Its buffers change in each step, and are read at its end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3 * WARM):
            train_once(model, optimizer)
        assert ended_in(run) == 0
    sites = {site["site"] for site in read(run.path, "sites") if "running_mean" in site["name"]}
    rows = [row["step"] for row in read(run.path, "stats") if row["site"] in sites]
    assert rows == list(range(3 * WARM))


def test_a_dropout_that_is_switched_off_is_told(root: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for number in range(20):
            if number == 15:
                assert ended_in(run) > 0
                model[1].eval()
            train_once(model, optimizer)
    (event,) = read(run.path, "events")
    assert (event["step"], event["kind"]) == (15, "mode")


def test_steps_stay_in_order_where_what_is_logged_is_no_number(root: Path) -> None:
    """What waits is handed over for it, and it is then not written itself."""
    run: Any = plain_run(root, 73, every=5)
    with pytest.raises(backlight.BacklightError):
        run.log(accuracy="a text")
    before = ended_in(run)
    for _ in range(12):
        run.train()
    assert ended_in(run) > before
    run.finish()
    assert steps_in(run, "steps") == list(range(85))


def test_a_user_who_interrupts_while_rows_are_written_is_heard(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without strict mode, where faults are only told: it is none."""
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    run: Any = plain_run(root, WARM)
    with monkeypatch.context() as patch:
        patch.setattr(run._journal, "send_if_due", _interrupt)
        run._course.sent_at -= 3600  # what waits is due
        with pytest.raises(KeyboardInterrupt):
            run.train()
    run.train()
    run.finish()
    assert steps_in(run, "steps") == list(range(run.current_step + 1))


def _interrupt(*given: Any, **told: Any) -> None:
    raise KeyboardInterrupt


class Slow:
    """A disk that takes what is written to a table only when it is told to."""

    def __init__(self, run: Any, table: str) -> None:
        self._out, pipe = os.pipe()
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, bytes(4096))
        os.set_blocking(pipe, True)
        sink = run._journal._writer.sink_of(table)
        self._file = os.dup(sink.descriptor)
        sink.has_links = False
        os.dup2(pipe, sink.descriptor)
        os.close(pipe)

    def take(self) -> bytes:
        """All that was written until the file is closed."""
        taken = bytearray()
        while part := os.read(self._out, 1 << 16):
            taken += part
        os.close(self._out)
        return bytes(taken).lstrip(b"\0")

    def put_in_place(self, written: bytes) -> None:
        """What was taken is in the file that it was meant for."""
        os.write(self._file, written)
        os.close(self._file)


def train_while_it_ends(run: Any, slow: Slow) -> bytes:
    """Train one step; while it is written another thread ends the run. What the disk was given."""
    taken: list[bytes] = []
    ender = Timer(0.2, run.finish)
    disk = Timer(0.6, lambda: taken.append(slow.take()))
    for thread in (ender, disk):
        thread.start()
    run.train()
    for thread in (ender, disk):
        thread.join()
    return taken[0]


@pytest.mark.parametrize("table", ["stats", "steps"])
def test_a_run_that_another_thread_ends_while_a_step_is_written_has_that_step(
    root: Path, table: str
) -> None:
    run: Any = plain_run(root, WARM)
    before = ended_in(run)
    slow = Slow(run, table)
    taken = train_while_it_ends(run, slow)
    assert ended_in(run) == before + 1
    assert taken.endswith(END)  # once all was written
    slow.put_in_place(taken)
    assert steps_in(run, "steps") == sorted({*steps_in(run, "stats")}) == list(range(WARM + 1))
    assert read(run.path, "steps")[-1]["recorded"]
    assert json.loads((run.path / "run.json").read_text())["recorder"]["steps"] == WARM + 1


def test_a_file_that_ends_while_a_thread_writes_to_it_ends_behind_that(root: Path) -> None:
    run: Any = plain_run(root, WARM)
    series = run._journal._writer._streams["stats"]
    slow = Slow(run, "stats")
    taken: list[bytes] = []
    ender = Timer(0.2, lambda: series._end_segment(is_last=False))
    disk = Timer(0.6, lambda: taken.append(slow.take()))
    for thread in (ender, disk):
        thread.start()
    run.train()
    for thread in (ender, disk):
        thread.join()
    assert taken[0].endswith(END)
    assert (series.sink.descriptor, series.sink.size_bytes) == (-1, 0)
    slow.put_in_place(taken[0])
    run.train()
    run.finish()
    assert steps_in(run, "steps") == sorted({*steps_in(run, "stats")}) == list(range(WARM + 2))


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_another_thread_ends_between_two_steps_leaves_no_hook(
    root: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the one that trains was about to wait for the next step."""
    run: Any = plain_run(root, WARM, every=every)
    wants = run._ledger.wants

    def finish_meanwhile(step: int, kind: str) -> str | None:
        if not run._is_finished:
            ender = Thread(target=run.finish)
            ender.start()
            ender.join()
        return wants(step, kind)

    run._ledger.come_between()
    monkeypatch.setattr(run._ledger, "wants", finish_meanwhile)
    while not run._is_finished:
        run.train()
    assert not any(dict(places) for places, _ in run._modules._hooks)
    assert not any(held.hooks for held in run._observer.owned._all)
    last = run.current_step
    run.train()
    assert steps_in(run, "steps") == list(range(last + 1))


def test_a_step_that_was_written_when_the_user_interrupts_is_not_written_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_ends(monkeypatch)
    for every in (1, 1000):  # a recorded step, and one that is not
        run: Any = plain_run(root, WARM, every=every)
        run._course.leased_steps = 0
        run._course.is_plain = False
        with monkeypatch.context() as patch:
            patch.setattr(run, "_prepare_step", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                run.train()
        for _ in range(3):
            run.train()
        run.finish()
        assert steps_in(run, "steps") == list(range(WARM + 4))


@pytest.mark.parametrize("table", ["stats", "steps"])
def test_a_run_that_ends_while_python_writes_a_step_in_another_thread_has_it_once(
    root: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_ends(monkeypatch)
    run: Any = plain_run(root, WARM)
    slow = Slow(run, table)
    taken = train_while_it_ends(run, slow)
    slow.put_in_place(taken)
    assert steps_in(run, "steps") == sorted({*steps_in(run, "stats")}) == list(range(WARM + 1))
    assert read(run.path, "steps")[-1]["recorded"]


def test_an_interrupt_that_comes_while_a_row_is_written_writes_it_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tells of a signal when the call that writes has returned."""
    python_ends(monkeypatch)
    run: Any = plain_run(root, WARM)
    append = streams.StreamSeries.append

    def append_and_interrupt(series: streams.StreamSeries, batch: Any) -> None:
        append(series, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(streams.StreamSeries, "append", append_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.train()
    run.train()
    run.finish()
    stats = steps_in(run, "stats")
    assert stats.count(WARM) == stats.count(WARM - 1)
    assert steps_in(run, "steps") == list(range(WARM + 2))


def test_a_run_that_another_thread_ends_in_a_backward_pass_takes_no_hook_from_under_autograd(
    root: Path,
) -> None:
    bare, bare_optimizer = simple()
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=1)
    is_inside, may_go_on = Event(), Event()

    def train() -> None:
        for number in range(2 * WARM):
            optimizer.zero_grad()
            out = model(X)
            if number == WARM + 2:
                out.register_hook(lambda grad: (is_inside.set(), may_go_on.wait(), None)[-1])
            out.square().mean().backward()
            optimizer.step()
            train_once(bare, bare_optimizer)

    trainer = Thread(target=train)
    trainer.start()
    assert is_inside.wait(60)
    hooks = [parameter._backward_hooks for parameter in model.parameters()]
    assert all(hooks)
    run.finish()
    assert [parameter._backward_hooks for parameter in model.parameters()] == hooks
    may_go_on.set()
    trainer.join()
    for mine, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(mine, other)
    # They do nothing: the step that was under way is cut short, and none follow.
    assert [row["recorded"] for row in read(run.path, "steps")] == [True] * (WARM + 2) + [False]
    assert sorted({*steps_in(run, "stats")}) == list(range(WARM + 2))
