from __future__ import annotations

import gzip
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sample_runs
from browser import (
    Watch,
    cut_words,
    picture,
    training,
    viewer,
    wait_for_answers,
    wait_for_other_picture,
    wait_until_drawn,
    wait_until_still,
    watched_page,
)
from graph_runs import block_tree, write_graph_run
from playwright.sync_api import Browser, Locator, Page, Response, expect
from sample_runs import SampleRun, make_sites, write_sample_run

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
SITE = "blocks.0.attn:out.0"
CELLS = "[role=img][aria-label^='Heatmap of'] canvas"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_sample_run(root, name="healthy", steps=120, sites=40)
    write_sample_run(root, name="broken", steps=60, sites=40, with_nan=True, end="failed", seed=1)
    write_sample_run(root, project="other", name="short", steps=3, sites=4, seed=2)
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with viewer(runs) as address:
        yield address


@pytest.fixture
def watched(browser: Browser, address: str) -> Iterator[tuple[Page, Watch]]:
    with watched_page(browser, address) as watched:
        yield watched


@pytest.fixture
def page(watched: tuple[Page, Watch]) -> Page:
    return watched[0]


def step_field(page: Page) -> Locator:
    return page.get_by_label("step", exact=True).first


def step_of(page: Page) -> int:
    return int(step_field(page).input_value().replace(",", ""))


def expect_step(page: Page, step: int) -> None:
    """The page shows the step as soon as it knows it: a kind's steps are asked for first."""
    expect(step_field(page)).to_have_value(str(step))


def spoken(page: Page) -> Locator:
    """What the graph says of the selection; what is being loaded is a status too."""
    return page.get_by_role("status").and_(page.locator(".visually-hidden"))


def heatmap(page: Page) -> Locator:
    return wait_until_drawn(page, CELLS)


# The list of runs


def test_runs_are_listed_by_project(page: Page) -> None:
    page.goto("./")
    expect(page.get_by_role("region", name="Project demo").get_by_role("link")).to_have_count(2)
    broken = page.get_by_role("link", name="broken")
    expect(broken).to_contain_text("failed")
    expect(broken).to_contain_text("NaN")
    expect(page.get_by_role("link", name="healthy")).to_contain_text("119")


def test_runs_are_searched_and_opened_by_keyboard(page: Page) -> None:
    page.goto("./")
    expect(page.get_by_role("link", name="healthy")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("short")
    expect(page.locator("main").get_by_role("link")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="short")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/other/short/overview$"))
    expect(page.get_by_role("region", name="Recording")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="healthy")).to_be_visible()


def test_no_runs_shows_how_to_get_one(browser: Browser, tmp_path: Path) -> None:
    with viewer(tmp_path) as address, watched_page(browser, address) as (page, _):
        page.goto("./")
        expect(page.get_by_text("run = backlight.watch(model, optimizer)")).to_be_visible()
        expect(page.get_by_text("backlight demo")).to_be_visible()


def test_a_run_that_cannot_be_read_is_one_line(browser: Browser, root: Path) -> None:
    write_sample_run(root, name="whole", steps=3, sites=4)
    torn = write_sample_run(root, name="torn", steps=3, sites=4)
    (torn / "run.json").write_text("{")
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("./")
        expect(page.get_by_role("link", name="whole")).to_be_visible()
        expect(page.get_by_label("Problems")).to_contain_text("torn/run.json")


# Live


def test_a_run_without_a_step_says_so(browser: Browser, root: Path) -> None:
    run = SampleRun(root, "demo", "new", sites=8, seed=0)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/new/heatmap")
        quantity = page.get_by_label("Quantity")
        expect(quantity).to_be_disabled()
        expect(quantity).to_contain_text("no step recorded yet")
        expect(page.get_by_text("No step recorded yet.")).to_be_visible()
        run.append_step(0)
        expect(quantity).to_be_enabled()
        expect(
            page.get_by_role("application", name="Heatmap of value, rms: 8 sites")
        ).to_be_visible()
    run.end("finished")


def test_a_run_is_followed_while_it_is_written(browser: Browser, root: Path) -> None:
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("./")
        expect(page.get_by_text("No runs yet")).to_be_visible()
        with training(root, "--name", "now") as trainer:
            row = page.get_by_role("link", name="now")
            expect(row).to_contain_text("live")
            row.click()
            expect(page.get_by_role("button", name="follow")).to_have_attribute(
                "aria-pressed", "true"
            )
            expect(page.get_by_label("loss over steps")).to_be_visible()
            first = step_of(page)
            page.wait_for_function(
                """step => Number(document.querySelector("#selected-step").value) > step + 2""",
                arg=first,
            )
            page.get_by_role("link", name="Heatmap", exact=True).click()
            page.get_by_role("application", name="Heatmap").wait_for()
            before = page.locator("[role=application]").get_attribute("aria-label")
            expect(page.locator("[role=application]")).not_to_have_attribute(
                "aria-label", before or ""
            )
            trainer.send_signal(signal.SIGINT)
            expect(page.get_by_text("finished")).to_be_visible()


def test_a_killed_trainer_is_plainly_stopped(browser: Browser, root: Path) -> None:
    with (
        viewer(root) as address,
        watched_page(browser, address) as (page, _),
        training(root, "--name", "killed") as trainer,
    ):
        page.goto("#/demo/killed/overview")
        expect(page.locator("header").get_by_text("live")).to_be_visible()
        trainer.kill()
        expect(page.locator("header").get_by_text("stopped")).to_be_visible()


