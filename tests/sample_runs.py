"""Small runs that look real, written the way the recorder writes them, without any framework.

`python tests/sample_runs.py ROOT` writes a finished run; `--live` goes on with a step each 0.2 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from backlight.schema import FORMAT_VERSION, SKETCH_BIAS, STATS, RunInfo, Site
from backlight.store.runs import process_started
from backlight.store.writer import RunWriter, create_run_folder

ELEMENTS = 256
STARTED_SECS_AGO = 600.0
_PARTS = (("norm", "LayerNorm"), ("attn", "Linear"), ("fc", "Linear"), ("act", "GELU"))


def write_sample_run(
    root: Path,
    *,
    project: str = "demo",
    name: str = "sample",
    steps: int = 200,
    sites: int = 40,
    end: str | None = "finished",
    seed: int = 0,
    with_nan: bool = False,
) -> Path:
    """Write a run and return its folder; with `end=None` it looks like one that still trains."""
    run = SampleRun(root, project, name, sites=sites, seed=seed)
    nan_from = max(1, int(steps * 0.6)) if with_nan else None
    for step in range(steps):
        run.append_step(step, poisoned=nan_from is not None and step >= nan_from)
    run.append_note(min(steps, 10), "the learning rate is warm now")
    run.end(end)
    return run.path


class SampleRun:
    """A run that is written step by step.

    With `different`, so many steps have statistics of their own, which then come again and again:
    a run of very many steps is written quickly.
    """

    def __init__(
        self,
        root: Path,
        project: str,
        name: str,
        *,
        sites: int,
        seed: int,
        different: int | None = None,
    ) -> None:
        self.path = create_run_folder(root, project, name)
        self.writer = RunWriter(self.path)
        self.sites = make_sites(sites)
        self.places = observed_places(self.sites)
        self.rng = np.random.default_rng(seed)
        self.different = different
        self.made: dict[int, pa.RecordBatch] = {}
        self.loss = 4.0
        self.info = RunInfo(
            format=FORMAT_VERSION,
            id=f"{project}/{self.path.name}",
            project=project,
            name=self.path.name,
            created_at=time.time() - STARTED_SECS_AGO,
            host=platform.node(),
            pid=os.getpid(),
            pid_started=process_started(os.getpid()),
            config={
                "lr": 3e-4,
                "batch_size": 32,
                "optimizer": {"name": "AdamW", "betas": [0.9, 0.95]},
            },
            environment={"python": platform.python_version(), "platform": platform.platform()},
            modules=make_modules(self.sites),
            recorder={"every": 1, "faults": {}},
        )
        self.writer.write_info(self.info)
        self.writer.append_rows("sites", [asdict(site) for site in self.sites])

    def append_step(self, step: int, *, poisoned: bool = False, kind: str = "train") -> None:
        """Append one step: its statistics where it is recorded, its scalars, and its times."""
        recorded = is_recorded(step)
        if recorded:
            self.writer.append("stats", self._stats(step, poisoned))
        noise = float(self.rng.normal()) * 0.05
        self.loss = float("nan") if poisoned else 0.4 + 3.6 * float(np.exp(-step / 80)) + noise
        now = time.time()
        values = {"loss": self.loss, "lr": 3e-4 * min(1.0, (step + 1) / 20)}
        self.writer.append_rows(
            "scalars",
            [{"step": step, "name": k, "value": v, "logged_at": now} for k, v in values.items()],
        )
        times = {"started_at": now, "duration_secs": 0.1, "recording_secs": 0.01 * recorded}
        times |= {"iterations": 1, "batch_size": None, "graph": ""}
        reason = "every step at first" if recorded else "every other step later"
        self.writer.append_rows(
            "steps",
            [{"step": step, "kind": kind, "recorded": recorded, "reason": reason, **times}],
        )

    def _stats(self, step: int, poisoned: bool) -> pa.RecordBatch:
        if self.different is None:
            return stats_batch(step, self.places, self.rng, poisoned)
        like = step % self.different
        if like not in self.made:
            self.made[like] = stats_batch(step, self.places, self.rng, poisoned)
        made = self.made[like]
        steps = pa.array(np.full(made.num_rows, step), pa.int64())
        return made.set_column(0, STATS.field("step"), steps)

    def append_note(self, step: int, text: str) -> None:
        """Append a note, as `run.note(…)` would."""
        row = {"step": step, "text": text, "written_at": time.time()}
        self.writer.append_rows("notes", [row])

    def end(self, how: str | None) -> None:
        """Close the streams, and say in `run.json` how the run ended if it did."""
        self.writer.close()
        if how is not None:
            self.info.ended, self.info.ended_at = how, time.time()
            self.writer.write_info(self.info)


def is_recorded(step: int) -> bool:
    """The first hundred steps are recorded, then every other one."""
    return step < 100 or step % 2 == 0


def make_sites(count: int) -> list[Site]:
    """Sites in the order of first sight: outputs, then parameters, then optimizer states."""
    layers = [("embed", "Embedding")]
    while len(layers) * 4 < count:
        block, part = divmod(len(layers) - 1, len(_PARTS))
        layers.append((f"blocks.{block}.{_PARTS[part][0]}", _PARTS[part][1]))
    layers.append(("head", "Linear"))
    drafts = [(f"{m}:out.0", "output", m, c, "out.0") for m, c in layers]
    owners = [(m, c) for m, c in layers if c != "GELU"]
    drafts += [
        (f"{m}.{p}", "parameter", m, c, p)
        for m, c in owners
        for p in (("weight",) if c == "Embedding" else ("weight", "bias"))
    ]
    drafts += [
        (f"{m}.weight:{s}", "optimizer", m, c, f"weight.{s}")
        for m, c in owners
        for s in ("exp_avg", "exp_avg_sq")
    ]
    return [Site(number, *draft) for number, draft in enumerate(drafts[:count])]


def make_modules(sites: list[Site]) -> list[dict[str, Any]]:
    """The module tree as `run.json` has it."""
    tree: list[dict[str, Any]] = [{"name": "", "class": "Sample", "parameters": 0, "extra": ""}]
    for site in sites:
        if site.tensor_class == "output":
            module = {"name": site.module, "class": site.module_class}
            tree.append({**module, "parameters": 2 * ELEMENTS, "extra": "16, 16"})
    return tree


@dataclass(frozen=True)
class Place:
    """One quantity at one site, with the spread of its values."""

    site: Site
    quantity: str
    scale: float


def observed_places(sites: list[Site]) -> list[Place]:
    """What a step observes, in order: forward, backward, then what the optimizer does."""
    outputs = [site for site in sites if site.tensor_class == "output"]
    depth = {site.site: position for position, site in enumerate(outputs)}
    places = [Place(site, "value", 1.0) for site in outputs]
    places += [Place(s, "grad", 1e-2 * 0.8 ** depth[s.site]) for s in reversed(outputs)]
    for site in sites:
        if site.tensor_class == "parameter":
            scales = {"value": 0.05, "grad": 1e-3, "grad_applied": 8e-4, "update": 3e-5}
            places += [Place(site, quantity, scale) for quantity, scale in scales.items()]
        elif site.tensor_class == "optimizer":
            places.append(Place(site, "value", 1e-4))
    return places


def stats_batch(
    step: int, places: list[Place], rng: np.random.Generator, poisoned: bool
) -> pa.RecordBatch:
    """The statistics of one step, by the plainest arithmetic that there is."""
    rows = []
    for order, place in enumerate(places):
        scale = place.scale * (1.0 + 0.5 * np.sin(step / 25 + place.site.site))
        values = rng.normal(0.0, scale, ELEMENTS)
        if place.site.module_class == "GELU" and place.quantity == "value":
            values = np.maximum(values, 0.0)
        if poisoned and place.site.site >= len(places) // 8:
            values[:7], values[7:10] = np.nan, np.inf
        rows.append({"step": step, "order": order, **observation(place, values)})
    return pa.RecordBatch.from_pylist(rows, schema=STATS)


def observation(place: Place, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """One row of the statistics, but for its step and order."""
    finite = values[np.isfinite(values)]
    magnitudes = np.abs(finite)
    keys, counts = sketch(finite)
    is_activation = place.site.tensor_class == "output"
    batch = values.reshape(16, 16)
    return {
        "iteration": 0,
        "site": place.site.site,
        "quantity": place.quantity,
        "backward": "",
        "dtype": "float32",
        "shape": [16, 16],
        "count": values.size,
        "zeros": int((finite == 0).sum()),
        "nans": int(np.isnan(values).sum()),
        "infs": int(np.isinf(values).sum()),
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "abs_mean": float(magnitudes.mean()),
        "abs_max": float(magnitudes.max()),
        "rms": float(np.sqrt((finite**2).mean())),
        "units": 16 if is_activation else None,
        "dead_units": int((batch == 0).all(axis=0).sum()) if is_activation else None,
        "constant_units": int((batch == batch[0]).all(axis=0).sum()) if is_activation else None,
        "batch_std": float(finite.std()) if is_activation else None,
        "sketch_keys": keys,
        "sketch_counts": counts,
    }


def sketch(
    values: np.ndarray[Any, np.dtype[np.float64]],
) -> tuple[list[int], list[int]]:
    """The keys and counts of `schema.sketch_key`, for many values at once."""
    values = values[values != 0]
    mantissa, exponent = np.frexp(np.abs(values))
    quarter = ((mantissa * 2.0 - 1.0) * 4.0).astype(np.int64)
    magnitude = (exponent - 1 + SKETCH_BIAS) * 4 + quarter + 1
    keys, counts = np.unique(np.where(values > 0, magnitude, -magnitude), return_counts=True)
    return keys.tolist(), counts.tolist()


def live_steps(first: int, *, every_secs: float) -> Iterator[int]:
    """Numbers of steps, one each `every_secs`, without end."""
    while True:
        time.sleep(every_secs)
        yield first
        first += 1


def main() -> None:
    """Write one run; with --live go on until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--project", default="demo")
    parser.add_argument("--name", default="sample")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sites", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--with-nan", action="store_true")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--every-secs", type=float, default=0.2, help="with --live")
    parser.add_argument("--different", type=int, help="steps of their own statistics, with --live")
    options = vars(parser.parse_args())
    every_secs, different = options.pop("every_secs"), options.pop("different")
    if options.pop("live"):
        write_live(options, every_secs, different)
    else:
        print(write_sample_run(options.pop("root"), **options))


def write_live(options: dict[str, Any], every_secs: float, different: int | None) -> None:
    """Write the first steps at once and then one after the other, until interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may have none
    run = SampleRun(
        options["root"],
        options["project"],
        options["name"],
        sites=options["sites"],
        seed=options["seed"],
        different=different,
    )
    print(run.path, flush=True)
    for step in range(options["steps"]):
        run.append_step(step)
    try:
        for step in live_steps(options["steps"], every_secs=every_secs):
            run.append_step(step, poisoned=options["with_nan"])
    except KeyboardInterrupt:
        run.end("finished")


if __name__ == "__main__":
    main()
