"""The notebook's side: real messages of the channel are answered as the server answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import record

import backlight
from backlight.errors import BacklightError
from backlight.notebook import Widget


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs"), steps=4)


@pytest.fixture
def asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends the widget a message as a notebook does, and gives what it sends back."""
    widget = backlight.open(run).show("graph", site="0:out.0")
    sent: list[tuple[dict[str, Any], bytes]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append((content, buffers[0])))

    def ask(address: str) -> tuple[dict[str, Any], bytes]:
        content = {"id": "a:1", "ask": address}
        widget._handle_custom_msg(content, [])
        return sent[-1]

    return ask


def test_an_address_is_answered(asked: Any) -> None:
    content, body = asked("runs/tests/small")
    assert content == {"id": "a:1", "status": 200}
    assert json.loads(body)["summary"]["recorded_steps"] == 4


def test_a_stream_of_events_tells_the_state_now(asked: Any) -> None:
    _, body = asked("runs/tests/small/events")
    assert json.loads(body)["rows"]["steps"] == 4


def test_an_error_is_an_answer(asked: Any) -> None:
    content, body = asked("runs/tests/nothing")
    assert content["status"] == 404
    assert "There is no run 'tests/nothing'" in json.loads(body)["error"]


def test_the_page_comes_through_the_channel(asked: Any) -> None:
    _, body = asked("")
    assert body.startswith(b"<!doctype html>")
    assert b"connect-src" not in body and b"default-src &#x27;none&#x27;" in body


def test_a_run_is_shown_where_it_is_asked_for(run: Path) -> None:
    widget = backlight.open(run).show("tensor", site="0:out.0", step=3, height=500)
    assert isinstance(widget, Widget)
    assert widget.place == "#/tests/small/tensor?site=0%3Aout.0&step=3"
    assert widget.height == 500
    assert backlight.open(run.parent).show().place == "#/"
    assert backlight.open(run.parent).show("small").place == "#/tests/small/overview"


def test_a_live_run_is_shown(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=tmp_path, project="p", name="live") as run:
        model(torch.ones(3, 2)).mean().backward()
        optimizer.step()
        widget = run.show()
        answer = json.loads(widget._viewer.get("runs/p/live").body)
    assert answer["summary"]["status"] == "live"
    assert answer["rows"]["steps"] == 1


def test_without_anywidget_it_is_said_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "backlight.notebook")
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(BacklightError, match="needs anywidget"):
        backlight.open(run).show()