def test_a_lost_connection_is_shown(browser: Browser, runs: Path) -> None:
    with viewer(runs) as address:
        opened = watched_page(browser, address)
        page, watch = opened.__enter__()
        page.goto("#/demo/healthy/overview")
        expect(page.get_by_label("loss over steps")).to_be_visible()
    expect(page.get_by_text("connection lost")).to_be_visible()
    with viewer(runs, port=urlsplit(address).port or 0):
        expect(page.get_by_text("connection lost")).to_be_hidden()
        watch.faults[:] = [fault for fault in watch.faults if "ERR_" not in fault]
        opened.__exit__(None, None, None)


def test_a_viewer_that_comes_back_answers_what_was_asked_meanwhile(
    browser: Browser, runs: Path
) -> None:
    with viewer(runs) as address:
        opened = watched_page(browser, address)
        page, watch = opened.__enter__()
        page.goto("#/demo/healthy/tensor?site=blocks.0.attn:out.0&step=40")
        expect(page.locator("main")).to_contain_text("rms")
    page.keyboard.press("4")  # a view whose code is not there yet
    expect(page.get_by_text("The page could not be loaded. Is the viewer still")).to_be_visible()
    with viewer(runs, port=urlsplit(address).port or 0):
        wait_until_drawn(page, CELLS)
        watch.faults[:] = [fault for fault in watch.faults if "ERR_" not in fault]
        opened.__exit__(None, None, None)


def test_a_run_that_is_yet_to_be_written_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    with viewer(tmp_path) as address, watched_page(browser, address) as (page, watch):
        page.goto("#/demo/soon/overview")
        expect(page.get_by_role("alert")).to_contain_text("no run")
        with training(tmp_path, "--name", "soon"):
            expect(page.get_by_label("loss over steps")).to_be_visible()
        watch.faults[:] = [fault for fault in watch.faults if "404" not in fault]


def test_what_is_no_step_is_not_taken_for_one(page: Page) -> None:
    page.goto("#/demo/healthy/overview?step=40")
    field = page.get_by_label("step", exact=True)
    for typed, there in (("abc", "40"), ("50", "50")):
        field.fill(typed)
        field.press("Enter")
        expect(field).to_have_value(there)


# Overview


def test_overview_shows_scalars_cost_notes_and_settings(page: Page) -> None:
    page.goto("#/demo/healthy/overview")
    for name in ("loss over steps", "lr over steps"):
        wait_until_drawn(page, f"[aria-label='{name}'] canvas")
    expect(page.get_by_role("region", name="Recording")).to_contain_text("110 of 120")
    expect(page.get_by_role("region", name="Notes")).to_contain_text(
        "the learning rate is warm now"
    )
    expect(page.get_by_role("region", name="Config")).to_contain_text("optimizer.name")
    heatmap(page)
    page.get_by_title("Open the heatmap").click()
    expect(page).to_have_url(re.compile("/heatmap.quantity=grad&scale=relative$"))


def test_overview_says_where_the_first_nan_is(page: Page) -> None:
    page.goto("#/demo/broken/overview")
    link = page.get_by_role("link", name="first NaN or Inf: step 36")
    link.click()
    expect(page.get_by_role("heading", level=1)).not_to_be_empty()
    expect_step(page, 36)
    here = page.get_by_role("complementary", name="Inspector").get_by_label("Findings here")
    here.get_by_role("button", name="Not finite").click()
    expect(page.get_by_role("article", name="Not finite")).to_be_visible()


def test_overview_says_what_is_damaged(browser: Browser, root: Path) -> None:
    path = write_sample_run(root, name="damaged", steps=3, sites=4)
    file = next((path / "notes").iterdir())
    file.write_bytes(b"damage" * 20)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/damaged/overview")
        expect(page.get_by_label("Problems")).to_contain_text(file.name)


def test_a_click_on_a_plot_selects_the_step(page: Page) -> None:
    page.goto("#/demo/healthy/overview")
    wait_until_drawn(page, "[aria-label='loss over steps'] canvas")
    page.locator("[aria-label='loss over steps'] .u-over").click(position={"x": 5, "y": 40})
    expect(page).to_have_url(re.compile("step=[0-3]$"))


# Heatmap


