from __future__ import annotations

import json
import math
import shutil
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import models
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_runs import SampleRun, make_sites, stats_batch, write_sample_run

import backlight
from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, STATS, TABLES, Site
from backlight.store import queries
from backlight.store.compact import compact
from backlight.store.reader import RunReader
from backlight.store.runs import find_runs
from backlight.store.summary import describe
from backlight.store.tiles import SHOWN
from backlight.store.writer import RunWriter


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return write_sample_run(root, steps=150, sites=20, with_nan=True)


@pytest.fixture(scope="module")
def reader(path: Path) -> RunReader:
    return read(path)


@pytest.fixture(scope="module")
def rows(path: Path) -> list[dict[str, Any]]:
    """The statistics as any other tool reads them."""
    return list(pa.ipc.open_stream(path / "stats" / "0-0000.arrows").read_all().to_pylist())


def share(part: str, whole: str, row: dict[str, Any]) -> float | None:
    return row[part] / row[whole] if row[whole] else None


def naive(statistic: str, row: dict[str, Any], values: dict[Any, float]) -> float | None:
    shares = {
        "zero_share": ("zeros", "count"),
        "nan_share": ("nans", "count"),
        "inf_share": ("infs", "count"),
        "dead_share": ("dead_units", "units"),
        "constant_share": ("constant_units", "units"),
    }
    if statistic == "norm":
        return row["rms"] * math.sqrt(row["count"])
    if statistic == "update_ratio":
        return row["rms"] / values[row["site"], row["step"]]
    return share(*shares[statistic], row) if statistic in shares else row[statistic]


@pytest.mark.parametrize("statistic", SHOWN)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_heatmap_is_the_extreme_of_each_column(
    reader: RunReader, rows: list[dict[str, Any]], quantity: str, statistic: str
) -> None:
    table = reader.heatmap(quantity=quantity, statistic=statistic, columns=7, first=10, last=120)
    columns = json.loads(table.schema.metadata[b"columns"])
    assert len(columns) == 7
    expected: dict[tuple[int, int], tuple[float | None, int, int]] = {}
    values = {(row["site"], row["step"]): row["rms"] for row in rows if row["quantity"] == "value"}
    has_any = statistic != "update_ratio" or quantity == "update"
    for row in rows if has_any else []:
        if row["quantity"] != quantity or not 10 <= row["step"] <= 120:
            continue
        column = next(i for i, (a, b) in enumerate(columns) if a <= row["step"] <= b)
        key = (row["site"], column)
        value, nans, infs = expected.get(key, (None, 0, 0))
        new = naive(statistic, row, values)
        if new is not None and (value is None or abs(new) > abs(value)):
            value = new
        expected[key] = (value, nans + row["nans"], infs + row["infs"])
    found = {
        (r["site"], r["column"]): (r["value"], r["nans"], r["infs"]) for r in table.to_pylist()
    }
    assert found == expected
    assert any(nans for _, nans, _ in expected.values()) == (len(expected) > 0)


def test_the_columns_of_a_heatmap_hold_equal_numbers_of_steps(reader: RunReader) -> None:
    table = reader.heatmap(columns=50)
    columns = json.loads(table.schema.metadata[b"columns"])
    recorded = reader.steps().filter(reader.steps()["recorded"])["step"].to_pylist()
    held = [sum(a <= step <= b for step in recorded) for a, b in columns]
    assert sum(held) == len(recorded)
    assert max(held) - min(held) <= 1
    assert columns[0][0] == recorded[0]
    assert columns[-1][1] == recorded[-1]
    assert table.schema.names == ["site", "column", "value", "nans", "infs"]


def test_a_tile_is_a_part_of_the_heatmap(reader: RunReader) -> None:
    whole, tile = reader.heatmap(columns=9), reader.heatmap(columns=9, sites=[3, 1, 77])
    assert tile.to_pylist() == [row for row in whole.to_pylist() if row["site"] in (1, 3)]
    assert tile.num_rows == 18
    assert tile.schema.metadata == whole.schema.metadata
    assert reader.heatmap(sites=[]).num_rows == 0


