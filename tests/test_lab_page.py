"""The lab in a real browser: what is edited is computed, shown, undone, saved and replayed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_page_model as own
import pytest
import torch
from browser import (
    TESTS,
    _read,
    picture,
    process,
    viewer,
    wait_for_other_picture,
    wait_until_still,
    watched_page,
)
from playwright.sync_api import Page, expect

import backlight
from backlight.store.recorded_flows import files_of_steps, read_flows

pytestmark = pytest.mark.slow
FLOWS = "canvas[data-links]"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import os

    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("lab"))
    words = ("lab", str(TESTS / "lab_page_model.py"), "--no-browser", "--port", "0")
    with process("-m", "backlight", *words) as started:
        os.chdir(before)
        yield _read(started, r"http://\S+")


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    with watched_page(browser, address) as (opened, _):
        opened.goto("/")
        settle(opened)
        yield opened


def settle(page: Page, edits: int = 0) -> None:
    """Wait until the answer to the last question is shown."""
    expect(page.locator("header")).to_contain_text(re.compile(r"\d+ ms"))
    said = f"{edits} edit" if edits == 1 else f"{edits} edits"
    expect(page.get_by_label("Input", exact=True).first).to_be_visible()
    expect(page.locator("aside").first).to_contain_text(said)
    expect(page.locator(".lab")).to_have_attribute("aria-busy", "false")


def at(page: Page, label: str, row: int, column: int, size: int = 8) -> tuple[float, float]:
    box = page.locator(f'canvas[aria-label="{label}"]').bounding_box()
    assert box
    return (
        box["x"] + (column + 0.5) * box["width"] / size,
        box["y"] + (row + 0.5) * box["height"] / size,
    )


def read_cell(page: Page, label: str, row: int, column: int, size: int = 8) -> list[float]:
    """The value and the gradient that the page says of a cell."""
    page.mouse.move(*at(page, label, row, column, size))
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text(f", {row}, {column}")
    text = tip.inner_text().replace("−", "-")
    return [float(each) for each in re.findall(r"(?:value|gradient) (-?[\d.e-]+)", text)]


def expected(x: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The loss, and the gradients of the input and of the first layer, without the lab."""
    x = x.clone().requires_grad_()
    hidden = own.model.first(x)
    out = own.model.head(own.model.second(hidden.relu()).relu().flatten(1))
    loss = own.loss(out, own.target[:1])
    return loss.item(), *torch.autograd.grad(loss, [x, hidden])


def test_a_click_changes_flows_and_maps_and_undo_brings_them_back(page: Page) -> None:
    grads = 'canvas[aria-label="first grads"]'
    before = [picture(wait_until_still(page, each)) for each in (FLOWS, grads)]
    page.mouse.click(*at(page, "Input", 3, 4))
    settle(page, 1)
    # The pointer is still there, and what is said of the cell is of now.
    expect(page.get_by_role("tooltip")).to_contain_text("value 1.000 (before")
    wait_for_other_picture(page, FLOWS, before[0])
    edited = own.inputs[:1].clone()
    edited[0, 0, 3, 4] = 1.0
    loss, grad, hidden = expected(edited)
    expect(page.get_by_label("Objective")).to_have_text(f"{loss:.3f}")
    value, shown = read_cell(page, "Input", 3, 4)
    assert value == 1 and shown == pytest.approx(float(grad[0, 0, 3, 4]), rel=2e-3)
    _, shown = read_cell(page, "first grads", 2, 5)
    assert shown == pytest.approx(float(hidden[0, 0, 2, 5]), rel=2e-3, abs=1e-9)
    page.mouse.move(2, 2)
    page.keyboard.press("Control+z")
    settle(page, 0)
    page.wait_for_function(
        "before => document.querySelector('canvas[data-links]').toDataURL() === before",
        arg=before[0],
    )
    assert picture(wait_until_still(page, grads)) == before[1]
    page.keyboard.press("Control+Shift+z")
    settle(page, 1)


def test_painting_paints_what_the_brush_covers(page: Page) -> None:
    page.get_by_role("button", name="Paint").click()
    page.get_by_label("Value", exact=True).fill("0.5")
    page.get_by_label("Brush").fill("2")
    page.mouse.move(*at(page, "Input", 1, 1))
    page.mouse.down()
    page.mouse.move(*at(page, "Input", 1, 4), steps=6)
    page.mouse.up()
    settle(page, 1)
    for row, column, is_painted in ((1, 1, True), (2, 5, True), (1, 3, True), (4, 4, False)):
        value = read_cell(page, "Input", row, column)[0]
        plain = float(own.inputs[0, 0, row, column])
        assert value == pytest.approx(0.5 if is_painted else plain, rel=1e-3)


