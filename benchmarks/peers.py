"""How much slower training is under Backlight and under its peers, every step recorded.

Each peer is installed into an environment of its own, once, under the user's cache folder; torch is
the one that Backlight is measured with. Then, for each loop, one process for each tool takes turns
with bare training and with a second bare process as a control. The tools do not record the same:
the table says what each does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from environments import UnavailableError, environment
from loops import LOOPS
from rich.console import Console
from rich.table import Table
from trainer import Trainer, ratio, take_turns

PEERS = {
    "wandb": "wandb==0.31.0",
    "torchexplorer": "torchexplorer==1.1.2",
    "comgra": "comgra==0.11.5",
}
RECORDS = {
    "backlight": "all activations, parameters, their gradients, optimizer state; stored",
    "wandb": "parameters and their gradients; stored (watch with log='all', offline)",
    "torchexplorer": "a sample of activations, parameters and their gradients; not stored",
    "comgra": "outputs that are named, parameters, their gradients; stored",
}
NEEDS = {"torchexplorer": ("dot", "Graphviz, such as apt's package graphviz")}


def peer_environment(peer: str) -> Path:
    """The Python of a peer's environment, which is made if there is none."""
    program, package = NEEDS.get(peer, ("", ""))
    if program and shutil.which(program) is None:
        raise UnavailableError(f"it needs the program {program!r}: install {package}.")
    return environment(PEERS[peer])


def prepare(console: Console) -> tuple[dict[str, Path], dict[str, str]]:
    """The Python of each peer that can be had, and why the others cannot."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    with console.status("installing the peers, once"), ThreadPoolExecutor() as pool:
        waiting = {peer: pool.submit(peer_environment, peer) for peer in PEERS}
    for peer, future in waiting.items():
        try:
            pythons[peer] = future.result()
        except UnavailableError as error:
            missing[peer] = str(error)
    return pythons, missing


def measure(
    loop: str, rounds: int, root: Path, pythons: dict[str, Path]
) -> tuple[dict[str, float], dict[str, str]]:
    """The ratios of one loop by tool, `step_ms` of bare training, and why tools failed."""
    trainers = {
        "bare": Trainer(loop, "bare", root),
        "control": Trainer(loop, "bare", root),
        "backlight": Trainer(loop, "backlight", root),
    }
    for peer, python in pythons.items():
        own = root / peer / loop
        own.mkdir(parents=True)
        trainers[peer] = Trainer(loop, peer, own, python=python)
    times, failures = take_turns(trainers, rounds, f"{loop:>6}", shortest_block=2)
    if "bare" in failures:
        return {}, failures
    measured = [name for name in trainers if name != "bare" and name not in failures]
    ratios = {name: ratio(times[name], times["bare"]) for name in measured}
    return {**ratios, "step_ms": median(times["bare"]) * 1000}, failures


def show(
    console: Console, results: dict[str, dict[str, float]], failures: dict[tuple[str, str], str]
) -> None:
    """Print the table of ratios, and below it what each tool records and what failed."""
    table = Table(title="time of a training step, every one recorded, as a ratio to bare training")
    for heading in ("tool", *results):
        table.add_column(heading, justify="left" if heading == "tool" else "right")
    steps = (f"{found['step_ms']:.2f} ms" if found else "–" for found in results.values())
    table.add_row("bare step", *steps)
    for tool in ("control", "backlight", *PEERS):
        cells = (f"{found[tool]:.2f}" if tool in found else "–" for found in results.values())
        table.add_row(tool, *cells)
    console.print(table)
    for tool, records in RECORDS.items():
        console.print(f"{tool} {version(tool)} records {records}", highlight=False, soft_wrap=True)
    for (tool, loop), reason in failures.items():
        console.print(f"{tool}, {loop}: {reason}", highlight=False, soft_wrap=True)


def version(tool: str) -> str:
    """Which version was measured."""
    if tool in PEERS:
        return PEERS[tool].partition("==")[2]
    return importlib.metadata.version(tool)


def main() -> None:
    """Measure the loops that are asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="blocks that each process trains")
    parser.add_argument("--loop", choices=sorted(LOOPS), action="append", help="only this loop")
    arguments = parser.parse_args()
    console = Console()
    pythons, missing = prepare(console)
    failures = {(peer, "all loops"): reason for peer, reason in missing.items()}
    results: dict[str, dict[str, float]] = {}
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        for loop in arguments.loop or list(LOOPS):
            results[loop], failed = measure(loop, arguments.rounds, root, pythons)
            failures |= {(tool, loop): reason for tool, reason in failed.items()}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(console, results, failures)


if __name__ == "__main__":
    main()
