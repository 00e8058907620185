"""Measures what it costs a browser to open all of a large graph: here, and in Model Explorer.

Both are given the same graph. What counts is the CPU time of the browser's renderer processes,
which run a page's scripts and its workers, from the click until it is quiet. Google's Model
Explorer is installed into an environment of its own, once, under the user's cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from chrome import opened
from environments import UnavailableError, environment
from playwright.sync_api import Browser, CDPSession, Page

from backlight.schema import Site

from browser import chromium, viewer, wait_until_drawn  # isort: skip
from graph_runs import GraphDraft, varied_tree, write_graph_run  # isort: skip

PEER = "ai-edge-model-explorer==0.1.34"
PORT = 7466
GRAPH = "[role=application][aria-label^='Graph of'] > canvas"
TIMES = 3
AT_LEAST = 10.0
QUIET_SECS, QUIET_CPU_SECS, MOST_SECS = 2.0, 0.1, 180.0


def renderer_secs(session: CDPSession) -> float:
    """What all renderer processes have used so far."""
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return float(sum(each["cpuTime"] for each in processes if each["type"] == "renderer"))


def cost_secs(session: CDPSession, page: Page, act: Callable[[], object]) -> float:
    """The CPU time that something takes, until the page is quiet again."""
    before = renderer_secs(session)
    act()
    started, last = time.monotonic(), before
    while time.monotonic() - started < MOST_SECS:
        page.wait_for_timeout(1000 * QUIET_SECS)
        now = renderer_secs(session)
        if now - last < QUIET_CPU_SECS:
            break
        last = now
    return renderer_secs(session) - before


def own_secs(browser: Browser, session: CDPSession, address: str) -> float:
    """Everything opened in this viewer's graph."""
    with opened(browser, address) as (page, _):
        page.goto("#/demo/large/graph")
        wait_until_drawn(page, GRAPH)
        page.wait_for_timeout(3000)
        button = page.get_by_role("button", name="open all")
        cost = cost_secs(session, page, button.click)
        assert button.get_attribute("aria-pressed") == "true"
        return cost


def peer_secs(browser: Browser, session: CDPSession, address: str) -> float:
    """Everything expanded in Model Explorer."""
    with opened(browser, address) as (page, _):
        page.goto(address)
        button = page.locator(".expand-all").first
        button.wait_for(timeout=60_000)
        page.wait_for_timeout(5000)
        return cost_secs(session, page, button.click)


def peer_graph(modules: int) -> dict[str, Any]:
    """The graph in Model Explorer's own format: modules that hold others are its layers."""
    draft = GraphDraft(varied_tree(modules))
    around = {call[2] for call in draft.calls}
    layers = {call[0] for place, call in enumerate(draft.calls) if place in around}

    def place(site: Site) -> tuple[str, str]:
        if site.tensor_class == "tensor":
            return site.name, ""
        is_layer = site.module in layers
        parts = site.module.split(".") if is_layer else site.module.split(".")[:-1]
        return (site.name if is_layer else site.module), "/".join(["model", *filter(None, parts)])

    places = [place(site) for site in draft.sites]
    nodes: dict[str, dict[str, Any]] = {}
    for site, (name, layer) in zip(draft.sites, places, strict=True):
        fresh = {"id": name, "label": site.module_class or name, "namespace": layer}
        nodes.setdefault(name, {**fresh, "incomingEdges": []})
    pairs = {(places[source][0], places[sink][0]) for source, sink in draft.edges}
    for source, sink in sorted(pairs):
        if source != sink:
            nodes[sink]["incomingEdges"].append({"sourceNodeId": source})
    return {"label": "large", "graphs": [{"id": "large", "nodes": list(nodes.values())}]}


@contextmanager
def peer_server(python: Path, file: Path) -> Iterator[str]:
    """The address at which Model Explorer shows a file."""
    words = [python.with_name("model-explorer"), file, "--no_open_in_browser"]
    words += ["--host", "127.0.0.1", "--port", str(PORT)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    address = f"http://127.0.0.1:{PORT}/"
    with subprocess.Popen([str(word) for word in words], **quiet, env=os.environ) as server:  # type: ignore[call-overload]
        try:
            _wait_for(address)
            yield f"{address}?data={quote(json.dumps({'models': [{'url': str(file)}]}))}"
        finally:
            server.terminate()


def _wait_for(address: str) -> None:
    for _ in range(60):
        try:
            urlopen(address).close()
            return
        except OSError:
            time.sleep(0.5)
    raise UnavailableError("its server did not start")


def main() -> None:
    """Measure both in turns, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=10_000)
    options = parser.parse_args()
    try:
        python = environment(PEER)
    except UnavailableError as error:
        print(f"Model Explorer is not compared with: {error}")
        return
    own, peer = [], []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_graph_run(root, varied_tree(options.modules), name="large", steps=2)
        file = root / "large.json"
        file.write_text(json.dumps(peer_graph(options.modules)))
        with viewer(root) as address, peer_server(python, file) as other:
            for _ in range(TIMES):
                # A browser of its own each time: nothing is left of the time before.
                with chromium() as browser:
                    own.append(own_secs(browser, browser.new_browser_cdp_session(), address))
                with chromium() as browser:
                    peer.append(peer_secs(browser, browser.new_browser_cdp_session(), other))
    ratio = sorted(peer)[TIMES // 2] / sorted(own)[TIMES // 2]
    print(f"opening all of {options.modules:,} modules, CPU time of the renderer:")
    print("  here           " + ", ".join(f"{secs:.2f} s" for secs in own))
    print("  Model Explorer " + ", ".join(f"{secs:.2f} s" for secs in peer))
    print(f"  {ratio:.1f} times less{'' if ratio >= AT_LEAST else '  OVER'}")


if __name__ == "__main__":
    main()
