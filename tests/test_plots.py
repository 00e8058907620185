"""Figures show what the run holds, in network order, and say what cannot be drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from small_runs import HOSTILE, record

import backlight
from backlight import plots
from backlight.errors import BacklightError

mpl.use("Agg")
from matplotlib import pyplot as plt

WEIGHTS = r"^\d\.weight$"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"), steps=6)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_bars_are_the_shares_of_exponents(run: Path) -> None:
    figure = plots.exponent_histogram(run, WEIGHTS, step=3, formats=["float16", "float64"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["0.weight", "2.weight"]
    sketch = backlight.open(run).sketches("^0.weight$", steps=3, quantity="value").merged()
    table = sketch.exponents()
    counts = np.add(table["negative"].to_numpy(), table["positive"].to_numpy())
    bars = figure.axes[0].patches
    assert [bar.get_x() for bar in bars] == table["exponent"].to_pylist()
    assert [bar.get_height() for bar in bars] == (counts / sketch.count).tolist()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["float16", "float64"]
    figure.canvas.draw()


def test_lines_are_the_statistics(run: Path) -> None:
    figure = plots.scalar_lines(run, ["2.weight", "0.weight"], statistic="abs_max", quantity="grad")
    above, main = figure.axes
    assert [line.get_label() for line in main.lines] == ["0.weight", "2.weight"]
    said = backlight.open(run).stats("^0.weight$", quantity="grad")["abs_max"]
    assert main.lines[0].get_ydata().tolist() == said.tolist()
    assert len(above.lines[0].get_ydata()) == 6
    assert len(plots.scalar_lines(run, WEIGHTS, loss=False).axes) == 1


def test_the_heatmap_has_a_row_for_each_layer_in_network_order(run: Path) -> None:
    figure = plots.global_heatmap(run, tensor_class="output", quantity="value", statistic="mean")
    main = figure.axes[1]
    rows = [text.get_text() for text in main.get_yticklabels()]
    assert rows == ["0:out.0", "1:out.0", "2:out.0", "(model):out.0"]
    cells = main.collections[0].get_array().reshape(4, 6)
    said = backlight.open(run).stats("^1:out.0$", quantity="value")["mean"]
    assert cells[1].tolist() == said.tolist()
    figure.canvas.draw()


def test_distributions_over_time_add_up(run: Path) -> None:
    figure = plots.distribution_over_time(run, WEIGHTS, formats=["float8_e4m3fn"])
    shares = np.ma.filled(figure.axes[0].collections[0].get_array(), 0.0).reshape(-1, 6)
    assert np.nansum(shares, axis=0) == pytest.approx(np.ones(6))
    figure.canvas.draw()


def test_hostile_names_are_drawn_as_text(run: Path) -> None:
    figure = plots.exponent_histogram(run, [HOSTILE])
    figure.canvas.draw()
    assert "onerror" in figure.axes[0].get_title(loc="left")


def test_live_is_the_page(run: Path) -> None:
    assert plots.exponent_histogram(run, live=True).place.endswith("/numerics")
    assert plots.global_heatmap(run, live=True).place.endswith("/heatmap")


def test_bad_input_is_one_sentence(run: Path) -> None:
    for ask, said in (
        (lambda: plots.exponent_histogram(run, "nothing"), "is chosen"),
        (lambda: plots.exponent_histogram(run, formats=["float9"]), "no number format"),
        (lambda: plots.scalar_lines(run, statistic="beauty"), "There is no statistic"),
        (lambda: plots.global_heatmap(run.parent.parent), "is no run"),
        (lambda: plots.distribution_over_time(run, "["), "no regular expression"),
    ):
        with pytest.raises(BacklightError, match=said):
            ask()
