"""What every test relies on: faults of the recorder are raised, and nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Here and not in a fixture: modules read it when imported, and subprocesses inherit it.
os.environ["BACKLIGHT_STRICT"] = "1"

# On a busy machine one slow example says nothing.
settings.register_profile("backlight", deadline=None, database=None)
settings.load_profile("backlight")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test writes to the current folder, such as a run, out of the tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder for runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


# Most tests need no browser, so what starts one is imported only where one does.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a file."""
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the viewer at the file's `address`; no fault of it goes unnoticed."""
    from browser import watched_page

    with watched_page(browser, address) as (opened, _):
        yield opened
