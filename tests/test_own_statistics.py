"""Statistics that the user asks for: computed exactly, of what is chosen, and never felt."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import backlight
from backlight.errors import BacklightError, BacklightWarning
from backlight.export.file import export_run
from backlight.own.statistic import block_statistics, statistic_of
from backlight.reduce.extras import built_in
from backlight.serve.graphs import moment
from backlight.store import merge
from backlight.store.compact import compact
from backlight.store.formats import known_formats
from backlight.store.reader import RunReader

FORMATS = [
    name
    for name in (each.name for each in known_formats())
    if name not in ("float64", "float8_e8m0fnu")
]
TORCH = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "bfloat16", "float16"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
}


# -- a second time, as plainly as possible


def finite(values: Any) -> Any:
    return values[np.isfinite(values)]


def plain_power_mean(values: Any, power: int) -> float | None:
    own = np.abs(finite(values)).astype(np.longdouble)
    return float(np.mean(own**power) ** (np.longdouble(1) / power)) if own.size else None


def plain_scale(values: Any, dtype: Any) -> int:
    """The greatest power of two by which nothing finite overflows, found by trying."""
    largest = float(ml_dtypes.finfo(dtype).max) if dtype != np.float32 else 3.4028234663852886e38
    most = np.abs(finite(values)).max(initial=0.0)
    if most == 0:
        return 0
    power = int(np.floor(np.log2(largest) - np.log2(np.longdouble(most)))) - 3
    while rounds_to_at_most(np.ldexp(np.longdouble(most), power + 1), dtype, largest):
        power += 1
    return power


def rounds_to_at_most(value: Any, dtype: Any, largest: float) -> bool:
    """Whether a value is nearer to the largest number than to the one that would come next."""
    mantissa = ml_dtypes.finfo(dtype).nmant
    spacing = np.ldexp(np.longdouble(1), int(np.floor(np.log2(largest))) - mantissa)
    return bool(value < np.longdouble(largest) + spacing / 2)


def plain_lost(values: Any, dtype: Any) -> int:
    """How many elements are 0 once they are scaled and cast."""
    own = finite(values)
    scaled = np.ldexp(own.astype(np.longdouble), plain_scale(own, dtype))
    smallest = np.longdouble(float(ml_dtypes.finfo(dtype).smallest_subnormal))
    became = np.where(np.abs(scaled) <= smallest / 2, 0, scaled).astype(np.float64).astype(dtype)
    return int(((became.astype(np.float64) == 0) & (own != 0)).sum())


def blocks_of(values: Any, rows: int, columns: int) -> list[Any]:
    matrix = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return [
        matrix[top : top + rows, left : left + columns]
        for top in range(0, matrix.shape[0], rows)
        for left in range(0, matrix.shape[1], columns)
    ]


def plain_spread(values: Any, rows: int, columns: int) -> float | None:
    most = [np.abs(finite(each)).max(initial=0.0) for each in blocks_of(values, rows, columns)]
    powers = np.log2(np.array([each for each in most if each > 0]))
    return float(powers.std()) if powers.size else None


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-45, 6e-8, 65504.0, 448.0, 3.4e38, 1e300]


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(TORCH)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))
    shape = (*shape[:-1], shape[-1] * draw(st.sampled_from([1, 5]))) if shape else shape
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    # Magnitudes over all of float64's range, and blocks that differ: what scales are there for.
    spread = draw(st.sampled_from([0, 3, 20, 200]))
    powers = rng.uniform(-spread, spread, shape)
    values = rng.normal(size=shape) * 2.0**powers
    for special in draw(st.lists(st.sampled_from(SPECIAL), max_size=4)):
        if values.size:
            values.flat[rng.integers(values.size)] = special
    return torch.tensor(values, dtype=torch.float64).to(TORCH[dtype])


def told(number: torch.Tensor) -> float | None:
    return float(number) if np.isfinite(float(number)) else None


@settings(max_examples=60, deadline=None)
@given(tensors())
def test_extras_are_exact_for_every_dtype(tensor: torch.Tensor) -> None:
    values = tensor.to(torch.float64).numpy()
    own = np.abs(finite(values))
    assert told(built_in(statistic_of("min_abs"), tensor)) == (own.min() if own.size else None)
    for power in (4, 8):
        found = told(built_in(statistic_of(f"rm{power}"), tensor))
        expected = plain_power_mean(values, power)
        assert found == pytest.approx(expected, rel=1e-12) if expected else found == expected


@settings(max_examples=60, deadline=None)
@given(
    tensors(),
    st.sampled_from([(1, 32), (128, 128), (2, 3), (1, 1)]),
    st.sampled_from([each for each in FORMATS if each != "float32"]),
)
def test_blocks_are_exact_for_every_format(
    tensor: torch.Tensor, shape: tuple[int, int], name: str
) -> None:
    values = tensor.to(torch.float64).numpy()
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    spread, block_lost, lost = (
        told(built_in(each, tensor)) for each in block_statistics(shape, name)
    )
    if values.size == 0:
        assert (spread, block_lost, lost) == (None, None, None)
        return
    expected = plain_spread(values, *shape)
    assert spread == pytest.approx(expected, abs=1e-9) if expected is not None else spread is None
    assert lost == plain_lost(values, dtype) / values.size
    by_block = sum(plain_lost(each, dtype) for each in blocks_of(values, *shape))
    assert block_lost == by_block / values.size
    assert block_lost <= lost


# -- in a run


def kurtosis(values: Any) -> Any:
    """The fourth central moment over the square of the second."""
    centred = values - values.mean()
    return (centred**4).mean() / (centred**2).mean() ** 2


class Half(nn.Module):
    """Computes in float16, where a fourth power overflows at 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.half() * 100).float()


