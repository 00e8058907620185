"""All that the rules ask of a run, read once."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from backlight.diagnosis.calls import (
    FunctionalCall,
    chance_level,
    label_counts,
    made_by,
    parse_calls,
)
from backlight.diagnosis.losses import LossCurve
from backlight.diagnosis.network import Module, Network, make_network
from backlight.diagnosis.series import (
    Real,
    SeriesTable,
    Statistics,
    Whole,
    chosen_steps,
    load_series,
)
from backlight.errors import BacklightError
from backlight.schema import QUANTITIES, TABLES, Evidence, RunInfo, Site
from backlight.store.graphs import read_graph
from backlight.store.reader import RunReader
from backlight.store.snapshot import Snapshot
from backlight.store.sparse import SparseStats

_MODE: Final = re.compile(r"^in evaluation mode: (.*)$")
_MOST_CALLS: Final = 20_000
_MOST_POINTS: Final = 64  # of one piece of evidence
_LEAST_STEPS: Final = 4  # of those that are looked at


@dataclass(frozen=True)
class Facts:
    """What is known of a run."""

    info: RunInfo
    sites: dict[int, Site]
    series: SeriesTable
    network: Network
    loss: LossCurve
    rates: tuple[Whole, Real]  # steps, and the learning rate at each
    calls: list[FunctionalCall]
    graph: dict[str, Any]
    modes: list[tuple[int, list[str]]]  # from which step on which modules are in evaluation mode
    iterations: int  # of a step, at most
    last_step: int

    @property
    def steps(self) -> Whole:
        """The recorded steps that are looked at."""
        return self.series.steps

    def stat(self, site: Site | int, statistic: str, quantity: str = "value") -> Real:
        """A statistic of a site over the steps; NaN where there is none."""
        number = site if isinstance(site, int) else site.site
        return self.series.get(number, quantity, statistic)

    def has(self, site: Site, quantity: str) -> bool:
        """Whether a quantity was observed at a site."""
        return self.series.has(site.site, quantity)

    def shape(self, site: Site, quantity: str = "value") -> tuple[int, ...]:
        """The shape of a tensor as it was first seen."""
        row = self.series.rows.get((site.site, QUANTITIES.index(quantity)))
        return () if row is None else self.series.shapes[row]

    def dtype(self, site: Site, quantity: str = "value") -> str:
        """The dtype of a tensor as it was first seen."""
        row = self.series.rows.get((site.site, QUANTITIES.index(quantity)))
        return "" if row is None else self.series.dtypes[row]

    def gradient(self, parameter: Site, statistic: str = "rms") -> Real:
        """The gradient as the optimizer saw it, and as autograd made it where they are equal."""
        made = self.stat(parameter, statistic, "grad")
        applied = self.stat(parameter, statistic, "grad_applied")
        return np.where(np.isfinite(applied), applied, made)

    def evidence(
        self, site: Site, statistic: str, quantity: str = "value", text: str = ""
    ) -> Evidence:
        """A statistic of a site over the steps, to be drawn."""
        values = self.stat(site, statistic, quantity)
        return thinned(site.name, self.steps, values, text, quantity, statistic)

    def loss_evidence(self) -> Evidence:
        """The loss over the steps, to be drawn; None where it is not finite."""
        steps, values = self.loss.steps, self.loss.values
        shown = np.linspace(0, len(steps) - 1, min(_MOST_POINTS, len(steps))).astype(int)
        return Evidence(
            "(loss)",
            "value",
            "mean",
            tuple(int(steps[at]) for at in shown),
            tuple(float(values[at]) if np.isfinite(values[at]) else None for at in shown),
        )

    def call_evidence(
        self, call: FunctionalCall, measure: Callable[[FunctionalCall], float | None], text: str
    ) -> Evidence:
        """What a line's calls of a function tell over the steps, to be drawn."""
        found: dict[int, float] = {}
        for each in self.calls:
            if (each.name, each.source) == (call.name, call.source):
                value = measure(each)
                if value is not None:
                    found.setdefault(each.step, float(value))
        return thinned("", np.array([*found]), np.array([*found.values()], np.float64), text)

    def first_step(self, mask: Any) -> int:
        """The first step at which something is so; the first of all if it never is."""
        found = np.flatnonzero(mask)
        return int(self.steps[found[0]]) if len(found) else int(self.steps[0])

    # -- the network

    @property
    def model_inputs(self) -> list[Site]:
        """What the outermost modules are given."""
        tops = [m for name, m in self.network.modules.items() if not self._is_inside(name)]
        return [site for module in tops for site in module.inputs]

    def _is_inside(self, name: str) -> bool:
        if not name:
            return False
        if "" in self.network.modules and self.network.modules[""].outputs:
            return True
        around = name.rpartition(".")[0]
        while around:
            if around in self.network.modules and self.network.modules[around].is_called:
                return True
            around = around.rpartition(".")[0]
        return False

    @property
    def model_outputs(self) -> list[Site]:
        """What the outermost modules return."""
        tops = [m for name, m in self.network.modules.items() if not self._is_inside(name)]
        return [site for module in tops for site in module.outputs]

    def is_trained(self, module: Module) -> bool:
        """Whether an optimizer ever changed one of the module's own parameters."""
        return any(self.has(parameter, "update") for parameter in module.parameters)

    @cached_property
    def batch_size(self) -> int | None:
        """The first dimension of what the model is given."""
        shapes = [self.shape(site) for site in self.model_inputs]
        sizes = [shape[0] for shape in shapes if len(shape) > 1]
        return sizes[0] if sizes else None

    @cached_property
    def successors(self) -> dict[int, list[int]]:
        """For each site, those that were made from it, in the last graph that was walked."""
        found: dict[int, list[int]] = {}
        for pairs in self.graph.get("edges", {}).values():
            for source, sink in pairs:
                found.setdefault(source, []).append(sink)
        return found

    @cached_property
    def predecessors(self) -> dict[int, list[int]]:
        """For each site, those that it was made from, each once."""
        found: dict[int, dict[int, None]] = {}
        for source, sinks in self.successors.items():
            for sink in sinks:
                found.setdefault(sink, {})[source] = None
        return {sink: list(sources) for sink, sources in found.items()}

    # -- the loss

    @cached_property
    def comparisons(self) -> list[FunctionalCall]:
        """Losses, and differences between what the network says and what it should say."""
        losses = [call for call in self.calls if call.is_loss]
        return losses or [call for call in self.calls if call.is_comparison and not call.module]

    @cached_property
    def chance(self) -> float | None:
        """The loss of the best answer that does not look at the input, if that can be told."""
        losses = [call for call in self.calls if call.is_loss]
        if len({(call.name, call.source) for call in losses}) != 1:
            return self._chance_of_a_square()
        levels = [chance_level(call, label_counts(losses)) for call in losses]
        known = [level for level in levels if level is not None]
        return float(np.median(known)) if known else None

    def _chance_of_a_square(self) -> float | None:
        """Where the loss is the mean of squared differences, written out."""
        by_hand = [c for c in self.calls if c.name == "sub" and not c.module]
        if any(call.is_loss for call in self.calls) or len({c.source for c in by_hand}) != 1:
            return None
        spreads = [float(call.target.get("std") or 0.0) for call in by_hand]
        is_mean = made_by(self.backward_root) == "Mean"
        return float(np.median(spreads)) ** 2 or None if is_mean else None

    @cached_property
    def backward_root(self) -> dict[str, Any]:
        """What is known of the tensor that the first backward pass started from."""
        for call in self.calls:
            if call.name == "backward":
                told = call.arguments.get("input", call.arguments.get("tensors"))
                return told if isinstance(told, dict) else {}
        return {}

    @cached_property
    def learned(self) -> float | None:
        """Which part of the loss of mere guessing is gone at the end; None if that is unknown."""
        if self.chance is None or not self.chance > 0 or not np.isfinite(self.loss.last):
            return None
        return float(1 - self.loss.last / self.chance)

    @cached_property
    def learning(self) -> slice:
        """The steps, of those that are known, until most was learned; all if it never was.

        What is at its limits after that, or has no gradient left, learning has brought there.
        """
        loss = self.loss
        is_learned = loss.gain > 0.9 if self.learned is None else self.learned > 0.8
        if not loss.is_known or not is_learned:
            return slice(None)
        goal = loss.first - 0.8 * (loss.first - loss.best)
        finite = loss.steps[np.isfinite(loss.values)]
        there = int(finite[np.flatnonzero(loss.smooth <= goal)[0]])
        return slice(0, max(_LEAST_STEPS, int((self.steps <= there).sum())))


