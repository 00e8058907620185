"""Measures what the viewer's graph costs a browser, in CPU time, with ten thousand modules.

`python benchmarks/viewer_graph.py` writes a run, serves it, and opens it in the system's Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from chrome import Meter, open_view, opened, report
from playwright.sync_api import Browser, Page

from browser import chromium, viewer, wait_until_drawn  # isort: skip
from graph_runs import GraphDraft, varied_tree, write_graph_run  # isort: skip

RUN = "#/demo/large"
GRAPH = "[role=application][aria-label^='Graph of'] > canvas"
BUDGETS_MS = {
    "first view": 300.0,
    "expand": 50.0,
    "highlight": 50.0,
    "select": 100.0,
    "pan frame": 16.0,
}
START = "stages.1:out.0"
TIMES = 7
FRAMES = 60


def settle(page: Page) -> None:
    """Wait until what was asked for is drawn, and any motion has ended."""
    page.wait_for_timeout(350)


def label(page: Page) -> str:
    """What the graph says of itself: it changes with what is open."""
    return page.locator("[role=application]").get_attribute("aria-label") or ""


def first_view(page: Page, meter: Meter) -> float:
    """From the overview of a run to its graph, drawn; the code and the data are loaded for it."""
    page.goto(f"{RUN}/overview")
    page.get_by_role("region", name="Recording").wait_for()
    page.wait_for_timeout(2000)

    def act() -> None:
        open_view(page, "graph")
        wait_for_graph(page)

    return meter.cost_ms(act)


def wait_for_graph(page: Page) -> None:
    """Wait until the graph is there, without asking for its pixels."""
    page.locator(GRAPH).wait_for()
    settle(page)


def expand(page: Page, meter: Meter) -> float:
    """Opening a box, or closing it again."""

    def act() -> None:
        before = label(page)
        page.keyboard.press("Enter")
        page.wait_for_function(
            "b => document.querySelector('[role=application]').ariaLabel !== b", arg=before
        )
        settle(page)

    return meter.cost_ms(act)


def highlight(page: Page, meter: Meter, key: str) -> float:
    """Selecting the next box along the chain; while the inspector is closed, the graph alone."""

    def act() -> None:
        page.keyboard.press(key)
        page.wait_for_timeout(120)

    return meter.cost_ms(act)


def pan_frame(page: Page, meter: Meter) -> float:
    """One frame of dragging the picture, all of which is seen."""
    page.keyboard.press("0")
    settle(page)
    page.mouse.move(720, 420)
    page.mouse.down()

    def act() -> None:
        for frame in range(FRAMES):
            page.mouse.move(720 + 3 * (frame % 20), 420 + 2 * (frame % 20))

    cost = meter.cost_ms(act) / FRAMES
    page.mouse.up()
    return cost


def measure(browser: Browser, address: str, toggled: str) -> dict[str, list[float]]:
    """Every cost, several times."""
    costs: dict[str, list[float]] = {name: [] for name in BUDGETS_MS}
    for _ in range(3):
        with opened(browser, address) as (page, meter):
            costs["first view"].append(first_view(page, meter))
    with opened(browser, address) as (page, meter):
        page.goto(f"{RUN}/graph?site={START}{toggled}")
        wait_until_drawn(page, GRAPH)
        settle(page)
        for _ in range(TIMES):
            costs["expand"] += [expand(page, meter), expand(page, meter)]
            costs["select"].append(highlight(page, meter, "ArrowDown"))
            page.keyboard.press("i")
            settle(page)
            costs["highlight"].append(highlight(page, meter, "ArrowUp"))
            page.keyboard.press("i")
            settle(page)
            costs["pan frame"].append(pan_frame(page, meter))
    return costs


def all_open(modules: int) -> str:
    """A link that opens every module that holds others."""
    draft = GraphDraft(varied_tree(modules))
    around = {call[2] for call in draft.calls}
    names = [call[0] for place, call in enumerate(draft.calls) if place in around and call[0]]
    return "&" + urlencode([("toggled", name) for name in names])


def main() -> None:
    """Measure, print, and say what is over budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--root", type=Path, help="where the run is, or is to be written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.root or Path(scratch)
        if not (root / "demo" / "large").is_dir():
            write_graph_run(root, varied_tree(options.modules), name="large", steps=2)
        with viewer(root) as address, chromium() as browser:
            for title, toggled in (("as it opens", ""), ("all open", all_open(options.modules))):
                for name, costs in measure(browser, address, toggled).items():
                    report(
                        f"graph of {options.modules:,} modules, {title}: {name}",
                        costs,
                        BUDGETS_MS[name],
                    )


if __name__ == "__main__":
    main()
