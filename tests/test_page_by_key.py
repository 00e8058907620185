"""Menus opened with a key, names of what is saved, and what is said of what is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from browser import viewer, wait_for_answers, wait_until_still
from playwright.sync_api import Locator, Page, expect
from torch import nn

import backlight

pytestmark = pytest.mark.slow

GRAPH = "[role=application][aria-label^='Graph of']"
CELLS = "[role=application][aria-label^='Heatmap of']"
NAN_FROM = 6


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two kinds of steps; from one on, everything is NaN."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, project="net", name="one", every=1) as run:
        for step in range(10):
            with run.step(kind="odd" if step % 2 else "even"):
                out = model(torch.randn(8, 4))
                loss = nn.functional.cross_entropy(out, torch.zeros(8, dtype=torch.long))
                optimizer.zero_grad()
                (loss * float("nan") if step >= NAN_FROM - 1 else loss).backward()
                optimizer.step()
    with viewer(root) as address:
        yield address


def menu_of(page: Page, focused: str) -> Locator:
    page.locator(focused).focus()
    page.keyboard.press("ContextMenu")
    menu = page.get_by_role("menu")
    expect(menu).to_be_visible()
    return menu


def test_a_key_opens_the_menu_of_the_selected_node(page: Page) -> None:
    page.goto("#/net/one/graph?step=3&site=2:out.0")
    wait_until_still(page, f"{GRAPH} > canvas")
    menu = menu_of(page, GRAPH)
    expect(menu).to_have_accessible_name("2:out.0")
    menu.get_by_role("menuitem", name="Pin").press("Enter")
    expect(page).to_have_url(re.compile("pin=2%3Aout.0"))


def test_a_key_opens_the_menu_of_the_selected_cell(page: Page) -> None:
    page.goto("#/net/one/heatmap?step=1&site=0:out.0")
    wait_until_still(page, f"{CELLS} canvas")
    menu = menu_of(page, CELLS)
    expect(menu).to_have_accessible_name("0:out.0")
    expect(menu.get_by_role("menuitem", name="Copy value")).to_be_visible()


def test_what_is_saved_of_a_tensor_has_its_name(page: Page) -> None:
    page.goto("#/net/one/tensor?step=3&site=2:out.0")
    column = page.get_by_role("region", name="grad", exact=True)
    column.locator("[aria-label='rms over steps'] .plot").click(button="right")
    expect(page.get_by_role("menu")).to_have_accessible_name("rms of 2:out.0, grad")
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Save as CSV").click()
    assert waiting.value.suggested_filename == "rms of 2_out.0, grad.csv"


def test_plots_of_one_statistic_stand_side_by_side(page: Page) -> None:
    # A value has a statistic more than its gradient: a plot more, so there is room left over.
    page.goto("#/net/one/tensor?step=3&site=2:out.0")
    for statistic in ("abs max", "norm", "max"):
        plots = page.locator(f"[aria-label='{statistic} over steps']")
        expect(plots).to_have_count(2)
        boxes = [plot.bounding_box() for plot in plots.all()]
        assert boxes[0] and boxes[1]
        assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=1), statistic


def test_a_kind_that_the_run_has_not_is_none_chosen(page: Page) -> None:
    page.goto("#/net/one/heatmap?kind=of_another_run")
    kind = page.get_by_label("Kind of step")
    expect(kind.locator("option:checked")).to_have_text("all kinds")
    page.keyboard.press("k")
    expect(kind.locator("option:checked")).to_have_text("even")


def test_a_number_of_which_nothing_is_finite_is_nan(page: Page) -> None:
    page.goto(f"#/net/one/overview?step={NAN_FROM + 1}&site=2:out.0")
    numbers = page.get_by_role("row", name=re.compile("^rms"))
    expect(numbers.locator("td").first).to_have_text("NaN")
    # That a gradient has no spread over the batch is another matter.
    spread = page.get_by_role("row", name=re.compile("^batch std"))
    expect(spread.locator("td").first).to_have_text("NaN")
    expect(spread.locator("td").last).to_have_text("–")


def test_the_name_of_a_called_function_is_not_cut(page: Page) -> None:
    page.goto("#/net/one/calls?step=0&site=2:out.0")
    wait_for_answers(page)
    name = page.get_by_role("list", name="Calls").locator("b", has_text="cross_entropy")
    cell = name.locator("..").bounding_box()
    box = name.bounding_box()
    assert box and cell
    assert box["x"] + box["width"] <= cell["x"] + cell["width"] + 1
    assert name.evaluate("e => e.scrollWidth <= e.clientWidth")
