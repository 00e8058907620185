"""Runs become frames of exponent counts and back; logs of other tools become scalars."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import record
from typer.testing import CliRunner

import backlight
from backlight.cli import app
from backlight.errors import BacklightError
from backlight.exchange import import_frame, import_scalars, read_frame, read_scalars, write_frame
from backlight.exchange.frame_schema import checked
from backlight.exchange.records import wandb_records
from backlight.store.moments import least_magnitude, power_mean
from backlight.store.sketch import Sketch

ELSEWHERE = Path(__file__).parent / "elsewhere"
REALS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"), steps=4)


@pytest.fixture(scope="module")
def frame(run: Path) -> Any:
    return backlight.open(run).frame()


def foreign() -> Any:
    """A frame as others write it, one name for what a layer returns, its weight and gradient."""
    rows = [
        ("w1", "Linear", "Activation", 0, "float32", 0.5, 2.0, 3.0, 0, 5, 8, 0),
        ("w1", "Linear", "Gradient", 0, "float32", 0.0, 0.5, 9.0, 4, 9, 0, 0),
        ("w1", "Linear", "Weight", 0, "float16", 0.1, 1.0, 1.0, 0, 0, 13, 1),
    ]
    columns = [("metadata", c) for c in ("name", "type", "tensor_type", "step", "dtype")]
    columns += [("scalar_stats", c) for c in ("mean", "max_abs", "kurtosis")]
    columns += [("exponent_counts", c) for c in (float("-inf"), -2, 0, float("inf"))]
    return pd.DataFrame(rows, columns=pd.MultiIndex.from_tuples(columns))


def test_a_frame_has_what_the_run_has(run: Path, frame: Any) -> None:
    assert list(dict.fromkeys(frame.columns.get_level_values(0))) == [
        *("metadata", "scalar_stats", "exponent_counts")
    ]
    kinds = {"Activation", "Gradient", "Weight", "Optimiser_State"}
    assert set(frame["metadata"]["tensor_type"]) == kinds
    mine = frame[(frame["metadata"]["name"] == "0.weight") & (frame["metadata"]["step"] == 2)]
    weight = mine[mine["metadata"]["tensor_type"] == "Weight"].iloc[0]
    said = backlight.open(run).stats("^0.weight$", steps=2, quantity="value").rows()[0]
    assert weight["scalar_stats"]["rm2"] == said["rms"]
    assert weight["scalar_stats"]["max_abs"] == said["abs_max"]
    assert weight["exponent_counts"].sum() == said["count"] == 32


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_frame_comes_back_from_a_file_and_from_a_run(
    frame: Any, tmp_path: Path, ending: str
) -> None:
    write_frame(frame, tmp_path / f"frame.{ending}")
    again = read_frame(tmp_path / f"frame.{ending}")
    pd.testing.assert_frame_equal(again, frame, check_dtype=False, check_column_type=False)
    path = import_frame(again, tmp_path, name="again")
    opened = backlight.open(path)
    assert opened.status == "finished"
    assert not opened.problems
    key = [("metadata", "name"), ("metadata", "tensor_type"), ("metadata", "step")]
    back = opened.frame().sort_values(key).reset_index(drop=True)
    want = frame.sort_values(key).reset_index(drop=True)
    pd.testing.assert_frame_equal(
        back["exponent_counts"], want["exponent_counts"], check_dtype=False
    )
    for name in ("mean", "std", "min", "max", "mean_abs", "max_abs", "rm2"):
        pd.testing.assert_series_equal(
            back["scalar_stats"][name], want["scalar_stats"][name], check_dtype=False
        )


def test_pandas_reads_what_is_written(frame: Any, tmp_path: Path) -> None:
    write_frame(frame, tmp_path / "frame.parquet")
    theirs = pd.read_parquet(tmp_path / "frame.parquet")
    assert theirs.columns.nlevels == 2
    assert theirs["exponent_counts"]["-1"].tolist() == frame["exponent_counts"][-1].tolist()


def test_a_frame_of_others_is_a_run(tmp_path: Path) -> None:
    scalars = read_scalars(ELSEWHERE / "events.out.tfevents.1")
    opened = backlight.open(import_frame(foreign(), tmp_path, scalars=scalars))
    assert opened.sites()["name"].tolist() == ["w1:out.0", "w1.weight"]
    rows = {(row["name"], row["quantity"]): row for row in opened.stats()}
    assert set(rows) == {("w1:out.0", "value"), ("w1:out.0", "grad"), ("w1.weight", "value")}
    assert rows["w1:out.0", "grad"]["zeros"] == 4
    assert rows["w1.weight", "value"]["infs"] == 1
    assert rows["w1.weight", "value"]["count"] == 14
    sketch = opened.sketches("w1:out.0", quantity="value").merged()
    assert sketch.exponents()["exponent"].to_pylist() == [-2, 0]
    assert opened.steps()["loss"].tolist()[:2] == [2.0, 1.0]
    assert "train/loss" in set(opened.scalars()["name"])
    assert rows["w1.weight", "value"]["kurtosis"] == foreign()["scalar_stats"]["kurtosis"].iloc[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns=[("metadata", "dtype")]), "no column ('metadata', 'dtype')"),
        (lambda f: f.drop(columns=["scalar_stats"], level=0), "no column under 'scalar_stats'"),
        (lambda f: f.assign().set_axis(range(f.shape[1]), axis=1), "no pairs"),
        (lambda f: changed(f, ("metadata", "tensor_type"), "Bias"), "tensor_type 'Bias'"),
        (lambda f: changed(f, ("metadata", "step"), -1), "step -1"),
        (lambda f: changed(f, ("metadata", "dtype"), "float9"), "no number format 'float9'"),
        (lambda f: changed(f, ("exponent_counts", 0), -3), "holds no counts"),
        (lambda f: changed(f, ("exponent_counts", 0), "many"), "holds no numbers"),
        (lambda f: changed(f, ("exponent_counts", "2.5"), 1), "an exponent '2.5'"),
        (lambda f: changed(f, ("other", "x"), 1), "the first level has to be"),
        (lambda f: [1, 2], "A list is no frame"),
    ],
)
def test_a_frame_that_breaks_the_schema_is_one_sentence(change: Any, said: str) -> None:
    with pytest.raises(BacklightError) as raised:
        checked(change(foreign()))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def changed(frame: Any, column: tuple[str, Any], value: Any) -> Any:
    frame[column] = value
    return frame


def test_pickles_are_read_only_when_they_are_trusted(tmp_path: Path) -> None:
    foreign().to_pickle(tmp_path / "frame.pkl")
    with pytest.raises(BacklightError, match="can run any program"):
        read_frame(tmp_path / "frame.pkl")
    assert len(read_frame(tmp_path / "frame.pkl", allow_pickle=True)) == 3


def test_logs_of_other_tools() -> None:
    tensorboard = read_scalars(ELSEWHERE / "events.out.tfevents.1")
    assert [(each.step, each.name, each.at) for each in tensorboard][4] == (
        *(4, "train/loss"),
        1700000004.0,
    )
    assert [each.value for each in read_scalars(ELSEWHERE / "events.out.tfevents.2")] == [0, 0.5, 1]
    wandb = read_scalars(ELSEWHERE / "run-offline.wandb")
    assert {each.name for each in wandb} == {"loss", "eval.acc"}
    assert [each.value for each in wandb if each.name == "loss"][:2] == [2.0, 1.0]


def test_records_that_go_over_blocks() -> None:
    content = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    wanted = [bytes([number]) * size for number, size in enumerate((32700, 50, 90_000, 3))]
    for data in wanted:
        content += packed(data, len(content))
    assert list(wandb_records(content)) == wanted
    assert list(wandb_records(content[:-5])) == wanted[:-1]


def packed(data: bytes, at: int) -> bytes:
    """A record as LevelDB's log has it, which begins at a byte."""
    out, is_first = b"", True
    while True:
        left = 32768 - (at + len(out)) % 32768
        if left < 7:
            out += bytes(left)
            continue
        part, data = data[: left - 7], data[left - 7 :]
        kind = (1 if is_first else 4) if not data else (2 if is_first else 3)
        out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        is_first = False
        if not data:
            return out


