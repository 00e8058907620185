"""Numerics, Flow and Compare in a real browser, on real runs."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest
import torch
from browser import (
    held_back,
    viewer,
    wait_for_answers,
    wait_until_drawn,
    wait_until_still,
    watched_page,
)
from playwright.sync_api import Browser, Page, expect
from sample_runs import write_sample_run
from torch import nn

import backlight
from backlight.serve.compare import structure_of
from backlight.serve.graphs import Graphs
from backlight.store.reader import RunReader

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
STEPS, CHANGED = 12, 7


class Block(nn.Module):
    """A residual block, so that there is a skip connection to see."""

    def __init__(self, *, gated: bool = False) -> None:
        super().__init__()
        self.norm, self.fc, self.out = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.gate = nn.Linear(8, 8) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.out(torch.relu(self.fc(self.norm(x))))
        return x + (made if self.gate is None else made * self.gate(x))


def record(
    root: Path,
    name: str,
    *,
    later_lr: float = 0.05,
    depth: int = 2,
    gated: Container[int] = (),
    nested: bool = False,
) -> None:
    torch.manual_seed(0)
    blocks = {str(i): Block(gated=i in gated) for i in range(depth)}
    model = nn.Sequential()
    inner = nn.Sequential() if nested else model
    inner.add_module("embed", nn.Linear(4, 8))
    inner.add_module("blocks", nn.Sequential(*blocks.values()))
    if nested:
        model.add_module("backbone", inner)
    model.add_module("head", nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1)
    with backlight.watch(
        model,
        optimizer,
        root=root,
        project="net",
        name=name,
        schedule=lambda step: True,
        config={"later_lr": later_lr},
    ) as run:
        for step in range(STEPS):
            if step == CHANGED:
                optimizer.param_groups[0]["lr"] = later_lr
            optimizer.zero_grad()
            hidden = model(torch.randn(16, 4, generator=data))
            loss = run.tensor(HOSTILE, hidden).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    record(root, "base")
    record(root, "hot", later_lr=0.2)
    record(root, "deep", depth=3)
    record(root, "tall", depth=16)
    record(root, "gated", depth=16, gated=(1, 4, 6, 9, 12))
    record(root, "nested", nested=True)
    write_sample_run(root, project="other", name="broken", steps=40, sites=24, with_nan=True)
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with viewer(root) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with watched_page(browser, address, accept_downloads=True) as (page, _):
        yield page


def test_numerics_shows_exponents_and_what_formats_lose(page: Page) -> None:
    page.goto("#/net/base/numerics?quantity=grad&filter=blocks.1")
    card = page.get_by_role("article", name="Exponents of blocks.1.fc:out.0")
    wait_until_drawn(page, "article canvas")
    expect(card.get_by_role("row", name=re.compile("fp8 e4m3fn"))).to_contain_text("%")
    heatmap = page.get_by_role("application", name=re.compile("Heatmap of overflow"))
    expect(heatmap).to_be_visible()
    page.get_by_label("Format", exact=True).select_option("float16")
    expect(page).to_have_url(re.compile("format=float16"))
    expect(page.get_by_role("application", name=re.compile("fp16, grad"))).to_be_visible()
    page.get_by_label("Scale", exact=True).select_option("best")
    expect(page.get_by_role("application", name=re.compile("best scale each"))).to_be_visible()
    page.get_by_text("Formats").click()
    page.get_by_label("float8_e3m4").check()
    expect(card.get_by_role("row", name=re.compile("fp8 e3m4"))).to_be_visible()
    page.reload()
    expect(card.get_by_role("row", name=re.compile("fp8 e3m4"))).to_be_visible()


def test_numerics_follows_the_selection_and_changes_it(page: Page) -> None:
    page.goto("#/net/base/numerics?step=3&filter=head")
    cards = page.get_by_label("Exponent histograms")
    expect(cards).to_contain_text("at step 3")
    page.keyboard.press("ArrowRight")
    expect(cards).to_contain_text("at step 4")
    cards.get_by_role("button", name=re.compile("head:out.0")).click()
    expect(page).to_have_url(re.compile(r"site=head%3Aout\.0"))
    curve = page.get_by_role("figure", name="loss over steps").locator(".u-over")
    box = curve.bounding_box()
    assert box is not None
    curve.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(cards).to_contain_text(re.compile("at step [56]"))
    page.keyboard.press("p")
    page.get_by_label("Which sites").select_option("pins")
    expect(cards.get_by_role("article")).to_have_count(1)


def test_numerics_keeps_nan_apart(page: Page) -> None:
    page.goto("#/other/broken/numerics?filter=attn.weight$")
    card = page.get_by_role("article").first
    expect(card.get_by_role("img")).to_have_attribute("aria-label", re.compile("3 infinite, 7 NaN"))
    page.goto("#/other/broken/numerics?filter=nothing-like-this")
    expect(page.get_by_text("No site passes this filter.").first).to_be_visible()


def test_flow_shows_the_skip_connection(page: Page) -> None:
    page.goto("#/net/base/flow?step=5")
    flow = page.get_by_role("application", name=re.compile("Gradient flow at step 5"))
    expect(flow.get_by_text("+ blocks.0", exact=True)).to_be_visible()
    flow.locator(".path").first.hover(force=True)
    expect(page.get_by_role("tooltip")).to_contain_text("%")
    flow.get_by_text("blocks.1.fc", exact=True).click()
    expect(page).to_have_url(re.compile(r"site=blocks\.1\.fc%3Aout\.0"))
    page.get_by_role("button", name="at the selected").click()
    expect(page).to_have_url(re.compile("origin=selected"))
    expect(flow.get_by_text("embed", exact=True)).to_have_count(0)
    page.get_by_role("button", name="blocks", exact=True).click()
    page.get_by_role("button", name="at the first tensors").click()
    expect(flow.get_by_text("blocks.0", exact=True)).to_be_visible()
    flow.focus()
    page.keyboard.press("ArrowUp")
    expect(page).not_to_have_url(re.compile(r"site=blocks\.1\.fc%3Aout\.0"))


def test_flow_finds_blocks_that_are_nested(page: Page) -> None:
    page.goto("#/net/nested/flow?step=5&level=blocks")
    flow = page.get_by_role("application", name=re.compile("Gradient flow at step 5"))
    for block in ("backbone.embed", "backbone.blocks.0", "backbone.blocks.1", "head"):
        expect(flow.get_by_text(block, exact=True)).to_be_visible()
    expect(flow.get_by_text("backbone", exact=True)).to_have_count(0)
    flow.get_by_text("backbone.blocks.1", exact=True).click()
    expect(flow.get_by_text("backbone.blocks.1.fc", exact=True)).to_be_visible()
    expect(flow.get_by_text("backbone.blocks.0.fc", exact=True)).to_have_count(0)


def test_flow_over_time(page: Page) -> None:
    page.goto("#/net/base/flow")
    expect(
        page.get_by_role("application", name=re.compile("Heatmap of gradient norm"))
    ).to_be_visible()
    page.get_by_role("button", name="share over skips").click()
    skips = page.get_by_role(
        "application", name=re.compile("share over skips: 2 tensors, 12 steps")
    )
    expect(skips).to_be_visible()
    with page.expect_download() as download:
        page.locator(".now .box").hover()
        page.locator(".now").get_by_label("Menu of the plot").click()
        page.get_by_role("menuitem", name="Save as CSV").click()
    text = Path(download.value.path()).read_text()
    assert text.splitlines()[0] == "from,to,share,skip,estimated"
    assert "loss" in text


def test_flow_says_why_it_is_empty(page: Page) -> None:
    page.goto("#/other/broken/flow")
    expect(page.get_by_role("main")).to_contain_text("no dependency graph")


def test_compare_says_where_runs_part(page: Page) -> None:
    page.goto("#/net/base/compare?with=net/hot")
    parts = page.get_by_label("Where they part")
    expect(parts).to_contain_text(f"first differ at step {CHANGED}, embed.weight, update")
    expect(page.get_by_role("figure", name="loss over steps")).to_contain_text("net/hot")
    parts.get_by_role("button", name=re.compile("step 7")).first.click()
    expect(page).to_have_url(re.compile("step=7.*site=embed.weight.*quantity=update"))
    page.get_by_role("button", name="Differences").click()
    expect(page.get_by_role("application", name=re.compile("log2 ratio of update"))).to_be_visible()
    page.keyboard.press("e")
    expect(page.get_by_role("figure", name=re.compile("embed.weight: update"))).to_be_visible()
    expect(page.get_by_role("img", name="Distribution of embed.weight in net/hot")).to_be_visible()
    page.keyboard.press("e")
    expect(page.get_by_label("Configuration")).to_contain_text("later_lr0.050000.2000")


def test_compare_shows_what_is_only_in_one(page: Page) -> None:
    page.goto("#/net/base/compare?with=net/deep&compare=structure")
    expect(page.get_by_label("Modules")).to_contain_text("+blocks.2")
    expect(page.get_by_label("Edges of the graph")).to_contain_text("→")
    expect(page.get_by_label("Where they part")).to_contain_text("12 common steps")


UNION = "[role=application][aria-label^='Graph of both runs'] > canvas"


def in_colour(page: Page, name: str) -> int:
    """How many pixels of the picture of both runs have exactly one of the page's colours."""
    found: int = page.evaluate(
        """([selector, name]) => {
            const canvas = document.querySelector(selector);
            const hex = getComputedStyle(canvas).getPropertyValue(name).trim();
            const wanted = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const context = copy.getContext("2d");
            context.drawImage(canvas, 0, 0);
            const { data } = context.getImageData(0, 0, copy.width, copy.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4)
                count += Number(wanted.every((part, at) => data[i + at] === part));
            return count;
        }""",
        [UNION, name],
    )
    return found