def test_heatmap_changes_with_quantity_and_statistic(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap")
    before = picture(heatmap(page))
    page.get_by_label("Quantity").select_option("grad")
    page.get_by_label("Statistic").select_option("mean")
    expect(page.get_by_role("application", name="Heatmap of grad, mean: 28 sites")).to_be_visible()
    expect(page.get_by_role("img", name="Colours: grad, mean, robust scale")).to_be_visible()
    wait_for_other_picture(page, CELLS, before)


def test_heatmap_is_filtered_by_name_and_class(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap")
    expect(page.get_by_text("40 sites")).to_be_visible()
    page.get_by_label("Filter sites").fill(r"blocks\.[01]\.attn")
    expect(page.get_by_text("10 of 40 sites")).to_be_visible()
    page.get_by_role("button", name="output").click()
    expect(page.get_by_text("2 of 40 sites")).to_be_visible()
    page.get_by_label("Filter sites").fill("no such site")
    expect(page.get_by_text("No site passes this filter.")).to_be_visible()


def test_a_click_on_a_cell_opens_its_site(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap?filter=blocks.0.attn:out")
    cells = heatmap(page)
    cells.hover(position={"x": 3, "y": 3})
    expect(page.get_by_role("tooltip")).to_contain_text(SITE)
    cells.click(position={"x": 3, "y": 3})
    expect(page.get_by_role("heading", level=1, name=SITE)).to_be_visible()
    expect_step(page, 0)
    for quantity in ("value", "grad"):
        wait_until_drawn(page, f"[aria-label^='Distribution of the {quantity} over'] canvas")
    wait_until_drawn(page, "[aria-label='rms over steps'] canvas")


def test_heatmap_is_walked_with_the_keyboard(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap")
    heatmap(page)
    page.get_by_role("application").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.get_by_role("complementary", name="Inspector")).to_contain_text("embed.weight")
    expect_step(page, 114)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="embed.weight")).to_be_visible()
    expect_step(page, 114)
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", level=1, name="embed.weight:exp_avg")).to_be_visible()


def test_nan_is_marked_and_not_coloured(page: Page) -> None:
    def marks() -> int:
        script = """canvas => {
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            copy.getContext("2d").drawImage(canvas, 0, 0);
            const { data } = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height);
            const nan = 0xff6c00d6;
            return new Uint32Array(data.buffer).filter(pixel => pixel === nan).length;
        }"""
        found: int = heatmap(page).evaluate(script)
        return found

    page.goto("#/demo/broken/heatmap?quantity=grad")
    assert marks() > 1000
    page.goto("#/demo/healthy/heatmap?quantity=grad")
    expect(page.get_by_role("button", name="healthy")).to_be_visible()
    assert marks() == 0


@pytest.mark.parametrize("query", ["", f"?site={SITE}"])
def test_tools_of_the_heatmap_are_on_one_line(browser: Browser, address: str, query: str) -> None:
    with watched_page(browser, address, viewport={"width": 1280, "height": 720}) as (page, _):
        page.goto("#/demo/healthy/overview")
        page.goto(f"#/demo/healthy/heatmap{query}")
        heatmap(page)
        expect(page.get_by_role("row", name="rms")).to_have_count(1 if query else 0)
        legend = page.get_by_role("img", name="Colours").bounding_box()
        search = page.get_by_label("Filter sites").bounding_box()
        assert legend is not None
        assert search is not None
        assert legend["y"] < search["y"] + search["height"]
        main = page.locator("main").bounding_box()
        assert main is not None
        assert legend["x"] + legend["width"] <= main["x"] + main["width"]


# Tensor and inspector


def test_inspector_has_the_numbers_of_the_selected_step(page: Page) -> None:
    page.goto(f"#/demo/healthy/overview?site={SITE}&step=7")
    inspector = page.get_by_role("complementary", name="Inspector")
    row = inspector.get_by_role("row", name="abs mean")
    expect(row).to_be_visible()
    expect(inspector).to_contain_text("float32 16 × 16")
    before = row.inner_text()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("step=8&"))
    expect(row).not_to_have_text(before)
    page.keyboard.press("i")
    expect(row).to_be_hidden()


def test_axis_of_values_can_be_linear(page: Page) -> None:
    page.goto(f"#/demo/healthy/tensor?site={SITE}")
    selector = "[aria-label^='Distribution of the value over steps'] canvas"
    before = picture(wait_until_drawn(page, selector))
    page.get_by_role("button", name="linear").click()
    expect(page).to_have_url(re.compile("axis=linear"))
    wait_for_other_picture(page, selector, before)


def test_a_site_is_found_by_searching(page: Page) -> None:
    page.goto("#/demo/healthy/tensor")
    expect(page.get_by_text("once a site is selected")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("1 fc bias")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="blocks.1.fc.bias")).to_be_visible()


def test_a_tensor_is_chosen_from_a_list_where_none_is_selected(page: Page) -> None:
    page.goto("#/demo/healthy/tensor")
    page.get_by_label("Find a site to look at").fill(SITE)
    page.get_by_label("Sites", exact=True).get_by_role("button", name=SITE).click()
    expect(page).to_have_url(re.compile(r"site="))
    expect(page.get_by_label(re.compile("^Distribution of the value")).first).to_be_visible()


def test_the_share_of_zeros_is_the_same_beside_the_distribution_and_in_the_inspector(
    browser: Browser, root: Path
) -> None:
    run = SampleRun(root, "demo", "now", sites=24, seed=0)
    run.append_step(0)
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/now/tensor?site=blocks.0.act:out.0")
        zeros = page.get_by_role("row", name="zeros").get_by_role("cell").first
        beside = page.get_by_label("Distribution of the value over steps")
        expect(beside).to_have_attribute("aria-label", re.compile("zeros: "))
        before = zeros.inner_text()
        expect(beside).to_have_attribute("aria-label", re.compile(f"zeros: {before}$"))
        # Distributions come later than numbers do: these never.
        page.route("**/sketches*", lambda _: None)
        run.append_step(1)
        expect_step(page, 1)
        expect(zeros).not_to_have_text(before)
        expect(beside).to_have_attribute("aria-label", re.compile(f"zeros: {zeros.inner_text()}$"))
        page.unroute_all(behavior="ignoreErrors")


# Selection


