"""Figures for papers and notebooks, by Matplotlib: exponents, statistics and distributions.

>>> import backlight.plots  # Matplotlib itself is imported by the first figure
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from math import log2
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from backlight.errors import BacklightError
from backlight.schema import STATISTICS
from backlight.store.formats import number_format
from backlight.store.opened import OpenedRun, open_path
from backlight.store.own import own_names
from backlight.store.sketch import Sketch

Layers: TypeAlias = str | Sequence[str] | None
_MOST_FACETS: Final = 24
_MOST_LINES: Final = 10
_FURTHEST: Final = 24  # powers of two beyond what is there
_COLUMNS: Final = 3
_BAR, _QUIET = "#4269d0", "#8a8f98"
_RANGES: Final = ("#3ca951", "#efb118", "#ff725c", "#a463f2")
_MAGNITUDES: Final = ("std", "abs_mean", "abs_max", "rms")


def exponent_histogram(
    run: OpenedRun | str | Path,
    layers: Layers = None,
    *,
    step: int | None = None,
    quantity: str = "value",
    tensor_class: str | Sequence[str] | None = None,
    formats: Sequence[str] = (),
    live: bool = False,
) -> Any:
    """How many elements have each power of two, one facet for each layer, in network order.

    `layers` are names, or a regular expression. The step is the last that was recorded, unless it
    is said. `formats` marks what each number format can hold. Zeros, infinities and NaN are said
    in the facet's title. With `live=True` it is the page, in a notebook.
    """
    opened = _opened(run)
    limits = [number_format(name) for name in formats]
    if live:
        return opened.show("numerics")
    at = _last_step(opened) if step is None else step
    choice = {"tensor_class": tensor_class, "quantity": quantity, "steps": at}
    facets = _in_order(opened, opened.sketches(_pattern(layers), **choice).by("name"), _MOST_FACETS)
    figure, axes = _facets(len(facets), height=1.9)
    for axis, (name, sketch) in zip(axes, facets.items(), strict=True):
        _draw_exponents(axis, sketch, room=0.06 * len(limits))
        _mark_ranges(axis, limits)
        axis.set_title(_titled(name, sketch), fontsize=8, loc="left")
    axes[0].set_xlim(*_shown_powers(list(facets.values()), limits))
    figure.supxlabel("power of two", fontsize=9)
    figure.supylabel("share of elements", fontsize=9)
    _titled_figure(figure, axes[0], f"{opened.name}: {quantity} at step {at}")
    return figure


def scalar_lines(
    run: OpenedRun | str | Path,
    layers: Layers = None,
    *,
    statistic: str = "rms",
    quantity: str = "value",
    tensor_class: str | Sequence[str] | None = None,
    loss: bool = True,
    live: bool = False,
) -> Any:
    """A statistic over steps, one line for each layer, with the loss above."""
    opened = _opened(run)
    if live:
        return opened.show("heatmap")
    series = _series(opened, layers, statistic, quantity, tensor_class)
    shown = _in_order(opened, series, None)
    figure, main = _with_loss(opened, has_loss=loss, size=(7.5, 3.6))
    colours = _pyplot().get_cmap("viridis")(np.linspace(0.0, 0.92, max(1, len(shown))))
    for colour, (name, (steps, values)) in zip(colours, shown.items(), strict=True):
        main.plot(steps, values, color=colour, linewidth=1.2, label=_short(name))
    is_magnitude = _is_magnitude(opened, statistic)
    _scale_axis(main, is_magnitude, [values for _, values in shown.values()])
    main.set(xlabel="step", ylabel=f"{statistic} of {quantity}")
    if len(shown) <= _MOST_LINES:
        figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    else:
        main.set_title(f"{len(shown)} layers, dark is first", fontsize=8, loc="left")
    return figure


def global_heatmap(
    run: OpenedRun | str | Path,
    layers: Layers = None,
    *,
    statistic: str = "rms",
    quantity: str = "value",
    tensor_class: str | Sequence[str] | None = None,
    loss: bool = True,
    live: bool = False,
) -> Any:
    """A statistic of all layers, in network order, over all recorded steps, with the loss above.

    Colours span the 2nd to the 98th percentile, so that one extreme does not hide the rest; where
    there are both signs, they are two hues, which meet at 0.
    """
    opened = _opened(run)
    if live:
        return opened.show("heatmap")
    series = _series(opened, layers, statistic, quantity, tensor_class)
    shown = _in_order(opened, series, None)
    steps = np.unique(np.concatenate([each for each, _ in shown.values()]))
    cells = np.full((len(shown), len(steps)), np.nan)
    for row, (own, values) in enumerate(shown.values()):
        cells[row, np.searchsorted(steps, own)] = values
    height = min(10.0, 1.6 + 0.17 * len(shown))
    figure, main = _with_loss(opened, has_loss=loss, size=(8.0, height))
    mesh = main.pcolormesh(
        _edges(steps),
        np.arange(len(shown) + 1),
        cells,
        **_colours(_is_magnitude(opened, statistic), cells),
    )
    every = max(1, len(shown) // 40)
    names = [_short(name) for name in shown][::every]
    main.set_yticks(np.arange(len(shown))[::every] + 0.5, names, fontsize=6)
    main.invert_yaxis()
    main.set(xlabel="step")
    figure.colorbar(mesh, ax=main, label=f"{statistic} of {quantity}", extend="both", pad=0.01)
    return figure


def distribution_over_time(
    run: OpenedRun | str | Path,
    layers: Layers = None,
    *,
    quantity: str = "value",
    tensor_class: str | Sequence[str] | None = None,
    formats: Sequence[str] = (),
    live: bool = False,
) -> Any:
    """The powers of two of each layer's elements over steps: dark is where many are."""
    opened = _opened(run)
    limits = [number_format(name) for name in formats]
    if live:
        return opened.show("numerics")
    choice = {"tensor_class": tensor_class, "quantity": quantity}
    found: dict[Any, list[tuple[int, Sketch]]] = {}
    sketches = opened.sketches(_pattern(layers), **choice)
    for row, sketch in zip(sketches.table, sketches, strict=True):
        found.setdefault(row["name"], []).append((row["step"], sketch))
    facets = _in_order(opened, found, _MOST_FACETS)
    figure, axes = _facets(len(facets), height=2.0)
    for axis, (name, own) in zip(axes, facets.items(), strict=True):
        _draw_time(axis, own)
        _mark_limits(axis, limits)
        axis.set_title(_short(name), fontsize=8, loc="left")
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("power of two", fontsize=9)
    _titled_figure(figure, axes[0], f"{opened.name}: {quantity}")
    return figure


