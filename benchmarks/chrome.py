"""A Chromium whose work is measured: for the benchmarks of the viewer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, CDPSession, Page

OWN = ("object", "array", "closure", "regexp", "number", "bigint", "symbol")
OWN += ("string", "concatenated string", "sliced string")
WAIT_SECS = 120.0
TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))


@dataclass
class Meter:
    """The time that a page's main thread was busy, and what it holds in memory."""

    session: CDPSession

    def busy_ms(self) -> float:
        """All tasks so far: scripts, style, layout and painting."""
        return 1000.0 * self._metrics()["TaskDuration"]

    def heap_bytes(self) -> float:
        """What scripts hold after everything that can be thrown away is."""
        self._collect()
        return self._metrics()["JSHeapUsedSize"]

    def held_bytes(self) -> float:
        """What the page itself holds: objects, arrays, texts and numbers.

        The heap also has compiled code, and what the browser keeps for whoever measures it.
        """
        pieces: list[str] = []
        name = "HeapProfiler.addHeapSnapshotChunk"

        def take(event: dict[str, str]) -> None:
            pieces.append(event["chunk"])

        self.session.on(name, take)
        self.session.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
        self.session.remove_listener(name, take)
        snapshot = json.loads("".join(pieces))
        meta, nodes = snapshot["snapshot"]["meta"], snapshot["nodes"]
        kinds, width = meta["node_types"][0], len(meta["node_fields"])
        kind, size = (meta["node_fields"].index(field) for field in ("type", "self_size"))
        starts = range(0, len(nodes), width)
        own = (nodes[at + size] for at in starts if kinds[nodes[at + kind]] in OWN)
        return float(sum(own))

    def buffer_bytes(self) -> float:
        """The memory behind typed arrays, which is not part of the heap."""
        self._collect()
        return float(self.session.send("Runtime.getHeapUsage")["backingStorageSize"])

    def _collect(self) -> None:
        # What only the first one finds to be garbage may be freed by the second.
        for _ in range(2):
            self.session.send("HeapProfiler.collectGarbage")

    def nodes(self) -> float:
        """How many nodes of documents there are, those that nobody sees any more too."""
        return self._metrics()["Nodes"]

    def cost_ms(self, act: Callable[[], object]) -> float:
        """How long the main thread was busy because of something."""
        before = self.busy_ms()
        act()
        return self.busy_ms() - before

    def _metrics(self) -> dict[str, float]:
        answer = self.session.send("Performance.getMetrics")
        return {each["name"]: float(each["value"]) for each in answer["metrics"]}


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[tuple[Page, Meter]]:
    """A page of its own, with a meter on it."""
    context = browser.new_context(base_url=address, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(1000 * WAIT_SECS)
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    yield page, Meter(session)
    context.close()


def open_view(page: Page, view: str) -> None:
    """Go to a view as a person does."""
    page.locator(f"[data-view={view}]").click()


def report(title: str, values: list[float], budget: float, unit: str = "ms") -> None:
    """One line: the median, the budget, and whether it is kept."""
    middle = median(values)
    verdict = "" if middle <= budget else "  OVER"
    print(f"{title:44} {middle:9.1f} {unit} of {budget:6.0f}{verdict}", flush=True)