@pytest.mark.parametrize("name", ["events.out.tfevents.1", "run-offline.wandb"])
def test_a_damaged_log_is_one_sentence(tmp_path: Path, name: str) -> None:
    content = bytearray((ELSEWHERE / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BacklightError, match="is damaged, or is something else"):
        read_scalars(tmp_path / name)
    half = (ELSEWHERE / name).read_bytes()[:-3]
    (tmp_path / name).write_bytes(half)
    assert read_scalars(tmp_path / name)


def test_the_commands(run: Path, tmp_path: Path) -> None:
    def ran(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, [str(each) for each in arguments])
        return done.exit_code, done.output

    file = tmp_path / "weights.csv"
    assert ran("export-frame", run, "-o", file, "--name", "weight$")[0] == 0
    log = ELSEWHERE / "run-offline.wandb"
    code, said = ran("import", file, "--root", tmp_path / "runs", "--scalars", log)
    assert code == 0, said
    opened = backlight.open(tmp_path / "runs" / "imported" / "weights")
    assert set(opened.sites()["name"]) == {"0.weight", "2.weight"}
    assert "loss" in set(opened.scalars()["name"])
    assert ran("import", log, "--root", tmp_path / "runs")[0] == 0
    assert ran("import", tmp_path / "missing.csv")[0] == 1
    assert "use a .csv" in ran("import", tmp_path / "picture.png")[1]


@given(st.lists(REALS, max_size=80))
def test_what_is_told_from_a_sketch_is_near_the_truth(values: list[float]) -> None:
    sketch = Sketch.of_values(values)
    finite = np.array([each for each in values if np.isfinite(each)], np.float64)
    least = least_magnitude(sketch)
    if len(finite) == 0:
        assert least is None
        assert power_mean(sketch, 4) is None
        return
    true = np.abs(finite).min()
    assert least is not None
    assert true * 0.8 <= least <= true
    for power in (4, 8):
        largest = np.abs(finite).max() or 1.0
        exact = largest * np.mean((np.abs(finite) / largest) ** power) ** (1 / power)
        assert power_mean(sketch, power) == pytest.approx(exact, rel=0.25, abs=0.0)


def test_a_run_without_sites_answers_with_nothing(tmp_path: Path) -> None:
    scalars = read_scalars(ELSEWHERE / "run-offline.wandb")
    opened = backlight.open(import_scalars(scalars, tmp_path))
    assert len(opened.stats("weight")) == 0
    with pytest.raises(BacklightError, match="fits into a frame"):
        opened.frame("weight")