def _opened(run: OpenedRun | str | Path) -> OpenedRun:
    opened = run if isinstance(run, OpenedRun) else open_path(run)
    if not isinstance(opened, OpenedRun):
        raise BacklightError(f"{str(run)!r} is no run: pass the folder of one.")
    return opened


def _pattern(layers: Layers) -> str | None:
    """A regular expression for layers that are given as one, or as names."""
    if layers is None or isinstance(layers, str):
        return layers
    return "^(?:" + "|".join(re.escape(name) for name in layers) + ")$"


def _last_step(opened: OpenedRun) -> int:
    recorded = [row["step"] for row in opened.steps() if row["recorded"]]
    if not recorded:
        raise BacklightError(f"No step of {opened.name!r} was recorded.")
    return int(recorded[-1])


def _in_order(opened: OpenedRun, found: dict[Any, Any], most: int | None) -> dict[str, Any]:
    """By the network's order; one sentence where there is nothing, or too much to draw."""
    if not found:
        raise BacklightError(f"Nothing of {opened.name!r} is chosen: other layers, class or step?")
    if most is not None and len(found) > most:
        raise BacklightError(
            f"{len(found)} layers are too many for one figure: choose at most {most} by layers=."
        )
    return {name: found[name] for name in opened.sites()["name"].tolist() if name in found}


