"""ARCHITECTURE.md names every module, and the modules keep to their side of the store."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "backlight"

# Imports each module given and prints, for each, the forbidden ones that are loaded by then.
PROBE = """
import importlib, json, sys
modules, forbidden = json.loads(sys.argv[1])
loaded = {}
for module in modules:
    importlib.import_module(module)
    loaded[module] = [name for name in forbidden if name in sys.modules]
print(json.dumps(loaded))
"""


def modules_under(*places: str) -> list[str]:
    """The modules in these folders of the package, and these modules themselves."""
    files: list[Path] = []
    for place in places:
        folder = PACKAGE / place
        files += sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [module_name(file) for file in files if file.is_file()]


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded_by(modules: list[str], forbidden: list[str]) -> dict[str, list[str]]:
    """Which forbidden modules are loaded once each module is imported, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([modules, forbidden])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, list[str]] = json.loads(done.stdout)
    return loaded


def test_importing_backlight_imports_no_framework() -> None:
    forbidden = ["torch", "jax", "duckdb", "starlette"]
    assert loaded_by(["backlight"], forbidden) == {"backlight": []}


def test_nothing_right_of_the_store_imports_torch() -> None:
    modules = modules_under(
        *("store/reader", "store/queries", "diagnosis", "serve", "custom", "export", "exchange"),
        *("notebook", "plots", "single_file", "doctor", "cli", "__main__"),
    )
    assert {"backlight.store.reader", "backlight.serve.app", "backlight.cli"} <= set(modules)
    assert "backlight.diagnosis.engine" in modules
    assert loaded_by(modules, ["torch", "jax"]) == {module: [] for module in modules}


def test_nothing_left_of_the_store_imports_duckdb_or_starlette() -> None:
    modules = modules_under("api", "recorder", "journal", "capture", "reduce", "store/writer")
    assert {"backlight.recorder", "backlight.store.writer"} <= set(modules)
    assert loaded_by(modules, ["duckdb", "starlette"]) == {module: [] for module in modules}


def test_the_probe_sees_what_is_imported() -> None:
    assert loaded_by(["json", "wave"], ["wave"]) == {"json": [], "wave": ["wave"]}


def documented() -> list[str]:
    """The paths that ARCHITECTURE.md has a line for."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return re.findall(r"^- `((?:src/backlight|web/src)/[^`]+)`: \S", text, flags=re.MULTILINE)


def present() -> set[str]:
    """The paths that ARCHITECTURE.md has to have a line for."""
    files = [
        *(file for file in PACKAGE.rglob("*.py") if not is_trivial(file) and not is_rule(file)),
        *PACKAGE.rglob("*.c"),
    ]
    folders = [
        *{file.parent for file in PACKAGE.rglob("*.sql")},
        PACKAGE / "diagnosis" / "rules",
        *(folder for folder in (ROOT / "web" / "src").iterdir() if folder.is_dir()),
    ]
    paths = {file.relative_to(ROOT).as_posix() for file in files}
    return paths | {folder.relative_to(ROOT).as_posix() + "/" for folder in folders}


def is_rule(file: Path) -> bool:
    """Whether a file is one of the rules, which are named after their faults."""
    return file.parent == PACKAGE / "diagnosis" / "rules"


def is_trivial(file: Path) -> bool:
    """Whether a file is an `__init__.py` with no more than a docstring."""
    if file.name != "__init__.py":
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return len(body) == 0 or (
        len(body) == 1 and ast.get_docstring(ast.Module(body, [])) is not None
    )


def test_architecture_lists_every_module() -> None:
    assert present() - set(documented()) == set()


def test_architecture_lists_nothing_that_does_not_exist() -> None:
    assert [path for path in documented() if not (ROOT / path).exists()] == []


def test_architecture_lists_nothing_twice() -> None:
    paths = documented()
    assert sorted(set(paths)) == sorted(paths)
