"""The docs say what is so: links lead somewhere, examples run, quoted help is the program's.

A block that starts with ```` ```python run ```` is run, together with the others of its page and in
their order. A block whose first line is `$ backlight … --help` is compared with that help.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"(?P<html>[^\"]+)\"")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def links(page: Path) -> list[str]:
    """The relative targets of a page's links and images, those inside blocks of code left out."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    targets = [match["target"] or match["html"] for match in LINK.finditer(text)]
    return [target for target in targets if not re.match(r"[a-z]+:|//", target)]


def blocks(page: Path, info: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [match["body"] for match in BLOCK.finditer(text) if match["info"].strip() == info]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}"


@each_page
def test_python_is_python(page: Path) -> None:
    for number, body in enumerate([*blocks(page, "python"), *blocks(page, "python run")]):
        compile(body, f"{page.name}, block {number}", "exec")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python run")], ids=lambda page: page.name
)
def test_marked_python_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python run")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, body) for page in PAGES for body in blocks(page, "text") if body.startswith("$ ")],
)
def test_quoted_help_is_the_programs(page: Path, block: str) -> None:
    command, _, quoted = block.partition("\n")
    arguments = shlex.split(command.removeprefix("$ "))
    assert arguments[0] == "backlight", f"{page.name} quotes {command}"
    done = subprocess.run(
        [sys.executable, "-m", "backlight", *arguments[1:]],
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert without_trailing_space(quoted) == without_trailing_space(done.stdout)


def without_trailing_space(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