def _series(
    opened: OpenedRun, layers: Layers, statistic: str, quantity: str, tensor_class: Any
) -> dict[Any, tuple[Any, Any]]:
    """Steps and values of each site; of several iterations the last counts."""
    known = (*STATISTICS, *own_names(opened.info))
    if statistic not in known:
        raise BacklightError(f"There is no statistic {statistic!r}: use {', '.join(known)}.")
    choice = {"quantity": quantity, "tensor_class": tensor_class}
    rows: dict[Any, dict[int, float]] = {}
    for row in opened.stats(_pattern(layers), **choice):
        value = row[statistic]
        rows.setdefault(row["name"], {})[row["step"]] = np.nan if value is None else value
    return {k: (np.array(list(v)), np.array(list(v.values()), float)) for k, v in rows.items()}


def _facets(count: int, *, height: float) -> tuple[Any, list[Any]]:
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    size = (max(4.5, 2.8 * columns), height * rows + 1.0)
    options = {"figsize": size, "squeeze": False, "sharex": True, "layout": "constrained"}
    figure, grid = _pyplot().subplots(rows, columns, **options)
    axes = list(grid.ravel())
    for spare in axes[count:]:
        spare.set_visible(False)
    for axis in axes[:count]:
        _bare(axis)
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
    return figure, axes[:count]


def _bare(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)


def _draw_exponents(axis: Any, sketch: Sketch, *, room: float) -> None:
    """The bars, with room above them, as a part of the facet, for what formats hold."""
    table = sketch.exponents()
    counts = np.add(table["negative"].to_numpy(), table["positive"].to_numpy())
    shares = counts / max(1, sketch.count)
    # A bar reaches from its power of two to the next, so that limits cut it where they are.
    axis.bar(table["exponent"].to_numpy(), shares, width=1.0, align="edge", color=_BAR, zorder=2)
    axis.set_ylim(0, max(0.05, float(shares.max(initial=0.0)) / (0.94 - room)))


def _mark_ranges(axis: Any, limits: Sequence[Any]) -> None:
    """What each format holds: a line over its range, thin where numbers are subnormal."""
    for place, limit in enumerate(limits):
        colour, height = _RANGES[place % len(_RANGES)], 0.97 - 0.06 * place
        ends = [_power(each) for each in (limit.underflow, limit.normal, limit.overflow)]
        line = {"color": colour, "transform": axis.get_xaxis_transform(), "zorder": 3}
        axis.plot(ends[:2], [height] * 2, linewidth=1, linestyle=":", **line)
        axis.plot(ends[1:], [height] * 2, linewidth=2.5, label=limit.name, **line)


def _shown_powers(sketches: Sequence[Sketch], limits: Sequence[Any]) -> tuple[float, float]:
    """What is there, and of what formats hold no more than leaves the bars their width."""
    powers = [power for each in sketches for power in each.exponents()["exponent"].to_pylist()]
    low, high = min(powers, default=0), max(powers, default=0) + 1
    ends = [_power(end) for each in limits for end in (each.underflow, each.overflow)]
    near = [end for end in ends if low - _FURTHEST <= end <= high + _FURTHEST]
    return min([low, *near]) - 1, max([high, *near]) + 1


def _power(limit: float) -> float:
    return log2(max(limit, 5e-324))  # half of float64's smallest number is 0


def _mark_limits(axis: Any, limits: Sequence[Any]) -> None:
    low, high = axis.get_ylim()
    for place, limit in enumerate(limits):
        colour = _RANGES[place % len(_RANGES)]
        for value, style in ((limit.underflow, "-"), (limit.normal, ":"), (limit.overflow, "-")):
            label = limit.name if value == limit.underflow else None
            axis.axhline(_power(value), color=colour, linewidth=1, linestyle=style, label=label)
    axis.set_ylim(low, high)


def _draw_time(axis: Any, own: list[tuple[int, Sketch]]) -> None:
    steps = np.unique([step for step, _ in own])
    tables = [(step, sketch, sketch.exponents()) for step, sketch in own]
    powers = [power for _, _, table in tables for power in table["exponent"].to_pylist()] or [0]
    first, last = min(powers), max(powers)
    cells = np.zeros((last - first + 1, len(steps)))
    totals = np.zeros(len(steps))
    for step, sketch, table in tables:
        column = np.searchsorted(steps, step)
        both = np.add(table["negative"].to_numpy(), table["positive"].to_numpy())
        np.add.at(cells[:, column], table["exponent"].to_numpy() - first, both)
        totals[column] += sketch.count
    shares = cells / np.maximum(totals, 1)
    shares[shares == 0] = np.nan
    axis.pcolormesh(_edges(steps), np.arange(first, last + 2), shares, cmap="Blues", vmin=-0.02)


