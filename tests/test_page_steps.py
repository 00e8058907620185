"""Runs of more steps than a page holds: which it is told of, and that all can be reached."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from browser import held_back, viewer, watched_page
from playwright.sync_api import Browser, Page, Response, expect
from sample_runs import SampleRun, stats_batch

from backlight.errors import BacklightError
from backlight.schema import STEPS
from backlight.serve.happened import MOST_ROWS
from backlight.serve.steps import NEAR, recorded_steps, with_kinds

RECORDED = 9000
EVERY = 3
"""So many steps were recorded: every third, and every fifth of those is a test."""
LAST = EVERY * (RECORDED - 1)
MOST_HELD = 3500

TOLD = pa.schema([field for field in STEPS if field.name != "loss"])


def long_run(root: Path, name: str) -> SampleRun:
    """A long run, which is not written step by step: it would take a minute."""
    run = SampleRun(root, "demo", name, sites=1, seed=0)
    batch = stats_batch(0, run.places, run.rng, poisoned=False)
    recorded = np.arange(0, EVERY * RECORDED, EVERY)
    rows = batch.take(np.tile(np.arange(batch.num_rows), RECORDED))
    steps = pa.array(np.repeat(recorded, batch.num_rows), pa.int64())
    run.writer.append("stats", rows.set_column(0, rows.schema.field(0), steps))
    run.writer.append_rows("steps", [step_row(step) for step in range(LAST + 1)])
    losses = 3.0 + np.sin(np.arange(LAST + 1) / 900)
    losses[12_345] = 40.0
    run.writer.append_rows(
        "scalars",
        [
            {"step": step, "name": "loss", "value": float(loss), "logged_at": float(step)}
            for step, loss in enumerate(losses)
        ],
    )
    return run


def step_row(step: int) -> dict[str, object]:
    times = {"started_at": float(step), "duration_secs": 0.1, "recording_secs": 0.01}
    kind = "test" if step % (5 * EVERY) == 0 else "train"
    facts = {"recorded": step % EVERY == 0, "reason": "", "iterations": 1, "graph": ""}
    return {"step": step, "kind": kind, "batch_size": None, **facts, **times}


# What is told


def told(count: int, **asked: int | str) -> tuple[list[int], list[int]]:
    """The steps that are told of a run of so many, each with its place."""
    steps = pa.Table.from_pylist([step_row(step) for step in range(count)], schema=TOLD)
    table = recorded_steps(steps, **asked)  # type: ignore[arg-type]
    return table["step"].to_pylist(), table["place"].to_pylist()


@pytest.mark.parametrize("count", [0, 1, 7, 3000, 20_000])
@pytest.mark.parametrize("around", [None, -5, 0, 9001, 10**9])
def test_the_steps_around_one_and_at_the_ends_are_all_told(count: int, around: int | None) -> None:
    steps, places = told(count, points=500, **({} if around is None else {"around": around}))
    recorded = list(range(0, count, EVERY))
    assert steps == [recorded[place] for place in places]
    assert len(steps) <= 500 + 3 * NEAR
    if around is not None and recorded:
        middle = int(np.searchsorted(recorded, around))
        assert set(recorded[max(0, middle - NEAR) : middle + NEAR]) <= set(steps)
    assert set(recorded[-NEAR:]) <= set(steps)
    assert steps[:1] == recorded[:1]


def test_of_a_run_that_has_grown_what_is_new_follows() -> None:
    before = told(20_000, points=500)[0]
    later, places = told(20_300, points=500, after=before[-1])
    assert later == list(range(before[-1] + EVERY, 20_300, EVERY))
    assert places[0] == len(range(0, 20_000, EVERY))


def test_steps_of_a_kind_have_places_of_their_own() -> None:
    steps, places = told(100, kind="test")
    assert (steps, places) == (list(range(0, 100, 15)), list(range(7)))
    assert told(100, kind="none") == ([], [])


def test_a_step_that_was_done_again_is_told_once() -> None:
    steps = pa.Table.from_pylist([step_row(0), step_row(3), {**step_row(3), "graph": "new"}])
    table = recorded_steps(steps)
    assert table["step"].to_pylist() == [0, 3]
    assert table["graph"].to_pylist() == ["", "new"]


def test_what_is_told_of_all_steps() -> None:
    table = recorded_steps(pa.Table.from_pylist([step_row(step) for step in range(5, 30)]))
    facts = json.loads(table.schema.metadata[b"steps"])
    assert facts == {
        "first": 5,
        "last": 29,
        "kinds": {"test": 1, "train": 7},
        "step_secs": 0.1,
        "recording_secs": 0.01,
    }


def test_too_many_points_are_one_sentence() -> None:
    with pytest.raises(BacklightError, match="'points' is 0"):
        told(3, points=0)


def test_a_step_under_way_has_the_kind_of_the_last_until_it_ends() -> None:
    steps = pa.Table.from_pylist([step_row(step) for step in range(15)])
    rows = with_kinds(steps, pa.table({"step": [0, 1, 15]}))
    assert rows["kind"].to_pylist() == ["test", "train", "train"]
    assert rows.schema.metadata[b"settled"] == b"14"
    assert with_kinds(steps[:0], pa.table({"step": [3]}))["kind"].to_pylist() == [""]


# The page


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("runs")
    run = long_run(root, "long")
    for step in range(MOST_ROWS + 20):
        run.append_note(step, f"note {step}")
    run.end("finished")
    with viewer(root) as address:
        yield address


def shows(page: Page, step: int) -> None:
    """Wait until a step is the one that every view shows."""
    expect(page.locator("#selected-step")).to_have_value(f"{step:,}")


@pytest.mark.slow
def test_a_link_to_any_step_is_restored(page: Page) -> None:
    for asked, meant in ((9000, 9000), (9001, 9000), (13_004, 13_005), (10**8, LAST)):
        page.goto(f"#/demo/long/overview?step={asked}")
        shows(page, meant)


@pytest.mark.slow
def test_arrows_reach_every_recorded_step(page: Page) -> None:
    page.goto("#/demo/long/overview?step=12000")
    shows(page, 12_000)
    for key, step in (("ArrowRight", 12_003), ("ArrowLeft", 12_000), ("ArrowLeft", 11_997)):
        page.keyboard.press(key)
        shows(page, step)
    page.keyboard.press("Home")
    shows(page, 0)
    page.keyboard.press("ArrowRight")
    shows(page, EVERY)
    page.keyboard.press("End")
    shows(page, LAST)
    page.keyboard.press("ArrowLeft")
    shows(page, LAST - EVERY)


@pytest.mark.slow
def test_a_movement_is_one_entry_of_the_history_however_long_its_steps_take(page: Page) -> None:
    page.goto("#/demo/long/overview?step=12000")
    shows(page, 12_000)
    with held_back(page, re.compile(r"/steps\?")) as held:
        for _ in range(50):  # further than was told at once
            page.keyboard.press("Shift+ArrowLeft")
        page.wait_for_timeout(1200)  # a pause as long as this ends a movement
        assert held
    shows(page, 12_000 - 500 * EVERY)
    page.go_back()
    shows(page, 12_000)


@pytest.mark.slow
def test_a_step_is_chosen_on_the_timeline_and_by_typing(page: Page) -> None:
    page.goto("#/demo/long/overview")
    shows(page, LAST)
    page.get_by_role("slider", name="Step").click(position={"x": 300, "y": 30})
    expect(page).to_have_url(re.compile(r"step=\d+"))
    chosen = int(page.url.split("step=")[1].split("&")[0])
    assert chosen % EVERY == 0 and 0 < chosen < LAST
    shows(page, chosen)
    page.keyboard.press("ArrowRight")
    shows(page, chosen + EVERY)
    typed = page.locator("#selected-step")
    typed.fill("20,002")
    typed.press("Enter")
    shows(page, 20_001)
    typed.blur()
    page.keyboard.press("ArrowLeft")
    shows(page, 19_998)


@pytest.mark.slow
def test_a_click_on_a_spike_selects_its_step(page: Page) -> None:
    page.goto("#/demo/long/curves")
    plot = page.get_by_label("loss over steps")
    plot.wait_for()
    box = plot.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 12_345 / LAST, box["y"] + 20)
    expect(page).to_have_url(re.compile(r"step=\d+"))
    step = int(page.url.split("step=")[1].split("&")[0])
    assert abs(step - 12_345) < 2 * LAST / box["width"]
    shows(page, EVERY * round(step / EVERY))


@pytest.mark.slow
def test_a_kind_is_walked_on_its_own(page: Page) -> None:
    page.goto("#/demo/long/overview?step=12006&kind=test")
    shows(page, 12_000)
    for key, step in (("ArrowRight", 12_015), ("ArrowRight", 12_030), ("Home", 0)):
        page.keyboard.press(key)
        shows(page, step)
    page.get_by_label("Kind of step").select_option("train")
    shows(page, EVERY)
    page.get_by_label("Kind of step").select_option("")
    shows(page, 0)
    page.goto("#/demo/long/overview?step=12006&kind=nothing-has-this")
    shows(page, 12_006)


@pytest.mark.slow
def test_the_page_holds_a_few_thousand_steps_and_lines(page: Page) -> None:
    sizes: list[int] = []

    def count(response: Response) -> None:
        if "/steps?" in response.url:
            table = pa.ipc.open_stream(response.body()).read_all()
            sizes.append(table.num_rows)

    page.on("response", count)
    page.goto("#/demo/long/log?step=12000")
    shows(page, 12_000)
    expect(page.get_by_text(f"{MOST_ROWS:,} lines")).to_be_visible()
    expect(page.get_by_text("20 between the first and the newest are left out")).to_be_visible()
    page.goto("#/demo/long/overview?step=3001")
    shows(page, 3000)
    expect(page.get_by_label("Recording")).to_contain_text("9,000 of 26,998")
    expect(page.get_by_label("Recorded steps by kind")).to_contain_text("1,800")
    assert len(sizes) == 2 and max(sizes) < MOST_HELD


@pytest.mark.slow
def test_a_long_run_is_walked_while_it_is_written(browser: Browser, tmp_path: Path) -> None:
    run = long_run(tmp_path, "now")
    with viewer(tmp_path) as address, watched_page(browser, address) as (page, _):
        page.goto("#/demo/now/overview")
        shows(page, LAST)
        newest = append(run, LAST + 1)
        shows(page, newest)
        page.keyboard.press("ArrowLeft")
        shows(page, newest - 2)
        page.keyboard.press("Shift+ArrowLeft")
        shows(page, LAST - 5 * EVERY)
        newest = append(run, newest + 1)
        expect(page.get_by_role("slider", name="Step")).to_have_attribute(
            "aria-valuemax", str(newest)
        )
        shows(page, LAST - 5 * EVERY)
        page.get_by_role("button", name="follow").click()
        shows(page, newest)
        page.goto("#/demo/now/overview?step=6001")
        shows(page, 6000)
        page.keyboard.press("ArrowRight")
        shows(page, 6003)
        newest = append(run, newest + 1)
        page.keyboard.press("f")
        shows(page, newest)
    run.end("finished")


def append(run: SampleRun, first: int) -> int:
    """Ten more steps, of which every other one is recorded; the newest recorded one."""
    first += first % 2
    for step in range(first, first + 11):
        run.append_step(step)
    return first + 10
