"""How the gradient flows on real networks: shares are conserved, skips found, gaps told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import backlight
from backlight.serve.flow import flow_at, flow_history
from backlight.serve.graphs import Graphs
from backlight.serve.numerics import Numerics
from backlight.store.flow import FlowGraph, Link, SiteFacts, amounts, divide, flow_graph, parts
from backlight.store.reader import RunReader


class Block(nn.Module):
    """Two residual sums, of which only the second is a module's output."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)
        self.second, self.out = nn.LayerNorm(8), nn.Linear(8, 8)
        with torch.no_grad():
            self.mix.weight *= gain
            self.out.weight *= gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm(x))
        return x + self.out(self.second(x))


def record(root: Path, *blocks: nn.Module) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    with backlight.watch(model, optimizer, root=root, schedule=lambda step: True) as run:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 4, generator=generator)).square().mean().backward()
            optimizer.step()
    return run.path


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    torch.manual_seed(0)
    path = record(tmp_path_factory.mktemp("runs"), Block(1.0), Block(0.001))
    reader = RunReader(path)
    reader.refresh()
    return reader


def named(reader: RunReader, answer: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    names = dict(zip(*(reader.sites()[name].to_pylist() for name in ("site", "name")), strict=True))
    first = [names[tensor["sites"][0]] for tensor in answer["tensors"]]
    return {(first[link["source"]], first[link["sink"]]): link for link in answer["links"]}


def test_what_passes_a_tensor_goes_on_from_it(reader: RunReader) -> None:
    answer = flow_at(reader, Graphs(), 3)
    into = np.zeros(len(answer["tensors"]))
    out = np.zeros(len(answer["tensors"]))
    for link in answer["links"]:
        out[link["source"]] += link["share"]
        into[link["sink"]] += link["share"]
    for place, tensor in enumerate(answer["tensors"]):
        if tensor["is_end"]:
            assert into[place] == pytest.approx(tensor["share"]) == 1.0
        else:
            assert out[place] == pytest.approx(tensor["share"], abs=1e-12)


def test_a_skip_connection_is_found_and_weighed(reader: RunReader) -> None:
    links = named(reader, flow_at(reader, Graphs(), 3))
    skips = {pair for pair, link in links.items() if link["is_copy"]}
    # The first sum of a block is seen only as the input of the norm after it.
    assert ("1:out.0", "2.second:in.0") in skips
    assert ("2.second:in.0", "2:out.0") in skips
    weak, strong = links["1:out.0", "2.second:in.0"], links["0:out.0", "1.second:in.0"]
    assert weak["part"] > 0.95 > strong["part"]
    assert links["1:out.0", "2.norm:out.0"]["part"] == pytest.approx(1 - weak["part"])


def test_a_selected_tensor_is_the_origin(reader: RunReader) -> None:
    sites = {row["name"]: row["site"] for row in reader.sites().to_pylist()}
    answer = flow_at(reader, Graphs(), 3, origin=sites["2.mix:out.0"])
    links = named(reader, answer)
    assert answer["tensors"][answer["origin"]]["share"] == 1.0
    assert links["0:out.0", "1.norm:out.0"]["share"] == 0.0
    assert links["3:out.0", "(loss)"]["share"] == pytest.approx(1.0)


def test_over_steps_there_is_a_norm_for_each_tensor(reader: RunReader) -> None:
    table = flow_history(reader, Graphs(), 3)
    at_last = {row["site"]: row for row in table.to_pylist() if row["column"] == 3}
    answer = flow_at(reader, Graphs(), 3)
    for tensor in answer["tensors"]:
        if tensor["norm"] is not None:
            assert at_last[tensor["sites"][0]]["norm"] == pytest.approx(tensor["norm"])
    shares = [row["skip_share"] for row in at_last.values() if not np.isnan(row["skip_share"])]
    assert len(shares) == 4 and all(0 <= share <= 1 for share in shares)


class Poison(nn.Module):
    """Makes all that comes through NaN from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (torch.nan if self.calls > 2 else 1.0)


def test_where_nothing_is_finite_there_is_no_norm(tmp_path: Path) -> None:
    reader = RunReader(record(tmp_path, Poison()))
    reader.refresh()
    sites = {row["name"]: row["site"] for row in reader.sites().to_pylist()}
    rows = flow_history(reader, Graphs(), 3).to_pylist()
    norms = {row["column"]: row for row in rows if row["site"] == sites["0:out.0"]}
    assert [norms[column]["norm"] > 0 for column in (0, 1)] == [True, True]
    assert [norms[column]["nans"] for column in range(4)] == [0, 0, 128, 128]
    assert np.isnan([norms[column]["norm"] for column in (2, 3)]).all()
    lost = Numerics().precision(reader, format="float16", quantity="grad").to_pylist()
    cells = {row["column"]: row for row in lost if row["site"] == sites["0:out.0"]}
    assert [cells[column]["overflow"] for column in range(4)] == [0.0, 0.0, None, None]
    assert [cells[column]["nans"] for column in range(4)] == [0, 0, 128, 128]


def test_the_parts_of_orthogonal_gradients_are_exact() -> None:
    skip, branch = np.array([3.0, 0.0]), np.array([0.0, 4.0])
    whole = float(np.linalg.norm(skip + branch))
    found = divide(whole, [3.0, 123.0], [True, False])
    assert [float(part) for part in found] == pytest.approx([9 / 25, 16 / 25])


def test_a_gradient_that_was_not_recorded_is_no_guess() -> None:
    facts = {site: SiteFacts("output", str(site)) for site in range(4)}
    nodes = [(0, "output"), (1, "output"), (2, "output"), (3, "loss")]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    norms = {0: np.float64(1.0), 1: np.float64(0.5), 3: np.float64(1.0)}
    graph = flow_graph(nodes, edges, facts, norms)
    divided = parts(graph, norms)
    assert all(np.isnan(divided[link]) for link in graph.links if link.source == 0)
    passing, carried = amounts(graph, divided, {0: 1.0})
    assert passing.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert sum(np.isnan(share) for share in carried.values()) == 2


def test_what_leads_back_ends_at_the_next_iteration() -> None:
    forward, back = Link(0, 1, False, False), Link(1, 0, False, True)
    graph = FlowGraph(((7,), (8,)), (forward, back), frozenset({0}))
    passing, carried = amounts(graph, {forward: 1.0, back: 1.0}, {0: 1.0})
    assert passing.tolist() == [1.0, 1.0]
    assert carried[back] == 1.0


def test_a_run_without_a_graph_says_so(tmp_path: Path) -> None:
    from sample_runs import write_sample_run

    reader = RunReader(write_sample_run(tmp_path, steps=3, sites=8))
    reader.refresh()
    with pytest.raises(backlight.errors.BacklightError, match="has no graph"):
        flow_at(reader, Graphs(), 1)
