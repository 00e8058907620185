"""A page's questions: edits, groups, links, files, and a model that is as it was."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from lab_models import Attention, Residual, convolution, seeded
from torch import nn

from backlight.errors import BacklightError
from backlight.laboratory.files import EditBook, FlowInfo, read_flow_info, write_flow_info
from backlight.laboratory.handlers import Lab
from backlight.laboratory.session import Session
from backlight.laboratory.stored_flows import StoredFlows
from backlight.laboratory.torch_model import TorchModel

IMAGE = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LOSS, TARGET = nn.functional.cross_entropy, torch.tensor([1, 0, 2])
LAYERS = ["input", "0", "2", "4"]


def session_of(model: nn.Module, inputs: Any = IMAGE, **options: Any) -> Session:
    return Session(TorchModel(model, inputs, target=TARGET, loss=LOSS, **options))


def answers(session: Session, **asked: Any) -> dict[str, list[tuple[dict[str, Any], list[Any]]]]:
    found: dict[str, list[tuple[dict[str, Any], list[Any]]]] = {}
    for header, arrays in session.picture(asked, lambda: None):
        found.setdefault(header["event"], []).append((header, arrays))
    return found


def layer(found: Any, name: str, part: str) -> np.ndarray[Any, Any]:
    header, arrays = found["layers"][0]
    index = next(each for each in header["layers"] if each["name"] == name)[part]
    return arrays[index]


def test_an_edit_gives_what_the_edited_input_gives() -> None:
    model = seeded(convolution)
    session = session_of(model, layers=LAYERS)
    edit = {"op": "set", "layer": "input", "cells": [9, 10], "value": 2.5}
    found = answers(session, sample=1, edits=[edit])
    x = IMAGE[1:2].clone()
    x.view(-1)[[9, 10]] = 2.5
    x.requires_grad_()
    loss = LOSS(model(x), TARGET[1:2])
    (grad,) = torch.autograd.grad(loss, x)
    np.testing.assert_allclose(layer(found, "input", "values"), x.detach().reshape(-1))
    np.testing.assert_allclose(layer(found, "input", "grads"), grad.reshape(-1), atol=1e-6)
    assert found["layers"][0][0]["objective"] == pytest.approx(loss.item(), rel=1e-5)
    assert all(header["residual"] < 1e-5 for header, _ in found["links"])
    # Links of groups add up to the gradient too.
    (_, arrays) = found["links"][0]
    total = sum(float(each.sum()) for each in arrays[2:6])
    assert total == pytest.approx(float(grad.sum()), abs=1e-4)


def test_groups_are_opened_and_say_the_same() -> None:
    session = session_of(seeded(convolution), layers=LAYERS)
    by_channel = answers(session, groups={"0": {"by": "channel"}})
    opened = answers(session, groups={"0": {"by": "channel", "open": [1]}})
    labels = [
        next(each for each in found["layers"][0][0]["layers"] if each["name"] == "0")["labels"]
        for found in (by_channel, opened)
    ]
    assert labels[0] == ["channel 0", "channel 1", "channel 2"]
    assert len(labels[1]) == 2 + 64 and labels[1][1] == "1, 0, 0"
    sums = [
        sum(float(each.sum()) for each in found["links"][1][1][2:6])
        for found in (by_channel, opened)
    ]
    assert sums[0] == pytest.approx(sums[1], abs=1e-5)
    for by in ("region", "block", "cell"):
        assert answers(session, groups={"0": {"by": by}})["done"]


def test_noise_and_swap_can_be_done_again() -> None:
    session = session_of(seeded(convolution), layers=LAYERS)
    edits = [
        {"op": "swap", "layer": "input", "sample": 2, "cells": list(range(8))},
        {"op": "noise", "layer": "input", "sigma": 0.5, "seed": 3, "cells": list(range(8, 24))},
    ]
    first, second = (layer(answers(session, edits=edits), "input", "values") for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(first[:8], IMAGE[2].reshape(-1)[:8])
    assert np.array_equal(first[24:], IMAGE[0].reshape(-1)[24:])
    assert not np.array_equal(first[8:24], IMAGE[0].reshape(-1)[8:24])


def test_token_ids_are_edited() -> None:
    tokens = torch.tensor([[1, 5, 2, 7], [3, 3, 0, 10]])
    model = seeded(Attention)
    session = Session(TorchModel(model, tokens, layers=["input", "embedding", "head"]))
    edit = {"op": "set", "layer": "input", "cells": [2], "value": 9}
    found = answers(session, edits=[edit], objective={"layer": "head", "cells": [4]})
    expected = model(torch.tensor([[1, 5, 9, 7]]))[0, 4].item()
    assert found["layers"][0][0]["objective"] == pytest.approx(expected, rel=1e-5)
    assert [(header["source"], header["sink"]) for header, _ in found["links"]] == [
        ("embedding", "head")
    ]


def test_two_pages_that_ask_at_once_get_each_its_own_answer() -> None:
    session = session_of(seeded(convolution), layers=LAYERS)
    asked = [{"sample": 0, "layers": LAYERS}, {"sample": 2, "layers": LAYERS}]
    alone = [answers(session, **each) for each in asked]
    session = session_of(seeded(convolution), layers=LAYERS)
    under_way = [session.picture(each, lambda: None) for each in asked]
    together: list[dict[str, Any]] = [{}, {}]
    for messages in zip(*under_way, strict=True):
        for (header, arrays), found in zip(messages, together, strict=True):
            found.setdefault(header["event"], []).append((header, arrays))
    for one, other in zip(alone, together, strict=True):
        for (header, arrays), (same, again) in zip(one["links"], other["links"], strict=True):
            assert header["residual"] < 1e-5 and same["residual"] < 1e-5
            for left, right in zip(arrays, again, strict=True):
                np.testing.assert_allclose(left, right, atol=1e-7)


class Stateful(nn.Module):
    """Draws random numbers, keeps statistics, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 100).any()):
            raise ValueError("that is too much")
        random.random()
        np.random.rand()
        return self.second(self.drop(self.norm(self.first(x))))