def union_label(page: Page, run: str, other: str, root: Path) -> re.Pattern[str]:
    """What the picture is called, with the numbers that the lists are made of."""
    readers = [RunReader(root / "net" / name) for name in (run, other)]
    for reader in readers:
        reader.refresh()
    edges = structure_of(*readers, Graphs(), STEPS - 1)["edges"]
    counts = f"{edges['both']} edges in both, {len(edges['one'])} and {len(edges['other'])} only"
    return re.compile(f"Graph of both runs: .*; {counts}")


def test_compare_draws_both_graphs_as_one(page: Page, root: Path) -> None:
    page.goto("#/net/base/compare?with=net/hot&compare=structure")
    same = page.get_by_role("application", name=union_label(page, "base", "hot", root))
    expect(same).to_have_accessible_name(re.compile(r"tensors in both, 0 only in net/base, 0 only"))
    wait_until_still(page, UNION)
    plain = in_colour(page, "--line-1")
    page.goto("#/net/base/compare?with=net/deep&compare=structure")
    expect(
        page.get_by_role("application", name=union_label(page, "base", "deep", root))
    ).to_be_visible()
    page.get_by_role("button", name="open what differs").click()
    expect(page).to_have_url(re.compile("toggled="))
    wait_until_still(page, UNION)
    assert in_colour(page, "--line-1") > plain + 100
    page.locator(UNION).click(button="right", position={"x": 5, "y": 5})
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save as CSV").click()
    rows = [line.split(",") for line in Path(download.value.path()).read_text().splitlines()[1:]]
    told = {name: whose for name, whose in rows if HOSTILE not in name}
    assert told["embed:out.0"] == "both"
    assert told["blocks.2.fc:out.0"] == "other"
    assert {name for name, whose in told.items() if whose == "other"} == {
        name for name in told if name.startswith("blocks.2")
    }
    assert "one" not in told.values()
    key = page.get_by_role("note", name=re.compile("Whose is what"))
    expect(key).to_contain_text("+only in net/deep")
    expect(key).to_contain_text("−only in net/base")
    # The lists stay beside it.
    expect(page.get_by_label("Modules")).to_contain_text("+blocks.2")


