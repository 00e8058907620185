"""Watches a run while it is written, and says whether the page's memory grows.

`python benchmarks/viewer_live.py --minutes 10`: a step each 0.2 s, one view after another. 4,000
steps are there already, so that what is shown of a run has reached its full size.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from chrome import Meter, opened
from playwright.sync_api import Page

from browser import chromium, training, viewer  # isort: skip

VIEWS = ("overview", "heatmap", "tensor", "pins", "curves", "log")
SITE = "blocks.0.attn:out.0"
STAY_SECS = 10.0
FEW_PERCENT = 10.0


def watch(page: Page, meter: Meter, minutes: float) -> list[float]:
    """The megabytes that the page holds, each time after all views were seen."""
    page.goto(f"#/demo/now/overview?site={SITE}&pin={SITE}")
    page.locator("[data-view]").first.wait_for()
    started, seen = time.monotonic(), []
    while time.monotonic() - started < 60 * minutes:
        for view in VIEWS:
            page.locator(f"[data-view={view}]").click()
            page.wait_for_timeout(1000 * STAY_SECS)
        passed = (time.monotonic() - started) / 60
        heap = meter.heap_bytes() / 2**20
        seen.append(meter.held_bytes() / 2**20)
        sizes = f"{seen[-1]:6.2f} MB held, {heap:6.2f} MB with compiled code"
        print(f"{passed:5.1f} min {sizes}, {meter.nodes():5.0f} nodes", flush=True)
    return seen


def main() -> None:
    """Watch, print, and compare the end with the beginning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with (
            viewer(root) as address,
            chromium() as browser,
            training(root, "--name", "now", "--steps", "4000"),
            opened(browser, address) as (page, meter),
        ):
            seen = watch(page, meter, options.minutes)
    # The first round loads the views' code.
    first, last = seen[min(1, len(seen) - 1)], seen[-1]
    growth = 100 * (last - first) / first
    verdict = "" if growth <= FEW_PERCENT else "  OVER"
    print(f"memory after {options.minutes:.0f} minutes of live updates: {growth:+.1f} %{verdict}")


if __name__ == "__main__":
    main()
