"""The page's views of pins, curves, calls and the log, its menus, and large and broken runs."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from browser import (
    held_back,
    picture,
    training,
    viewer,
    wait_for_answers,
    wait_for_other_picture,
    wait_until_drawn,
    wait_until_still,
    watched_page,
)
from graph_runs import block_tree, varied_tree, write_graph_run
from playwright.sync_api import Browser, Locator, Page, expect
from sample_runs import SampleRun, write_sample_run
from small_runs import record as record_small

import backlight
from backlight.store.reader import RunReader

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
GRAPH = "[role=application][aria-label^='Graph of'] > canvas"
CELLS = "[role=img][aria-label^='Heatmap of'] canvas"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_full_run(root, "full")
    write_graph_run(root, block_tree(6), name="blocks", steps=6)
    write_sample_run(root, name="plain", steps=30, sites=16)
    return root


def write_full_run(root: Path, name: str, *, hostile: str = "") -> Path:
    """A run with kinds, groups of scalars, events, notes and calls."""
    run = SampleRun(root, "demo", name, sites=16, seed=3)
    for step in range(40):
        run.append_step(step, kind="test" if step % 4 == 3 else "train")
        values = {"test_loss": 1 / (step + 1), "test_accuracy": step / 40, "single": float(step)}
        if step == 20:
            values["test_loss"] = 500.0
        rows = [
            {"step": step, "name": hostile + k, "value": v, "logged_at": time.time()}
            for k, v in values.items()
        ]
        run.writer.append_rows("scalars", rows)
    run.append_note(10, f"{hostile}the learning rate is warm now")
    event = {"step": 20, "kind": "spike", "site": 3, "text": f"{hostile}loss 500"}
    run.writer.append_rows("events", [{**event, "happened_at": time.time()}])
    run.writer.append_rows("calls", [call_row(5, order, hostile) for order in range(3)])
    run.end("finished")
    return run.path


def call_row(step: int, order: int, hostile: str) -> dict[str, object]:
    names = ("torch.sigmoid", "torch.nn.functional.mse_loss", "torch.Tensor.backward")
    tensor = '{"shape": [8, 3], "dtype": "float32", "min": 0.25, "max": 0.5}'
    return {
        "step": step,
        "iteration": 0,
        "order": order,
        "function": names[order],
        "module": "blocks.0.attn" if order == 0 else "",
        "arguments": f'{{"input": {tensor}, "reduction": "mean"}}',
        "result": tensor,
        "source": "/home/me/train.py:12",
        "code": f"{hostile}loss = mse_loss(answer, target)",
    }


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with viewer(runs) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with watched_page(browser, address, accept_downloads=True) as (page, _):
        yield page


def downloaded(page: Page, item: str) -> bytes:
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name=item).click()
    return waiting.value.path().read_bytes()


def middle_of(locator: Locator) -> tuple[float, float]:
    box = locator.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


# The rail


def test_every_view_of_the_rail_opens_and_has_its_key(page: Page) -> None:
    page.goto("#/demo/full/overview")
    links = page.get_by_role("navigation", name="Views").get_by_role("link")
    expect(links.first).to_be_visible()
    for place, name in enumerate(links.evaluate_all("all => all.map(a => a.dataset.view)")):
        links.nth(place).click()
        expect(page).to_have_url(re.compile(f"#/demo/full/{name}"))
        expect(links.nth(place)).to_have_attribute("aria-current", "page")
        expect(page.locator("main > *").first).to_be_attached()
    for place, key in enumerate(["1", "9", "Shift+Digit1", "Shift+Digit3"]):
        page.keyboard.press(key)
        name = links.nth([0, 8, 9, 11][place]).get_attribute("data-view")
        expect(page).to_have_url(re.compile(f"#/demo/full/{name}"))


# Pins


def test_tensors_are_pinned_side_by_side(page: Page) -> None:
    page.goto("#/demo/full/pins")
    expect(page.get_by_text("Tensors that you pin stand here")).to_be_visible()
    sites = page.get_by_role("complementary", name="Sites")
    for name in ("blocks.0.norm:out.0", "blocks.0.attn:out.0"):
        sites.get_by_role("button", name=name).click()
        expect(page.get_by_role("region", name=name)).to_contain_text("abs max")
    drawn = "[aria-label^='Distribution of the value of blocks.0.attn:out.0'] canvas"
    wait_until_drawn(page, drawn)
    wait_until_drawn(page, "[aria-label='rms of all over steps'] canvas")
    expect(page).to_have_url(re.compile("pin=blocks.0.norm.*&pin=blocks.0.attn"))
    before = picture(page.locator(drawn))
    page.get_by_label("Quantity").select_option("grad")
    grad = "[aria-label^='Distribution of the grad of blocks.0.attn:out.0'] canvas"
    wait_until_drawn(page, grad)
    wait_for_other_picture(page, grad, before)
    page.get_by_role("button", name="Unpin blocks.0.norm:out.0").click()
    expect(page.get_by_role("region", name="blocks.0.norm:out.0")).to_be_hidden()
    page.go_back()
    expect(page.get_by_role("region", name="blocks.0.norm:out.0")).to_be_visible()


def test_sites_are_dragged_into_columns(page: Page) -> None:
    page.goto("#/demo/full/pins?pin=blocks.0.norm:out.0&pin=blocks.0.fc:out.0")
    columns = page.locator("[data-pin-slot]")
    expect(columns).to_have_count(2)
    source = page.get_by_role("complementary", name="Sites").get_by_role(
        "button", name="blocks.0.attn:out.0"
    )
    page.mouse.move(*middle_of(source))
    page.mouse.down()
    box = columns.nth(1).bounding_box()
    assert box
    page.mouse.move(box["x"] + 20, box["y"] + 30, steps=4)
    page.mouse.up()
    expect(columns).to_have_count(3)
    expect(columns.nth(1)).to_have_attribute("aria-label", "blocks.0.attn:out.0")
    page.mouse.move(
        *middle_of(columns.nth(2).get_by_role("button", name="blocks.0.fc:out.0", exact=True))
    )
    page.mouse.down()
    box = columns.nth(0).bounding_box()
    assert box
    page.mouse.move(box["x"] + 20, box["y"] + 30, steps=4)
    page.mouse.up()
    expect(columns.nth(0)).to_have_attribute("aria-label", "blocks.0.fc:out.0")


def test_columns_stay_where_they_are_when_their_numbers_come(page: Page) -> None:
    with held_back(page, "**/history*"):
        page.goto("#/demo/full/pins?pin=blocks.0.norm:out.0&pin=blocks.0.fc:out.0")
        expect(page.get_by_text("Loading the value.")).to_have_count(2)
        before = middle_of(page.get_by_role("button", name="Unpin blocks.0.fc:out.0"))
    for name in ("blocks.0.norm:out.0", "blocks.0.fc:out.0"):
        expect(page.get_by_role("region", name=name)).to_contain_text("abs max")
    assert middle_of(page.get_by_role("button", name="Unpin blocks.0.fc:out.0")) == before


def test_shift_click_and_a_key_pin_and_the_graph_shows_it(page: Page) -> None:
    page.goto("#/demo/blocks/graph")
    canvas = wait_until_still(page, GRAPH)
    before = picture(canvas)
    canvas.hover()
    page.mouse.move(*middle_of(canvas))
    page.keyboard.down("Shift")
    page.mouse.click(*middle_of(canvas))
    page.keyboard.up("Shift")
    expect(page).to_have_url(re.compile(r"pin=blocks\.5"))
    page.mouse.move(300, 100)
    wait_for_other_picture(page, GRAPH, before)
    page.goto("#/demo/blocks/graph?site=head:out.0")
    expect(page.get_by_role("complementary", name="Inspector")).to_contain_text("head:out.0")
    page.keyboard.press("p")
    expect(page).to_have_url(re.compile("pin=head"))
    page.keyboard.press("p")
    expect(page).not_to_have_url(re.compile("pin=head"))


def test_a_node_is_dragged_from_the_graph_into_the_pins(page: Page) -> None:
    page.goto("#/demo/blocks/graph?pin=head:out.0")
    canvas = wait_until_still(page, GRAPH)
    page.mouse.move(*middle_of(canvas))
    page.keyboard.down("Shift")
    page.mouse.down()
    rail = page.get_by_role("link", name="Pins")
    page.mouse.move(*middle_of(rail), steps=5)
    expect(page).to_have_url(re.compile("/pins"))
    expect(page.locator("[data-pin-slot]")).to_have_count(1)
    page.mouse.move(*middle_of(page.locator("[data-pins]")), steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(page.locator("[data-pin-slot]")).to_have_count(2)


# Curves


def test_curves_stand_in_groups_and_are_smoothed(page: Page) -> None:
    page.goto("#/demo/full/curves")
    group = page.get_by_role("region", name="test")
    expect(group.get_by_role("figure")).to_have_count(2)
    loss = page.get_by_label("loss over steps", exact=True)
    expect(loss).to_contain_text("train")
    expect(loss).to_contain_text("test")
    selector = "[aria-label='test_loss over steps'] canvas"
    before = picture(wait_until_drawn(page, selector))
    page.get_by_label("smoothing").fill("0.9")
    expect(page).to_have_url(re.compile("curves=smooth-0.9"))
    wait_for_other_picture(page, selector, before)
    before = picture(page.locator(selector))
    page.get_by_label("outliers as marks").uncheck()
    wait_for_other_picture(page, selector, before)
    page.get_by_label("over time").check()
    expect(page.get_by_label("test_loss over time")).to_be_visible()
    page.get_by_label("groups in one plot").check()
    expect(group.get_by_role("figure")).to_have_count(1)
    page.get_by_label("by kind").uncheck()
    page.get_by_label("log axis").check()
    expect(page).to_have_url(re.compile("log%2Cfull%2Ctime%2Coverlay%2Ckinds-as-one"))
    page.get_by_label("Filter scalars").fill("accuracy")
    expect(page.get_by_role("figure")).to_have_count(1)
    page.reload()
    expect(page.get_by_label("Filter scalars")).to_have_value("accuracy")
    expect(page.get_by_label("log axis")).to_be_checked()


def test_a_click_on_a_curve_selects_its_step_over_time_too(page: Page) -> None:
    page.goto("#/demo/full/curves?curves=time")
    plot = page.locator("[aria-label='single over time, s'] .u-over")
    expect(plot).to_be_visible()
    box = plot.bounding_box()
    assert box
    plot.click(position={"x": box["width"] - 3, "y": 20})
    expect(page).to_have_url(re.compile("step=3[0-9]"))


# Calls and the log


def test_calls_of_a_step_are_told_in_words(page: Page) -> None:
    page.goto("#/demo/full/calls?step=7")
    page.get_by_role("button", name="‹ step 5").click()
    calls = page.get_by_role("list", name="Calls").get_by_role("button")
    expect(calls).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(calls.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    shown = page.get_by_role("list", name="Calls")
    expect(shown).to_contain_text("loss = mse_loss(answer, target)")
    expect(shown).to_contain_text("float32 8 × 3, 0.25 … 0.5")
    expect(shown).to_contain_text("train.py:12")
    calls.first.click()
    expect(page).to_have_url(re.compile("site=blocks.0.attn"))
    page.get_by_label("Filter calls").fill("sigmoid")
    expect(calls).to_have_count(1)
    page.goto("#/demo/plain/calls")
    expect(page.get_by_text("No function calls were recorded")).to_be_visible()


def test_the_log_has_notes_and_events_and_selects(page: Page) -> None:
    page.goto("#/demo/full/log")
    rows = page.get_by_role("list", name="Log").get_by_role("listitem")
    expect(rows).to_have_count(2)
    rows.last.get_by_role("button").click()
    expect(page).to_have_url(re.compile("step=20&site="))
    expect(page.get_by_role("complementary", name="Inspector")).to_be_visible()
    page.keyboard.press("ArrowUp")
    expect(page).to_have_url(re.compile("step=10&"))
    page.get_by_role("group", name="Kinds").get_by_role("button", name="note").click()
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("quiet=note"))
    page.get_by_label("Filter the log").fill("nothing like it")
    expect(page.get_by_text("No line has that in it.")).to_be_visible()
    page.goto("#/demo/blocks/log")
    expect(page.get_by_text("Nothing was noted")).to_be_visible()


# Menus


def test_a_plot_is_saved_as_csv_png_and_svg(page: Page) -> None:
    page.goto("#/demo/full/curves")
    plot = page.locator("[aria-label='single over steps'] .plot")
    wait_until_drawn(page, "[aria-label='single over steps'] canvas")
    for item, begins in (("CSV", b"step,"), ("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        plot.click(button="right", position={"x": 120, "y": 40})
        found = downloaded(page, f"Save as {item}")
        assert found.startswith(begins)
        if item == "CSV":
            rows = list(csv.reader(io.StringIO(found.decode())))
            assert len(rows) == 41
            assert rows[-1][0] == "39"
            assert "39" in rows[-1][1:]


def test_a_distribution_and_a_histogram_are_saved(page: Page) -> None:
    page.goto("#/demo/full/tensor?site=blocks.0.attn:out.0")
    for label, columns in (
        ("Distribution of the value over steps", "first_step,last_step,count"),
        ("Distribution of the value at the selected step", "from,to,count"),
    ):
        wait_until_drawn(page, f"[aria-label^='{label}'] canvas")
        plot = page.locator(f"[aria-label^='{label}']")
        for item, begins in (("CSV", columns.encode()), ("PNG", b"\x89PNG"), ("SVG", b"<svg")):
            plot.click(button="right", position={"x": 20, "y": 20})
            assert downloaded(page, f"Save as {item}").startswith(begins)


@pytest.mark.parametrize(
    ("place", "drawn"),
    [("full/heatmap", CELLS), ("full/overview", CELLS), ("blocks/graph", GRAPH)],
)
def test_heatmap_and_graph_are_saved_from_their_menu(page: Page, place: str, drawn: str) -> None:
    page.goto(f"#/demo/{place}")
    canvas = wait_until_still(page, drawn)
    for item, begins in (("CSV", b"site,"), ("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        page.mouse.click(*middle_of(canvas), button="right")
        found = downloaded(page, f"Save as {item}")
        assert found.startswith(begins)
        assert len(found) > 200


def test_a_menu_is_used_with_the_keyboard(page: Page) -> None:
    page.goto("#/demo/full/heatmap")
    canvas = wait_until_drawn(page, CELLS)
    page.mouse.click(*middle_of(canvas), button="right")
    menu = page.get_by_role("menu")
    expect(menu.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(menu.get_by_role("menuitem").nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page).to_have_url(re.compile("/heatmap"))
    page.mouse.click(*middle_of(canvas), button="right")
    menu.get_by_role("menuitem", name="Pin").click()
    expect(page).to_have_url(re.compile("pin="))


# Heatmap


def test_a_drag_zooms_into_the_heatmap_and_back_undoes_it(page: Page) -> None:
    page.goto("#/demo/full/heatmap")
    canvas = wait_until_still(page, CELLS)
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 45, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("/heatmap.*range=1[01]-(19|20)"))
    expect(page.get_by_role("application", name=re.compile("(9|10|11) columns"))).to_be_visible()
    page.get_by_role("application").press("0")
    expect(page.get_by_role("application", name="40 columns")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile("range="))


def test_a_link_shows_the_rows_that_were_zoomed_into(page: Page) -> None:
    page.goto("#/demo/full/heatmap")
    canvas = wait_until_still(page, CELLS)
    labels = page.locator(".grid .labels")
    whole = labels.inner_text()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("top=.*bottom="))
    expect(labels).not_to_have_text(whole, use_inner_text=True)
    wait_until_still(page, CELLS)
    zoomed, link = labels.inner_text(), page.url
    page.go_back()
    expect(labels).to_have_text(whole, use_inner_text=True)
    page.goto("about:blank")
    page.goto(link)
    expect(labels).to_have_text(zoomed, use_inner_text=True)


# Samples


def test_a_sample_is_shown_or_said_not_to_be(browser: Browser, root: Path) -> None:
    path = record_small(root)
    reader = RunReader(path)
    reader.refresh()
    site = next(row for row in reader.sites().to_pylist() if row["name"] == "0:out.0")["site"]
    columns = ["step", "quantity", "sample", "data_index", "abs_max"]
    rows = reader.snapshot.of_sites([site], columns, table="samples").to_pylist()
    row = next(each for each in rows if each["step"] == 11 and each["quantity"] == "value")
    index = row["data_index"]
    key = str(row["sample"]) if index is None else f"#{index}"
    batch = reader.history(site).to_pylist()[-1]["abs_max"]
    assert row["abs_max"] != batch
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto(f"#/tests/small/tensor?site=0:out.0&step=11&sample={quote(key)}")
        inspector = page.get_by_label("Inspector", exact=True)
        expect(inspector.get_by_title(repr(row["abs_max"]), exact=True)).to_be_visible()
        expect(page.get_by_label("value", exact=True)).to_contain_text(f"of sample {key}")
        page.get_by_label("Sample", exact=True).select_option("mean")
        expect(inspector.get_by_title(repr(batch), exact=True)).to_be_visible()
        expect(page.get_by_label("value", exact=True)).to_contain_text("of the whole batch")
        page.get_by_role("button", name="Raw values").click()
        expect(page.get_by_label("Raw value", exact=True)).to_contain_text("mean of 2 kept samples")
        page.goto("#/tests/small/heatmap?sample=mean")
        expect(page.get_by_label("Selection", exact=True)).to_contain_text("whole batch")


def test_a_heatmap_of_update_ratios_is_of_parameters(browser: Browser, root: Path) -> None:
    path = record_small(root)
    reader = RunReader(path)
    reader.refresh()
    updated = reader.heatmap(quantity="update", statistic="update_ratio")["site"].to_pylist()
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/tests/small/heatmap?statistic=update_ratio&quantity=grad")
        name = re.compile(f"update ratio: {len(set(updated))} sites")
        expect(page.get_by_role("application", name=name)).to_be_visible()
        expect(page.get_by_role("group", name="Tensor classes")).to_have_text("parameter")


# Names, large and broken runs, live


def test_names_are_text_in_every_view(browser: Browser, root: Path) -> None:
    write_full_run(root, "hostile", hostile=HOSTILE)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        for view in ("overview", "curves", "log", "calls?step=5", f"pins?pin={HOSTILE}"):
            page.goto(f"#/demo/hostile/{view}")
            main = page.locator("main")  # which has the view before it for a moment
            expect(main).to_have_attribute("aria-label", view.split("?")[0], ignore_case=True)
            if view.startswith("calls"):
                main.get_by_role("list", name="Calls").get_by_role("button").first.click()
            expect(main).to_contain_text("<img")
            assert page.locator("img:not([role])").count() == 0


def test_a_run_full_of_nan_is_shown_by_every_view(browser: Browser, root: Path) -> None:
    run = SampleRun(root, "demo", "nan", sites=16, seed=0)
    for step in range(12):
        run.append_step(step, poisoned=True)
    run.end("failed")
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        for view in ("overview", "heatmap", "tensor", "pins", "curves", "log", "calls"):
            page.goto(f"#/demo/nan/{view}?site=blocks.0.attn:out.0&pin=blocks.0.attn:out.0")
            expect(page.locator("main > *").first).to_be_visible()
            wait_for_answers(page)
        page.goto("#/demo/nan/curves")
        expect(page.get_by_label("loss over steps", exact=True)).to_contain_text("NaN")


def test_where_the_first_nan_came_from_is_said_alike(browser: Browser, root: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, project="demo", name="torn", root=root, every=1):
        for step in range(8):
            x = torch.full((6, 4), float("inf") if step >= 5 else 1.0)
            optimizer.zero_grad()
            model(x).square().mean().mul(x.sum()).backward()
            optimizer.step()
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/torn/overview")
        link = page.get_by_role("link", name="first NaN or Inf: step 5")
        expect(link).to_contain_text("(model):in.0")
        assert "quantity=" not in (link.get_attribute("href") or "")  # its value
        page.goto("#/demo/torn/flow?step=7")
        expect(page.locator("main")).to_contain_text("NaN or infinite elements")


def test_ten_thousand_modules_are_shown(browser: Browser, root: Path) -> None:
    write_graph_run(root, varied_tree(10_000), name="large", steps=2)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/large/graph")
        wait_until_drawn(page, GRAPH)
        page.keyboard.press("/")
        page.keyboard.type("stages.3.7 part2 out")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("depend")
        page.goto("#/demo/large/heatmap")
        wait_until_drawn(page, CELLS)
        page.goto("#/demo/large/pins")
        expect(page.get_by_text("more: type on.")).to_be_visible()


def test_new_views_grow_while_a_run_is_written(browser: Browser, root: Path) -> None:
    with (
        viewer(root) as address,
        watched_page(browser, address) as (page, _),
        training(root, "--name", "now"),
    ):
        page.goto("#/demo/now/curves")
        selector = "[aria-label='loss over steps'] canvas"
        before = picture(wait_until_drawn(page, selector))
        wait_for_other_picture(page, selector, before)
        page.goto("#/demo/now/pins?pin=blocks.0.attn:out.0")
        selector = "[aria-label='rms of all over steps'] canvas"
        before = picture(wait_until_drawn(page, selector))
        wait_for_other_picture(page, selector, before)


def test_a_plot_that_has_grown_looks_like_one_that_is_opened_now(
    browser: Browser, root: Path
) -> None:
    plot = "[aria-label='loss over steps'] canvas"
    run = SampleRun(root, "demo", "grown", sites=4, seed=0)
    run.append_step(0)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/grown/curves")
        wait_until_drawn(page, plot)
        for step in range(1, 6):
            run.append_step(step)
        with watched_page(browser, address) as (other, _):
            other.goto("#/demo/grown/curves")
            wait_until_drawn(other, plot)
            opened_now = picture(wait_until_still(other, plot))
        page.wait_for_function(
            "([selector, other]) => document.querySelector(selector).toDataURL() === other",
            arg=[plot, opened_now],
        )
    run.end("finished")


def test_what_takes_long_is_named_in_its_place_and_moves_nothing_when_it_comes(page: Page) -> None:
    with held_back(page, re.compile("/(heatmap|history)")):
        page.goto("#/demo/plain/overview?site=blocks.0.attn:out.0")
        expect(page.get_by_text("Loading the gradients of all sites.")).to_be_visible()
        expect(page.get_by_text("Loading the value.")).to_be_visible()
        scalars = page.get_by_role("heading", name="Scalars")
        before = scalars.bounding_box()
    expect(page.get_by_role("img", name="Heatmap of the grad")).to_be_visible()
    expect(page.get_by_text("Loading the")).to_have_count(0)
    assert scalars.bounding_box() == before


def test_what_is_no_longer_wanted_is_given_up(page: Page) -> None:
    given_up: list[str] = []
    page.on("requestfailed", lambda request: given_up.append(request.url))
    page.goto("#/demo/plain/log")
    page.get_by_role("navigation", name="Views").wait_for()
    page.route("**/heatmap*", lambda route: None)
    for quantity in ("value", "grad"):
        with page.expect_request(re.compile(f"/heatmap.*quantity={quantity}")):
            page.goto(f"#/demo/plain/heatmap?quantity={quantity}")
    with page.expect_event("requestfailed", lambda request: "quantity=grad" in request.url):
        page.goto("#/demo/plain/log")
    assert len([url for url in given_up if "/heatmap" in url]) == 2
