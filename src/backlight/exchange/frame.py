"""A run as a pandas frame of metadata, scalar statistics and exponent counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from backlight.errors import BacklightError
from backlight.exchange.frame_schema import METADATA, checked, pandas_module
from backlight.store.moments import least_magnitude, power_mean
from backlight.store.own import own_names
from backlight.store.sketch import Sketch

if TYPE_CHECKING:
    from backlight.store.opened import OpenedRun

SAME_STATISTICS: Final = {
    "mean": "mean",
    "std": "std",
    "min": "min",
    "max": "max",
    "mean_abs": "abs_mean",
    "max_abs": "abs_max",
    "rm2": "rms",
}
"""What a frame calls our statistics."""

_VALUES: Final = {
    "input": "Activation",
    "output": "Activation",
    "tensor": "Activation",
    "parameter": "Weight",
    "optimizer": "Optimiser_State",
}


def frame_of(run: OpenedRun, name: str | None = None, **choice: Any) -> Any:
    """The frame of a run, or of what is chosen of it as in `run.stats`.

    Values and gradients are in it. Buffers, updates and the gradient after clipping are not: the
    schema has no word for them.
    """
    sites = {row["name"]: row for row in run.sites(name)}
    own = own_names(run.info)
    sketches = run.sketches(name, **choice)
    rows, counted = [], []
    for row, sketch in zip(sketches.table, sketches, strict=True):
        tensor_type = _tensor_type(sites[row["name"]]["tensor_class"], row["quantity"])
        if tensor_type is None or not _is_float(row["dtype"]):
            continue
        site = sites[row["name"]]
        said = (row["name"], site["module_class"], tensor_type, row["step"], row["dtype"])
        rows.append({**_metadata(said), **_statistics(row, sketch, own)})
        counted.append(_counts(sketch))
    if not rows:
        raise BacklightError(f"Nothing that was chosen of {run.name!r} fits into a frame.")
    return checked(_frame(rows, counted))


def _tensor_type(tensor_class: str, quantity: str) -> str | None:
    if quantity == "grad":
        return "Gradient"
    return _VALUES.get(tensor_class) if quantity == "value" else None


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _metadata(said: Iterable[Any]) -> dict[Any, Any]:
    return {("metadata", name): value for name, value in zip(METADATA, said, strict=True)}


def _statistics(row: dict[str, Any], sketch: Sketch, own: Iterable[str]) -> dict[Any, Any]:
    """Ours, those that the frame has by custom, told from the sketch, and the run's own."""
    found = {theirs: row[ours] for theirs, ours in SAME_STATISTICS.items()}
    found["min_abs"] = least_magnitude(sketch)
    found |= {f"rm{power}": power_mean(sketch, power) for power in (4, 8)}
    found |= {name: row[name] for name in own if name not in found or row[name] is not None}
    found["nans"] = row["nans"]
    return {("scalar_stats", name): value for name, value in found.items()}


def _counts(sketch: Sketch) -> dict[int | float, int]:
    table = sketch.exponents()
    both = np.add(table["negative"].to_numpy(), table["positive"].to_numpy())
    counts = dict(zip(table["exponent"].to_pylist(), both.tolist(), strict=True))
    return {float("-inf"): sketch.zeros, **counts, float("inf"): sketch.infs}


def _frame(rows: list[dict[Any, Any]], counted: list[dict[int | float, int]]) -> Any:
    """Exponents from the lowest to the highest that occur, without gaps."""
    pandas = pandas_module()
    finite = [e for each in counted for e in each if isinstance(e, int)] or [0]
    exponents = [float("-inf"), *range(min(finite), max(finite) + 1), float("inf")]
    columns = {("exponent_counts", e): [each.get(e, 0) for each in counted] for e in exponents}
    told = {key: [row[key] for row in rows] for key in rows[0]}
    names = pandas.MultiIndex.from_tuples([*told, *columns])
    frame = pandas.DataFrame(dict(enumerate([*told.values(), *columns.values()])))
    statistics = [place for place, key in enumerate(told) if key[0] == "scalar_stats"]
    return frame.astype(dict.fromkeys(statistics, "float64")).set_axis(names, axis=1)
