"""A function of the user's own draws a view: whatever it returns, and however it fails."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import matplotlib as mpl
import numpy as np
import plotly.graph_objects as go
import pytest
from browser import _read as read
from browser import process, watched_page
from PIL import Image
from playwright.sync_api import Browser, expect
from small_runs import record

from backlight.custom.pictures import picture_of
from backlight.custom.runner import LIMIT_SECS, CustomFile, CustomFunction
from backlight.custom.selection import Selection
from backlight.errors import BacklightError

mpl.use("Agg")

FILE = """
import numpy as np

def visualize(selection, run):
    if selection.step == 3:
        return 1 / 0
    if selection.step == 4:
        while True:
            pass
    if selection.step == 5:
        import plotly.graph_objects as go
        return go.Figure(go.Scatter(y=[1, 3, 2], name="drawn"))
    if selection.step == 6:
        return np.zeros((20, 30))
    title = f"<h1>step {selection.step} of {len(run.steps().arrow())}</h1>"
    return title + "<script>document.body.append('ran')</script>"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"), steps=8)


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    path = run.parent.parent / "own.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def custom(file: Path) -> Iterator[CustomFile]:
    runner = CustomFile(file)
    yield runner
    runner.close()


def pixels(picture: dict[str, Any]) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["data"]))))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 4)])
def test_an_array_is_an_image(shape: tuple[int, ...]) -> None:
    made = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(pixels(picture_of(made)), made)


def test_numbers_from_0_to_1_are_shades() -> None:
    assert pixels(picture_of(np.array([[0.0, 0.5, 1.0, 2.0]]))).tolist() == [[0, 128, 255, 255]]


def test_figures_of_libraries_are_known() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2])
    assert picture_of(figure)["type"] == "image/png"
    assert picture_of(go.Figure(go.Bar(y=[1])))["figure"]["data"][0]["type"] == "bar"
    assert picture_of(Image.new("RGB", (2, 2)))["type"] == "image/png"


def test_vega_lite_is_drawn() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 2, "b": 3}]
    encoding = {"x": {"field": "a", "type": "quantitative"}}
    spec = {"data": {"values": rows}, "mark": "point", "encoding": encoding}
    picture = picture_of(spec)
    assert base64.b64decode(picture["data"]).startswith(b"<svg")


@pytest.mark.parametrize("made", [None, 3, b"no image", np.zeros(3)])
def test_what_cannot_be_shown_is_said(made: object) -> None:
    with pytest.raises(BacklightError, match=r"visualize\(\) returned"):
        picture_of(made)


def test_a_file_is_asked_with_the_selection(custom: CustomFile, run: Path) -> None:
    picture = custom.draw(run, Selection(step=7))
    assert picture["html"].startswith("<h1>step 7 of 8</h1>")


def test_a_fault_tells_its_line(custom: CustomFile, run: Path) -> None:
    picture = custom.draw(run, Selection(step=3))
    assert picture["error"] == "ZeroDivisionError: division by zero (own.py, line 6)"
    assert "return 1 / 0" in picture["traceback"]
    assert "worker.py" not in picture["traceback"]


def test_what_takes_too_long_is_stopped_and_asked_again(custom: CustomFile, run: Path) -> None:
    custom._limit_secs = 1
    assert "took longer than 1 s" in custom.draw(run, Selection(step=4))["error"]
    custom._limit_secs = LIMIT_SECS  # its process starts anew
    assert custom.draw(run, Selection(step=7))["kind"] == "html"


def test_the_newest_selection_does_not_wait_for_older_ones(custom: CustomFile, run: Path) -> None:
    custom.draw(run, Selection(step=7))
    drawn: dict[str, Any] = {}
    older = Thread(target=lambda: drawn.update(custom.draw(run, Selection(step=4))))
    older.start()
    while not custom._turn.locked():
        time.sleep(0.01)
    assert custom.draw(run, Selection(step=7))["kind"] == "html"
    older.join()
    assert drawn["kind"] == "superseded"


def test_a_changed_file_is_read_again(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def visualize(selection, run): return 'one'")
    custom = CustomFile(file)
    assert custom.draw(run, Selection())["html"] == "one"
    file.write_text("def visualize(selection, run): return 'other'")
    assert custom.draw(run, Selection())["html"] == "other"
    file.write_text("def draw(selection, run): return 'none'")
    assert "has no function visualize(selection, run)" in custom.draw(run, Selection())["error"]
    custom.close()


def test_a_file_that_is_no_python_tells_its_line_once(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "torn.py"
    file.write_text("x = 1\ndef visualize(:\n")
    custom = CustomFile(file)
    try:
        assert (
            custom.draw(run, Selection())["error"]
            == "SyntaxError: invalid syntax (torn.py, line 2)"
        )
    finally:
        custom.close()


def test_a_function_of_a_notebook_draws(run: Path) -> None:
    custom = CustomFunction(lambda selection, run: f"{run.name} {selection.site}")
    assert custom.draw(run, Selection(site="0:out.0"))["html"] == "small 0:out.0"


@pytest.mark.slow
def test_the_view_follows_the_selection(browser: Browser, run: Path, file: Path) -> None:
    words = ("view", str(run.parent.parent), "--no-browser", "--port", "0", "--custom", str(file))
    with process("-m", "backlight", *words) as viewer:
        address = read(viewer, r"http://\S+")
        with watched_page(browser, address) as (page, watch):
            page.goto(f"{address}#/tests/small/custom?step=7")
            drawn = page.frame_locator("main iframe")
            expect(drawn.get_by_role("heading")).to_have_text("step 7 of 8")
            expect(drawn.locator("body")).to_contain_text("ran")
            page.keyboard.press("ArrowLeft")
            expect(page.get_by_alt_text("What own.py drew")).to_be_visible()
            page.keyboard.press("ArrowLeft")
            drawn.locator("svg.main-svg").first.wait_for()
            page.goto(f"{address}#/tests/small/custom?step=3")
            expect(page.get_by_role("alert")).to_contain_text("ZeroDivisionError")
            page.get_by_text("Where it happened").click()
            expect(page.locator("pre")).to_contain_text("return 1 / 0")
            watch.faults = [fault for fault in watch.faults if "sandbox" not in fault]