def test_thresholds_and_groups_change_the_number_of_links(page: Page) -> None:
    flows = page.locator(FLOWS)
    many = int(flows.get_attribute("data-links") or 0)
    page.get_by_label("Threshold", exact=True).fill("5")
    expect(flows).to_have_attribute("data-links", "15")
    assert many > 15
    page.get_by_label("Threshold by").select_option("share")
    page.get_by_label("Threshold", exact=True).fill("0")
    expect(flows).not_to_have_attribute("data-links", "15")
    all_links = int(flows.get_attribute("data-links") or 0)
    page.get_by_label("Group first by").select_option("cell")
    page.wait_for_function(
        "n => Number(document.querySelector('canvas[data-links]').dataset.links) > n",
        arg=all_links,
    )


def test_a_selected_cell_shows_all_that_reaches_it(page: Page) -> None:
    before = picture(page.locator(FLOWS))
    x = own.inputs[:1].clone().requires_grad_()
    hidden = own.model.first(x)
    second = own.model.second(hidden.relu())
    out = own.model.head(second.relu().flatten(1))
    (grad,) = torch.autograd.grad(own.loss(out, own.target[:1]), second, retain_graph=True)
    row, column = divmod(int(grad[0, 0].abs().argmax()), 4)
    (through,) = torch.autograd.grad(second[0, 0, row, column] * grad[0, 0, row, column], x)
    page.mouse.click(*at(page, "second grads", row, column, 4))
    expect(page.get_by_label("Layer input")).to_contain_text("through it")
    wait_for_other_picture(page, FLOWS, before)
    y, x_at = divmod(int(through.abs().argmax()), 8)
    page.mouse.move(*at(page, "input grads", y, x_at))
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text(f", {y}, {x_at}")
    text = tip.inner_text().replace("−", "-")
    shown = float(re.findall(r"through the selection (-?[\d.e-]+)", text)[0])
    assert shown == pytest.approx(float(through[0, 0, y, x_at]), rel=2e-3)
    expect(page.get_by_label("Selection")).to_contain_text(f"0, {row}, {column}")
    page.get_by_role("button", name="Ablate").click()
    settle(page, 1)
    page.keyboard.press("Escape")
    assert read_cell(page, "second values", row, column, 4)[0] == 0


def test_edits_are_saved_replayed_and_compared(page: Page) -> None:
    page.mouse.click(*at(page, "Input", 6, 6))
    settle(page, 1)
    page.get_by_label("Name of the edits").fill("corner")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Saved edits")).to_contain_text("corner")
    page.get_by_role("button", name="Reset").click()
    settle(page, 0)
    page.get_by_role("button", name="corner", exact=True).click()
    settle(page, 1)
    assert read_cell(page, "Input", 6, 6)[0] == 1
    page.get_by_role("button", name="Difference").click()
    change = read_cell(page, "Input", 6, 6)[0]
    assert change == pytest.approx(1 - float(own.inputs[0, 0, 6, 6]), rel=1e-3)
    assert read_cell(page, "Input", 0, 0)[0] == 0
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator('canvas[aria-label="Input before"]')).to_be_visible()


def test_an_exception_of_the_model_is_shown_and_the_page_lives_on(page: Page) -> None:
    page.get_by_label("Value", exact=True).fill("99")
    page.mouse.click(*at(page, "Input", 0, 0))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("ValueError: too bright")
    expect(alert).to_contain_text("lab_page_model.py")
    page.get_by_role("button", name="Undo the last edit").click()
    expect(alert).to_have_count(0)
    settle(page, 0)
    page.get_by_label("Value", exact=True).fill("1")
    page.mouse.click(*at(page, "Input", 0, 0))
    settle(page, 1)
    assert read_cell(page, "Input", 0, 0)[0] == 1


