"""An exported file holds what the page may ask, and opens with the network off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import watched_page
from playwright.sync_api import Browser, Page, expect
from small_runs import HOSTILE, record

import backlight
from backlight.errors import BacklightError
from backlight.export import Exported, export_run
from backlight.export.questions import ANSWERED, NOT_ANSWERED
from backlight.serve.app import ROUTES

VIEWS = ("overview", "graph", "heatmap", "tensor")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run: Path) -> Exported:
    return export_run(run, run.parent / "run.html", most_steps=5)


@pytest.fixture
def page(browser: Browser, exported: Exported) -> Iterator[Page]:
    with watched_page(browser, exported.path.as_uri(), offline=True) as (page, _):
        page.goto(exported.path.as_uri())
        yield page


def test_every_address_is_answered_or_left_out_on_purpose() -> None:
    assert set(ROUTES) == ANSWERED | NOT_ANSWERED


def test_the_file_says_what_is_left_out(exported: Exported) -> None:
    assert "Of 12 recorded steps 5 can be looked into, well spread." in exported.thinned


def test_no_name_is_markup_in_the_file(exported: Exported) -> None:
    text = exported.path.read_text(encoding="utf-8")
    assert "onerror=alert" not in text
    # Each script element ends once: ours, the list of answers, and the packs.
    assert text.count("</script") == len(re.findall("<script[ >]", text))


def test_the_file_does_not_tell_where_it_came_from(exported: Exported, run: Path) -> None:
    assert str(run.parent.parent) not in exported.path.read_text(encoding="utf-8")


def test_a_size_that_is_too_small_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BacklightError, match=r"does not fit .*: pass a --size of at least"):
        export_run(run, tmp_path / "run.html", size_bytes=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_is_stated_is_kept(run: Path, tmp_path: Path, exported: Exported) -> None:
    most = exported.size_bytes
    found = export_run(run, tmp_path / "run.html", size_bytes=most, most_steps=12)
    assert found.size_bytes <= most
    assert re.search(r"Of 12 recorded steps [2-9] can be looked into", " ".join(found.thinned))


def test_raw_values_are_left_out_before_a_step_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 4000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"project": "tests", "name": "wide", "root": tmp_path, "every": 1, "samples": 8}
    with backlight.watch(model, optimizer, **options) as run:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 2)).square().mean().backward()
            optimizer.step()
    whole = export_run(run.path, tmp_path / "whole.html")
    least = export_run(run.path, tmp_path / "less.html", size_bytes=whole.size_bytes - 500_000)
    assert least.size_bytes <= whole.size_bytes - 500_000
    assert "Raw values are there of" in " ".join(least.thinned)
    assert "can be looked into" not in " ".join(least.thinned)


@pytest.mark.slow
def test_exponents_at_other_steps_are_one_click_away(browser: Browser, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=tmp_path, project="p", name="few", every=1) as run:
        for _ in range(13):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
    file = export_run(run.path, tmp_path / "few.html").path.as_uri()
    with watched_page(browser, file, offline=True) as (page, _):
        page.goto(f"{file}#/p/few/numerics?step=3")
        there = page.get_by_label("Exponent histograms").get_by_role("button")
        expect(there).to_have_text(["0", "6", "12"])
        there.nth(1).click()
        expect(page.get_by_label("step", exact=True).first).to_have_value("6")
        expect(page.get_by_label("Exponent histograms").get_by_text("weight").first).to_be_visible()


def test_exponents_are_of_steps_far_apart(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=tmp_path, project="p", name="kinds", every=1) as r:
        for step in range(13):
            with r.step(kind=f"kind {step % 4}"):
                model(torch.ones(3, 2)).sum().backward()
                optimizer.step()
    told = " ".join(export_run(r.path, tmp_path / "kinds.html").thinned)
    assert "Histograms of exponents are there of steps 0, 6, 12." in told


def test_a_run_without_a_step_is_exported(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, project="tests", name="empty", root=tmp_path) as run:
        pass
    exported = export_run(run.path, tmp_path / "empty.html")
    assert exported.path.stat().st_size == exported.size_bytes


def test_a_project_is_not_a_run(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BacklightError, match="is not a run: pass one, such as"):
        export_run(run.parent, tmp_path / "run.html")


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_offline(page: Page, view: str) -> None:
    page.evaluate("place => { location.hash = place }", f"#/tests/small/{view}?site=0:out.0")
    expect(page.get_by_role("main")).to_have_attribute("aria-label", view, ignore_case=True)
    page.locator("main canvas").first.wait_for()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.slow
def test_the_file_opens_at_its_run(page: Page) -> None:
    expect(page.get_by_role("complementary", name="About this file")).to_contain_text(
        "Of 12 recorded steps 5 can be looked into"
    )
    expect(page).to_have_title("tests/small · Backlight")


@pytest.mark.slow
def test_only_kept_steps_are_offered(page: Page) -> None:
    page.locator("main canvas").first.wait_for()
    step = page.locator("input[type=text], input:not([type])").first
    expect(step).to_have_value("11")
    seen = ["11"]
    while seen[-1] != "0":
        page.keyboard.press("ArrowLeft")
        expect(step).not_to_have_value(seen[-1])
        seen.append(step.input_value())
    assert len(seen) == 5


@pytest.mark.slow
def test_a_hostile_name_is_text(page: Page) -> None:
    page.locator("main canvas").first.wait_for()  # before that nobody listens to the keys
    page.keyboard.press("/")
    expect(page.get_by_placeholder(re.compile(r"Search \d+ sites"))).to_be_focused()
    page.keyboard.type("onerror")
    expect(page.get_by_role("option", name=HOSTILE)).to_have_count(1)
    assert page.locator("img").count() == 0