def test_more_columns_than_steps_gives_one_for_each_step(reader: RunReader) -> None:
    table = reader.heatmap(columns=10_000)
    columns = json.loads(table.schema.metadata[b"columns"])
    assert all(first == last for first, last in columns)
    assert len(columns) == 125


def test_an_empty_range_gives_an_empty_heatmap(reader: RunReader) -> None:
    table = reader.heatmap(first=1000, last=2000)
    assert table.num_rows == 0
    assert json.loads(table.schema.metadata[b"columns"]) == []
    assert reader.heatmap(first=20, last=10).num_rows == 0


def test_a_heatmap_takes_the_extreme_over_iterations(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=1, seed=0)
    batch = stats_batch(0, run.places, run.rng, False).to_pylist()[0]
    two = [{**batch, "iteration": i, "mean": mean, "nans": 2} for i, mean in enumerate([3.0, -4.0])]
    run.writer.append("stats", pa.RecordBatch.from_pylist(two, schema=STATS))
    run.end(None)
    (row,) = read(run.path).heatmap(statistic="mean").to_pylist()
    assert (row["value"], row["nans"]) == (-4.0, 4)


def test_a_history_has_every_row_where_there_is_room(
    reader: RunReader, rows: list[dict[str, Any]]
) -> None:
    table = reader.history(2, quantity="grad")
    expected = [row for row in rows if row["site"] == 2 and row["quantity"] == "grad"]
    assert table.to_pylist() == [
        {name: row[name] for name in table.schema.names} for row in expected
    ]
    left_out = {"order", "site", "quantity", "backward", "sketch_keys", "sketch_counts", "own"}
    assert set(table.schema.names) == set(STATS.names) - left_out


def test_a_parameter_has_the_ratio_of_its_update_to_it(
    reader: RunReader, rows: list[dict[str, Any]]
) -> None:
    (site,) = {row["site"] for row in rows if row["quantity"] == "update"} & {10}
    mine = {(r["quantity"], r["step"]): r["rms"] for r in rows if r["site"] == site}
    steps = reader.history(site)["step"].to_pylist()
    expected = [mine["update", step] / mine["value", step] for step in steps]
    for quantity in ("value", "update"):
        found = reader.history(site, quantity=quantity)["update_ratio"].to_pylist()
        assert found == pytest.approx(expected)
    assert set(reader.history(2)["update_ratio"].to_pylist()) == {None}


def test_a_thinned_history_keeps_every_extreme_and_end(reader: RunReader) -> None:
    whole, thin = reader.history(7), reader.history(7, points=16)
    assert thin.num_rows < whole.num_rows / 2
    for name in ("mean", "std", "min", "max", "abs_max", "rms"):
        values = [value for value in whole[name].to_pylist() if value is not None]
        kept = thin[name].to_pylist()
        if name != "max":
            assert min(values) in kept, name
        if name != "min":
            assert max(values) in kept, name
    assert thin["step"].to_pylist()[:: thin.num_rows - 1] == [0, 148]
    broken = [row["step"] for row in whole.to_pylist() if row["nans"]]
    assert {broken[0], broken[-1]} <= set(thin["step"].to_pylist())


def test_sketches_merge_by_addition(reader: RunReader, rows: list[dict[str, Any]]) -> None:
    table = reader.sketches(1, columns=6)
    mine = [row for row in rows if row["site"] == 1 and row["quantity"] == "value"]
    assert table.num_rows == 6
    for column in table.to_pylist():
        held = [r for r in mine if column["first_step"] <= r["step"] <= column["last_step"]]
        total: Counter[int] = Counter()
        for row in held:
            total.update(dict(zip(row["sketch_keys"], row["sketch_counts"], strict=True)))
        assert column["keys"] == sorted(total)
        assert column["counts"] == [total[key] for key in sorted(total)]
        assert column["count"] == sum(row["count"] for row in held)
        assert column["nans"] == sum(row["nans"] for row in held)
        assert column["min"] == min(row["min"] for row in held)
        assert column["max"] == max(row["max"] for row in held)
    assert sum(table["count"].to_pylist()) == sum(row["count"] for row in mine)


