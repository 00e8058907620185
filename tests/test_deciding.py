"""What is decided after a step, what the graph is told by hand, and how a run ends by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from reading import observations, read
from torch import nn

import backlight
from backlight import journal as journal_module
from backlight.samples import balanced, highest_loss
from backlight.scribe import Scribe
from backlight.store.values import read_values, values_path


def simple():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_once(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def kept(path: Path, step: int, name: str):
    """The raw values of a site's output in a step."""
    sites = {site["site"]: site["name"] for site in read(path, "sites")}
    entries = read_values(values_path(path, 0, step))
    (found,) = (e for e in entries if sites[e.site] == name and e.quantity == "value")
    return found


class TestBySample:
    @pytest.mark.parametrize("option", [None, 1])
    def test_any_sample_of_a_step_that_is_decided_on(self, root, option):
        model, optimizer = simple()
        x = torch.randn(6, 3)
        with (
            backlight.watch(model, optimizer, root=root, schedule=set(), samples=option) as run,
            run.step(decide=True) as step,
        ):
            expected = model[0](x).detach()
            train_once(model, optimizer, x)
            step.keep("outliers", samples=[4, 2])
        found = kept(run.path, 0, "0:out.0")
        assert found.samples == (4, 2)
        torch.testing.assert_close(torch.tensor(found.array), expected[[4, 2]])
        (row,) = read(run.path, "steps")
        assert (row["recorded"], row["reason"]) == (True, "outliers")

    def test_by_a_rule_over_categories(self, root):
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, schedule=set()) as run:
            for number in range(2):
                with run.step(decide=True) as step:
                    train_once(model, optimizer, torch.randn(6, 3))
                    run.batch(categories=["a", "a", "a", "a", "b", "c"], losses=[3, 9, 1, 8, 0, 0])
                    step.keep(samples=balanced(3) if number == 0 else highest_loss(2))
        assert kept(run.path, 0, "0:out.0").samples == (0, 4, 5)
        assert kept(run.path, 1, "0:out.0").samples == (1, 3)

    def test_a_choice_that_is_none_is_told_and_the_step_is_kept(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        model, optimizer = simple()
        with (
            pytest.warns(backlight.BacklightWarning) as caught,
            backlight.watch(model, optimizer, root=root, schedule=set()) as run,
            run.step(decide=True) as step,
        ):
            train_once(model, optimizer, torch.randn(6, 3))
            step.keep(samples="all of them")
        assert len(caught) == 1 and "\n" not in str(caught[0].message)
        assert len(observations(run.path)) > 10

    def test_what_is_not_written_does_not_use_up_the_budget(self, root):
        model, optimizer = simple()
        with backlight.watch(
            model, optimizer, root=root, schedule=set(), samples=2, blackbox=1
        ) as run:
            before = run._keeper._run_bytes_left
            for _ in range(5):
                train_once(model, optimizer, torch.randn(6, 3))
            held = before - run._keeper._run_bytes_left
        assert 0 < held < before / 1000
        assert run._keeper._run_bytes_left == before - held  # the one that the end opened


def test_neurons_are_chosen_by_name(root):
    model, optimizer = simple()
    x = torch.randn(6, 3)
    expected = model[0](x).detach()
    with backlight.watch(
        model, optimizer, root=root, every=1, samples=2, neurons={r"^0:out": [3, 1]}
    ) as run:
        train_once(model, optimizer, x)
    found = kept(run.path, 0, "0:out.0")
    assert list(found.neuron_positions) == [3, 1]
    torch.testing.assert_close(torch.tensor(found.array), expected[:2][:, [3, 1]])
    assert kept(run.path, 0, "2:out.0").array.shape == (2, 1)


def test_raw_values_take_as_many_bytes_as_they_may(root):
    model = nn.Sequential(nn.Linear(500, 4000), nn.Linear(4000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, sizes = torch.randn(100, 500), {}
    for given in (None, 100_000, (100_000, 250_000), 8 << 20):
        with backlight.watch(
            model, optimizer, root=root, every=1, samples=100, neurons=10**6, value_bytes=given
        ) as run:
            for _ in range(4):
                train_once(model, optimizer, x)
        sizes[given] = [file.stat().st_size for file in sorted(run.path.glob("values/*"))]
    assert max(sizes[None]) <= 4 << 20 and len(sizes[None]) == 4
    assert 30_000 < max(sizes[100_000]) <= 100_000 and len(sizes[100_000]) == 4
    assert 150_000 < sum(sizes[100_000, 250_000]) <= 250_000
    assert max(sizes[8 << 20]) > max(sizes[None])


def test_a_budget_that_is_spent_is_said_and_counted(root):
    model, optimizer = simple()
    for most, is_spent in ((40_000, True), (1 << 30, False)):
        with backlight.watch(
            model, optimizer, root=root, every=1, samples=2, value_bytes=(4 << 20, most)
        ) as run:
            for _ in range(8):
                train_once(model, optimizer, torch.randn(6, 3))
        events = [row for row in read(run.path, "events") if row["kind"] == "values"]
        left_out = json.loads((run.path / "run.json").read_text())["recorder"]["values_left_out"]
        assert (len(events) == 1, left_out.get("tensors", 0) > 0) == (is_spent, is_spent)
        files = list(run.path.glob("values/*"))
        assert 0 < len(files) < 8 if is_spent else len(files) == 8
        assert all(event["step"] <= len(files) for event in events)
        assert sum(file.stat().st_size for file in files) <= most


def test_losses_of_another_number_of_samples_are_told_in_one_sentence(root):
    model, optimizer = simple()
    run = backlight.watch(model, optimizer, root=root, every=1, samples=highest_loss(2))
    out = model(torch.randn(6, 3))
    run.batch(losses=[0.5, 0.1])
    out.sum().backward()
    with pytest.raises(backlight.BacklightError, match=r"losses=…\) got 2 values, and no tensor"):
        optimizer.step()
    run.finish()


def test_what_was_told_wrongly_of_one_step_is_not_said_of_the_next(root, monkeypatch):
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    model, optimizer = simple()
    with (
        pytest.warns(backlight.BacklightWarning, match="no tensor of the step"),
        backlight.watch(model, optimizer, root=root, every=1) as run,
    ):
        for number in range(3):
            with run.step(decide=True) as step:
                run.batch(indices=range(2 if number == 0 else 6))
                train_once(model, optimizer, torch.randn(6, 3))
                if number == 0:
                    step.keep("wrong", samples=[0])
    faults = json.loads((run.path / "run.json").read_text())["recorder"]["faults"]
    assert [times for text, times in faults.items() if "no tensor of the step" in text] == [1]


def test_a_step_that_was_not_captured_cannot_be_kept_and_that_is_said(root, monkeypatch):
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    model, optimizer = simple()
    with (
        pytest.warns(backlight.BacklightWarning, match="decide=True"),
        backlight.watch(model, optimizer, root=root, every=10) as run,
    ):
        for _ in range(3):
            with run.step() as step:
                train_once(model, optimizer, torch.randn(6, 3))
                step.keep("because")
    told = [(row["recorded"], row["reason"]) for row in read(run.path, "steps")]
    assert told == [(True, "because"), (False, ""), (False, "")]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4 MiB", (1,) * 3, (), (4, 0), [None, 1]])
def test_a_number_of_bytes_that_is_none_is_refused_in_one_sentence(root, wrong):
    model, optimizer = simple()
    with pytest.raises(backlight.BacklightError, match=r"^value_bytes=[^\n]*: give [^\n]*\.$"):
        backlight.watch(model, optimizer, root=root, samples=1, value_bytes=wrong)
    assert not list(root.glob("*/*"))


def edges(path: Path) -> set[tuple[str, str, str]]:
    names = {site["site"]: site["name"] for site in read(path, "sites")}
    found = set()
    for file in (path / "graphs").glob("*.json"):
        for kind, pairs in json.loads(file.read_text())["edges"].items():
            found |= {(names[source], names[sink], kind) for source, sink in pairs}
    return found


class TestConnections:
    def test_a_connection_is_in_the_graph(self, root):
        model, other = nn.Linear(3, 4), nn.Linear(1, 4)
        both = nn.ModuleDict({"first": model, "second": other})
        optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
        with backlight.watch(both, optimizer, root=root, every=1) as run:
            for is_told in (False, True):
                hidden = model(torch.ones(2, 3))
                number = torch.tensor([[hidden.sum().item()]])
                if is_told:
                    run.connect(hidden, number)
                run.tensor("number", number, kind="helper")
                (other(number).sum() + hidden.sum()).backward()
                optimizer.step()
        assert ("first:out.0", "number", "manual") in edges(run.path)

    def test_detaching_keeps_the_edge(self, root):
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            hidden = run.tensor("hidden", model(torch.ones(2, 3)))
            cut = run.detach(hidden)
            assert not cut.requires_grad and cut.data_ptr() == hidden.data_ptr()
            run.tensor("cut", cut)
            hidden.sum().backward()
            optimizer.step()
        assert ("hidden", "cut", "data") in edges(run.path)

    @pytest.mark.parametrize("end", [5, None, [torch.ones(1)]])
    def test_what_is_no_tensor_is_told(self, root, end):
        model, optimizer = simple()
        with (
            backlight.watch(model, optimizer, root=root, every=1) as run,
            pytest.raises(backlight.BacklightError, match="pass tensors or names"),
        ):
            run.connect(torch.ones(1), end)

    def test_a_name_of_no_site_is_told(self, root, monkeypatch):
        monkeypatch.setenv("BACKLIGHT_STRICT", "0")
        model, optimizer = simple()
        with (
            pytest.warns(backlight.BacklightWarning, match="'nowhere'"),
            backlight.watch(model, optimizer, root=root, every=1) as run,
        ):
            run.tensor("x", x := torch.randn(5, 3))
            run.connect("nowhere", x)
            train_once(model, optimizer, x)


def test_a_new_branch_is_followed_and_has_a_graph_of_its_own(root):
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for step in range(40):
            branch = "b" if step >= 20 else "a"
            model[branch](torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    graphs = [row["graph"] for row in read(run.path, "steps")]
    assert len({*graphs[1:20]}) == 1  # steps that are not followed have their structure's
    assert graphs[0] == graphs[19] != graphs[39] != ""
    assert len({*graphs[23:]}) == 1
    assert {*graphs} - {""} == {file.stem for file in (run.path / "graphs").glob("*.json")}


def test_the_loss_is_found_in_every_recorded_step(root):
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(12):
            train_once(model, optimizer, torch.randn(5, 3))
    rows = [row for row in observations(run.path) if row["name"] == "(loss)"]
    assert sorted(r["step"] for r in rows if r["quantity"] == "value") == list(range(12))


SIGNALLED = """
import os, signal, sys, torch, backlight
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = backlight.watch(
    model, optimizer, root=sys.argv[1], project="p", name="n", schedule=set(), blackbox=3
)
{before}
for step in range(10):
    optimizer.zero_grad(); model(torch.ones(4, 3)).sum().backward(); optimizer.step()
os.kill(os.getpid(), signal.SIGTERM)
print("alive")
"""


def signalled(root: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(before=before), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )


class TestSignal:
    def test_being_told_to_end_opens_the_black_box(self, root):
        done = signalled(root)
        assert done.returncode == -signal.SIGTERM and done.stdout == ""
        path = root / "p" / "n"
        assert {row["step"] for row in read(path, "stats")} == {7, 8, 9}
        (event,) = read(path, "events")
        assert event["kind"] == "signal" and "SIGTERM" in event["text"]
        assert json.loads((path / "run.json").read_text())["ended"] == "failed"

    def test_a_handler_of_the_user_is_theirs(self, root):
        done = signalled(root, "signal.signal(signal.SIGTERM, lambda *_: print('mine'))")
        assert (done.returncode, done.stdout) == (0, "mine\nalive\n")

    def test_a_run_that_has_ended_leaves_the_signal_as_it_was(self, root):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, blackbox=1):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_a_signal_in_the_middle_of_recording_waits_for_its_end(self, root):
        done = signalled(
            root,
            textwrap.dedent(
                """
                from backlight.store import writer
                append = writer.RunWriter.append
                def slow(self, table, batch):
                    if table == "stats":
                        os.kill(os.getpid(), signal.SIGTERM)
                    append(self, table, batch)
                writer.RunWriter.append = slow
                """
            ),
        )
        assert done.returncode == -signal.SIGTERM
        assert {row["step"] for row in read(root / "p" / "n", "stats")} >= {7, 8, 9}


class TestSlowDisk:
    def test_training_does_not_wait_for_it(self, root, monkeypatch):
        gate = threading.Event()
        appended = journal_module.RunWriter.append

        def slow(self, table, batch):
            if threading.current_thread() is threading.main_thread():
                time.sleep(0.11)  # slow enough to be noticed
            else:
                gate.wait(20)
            appended(self, table, batch)

        monkeypatch.setattr(journal_module.RunWriter, "append", slow)
        model, optimizer = simple()
        with backlight.watch(model, optimizer, root=root, every=1) as run:
            for _ in range(5):
                train_once(model, optimizer, torch.randn(5, 3))
            assert not run._journal._scribe.is_idle
            gate.set()
        assert {row["step"] for row in read(run.path, "stats")} == set(range(5))
        assert [row["step"] for row in read(run.path, "steps")] == list(range(5))

    def test_detail_is_left_out_before_steps_and_counted(self, root, monkeypatch):
        gate = threading.Event()
        appended = journal_module.RunWriter.append

        def slow(self, table, batch):
            if threading.current_thread() is not threading.main_thread():
                gate.wait(20)
            appended(self, table, batch)

        monkeypatch.setattr(journal_module.RunWriter, "append", slow)
        monkeypatch.setattr(journal_module, "_SLOW_SECS", -1.0)  # any disk is slow
        monkeypatch.setattr(journal_module, "MOST_WAITING_BYTES", 100_000)
        model, optimizer = simple()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with backlight.watch(model, optimizer, root=root, every=1, samples=2) as run:
                for _ in range(60):
                    train_once(model, optimizer, torch.randn(5, 3))
                gate.set()
        assert ["slower than the recording" in str(each.message) for each in caught] == [True]
        told = json.loads((run.path / "run.json").read_text())["recorder"]["left_out"]
        steps = read(run.path, "steps")
        recorded = {row["step"] for row in steps if row["recorded"]}
        assert [row["step"] for row in steps] == list(range(60))
        assert recorded == {row["step"] for row in read(run.path, "stats")}
        assert told["stats"] == 60 - len(recorded) > 0
        stats = read(run.path, "stats")
        bare = {row["step"] for row in stats if not row["sketch_keys"] and row["count"]}
        whole = {row["step"] for row in stats if row["sketch_keys"]}
        assert told["sketches"] == len(bare - whole) > 0
        assert told["values"] > told["sketches"] + told["stats"]
        assert max(whole) < min(bare - whole)  # detail goes first, and what came first has it
        assert {row["reason"] for row in steps if not row["recorded"]} == {"left out: slow disk"}

    def test_the_end_of_a_run_does_not_wait_for_ever(self, root, monkeypatch):
        gate = threading.Event()
        appended = journal_module.RunWriter.append

        def stuck(self, table, batch):
            if threading.current_thread() is not threading.main_thread():
                gate.wait(20)
            appended(self, table, batch)

        monkeypatch.setattr(journal_module.RunWriter, "append", stuck)
        monkeypatch.setattr(journal_module, "_SLOW_SECS", -1.0)
        monkeypatch.setattr(journal_module, "END_SECS", 0.1)
        model, optimizer = simple()
        run = backlight.watch(model, optimizer, root=root, every=1)
        for _ in range(3):
            train_once(model, optimizer, torch.randn(5, 3))
        run._guard.strict = False
        with pytest.warns(backlight.BacklightWarning, match="did not take what was recorded"):
            run.finish()
        gate.set()


def test_a_scribe_writes_in_order_and_waits_when_it_is_asked():
    written: list[int] = []
    gate = threading.Event()
    scribe: Scribe[int] = Scribe(lambda items: (gate.wait(20), written.extend(items)))
    for number in range(50):
        scribe.put(number, size=1)
    assert scribe.waiting_bytes > 0
    gate.set()
    scribe.flush()
    assert written == list(range(50)) and scribe.is_idle and scribe.waiting_bytes == 0
    scribe.put(50)
    scribe.close()
    assert written[-1] == 50


def test_flush_writes_all(root):
    model, optimizer = simple()
    with backlight.watch(model, optimizer, root=root, schedule=set()) as run:
        train_once(model, optimizer, torch.randn(5, 3))
        run.log(loss=1.0)
        run.flush()
        assert len(read(run.path, "steps")) == len(read(run.path, "scalars")) == 1


def test_iterations_and_backward_passes_inside_each_other(root):
    model, optimizer = simple()
    x = torch.randn(5, 3)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        with run.iteration() as outer, run.backward("outer"):
            with run.iteration() as inner, run.backward("inner"):
                model(x).sum().backward()
            run.tensor("after", after := model(x))
            after.sum().backward()
        optimizer.step()
    assert (outer, inner) == (0, 1)
    (value,) = (
        r for r in observations(run.path) if r["name"] == "after" and r["quantity"] == "value"
    )
    assert value["iteration"] == 0
    passes = {r["backward"] for r in observations(run.path) if r["quantity"] == "grad"}
    assert passes == {"outer", "inner"}