def test_a_link_shows_the_same_again(page: Page, browser: Browser, address: str) -> None:
    page.goto("#/demo/healthy/heatmap?filter=blocks.0")
    heatmap(page)
    page.get_by_label("Quantity").select_option("grad")
    page.get_by_label("Statistic").select_option("abs_max")
    page.get_by_label("Colour scale").select_option("relative")
    page.get_by_role("slider", name="Step").click(position={"x": 300, "y": 30})
    step = step_of(page)
    assert step > 0
    with watched_page(browser, address) as (other, _):
        other.goto(page.url)
        expect(other.get_by_role("application", name="Heatmap of grad, abs max")).to_be_visible()
        expect(other.get_by_label("Filter sites")).to_have_value("blocks.0")
        expect(other.get_by_label("Colour scale")).to_have_value("relative")
        expect_step(other, step)


def test_back_undoes(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap")
    heatmap(page)
    page.get_by_label("Statistic").select_option("std")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("region", name="Recording")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("application", name="Heatmap of value, std")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("application", name="Heatmap of value, rms")).to_be_visible()
    page.go_forward()
    expect(page.get_by_label("Statistic")).to_have_value("std")


def test_scrubbing_is_one_entry_of_the_history(page: Page) -> None:
    page.goto("#/demo/healthy/overview")
    page.get_by_role("slider", name="Step").wait_for()
    wait_until_drawn(page, "[aria-label='loss over steps'] canvas")
    track = page.get_by_role("slider", name="Step").bounding_box()
    assert track is not None
    page.mouse.move(track["x"] + 200, track["y"] + 20)
    page.mouse.down()
    for x in range(200, 600, 40):
        page.mouse.move(track["x"] + x, track["y"] + 20)
    page.mouse.up()
    expect(page).to_have_url(re.compile("step="))
    assert 0 < step_of(page) < 118
    page.go_back()
    expect(page).to_have_url(re.compile("overview$"))
    expect_step(page, 118)


# Looks


def test_theme_follows_the_system_and_is_remembered(browser: Browser, address: str) -> None:
    with watched_page(browser, address, color_scheme="dark") as (page, _):
        page.goto("./")
        html = page.locator("html")
        expect(html).to_have_attribute("data-theme", "dark")
        page.emulate_media(color_scheme="light")
        expect(html).to_have_attribute("data-theme", "light")
        page.get_by_role("button", name="Theme: system").click()
        page.get_by_role("button", name="Theme: light").click()
        expect(html).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(html).to_have_attribute("data-theme", "dark")
        background = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        assert background == "rgb(13, 16, 20)"


def test_heatmap_is_drawn_anew_for_the_other_theme(page: Page) -> None:
    page.goto("#/demo/healthy/heatmap?statistic=mean")
    before = picture(heatmap(page))
    page.emulate_media(color_scheme="dark")
    wait_for_other_picture(page, CELLS, before)


def test_keys_are_listed(page: Page) -> None:
    page.goto("#/demo/healthy/overview")
    expect(page.get_by_label("loss over steps")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("follow the newest step")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page).to_have_url(re.compile("overview$"))


@pytest.mark.parametrize("size", [(1280, 720), (1440, 900), (1920, 1080), (2560, 1440)])
@pytest.mark.parametrize("view", ["overview", "graph", "heatmap", "tensor"])
def test_nothing_is_cut_off(
    browser: Browser, address: str, size: tuple[int, int], view: str
) -> None:
    viewport = {"width": size[0], "height": size[1]}
    with watched_page(browser, address, viewport=viewport) as (page, _):
        page.goto(f"#/demo/healthy/{view}?site={SITE}")
        expect(page.get_by_role("row", name="rms")).to_be_visible()
        wide = "e => e.scrollWidth - e.clientWidth"
        for part in ("html", "main", "header >> nth=0", "aside"):
            assert page.locator(part).first.evaluate(wide) <= 0, part


@pytest.mark.parametrize("view", ["numerics", "heatmap", "tensor", "compare?with=demo/broken"])
def test_no_word_is_cut_beside_the_inspector(page: Page, view: str) -> None:
    page.goto(f"#/demo/healthy/{view}{'&' if '?' in view else '?'}site=blocks.0.act:out.0")
    expect(page.get_by_role("row", name="rms")).to_be_visible()
    page.locator("main canvas").first.wait_for()
    assert cut_words(page) == []


def test_what_two_runs_have_in_common_is_said_on_one_line(page: Page) -> None:
    page.goto(f"#/demo/healthy/compare?with=demo/broken&site={SITE}")
    common = page.get_by_label("Where they part").get_by_text("common steps")
    size = common.bounding_box()
    assert size and size["height"] < 22


def test_the_list_of_keys_has_room_below(page: Page) -> None:
    page.goto("#/demo/healthy/overview")
    expect(page.get_by_label("loss over steps")).to_be_visible()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    outer = dialog.bounding_box()
    last = max(
        box["y"] + box["height"] for dd in dialog.locator("dd").all() if (box := dd.bounding_box())
    )
    assert outer and outer["y"] + outer["height"] - last >= 16
    assert outer["y"] > 0 and outer["y"] + outer["height"] < 720


# What must not happen