def test_only_the_labs_own_page_may_ask(address: str) -> None:
    import httpx

    refused = httpx.post(f"{address}api/lab", json={"method": "describe"})
    assert refused.status_code == 403
    stranger = {"host": "evil.example", "x-backlight": "lab"}
    assert httpx.post(f"{address}api/lab", json={}, headers=stranger).status_code == 403
    answered = httpx.post(
        f"{address}api/lab", json={"method": "nothing"}, headers={"x-backlight": "lab"}
    )
    assert answered.status_code == 200 and b"no method" in answered.content


def test_every_other_tool_edits_what_it_says(page: Page) -> None:
    page.get_by_role("button", name="Noise").click()
    page.mouse.click(*at(page, "Input", 2, 2))
    settle(page, 1)
    noisy = read_cell(page, "Input", 2, 2)[0]
    assert noisy != pytest.approx(float(own.inputs[0, 0, 2, 2]), abs=1e-6)
    page.get_by_role("button", name="Occlude").click()
    page.get_by_label("Brush").fill("3")
    page.mouse.click(*at(page, "Input", 5, 5))
    settle(page, 2)
    assert [read_cell(page, "Input", *cell)[0] for cell in ((4, 4), (6, 6))] == [0, 0]
    page.get_by_label("Swap with sample").select_option("1")
    settle(page, 3)
    assert read_cell(page, "Input", 0, 0)[0] == pytest.approx(float(own.inputs[1, 0, 0, 0]))
    page.get_by_label("Sample", exact=True).select_option("1")
    page.get_by_role("button", name="Reset").click()
    settle(page, 0)
    assert read_cell(page, "Input", 7, 7)[0] == pytest.approx(float(own.inputs[1, 0, 7, 7]))


def test_a_cell_that_was_clicked_is_what_gradients_are_of(page: Page) -> None:
    page.mouse.click(*at(page, "second values", 1, 2, 4))
    page.get_by_role("button", name="Gradients of this").click()
    expect(page.get_by_label("Gradients of")).to_contain_text("second[6]")
    settle(page)
    x = own.inputs[:1].clone().requires_grad_()
    cell = own.model.second(own.model.first(x).relu())[0, 0, 1, 2]
    expect(page.get_by_label("Objective")).to_contain_text(f"{abs(cell.item()):.4g}")
    (grad,) = torch.autograd.grad(cell, x)
    page.keyboard.press("Escape")
    shown = read_cell(page, "input grads", 3, 4)[1]
    assert shown == pytest.approx(float(grad[0, 0, 3, 4]), rel=2e-3)
    page.get_by_label("Gradients of").select_option("all")
    settle(page)
    total = own.model(own.inputs[:1]).sum().item()
    expect(page.get_by_label("Objective")).to_contain_text(f"{abs(total):.4g}")


def test_activation_flow_and_what_is_in_its_way(page: Page) -> None:
    page.get_by_role("button", name="activation").click()
    settle(page)
    problems = page.get_by_label("Selection")
    expect(problems).to_contain_text("not linear in 'first' (Relu is between them)")
    expect(problems).to_contain_text("input → first")


def test_a_node_is_opened_and_closed_again(page: Page) -> None:
    flows = page.locator(FLOWS)
    closed = int(flows.get_attribute("data-links") or 0)
    box = flows.bounding_box()
    assert box
    column, top = box["x"] + 1.5 * box["width"] / 4, box["y"] + box["height"] * 0.2
    page.mouse.move(column, top)
    expect(page.get_by_role("tooltip")).to_contain_text("first channel 0")
    page.mouse.dblclick(column, top)
    page.wait_for_function(
        "n => Number(document.querySelector('canvas[data-links]').dataset.links) !== n", arg=closed
    )
    settle(page)
    page.mouse.move(column, top)
    expect(page.get_by_role("tooltip")).to_contain_text(re.compile(r"first 0, \d, \d"))
    page.mouse.dblclick(column, top)
    expect(flows).to_have_attribute("data-links", str(closed))


def test_an_offset_moves_where_a_cell_is_taken_to_lie(page: Page) -> None:
    page.mouse.click(*at(page, "second grads", 2, 2, 4))
    page.mouse.move(2, 2)
    place = page.get_by_label("Layer first").locator("rect.place").first
    assert [place.get_attribute(each) for each in ("x", "y", "width", "height")] == [*"3333"]
    page.get_by_label("Layer first").locator("summary").click()
    page.get_by_label("Offset right of first").fill("1")
    expect(place).to_have_attribute("x", "2")
    expect(place).to_have_attribute("y", "3")


