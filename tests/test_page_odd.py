"""Odd runs: enormous numbers, nothing finite, names that turn what is behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import viewer, wait_for_answers
from playwright.sync_api import Page, expect
from torch import nn

import backlight

pytestmark = pytest.mark.slow

TURNED = "first\u202elayer"
LEGIBLE = r"first\u202elayer"
LONG_KEY = "a_setting_whose_name_is_longer_than_the_column_that_it_stands_in"


def record(root: Path, name: str, scales: list[float]) -> None:
    """Two layers without anything between them, whose inputs are so large, step by step."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(TURNED, nn.Linear(4, 4))
    model.add_module("second", nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    with backlight.watch(
        model, optimizer, root=root, project="odd", name=name, every=1, config={LONG_KEY: "told"}
    ) as run:
        for scale in scales:
            loss = model(scale * torch.randn(8, 4)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)


def record_loop(root: Path, name: str, *, has_initial: bool) -> None:
    """A memory that the first step goes through once, and the second one twice."""
    cell = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with backlight.watch(cell, optimizer, root=root, project="odd", name=name, every=1) as run:
        for iterations in (1, 2):
            with run.step():
                memory = torch.zeros(2, 4)
                if has_initial:
                    run.tensor("memory", memory, is_initial=True)
                for _ in range(iterations):
                    with run.iteration():
                        memory = run.tensor("memory", cell(memory))
                memory.sum().backward()
                optimizer.step()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("runs")
    record(root, "plain", [1.0] * 12)
    record(root, "huge", [10.0**power for power in range(-2, 34)])
    record(root, "nan", [float("nan")] * 4)
    record_loop(root, "loop", has_initial=True)
    record_loop(root, "bare", has_initial=False)
    with viewer(root) as address:
        yield address


def test_no_digit_of_a_legend_is_cut_off(page: Page) -> None:
    page.goto("#/odd/huge/heatmap")
    last = page.get_by_role("img", name=re.compile("^Colours")).locator(".ramp span").last
    expect(last).to_have_text(re.compile(r"e3\d$"))
    box, view = last.bounding_box(), page.get_by_role("main").bounding_box()
    assert box and view
    assert box["x"] + box["width"] <= view["x"] + view["width"]


def test_a_link_to_a_statistic_that_the_run_has_not_shows_the_one_that_is_named(page: Page) -> None:
    page.goto("#/odd/plain/graph?statistic=of_another_run&site=second:out.0")
    expect(page.get_by_label("Statistic", exact=True)).to_have_value("rms")
    # Any refusal of the server fails the test.
    expect(page.get_by_role("img", name=re.compile("^Colours"))).to_be_visible()
    expect(page.locator("tr.chosen")).to_contain_text("rms")


def test_a_quantity_that_the_run_has_not_is_named(page: Page) -> None:
    page.goto("#/odd/plain/heatmap?quantity=grad_applied")
    quantity = page.get_by_label("Quantity", exact=True)
    expect(quantity.locator("option:checked")).to_have_text("grad applied: none")
    expect(page.get_by_role("main")).to_contain_text("No site has a recorded grad applied")
    expect(page.get_by_role("img", name=re.compile("^Colours"))).to_have_count(0)


def test_no_name_turns_the_sentence_around_it(page: Page) -> None:
    page.goto("#/odd/plain/findings")
    card = page.get_by_role("article", name=re.compile("Missing nonlinearity"))
    expect(card.locator("p").first).to_contain_text(LEGIBLE)
    expect(page.get_by_role("main")).not_to_contain_text("\u202e")
    page.goto("#/odd/plain/overview")
    expect(page.get_by_label("What is wrong")).to_contain_text(LEGIBLE)
    expect(page.get_by_role("main")).not_to_contain_text("\u202e")


def test_a_setting_has_room_beside_its_name(page: Page) -> None:
    page.goto("#/odd/plain/overview")
    told = page.get_by_label("Config").locator("dd")
    expect(told).to_have_text("told")
    box = told.bounding_box()
    assert box and box["width"] > 60


def test_an_event_names_its_tensor(page: Page) -> None:
    page.goto("#/odd/nan/overview")
    expect(page.get_by_label("Events")).to_contain_text("(model):in.0")


def test_the_key_names_every_line_of_a_loop(page: Page) -> None:
    page.goto("#/odd/loop/graph?step=0&site=memory")
    key = page.get_by_label("What the colours and lines mean")
    expect(key).to_contain_text("next iteration")
    expect(key).not_to_contain_text("missing here")
    # The memory was made by the cell, also where the loop is gone through once.
    expect(page.get_by_text(re.compile("^memory depends on [1-9]"))).to_have_count(1)
    page.goto("#/odd/loop/graph?step=1&iteration=0&site=memory")
    expect(page.get_by_label("Iteration", exact=True)).to_have_value("0")
    wait_for_answers(page)
    # The first iteration starts from a memory that was recorded, or from none.
    expect(key).not_to_contain_text("missing here")
    page.goto("#/odd/bare/graph?step=1&iteration=0&site=memory")
    expect(key).to_contain_text("missing here")
    box = key.bounding_box()
    assert box and box["height"] < 30  # one line, also beside the inspector
    page.goto("#/odd/plain/graph")
    expect(key).not_to_contain_text("next iteration")


def test_no_format_suits_what_is_not_finite(page: Page) -> None:
    page.goto("#/odd/nan/numerics")
    card = page.get_by_role("article", name="Exponents of (model):in.0")
    expect(card).to_contain_text("nothing is finite")
    expect(card).not_to_contain_text("none needed")
    expect(card).not_to_contain_text("%")