def test_the_types_of_sketches_are_those_of_the_interface(reader: RunReader) -> None:
    schema = reader.sketches(1, columns=6).schema
    assert schema.field("keys").type.value_type == pa.int16()
    assert schema.field("counts").type.value_type == pa.int64()
    assert (
        schema.names
        == "column first_step last_step count zeros nans infs min max keys counts".split()
    )


def test_a_tensor_of_zeros_has_an_empty_sketch(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=1, seed=0)
    row = stats_batch(0, run.places, run.rng, False).to_pylist()[0]
    row |= {"sketch_keys": [], "sketch_counts": [], "zeros": 256, "min": None, "max": None}
    run.writer.append("stats", pa.RecordBatch.from_pylist([row], schema=STATS))
    run.end(None)
    (column,) = read(run.path).sketches(0).to_pylist()
    assert (column["keys"], column["counts"], column["min"]) == ([], [], None)


VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(values=st.lists(VALUES, min_size=1, max_size=300), points=st.integers(1, 50))
def test_thinned_scalars_keep_extremes_ends_and_what_is_not_finite(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], points: int
) -> None:
    table = scalars_of(tmp_path_factory.mktemp("r"), values, points)
    kept = dict(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert {0, len(values) - 1} <= kept.keys()
    assert all(str(kept[step]) == str(values[step]) for step in kept)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= set(kept.values())
    kinds = ["finite" if math.isfinite(value) else str(value) for value in values]
    for step, kind in enumerate(kinds):
        is_start = step == 0 or kinds[step - 1] != kind
        is_end = step == len(kinds) - 1 or kinds[step + 1] != kind
        if kind != "finite" and (is_start or is_end):
            assert step in kept


def scalars_of(root: Path, values: list[float], points: int) -> pa.Table:
    run = SampleRun(root, "p", "r", sites=1, seed=0)
    named = [{"step": i, "name": "x", "value": v, "logged_at": 0.0} for i, v in enumerate(values)]
    run.writer.append_rows("scalars", named)
    run.end(None)
    return read(run.path).scalars(points=points)


def test_scalars_are_thinned_to_about_as_many_points(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=5000).tolist()
    assert 100 <= scalars_of(tmp_path, noise, 400).num_rows <= 400


def test_only_what_is_later_is_given(reader: RunReader) -> None:
    scalars = reader.scalars(after=147).to_pylist()
    assert [(row["name"], row["step"]) for row in scalars] == [
        ("loss", 148),
        ("loss", 149),
        ("lr", 148),
        ("lr", 149),
    ]
    assert reader.scalars(after=10**9).num_rows == 0


def test_sites_are_in_network_order(reader: RunReader) -> None:
    names = reader.sites()["name"].to_pylist()
    assert names[:4] == [
        "embed:out.0",
        "embed.weight",
        "embed.weight:exp_avg",
        "embed.weight:exp_avg_sq",
    ]
    modules = [row["module"] for row in reader.sites().to_pylist()]
    appearances = list(dict.fromkeys(modules))
    assert [m for i, m in enumerate(modules) if i == 0 or modules[i - 1] != m] == appearances
    assert len(names) == 20


def test_parameters_without_outputs_stand_before_what_is_inside_their_module(
    tmp_path: Path,
) -> None:
    sites = [
        Site(0, "outside.scale", "parameter", "outside", "Thing", "scale"),
        Site(1, "block.gate", "parameter", "block", "Block", "gate"),
        Site(2, "block.fc.weight", "parameter", "block.fc", "Linear", "weight"),
        Site(3, "stem:in.0", "input", "stem", "Conv", "in.0"),
        Site(4, "stem:out.0", "output", "stem", "Conv", "out.0"),
        Site(5, "relu:out.0", "output", "relu", "ReLU", "out.0"),
        Site(6, "mine", "tensor", "", "", "mine"),
        Site(7, "block.fc:out.0", "output", "block.fc", "Linear", "out.0"),
        Site(8, "relu#2:out.0", "output", "relu", "ReLU", "out.0", call=2),
        Site(9, "block.fc.weight:exp_avg", "optimizer", "block.fc", "Linear", "exp_avg"),
    ]
    run = SampleRun(tmp_path, "p", "r", sites=0, seed=0)
    run.writer.append_rows("sites", [asdict(site) for site in sites])
    run.end(None)
    assert read(run.path).sites()["name"].to_pylist() == [
        "stem:in.0",
        "stem:out.0",
        "relu:out.0",
        "mine",
        "block.gate",
        "block.fc:out.0",
        "block.fc.weight",
        "block.fc.weight:exp_avg",
        "relu#2:out.0",
        "outside.scale",
    ]


def test_a_summary_says_how_far_a_run_is(path: Path, reader: RunReader) -> None:
    (run,) = find_runs(path)
    summary = describe(run, reader)
    assert (summary["id"], summary["status"]) == ("demo/sample", "finished")
    assert (summary["step"], summary["steps"], summary["recorded_steps"]) == (149, 150, 125)
    assert math.isnan(summary["loss"])
    assert len(summary["loss_curve"]) <= 60
    assert summary["loss_curve"][-1] is None
    assert summary["loss_curve"][0] > 3
    assert summary["recording_share"] == pytest.approx(125 * 0.01 / (150 * 0.1))
    assert summary["updated_at"] > summary["created_at"]
    assert summary["age_secs"] >= 0


def test_a_run_that_has_only_begun_can_be_read(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=0, seed=0)
    (folder,) = find_runs(tmp_path)
    reader = read(run.path)
    summary = describe(folder, reader)
    assert (summary["step"], summary["steps"], summary["loss"]) == (None, 0, None)
    assert summary["loss_curve"] == []
    assert reader.rows == dict.fromkeys(TABLES, 0)
    assert reader.heatmap().num_rows == 0
    assert reader.scalars().num_rows == reader.sites().num_rows == reader.notes().num_rows == 0
    assert (reader.scalar_names(), reader.quantities()) == ([], [])
    assert reader.history(0).num_rows == reader.sketches(0).num_rows == 0
    run.end(None)


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=5, seed=0)
    reader = read(run.path)
    for step in range(5):
        run.append_step(step)
        assert reader.refresh()
        assert reader.rows["steps"] == step + 1
        assert reader.heatmap().num_rows == 5 * (step + 1)
        assert not reader.refresh()
    assert reader.info.ended is None
    run.end("failed")
    assert reader.refresh()
    assert reader.info.ended == "failed"


