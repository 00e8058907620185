"""Damaged steps, unreadable graphs and iterations, as the page tells of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import held_back, viewer, wait_until_drawn, wait_until_still, watched_page
from playwright.sync_api import Browser, Page, expect

import backlight
from backlight.export import export_run
from backlight.export import file as export_file

pytestmark = pytest.mark.slow

STEPS, ITERATIONS = 12, 3
SITE = "(model):out.0"


def record(root: Path, name: str) -> Path:
    """A loop that goes through its cell three times in each step; what it makes shrinks."""
    torch.manual_seed(0)
    cell = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    options: dict[str, Any] = {
        "root": root,
        "project": "net",
        "name": name,
        "every": 1,
        "samples": 2,
    }
    with backlight.watch(cell, optimizer, **options) as run:
        for _ in range(STEPS):
            optimizer.zero_grad()
            state = 100 * torch.ones(2, 4)
            for _ in range(ITERATIONS):
                with run.iteration():
                    state = cell(state) / 10
            loss = run.tensor("loss", state.square().mean(), kind="loss", batch_dim=None)
            loss.backward()
            optimizer.step()
    return run.path


def damage_steps(path: Path) -> None:
    """Overwrite the middle of the statistics."""
    file = next((path / "stats").glob("*.arrows"))
    content = bytearray(file.read_bytes())
    third = len(content) // 3
    content[third : 2 * third] = b"x" * third
    file.write_bytes(content)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    whole = record(root, "whole")
    for name in ("damaged", "unreadable"):
        shutil.copytree(whole, root / "net" / name)
    damage_steps(root / "net" / "damaged")
    for graph in (root / "net" / "unreadable" / "graphs").iterdir():
        graph.write_text(graph.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with viewer(root) as address:
        yield address


@pytest.fixture
def quiet_page(browser: Browser, address: str) -> Iterator[Page]:
    """A page that may complain of answers that are errors."""
    with watched_page(browser, address) as (page, watch):
        yield page
        watch.faults = [each for each in watch.faults if "400" not in each]


def note(page: Page) -> Any:
    return page.get_by_role("main").get_by_role("link", name="cannot be read")


@pytest.mark.parametrize("view", ["heatmap", "numerics", "tensor"])
def test_steps_that_are_damaged_are_said_to_be(page: Page, view: str) -> None:
    page.goto(f"#/net/damaged/{view}?site={SITE}")
    expect(note(page)).to_have_text("steps 3 – 7 damaged")
    sentence = "steps 3 – 7 cannot be read; the overview says which files are damaged"
    expect(note(page)).to_have_attribute("title", f"Hatched: {sentence} and what to do.")
    page.goto(f"#/net/whole/{view}?site={SITE}")
    page.locator("main canvas").first.wait_for()
    expect(note(page)).to_have_count(0)


def test_raw_values_say_of_which_iteration_they_are(page: Page) -> None:
    page.goto(f"#/net/whole/tensor?step=5&site={SITE}&tab=values")
    raw = page.get_by_label("Raw value", exact=True)
    expect(raw).to_contain_text("last of 3 iterations")
    page.goto(f"#/net/whole/tensor?step=5&site={SITE}&tab=values&iteration=1")
    expect(raw).to_contain_text("iteration 1 of 3")
    page.goto(f"#/net/whole/tensor?step=5&site={SITE}&tab=values&iteration=1&layout=table")
    expect(page.get_by_role("main").get_by_text("iteration 1 of 3", exact=True)).to_be_visible()


HATCHED = """selector => {
    const canvas = document.querySelector(selector);
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext("2d");
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4)
        if (data[i] === 0xd4 && data[i + 1] === 0xd7 && data[i + 2] === 0xdc) found++;
    return found;
}"""


def hatched(page: Page, selector: str) -> int:
    wait_until_still(page, selector)
    found: int = page.evaluate(HATCHED, selector)
    return found


@pytest.mark.parametrize(
    ("view", "selector"),
    [
        ("numerics", ".losses .body [role=img] > canvas"),
        ("tensor", ".distribution canvas"),
        ("tensor", ".plots .u-wrap canvas"),
        ("tensor", ".track canvas"),
    ],
    ids=["lost shares", "distribution", "curve", "timeline"],
)
def test_what_is_damaged_is_hatched(page: Page, view: str, selector: str) -> None:
    page.goto(f"#/net/damaged/{view}?site={SITE}")
    expect(note(page)).to_be_visible()
    assert hatched(page, selector) > 10
    page.goto(f"#/net/whole/{view}?site={SITE}")
    expect(note(page)).to_have_count(0)
    assert hatched(page, selector) == 0


def test_a_graph_that_cannot_be_read_is_said_to_be(quiet_page: Page) -> None:
    page = quiet_page
    sentence = "put that file back from a copy of the run"
    page.goto(f"#/net/unreadable/overview?site={SITE}")
    expect(page.get_by_role("main").get_by_label("Problems")).to_contain_text(sentence)
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector.get_by_role("alert")).to_contain_text(sentence)
    for view in ("graph", "flow"):
        page.goto(f"#/net/unreadable/{view}?site={SITE}")
        expect(page.get_by_role("main").get_by_role("alert").first).to_contain_text(sentence)
    page.goto(f"#/net/whole/overview?site={SITE}")
    expect(page.get_by_role("main").get_by_label("Problems")).to_have_count(0)


def test_each_view_says_which_iteration_it_shows(page: Page) -> None:
    chosen = page.get_by_label("Iteration", exact=True).locator("option:checked")
    for view, label in (
        ("heatmap", "greatest it"),
        ("tensor", "last it"),
        ("numerics", "last it"),
        ("graph", "last it"),
        ("calls", "all its"),
    ):
        page.goto(f"#/net/whole/{view}?site={SITE}")
        expect(chosen).to_have_text(label)
    page.goto(f"#/net/whole/heatmap?site={SITE}")
    expect(page.get_by_role("main")).to_contain_text("the greatest of all iterations")
    expect(page.get_by_role("complementary", name="Inspector")).to_contain_text(
        "last of 3 iterations"
    )
    page.goto(f"#/net/whole/tensor?site={SITE}")
    expect(page.get_by_role("main")).to_contain_text(
        "last of 3 iterations; the distribution is of all"
    )
    page.goto("#/net/whole/overview")
    strip = page.get_by_role("region", name="Health")
    expect(strip).to_contain_text("the greatest of all iterations")
    page.goto(f"#/net/whole/pins?pin={SITE}")
    expect(page.get_by_role("main")).to_contain_text("last of 3 iterations, distribution of all")


def test_what_is_pointed_at_in_the_heatmap_says_so_too(page: Page) -> None:
    page.goto("#/net/whole/heatmap")
    box = wait_until_drawn(page, "main .grid canvas, main canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.get_by_role("tooltip")).to_contain_text("the greatest of all iterations")


def opened(browser: Browser, file: Path) -> Any:
    return watched_page(browser, file.as_uri(), offline=True)


@pytest.mark.parametrize("width", [1000, 1280, 1440])
@pytest.mark.parametrize("run", ["whole", "damaged"])
def test_the_tools_of_a_heatmap_are_all_seen(
    browser: Browser, address: str, run: str, width: int
) -> None:
    size = {"width": width, "height": 720}
    with watched_page(browser, address, viewport=size) as (page, _):
        page.goto(f"#/net/{run}/heatmap?step=2")
        legend = page.get_by_role("img", name="Colours")
        expect(legend).to_be_visible()
        main = page.get_by_role("main").bounding_box()
        box = legend.bounding_box()
        assert main and box
        assert box["x"] + box["width"] <= main["x"] + main["width"] + 1
        for said in (".count", ".of"):
            cut = page.locator(f".tools {said}").evaluate("e => e.scrollWidth - e.clientWidth")
            assert cut <= 0, said


def test_an_age_is_told_when_it_is_known(browser: Browser, address: str) -> None:
    """While the steps are still on their way, a run is not as old as the calendar."""
    with watched_page(browser, address) as (page, _), held_back(page, "**/net/whole/steps*"):
        page.goto("#/net/whole/overview")
        status = page.locator("header .status")
        expect(status).to_contain_text("finished")
        assert re.search(r"now|\d+ (s|min)$", status.inner_text().strip()), status.inner_text()


def test_an_exported_file_has_single_iterations(
    browser: Browser, root: Path, tmp_path: Path
) -> None:
    exported = export_run(root / "net" / "whole", tmp_path / "whole.html", most_steps=4)
    with opened(browser, exported.path) as (page, _):
        for view in ("heatmap", "numerics", "flow"):
            page.goto(f"{exported.path.as_uri()}#/net/whole/{view}?iteration=1&site={SITE}")
            wait_until_drawn(page, "main canvas")
            expect(page.get_by_role("alert")).to_have_count(0)
            expect(page.get_by_text("This file has no single iterations")).to_have_count(0)


def test_a_file_without_them_says_what_it_shows(
    browser: Browser, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_file, "_MOST_ITERATIONS", ITERATIONS - 1)
    exported = export_run(root / "net" / "whole", tmp_path / "less.html", most_steps=4)
    assert any("are there without single iterations." in each for each in exported.thinned)
    with opened(browser, exported.path) as (page, _):
        for view, shown in (
            ("heatmap", "the greatest of all"),
            ("numerics", "the last"),
            ("flow", "the last"),
        ):
            page.goto(f"{exported.path.as_uri()}#/net/whole/{view}?iteration=1&site={SITE}")
            wait_until_drawn(page, "main canvas")
            sentence = f"This file has no single iterations here, so it shows {shown}."
            expect(page.get_by_role("main").get_by_text(sentence)).to_be_visible()
            expect(page.get_by_role("alert")).to_have_count(0)


def test_a_run_whose_graph_is_damaged_is_exported(
    browser: Browser, root: Path, tmp_path: Path
) -> None:
    exported = export_run(root / "net" / "unreadable", tmp_path / "unreadable.html", most_steps=3)
    assert str(root) not in exported.path.read_text(encoding="utf-8")
    with opened(browser, exported.path) as (page, _):
        page.goto(f"{exported.path.as_uri()}#/net/unreadable/graph?site={SITE}")
        alert = page.get_by_role("main").get_by_role("alert")
        expect(alert).to_contain_text("The graph 'graphs/")
        expect(alert).to_contain_text("put that file back")
