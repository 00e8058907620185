"""Measures what the viewer's views cost: the first page, a large heatmap, many lines, a click.

`python benchmarks/viewer_plots.py --large RUN` also measures a click in a run that is there, like
one of those that `make bench-store` writes.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from chrome import Meter, open_view, opened, report
from playwright.sync_api import Browser, Page, Response
from store_data import write_run

from backlight.schema import TABLES

from browser import chromium, viewer, wait_until_drawn  # isort: skip
from sample_runs import SampleRun  # isort: skip

CELLS = "[role=img][aria-label^='Heatmap of'] canvas"
DISTRIBUTION = "[aria-label^='Distribution of the value'] canvas"
LINES = "[aria-label='group0 over steps'] canvas"
CLICKS = ("curves, time", "distribution too, time", "all of it, work")
TIMES = 5


def write_lines(root: Path, *, names: int, points: int) -> None:
    """A run with so many scalars, each logged at so many steps."""
    run = SampleRun(root, "bench", "lines", sites=4, seed=0)
    steps = np.arange(points)
    now = time.time()
    times = {"started_at": now + steps, "duration_secs": np.ones(points)}
    times |= {"recording_secs": np.zeros(points)}
    what = {"kind": ["train"] * points, "recorded": steps % 100 == 0, "reason": [""] * points}
    more = {"iterations": [1] * points, "batch_size": [1] * points, "graph": [""] * points}
    append(run, "steps", {"step": steps, **what, **more, **times})
    rng = np.random.default_rng(0)
    for name in range(names):
        walk = np.cumsum(rng.normal(size=points))
        rows = {"step": steps, "name": [f"group{name // 10}/line{name}"] * points, "value": walk}
        append(run, "scalars", {**rows, "logged_at": now + steps})
    run.end("finished")


def append(run: SampleRun, table: str, columns: dict[str, Any]) -> None:
    """One batch with all rows."""
    rows = len(columns["step"])
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in TABLES[table]
    ]
    run.writer.append(table, pa.RecordBatch.from_arrays(arrays, schema=TABLES[table]))


def script_bytes(browser: Browser, address: str, place: str) -> float:
    """The JavaScript that a page loads, compressed."""
    found: list[Response] = []
    with opened(browser, address) as (page, _):
        page.on("response", lambda response: found.append(response))
        page.goto(place)
        page.wait_for_timeout(3000)
        scripts = [each for each in found if urlsplit(each.url).path.endswith(".js")]
        return float(sum(len(gzip.compress(each.body())) for each in scripts))


def view_ms(browser: Browser, address: str, place: str, view: str, drawn: str) -> float:
    """From the run's log, settled, to one of its views, drawn: what is loaded counts too."""
    with opened(browser, address) as (page, meter):
        page.goto(place)
        page.get_by_role("navigation", name="Views").wait_for()
        page.wait_for_timeout(2500)

        def act() -> None:
            open_view(page, view)
            page.locator(drawn).first.wait_for()
            page.wait_for_timeout(2500)

        return meter.cost_ms(act)


def click_ms(page: Page, meter: Meter, place: str) -> dict[str, list[float]]:
    """From a click on a cell of the heatmap until that tensor is drawn: by the clock, and work.

    A run of very many observations is first looked through for what is wrong: that is waited for.
    """
    with page.expect_response(lambda each: each.url.endswith("/findings"), timeout=120_000):
        page.goto(f"{place}/heatmap")
    wait_until_drawn(page, CELLS)
    page.wait_for_timeout(1500)
    one_click_ms(page, meter, TIMES)  # the first compiles the page's code
    took: dict[str, list[float]] = {name: [] for name in CLICKS}
    for row in range(TIMES):
        for name, each in zip(took, one_click_ms(page, meter, row), strict=True):
            took[name].append(each)
    return took


def one_click_ms(page: Page, meter: Meter, row: int) -> list[float]:
    """A click in a row that was not asked for before, so that nothing of it is known."""
    box = page.locator(CELLS).first.bounding_box()
    assert box
    before, started = meter.busy_ms(), time.perf_counter()
    page.mouse.click(box["x"] + 300, box["y"] + 40 + 70 * row)
    seen = []
    for drawn in (
        "document.querySelectorAll('main .u-over').length > 3",
        f"document.querySelector(`{DISTRIBUTION}`)?.width > 2",
    ):
        page.wait_for_function(f"() => {drawn}", polling="raf", timeout=120_000)
        seen.append(1000 * (time.perf_counter() - started))
    page.wait_for_timeout(500)
    seen.append(meter.busy_ms() - before)
    page.go_back()
    wait_until_drawn(page, CELLS)
    page.wait_for_timeout(800)
    return seen


def measure(browser: Browser, address: str) -> None:
    """Every budget that needs no very large run."""
    kib = 1024
    for title, place in (("list of runs", "./"), ("a run's overview", "#/bench/lines/overview")):
        report(f"JavaScript, {title}", [script_bytes(browser, address, place) / kib], 150, "KB")
    for title, place, view, drawn, budget in (
        ("heatmap, 1,000 sites x 5,000 steps", "#/bench/1000x5000/log", "heatmap", CELLS, 250),
        ("100 lines x 10,000 points", "#/bench/lines/log?curves=overlay", "curves", LINES, 400),
    ):
        costs = [view_ms(browser, address, place, view, drawn) for _ in range(TIMES)]
        report(title, costs, budget)
    with opened(browser, address) as (page, meter):
        report_clicks("5 million observations", click_ms(page, meter, "#/bench/1000x5000"))


def measure_made(browser: Browser, root: Path) -> None:
    """With runs that are made for it, unless they are there."""
    if not (root / "bench" / "lines").is_dir():
        write_lines(root, names=100, points=10_000)
    if not (root / "bench" / "1000x5000").is_dir():
        write_run(root, sites=1000, steps=5000)
    with viewer(root) as address:
        measure(browser, address)


def report_clicks(title: str, took: dict[str, list[float]]) -> None:
    """A line for each part of what a click shows."""
    for name, times in took.items():
        report(f"click to tensor, {title}: {name}", times, 200)
        print(f"{'':44} all of them: {', '.join(f'{each:.0f}' for each in times)}", flush=True)


def main() -> None:
    """Measure, print, and say what is over budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="where the runs are, or are to be written")
    parser.add_argument("--large", type=Path, help="a run of many observations, to click in")
    parser.add_argument("--only-large", action="store_true", help="measure nothing but that")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        root = options.root or Path(scratch)
        if not options.only_large:
            measure_made(browser, root)
        if options.large is None:
            return
        project, name = options.large.resolve().parts[-2:]
        root = options.large.parent.parent
        with viewer(root) as address, opened(browser, address) as (page, meter):
            report_clicks(name, click_ms(page, meter, f"#/{project}/{name}"))


if __name__ == "__main__":
    main()
