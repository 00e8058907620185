"""Runs that have a graph, of any size, written the way the recorder writes them.

`python tests/graph_runs.py ROOT` writes one of about ten thousand modules, no two blocks alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sample_runs
from sample_runs import SampleRun

from backlight.schema import Site

_LEAVES = (("norm", "LayerNorm"), ("proj", "Linear"), ("act", "GELU"), ("mix", "Conv1d"))


@dataclass
class Tree:
    """A module and those in it."""

    name: str
    kind: str
    extra: str = ""
    inside: list[Tree] = field(default_factory=list)


def block_tree(blocks: int) -> Tree:
    """Equal blocks between an embedding and a head."""
    inner = [
        Tree(f"blocks.{number}", "Block", inside=[
            Tree("norm", "LayerNorm"),
            Tree("attn", "Attention", inside=[Tree("qkv", "Linear"), Tree("out", "Linear")]),
            Tree("fc", "Linear"),
        ])
        for number in range(blocks)
    ]  # fmt: skip
    return Tree("", "Net", inside=[Tree("embed", "Embedding"), *inner, Tree("head", "Linear")])


def varied_tree(modules: int, seed: int = 0) -> Tree:
    """About as many modules, nested four deep, with no two neighbours alike."""
    rng = np.random.default_rng(seed)
    root, count = Tree("", "Net"), 1
    while count < modules:
        stage = Tree(f"stages.{len(root.inside)}", "Stage")
        root.inside.append(stage)
        count += 1
        while len(stage.inside) < 20 and count < modules:
            block = Tree(f"{len(stage.inside)}", "Block")
            stage.inside.append(block)
            for part in range(int(rng.integers(5, 9))):
                leaves = [_leaf(rng, place) for place in range(int(rng.integers(4, 9)))]
                block.inside.append(Tree(f"part{part}", "Part", inside=leaves))
                count += 1 + len(leaves)
    return root


def _leaf(rng: np.random.Generator, place: int) -> Tree:
    name, kind = _LEAVES[int(rng.integers(len(_LEAVES)))]
    return Tree(f"{name}{place}", kind, extra=f"width={int(rng.integers(64))}")


class GraphDraft:
    """The sites, calls and edges of a network that runs its modules one after another."""

    def __init__(self, tree: Tree, *, recurrent: bool = False, prefix: str = "") -> None:
        self.prefix = prefix
        self.sites: list[Site] = []
        self.edges: list[tuple[int, int]] = []
        self.calls: list[list[Any]] = []
        self.modules: list[dict[str, Any]] = []
        inputs = [self._tensor("x", "input")]
        if recurrent:
            inputs.append(self._tensor("memory", "hidden"))
        for number in range(2):
            hint = self._tensor(f"hint {number}", "helper", node="hints", role=f"hint {number}")
            self.edges.append((inputs[0], hint)) if number == 0 else None
        out = self._module(tree, "", inputs, -1)
        if recurrent:
            self.edges.append((out, inputs[1]))
        target, loss = self._tensor("target", "target"), self._tensor("loss", "loss")
        self.edges += [(out, loss), (target, loss)]

    def to_json(self) -> dict[str, Any]:
        """The graph as the recorder writes it."""
        content = {
            "nodes": [[site.site, site.tensor_class] for site in self.sites],
            "edges": {"autograd": self.edges, "manual": [], "data": []},
            "calls": self.calls,
        }
        digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
        return {"signature": digest, **content}

    def _tensor(self, name: str, kind: str, *, node: str = "", role: str = "") -> int:
        name = self.prefix + name
        draft = (name, "tensor", "", "", name)
        return self._site(*draft, node=node or name, role=role or name, kind=kind)

    def _module(self, tree: Tree, around: str, inputs: list[int], parent: int) -> int:
        name = ".".join(part for part in (around, self.prefix + tree.name) if part and tree.name)
        shown, place = name or "(model)", len(self.calls)
        self.calls.append([name, 1, parent])
        has_weight = tree.kind in ("Linear", "Embedding", "Conv1d")
        parameters = sample_runs.ELEMENTS if has_weight else 0
        entry = {"name": name, "class": tree.kind, "parameters": parameters, "extra": tree.extra}
        self.modules.append(entry)

        def site(label: str, kind: str, place: str) -> int:
            return self._site(label, kind, name, tree.kind, place, node=shown, role=place)

        ins = [site(f"{shown}:in.{i}", "input", f"in.{i}") for i in range(len(inputs))]
        self.edges += zip(inputs, ins, strict=True)
        last = ins
        for child in tree.inside:
            last = [self._module(child, name, last, place)]
        if has_weight:
            last = [*last, site(f"{name}.weight", "parameter", "weight")]
        out = site(f"{shown}:out.0", "output", "out.0")
        skips = ins if tree.kind in ("Block", "Part") else []
        self.edges += [(source, out) for source in (*last, *skips)]
        return out

    def _site(self, *draft: str, node: str, role: str, kind: str = "") -> int:
        number = len(self.sites)
        self.sites.append(Site(number, *draft, node=node, role=role, kind=kind))
        return number


def write_graph_run(
    root: Path,
    tree: Tree,
    *,
    name: str = "graph",
    steps: int = 6,
    iterations: int = 1,
    prefix: str = "",
    with_nan: bool = False,
) -> Path:
    """Write a run whose steps have a graph; every other one is of the kind "test"."""
    draft = GraphDraft(tree, recurrent=iterations > 1, prefix=prefix)
    run = SampleRun(root, "demo", name, sites=0, seed=0)
    run.sites, run.info.modules = draft.sites, draft.modules
    run.writer.write_info(run.info)
    run.writer.append_rows("sites", [asdict(site) for site in draft.sites])
    graph = draft.to_json()
    run.writer.write_graph(graph["signature"], graph)
    run.places = sample_runs.observed_places(draft.sites)
    run.places += [
        sample_runs.Place(site, "value", 1.0)
        for site in draft.sites
        if site.tensor_class in ("input", "tensor")
    ]
    for step in range(steps):
        poisoned = with_nan and step == steps - 1
        _append_step(run, step, iterations, graph["signature"], poisoned)
    run.end("finished")
    return run.path


def _append_step(run: SampleRun, step: int, iterations: int, graph: str, poisoned: bool) -> None:
    for iteration in range(iterations):
        batch = sample_runs.stats_batch(step, run.places, run.rng, poisoned)
        rows = batch.to_pylist()
        for row in rows:
            row["iteration"] = iteration
        outside = {site.site for site in run.sites if _is_outside(site)}
        kept = [row for row in rows if iteration == 0 or row["site"] not in outside]
        run.writer.append_rows("stats", kept)
    now = time.time()
    times = {"started_at": now, "duration_secs": 0.1, "recording_secs": 0.01}
    kind = "test" if step % 2 else "train"
    row = {"step": step, "kind": kind, "recorded": True, "reason": "every step", **times}
    # A graph is followed at the first step of its kind, and holds for those after it.
    followed = graph if step < 2 else ""
    more = {"iterations": iterations, "batch_size": 16, "graph": followed}
    run.writer.append_rows("steps", [{**row, **more}])
    loss = {"step": step, "name": "loss", "value": 1.0 / (step + 1), "logged_at": now}
    run.writer.append_rows("scalars", [loss])


def _is_outside(site: Site) -> bool:
    """Whether a site is seen once for all iterations of a step."""
    return site.tensor_class == "parameter" or site.kind in ("target", "loss")


def main() -> None:
    """Write a large run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--name", default="large")
    options = parser.parse_args()
    print(write_graph_run(options.root, varied_tree(options.modules), name=options.name, steps=2))


if __name__ == "__main__":
    main()
