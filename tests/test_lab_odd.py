"""Models of every odd kind: each gives a picture whose sums are right, or one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import backlight
from backlight.errors import BacklightError
from backlight.laboratory.files import EditBook
from backlight.laboratory.handlers import Lab
from backlight.laboratory.interface import Objective, Question
from backlight.laboratory.session import Session
from backlight.laboratory.torch_model import TorchModel


class Of(nn.Module):
    """A model of a function and some modules."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self._forward(self, *args, **keywords)


class Pair(NamedTuple):
    logits: torch.Tensor
    number: int


def volume() -> nn.Module:
    convolutions = nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(2, 2, 3)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(2 * 2 * 2 * 2, 2))


def tied() -> nn.Module:
    shared = nn.Linear(4, 4)
    return nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), shared)


class Averages(nn.Module):
    """Puts another tensor in the place of a buffer each time that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.one(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return torch.as_tensor(self.two(hidden - self.mean))


def clamped(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.one.weight.clamp_(-0.1, 0.1)
        model.two.weight.data.mul_(0.5)
    return torch.as_tensor(model.two(model.one(x).relu()))


VECTOR, IMAGE = torch.rand(3, 4), torch.rand(3, 1, 8, 8)
LINEAR = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 2)}
CASES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "changes its input in place": (
        lambda: Of(lambda m, x: m.conv(x.mul_(2)).relu_().flatten(1), conv=nn.Conv2d(1, 2, 3)),
        IMAGE,
    ),
    "takes keywords": (
        lambda: Of(lambda m, x, mask: m.two(m.one(x) * mask), **LINEAR),
        {"x": VECTOR, "mask": torch.ones(3, 4)},
    ),
    "takes a dict": (
        lambda: Of(lambda m, d: m.two(d["a"]["x"]), **LINEAR),
        ({"a": {"x": VECTOR}},),
    ),
    "drops out": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        VECTOR,
    ),
    "normalises its batch": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2)
        ),
        IMAGE,
    ),
    "ties its weights": (tied, VECTOR),
    "returns a named tuple": (lambda: Of(lambda m, x: Pair(m.two(m.one(x)), 3), **LINEAR), VECTOR),
    "returns nested tuples": (
        lambda: Of(lambda m, x: (m.two(x), [m.one(x), None]), **LINEAR),
        VECTOR,
    ),
    "is complex inside": (
        lambda: Of(lambda m, x: m.two(torch.fft.fft(m.one(x)).abs()), **LINEAR),
        VECTOR,
    ),
    "gets NaN": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), VECTOR * float("nan")),
    "is of volumes": (volume, torch.rand(2, 1, 8, 8, 8)),
    "gets whole numbers": (
        lambda: Of(lambda m, x: m.two(m.one(x.float() / 255)), **LINEAR),
        torch.randint(255, (2, 4)),
    ),
    "replaces a buffer": (Averages, VECTOR),
    "changes its parameters": (lambda: Of(clamped, **LINEAR), VECTOR),
    "keeps channels last": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)).to(
            memory_format=torch.channels_last
        ),
        torch.rand(2, 2, 7, 7).to(memory_format=torch.channels_last),
    ),
    "cuts its gradient": (
        lambda: Of(lambda m, x: torch.inference_mode()(m.one)(x), **LINEAR),
        VECTOR,
    ),
    "is frozen": (lambda: nn.Sequential(*LINEAR.values()).requires_grad_(False), VECTOR),
    "checkpoints": (
        lambda: Of(lambda m, x: m.two(checkpoint(m.one, x, use_reentrant=False)), **LINEAR),
        VECTOR,
    ),
    "checkpoints the old way": (
        lambda: Of(lambda m, x: m.two(checkpoint(m.one, x, use_reentrant=True)), **LINEAR),
        VECTOR,
    ),
}


def asked(lab: Lab, method: str, **question: Any) -> list[dict[str, Any]]:
    return [header for header, _ in lab.answer({"method": method, **question}, Event())]


@pytest.mark.parametrize("name", CASES)
def test_every_model_gives_a_picture_and_is_as_it_was(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    make, inputs = CASES[name]
    model = make()
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    lab = Lab(Session(TorchModel(model, inputs)), EditBook(tmp_path))
    layers = lab.session.description.layers
    first = next(each for each in layers if each.kind == "input")
    hidden = next(each for each in layers if each.kind != "input")
    edit = {"op": "set", "layer": first.name, "cells": [0], "value": 1}
    pin = {"op": "set", "layer": hidden.name, "cells": [0], "value": 0.5}
    for edits in ([], [edit], [edit, pin]):
        told = asked(lab, "picture", edits=edits)
        assert [each["event"] for each in told if each["event"] in ("error", "no_links")] == []
        assert told[-1]["event"] == "done"
        assert all(each["residual"] < 1e-4 for each in told if each["event"] == "links")
    question = {"edits": [edit, pin], "layer": hidden.name, "cells": [0]}
    for method in ("trace", "flow_info"):
        own = question if method == "trace" else {}
        assert asked(lab, method, **own)[0]["event"] != "error"
    assert asked(lab, "save", name="odd", edits=[edit])[0]["saved"] == ["odd"]
    lab.close()
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[k]) for k, value in model.state_dict().items())


def test_checkpointing_is_as_it_was() -> None:
    from torch.utils import checkpoint as module

    names = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
    before = [getattr(module, name) for name in names]
    TorchModel(*(CASES["checkpoints"][0](), VECTOR))
    assert [getattr(module, name) for name in names] == before


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (VECTOR + 1j, {}, "is complex"),
        (VECTOR[:0], {}, "hold no sample"),
        ("text", {}, "hold no tensor but str"),
        (VECTOR.double(), {}, "cannot be run on these inputs"),
        (VECTOR, {"layers": ["three"]}, "no layer 'three'"),
        (VECTOR, {"layers": ["one"]}, "not called, or under no_grad"),
        (VECTOR.to_sparse(), {}, "is sparse"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(
    inputs: Any, options: dict[str, Any], message: str
) -> None:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = model.one(x)
        return torch.as_tensor(model.two(x))

    with pytest.raises(BacklightError, match=message):
        TorchModel(Of(forward, **LINEAR), inputs, **options)


def test_a_complex_output_needs_a_loss(tmp_path: Path) -> None:
    model = Of(lambda m, x: torch.fft.fft(m.two(x)), **LINEAR)
    lab = Lab(Session(TorchModel(model, VECTOR)), EditBook(tmp_path))
    assert "pass a loss" in asked(lab, "picture")[0]["error"]
    lab.close()
    loss = lambda output, _: output.abs().sum()  # noqa: E731
    lab = Lab(Session(TorchModel(model, VECTOR, loss=loss)), EditBook(tmp_path))
    assert asked(lab, "picture")[-1]["event"] == "done"
    lab.close()


def test_each_sample_meets_its_own_part_of_a_target() -> None:
    targets = {"y": torch.rand(3, 2), "weights": [torch.rand(3, 1), 2.0]}

    def loss(output: torch.Tensor, target: Any) -> torch.Tensor:
        scaled = output * target["weights"][0] * target["weights"][1]
        return functional.mse_loss(scaled, target["y"])

    model = nn.Sequential(nn.Linear(4, 2))
    lab = Session(TorchModel(model, VECTOR, target=targets, loss=loss))
    told = next(iter(lab.picture({"sample": 2}, lambda: None)))[0]
    weights = targets["weights"][0]
    expected = functional.mse_loss(model(VECTOR)[2] * weights[2] * 2.0, targets["y"][2])
    assert told["objective"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_function_is_no_model() -> None:
    with pytest.raises(BacklightError, match="not a function"):
        TorchModel(lambda x: x, VECTOR)  # type: ignore[arg-type]


def values_of(lab: TorchModel, *layers: str, sample: int = 0) -> dict[str, Any]:
    asked = Question(sample, layers, Objective(layers[-1], (0,)))
    return dict(lab.run(asked).values)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_model_starts_from_the_state_that_it_is_given(kind: Any) -> None:
    torch.manual_seed(0)

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        state = torch.ones(1, len(x), 4)
        hx = (state, state) if isinstance(model.rnn, nn.LSTM) else state
        return torch.as_tensor(model.head(model.rnn(input=x, hx=hx)[0][:, -1]))

    model = Of(forward, rnn=kind(3, 4, batch_first=True), head=nn.Linear(4, 2))
    x = torch.rand(2, 5, 3)
    found = values_of(TorchModel(model, x), "input", "rnn:t1", "rnn:t4", "head")
    assert found["head"] == pytest.approx(model(x)[0].detach().numpy(), abs=1e-6)


def test_a_sequence_without_a_batch_has_moments_too() -> None:
    model = Of(lambda m, x: m.head(m.rnn(x)[0][-1]), rnn=nn.GRU(3, 4), head=nn.Linear(4, 2))
    x = torch.rand(5, 3)
    found = values_of(TorchModel(model, x, batch_dim=None), "input", "rnn:t4", "head")
    assert found["head"] == pytest.approx(model(x).detach().numpy(), abs=1e-6)


def test_samples_that_are_run_together_may_be_counted_second() -> None:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(model.head(model.norm(model.rnn(x)[0][-1])))

    model = Of(forward, rnn=nn.GRU(3, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    x = torch.rand(5, 2, 3)
    lab = TorchModel(model, x, batch_dim=1)
    assert [tuple(each.shape) for each in lab.describe().layers[:2]] == [(5, 3), (4,)]
    found = values_of(lab, "input", "rnn", "head", sample=1)
    assert (found["input"] == x[:, 1].numpy()).all()
    assert found["head"] == pytest.approx(model(x)[1].detach().numpy(), abs=1e-6)
    told = [each for each, _ in Session(lab).picture({"sample": 1}, lambda: None)]
    assert all(each["residual"] < 1e-5 for each in told if each["event"] == "links")


@pytest.mark.parametrize("owner", [torch, torch.Tensor, functional])
def test_attention_that_is_written_by_hand_has_weights(owner: Any) -> None:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(model.two(owner.softmax(model.one(x) @ x.mT, dim=-1) @ x))

    before = vars(torch.Tensor).get("softmax"), torch.softmax, functional.softmax
    lab = TorchModel(Of(forward, **LINEAR), torch.rand(1, 3, 4))
    assert "output:weights" in [layer.name for layer in lab.describe().layers]
    assert before == (vars(torch.Tensor).get("softmax"), torch.softmax, functional.softmax)


def test_a_frozen_transformer_shows_its_heads() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoder(layer, 1)).eval()
    lab = TorchModel(model.requires_grad_(False), torch.tensor([[1, 2, 3]]))
    assert "1.layers.0.self_attn:heads" in [each.name for each in lab.describe().layers]
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_run_that_watches_the_model_records_nothing_of_the_lab(tmp_path: Path) -> None:
    def observations(*, has_lab: bool) -> list[tuple[Any, ...]]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with backlight.watch(model, optimizer, root=tmp_path, every=1) as run:
            for _ in range(3):
                optimizer.zero_grad()
                model(VECTOR).sum().backward()
                optimizer.step()
                if has_lab:
                    told = list(Session(TorchModel(model, VECTOR)).picture({}, lambda: None))
                    assert told[-1][0]["event"] == "done"
        rows = backlight.open(run.path).stats()
        return [(row["name"], row["step"], row["quantity"], row["mean"]) for row in rows]

    assert observations(has_lab=True) == observations(has_lab=False)