def test_compare_goes_from_difference_to_difference(page: Page) -> None:
    page.goto("#/net/tall/compare?with=net/gated&compare=structure")
    wait_until_drawn(page, UNION)
    page.get_by_role("button", name="open what differs").click()
    which = page.get_by_role("status", name="Difference")
    expect(which).to_have_text("blocks.1.gate 1 of 5")
    wait_until_still(page, UNION)
    framed = in_colour(page, "--line-1")
    # The key works on the button too, which is another one by now.
    page.keyboard.press("d")
    expect(which).to_have_text("blocks.4.gate 2 of 5")
    wait_until_still(page, UNION)
    assert in_colour(page, "--line-1") == pytest.approx(framed, rel=0.2)
    page.keyboard.press("Shift+D")
    page.keyboard.press("Shift+D")
    expect(which).to_have_text("blocks.12.gate 5 of 5")
    page.get_by_role("button", name="Next difference").click()
    expect(which).to_have_text("blocks.1.gate 1 of 5")
    # One is larger than all five are where the whole picture is seen.
    page.get_by_role("button", name="fit", exact=True).click()
    wait_until_still(page, UNION)
    assert framed > 1.5 * in_colour(page, "--line-1")


def test_a_click_in_the_picture_of_both_selects_the_site(page: Page) -> None:
    page.goto("#/net/base/compare?with=net/deep&compare=structure")
    canvas = wait_until_still(page, UNION)
    box = canvas.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.3)
    expect(page).to_have_url(re.compile("site="))
    before = page.url
    page.locator("[aria-label^='Graph of both runs']").focus()
    page.keyboard.press("ArrowDown")
    expect(page).not_to_have_url(before)
    page.goto("#/net/base/compare?with=net/deep&compare=structure&site=blocks.2.fc:out.0")
    bar = page.get_by_label("Selection", exact=True)
    expect(bar).to_contain_text("is not in this run")


