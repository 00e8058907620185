"""A JAX function in the lab: its flows are those of its Jacobian, and the page's edits reach it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backlight.laboratory.interface import FlowChunk, FlowEnd, Objective, Pin, Question
from backlight.laboratory.session import Session

jax = pytest.importorskip("jax")

from backlight.laboratory.jax_model import JaxModel  # noqa: E402

RANDOM = np.random.default_rng(5)
FIRST, SECOND = (RANDOM.normal(size=size).astype(np.float32) for size in ((4, 5), (5, 3)))
INPUTS = RANDOM.normal(size=(2, 4)).astype(np.float32)
LAYERS = ("input", "hidden", "output")


def forward(x: Any, tap: Any) -> Any:
    """The input also skips the hidden layer."""
    hidden = tap("hidden", jax.numpy.tanh(x @ FIRST))
    return hidden @ SECOND + x[:, :3]


def loss(output: Any, target: Any) -> Any:
    return ((output - target) ** 2).sum()


@pytest.fixture
def model() -> JaxModel:
    return JaxModel(forward, INPUTS, loss=loss, target=np.ones((2, 3), np.float32))


def by_hand(x: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The gradients at the input and at the hidden layer."""
    hidden = np.tanh(x @ FIRST)
    at_output = 2 * (hidden @ SECOND + x[:3] - 1)
    at_hidden = SECOND @ at_output
    skipped = np.concatenate([at_output, [0.0]])
    return FIRST @ (at_hidden * (1 - hidden**2)) + skipped, at_hidden


def test_gradients_and_flows_are_those_by_hand(model: JaxModel) -> None:
    told = model.run(Question(1, LAYERS, Objective()))
    at_input, at_hidden = by_hand(INPUTS[1])
    assert told.grads["input"] == pytest.approx(at_input, rel=1e-4)
    assert told.grads["hidden"] == pytest.approx(at_hidden, rel=1e-4)
    chunks = list(model.flow("input", "hidden", "gradient", lambda: None))
    end = chunks.pop()
    assert isinstance(end, FlowEnd)
    flows = np.zeros((4, 5))
    for chunk in chunks:
        assert isinstance(chunk, FlowChunk)
        np.add.at(flows, (chunk.source, chunk.sink), chunk.value)
    slope = 1 - np.tanh(INPUTS[1] @ FIRST) ** 2
    assert flows == pytest.approx(FIRST * (slope * at_hidden), rel=1e-4, abs=1e-5)
    assert flows.sum(1) + end.around == pytest.approx(told.grads["input"], rel=1e-4)
    assert np.abs(end.around).max() > 0.1


def test_the_page_is_served_with_edits_pins_and_traces(model: JaxModel) -> None:
    session = Session(model)
    edits = [
        {"op": "set", "layer": "input", "cells": [2], "value": 1.5},
        {"op": "set", "layer": "hidden", "cells": [0], "value": 0.0},
    ]
    told = [header for header, _ in session.picture({"edits": edits}, lambda: None)]
    assert [each["event"] for each in told if each["event"] != "progress"] == [
        "layers",
        "links",
        "links",
        "done",
    ]
    assert all(each["residual"] < 1e-5 for each in told if each["event"] == "links")
    edited = INPUTS[0].copy()
    edited[2] = 1.5
    hidden = np.tanh(edited @ FIRST)
    hidden[0] = 0
    expected = ((hidden @ SECOND + edited[:3] - 1) ** 2).sum()
    assert told[0]["objective"] == pytest.approx(expected, rel=1e-4)
    header, arrays = session.trace({"edits": edits, "layer": "hidden", "cells": [1]})
    at = header["layers"].index("hidden")
    assert np.flatnonzero(arrays[at]).tolist() == [1]


def test_a_pinned_cell_lets_nothing_through(model: JaxModel) -> None:
    pin = Pin(np.arange(5) == 1, np.full(5, 2.0, np.float32))
    told = model.run(Question(0, LAYERS, Objective("output", (0,)), pins={"hidden": pin}))
    assert told.values["hidden"][1] == 2
    flows = list(model.flow("input", "hidden", "gradient", lambda: None))
    assert all(1 not in part.sink for part in flows if isinstance(part, FlowChunk))


def test_channels_that_come_last_are_first_on_the_page() -> None:
    kernel = RANDOM.normal(size=(3, 3, 2, 4)).astype(np.float32)
    pictures = RANDOM.normal(size=(1, 6, 5, 2)).astype(np.float32)

    def convolved(x: Any, tap: Any) -> Any:
        how = {"window_strides": (1, 1), "padding": "SAME"}
        numbers = ("NHWC", "HWIO", "NHWC")
        return tap(
            "conv", jax.lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **how)
        )

    session = Session(JaxModel(convolved, pictures))
    assert [layer.shape for layer in session.description.layers[:2]] == [(2, 6, 5), (4, 6, 5)]
    edit = {"op": "set", "layer": "input", "cells": [1 * 30 + 2 * 5 + 3], "value": 9.0}
    told = list(session.picture({"edits": [edit]}, lambda: None))
    values = told[0][1][told[0][0]["layers"][0]["values"]].reshape(2, 6, 5)
    expected = np.moveaxis(pictures[0], -1, 0).copy()
    expected[1, 2, 3] = 9
    assert values == pytest.approx(expected)
    assert all(each["residual"] < 1e-5 for each, _ in told if each["event"] == "links")
