"""Makes a run of what others recorded: a frame, training statistics, or both."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from backlight.errors import BacklightError
from backlight.exchange.frame import SAME_STATISTICS
from backlight.exchange.frame_schema import checked
from backlight.exchange.training import Scalar
from backlight.own.statistic import BUILT_IN
from backlight.schema import FORMAT_VERSION, SKETCH_BIAS, RunInfo, Site, is_own_name
from backlight.store.runs import process_started
from backlight.store.writer import RunWriter, create_run_folder

_CLASSES: Final = {"Activation": "output", "Weight": "parameter", "Optimiser_State": "optimizer"}
_PLACES: Final = {"output": ":out.0", "parameter": ".weight", "optimizer": ":state"}
_ROWS_AT_ONCE: Final = 10_000
_NO_UNITS: Final = dict.fromkeys(("units", "dead_units", "constant_units", "batch_std"))


class _Row(NamedTuple):
    metadata: dict[str, Any]
    statistics: dict[str, float]
    counts: dict[int | float, int]


def import_frame(
    frame: Any,
    root: str | Path = "backlight-runs",
    *,
    project: str = "imported",
    name: str = "frame",
    scalars: Sequence[Scalar] = (),
) -> Path:
    """Write a frame, with training statistics beside it, as a run, and return its folder.

    A frame says neither the signs of elements nor more of their size than the power of two: in
    the run's sketches each count is spread evenly over both signs, unless `min` and `max` say
    otherwise, and over the four quarters of its power of two. Statistics that a run has no column
    for become its own; where their name cannot be a column's, scalars.
    """
    rows = _rows(checked(frame))
    sites = _sites(rows)
    path, writer, info = _begin(Path(root), project, name, {"imported": "a frame"})
    info.modules = _modules(sites.values())
    names = _own_names(rows)
    info.statistics = [_own_statistic(each) for each in names]
    writer.append_rows("sites", [asdict(site) for site in sites.values()])
    classes = _classes_by_name(rows)
    stats, unknown = [], []
    seen: Counter[tuple[Any, ...]] = Counter()
    for order, row in enumerate(rows):
        site = sites[row.metadata["name"], _class_of(row, classes)]
        own = [_finite(row.statistics.get(each)) for each in names]
        stats.append({**_stats_row(row, site, order, seen), "own": own or None})
        unknown += _unknown(row, site, names)
    for first in range(0, len(stats), _ROWS_AT_ONCE):
        writer.append_rows("stats", stats[first : first + _ROWS_AT_ONCE])
    _end(writer, info, {row["step"] for row in stats}, [*scalars, *unknown])
    return path


def import_scalars(
    scalars: Sequence[Scalar],
    root: str | Path = "backlight-runs",
    *,
    project: str = "imported",
    name: str = "training",
) -> Path:
    """Write training statistics from elsewhere as a run of their own, and return its folder."""
    if not scalars:
        raise BacklightError("There are no training statistics to import.")
    path, writer, info = _begin(Path(root), project, name, {"imported": "training statistics"})
    _end(writer, info, set(), scalars)
    return path


def _rows(frame: Any) -> list[_Row]:
    groups = [frame[group].to_dict("records") for group in ("metadata", "scalar_stats")]
    columns = frame["exponent_counts"].columns.tolist()
    counts = frame["exponent_counts"].fillna(0).to_numpy(np.int64)
    exponents = [each if abs(each) == float("inf") else int(each) for each in columns]
    return [
        _Row(said, told, {exponents[place]: int(own[place]) for place in np.flatnonzero(own)})
        for said, told, own in zip(*groups, counts, strict=True)
    ]


def _classes_by_name(rows: list[_Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        named = found.setdefault(row.metadata["name"], set())
        if row.metadata["tensor_type"] in _CLASSES:
            named.add(_CLASSES[row.metadata["tensor_type"]])
    return found


def _class_of(row: _Row, classes: dict[str, set[str]]) -> str:
    """A gradient is that of the activation of its name, or else of the weight."""
    own = _CLASSES.get(row.metadata["tensor_type"])
    known = classes[row.metadata["name"]]
    return own or ("parameter" if "parameter" in known and "output" not in known else "output")


def _sites(rows: list[_Row]) -> dict[tuple[str, str], Site]:
    classes = _classes_by_name(rows)
    found: dict[tuple[str, str], Site] = {}
    wanted = dict.fromkeys((row.metadata["name"], _class_of(row, classes)) for row in rows)
    shared = Counter(name for name, _ in wanted)
    types = {row.metadata["name"]: str(row.metadata["type"] or "") for row in rows}
    for number, (name, tensor_class) in enumerate(wanted):
        full = name + (_PLACES[tensor_class] if shared[name] > 1 else "")
        module, place = _module_and_place(full, tensor_class)
        found[name, tensor_class] = Site(
            number, full, tensor_class, module, types[name], place, node=module, role=place
        )
    return found


def _module_and_place(name: str, tensor_class: str) -> tuple[str, str]:
    if tensor_class != "output":
        module, _, place = name.rpartition(".")
        return module, place
    module, _, place = name.partition(":")
    return module, place or "out.0"


def _modules(sites: Iterable[Site]) -> list[dict[str, Any]]:
    classes = {site.module: site.module_class for site in sites}
    return [{"name": name, "class": class_} for name, class_ in classes.items()]


def _stats_row(row: _Row, site: Site, order: int, seen: Counter[tuple[Any, ...]]) -> dict[str, Any]:
    step = int(row.metadata["step"])
    quantity = "grad" if row.metadata["tensor_type"] == "Gradient" else "value"
    iteration = seen[step, site.site, quantity]
    seen[step, site.site, quantity] += 1
    nans = int(_finite(row.statistics.get("nans")) or 0)
    statistics = _statistics(row)
    keys, counts = _sketch(row.counts, statistics["min"], statistics["max"])
    return {
        "step": step,
        "iteration": iteration,
        "order": order,
        "site": site.site,
        "quantity": quantity,
        "backward": "",
        "shape": [],
        "dtype": str(row.metadata["dtype"]).removeprefix("torch."),
        "count": sum(row.counts.values()) + nans,
        "zeros": row.counts.get(float("-inf"), 0),
        "nans": nans,
        "infs": row.counts.get(float("inf"), 0),
        **statistics,
        **_NO_UNITS,
        "sketch_keys": keys,
        "sketch_counts": counts,
    }


def _statistics(row: _Row) -> dict[str, float | None]:
    told = row.statistics
    found = {ours: _finite(told.get(theirs)) for theirs, ours in SAME_STATISTICS.items()}
    largest = found["abs_max"]
    if largest is not None and found["min"] is None and found["max"] is None:
        found["min"], found["max"] = -largest, largest  # as much as is known
    return found


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def _sketch(
    counts: dict[int | float, int], least: float | None, greatest: float | None
) -> tuple[list[int], list[int]]:
    has_negative, has_positive = least is None or least < 0, greatest is None or greatest > 0
    signs = [sign for sign, has in ((-1, has_negative), (1, has_positive)) if has] or [1]
    found: dict[int, int] = {}
    for exponent, count in counts.items():
        if not isinstance(exponent, int):
            continue
        first = (exponent + SKETCH_BIAS) * 4 + 1
        bins = [sign * (first + quarter) for quarter in range(4) for sign in signs]
        each, left = divmod(count, len(bins))
        found |= {key: each + (place < left) for place, key in enumerate(bins)}
    keys = sorted(key for key, count in found.items() if count)
    return keys, [found[key] for key in keys]


def _own_names(rows: list[_Row]) -> list[str]:
    """The statistics that a run has no column for, but may have as its own."""
    told = dict.fromkeys(str(name) for row in rows for name in row.statistics)
    return [name for name in told if name not in SAME_STATISTICS and is_own_name(name)]


def _own_statistic(name: str) -> dict[str, str]:
    kind = "magnitude" if name in BUILT_IN else "signed"
    return {"name": name, "kind": kind, "about": BUILT_IN.get(name, "imported with a frame")}


def _unknown(row: _Row, site: Site, own: list[str]) -> list[Scalar]:
    step, kind = int(row.metadata["step"]), row.metadata["tensor_type"]
    known = {*SAME_STATISTICS, *own, "nans"}
    return [
        Scalar(step, f"{name}/{kind}/{site.name}", float(value), 0.0)
        for name, value in row.statistics.items()
        if name not in known and value is not None and np.isfinite(value)
    ]


def _begin(
    root: Path, project: str, name: str, recorder: dict[str, Any]
) -> tuple[Path, RunWriter, RunInfo]:
    path = create_run_folder(root, project, name)
    info = RunInfo(
        format=FORMAT_VERSION,
        id=uuid.uuid4().hex,
        project=project,
        name=path.name,
        created_at=time.time(),
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=process_started(os.getpid()),
        recorder=recorder,
    )
    writer = RunWriter(path)
    writer.write_info(info)
    return path, writer, info


def _end(writer: RunWriter, info: RunInfo, recorded: set[int], scalars: Sequence[Scalar]) -> None:
    losses = {each.step: each.value for each in scalars if each.name in ("loss", "train/loss")}
    rows = [
        {
            "step": step,
            "kind": "train",
            "recorded": step in recorded,
            "reason": "imported",
            "iterations": 1,
            "batch_size": None,
            "graph": "",
            "started_at": info.created_at,
            "duration_secs": 0.0,
            "recording_secs": 0.0,
            "loss": losses.get(step),
            "learning_rate": None,
        }
        for step in sorted(recorded | {each.step for each in scalars})
    ]
    writer.append_rows("steps", rows)
    logged = [
        {"step": s.step, "name": s.name, "value": s.value, "logged_at": s.at or info.created_at}
        for s in sorted(scalars)
    ]
    writer.append_rows("scalars", logged)
    info.ended_at, info.ended = time.time(), "finished"
    writer.close()
    writer.write_info(info)
