"""Watches a run while it is written, and says whether what the page and the server hold grows.

`python benchmarks/viewer_live.py --minutes 10`: as many steps as an hour of five a second has, one
view after another, and each minute what is held after everything that can be thrown away is. 80,000
steps are there already: what is shown of a run has its full size by then, and must not grow. In the
end the run is opened anew, in a page that goes through the same views: what the old page holds
beyond it has gathered there.

The server also has in memory the statistics that are not compacted yet, which are at most a few
segments and go up and down with them, some times in ten minutes; and the rows of `steps`, `scalars`
and the like, about 170 bytes for each step. Both are counted and taken off: what is left must not
grow.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from chrome import Meter, opened
from playwright.sync_api import Page

from backlight.store.reader import RunReader

from browser import chromium, serving, training  # isort: skip

VIEWS = ("overview", "heatmap", "tensor", "pins", "curves", "log")
SITE = "blocks.0.attn:out.0"
STEPS = 80_000
DIFFERENT = 600
"""So many steps have statistics of their own; they come again and again."""
WRITE_SECS = 600.0
STAY_SECS = 10
EVERY_SECS = 0.2 / 6
"""After so many seconds there is another step."""
TRAINING = ("--name", "now", "--steps", str(STEPS), "--different", str(DIFFERENT))
TRAINING += ("--every-secs", str(EVERY_SECS))
WARM_UP_ROUNDS = 2
"""The first round loads the views' code; the second still compiles some of it."""
LOOKS = 5
FEW_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was held after a round through all views, in megabytes."""

    minute: float
    held: float
    arrays: float
    heap: float
    nodes: float
    server: float
    """What the server holds besides the run's rows."""
    rows: float
    """The run's rows that the server has in memory."""

    def __str__(self) -> str:
        page = f"page {self.held:6.3f} MB held, {self.arrays:6.3f} MB in typed arrays"
        page += f", {self.heap:6.3f} MB with compiled code, {self.nodes:5.0f} nodes"
        server = f"server {self.server:6.1f} MB, and {self.rows:5.1f} MB of rows"
        return f"{self.minute:5.1f} min {page}; {server}"


class Server:
    """The server's process, and the run whose rows it has in memory."""

    def __init__(self, process: int, run: Path) -> None:
        self._process = process
        self._reader = RunReader(run)
        self._seen: list[tuple[float, float]] = []

    def look(self) -> None:
        """Measure now."""
        self._reader.refresh()
        rows = sum(table.nbytes for table in self._reader.snapshot.held.values()) / 2**20
        self._seen.append((resident_mb(self._process) - rows, rows))

    def held(self) -> tuple[float, float]:
        """What was held since the last call besides rows, and what rows took.

        Answers take memory for moments: what is held is there in nearly all of them. Not the least
        of all, for a part is not adopted by this process and the server in the same moment.
        """
        besides, rows = zip(*self._seen, strict=True)
        self._seen = []
        return float(np.quantile(besides, 0.1)), float(np.median(rows))


def watch(page: Page, meter: Meter, server: Server, minutes: float) -> list[Seen]:
    """What is held, each time after all views were seen."""
    page.goto(f"#/demo/now/overview?site={SITE}&pin={SITE}")
    written = "Number(document.querySelector('#selected-step')?.value.replaceAll(',', ''))"
    page.wait_for_function(f"() => {written} >= {STEPS}", timeout=1000 * WRITE_SECS)
    started, seen = time.monotonic(), []
    while len(seen) <= WARM_UP_ROUNDS or time.monotonic() - started < 60 * minutes:
        for view in VIEWS:
            page.locator(f"[data-view={view}]").click()
            for _ in range(STAY_SECS):
                page.wait_for_timeout(1000)
                server.look()
        minute = (time.monotonic() - started) / 60
        held, arrays = page_mb(page, meter)
        heap = meter.heap_bytes() / 2**20
        seen.append(Seen(minute, held, arrays, heap, meter.nodes(), *server.held()))
        print(seen[-1], flush=True)
    return seen


def page_mb(page: Page, meter: Meter) -> tuple[float, float]:
    """What the page holds: objects, and typed arrays.

    While an answer is read it is there twice, as it came and as it is held: the least look counts.
    A snapshot of the heap stops the page, and answers wait behind it, so there is none between.
    """
    held, looks = meter.held_bytes(), []
    for _ in range(LOOKS):
        page.wait_for_timeout(400)
        looks.append(meter.buffer_bytes())
    return held / 2**20, min(looks) / 2**20


def report_gathered(old: Seen, new: Seen) -> None:
    """What a page that was open all the time holds, beside one that was opened just now."""
    before, after = new.held + new.arrays, old.held + old.arrays
    share = 100 * (after / before - 1)
    verdict = "  OVER" if share > FEW_PERCENT else ""
    print(f"gathered {before:.3f} MB if opened anew, {after:.3f} MB: {share:+.1f} %{verdict}")


def resident_mb(process: int) -> float:
    """What a process has in memory, without the files that it maps."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found, "The system does not tell what a process has in memory."
    return int(found[1]) / 1024


def slope(minutes: list[float], sizes: list[float]) -> tuple[float, float]:
    """The straight line through sizes: its slope, and the error of that."""
    if len(minutes) < 3:
        return float("nan"), float("nan")
    x, y = np.array(minutes) - np.mean(minutes), np.array(sizes) - np.mean(sizes)
    found = float(x @ y / (x @ x))
    return found, float(np.sqrt(np.sum((y - found * x) ** 2) / (len(x) - 2) / (x @ x)))


def report(what: str, minutes: list[float], sizes: list[float]) -> None:
    """From where to where, and what an hour at this pace would add."""
    found, error = slope(minutes, sizes)
    hour = 6000 * found / sizes[0]
    verdict = "  OVER" if hour > FEW_PERCENT and found > 2 * error else ""
    ends = f"{sizes[0]:.3f} MB to {sizes[-1]:.3f} MB"
    pace = f"{1024 * found:+.2f} ± {1024 * error:.2f} KB a minute, {hour:+.1f} % an hour"
    print(f"{what:8} {ends}: {pace}{verdict}", flush=True)


def main() -> None:
    """Watch, print, and say how steep it is after warming up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with (
            serving(root) as (address, server),
            chromium() as browser,
            training(root, *TRAINING),
        ):
            watched = Server(server.pid, root / "demo" / "now")
            with opened(browser, address) as (page, meter):
                seen = watch(page, meter, watched, options.minutes)
            with opened(browser, address) as (page, meter):
                anew = watch(page, meter, watched, minutes=0)
    warm = seen[WARM_UP_ROUNDS:] or seen[-1:]
    minutes = [each.minute for each in warm]
    report("page", minutes, [each.held + each.arrays for each in warm])
    report_gathered(seen[-1], anew[-1])
    report("server", minutes, [each.server for each in warm])


if __name__ == "__main__":
    main()