def train(run: Any, model: nn.Module, optimizer: Any, steps: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        loss = model(torch.randn(8, 40, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def made() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 36), nn.ReLU(), Half(), nn.Dropout(0.2), nn.Linear(36, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, optimizer = made()
    root = tmp_path_factory.mktemp("runs")
    with backlight.watch(model, optimizer, root=root, project="p", name="own", every=1) as run:
        run.statistic("kurtosis", kurtosis)
        for name in ("min_abs", "rm4", "rm8"):
            run.statistic(name)
        run.statistic("top", lambda values: values.max(), include=r"^2:in", quantities=["value"])
        run.blocks((1, 32), "float8_e4m3fn", classes={"parameter"})
        run.anomaly("peaked", "kurtosis('out') > 1")
        train(run, model, optimizer)
    return run.path


def test_a_statistic_is_a_column_of_what_was_chosen(recorded: Path) -> None:
    opened = backlight.open(recorded)
    rows = opened.stats().rows()
    assert {row["quantity"] for row in rows} == {"value", "grad", "update"}
    plain = [row for row in rows if row["std"] and row["count"] > 1]
    assert len(plain) > 60
    assert all(row["kurtosis"] is not None and row["kurtosis"] >= 1 - 1e-4 for row in plain)
    for row in rows:
        assert row["rms"] <= row["rm4"] * (1 + 1e-9) and row["rm8"] <= row["abs_max"] * (1 + 1e-9)
        is_chosen = row["name"] == "2:in.0" and row["quantity"] == "value"
        assert row["top"] == (row["max"] if is_chosen else None)
        is_parameter = row["name"] in ("0.weight", "0.bias", "4.weight", "4.bias")
        assert (row["scale_lost_float8_e4m3fn"] is not None) == is_parameter
    half = [row for row in rows if row["name"] == "2:out.0" and row["quantity"] == "value"]
    assert all(np.isfinite(row["rm8"]) for row in half)


def test_a_statistic_is_shown_like_the_built_in_ones(recorded: Path, tmp_path: Path) -> None:
    reader = RunReader(recorded)
    reader.refresh()
    site = next(row["site"] for row in reader.sites().to_pylist() if row["name"] == "0:out.0")
    history = reader.history(site)["kurtosis"].to_pylist()
    cells = [row for row in reader.heatmap(statistic="kurtosis").to_pylist() if row["site"] == site]
    assert [row["value"] for row in cells] == history and len(history) == 3
    at = moment(reader, 2, statistic="kurtosis").to_pylist()
    assert next(row["value"] for row in at if row["site"] == site) == history[2]
    found = backlight.open(recorded).anomalies("peaked: kurtosis('out') > 1")[0]
    assert found.steps == (0, 1, 2)
    events = backlight.open(recorded).events()
    assert [row["text"] for row in events if row["kind"] == "anomaly"] == [
        "peaked: kurtosis('out') > 1"
    ]
    assert export_run(recorded, tmp_path / "run.html", most_steps=1).path.is_file()
    frame = backlight.open(recorded).frame("0:out.0", quantity="value")
    rows = backlight.open(recorded).stats("0:out.0", quantity="value").rows()
    for name in ("min_abs", "rm4", "rm8", "kurtosis"):
        assert frame["scalar_stats"][name].tolist() == [row[name] for row in rows]


def test_compaction_and_tiles_keep_them(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p" / "own"
    shutil.copytree(recorded, path)
    reader = RunReader(path)
    reader.refresh()
    before = backlight.open(path).stats().rows()
    monkeypatch.setattr(merge, "_BY_STEP_FROM_ROWS", 1)
    monkeypatch.setattr(merge, "_TILES_FROM_ROWS", 1)
    monkeypatch.setattr(merge, "levels_for", lambda steps: [4])
    compact(path)
    assert backlight.open(path).stats().rows() == before
    again = RunReader(path)
    again.refresh()
    tile = again.snapshot.parts["stats"][0].tiles("value", 4, 0, 0, merge.TILES)
    assert tile is not None
    assert len(again.snapshot.own) == len(tile["own"][0].as_py())
    names = again.snapshot.own
    first = tile.to_pylist()[0]
    values = [row for row in before if row["site"] == first["site"] and row["quantity"] == "value"]
    extremes = [
        max((row[name] for row in values if row[name] is not None), key=abs, default=None)
        for name in names
    ]
    assert first["own"] == extremes


def test_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    def wild(values: torch.Tensor) -> float:
        values.zero_()
        torch.rand(3), np.random.rand(), random.random()
        return 1.0

    def run_once(statistics: bool) -> Any:
        random.seed(1)
        np.random.seed(1)
        model, optimizer = made()
        torch.manual_seed(3)
        with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
            if statistics:
                run.statistic("wild", wild)
                run.statistic("kurtosis", kurtosis)
                run.blocks((2, 4))
            parameters = train(run, model, optimizer)
        state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        return parameters, state, optimizer.state_dict()["state"]

    bare, watched = run_once(False), run_once(True)
    assert all(torch.equal(a, b) for a, b in zip(bare[0], watched[0], strict=True))
    assert torch.equal(bare[1][0], watched[1][0]) and bare[1][1:] == watched[1][1:]
    for key, state in bare[2].items():
        for name, value in state.items():
            assert torch.equal(value, watched[2][key][name])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda values: 1 / 0, "failed at '(model):in.0' (ZeroDivisionError: division by zero)"),
        (lambda values: values[:2, :2], "returned a tensor of 4 elements at '(model):in.0'"),
        (lambda values: "much", "returned a str at '(model):in.0'"),
        (lambda values: None, "returned a NoneType at '(model):in.0'"),
    ],
)
def test_a_function_that_fails_is_said_once_and_counted(
    function: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    model, optimizer = made()
    with (
        pytest.warns(BacklightWarning) as caught,
        backlight.watch(model, optimizer, root=tmp_path, every=1) as run,
    ):
        run.statistic("bad", function, include=r"\(model\):in")
        train(run, model, optimizer)
    sentences = [str(each.message) for each in caught]
    assert len(sentences) == 1 and f"The statistic 'bad' {said}" in sentences[0]
    assert sentences[0].endswith("training goes on.")
    opened = backlight.open(run.path)
    assert opened.info.recorder["faults"] == {sentences[0]: 3}
    assert {row["bad"] for row in opened.stats()} == {None}
    assert len(opened.stats().rows()) > 60


def test_in_strict_mode_it_is_raised(tmp_path: Path) -> None:
    model, optimizer = made()
    with (
        pytest.raises(BacklightError, match="The statistic 'bad' failed"),
        backlight.watch(model, optimizer, root=tmp_path, every=1) as run,
    ):
        run.statistic("bad", lambda values: 1 / 0)
        train(run, model, optimizer)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: run.statistic("mean", kurtosis), "cannot be called 'mean'"),
        (lambda run: run.statistic("a b", kurtosis), "cannot be called 'a b'"),
        (lambda run: run.statistic("kurtosis"), "needs a function .* min_abs, rm4, rm8"),
        (lambda run: run.statistic("kurtosis", 3), "got a int: pass a function"),
        (lambda run: run.statistic("x", kurtosis, kind="odd"), "use signed, magnitude, share"),
        (lambda run: run.statistic("x", kurtosis, include="("), "no regular expression"),
        (lambda run: run.statistic("x", kurtosis, classes={"weight"}), "classes has 'weight'"),
        (lambda run: run.statistic("x", kurtosis, quantities=["gradient"]), "no quantity"),
        (lambda run: run.blocks((1, 0)), "have no shape"),
        (lambda run: run.blocks(32), "have no shape"),
        (lambda run: run.blocks((1, 32), "float9"), "no number format 'float9'"),
        (lambda run: run.blocks((1, 32), "int8"), "whole numbers"),
        (lambda run: run.blocks((1, 32), "float8_e8m0fnu"), "holds no zero"),
    ],
)
def test_what_cannot_be_asked_for_is_one_sentence(ask: Any, said: str, tmp_path: Path) -> None:
    model, optimizer = made()
    with backlight.watch(model, optimizer, root=tmp_path) as run:
        with pytest.raises(BacklightError, match=said) as caught:
            ask(run)
        assert str(caught.value).count(". ") == 0


def test_statistics_are_known_after_a_restart(tmp_path: Path) -> None:
    model, optimizer = made()
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        train(run, model, optimizer, steps=1)
        run.statistic("kurtosis", kurtosis)
        train(run, model, optimizer, steps=1)
    model, optimizer = made()
    with backlight.watch(model, optimizer, resume=run.path, every=1) as run:
        run.statistic("rm4")
        train(run, model, optimizer, steps=1)
    opened = backlight.open(run.path)
    assert [each["name"] for each in opened.info.statistics] == ["kurtosis", "rm4"]
    rows = opened.stats("0:out.0", quantity="value").rows()
    assert [row["kurtosis"] is not None for row in rows] == [False, True, False]
    assert [row["rm4"] is not None for row in rows] == [False, False, True]


def test_a_run_that_asks_for_none_has_no_such_column(tmp_path: Path) -> None:
    model, optimizer = made()
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        train(run, model, optimizer, steps=1)
    stream = pa.ipc.open_stream(run.path / "stats" / "0-0000.arrows")
    assert "own" not in stream.schema.names
    assert json.loads((run.path / "run.json").read_text())["statistics"] == []