def test_of_a_run_without_a_graph_no_picture_of_both_is_drawn(page: Page) -> None:
    page.goto("#/net/base/compare?with=other/broken&compare=structure")
    expect(page.get_by_role("main")).to_contain_text("other/broken has no dependency graph")
    expect(page.locator(UNION)).to_have_count(0)
    expect(page.get_by_label("Sites")).to_contain_text("only in other/broken")


def test_compare_from_the_list_and_from_a_run(page: Page) -> None:
    page.goto("")
    page.get_by_label("Compare net/base").check(force=True)
    page.get_by_label("Compare net/hot").check(force=True)
    page.get_by_role("button", name="Compare C").click()
    expect(page).to_have_url(re.compile("#/net/base/compare.with=net%2Fhot"))
    page.goto("#/net/deep/overview")
    page.get_by_role("main", name="Overview").wait_for()
    page.keyboard.press("c")
    page.get_by_role("button", name="net / hot").click()
    expect(page).to_have_url(re.compile("#/net/deep/compare.with=net%2Fhot"))
    page.keyboard.press("c")
    page.get_by_role("dialog").get_by_text("broken").click()
    expect(page.get_by_label("Where they part")).to_contain_text("12 common steps of 12 and 40")
    page.get_by_role("button", name="Compare no longer with other/broken").click()
    expect(page.get_by_label("Where they part")).not_to_contain_text("broken")


def test_a_run_is_left_before_the_code_of_its_view_is_there(page: Page) -> None:
    page.goto("#/net/base/overview")
    page.get_by_role("main", name="Overview").wait_for()
    with held_back(page, "**/assets/Compare*.js"):
        with page.expect_request("**/assets/Compare*.js"):
            page.goto("#/net/base/compare?with=net/hot")
        page.goto("#/net/deep/overview")
        expect(page.get_by_role("main", name="Overview")).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_role("button", name="net / hot")).to_be_visible()


def test_a_run_that_is_gone_is_one_sentence(browser: Browser, address: str) -> None:
    with watched_page(browser, address) as (page, watch):
        page.goto("#/net/base/compare?with=net/gone")
        expect(page.get_by_role("alert").first).to_contain_text("There is no run 'net/gone'")
        wait_for_answers(page)
        watch.faults.clear()


def test_a_hostile_name_is_text_in_every_view(page: Page) -> None:
    from urllib.parse import quote

    site = quote(HOSTILE)
    page.goto(f"#/net/base/numerics?set=selected&site={site}")
    expect(page.get_by_role("article")).to_contain_text("onerror")
    page.goto(f"#/net/base/flow?site={site}")
    page.get_by_role("application", name=re.compile("Gradient flow")).wait_for()
    page.goto(f"#/net/base/compare?with=net/hot&compare=tensor&site={site}")
    expect(page.get_by_role("figure", name=re.compile("onerror"))).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
