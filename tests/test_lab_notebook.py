"""The lab in a notebook: the page's questions over its channel are answered as by the server."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_page_model as own
import pytest
import torch

from backlight.laboratory import channel, opening
from backlight.laboratory.opening import open_model
from backlight.laboratory.widget import LabWidget

OPTIONS = {"target": own.target, "loss": own.loss, "layers": own.layers}


@pytest.fixture
def widget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LabWidget]:
    monkeypatch.setattr(opening, "is_notebook", lambda: True)
    made = open_model(own.model, own.inputs, options=OPTIONS, run=tmp_path, block=None)
    assert isinstance(made, LabWidget)
    yield made
    made.close()


@pytest.fixture
def say(widget: LabWidget, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends the widget a message as a notebook does, and gives what it sends back."""
    sent: list[tuple[dict[str, Any], bytes]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append((content, buffers[0])))

    def send(**said: Any) -> tuple[int, list[dict[str, Any]]]:
        widget._handle_custom_msg({"id": "view.1:7", "ask": json.dumps(said)}, [])
        content, body = sent[-1]
        assert content["id"] == "view.1:7"
        return content["status"], headers(body)

    return send


def headers(body: bytes) -> list[dict[str, Any]]:
    found, at = [], 0
    while at < len(body):
        header, arrays = struct.unpack("<II", body[at : at + 8])
        found.append(json.loads(body[at + 8 : at + 8 + header]))
        at += 8 + header + arrays
    return found


def test_the_page_comes_through_the_channel(widget: LabWidget) -> None:
    status, page = widget._reply("view.1:page", "")
    assert status == 200 and page.startswith(b"<!doctype html>")
    assert b"default-src &#x27;none&#x27;" in page and b"Lab" in page


def test_a_question_is_answered_with_what_the_model_gives(say: Any) -> None:
    status, told = say(number=1, question={"method": "describe"})
    assert status == 200 and told[0]["name"] == "Small" and told[0]["chosen"] == own.layers
    state = torch.get_rng_state()
    status, told = say(number=2, question={"method": "picture", "sample": 1})
    while status == channel.MORE:
        status, more = say(number=2)
        told += more
    loss = own.loss(own.model(own.inputs[1:2]), own.target[1:2]).item()
    assert told[0]["objective"] == pytest.approx(loss, rel=1e-5)
    assert [each["event"] for each in told].count("links") == 3 and told[-1]["event"] == "done"
    assert torch.equal(state, torch.get_rng_state())


def test_a_long_answer_comes_in_parts_and_can_be_withdrawn(
    say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PART_SECS", 0.0)
    status, told = say(number=3, question={"method": "picture"})
    assert status == channel.MORE and [each["event"] for each in told] == ["layers"]
    status, told = say(number=3)
    assert status == channel.MORE and len(told) == 1
    assert say(number=3, cancel=True) == (channel.END, [])
    assert say(number=3) == (channel.END, [])
    status, told = say(number=4, question={"method": "describe"})
    assert told[0]["event"] == "model"


def test_a_fault_of_the_model_is_an_answer(say: Any) -> None:
    edits = [{"op": "set", "layer": "input", "cells": [0], "value": 99}]
    status, told = say(number=5, question={"method": "picture", "edits": edits})
    assert status == 200 and "too bright" in told[0]["error"]


def test_outside_of_a_notebook_it_is_served() -> None:
    assert not opening.is_notebook()
