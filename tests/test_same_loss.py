"""A loss that the user names is one thing, whoever else finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import backlight
from backlight.serve.graphs import Graphs
from backlight.store.reader import RunReader

Start = Callable[[Any, torch.Tensor], torch.Tensor]


def train(root: Path, start: Start, steps: int = 4) -> RunReader:
    """Train, with backward passes from what `start` makes of a loss, which it may name."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"root": root, "project": "p", "name": "r", "every": 1}
    with backlight.watch(model, optimizer, **options) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            start(run, model(torch.randn(5, 3)).square().mean()).backward()
            optimizer.step()
    reader = RunReader(run.path)
    reader.refresh()
    return reader


def named(run: Any, loss: torch.Tensor, kind: str = "loss") -> torch.Tensor:
    tensor: torch.Tensor = run.tensor("loss", loss, kind=kind, batch_dim=None)
    return tensor


def losses(table: Any) -> list[str]:
    return sorted(name for name in table["name"].to_pylist() if "loss" in name)


def shown_graph(reader: RunReader) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """What a page is told: the role of each node, and the edges."""
    sites = reader.sites()
    names = dict(zip(sites["site"].to_pylist(), sites["name"].to_pylist(), strict=True))
    graph = Graphs().at(reader, 0)
    edges = {(names[a], names[b]) for pairs in graph["edges"].values() for a, b in pairs}
    return {names[row[0]]: row[1] for row in graph["nodes"]}, edges


@pytest.mark.parametrize("kind", ["loss", "hidden"])
def test_a_named_loss_is_recorded_once(root: Path, kind: str) -> None:
    reader = train(root, lambda run, loss: named(run, loss, kind))
    assert losses(reader.sites()) == ["loss"]
    rows = reader.snapshot.held["sites"].to_pylist()
    assert [row["kind"] for row in rows if row["name"] == "loss"] == ["loss"]
    roles, edges = shown_graph(reader)
    assert roles["loss"] == "loss"
    assert ("(model):out.0", "loss") in edges
    assert reader.summary()["loss"] is not None


def test_a_loss_that_nobody_names_is_found(root: Path) -> None:
    assert losses(train(root, lambda run, loss: loss).shown_sites()) == ["(loss)"]


def changed_in_place(run: Any, loss: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        named(run, loss).mul_(2)
    return loss


@pytest.mark.parametrize(
    "start",
    [lambda run, loss: named(run, loss) * 2, changed_in_place],
    ids=["another tensor", "changed in place"],
)
def test_what_has_other_numbers_is_another_thing(root: Path, start: Start) -> None:
    reader = train(root, start)
    assert losses(reader.shown_sites()) == ["(loss)", "loss"]
    assert "(loss)" in shown_graph(reader)[0]


def test_a_loss_that_was_recorded_twice_is_shown_once(root: Path) -> None:
    # As earlier recorders wrote it, and as one of JAX still does: two sites, the same numbers.
    reader = train(root, lambda run, loss: named(run, loss) * 1)
    assert losses(reader.sites()) == ["(loss)", "loss"]
    assert losses(reader.shown_sites()) == ["loss"]
    roles, edges = shown_graph(reader)
    assert roles["loss"] == "loss"
    assert "(loss)" not in roles
    assert not any("(loss)" in edge for edge in edges)
    assert ("(model):out.0", "loss") in edges


def test_which_are_the_same_is_looked_at_again_as_the_run_grows(root: Path) -> None:
    factors = iter([1, 1, 1, 1, 1, 1, 1, 3])
    reader = train(root, lambda run, loss: named(run, loss) * next(factors), steps=8)
    assert losses(reader.shown_sites()) == ["(loss)", "loss"]


def test_two_named_losses_of_one_step_are_two(root: Path) -> None:
    def both(run: Any, loss: torch.Tensor) -> torch.Tensor:
        run.tensor("first loss", loss, kind="loss", batch_dim=None).backward(retain_graph=True)
        second: torch.Tensor = run.tensor("second loss", loss + 1, kind="loss", batch_dim=None)
        return second

    assert losses(train(root, both).shown_sites()) == ["first loss", "second loss"]
