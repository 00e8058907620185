from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs import SampleRun, write_sample_run

from backlight.errors import BacklightError
from backlight.store import runs
from backlight.store.runs import find_runs, is_alive, process_started, read_info, status_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_sample_run(root, project="a", name="one", steps=3, sites=4)
    write_sample_run(root, project="a", name="two", steps=3, sites=4)
    write_sample_run(root, project="b", name="<b>[red]ü 日本", steps=3, sites=4)
    return root


def test_runs_are_found_under_a_root_a_project_and_a_run(root: Path) -> None:
    assert [run.id for run in find_runs(root)] == ["a/one", "a/two", "b/<b>[red]ü 日本"]
    assert [run.id for run in find_runs(root / "a")] == ["a/one", "a/two"]
    assert [run.id for run in find_runs(root / "a" / "one")] == ["a/one"]
    assert [run.id for run in find_runs(root / "a" / ".." / "a" / "one")] == ["a/one"]


def test_a_folder_without_runs_has_none(tmp_path: Path) -> None:
    (tmp_path / "x" / "y" / "too" / "deep").mkdir(parents=True)
    (tmp_path / "x" / "y" / "too" / "deep" / "run.json").write_text("{}")
    (tmp_path / ".hidden" / "run").mkdir(parents=True)
    (tmp_path / ".hidden" / "run" / "run.json").write_text("{}")
    (tmp_path / "a file").write_text("")
    assert find_runs(tmp_path) == []


def test_a_copy_of_a_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=1, sites=2)
    path.rename(path.with_name("moved"))
    assert [run.id for run in find_runs(tmp_path)] == ["demo/moved"]


@pytest.mark.parametrize("name", ["missing", "file", "file/inside", "nul\0"])
def test_a_path_that_is_no_folder_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BacklightError, match=r"pass the folder that your runs are in"):
        find_runs(tmp_path / name)


def valid() -> dict[str, Any]:
    return {
        "format": [1, 0],
        "id": "p/r",
        "project": "p",
        "name": "r",
        "created_at": 1.5,
        "host": "h",
        "pid": 1,
        "pid_started": 0.0,
        "config": {},
        "environment": {},
        "modules": [],
        "recorder": {},
        "ended_at": None,
        "ended": None,
    }


def test_run_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**valid(), "format": [1, 7], "later": 1}))
    info = read_info(tmp_path)
    assert (info.format, info.project, info.created_at) == ((1, 7), "p", 1.5)


def test_what_an_older_writer_left_out_has_its_default(tmp_path: Path) -> None:
    content = valid()
    for name in ("config", "environment", "modules", "recorder", "ended_at", "ended"):
        del content[name]
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert read_info(tmp_path).modules == []


BROKEN = {
    "missing": None,
    "empty": "",
    "no JSON": "{",
    "half": json.dumps(valid())[:40],
    "a list": "[]",
    "a number": "7",
    "too deep": "[" * 100_000,
    "not text": b"\xff\xfe\x00{",
    "huge number": '{"format": [1, ' + "9" * 5000 + "]}",
    "no format": json.dumps({**valid(), "format": None}),
    "long format": json.dumps({**valid(), "format": [1, 0, 0]}),
    "true format": json.dumps({**valid(), "format": [True, 0]}),
    "newer major": json.dumps({**valid(), "format": [2, 0]}),
    "config is a list": json.dumps({**valid(), "config": []}),
    "modules of numbers": json.dumps({**valid(), "modules": [1]}),
    "time is NaN": json.dumps({**valid(), "created_at": float("nan")}),
    "time is text": json.dumps({**valid(), "created_at": "now"}),
    "pid is a float": json.dumps({**valid(), "pid": 1.5}),
    "host is missing": json.dumps({k: v for k, v in valid().items() if k != "host"}),
    "ended oddly": json.dumps({**valid(), "ended": "exploded"}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_run_json_is_one_sentence(tmp_path: Path, content: str | bytes | None) -> None:
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(BacklightError) as caught:
        read_info(tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "\n" not in message
    assert message.endswith(".")


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**valid(), "format": [9, 3]}))
    with pytest.raises(BacklightError, match=r"format 9\.3.*install a newer Backlight"):
        read_info(tmp_path)


def test_a_huge_run_json_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_LARGEST_RUN_FILE_BYTES", 100)
    (tmp_path / "run.json").write_text(json.dumps(valid()))
    with pytest.raises(BacklightError, match="too large"):
        read_info(tmp_path)


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_an_ended_run_says_how(tmp_path: Path, end: str) -> None:
    path = write_sample_run(tmp_path, steps=1, sites=2, end=end)
    assert status_of(path, read_info(path)) == end


def test_a_run_is_live_while_its_writer_lives(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=1, sites=2, end=None)
    info = read_info(path)
    assert status_of(path, info) == "live"
    info.pid_started -= 100.0
    assert status_of(path, info) == "stopped"
    info.pid_started = 0.0
    assert status_of(path, info) == "live"


def test_a_run_whose_writer_was_killed_was_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        run = SampleRun(tmp_path, "p", "r", sites=2, seed=0)
        run.info.pid, run.info.pid_started = child.pid, process_started(child.pid)
        assert status_of(run.path, run.info) == "live"
        child.kill()
        # Until its parent collects it, a dead process still has its number.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert status_of(run.path, run.info) == "stopped"
        child.wait()
        assert status_of(run.path, run.info) == "stopped"
        run.end(None)
    finally:
        child.kill()
        child.communicate()


def test_a_run_of_another_host_is_live_while_its_files_grow(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=1, sites=2, end=None)
    info = read_info(path)
    info.host = platform.node() + "-other"
    assert status_of(path, info) == "live"
    past = time.time() - 61
    for file in path.rglob("*"):
        os.utime(file, (past, past))
    assert status_of(path, info) == "stopped"


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1, 2**53])
def test_a_number_that_is_no_process_is_not_alive(pid: int) -> None:
    assert not is_alive(pid, 0.0)
    assert process_started(pid) == 0.0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says")
def test_the_start_of_a_process_is_known_and_survives_odd_names(tmp_path: Path) -> None:
    program = tmp_path / "odd) name 1 2 3"
    program.symlink_to(sys.executable)
    before = time.time()
    child = subprocess.Popen([program, "-c", "print(); input()"], stdin=-1, stdout=-1)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert before - 2 <= process_started(child.pid) <= time.time() + 2
    finally:
        child.communicate(b"\n")
