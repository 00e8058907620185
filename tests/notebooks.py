"""Runs real notebooks in a real browser; `make test-notebook` installs what they need first."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import environment
from playwright.sync_api import Browser, expect
from small_runs import record

LAB = (
    "import backlight\nimport lab_page_model as own",
    "widget = backlight.lab(own.model, own.inputs, target=own.target, loss=own.loss)\nwidget",
)
CELLS = ("import backlight", "widget = backlight.open('RUN').show('graph')\nwidget")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"))


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


def edit(frame: Any) -> None:
    """Sees the lab in its frame, clicks a cell of the input, and sees that the flows change."""
    flows = frame.locator("canvas[data-links]")
    flows.wait_for(timeout=90_000)
    expect(frame.locator("header")).to_contain_text(re.compile(r"\d+ ms"), timeout=30_000)
    before = flows.evaluate("canvas => canvas.toDataURL()")
    frame.locator('canvas[aria-label="Input"]').click(position={"x": 40, "y": 60})
    expect(frame.locator("aside").first).to_contain_text("1 edit")
    expect(frame.locator(".lab")).to_have_attribute("aria-busy", "false", timeout=30_000)
    assert flows.evaluate("canvas => canvas.toDataURL()") != before
    expect(frame.get_by_role("alert")).to_have_count(0)


Walk = Callable[[Any], None]


@pytest.mark.parametrize(("texts", "walk"), [(CELLS, walk), (LAB, edit)], ids=["viewer", "lab"])
def test_jupyterlab(
    browser: Browser, run: Path, tmp_path: Path, texts: tuple[str, ...], walk: Walk
) -> None:
    cells = [
        {
            "cell_type": "code",
            "id": str(i),
            "source": text.replace("RUN", str(run)),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for i, text in enumerate(texts)
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


@pytest.mark.parametrize(("texts", "walk"), [(CELLS, walk), (LAB, edit)], ids=["viewer", "lab"])
def test_marimo(
    browser: Browser, run: Path, tmp_path: Path, texts: tuple[str, ...], walk: Walk
) -> None:
    book = tmp_path / "book.py"
    lines = "\n".join(texts).replace("RUN", str(run)).splitlines()
    body = "\n".join(f"    {line}" for line in lines[:-1])
    book.write_text(
        "import marimo\napp = marimo.App()\n\n@app.cell\ndef _():\n    import marimo as mo\n"
        f"{body}\n    mo.ui.anywidget(widget)\n    return\n\n"
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