def thinned(
    site: str,
    steps: Any,
    values: Any,
    text: str,
    quantity: str = "value",
    statistic: str = "mean",
) -> Evidence:
    """Evidence of at most 64 steps, where there are numbers.

    >>> thinned("fc", np.arange(3), np.array([1.0, np.nan, 3.0]), "").steps
    (0, 2)
    """
    seen = np.flatnonzero(np.isfinite(values))
    if len(seen) > _MOST_POINTS:
        seen = seen[np.linspace(0, len(seen) - 1, _MOST_POINTS).astype(int)]
    return Evidence(
        site,
        quantity,
        statistic,
        tuple(int(steps[at]) for at in seen),
        tuple(float(values[at]) for at in seen),
        text,
    )


def read_facts(path: Path) -> Facts:
    """Read a run."""
    stats = SparseStats(path)
    stats.refresh()
    return facts_of(stats.reader, stats)


def facts_of(reader: RunReader, stats: Statistics | None = None) -> Facts:
    """What is known of a run that is read already; `stats` where `reader` does not hold them."""
    snapshot = reader.snapshot
    stats = stats or snapshot
    steps = _training_steps(snapshot)
    series = load_series(stats, chosen_steps(_recorded(stats, steps)))
    sites = {row["site"]: _site(row) for row in snapshot.held["sites"].to_pylist()}
    orders = {
        int(site): int(order)
        for site, quantity, order in zip(
            series.sites, series.quantities, series.orders, strict=True
        )
        if quantity == 0
    }
    return Facts(
        info=reader.info,
        sites=sites,
        series=series,
        network=make_network(reader.info.modules, list(sites.values()), orders),
        loss=_loss(snapshot, steps, series, sites),
        rates=(steps["step"], steps["learning_rate"]),
        calls=_calls(snapshot),
        graph=_graph(reader),
        modes=_modes(snapshot),
        iterations=int(steps["iterations"].max(initial=1)),
        last_step=int(steps["step"].max(initial=0)),
    )