def test_nothing_is_lost_while_threads_ask(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=5, seed=0)
    run.append_step(0)
    reader = read(run.path)
    failures: list[BaseException] = []
    is_done = threading.Event()

    def ask() -> None:
        try:
            while not is_done.is_set():
                reader.refresh()
                columns = reader.heatmap(columns=1000)
                assert columns.num_rows % 5 == 0
                assert reader.scalars().num_rows > 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(1, 60):
        run.append_step(step)
    is_done.set()
    for thread in threads:
        thread.join()
    run.end("finished")
    reader.refresh()
    assert failures == []
    assert reader.rows["stats"] == 60 * len(run.places)


def test_ranks_are_one_run(tmp_path: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=5, seed=0)
    run.append_step(0)
    other = RunWriter(run.path, rank=1)
    theirs = list(reversed(make_sites(5)))
    renumbered = [{**asdict(site), "site": number} for number, site in enumerate(theirs)]
    renumbered.append({**asdict(theirs[0]), "site": 5, "name": "only here"})
    first = stats_batch(0, run.places, run.rng, False).to_pylist()
    shifted = [{**row, "site": 4 - row["site"], "nans": 1} for row in first]
    shifted.append({**first[0], "site": 5})
    other.append("stats", pa.RecordBatch.from_pylist(shifted, schema=STATS))
    reader = read(run.path)
    assert reader.rows["stats"] == len(first)  # the others wait for their sites
    other.append_rows("sites", renumbered)
    other.append_rows("steps", [{**reader.steps().to_pylist()[0], "duration_secs": 9.0}])
    other.append_rows("scalars", [{"step": 0, "name": "loss", "value": 9.0, "logged_at": 0.0}])
    assert reader.refresh()
    assert reader.rows["stats"] == len(first) + len(shifted)
    assert reader.rows["sites"] == 6
    means = {row["site"]: row["nans"] for row in reader.heatmap().to_pylist()}
    assert means == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 0}
    assert reader.sketches(0)["count"].to_pylist() == [512]
    assert reader.summary()["steps"] == reader.steps().num_rows == 1
    assert reader.summary()["loss"] == run.loss
    assert reader.scalars()["value"].to_pylist()[0] == run.loss
    other.close()
    run.end(None)