def _edges(steps: Any) -> Any:
    """The bounds of cells around steps that need not be evenly spaced."""
    between = (steps[1:] + steps[:-1]) / 2
    around = (steps[1] - steps[0]) / 2 if len(steps) > 1 else 0.5
    return np.concatenate([[steps[0] - around], between, [steps[-1] + around]])


def _with_loss(opened: OpenedRun, *, has_loss: bool, size: tuple[float, float]) -> tuple[Any, Any]:
    steps = opened.steps().arrow().select(["step", "loss"]).drop_null()
    if not has_loss or steps.num_rows == 0:
        figure, main = _pyplot().subplots(figsize=size, layout="constrained")
        _bare(main)
        return figure, main
    options = {"sharex": True, "layout": "constrained", "height_ratios": [0.9, size[1] - 0.6]}
    figure, (above, main) = _pyplot().subplots(2, 1, figsize=(size[0], size[1] + 0.8), **options)
    above.plot(steps["step"].to_numpy(), steps["loss"].to_numpy(), color=_QUIET, linewidth=1)
    above.set_ylabel("loss", fontsize=8)
    above.margins(x=0.005)
    _bare(above)
    _bare(main)
    return figure, main


def _is_magnitude(opened: OpenedRun, statistic: str) -> bool:
    own = {each["name"]: each.get("kind") for each in opened.info.statistics}
    return statistic in _MAGNITUDES or own.get(statistic) == "magnitude"


def _scale_axis(axis: Any, is_magnitude: bool, values: list[Any]) -> None:
    if is_magnitude and any((each > 0).any() for each in values):
        axis.set_yscale("log")


def _colours(is_magnitude: bool, cells: Any) -> dict[str, Any]:
    """From which value to which colour: over powers of ten for magnitudes and for both signs."""
    colours = import_module("matplotlib.colors")
    known = cells[np.isfinite(cells)]
    if (known < 0).any() and (known > 0).any():
        sizes = np.abs(known[known != 0])
        most, middle = np.percentile(sizes, [98, 50])
        norm = colours.SymLogNorm(10.0 ** np.round(np.log10(middle)), vmin=-most, vmax=most)
        return {"norm": norm, "cmap": "RdBu_r"}
    is_log = is_magnitude and bool((cells > 0).any())
    known = known[known > 0] if is_log else known
    low, high = np.percentile(known, [2, 98]) if len(known) else (0.0, 1.0)
    make: Callable[..., Any] = colours.LogNorm if is_log else colours.Normalize
    norm = make(low, high if high > low else low * 1.01 + (0.0 if low else 1.0))
    return {"norm": norm, "cmap": "viridis"}


def _titled(name: str, sketch: Sketch) -> str:
    total = max(1, sketch.count)
    said = {"0": sketch.zeros, "±∞": sketch.infs, "NaN": sketch.nans}
    apart = ", ".join(f"{100 * count / total:.2g}% {what}" for what, count in said.items() if count)
    return f"{_short(name)}  ({apart})" if apart else _short(name)


def _short(name: str) -> str:
    """A name as text that Matplotlib neither reads as mathematics nor hides."""
    plain = name.replace("$", r"\$").lstrip("_")
    return plain if len(plain) <= 32 else f"…{plain[-31:]}"


def _titled_figure(figure: Any, axis: Any, title: str) -> None:
    """The title at the left, at the right what the colours mean, in as many rows as it takes."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = max(1, int((figure.get_figwidth() - 0.08 * len(title)) / 1.25))
        options = {"loc": "outside upper right", "fontsize": 7, "frameon": False}
        figure.legend(handles, labels, ncols=columns, **options)


def _pyplot() -> Any:
    try:
        return import_module("matplotlib.pyplot")
    except ImportError:
        raise BacklightError("Figures need Matplotlib: `pip install 'backlight[plots]'`.") from None
