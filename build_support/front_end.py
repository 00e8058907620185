"""Builds the page of `web/` into the package, unless the bundle there is of the same sources.

As a program, `python -m build_support.front_end` does that and says nothing if there is no need.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from build_support import node
from build_support.node import ROOT, WEB, BuildError

BUNDLE: Final = ROOT / "src" / "backlight" / "serve" / "static"
HASH_FILE: Final = ".source-hash"
SOURCE_FOLDERS: Final = ("src", "public")


def ensure() -> None:
    """Build the page if it has to be, in this tree and with these settings."""
    if not must_build():
        return
    print("building Backlight's page (web/)", file=sys.stderr, flush=True)
    node.install_packages()
    _build(source_hash())


def must_build() -> bool:
    """Whether there are sources whose bundle is not there, and the page is wanted."""
    if os.environ.get("BACKLIGHT_SKIP_WEB", "") not in ("", "0"):
        return False
    if not (WEB / "package.json").is_file():
        return False
    stored = BUNDLE / HASH_FILE
    return not (stored.is_file() and stored.read_text().strip() == source_hash())


def source_hash() -> str:
    """The hash of everything in `web/` that the bundle is made from."""
    digest = hashlib.sha256()
    for file in sorted(_sources(), key=lambda file: file.relative_to(WEB).as_posix()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(WEB).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    # Beside the folders of sources lie the page and the configuration; dot files are editors'.
    yield from (file for file in WEB.iterdir() if file.is_file() and file.name[0] != ".")
    for folder in SOURCE_FOLDERS:
        yield from (file for file in (WEB / folder).rglob("*") if file.is_file())


def _build(hash_of_sources: str) -> None:
    BUNDLE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".page-", dir=BUNDLE.parent) as scratch:
        fresh = Path(scratch) / "new"
        done = node.npm("run", "build", BACKLIGHT_WEB_OUT=str(fresh))
        if done.returncode != 0 or not (fresh / "index.html").is_file():
            raise BuildError(
                f"{done.stdout}\nBacklight's page cannot be built because `npm run build` failed "
                "in web/, see above."
            )
        (fresh / HASH_FILE).write_text(hash_of_sources + "\n")
        # A viewer that runs from this tree sees the old page or the new one, never a half.
        if BUNDLE.exists():
            BUNDLE.rename(Path(scratch) / "old")
        shutil.move(fresh, BUNDLE)


if __name__ == "__main__":
    try:
        ensure()
    except BuildError as error:
        sys.exit(str(error))