def test_damage_is_named_and_the_rest_is_shown(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with (copy / "stats" / "0-0000.arrows").open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xaa" * 100_000)
    reader = read(copy)
    (problem,) = reader.problems
    assert "0-0000.arrows" in problem
    assert 0 < reader.rows["stats"] < read(path).rows["stats"]
    assert reader.heatmap().num_rows > 0


def test_a_run_json_that_breaks_later_is_named(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=1, sites=1, end=None)
    reader = read(path)
    (path / "run.json").write_text("{")
    assert reader.refresh()
    assert len(reader.problems) == 1
    assert reader.info.name == "sample"


@pytest.mark.parametrize(
    "ask",
    [
        lambda r: r.heatmap(quantity="values"),
        lambda r: r.heatmap(statistic="mean; DROP TABLE stats"),
        lambda r: r.heatmap(columns=0),
        lambda r: r.heatmap(columns=10**9),
        lambda r: r.history(0, quantity=""),
        lambda r: r.history(0, points=-1),
        lambda r: r.sketches(0, columns=0),
        lambda r: r.scalars(points=0),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(reader: RunReader, ask: Any) -> None:
    with pytest.raises(BacklightError, match=r"^[^\n]*: use [^\n]*\.$"):
        ask(reader)


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BacklightError, match="is not a run"):
        RunReader(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '{folder}/leak.csv'",
        "ATTACH '{folder}/other.db'",
        "SET enable_external_access = true",
        "SET threads = 1",
        "INSTALL httpfs",
        "SELECT * FROM pa_table",
    ],
)
def test_the_database_reaches_nothing_but_its_tables(tmp_path: Path, statement: str) -> None:
    import duckdb

    pa_table = pa.table({"a": [1]})
    cursor = queries._databases.cursor()
    with pytest.raises(duckdb.Error):
        cursor.execute(statement.format(folder=tmp_path))
    assert pa_table.num_rows == 1
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_nobody_logged_is_the_one_that_backward_passes_start_from(
    tmp_path: Path,
) -> None:
    problem = models.mlp()
    losses = []
    with backlight.watch(problem.model, problem.optimizer, root=tmp_path, every=2) as run:
        for step in range(4):
            problem.optimizer.zero_grad()
            loss = problem.loss(step)
            losses.append(loss.item())
            loss.backward()
            problem.optimizer.step()
            run.log(accuracy=step / 4)
    reader = RunReader(run.path)
    reader.refresh()
    scalars = reader.scalars().to_pylist()
    assert [row["value"] for row in scalars if row["name"] == "loss"] == losses
    assert reader.scalar_names() == ["accuracy", "loss"]
    assert reader.summary()["loss"] == losses[-1]
    assert reader.scalars(after=2).num_rows == 2

    with backlight.watch(problem.model, problem.optimizer, root=tmp_path) as run:
        models.train(problem, 2)
        run.log(loss=7.0)
    reader = RunReader(run.path)
    reader.refresh()
    assert [row["value"] for row in reader.scalars().to_pylist()] == [7.0]
    assert reader.summary()["loss"] == 7.0


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_heatmap_of_one_iteration(tmp_path: Path, is_compacted: bool) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, project="p", name="r", root=tmp_path, every=1) as run:
        for step in range(4):
            with run.step():
                for iteration in range(3):
                    with run.iteration():
                        run.tensor("x", torch.full((3,), 10.0 * step + iteration))
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    if is_compacted:
        compact(run.path)
    reader = RunReader(run.path)
    reader.refresh()
    named = {each["name"]: each["site"] for each in reader.sites().to_pylist()}

    def row(name: str, iteration: int | None) -> list[float]:
        cells = reader.heatmap(statistic="abs_max", iteration=iteration).to_pylist()
        return [each["value"] for each in cells if each["site"] == named[name]]

    assert row("x", None) == [2.0, 12.0, 22.0, 32.0]
    assert row("x", 1) == [1.0, 11.0, 21.0, 31.0]
    assert row("x", 7) == []
    assert len(row("weight", 1)) == 4  # seen once in a step