def test_a_cell_is_toggled_back_from_any_value(page: Page) -> None:
    page.get_by_label("Value", exact=True).fill("0.1")
    for edits, value in ((1, 0.1), (2, 0)):
        page.mouse.click(*at(page, "Input", 3, 3))
        settle(page, edits)
        assert read_cell(page, "Input", 3, 3)[0] == pytest.approx(value)


def test_a_cell_is_found_edited_held_and_released_by_keys(page: Page) -> None:
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    settle(page, 1)
    expect(page.get_by_label("Selection")).to_contain_text("input 0, 1, 1")
    assert read_cell(page, "Input", 1, 1)[0] == 1
    page.mouse.click(*at(page, "first values", 2, 2))
    page.mouse.move(2, 2)
    page.keyboard.press("a")
    settle(page, 2)
    held = page.get_by_label("Selection").get_by_text("Held")
    expect(held).to_be_visible()
    assert read_cell(page, "first values", 2, 2)[0] == 0
    page.mouse.move(2, 2)
    page.keyboard.press("r")
    settle(page, 3)
    expect(held).to_have_count(0)
    edited = own.inputs[:1].clone()
    edited[0, 0, 1, 1] = 1
    free = own.model.first(edited)[0, 0, 2, 2].item()
    assert read_cell(page, "first values", 2, 2)[0] == pytest.approx(free, rel=2e-3)


def test_characters_are_edited_as_a_text(browser: Any) -> None:
    letters = [*" abc\n"]
    model = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Flatten(), torch.nn.Linear(16, 2)
    )
    opened = backlight.lab(model, torch.tensor([[1, 2, 0, 4]]), tokens=letters, block=False)
    with opened, watched_page(browser, opened.url) as (page, _):
        page.goto("/")
        text = page.get_by_label("Tokens as text")
        expect(text).to_have_value("ab ⏎")
        text.fill("a  c")
        text.press("Enter")
        settle(page, 1)
        expect(page.get_by_label("Token 3")).to_have_value("3")
        text.fill("a")
        text.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("4 tokens are needed, not 1.")


def test_gradients_that_are_nan_are_said_to_be(browser: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    model[1].weight.data.fill_(float("nan"))
    opened = backlight.lab(model, torch.ones(1, 3), block=False)
    with opened, watched_page(browser, opened.url) as (page, _):
        page.goto("/")
        expect(page.get_by_label("Objective")).to_have_text("NaN")
        expect(page.get_by_role("main")).to_contain_text("NaN or infinite")


def test_a_recorded_run_is_shown_step_by_step(browser: Any, tmp_path: Path) -> None:
    torch.manual_seed(11)
    model, x = own.Small(), own.inputs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
        run.flow("first", "second")
        run.flow("second", "head", top=30)
        for _ in range(3):
            optimizer.zero_grad()
            own.loss(model(x), own.target).backward()
            optimizer.step()
    words = ("lab", str(run.path), "--no-browser", "--port", "0")
    with (
        process("-m", "backlight", *words) as started,
        watched_page(browser, _read(started, r"http://\S+")) as (page, _),
    ):
        page.goto("/")
        expect(page.get_by_label("Step", exact=True)).to_have_value("2")
        expect(page.get_by_label("Selection")).to_contain_text("The 30 largest of")
        last = picture(wait_until_still(page, FLOWS))
        page.keyboard.press("ArrowLeft")
        expect(page.get_by_label("Step", exact=True)).to_have_value("1")
        wait_for_other_picture(page, FLOWS, last)
        read = read_flows(files_of_steps(run.path)[1])[0]
        shown = read_cell(page, "second grads", 1, 1, 4)[1]
        assert shown == pytest.approx(float(read.sink_grad[0, 1, 1]), rel=2e-3)
        page.get_by_role("button", name="Later step").click()
        page.mouse.move(2, 2)
        page.wait_for_function(
            "last => document.querySelector('canvas[data-links]').toDataURL() === last", arg=last
        )
    with viewer(tmp_path) as root, watched_page(browser, root) as (page, _):
        page.goto(f"/#/{run.path.parent.name}/{run.path.name}/flow")
        with page.expect_popup() as popup:
            page.get_by_role("link", name="open in the lab").click()
        expect(popup.value.get_by_label("Step", exact=True)).to_have_value("2")
        expect(popup.value.get_by_label("Selection")).to_contain_text("The 30 largest of")
