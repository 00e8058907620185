from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sample_runs import write_sample_run

import backlight
from backlight.doctor import examine
from backlight.serve.app import NO_BUNDLE, has_bundle

SOURCE = Path(backlight.__file__).parents[1]


def environment(source: Path = SOURCE) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "error", "COLUMNS": "100"}


def run(
    *words: str, cwd: Path | None = None, source: Path = SOURCE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backlight", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(source),
        timeout=120,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work") / "backlight-runs"
    write_sample_run(root, project="p", name="one", steps=30, sites=4)
    write_sample_run(root, project="p", name="[red]<b>日本", steps=3, sites=4, with_nan=True)
    return root


def test_the_version() -> None:
    assert run("--version").stdout == f"backlight {backlight.__version__}\n"


@pytest.mark.parametrize("command", ["", "demo", "view", "ls", "doctor"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_long_enough_to_begin_with(command: str, option: str) -> None:
    result = run(*command.split(), option)
    assert result.returncode == 0
    assert result.stderr == ""
    assert f"backlight {command}".strip() in result.stdout
    assert ("Examples:" if command else "backlight demo") in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("view", "--port", "x"),
        ("view", "--port", "99999"),
        ("view", "a", "b"),
        ("ls", "--nonsense"),
        ("demo", "--steps", "0"),
    ],
)
def test_a_wrong_usage_is_said_without_a_traceback(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()


@pytest.mark.parametrize("command", ["ls", "view"])
@pytest.mark.parametrize("where", ["nowhere", "a-file"])
def test_a_path_without_runs_is_one_sentence(tmp_path: Path, command: str, where: str) -> None:
    (tmp_path / "a-file").write_text("")
    result = run(command, where, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("backlight: ")
    assert result.stderr.count("\n") == 1
    assert where in result.stderr


@pytest.mark.skipif(not has_bundle(), reason=NO_BUNDLE)
def test_edits_are_saved_with_a_run_that_is_there(tmp_path: Path) -> None:
    result = run("lab", "model.py", "--run", "nowhere", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "backlight: There is no run in 'nowhere' to save edits with.\n"


def test_runs_are_listed_with_their_names_as_they_are(root: Path) -> None:
    result = run("ls", cwd=root.parent)
    assert (result.returncode, result.stderr) == (0, "")
    header, *lines = result.stdout.splitlines()
    assert header.split() == "project run status steps recorded loss age size".split()
    assert len(lines) == 2
    assert "[red]<b>日本" in lines[0]
    assert "nan" in lines[0]
    assert lines[1].split()[:5] == ["p", "one", "finished", "30", "30"]


def test_runs_as_json(root: Path) -> None:
    result = run("ls", str(root), "--json")
    runs = {each["name"]: each for each in json.loads(result.stdout)["runs"]}
    assert runs["one"]["steps"] == 30
    assert runs["one"]["size_bytes"] > 1000
    assert runs["[red]<b>日本"]["loss"] == "NaN"


def test_a_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_sample_run(tmp_path, steps=2, sites=1)
    (tmp_path / "demo" / "broken").mkdir()
    (tmp_path / "demo" / "broken" / "run.json").write_text("{")
    result = run("ls", str(tmp_path))
    assert result.returncode == 0
    assert "sample" in result.stdout
    assert result.stderr.count("\n") == 1
    assert "broken" in result.stderr


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    result = run("ls", str(tmp_path))
    assert result.returncode == 0
    assert result.stdout.startswith("There are no runs in")


def test_the_doctor_says_what_is_there() -> None:
    result = run("doctor")
    lines = {line.split()[1]: line for line in result.stdout.splitlines()}
    assert lines["Python"].startswith("ok")
    assert lines["duckdb"].startswith("ok")
    assert lines["page"].startswith("ok" if has_bundle() else "missing")
    assert result.returncode == (0 if has_bundle() else 1)
    found = json.loads(run("doctor", "--json").stdout)
    assert [each["what"] for each in found] == [each.what for each in examine()]
    assert {each["state"] for each in found} <= {"ok", "warning", "missing"}


def test_the_doctor_says_that_viewing_works_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    code = (
        "from backlight.doctor import examine; print([f for f in examine() if f.what == 'torch'])"
    )
    path = f"{tmp_path}{os.pathsep}{SOURCE}"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment(), "PYTHONPATH": path},
    )
    assert "viewing works without" in result.stdout
    assert "is_fatal=False" in result.stdout


def test_help_loads_nothing_heavy() -> None:
    heavy = "torch numpy pyarrow duckdb starlette uvicorn rich"
    code = f"import sys, backlight.cli; print([m for m in '{heavy}'.split() if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert result.stdout == "[]\n"


def test_viewing_loads_no_framework(root: Path) -> None:
    code = "import sys, backlight.serve.server; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert result.stdout == "False\n"


def test_without_its_page_the_viewer_says_what_to_do(root: Path, tmp_path: Path) -> None:
    shutil.copytree(
        SOURCE / "backlight", tmp_path / "backlight", ignore=shutil.ignore_patterns("static")
    )
    result = run("view", str(root), source=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"backlight: {NO_BUNDLE}\n"


def test_the_viewer_says_where_it_is_and_stops_quietly(root: Path) -> None:
    command = [sys.executable, "-m", "backlight", "view", str(root), "--no-browser", "--port", "0"]
    viewer = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert viewer.stdout is not None
        line = viewer.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        assert len(httpx.get(f"{address}api/runs").json()["runs"]) == 2
        port = address.rstrip("/").rpartition(":")[2]
        second = run("view", str(root), "--no-browser", "--port", port)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr == (
            f"backlight: Port {port} is in use: pass another --port, or none to get a free one.\n"
        )
        viewer.send_signal(signal.SIGINT)
        stdout, stderr = viewer.communicate(timeout=60)
    finally:
        viewer.kill()
        viewer.communicate()
    assert (viewer.returncode, stdout, stderr) == (0, "", "")