@pytest.fixture(params=[False, True], ids=["streams", "parts"])
def with_kinds(tmp_path: Path, request: pytest.FixtureRequest) -> RunReader:
    """Steps of two kinds, of one and of three iterations; the last one alone sees `end`."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, project="p", name="r", root=tmp_path, every=1) as run:
        for step in range(6):
            with run.step(kind="long" if step % 2 else "short"):
                iterations = 3 if step % 2 else 1
                for iteration in range(iterations):
                    with run.iteration():
                        run.tensor("x", torch.full((3,), 10.0 * step + iteration + 1))
                        if iteration == iterations - 1:
                            run.tensor("end", torch.ones(1))
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    if request.param:
        compact(run.path)
    reader = RunReader(run.path)
    reader.refresh()
    return reader


def number_of(reader: RunReader, name: str) -> int:
    return next(row["site"] for row in reader.sites().to_pylist() if row["name"] == name)


def test_a_heatmap_of_one_kind_of_steps(with_kinds: RunReader) -> None:
    table = with_kinds.heatmap(statistic="abs_max", kind="long")
    assert table.schema.metadata[b"columns"] == b"[[1, 1], [3, 3], [5, 5]]"
    x = number_of(with_kinds, "x")
    assert [row["value"] for row in table.to_pylist() if row["site"] == x] == [13.0, 33.0, 53.0]
    both = with_kinds.heatmap(statistic="abs_max", kind="long", iteration=0).to_pylist()
    assert [row["value"] for row in both if row["site"] == x] == [11.0, 31.0, 51.0]
    assert with_kinds.heatmap(kind="neither").num_rows == 0


def test_what_one_later_iteration_saw_is_not_in_others(with_kinds: RunReader) -> None:
    end = number_of(with_kinds, "end")
    seen = {
        iteration: [
            row["column"]
            for row in with_kinds.heatmap(statistic="rms", iteration=iteration).to_pylist()
            if row["site"] == end
        ]
        for iteration in (1, 2)
    }
    # Steps of one iteration belong to each; those of three saw it in their last.
    assert seen == {1: [0, 2, 4], 2: [0, 1, 2, 3, 4, 5]}


def test_sketches_of_one_iteration_and_kind(with_kinds: RunReader) -> None:
    def told(**asked: Any) -> list[tuple[int, int, float, float]]:
        rows = with_kinds.sketches(number_of(with_kinds, "x"), **asked).to_pylist()
        return [(row["first_step"], row["count"], row["min"], row["max"]) for row in rows]

    assert told(kind="long") == [(1, 9, 11.0, 13.0), (3, 9, 31.0, 33.0), (5, 9, 51.0, 53.0)]
    assert told(kind="long", iteration=1) == [
        (1, 3, 12.0, 12.0),
        (3, 3, 32.0, 32.0),
        (5, 3, 52, 52),
    ]
    assert told(iteration=2)[1] == (1, 3, 13.0, 13.0)
    assert len(told()) == 6
    assert told(kind="neither") == []
    assert told(kind="long", columns=1) == [(1, 27, 11.0, 53.0)]
