"""A view of one's own for the tutorial: the partial sums of one sample, number by number.

`backlight view --custom` takes this file; it needs Matplotlib.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc5b9a", "#a67400")


def visualize(selection: Any, run: Any) -> Figure:
    """How the five sums of the selected sample go up and down over the iterations."""
    dark = selection.theme == "dark"
    ink, ground = ("#dce1e7", "#0d1014") if dark else ("#1b2027", "#ffffff")
    size = (selection.width / 102, selection.height / 104)
    figure = Figure(figsize=size, facecolor=ground, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(ground)
    kept = run.values(name="partial sum", steps=selection.step, quantity="value")
    if not kept:
        axes.set_title(f"Nothing was kept of step {selection.step}.", color=ink)
        axes.set_axis_off()
        return figure
    samples = kept[0][2].samples
    sample = selection.sample if selection.sample in samples else samples[0]
    for number, colour in enumerate(LINES):
        own = [entry for name, _, entry in kept if name == f"partial sum {number}"]
        own.sort(key=lambda entry: entry.iteration)
        sums = [float(entry.array[entry.samples.index(sample)][0]) for entry in own]
        axes.plot(range(1, len(sums) + 1), sums, "o-", color=colour, label=f"sequence {number}")
    axes.axhline(0, color=ink, linewidth=0.8)
    axes.set_title(f"Partial sums, step {selection.step}, sample {sample}", color=ink)
    axes.set_xlabel("numbers read", color=ink)
    axes.set_ylabel("sum so far", color=ink)
    axes.tick_params(colors=ink)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(ink)
    axes.legend(facecolor=ground, labelcolor=ink, frameon=False)
    return figure