def everything(model: nn.Module) -> dict[str, Any]:
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "asks": [p.requires_grad for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
    }


def test_the_model_is_as_it_was() -> None:
    model = seeded(Stateful)
    model.second.weight.requires_grad_(False)
    model.norm.eval()
    LOSS(model(torch.randn(3, 4)), TARGET).backward()
    before = everything(model)
    session = session_of(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(2)))
    for mode in (False, True):
        model.norm.train(mode)
        session = session_of(model, torch.ones(3, 4) * torch.arange(3)[:, None])
        assert answers(session)["links"]
        session.trace({"layer": "first", "cells": [0]})
        with pytest.raises(ValueError, match="too much"):
            answers(session, edits=[{"op": "set", "layer": "input", "cells": [0], "value": 1e3}])
    model.norm.eval()
    after = everything(model)
    for name, value in before["state"].items():
        assert torch.equal(value, after["state"][name]), name
    assert torch.equal(before["torch"], after["torch"])
    for one, other in zip(before["grads"], after["grads"], strict=True):
        assert one is other is None or torch.equal(one, other)
    for part in ("asks", "modes", "hooks", "python", "numpy"):
        assert before[part] == after[part], part


def lab_of(tmp_path: Path, model: nn.Module, inputs: Any) -> Lab:
    return Lab(session_of(model, inputs), EditBook(tmp_path / "lab"))


def test_an_exception_of_the_model_is_an_answer(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, seeded(Stateful).eval(), torch.ones(3, 4))
    bad = [{"op": "set", "layer": "input", "cells": [0], "value": 1e3}]
    ((header, _),) = lab.answer({"method": "picture", "edits": bad}, Event())
    assert header["error"] == "The model failed: ValueError: that is too much"
    assert header["where"].startswith("test_lab_session.py:") and "raise" in header["code"]
    events = [each["event"] for each, _ in lab.answer({"method": "picture"}, Event())]
    assert events[0] == "layers" and events[-1] == "done"
    lab.close()


def test_a_question_that_was_withdrawn_ends_between_two_chunks(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, seeded(Residual), IMAGE)
    cancel = Event()
    seen = []
    for header, _ in lab.answer({"method": "picture"}, cancel):
        seen.append(header["event"])
        cancel.set()
    assert seen == ["layers"]
    lab.close()


def test_edits_are_saved_in_an_open_format_and_replayed(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, seeded(convolution), IMAGE)
    edits = [{"op": "set", "layer": "input", "cells": [3], "value": 7.0}]
    asked = {"method": "save", "name": "a bright spot", "edits": edits, "sample": 1}
    ((header, _),) = lab.answer(asked, Event())
    assert header["saved"] == ["a bright spot"]
    ((loaded, _),) = lab.answer({"method": "load", "name": "a bright spot"}, Event())
    assert loaded["edits"] == edits and loaded["sample"] == 1
    from safetensors.numpy import load_file

    arrays = load_file(header["file"])
    assert arrays["after.input"].reshape(-1)[3] == 7 and "before.input" in arrays
    for name in ("../evil", "", "a/b", ".hidden"):
        ((refused, _),) = lab.answer({**asked, "name": name}, Event())
        assert "cannot be named" in refused["error"]
    lab.close()


GRADS = {"conv1": np.full((2, 2), 2.0, np.float32), "conv2": np.array([[1.0, 3.0]], np.float32)}
FLOWS = np.array([[0.5, 1.5]] * 4, np.float32)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_flow_info_is_written_and_read(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"flow_info.{ending}"
    info = FlowInfo(dict(GRADS), {("conv1", "conv2"): FLOWS}, np.eye(2, dtype=np.float32))
    write_flow_info(info, file)
    for path in (file, tmp_path):
        again = read_flow_info(path)
        assert np.array_equal(again.gradient_flows["conv1", "conv2"], FLOWS)
        assert np.array_equal(again.activation_gradients["conv2"], GRADS["conv2"])
    assert np.array_equal(again.input_representation, np.eye(2))


def test_a_pickle_is_read_only_if_allowed(tmp_path: Path) -> None:
    file = tmp_path / "flow_info.pkl"
    content = {"activation_gradients": GRADS, "gradient_flows": {("conv1", "conv2"): None}}
    file.write_bytes(pickle.dumps(content))
    with pytest.raises(BacklightError, match="can run any program"):
        read_flow_info(file)
    info = read_flow_info(file, allow_pickle=True)
    session = Session(StoredFlows(info))
    found = answers(session)
    (header, arrays) = found["links"][0]
    assert not header["is_exact"] and "Interpolated" in header["note"]
    assert arrays[2].sum() == pytest.approx(8) and header["residual"] < 1e-6


def test_flow_info_of_a_live_model_is_what_a_stored_one_shows(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, seeded(convolution), IMAGE)
    asked = {"method": "flow_info", "layers": LAYERS, "form": "npz"}
    ((header, arrays),) = lab.answer(asked, Event())
    file = tmp_path / "flow_info.npz"
    file.write_bytes(arrays[0].tobytes()[: header["bytes"]])
    stored = answers(Session(StoredFlows(read_flow_info(file))))
    assert [each["residual"] < 1e-5 for each, _ in stored["links"]] == [True] * 3
    lab.close()


def test_the_input_is_always_there_to_be_edited() -> None:
    session = session_of(seeded(convolution), layers=LAYERS[1:])
    assert session.description.chosen == tuple(LAYERS)
