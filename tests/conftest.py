"""What every test relies on: faults of the recorder are raised, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

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
