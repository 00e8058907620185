"""Views of all tensors follow the chosen sample: what they show is of it, or said not to be."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import cut_words, viewer, wait_until_still, watched_page
from playwright.sync_api import Browser, Locator, Page, expect
from torch import nn

import backlight
from backlight.export import export_run
from backlight.serve.flow import flow_at
from backlight.serve.graphs import Graphs, moment
from backlight.serve.kept_values import ValueFiles
from backlight.serve.one_sample import OneSample
from backlight.store.reader import RunReader

pytestmark = pytest.mark.slow

STEP = 3
SAMPLE = "1"
GRAPH = "[role=application][aria-label^='Graph of'] > canvas"
CELLS = "[role=img][aria-label^='Heatmap of'] canvas"


class Residual(nn.Module):
    """A skip connection, so that gradients fork."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return x + self.out(torch.tanh(x))


def record(root: Path, name: str, **options: object) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Residual(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters())
    asked = {"project": "net", "name": name, "root": root, "every": 1, **options}
    with backlight.watch(model, optimizer, **asked) as run:
        for _ in range(5):
            batch = torch.randn(8, 4) * torch.tensor([1.0, 40.0, 1, 1, 1, 1, 1, 1])[:, None]
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    record(root, "sampled", samples=3)
    record(root, "cut", samples=3, neurons=1)
    record(root, "without")
    return root


@pytest.fixture(scope="module")
def reader(runs: Path) -> RunReader:
    reader = RunReader(runs / "net" / "sampled")
    reader.refresh()
    return reader


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with viewer(runs) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with watched_page(browser, address, accept_downloads=True) as (page, _):
        yield page


def saved(page: Page, canvas: Locator) -> list[dict[str, str]]:
    """The numbers of a picture, by its menu."""
    canvas.click(button="right", position={"x": 5, "y": 5})
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Save as CSV").click()
    return list(csv.DictReader(io.StringIO(waiting.value.path().read_text())))


def numbers_of(reader: RunReader, statistic: str, sample: str | None) -> dict[str, float]:
    asked = {"quantity": "grad", "statistic": statistic}
    if sample is None:
        rows = moment(reader, STEP, **asked)
    else:
        rows = OneSample(reader, ValueFiles(), sample).moment(STEP, **asked)
    sites = reader.sites()
    names = dict(zip(sites["site"].to_pylist(), sites["name"].to_pylist(), strict=True))
    return {names[row["site"]]: row["value"] for row in rows.to_pylist()}


def test_the_graph_shows_the_sample_and_then_the_batch(page: Page, reader: RunReader) -> None:
    page.goto(f"#/net/sampled/graph?step={STEP}&quantity=grad&statistic=norm&sample={SAMPLE}")
    expect(page.get_by_role("application", name=re.compile("grad, norm, sample 1"))).to_be_visible()
    canvas = wait_until_still(page, GRAPH)
    rows = saved(page, canvas)
    expected = numbers_of(reader, "norm", SAMPLE)
    whole = numbers_of(reader, "norm", None)
    assert len(rows) >= 3
    for row in rows:
        assert float(row["value"]) == expected[row["site"]] != whole[row["site"]]
    page.keyboard.press(",")
    page.keyboard.press(",")
    page.keyboard.press(",")
    expect(page.get_by_label("Sample", exact=True)).to_have_value("")
    expect(page.get_by_role("application", name=re.compile("grad, norm. Arrow"))).to_be_visible()
    wait_until_still(page, GRAPH)
    for row in saved(page, canvas):
        assert float(row["value"]) == whole[row["site"]]


def test_the_graph_says_what_it_does_not_have_of_a_sample(page: Page) -> None:
    statement = page.get_by_role("main").get_by_role("status")
    page.goto(f"#/net/sampled/graph?step={STEP}&statistic=dead_share&sample={SAMPLE}")
    expect(statement.get_by_text("dead is told of whole batches alone")).to_be_visible()
    canvas = wait_until_still(page, GRAPH)
    assert saved(page, canvas) == []
    page.goto(f"#/net/sampled/graph?step={STEP}&quantity=update&sample={SAMPLE}")
    expect(statement.get_by_text("update is of parameters, which have no samples")).to_be_visible()
    page.goto(f"#/net/sampled/graph?step={STEP}&sample=6")
    expect(statement.get_by_text("Nothing of sample 6 was recorded at step 3")).to_be_visible()
    page.goto(f"#/net/cut/graph?step={STEP}&statistic=min&sample={SAMPLE}")
    expect(statement.get_by_text("not all values of a tensor were kept")).to_be_visible()
    page.goto(f"#/net/without/graph?step={STEP}&sample={SAMPLE}")
    expect(statement.get_by_text("watch(…, samples=8) keeps 8")).to_be_visible()
    page.get_by_role("button", name="Show all samples").click()
    expect(page).not_to_have_url(re.compile("sample="))
    expect(statement.get_by_text("samples=8")).to_have_count(0)


def test_the_heatmap_shows_the_sample(page: Page, reader: RunReader) -> None:
    page.goto(f"#/net/sampled/heatmap?step={STEP}&quantity=grad&statistic=norm&sample={SAMPLE}")
    expect(page.get_by_role("application", name=re.compile("grad, norm, sample 1"))).to_be_visible()
    rows = saved(page, wait_until_still(page, CELLS))
    expected = numbers_of(reader, "norm", SAMPLE)
    assert {row["site"] for row in rows} == set(expected)
    for row in rows:
        assert float(row[f"step {STEP}"]) == expected[row["site"]]
    # Parameters have no samples, and are not among its rows.
    expect(page.get_by_role("group", name="Tensor classes")).not_to_contain_text("parameter")
    page.goto("#/net/sampled/heatmap?statistic=batch_std&sample=1")
    expect(page.get_by_role("main")).to_contain_text("batch std is told of whole batches alone")
    expect(page.locator(CELLS)).to_have_count(0)
    page.goto("#/net/sampled/heatmap?sample=6")
    expect(page.get_by_role("main")).to_contain_text("Nothing of sample 6 was recorded")


