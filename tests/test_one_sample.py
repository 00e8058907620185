"""One sample at all sites: what is told of it is computed a second time from the tensors."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import backlight
from backlight.errors import BacklightError
from backlight.serve.app import create_app
from backlight.serve.flow import flow_at, flow_history
from backlight.serve.graphs import Graphs
from backlight.serve.kept_values import ValueFiles
from backlight.serve.live import Hub
from backlight.serve.numerics import Numerics
from backlight.serve.one_sample import STATISTICS, OneSample
from backlight.store.compact import compact
from backlight.store.reader import RunReader

SAMPLE = 2
STEPS = 4
Tensors = dict[tuple[str, str, int], np.ndarray[Any, Any]]


class Residual(nn.Module):
    """A skip connection, so that gradients fork."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return x + self.second(x)


def keep(made: dict[str, torch.Tensor], name: str, _: Any, __: Any, out: torch.Tensor) -> None:
    made[name] = out
    out.retain_grad()


def record(root: Path, *, name: str = "sampled", **options: Any) -> tuple[Path, Tensors]:
    """A run, and every tensor of its outputs with its gradient as the loop saw it."""
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Tensors = {}
    options = {"samples": [0, SAMPLE], **options}
    with backlight.watch(model, optimizer, root=root, name=name, every=1, **options) as run:
        for step in range(STEPS):
            made: dict[str, torch.Tensor] = {}
            hooks = [
                module.register_forward_hook(partial(keep, made, each))
                for each, module in (("first", model.first), ("second", model.second))
            ]
            x = torch.randn(6, 5)
            x[SAMPLE, 0] = 0.0
            across = run.tensor("across", x.T.contiguous() * 3, batch_dim=1)
            out = model(x)
            out.retain_grad()
            (out.square().mean() + 0 * across.sum()).backward()
            for each, tensor in {**made, "(model)": out}.items():
                seen[(f"{each}:out.0", "value", step)] = tensor.detach().numpy().copy()
                seen[(f"{each}:out.0", "grad", step)] = tensor.grad.numpy().copy()
            seen[("across", "value", step)] = across.detach().numpy().T.copy()
            for hook in hooks:
                hook.remove()
            optimizer.step()
            optimizer.zero_grad()
    return run.path, seen


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    return record(tmp_path_factory.mktemp("runs"))