def _training_steps(snapshot: Snapshot) -> dict[str, Any]:
    """The steps in which something was trained, in order, as arrays."""
    table = snapshot.held["steps"]
    if table.num_rows:
        lowest = min(table["rank"].to_pylist())
        table = table.filter(np.asarray(table["rank"]) == lowest).sort_by("step")
    columns = {
        name: np.asarray(table[name].to_numpy(zero_copy_only=False), np.float64)
        for name in ("step", "iterations", "loss", "learning_rate")
    }
    kinds = np.asarray(table["kind"].to_pylist(), object)
    columns["has_loss"] = np.asarray(table["loss"].is_valid().to_numpy(zero_copy_only=False), bool)
    is_training = (kinds == "train") | columns["has_loss"]
    if not is_training.any():
        is_training[:] = True
    chosen = {name: values[is_training] for name, values in columns.items()}
    return {**chosen, "step": chosen["step"].astype(np.int64)}


def _recorded(stats: Statistics, steps: dict[str, Any]) -> Whole:
    recorded = stats.recorded_steps
    trained = recorded[np.isin(recorded, steps["step"])]
    return trained if len(trained) else recorded


def _site(row: dict[str, Any]) -> Site:
    known = {name: row[name] for name in Site.__slots__}
    return Site(**{**known, "aliases": tuple(row["aliases"])})


def _loss(
    snapshot: Snapshot, steps: dict[str, Any], series: SeriesTable, sites: dict[int, Site]
) -> LossCurve:
    """The loss of each step; of a run that has none, what was logged or seen as such."""
    if steps["has_loss"].any():
        return LossCurve.of(steps["step"][steps["has_loss"]], steps["loss"][steps["has_loss"]])
    scalars = snapshot.held["scalars"]
    logged = np.asarray(scalars["name"].to_pylist(), object) == "loss"
    if logged.any():
        rows = scalars.filter(logged).sort_by("step")
        return LossCurve.of(rows["step"].to_numpy(), rows["value"].to_numpy())
    for site in sites.values():
        if site.kind == "loss" and series.has(site.site, "value"):
            return LossCurve.of(series.steps, series.get(site.site, "value", "mean"))
    return LossCurve.of(np.empty(0, np.int64), np.empty(0))


def _calls(snapshot: Snapshot) -> list[FunctionalCall]:
    names = TABLES["calls"].names
    rows = snapshot.all_rows("calls", names).sort_by([("step", "ascending")])
    return parse_calls(rows.slice(0, _MOST_CALLS).to_pylist())


def _graph(reader: RunReader) -> dict[str, Any]:
    named = [each for each in reader.snapshot.held["steps"]["graph"].to_pylist() if each]
    for name in dict.fromkeys(reversed(named)):
        with suppress(BacklightError):
            return read_graph(reader.path, name)
    return {}


def _modes(snapshot: Snapshot) -> list[tuple[int, list[str]]]:
    found = []
    for row in snapshot.held["events"].sort_by("step").to_pylist():
        match = _MODE.match(row["text"]) if row["kind"] == "mode" else None
        if match:
            names = [] if match[1] == "none" else match[1].split(", ")
            found.append((row["step"], names))
    return found