def test_numerics_are_of_the_sample_where_all_of_it_was_kept(page: Page) -> None:
    page.goto(f"#/net/sampled/numerics?step={STEP}&sample={SAMPLE}&filter=^0:out")
    cards = page.get_by_label("Exponent histograms")
    expect(cards).to_contain_text("value at step 3, sample 1")
    with page.expect_download() as waiting:
        cards.get_by_label("Menu of the plot").first.click()
        page.get_by_role("menuitem", name="Save as CSV").click()
    rows = list(csv.reader(io.StringIO(waiting.value.path().read_text())))
    counted = sum(float(each) for row in rows[1:] for each in row[1:] if each)
    assert counted == 6, "a sample of it has six elements, its batch has 48"
    losses = page.get_by_role("application", name=re.compile("Heatmap of .*, sample 1: 1 sites"))
    expect(losses).to_be_visible()
    page.goto(f"#/net/cut/numerics?step={STEP}&sample={SAMPLE}")
    expect(cards).to_contain_text("not all values of a tensor were kept at step 3")
    page.goto(f"#/net/sampled/numerics?step={STEP}&sample={SAMPLE}&quantity=update")
    expect(cards).to_contain_text("update is of parameters, which have no samples")


def test_the_flow_is_of_the_sample(page: Page, reader: RunReader) -> None:
    page.goto(f"#/net/sampled/flow?step={STEP}&level=modules&sample={SAMPLE}")
    picture = page.get_by_role("application", name=re.compile("Gradient flow at step 3, sample 1"))
    expect(picture).to_be_visible()
    expect(page.get_by_role("application", name=re.compile("gradient norm"))).to_be_visible()
    with page.expect_download() as waiting:
        page.locator(".now .box").hover()
        page.locator(".now").get_by_label("Menu of the plot").click()
        page.get_by_role("menuitem", name="Save as CSV").click()
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text())))
    [shown] = [float(row["share"]) for row in rows if row["skip"] == "true"]
    one = OneSample(reader, ValueFiles(), SAMPLE)
    parts = [
        next(each["share"] for each in told["links"] if each["is_copy"] and each["part"] < 1)
        for told in (
            flow_at(reader, Graphs(), STEP, sample=one),
            flow_at(reader, Graphs(), STEP),
        )
    ]
    assert shown == pytest.approx(parts[0])
    assert shown != pytest.approx(parts[1], rel=1e-3)
    page.goto(f"#/net/sampled/flow?step={STEP}&sample=6")
    expect(page.get_by_role("main")).to_contain_text("Nothing of sample 6 was recorded")
    expect(picture).to_have_count(0)


def test_the_inspector_says_that_its_histogram_is_of_the_batch(page: Page) -> None:
    page.goto(f"#/net/sampled/graph?step={STEP}&site=0:out.0&sample={SAMPLE}")
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text(f"of sample {SAMPLE}")
    expect(inspector.get_by_text("histogram of the batch").first).to_be_visible()
    page.goto(f"#/net/sampled/graph?step={STEP}&site=0:out.0")
    expect(inspector.get_by_text("histogram of")).to_have_count(0)


@pytest.mark.parametrize("view", ["heatmap", "graph", "numerics", "tensor"])
def test_no_word_is_cut_where_a_sample_is_chosen(page: Page, view: str) -> None:
    page.goto(f"#/net/sampled/{view}?step={STEP}&site=1.fc:out.0&sample={SAMPLE}")
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector.get_by_text("histogram of the batch").first).to_be_visible()
    page.locator("main canvas").first.wait_for()
    assert cut_words(page) == []


def test_a_chosen_sample_stands_out_among_the_others(page: Page) -> None:
    page.goto(f"#/net/sampled/tensor?step={STEP}&site=0:out.0&tab=samples&sample={SAMPLE}")
    plot = page.get_by_role("figure", name="mean over steps").first
    expect(plot).to_contain_text(f"sample {SAMPLE}")
    items = plot.locator("li")
    chosen = items.filter(has_text=f"sample {SAMPLE}").locator("i")
    expect(chosen).to_have_attribute("style", re.compile("--accent"))
    others = items.filter(has_not_text=f"sample {SAMPLE}").locator("i")
    assert others.count() > 0
    for other in others.all():
        expect(other).to_have_attribute("style", re.compile("--faint"))


def test_an_exported_file_says_that_it_has_whole_batches_here(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    file = export_run(runs / "net" / "sampled", tmp_path / "run.html", most_steps=3).path.as_uri()
    with watched_page(browser, file, offline=True) as (page, _):
        for view in ("graph", "heatmap", "numerics", "flow"):
            page.goto("about:blank")
            page.goto(f"{file}#/net/sampled/{view}?sample={SAMPLE}")
            statement = page.get_by_text("This file has whole batches here, not sample 1")
            expect(statement).to_be_visible()
        page.get_by_role("button", name="Show all samples").click()
        expect(statement).to_have_count(0)
        expect(page.get_by_role("application", name=re.compile("Gradient flow"))).to_be_visible()
