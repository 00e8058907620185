"""A real browser on a real viewer, for the tests of the page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
BUNDLE = SOURCE / "backlight" / "serve" / "static" / "index.html"
WAIT_SECS = 30.0

expect.set_options(timeout=WAIT_SECS * 1000)

_FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
).split()


def environment() -> dict[str, str]:
    """For subprocesses: the package and the helpers of the tests can be imported."""
    path = os.pathsep.join([str(SOURCE), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}


@contextmanager
def viewer(root: Path, port: int = 0, *, custom: Path | None = None) -> Iterator[str]:
    """The address of `backlight view`, running as a process of its own; on a free port for 0."""
    with serving(root, port, custom=custom) as (address, _):
        yield address


@contextmanager
def serving(
    root: Path, port: int = 0, *, custom: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The same, with the process."""
    assert BUNDLE.is_file(), "The page is not built: run `make web`."
    words = ["view", str(root), "--no-browser", "--port", str(port)]
    words += ["--custom", str(custom)] if custom else []
    with process("-m", "backlight", *words) as started:
        yield _read(started, r"http://\S+"), started


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that is ended at the end."""
    started = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGINT)
        try:
            started.communicate(timeout=WAIT_SECS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()
            raise


@contextmanager
def training(root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run that is written at this moment, a step each 0.2 s."""
    script = str(TESTS / "sample_runs.py")
    with process(script, str(root), "--live", "--steps", "5", "--sites", "12", *options) as started:
        _read(started, r"\S+")
        yield started


def _read(started: subprocess.Popen[str], pattern: str) -> str:
    """The first thing in a process's output that is like this."""
    for line in started.stdout or ():
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"The process ended with {started.wait()} and never said {pattern!r}.")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser, without a screen."""
    path = shutil.which("chromium")
    assert path, "Chromium is not installed."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


@dataclass
class Watch:
    """What went wrong in a page. A test may take out of `faults` what it caused on purpose."""

    host: str
    faults: list[str] = field(default_factory=list)
    unanswered: set[Request] = field(default_factory=set)

    def on_console(self, message: ConsoleMessage) -> None:
        """Note what the page complains about."""
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def on_request(self, request: Request) -> None:
        """Note what the page wants, and whether that is elsewhere."""
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and url.netloc != self.host:
            self.faults.append(f"request to another host: {request.url}")
        if request.resource_type != "eventsource":  # which has no end
            self.unanswered.add(request)

    def on_answer(self, request: Request) -> None:
        """Note that the page has what it asked for, or never will."""
        self.unanswered.discard(request)


_watches: WeakKeyDictionary[Page, Watch] = WeakKeyDictionary()


@contextmanager
def watched_page(browser: Browser, address: str, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """A page in which any error, complaint or request to elsewhere fails the test."""
    context = browser.new_context(
        base_url=address,
        **{"viewport": {"width": 1280, "height": 720}, "color_scheme": "light", **options},
    )
    context.set_default_timeout(WAIT_SECS * 1000)
    page = context.new_page()
    watch = _watches[page] = Watch(urlsplit(address).netloc)
    page.on("console", watch.on_console)
    page.on("request", watch.on_request)
    page.on("requestfinished", watch.on_answer)
    page.on("requestfailed", watch.on_answer)
    page.on("pageerror", lambda error: watch.faults.append(f"page error: {error}"))
    try:
        yield page, watch
    finally:
        context.close()
    assert not watch.faults, "\n".join(watch.faults)


@contextmanager
def held_back(page: Page, pattern: str | re.Pattern[str]) -> Iterator[list[Route]]:
    """What is asked like this, and is not answered before the end."""
    held: list[Route] = []
    is_over = False

    def hold(route: Route) -> None:
        if is_over:
            route.continue_()
        else:
            held.append(route)

    page.route(pattern, hold)
    yield held
    is_over = True
    for route in held:
        route.continue_()


def wait_until_drawn(page: Page, selector: str) -> Locator:
    """Wait until the first canvas that is found shows something, and return it."""
    page.wait_for_function(
        """selector => {
            const canvas = document.querySelector(selector);
            if (!canvas || canvas.width < 2 || canvas.height < 2) return false;
            // Read from a copy: reading from the page's own canvas would change how it is drawn.
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const { data } = context.getImageData(0, 0, copy.width, copy.height);
            return new Set(new Uint32Array(data.buffer)).size > 2;
        }""",
        arg=selector,
    )
    return page.locator(selector).first


def wait_for_answers(page: Page) -> None:
    """Wait until the page has all that it asked for, and drew what it made of that."""
    watch = _watches[page]
    until = time.monotonic() + WAIT_SECS
    quiet_frames = 0
    while quiet_frames < 10:
        assert time.monotonic() < until, f"not answered: {watch.unanswered}"
        page.evaluate("() => new Promise(requestAnimationFrame)")
        quiet_frames = 0 if watch.unanswered else quiet_frames + 1


def wait_until_still(page: Page, selector: str) -> Locator:
    """Wait until the page has all that it asked for, and the first canvas stays as it is."""
    canvas = page.locator(selector).first
    until = time.monotonic() + WAIT_SECS
    before = None
    while picture(canvas) != before:
        assert time.monotonic() < until, f"{selector} changes all the time"
        before = picture(canvas)
        wait_for_answers(page)
    return canvas


def picture(canvas: Locator) -> str:
    """What a canvas shows, to be compared."""
    drawn: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return drawn


def wait_for_other_picture(page: Page, selector: str, before: str) -> None:
    """Wait until a canvas no longer shows what it showed before."""
    page.wait_for_function(
        "([selector, before]) => document.querySelector(selector).toDataURL() !== before",
        arg=[selector, before],
    )


def cut_words(page: Page) -> list[str]:
    """What is cut of the words of a view and of the inspector: at an edge, or in what is chosen."""
    cut: list[str] = page.evaluate(
        """() => {
            const cut = [];
            for (const element of document.querySelectorAll("main *, aside *")) {
                const { textOverflow } = getComputedStyle(element);
                const isWider = element.scrollWidth > element.clientWidth;
                if (textOverflow === "ellipsis" && isWider) cut.push(element.innerText);
            }
            for (const select of document.querySelectorAll("main select")) {
                const whole = select.cloneNode(true);
                whole.value = select.value;
                whole.style.cssText = "position: absolute; flex: none; field-sizing: content";
                select.after(whole);
                const isNarrow = select.offsetWidth < whole.offsetWidth - 1;
                whole.remove();
                if (isNarrow) cut.push(select.selectedOptions[0].text);
            }
            return cut;
        }"""
    )
    return cut
