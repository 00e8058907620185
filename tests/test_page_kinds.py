"""A chosen kind of steps, and a chosen iteration, in every view that tells of many steps."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import viewer, wait_for_answers, wait_until_still, watched_page
from playwright.sync_api import Browser, Locator, Page, expect

import backlight
from backlight.export import export_run
from backlight.store.reader import RunReader

pytestmark = pytest.mark.slow

STEPS, LONG = 12, [0, 3, 6, 9]
GAP, SIDE = 8, 76  # pixels between a distribution and its histogram, and those of the histogram


def record(root: Path, name: str, seed: int) -> RunReader:
    """Every third step goes three times through the cell, the others once."""
    torch.manual_seed(seed)
    cell = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    options: dict[str, Any] = {"root": root, "project": "net", "name": name, "every": 1}
    with backlight.watch(cell, optimizer, **options) as run:
        for step in range(STEPS):
            is_long = step in LONG
            with run.step(kind="long" if is_long else "short"):
                optimizer.zero_grad()
                state = 100 * torch.ones(2, 4)
                for _ in range(3 if is_long else 1):
                    with run.iteration():
                        state = run.tensor("state", cell(state) / 10)
                loss = run.tensor("loss", state.square().mean(), kind="loss", batch_dim=None)
                loss.backward()
                optimizer.step()
                run.log(score=float(step))
    reader = RunReader(run.path)
    reader.refresh()
    return reader


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def reader(root: Path) -> RunReader:
    record(root, "other", 1)
    return record(root, "one", 0)


@pytest.fixture(scope="module")
def address(root: Path, reader: RunReader) -> Iterator[str]:
    with viewer(root) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with watched_page(browser, address, accept_downloads=True) as (page, _):
        yield page


def saved(page: Page, picture: Locator) -> list[dict[str, str]]:
    """The numbers of a picture, by its menu."""
    picture.click(button="right", position={"x": 70, "y": 8})
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Save as CSV").click()
    return list(csv.DictReader(io.StringIO(waiting.value.path().read_text())))


def steps_of(rows: list[dict[str, str]]) -> list[int]:
    return [int(name.removeprefix("step ")) for name in rows[0] if name.startswith("step ")]


@pytest.mark.parametrize(
    ("view", "picture"),
    [
        ("heatmap", "Heatmap of"),
        ("numerics", "Heatmap of"),
        ("flow", "gradient norm"),
        ("compare?with=net/other&compare=differences", "log2 ratio"),
    ],
    ids=["heatmap", "numerics", "flow", "differences"],
)
def test_a_picture_over_steps_is_of_the_kind(page: Page, view: str, picture: str) -> None:
    mark = "&" if "?" in view else "?"
    page.goto(f"#/net/one/{view}{mark}step=6")
    found = page.get_by_role("application", name=re.compile(picture))
    expect(found).to_be_visible()
    wait_for_answers(page)
    assert steps_of(saved(page, found)) == list(range(STEPS))
    page.get_by_label("Kind of step").select_option("long")
    wait_for_answers(page)
    assert steps_of(saved(page, found)) == LONG


def test_the_overview_marks_kinds_and_follows_the_chosen_one(page: Page) -> None:
    page.goto("#/net/one/overview")
    score = page.get_by_role("figure", name="score over steps")
    expect(score.get_by_role("listitem")).to_have_text([re.compile("long"), re.compile("short")])
    marks = page.get_by_role("img", name="Recorded steps: 4 of kind long, 8 of kind short")
    drawn = {name: marks.locator(f'[data-kind="{name}"]') for name in ("long", "short")}
    assert (drawn["long"].get_attribute("d") or "").count("M") == len(LONG)
    colours = {path.evaluate("path => getComputedStyle(path).stroke") for path in drawn.values()}
    assert len(colours) == 2
    page.get_by_label("Recorded steps by kind").get_by_role("button", name="long").click()
    expect(page.get_by_label("Kind of step")).to_have_value("long")
    expect(score.get_by_role("listitem")).to_have_count(0)
    expect(drawn["short"]).to_have_count(0)
    wait_for_answers(page)
    rows = saved(page, score.locator(".plot"))
    assert [int(row["step"]) for row in rows] == LONG


def site_of(reader: RunReader, name: str) -> int:
    return next(row["site"] for row in reader.sites().to_pylist() if row["name"] == name)


@pytest.mark.parametrize("view", ["tensor", "pins"])
def test_a_distribution_is_of_the_kind_and_the_iteration(
    page: Page, reader: RunReader, view: str
) -> None:
    page.goto(f"#/net/one/{view}?step=6&site=state&pin=state&kind=long&iteration=1")
    drawn = page.get_by_role("img", name=re.compile("Distribution of the value.* over steps"))
    expect(drawn.first).to_be_visible()
    wait_for_answers(page)
    rows = saved(page, drawn.first)
    site = site_of(reader, "state")
    history = reader.history(site, quantity="value").to_pylist()
    expected = {
        row["step"]: row for row in history if row["step"] in LONG and row["iteration"] == 1
    }
    assert [int(row["first_step"]) for row in rows] == LONG
    for row in rows:
        seen = expected[int(row["first_step"])]
        assert float(row["count"]) == seen["count"]
        assert float(row["min"]) == pytest.approx(seen["min"])
        assert float(row["max"]) == pytest.approx(seen["max"])
    main = page.get_by_role("main")
    expect(main).to_contain_text("iteration 1 of 3")
    expect(main).not_to_contain_text(re.compile("distribution (is )?of all"))


@pytest.mark.parametrize("view", ["tensor", "pins"])
def test_a_distribution_follows_another_kind_and_another_iteration(
    page: Page, reader: RunReader, view: str
) -> None:
    page.goto(f"#/net/one/{view}?step=6&site=state&pin=state")
    drawn = page.get_by_role("img", name=re.compile("Distribution of the value.* over steps"))
    expect(drawn.first).to_be_visible()
    wait_for_answers(page)
    assert [int(row["first_step"]) for row in saved(page, drawn.first)] == list(range(STEPS))
    history = reader.history(site_of(reader, "state"), quantity="value").to_pylist()

    page.get_by_label("Kind of step", exact=True).select_option("long")
    wait_for_answers(page)
    assert [int(row["first_step"]) for row in saved(page, drawn.first)] == LONG
    for iteration in (0, 2):
        page.get_by_label("Iteration", exact=True).select_option(str(iteration))
        wait_for_answers(page)
        seen = [
            row["max"] for row in history if row["step"] in LONG and row["iteration"] == iteration
        ]
        rows = saved(page, drawn.first)
        assert [float(row["max"]) for row in rows] == pytest.approx(seen)


def test_the_inspector_says_when_its_histogram_is_of_all_iterations(page: Page) -> None:
    page.goto("#/net/one/graph?step=6&site=state")
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("last of 3 iterations")
    expect(inspector).to_contain_text("histogram of all")
    page.goto("#/net/one/graph?step=6&site=state&iteration=0")
    expect(inspector).to_contain_text("iteration 0 of 3")
    expect(inspector).not_to_contain_text("histogram of all")


def test_the_strip_of_the_overview_is_of_the_iteration(page: Page) -> None:
    page.goto("#/net/one/overview?iteration=1")
    expect(page.get_by_role("main")).to_contain_text("orange higher; iteration 1")


def test_compared_scalars_are_of_the_kind(page: Page) -> None:
    page.goto("#/net/one/compare?with=net/other&kind=long")
    plot = page.get_by_role("figure", name="score over steps").locator(".plot")
    expect(plot).to_be_visible()
    wait_for_answers(page)
    rows = saved(page, plot.first)
    assert [int(row["step"]) for row in rows] == LONG


def test_an_exported_file_has_distributions_of_iterations_and_says_what_it_has_of_kinds(
    browser: Browser, reader: RunReader, tmp_path: Path
) -> None:
    file = export_run(reader.path, tmp_path / "run.html").path.as_uri()
    with watched_page(browser, file, offline=True, accept_downloads=True) as (page, _):
        page.goto(f"{file}#/net/one/tensor?step=6&site=state&iteration=1&kind=long")
        drawn = page.get_by_role("img", name="Distribution of the value over steps")
        expect(drawn).to_be_visible()
        expect(page.get_by_text("those over time are of all kinds")).to_be_visible()
        rows = saved(page, drawn.first)
        assert [float(row["count"]) for row in rows] == [8.0] * STEPS


def test_an_exported_file_tells_of_all_formats_that_are_drawn(
    browser: Browser, reader: RunReader, tmp_path: Path
) -> None:
    file = export_run(reader.path, tmp_path / "run.html").path.as_uri()
    with watched_page(browser, file, offline=True) as (page, _):
        page.goto(f"{file}#/net/one/numerics?filter=^state")
        cards = page.get_by_label("Exponent histograms")
        for name in ("fp32", "bf16", "fp16", "fp8 e5m2", "fp8 e4m3fn"):
            expect(cards.get_by_text(name, exact=True).first).to_be_visible()


def test_an_exported_file_keeps_a_distribution_apart_from_its_histogram(
    browser: Browser, reader: RunReader, tmp_path: Path
) -> None:
    """Of the steps of a kind, which end before those of all, the lines end where the steps do."""
    file = export_run(reader.path, tmp_path / "run.html").path.as_uri()
    with watched_page(browser, file, offline=True) as (page, _):
        page.goto(f"{file}#/net/one/tensor?step=6&site=state&kind=long")
        drawn = page.get_by_role("img", name="Distribution of the value over steps")
        expect(drawn).to_be_visible()
        wait_until_still(page, "[aria-label^='Distribution of the value over steps'] canvas")
        # Between the steps and the histogram at their right there is nothing.
        found = drawn.locator("canvas").first.evaluate(
            """(canvas, [gap, side]) => {
                const ratio = devicePixelRatio || 1;
                const copy = new OffscreenCanvas(canvas.width, canvas.height);
                const context = copy.getContext("2d");
                context.drawImage(canvas, 0, 0);
                const x = canvas.width - (side + gap - 2) * ratio;
                const { data } = context.getImageData(x, 0, 3, 0.6 * canvas.height);
                return data.filter((_, i) => i % 4 === 3 && data[i] > 0).length;
            }""",
            [GAP, SIDE],
        )
        assert found == 0
