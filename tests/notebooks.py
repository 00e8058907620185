"""Runs real notebooks in a real browser; `make test-notebook` installs what they need first."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, environment
from playwright.sync_api import Browser, expect
from small_runs import record

CELLS = ("import backlight", "widget = backlight.open('RUN').show('graph')\nwidget")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        number: int = bound.getsockname()[1]
        return number


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def program(*words: str, port: int) -> Iterator[None]:
    """A server that is ended at the end; waits until it listens."""
    own = {"HOME": str(Path.cwd()), "PYTHONWARNINGS": "default"}
    started = subprocess.Popen([sys.executable, "-m", *words], env=environment() | own)
    try:
        while not _listens(port):
            assert started.poll() is None, "The server ended before it listened."
            time.sleep(0.1)
        yield
    finally:
        started.terminate()
        started.wait(30)


def walk(frame: Any) -> None:
    """Sees the page in its frame, clicks, and sees the answer."""
    frame.locator("main canvas").first.wait_for(timeout=90_000)
    frame.get_by_role("link", name="Heatmap").click()
    expect(frame.get_by_role("main")).to_have_attribute("aria-label", "Heatmap", timeout=30_000)
    frame.locator("main canvas").first.wait_for()
    expect(frame.get_by_role("alert")).to_have_count(0)


def test_jupyterlab(browser: Browser, run: Path, tmp_path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "id": str(i),
            "source": text.replace("RUN", str(run)),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for i, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    port = free_port()
    words = ("jupyterlab", "--no-browser", f"--port={port}", "--ServerApp.token=", "--allow-root")
    with program(*words, f"--ServerApp.root_dir={tmp_path}", port=port):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/lab/tree/book.ipynb?reset")
        page.locator(".jp-Notebook .jp-Cell").nth(1).wait_for(timeout=90_000)
        page.wait_for_timeout(4000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        walk(page.frame_locator("iframe[title=Backlight]"))
        page.screenshot(path=os.environ.get("BACKLIGHT_PICTURE", str(tmp_path / "lab.png")))
        page.close()


def test_marimo(browser: Browser, run: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.py"
    book.write_text(
        "import marimo\napp = marimo.App()\n\n@app.cell\ndef _():\n    import backlight\n"
        "    import marimo as mo\n"
        f"    mo.ui.anywidget(backlight.open({str(run)!r}).show('graph'))\n    return\n\n"
        "if __name__ == '__main__':\n    app.run()\n"
    )
    port = free_port()
    with program(
        "marimo", "run", str(book), "--headless", "--port", str(port), "--no-token", port=port
    ):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{port}")
        walk(page.frame_locator("iframe[title=Backlight]"))
        page.close()