def test_names_are_text_and_never_markup(browser: Browser, root: Path) -> None:
    sites = [replace(site, name=HOSTILE + site.name, module=HOSTILE) for site in make_sites(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_runs, "make_sites", lambda _: sites)
        run = SampleRun(root, HOSTILE, HOSTILE, sites=8, seed=0)
    for step in range(4):
        run.append_step(step)
    run.append_note(1, HOSTILE)
    run.end("finished")
    with viewer(root) as address, watched_page(browser, address) as (page, _):
        page.goto("./")
        page.get_by_role("link", name=HOSTILE).click()
        expect(page.get_by_role("region", name="Notes")).to_contain_text(HOSTILE)
        page.get_by_role("link", name="Heatmap", exact=True).click()
        # The overview, which has one too, is there until this view's code is.
        expect(page.get_by_role("region", name="Health")).to_have_count(0)
        heatmap(page).click(position={"x": 5, "y": 5})
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_contain_text(HOSTILE[:10])  # cut in its middle
        expect(heading).to_have_attribute("title", re.compile(re.escape(HOSTILE)))
        page.keyboard.press("r")
        expect(page.get_by_role("dialog").get_by_role("option")).to_contain_text(HOSTILE)
        assert page.locator("img:not([role])").count() == 0


def test_a_run_that_is_not_there_is_one_sentence(watched: tuple[Page, Watch]) -> None:
    page, watch = watched
    page.goto("#/demo/nothing/overview")
    expect(page.get_by_role("alert")).to_contain_text("no run")
    watch.faults[:] = [fault for fault in watch.faults if "404" not in fault]


def test_the_pages_code_is_small(page: Page) -> None:
    sizes: dict[str, int] = {}

    def weigh(response: Response) -> None:
        if response.url.endswith(".js"):
            sizes[response.url] = len(gzip.compress(response.body()))

    page.on("response", weigh)
    page.goto("./")
    expect(page.get_by_role("link", name="healthy")).to_be_visible()
    assert 0 < sum(sizes.values()) < 45_000
    page.goto(f"#/demo/healthy/tensor?site={SITE}")
    wait_until_drawn(page, "[aria-label='rms over steps'] canvas")
    assert sum(sizes.values()) < 150_000


# Graph

GRAPH = "[role=application][aria-label^='Graph of'] > canvas"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("graphs")
    write_graph_run(root, block_tree(6), name="blocks", iterations=3, with_nan=True)
    write_graph_run(root, block_tree(4), name="hostile", prefix=HOSTILE)
    return root


@pytest.fixture
def graph(browser: Browser, graphs: Path) -> Iterator[Page]:
    with viewer(graphs) as address, watched_page(browser, address) as (page, _):
        yield page


def boxes(page: Page) -> int:
    """How many boxes the graph says that it shows, once it does."""
    application = page.get_by_role("application", name="Graph of")
    application.wait_for()
    found = re.search(r"(\d+) boxes", application.get_attribute("aria-label") or "")
    assert found
    return int(found[1])


def show_graph(page: Page, query: str = "") -> int:
    """Open the graph of the run of blocks, and wait until it is drawn and at rest."""
    page.goto(f"#/demo/blocks/graph{query}")
    wait_until_still(page, GRAPH)
    return boxes(page)


def wait_for_boxes(page: Page, count: int) -> None:
    expect(page.get_by_role("application", name=re.compile(f": {count} boxes"))).to_be_visible()


def test_graph_folds_opens_and_closes_in_place(graph: Page) -> None:
    first = show_graph(graph, "?site=blocks.5:out.0")
    expect(spoken(graph)).to_contain_text("blocks.5:out.0 depends on")
    graph.keyboard.press("Enter")
    wait_for_boxes(graph, first + 6)
    expect(graph).to_have_url(re.compile("toggled=blocks.0%E2%80%A6blocks.5"))
    graph.keyboard.press("Enter")
    expect(graph).to_have_url(re.compile("toggled=blocks.5&|toggled=blocks.5$"))
    wait_for_boxes(graph, first + 6 + 5)
    graph.keyboard.press("Enter")
    wait_for_boxes(graph, first + 6)


def test_graph_is_entered_with_a_trail_and_equal_blocks_are_stepped_through(graph: Page) -> None:
    show_graph(graph, "?inside=blocks.1")
    trail = graph.get_by_role("navigation", name="Inside")
    expect(trail.get_by_role("button")).to_have_count(6)
    expect(trail.get_by_role("button", name="blocks.1", exact=True)).to_have_attribute(
        "aria-current", "location"
    )
    expect(trail).to_contain_text("2 / 6")
    trail.get_by_role("button", name="The equal box after").click()
    expect(graph).to_have_url(re.compile("inside=blocks.2"))
    graph.keyboard.press("Escape")
    expect(graph).to_have_url(re.compile("inside=blocks.0%E2%80%A6blocks.5"))
    trail.get_by_role("button", name="all").click()
    expect(trail.get_by_role("button")).to_have_count(0)
    graph.keyboard.press("Escape")
    expect(graph.get_by_role("region", name="Recording")).to_be_visible()


def middle_of(page: Page) -> dict[str, float]:
    """A place in the folded blocks, which are in the middle of the graph's height when it rests."""
    area = wait_until_still(page, GRAPH).bounding_box()
    assert area is not None
    tip = page.get_by_role("tooltip").filter(has_text="times Block")
    for left in range(0, 300, 30):
        place = {"x": area["width"] / 2 - left, "y": area["height"] / 2}
        page.locator(GRAPH).hover(position=place)
        wait_for_answers(page)
        if tip.is_visible():
            return place
    raise AssertionError("The blocks are not in the middle.")


def test_graph_is_clicked_dragged_and_entered_with_the_mouse(graph: Page) -> None:
    show_graph(graph)
    canvas = graph.locator(GRAPH)
    blocks = middle_of(graph)
    before = picture(canvas)
    canvas.click(position=blocks)
    expect(graph.get_by_role("complementary", name="Inspector")).to_contain_text("blocks.5:out.0")
    wait_for_other_picture(graph, GRAPH, before)
    # The inspector opened, and the graph stays where it is.
    wait_until_still(graph, GRAPH)
    canvas.hover(position=blocks)
    expect(graph.get_by_role("tooltip")).to_contain_text("6 times Block")
    canvas.hover(position={"x": 20, "y": 20})
    expect(graph.get_by_role("tooltip")).to_be_hidden()
    before = picture(wait_until_still(graph, GRAPH))
    graph.mouse.down()
    graph.mouse.move(400, 300)
    graph.mouse.up()
    wait_for_other_picture(graph, GRAPH, before)
    graph.keyboard.press("Escape")
    graph.keyboard.press("0")
    canvas.dblclick(position=middle_of(graph))
    expect(graph).to_have_url(re.compile("inside=blocks.0%E2%80%A6blocks.5"))


def test_a_selected_node_lights_its_chain_and_is_inspected(graph: Page) -> None:
    show_graph(graph)
    before = picture(graph.locator(GRAPH))
    graph.keyboard.press("/")
    graph.keyboard.type("blocks.3 fc out")
    graph.keyboard.press("Enter")
    wait_for_other_picture(graph, GRAPH, before)
    inspector = graph.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("blocks.3.fc:out.0")
    expect(inspector.get_by_role("row", name="rms").first).to_be_visible()
    expect(spoken(graph)).to_contain_text(
        re.compile(r"fc:out.0 depends on \d\d+ tensors; \d+ depend on it")
    )
    expect(graph).to_have_url(re.compile("toggled=blocks.0%E2%80%A6blocks.5"))
    inspector.get_by_label("Role").select_option(label="weight")
    expect(spoken(graph)).to_contain_text("fc.weight depends on 0 tensors")


def test_what_was_selected_elsewhere_is_seen_in_the_graph(graph: Page) -> None:
    graph.goto("#/demo/blocks/tensor?site=blocks.3.fc:out.0")
    expect(graph.get_by_role("complementary", name="Inspector")).to_contain_text("blocks.3.fc")
    graph.keyboard.press("3")
    expect(graph).to_have_url(re.compile("graph.*toggled=blocks.0%E2%80%A6blocks.5"))
    wait_until_still(graph, GRAPH)
    opened = boxes(graph)
    # What is closed by hand stays closed while the graph is walked, and when it is come back to.
    graph.keyboard.press("o")
    graph.keyboard.press("o")
    expect(graph).not_to_have_url(re.compile("toggled="))
    wait_until_still(graph, GRAPH)
    closed = boxes(graph)
    assert closed < opened
    graph.keyboard.press("2")
    graph.keyboard.press("3")
    wait_until_still(graph, GRAPH)
    assert boxes(graph) == closed
    # To open what is around it is no step of its own.
    for _ in range(4):
        graph.go_back()
    wait_for_boxes(graph, opened)
    graph.go_back()
    expect(graph).to_have_url(re.compile("/tensor"))


def test_the_colours_of_a_link_do_not_depend_on_what_was_seen_before(graph: Page) -> None:
    legend = graph.get_by_role("img", name="Colours: value")
    show_graph(graph, "?step=4&statistic=abs_max")
    told = legend.get_attribute("aria-label")
    graph.goto("about:blank")
    for step in range(5):
        before = picture(graph.locator(GRAPH)) if step else ""
        show_graph(graph, f"?step={step}&statistic=abs_max")
        wait_for_other_picture(graph, GRAPH, before)
    expect(legend).to_have_attribute("aria-label", told or "")


def test_the_inspector_leads_to_what_a_tensor_was_made_from_in_every_view(graph: Page) -> None:
    graph.goto("#/demo/blocks/tensor?site=blocks.3.fc:out.0")
    inspector = graph.get_by_role("complementary", name="Inspector")
    used = inspector.get_by_role("region", name="Used by")
    expect(used.get_by_role("button")).to_have_text(["blocks.3:out.0"])
    made = inspector.get_by_role("region", name="Made from")
    made.get_by_role("button", name="blocks.3.fc.weight").click()
    expect(graph).to_have_url(re.compile("site=blocks.3.fc.weight"))
    expect(used.get_by_role("button")).to_have_text(["blocks.3.fc:out.0"])


def test_all_of_the_graph_is_opened_at_once(graph: Page) -> None:
    first = show_graph(graph)
    graph.keyboard.press("o")
    expect(graph).to_have_url(re.compile("toggled=%2A|toggled=\\*"))
    expect(graph.get_by_role("button", name="open all")).to_have_attribute("aria-pressed", "true")
    wait_until_still(graph, GRAPH)
    assert boxes(graph) > first + 6 * 8
    graph.keyboard.press("o")
    wait_for_boxes(graph, first)


def test_roles_of_a_named_node_are_chosen(graph: Page) -> None:
    show_graph(graph, "?site=hint%200")
    role = graph.get_by_role("complementary", name="Inspector").get_by_label("Role")
    expect(spoken(graph)).to_contain_text("hint 0 depends on 1 tensors")
    role.select_option(label="hint 1")
    expect(spoken(graph)).to_contain_text("hint 1 depends on 0 tensors")


def test_graph_is_walked_with_the_keyboard(graph: Page) -> None:
    show_graph(graph, "?site=embed:out.0")
    site = graph.get_by_role("group", name="Selection").locator("button.site")
    graph.keyboard.press("ArrowDown")
    expect(site).to_contain_text("blocks.5:out.0")
    graph.keyboard.press("ArrowDown")
    expect(site).to_contain_text("head:out.0")
    graph.keyboard.press("ArrowUp")
    graph.keyboard.press("ArrowUp")
    expect(site).to_contain_text("embed:out.0")
    step = step_of(graph)
    graph.keyboard.press("ArrowLeft")
    expect(graph).to_have_url(re.compile(f"step={step - 1}&"))


def test_graph_is_coloured_by_the_statistic_and_step(graph: Page) -> None:
    show_graph(graph, "?step=0")
    expect(graph.get_by_role("img", name="Colours: value, rms, log scale")).to_be_visible()
    for select, option, legend in (
        ("Quantity", "grad", "grad, rms"),
        ("Statistic", "norm", "grad, norm"),
        ("Statistic", "dead_share", "grad, dead"),
        ("Statistic", "update_ratio", "update ratio"),
    ):
        before = picture(graph.locator(GRAPH))
        graph.get_by_label(select, exact=True).select_option(option)
        expect(graph.get_by_role("img", name=f"Colours: {legend}")).to_be_visible()
        wait_for_other_picture(graph, GRAPH, before)
    before = picture(graph.locator(GRAPH))
    graph.keyboard.press("ArrowRight")
    wait_for_other_picture(graph, GRAPH, before)
    graph.keyboard.press(" ")
    expect(graph).to_have_url(re.compile("step=5"))


def test_nan_has_a_mark_of_its_own_in_the_graph(graph: Page) -> None:
    show_graph(graph, "?step=5&site=blocks.5:out.0")
    graph.keyboard.press("Escape")
    graph.locator(GRAPH).hover(position={"x": 400, "y": 300})
    script = """canvas => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height);
        copy.getContext("2d").drawImage(canvas, 0, 0);
        const { data } = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height);
        return new Uint32Array(data.buffer).filter(pixel => pixel === 0xff6c00d6).length;
    }"""
    assert wait_until_still(graph, GRAPH).evaluate(script) > 200
    graph.keyboard.press("Home")
    expect(graph).to_have_url(re.compile("step=0"))
    assert wait_until_still(graph, GRAPH).evaluate(script) == 0


def test_kind_and_iteration_are_selected_everywhere(graph: Page) -> None:
    show_graph(graph, "?site=embed:out.0&step=2")
    inspector = graph.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("last of 3 iterations")
    number = inspector.get_by_role("row", name="abs max")
    expect(number).to_be_visible()
    before = number.inner_text()
    graph.get_by_label("Iteration").select_option("0")
    expect(inspector).to_contain_text("iteration 0 of 3")
    expect(number).not_to_have_text(before)
    graph.get_by_label("Kind of step").select_option("test")
    graph.get_by_role("application").focus()
    graph.keyboard.press("ArrowRight")
    expect(graph).to_have_url(re.compile("step=[135]&kind=test&iteration=0&"))
    graph.keyboard.press("End")
    expect_step(graph, 5)
    graph.keyboard.press("k")
    expect(graph).to_have_url(re.compile("kind=train"))
    graph.keyboard.press("k")
    expect(graph).not_to_have_url(re.compile("kind="))


def test_an_iteration_shows_what_it_lacks(graph: Page) -> None:
    show_graph(graph, "?step=0&iteration=0")
    first = picture(graph.locator(GRAPH))
    graph.keyboard.press(">")
    expect(graph).to_have_url(re.compile("iteration=1"))
    wait_for_other_picture(graph, GRAPH, first)


def test_network_tree_counts_parameters_and_finds_modules(graph: Page) -> None:
    show_graph(graph)
    graph.keyboard.press("n")
    tree = graph.get_by_role("region", name="Network")
    expect(tree).to_contain_text("5.12 k parameters")
    expect(tree.get_by_role("treeitem")).to_have_count(9)
    graph.get_by_label("Find a module").fill("blocks.2 qkv")
    expect(tree.get_by_role("treeitem").last).to_contain_text("qkv")
    tree.get_by_role("treeitem").last.get_by_role("button", name="qkv Linear").click()
    expect(graph).to_have_url(re.compile("site=blocks.2.attn.qkv"))
    expect(graph).to_have_url(re.compile("toggled=blocks.2.attn"))


def test_network_tree_follows_the_selection_and_the_keys(graph: Page) -> None:
    show_graph(graph, "?site=blocks.2.attn.qkv:out.0")
    graph.keyboard.press("n")
    tree = graph.get_by_role("tree", name="Modules")
    selected = tree.locator("[aria-selected=true]")
    expect(selected).to_contain_text("qkv")
    expect(selected).to_be_in_viewport()
    find = graph.get_by_label("Find a module")
    find.fill("blocks.1 qkv")
    find.press("Enter")
    expect(graph).to_have_url(re.compile("site=blocks.1.attn.qkv"))
    find.fill("")
    address = graph.url
    find.press("ArrowDown")
    focused = tree.locator("button:focus")
    expect(focused).to_contain_text("(model)")
    count = tree.get_by_role("treeitem").count()
    graph.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem")).to_have_count(1)
    graph.keyboard.press("ArrowRight")
    expect(tree.get_by_role("treeitem")).to_have_count(count)
    graph.keyboard.press("End")
    expect(focused).not_to_contain_text("(model)")
    assert graph.url == address  # the keys walk through the tree, and not through the graph
    graph.keyboard.press("Enter")
    expect(graph).not_to_have_url(address)


def test_a_link_shows_the_same_graph_again(graph: Page, browser: Browser) -> None:
    query = "?step=3&iteration=1&site=blocks.2:out.0&quantity=grad&statistic=norm&toggled=embed"
    show_graph(graph, f"{query}&direction=right")
    with watched_page(browser, graph.url.split("#")[0]) as (other, _):
        other.goto(graph.url)
        wait_until_still(other, GRAPH)
        assert boxes(other) == boxes(graph)
        assert picture(other.locator(GRAPH)) == picture(graph.locator(GRAPH))


def test_names_in_the_graph_are_text(graph: Page) -> None:
    graph.goto("#/demo/hostile/graph")
    wait_until_drawn(graph, GRAPH)
    graph.keyboard.press("n")
    expect(graph.get_by_role("treeitem").nth(1)).to_contain_text(HOSTILE)
    graph.locator(GRAPH).click(position=middle_of(graph))
    expect(graph.get_by_role("complementary", name="Inspector")).to_contain_text(HOSTILE)
    graph.locator(GRAPH).hover(position=middle_of(graph))
    expect(graph.get_by_role("tooltip")).to_contain_text("<img")
    graph.keyboard.press("Shift+Enter")
    expect(graph.get_by_role("navigation", name="Inside")).to_contain_text("<img")
    assert graph.locator("img:not([role])").count() == 0


def test_a_run_without_a_graph_says_so(page: Page) -> None:
    page.goto("#/demo/healthy/graph")
    expect(page.get_by_text("No graph was recorded")).to_be_visible()


SELECTED = """canvas => {
    const ink = getComputedStyle(canvas).getPropertyValue("--mark").match(/[0-9a-f]{2}/gi);
    const mark = ink.map((digits) => Number.parseInt(digits, 16));
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, copy.width, copy.height);
    const isMark = (x, y) => mark.every((part, i) => data[4 * (y * copy.width + x) + i] === part);
    const { left, top } = canvas.getBoundingClientRect();
    const edges = [];
    for (let y = 0; y < copy.height; y++)
        for (let x = 0, from = 0; x < copy.width; x++)
            if (!isMark(x, y)) from = x + 1;
            else if (x - from > 60) edges.push([left + from, top + y, left + x]);
    return [
        Math.min(...edges.map(([from]) => from)), Math.min(...edges.map(([, y]) => y)),
        Math.max(...edges.map(([, , to]) => to)), Math.max(...edges.map(([, y]) => y)),
    ];
}"""


def expect_beside_map(page: Page) -> None:
    """The edge of the selected box, as it is drawn, is whole and not under the map."""
    wait_until_at_rest(page)
    left, top, right, bottom = page.locator(GRAPH).evaluate(SELECTED)
    window = page.locator(GRAPH).bounding_box()
    assert window and left < right and top < bottom
    assert left >= window["x"] and right <= window["x"] + window["width"]
    assert top >= window["y"] and bottom <= window["y"] + window["height"]
    corner = page.locator("[role=application] .map")
    if corner.count():
        covered = corner.bounding_box()
        assert covered and (right < covered["x"] or bottom < covered["y"])


def wait_until_at_rest(page: Page) -> None:
    before = ""
    while (now := picture(page.locator(GRAPH))) != before:
        before = now
        page.wait_for_timeout(200)


def test_a_link_brings_its_box_into_view_where_all_can_be_read(graph: Page) -> None:
    show_graph(graph, "?site=blocks.4.attn.qkv:out.0")
    expect_beside_map(graph)
    found = picture(graph.locator(GRAPH))
    graph.emulate_media(reduced_motion="reduce")
    graph.reload()
    wait_until_drawn(graph, GRAPH)
    wait_until_at_rest(graph)
    assert picture(graph.locator(GRAPH)) == found


def test_what_is_brought_into_view_is_not_under_the_map(graph: Page) -> None:
    show_graph(graph, "?site=blocks.1.attn.qkv:out.0&toggled=*")
    wait_until_at_rest(graph)
    left, top, *_ = graph.locator(GRAPH).evaluate(SELECTED)
    window = graph.locator(GRAPH).bounding_box()
    assert window
    # Out of sight beyond the corner; it is then walked from there, and comes back.
    graph.mouse.move(window["x"] + 40, window["y"] + 40)
    graph.mouse.down()
    corner = window["x"] + window["width"] - left, window["y"] + window["height"] - top
    graph.mouse.move(window["x"] + 40 + corner[0], window["y"] + 40 + corner[1], steps=4)
    graph.mouse.up()
    graph.keyboard.press("ArrowUp")
    expect_beside_map(graph)
    for key in ("ArrowDown", "ArrowDown", "+", "+", "ArrowDown", "ArrowDown"):
        graph.keyboard.press(key)
    expect_beside_map(graph)
