"""How fast a large run is read: by Backlight, and by the plain alternatives.

Makes runs of half a million and of 50 million observations (about 18 GB, removed afterwards unless
`--keep`), and asks each, in a process of its own that starts with no file in memory: to open it
(all that the viewer shows at first, but for the heatmap), for a site's history, its sketches, a
step at all sites, a heatmap (2,000 sites, up to 500 columns), a tile of one (256 by 256, at any
zoom), and the newest 100 steps at all sites. Beside them stand SQLite with an index for either
order, and TensorBoard's event files with its own reader, both of which hold the statistics and no
sketches.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from environments import UnavailableError, environment
from store_questions import QUESTIONS, answer

HERE = Path(__file__).parent
SITES = 2000
TENSORBOARD = "tensorboard==2.21.0"
TOOLS = ("backlight", "sqlite", "tensorboard")
MOST_OF_TENSORBOARD = 500_000
"""Beyond that it is left out: its reader holds all of it, some kilobytes for each observation."""

BUDGET_MS = 200.0
BUDGET_MB = 1500.0
AT_OPENING = ("open", "heatmap")  # of these the first call counts too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=None, help="where the runs are made")
    parser.add_argument("--steps", type=int, nargs="+", default=[250, 25_000])
    parser.add_argument("--times", type=int, default=40, help="how often each question is asked")
    parser.add_argument("--keep", action="store_true", help="keep what was made, and use it again")
    parser.add_argument("--only-make", action="store_true", help="make the runs and ask nothing")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this tool")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options.steps[0], options.times)
        return
    root = options.root or Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        results = measure(root, options)
    finally:
        if not (options.keep or options.only_make):
            for made in (root / "bench", *(root / tool for tool in TOOLS)):
                shutil.rmtree(made, ignore_errors=True)
    sys.exit(0 if options.only_make or show(results) else 1)


def work(what: str, tool: str, path: str, steps: int, times: int) -> None:
    """In a process of a tool's own: make its files, or ask it."""
    if what == "ask":
        print(json.dumps(answer(tool, Path(path), SITES, times)))
        return
    draft = Path(path).with_name(".making")  # what is killed in its middle is made anew
    shutil.rmtree(draft, ignore_errors=True)
    if tool == "backlight":
        from store_data import write_run

        made = write_run(draft, sites=SITES, steps=steps)
    else:
        from store_peers import write_peer

        made = write_peer(tool, draft / tool, sites=SITES, steps=steps)
    made.replace(path)
    shutil.rmtree(draft)


Result = tuple[str, int, dict[str, Any], float]


def measure(root: Path, options: argparse.Namespace) -> list[Result]:
    """Make what is not there yet, and ask."""
    results = []
    for steps in options.steps:
        rows = SITES * steps
        for tool in options.tool or TOOLS:
            path = root / ("bench" if tool == "backlight" else tool) / f"{SITES}x{steps}"
            try:
                found = one(tool, path, rows, options)
            except UnavailableError as error:
                found = {"error": str(error)}
            size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            results.append((tool, rows, found, size_bytes / rows))
    return results


def one(tool: str, path: Path, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a tool took with one size of run."""
    if tool == "tensorboard" and rows > MOST_OF_TENSORBOARD:
        raise UnavailableError("left out: what the row above takes, a hundred times")
    python = str(environment(TENSORBOARD)) if tool == "tensorboard" else sys.executable
    asked = ["--times", str(options.times), "--steps", str(rows // SITES)]
    if not path.exists():
        check_room(path, rows)
        print(f"making {rows:,} observations for {tool} in {path}", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        child(python, "make", tool, str(path), *asked)
    if options.only_make:
        return {"error": "made"}
    found: dict[str, Any] = json.loads(child(python, "ask", tool, str(path), *asked))
    return found


def check_room(path: Path, rows: int) -> None:
    there = next(each for each in path.parents if each.exists())
    need_bytes = rows * 260
    if shutil.disk_usage(there).free < need_bytes:
        raise SystemExit(f"{rows:,} observations need {need_bytes / 1e9:.0f} GB free in {there}.")


def child(python: str, *words: str) -> str:
    """Work in a process of its own, whose memory is the tool's alone; the last line it says."""
    command = [python, str(HERE / "store.py"), "--work", *words]
    source = {"PYTHONPATH": str(HERE.parent / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **source})
    if done.returncode:
        raise UnavailableError((done.stderr.strip() or "it was killed").splitlines()[-1])
    return (done.stdout.strip() or "{}").splitlines()[-1]


def show(results: list[Result]) -> bool:
    """Print the table; whether Backlight kept its budgets."""
    from rich.console import Console
    from rich.table import Table

    title = "milliseconds: 95th percentile, (first call), and both of the processor"
    table = Table(title=title, caption=f"budget: {BUDGET_MS:.0f} ms and {BUDGET_MB:,.0f} MB")
    for heading in ("tool", "observations", *QUESTIONS, "peak MB", "bytes each"):
        table.add_column(heading, justify="left" if heading == "tool" else "right")
    for tool, rows, found, bytes_each in results:
        if "error" in found:
            table.add_row(tool, f"{rows:,}", found["error"])
            continue
        cells = [summary(found["times"].get(question)) for question in QUESTIONS]
        table.add_row(tool, f"{rows:,}", *cells, f"{found['peak_mb']:,.0f}", f"{bytes_each:.0f}")
    Console(width=170).print(table)
    own = [found for tool, _, found, _ in results if tool == "backlight"]
    return all(is_within_budget(found) for found in own)


def summary(times: list[tuple[float, float]] | None) -> str:
    """The 95th percentile and the first call: by the clock, and of the processor."""
    if times is None:
        return "none"
    percentiles = np.percentile(np.array(times), 95, axis=0)
    cells = [
        f"{each:,.0f} ({first:,.0f})" for each, first in zip(percentiles, times[0], strict=True)
    ]
    return "\n".join(cells)


def is_within_budget(found: dict[str, Any]) -> bool:
    if "error" in found:
        return False
    walls = {name: [wall for wall, _ in times] for name, times in found["times"].items()}
    slowest = [float(np.percentile(each, 95)) for each in walls.values()]
    slowest += [walls[name][0] for name in AT_OPENING]
    return max(slowest) <= BUDGET_MS and bool(found["peak_mb"] <= BUDGET_MB)


if __name__ == "__main__":
    main()