def opened(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def names_of(reader: RunReader) -> dict[int, str]:
    sites = reader.sites()
    return dict(zip(sites["site"].to_pylist(), sites["name"].to_pylist(), strict=True))


def by_hand(values: np.ndarray[Any, Any], statistic: str) -> float:
    """The definition of each statistic, as plainly as can be."""
    wide = values.astype(np.float64).ravel()
    finite = wide[np.isfinite(wide)]
    found = {
        "mean": lambda: finite.mean(),
        "std": lambda: finite.std(),
        "abs_mean": lambda: np.abs(finite).mean(),
        "abs_max": lambda: np.abs(finite).max(),
        "rms": lambda: np.sqrt((finite**2).mean()),
        "norm": lambda: np.sqrt((finite**2).sum()),
        "min": lambda: finite.min(),
        "max": lambda: finite.max(),
        "zero_share": lambda: (finite == 0).sum() / wide.size,
        "nan_share": lambda: np.isnan(wide).sum() / wide.size,
        "inf_share": lambda: np.isinf(wide).sum() / wide.size,
    }
    return float(found[statistic]())


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("quantity", ["value", "grad"])
def test_each_statistic_of_a_sample_is_that_of_its_values(
    recorded: tuple[Path, Tensors], statistic: str, quantity: str
) -> None:
    path, seen = recorded
    reader = opened(path)
    one, names = OneSample(reader, ValueFiles(), str(SAMPLE)), names_of(reader)
    moment = one.moment(1, quantity=quantity, statistic=statistic)
    shown = {names[row["site"]]: row["value"] for row in moment.to_pylist()}
    cells = one.heatmap(quantity=quantity, statistic=statistic)
    columns = json.loads(cells.schema.metadata[b"columns"])
    assert columns == [[step, step] for step in range(STEPS)]
    over_steps = {(names[row["site"]], row["column"]): row["value"] for row in cells.to_pylist()}
    known = [name for name, of, step in seen if of == quantity and step == 1]
    assert len(known) == (4 if quantity == "value" else 3)
    for name in known:
        expected = [by_hand(seen[name, quantity, step][SAMPLE], statistic) for step in range(STEPS)]
        assert shown[name] == pytest.approx(expected[1], rel=1e-6, abs=1e-12)
        found = [over_steps[name, step] for step in range(STEPS)]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
        whole = by_hand(seen[name, quantity, 1], statistic)
        if statistic not in ("nan_share", "inf_share", "zero_share"):
            assert shown[name] != pytest.approx(whole, rel=1e-3)


def test_parameters_and_samples_that_were_not_kept_have_nothing(
    recorded: tuple[Path, Tensors],
) -> None:
    reader = opened(recorded[0])
    names = names_of(reader)
    moment = OneSample(reader, ValueFiles(), str(SAMPLE)).moment(1)
    assert not {"first.weight", "first.bias"} & {names[each] for each in moment["site"].to_pylist()}
    other = OneSample(reader, ValueFiles(), "1")
    assert other.moment(1).num_rows == other.heatmap().num_rows == 0
    assert other.observations(1).num_rows == 0


def test_a_compacted_run_tells_the_same(tmp_path: Path) -> None:
    path, _ = record(tmp_path)
    before = OneSample(opened(path), ValueFiles(), str(SAMPLE))
    asked = {"quantity": "grad", "statistic": "norm"}
    rows = [before.moment(2, **asked).to_pylist(), before.heatmap(**asked).to_pylist()]
    compact(path)
    after = OneSample(opened(path), ValueFiles(), str(SAMPLE))
    key = lambda row: (row["site"], row.get("column", 0))  # noqa: E731
    assert sorted(after.moment(2, **asked).to_pylist(), key=key) == sorted(rows[0], key=key)
    assert after.heatmap(**asked).to_pylist() == rows[1]


def test_a_sample_is_found_by_its_place_in_the_data(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outs = []
    with backlight.watch(model, optimizer, root=tmp_path, every=1, samples=2) as run:
        for step in range(2):
            run.batch(indices=[70 + step, 40, 90])
            out = model(torch.randn(3, 3))
            outs.append(out.detach().numpy().copy())
            out.square().mean().backward()
            optimizer.step()
    reader = opened(run.path)
    names = names_of(reader)

    def shown(sample: str, step: int) -> dict[str, float]:
        rows = OneSample(reader, ValueFiles(), sample).moment(step, statistic="abs_max")
        return {names[row["site"]]: row["value"] for row in rows.to_pylist()}

    assert shown("#40", 1)["(model):out.0"] == pytest.approx(np.abs(outs[1][1]).max())
    assert shown("#70", 0)["(model):out.0"] == pytest.approx(np.abs(outs[0][0]).max())
    assert shown("#70", 1) == {}
    assert shown("1", 1) == {}, "a sample with a place in the data is called by that"


def test_nans_of_one_sample_are_not_those_of_another(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options: dict[str, Any] = {"root": tmp_path, "every": 1, "samples": 3}
    with backlight.watch(model, optimizer, **options) as run:
        out = run.tensor("out", torch.ones(3, 4) * 2)
        broken = out.clone()
        broken[0], broken[1, 0] = float("nan"), float("inf")
        run.tensor("broken", broken)
        model(torch.randn(3, 3)).sum().backward()
        optimizer.step()
    reader = opened(run.path)
    site = {name: site for site, name in names_of(reader).items()}["broken"]

    def row(sample: str, statistic: str) -> dict[str, Any]:
        rows = OneSample(reader, ValueFiles(), sample).moment(0, statistic=statistic).to_pylist()
        return next(each for each in rows if each["site"] == site)

    assert row("0", "rms") == {"site": site, "iteration": 0, "nans": 4, "infs": 0, "value": None}
    assert row("1", "norm")["value"] == pytest.approx(np.sqrt(12.0))
    assert row("1", "norm")["infs"] == 1
    assert row("2", "norm") == {"site": site, "iteration": 0, "nans": 0, "infs": 0, "value": 4.0}
    assert row("1", "inf_share")["value"] == 0.25
    cells = OneSample(reader, ValueFiles(), "0").heatmap(statistic="rms").to_pylist()
    cell = next(each for each in cells if each["site"] == site)
    assert cell["value"] is None
    assert cell["nans"] > 0


def test_exponents_of_a_sample_are_those_of_its_values(recorded: tuple[Path, Tensors]) -> None:
    path, seen = recorded
    reader = opened(path)
    sites = {name: site for site, name in names_of(reader).items()}
    asked = [sites["first:out.0"], sites["first.weight"]]
    numerics = Numerics()
    told = numerics.exponents(
        reader, asked, 1, formats=["float16"], quantity="value", sample=str(SAMPLE)
    )
    values = seen["first:out.0", "value", 1][SAMPLE]
    powers = np.floor(np.log2(np.abs(values)))
    expected = {int(p): int((powers == p).sum()) for p in np.unique(powers)}
    assert [each["site"] for each in told["sites"]] == [sites["first:out.0"]]
    [found] = told["sites"]
    exponents = found["exponents"]
    totals = np.add(exponents["negative"], exponents["positive"]).tolist()
    assert dict(zip(exponents["exponent"], totals, strict=True)) == expected
    assert (found["count"], found["min"]) == (5, pytest.approx(values.min()))


def test_what_a_format_loses_of_a_sample_is_counted_in_its_values(
    recorded: tuple[Path, Tensors],
) -> None:
    path, seen = recorded
    reader = opened(path)
    names = names_of(reader)
    # By this scale the least normal number is 1, the edge of a bin: nothing is estimated.
    table = Numerics().precision(
        reader, format="float8_e4m3fn", quantity="value", scale="-6", sample=str(SAMPLE)
    )
    cells = {
        (names[row["site"]], row["column"]): row["subnormal"] + row["underflow"]
        for row in table.to_pylist()
    }
    assert json.loads(table.schema.metadata[b"steps"]) == [STEPS, STEPS]
    for step in range(STEPS):
        values = np.abs(seen["first:out.0", "value", step][SAMPLE])
        assert cells["first:out.0", step] == pytest.approx((values < 1.0).mean())


def test_values_that_are_not_whole_tell_no_exponents(tmp_path: Path) -> None:
    path, _ = record(tmp_path, neurons=3)
    reader = opened(path)
    names = names_of(reader)
    sites = [site for site, name in names.items() if name.endswith("out.0")]
    assert Numerics().exponents(reader, sites, 1, sample=str(SAMPLE))["sites"] == []
    one = OneSample(reader, ValueFiles(), str(SAMPLE))
    assert one.moment(1, statistic="min").num_rows == 0
    assert one.moment(1, statistic="norm").num_rows > 0


def test_gradients_flow_by_the_norms_of_the_sample(recorded: tuple[Path, Tensors]) -> None:
    path, seen = recorded
    reader = opened(path)
    names = names_of(reader)
    one = OneSample(reader, ValueFiles(), str(SAMPLE))
    answer = flow_at(reader, Graphs(), 1, sample=one)
    norms = {
        names[site]: tensor["norm"] for tensor in answer["tensors"] for site in tensor["sites"]
    }
    for name in ("first:out.0", "second:out.0", "(model):out.0"):
        assert norms[name] == pytest.approx(by_hand(seen[name, "grad", 1][SAMPLE], "norm"))
    whole = flow_at(reader, Graphs(), 1)
    assert [each["sites"] for each in whole["tensors"]] == [
        each["sites"] for each in answer["tensors"]
    ]
    skip, skip_whole = (
        next(each["part"] for each in told["links"] if each["is_copy"] and each["part"] < 1)
        for told in (answer, whole)
    )
    straight = by_hand(seen["(model):out.0", "grad", 1][SAMPLE], "norm") ** 2
    total = by_hand(seen["first:out.0", "grad", 1][SAMPLE], "norm") ** 2
    assert skip == pytest.approx(straight / (straight + abs(total - straight)))
    assert skip != pytest.approx(skip_whole, rel=1e-3)


def test_gradient_norms_over_steps_are_of_the_sample(recorded: tuple[Path, Tensors]) -> None:
    path, seen = recorded
    reader = opened(path)
    names = names_of(reader)
    one = OneSample(reader, ValueFiles(), str(SAMPLE))
    table = flow_history(reader, Graphs(), 1, sample=one)
    norms = {(names[row["site"]], row["column"]): row["norm"] for row in table.to_pylist()}
    for step in range(STEPS):
        expected = by_hand(seen["first:out.0", "grad", step][SAMPLE], "norm")
        assert norms["first:out.0", step] == pytest.approx(expected)
    other = OneSample(reader, ValueFiles(), "1")
    assert flow_history(reader, Graphs(), 1, sample=other).num_rows == 0


def test_the_viewer_answers_about_one_sample(recorded: tuple[Path, Tensors]) -> None:
    path, _ = recorded
    client = TestClient(create_app(path.parents[1], Hub()), base_url="http://127.0.0.1")
    run = f"/api/runs/{path.parent.name}/{path.name}"

    def ask(what: str, **parameters: str | int) -> Any:
        return client.get(f"{run}/{what}", params=parameters)

    moment = ask("moment", step=1, statistic="norm", sample=SAMPLE)
    table = pa.ipc.open_stream(moment.content).read_all()
    assert table.column_names == ["site", "iteration", "nans", "infs", "value"]
    reader = opened(path)
    expected = OneSample(reader, ValueFiles(), str(SAMPLE)).moment(1, statistic="norm")
    assert table.to_pylist() == expected.to_pylist()
    for what in ("heatmap", "precision", "flow", "flow_history"):
        asked = ask(what, step=1, sample=SAMPLE, quantity="grad")
        assert asked.status_code == 200
        assert asked.content != ask(what, step=1, quantity="grad").content
    assert ask("exponents", step=1, sites="0", sample=SAMPLE).status_code == 200
    bad = ask("moment", step=1, sample="last")
    assert (bad.status_code, "position in the batch" in bad.json()["error"]) == (400, True)
    unknown = ask("moment", step=1, sample=SAMPLE, statistic="dead_share")
    assert unknown.status_code == 400
    assert "statistic of single samples 'dead_share'" in unknown.json()["error"]


def test_what_is_no_sample_is_said() -> None:
    for text in ("", "#", "-1", "1.5", "9" * 10, "#" + "9" * 19, "²"):
        with pytest.raises(BacklightError, match="There is no sample"):
            OneSample(None, ValueFiles(), text)  # type: ignore[arg-type]
