"""The lab's flows are those of a brute-force Jacobian, and add up to the gradient."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from lab_models import (
    Attention,
    Recurrent,
    Residual,
    convolution,
    jacobian,
    linear,
    pooling,
    seeded,
    strided,
)
from torch import nn

import backlight
from backlight.errors import BacklightError
from backlight.laboratory import torch_model
from backlight.laboratory.interface import FlowChunk, FlowEnd, Objective, Pin, Question, Span
from backlight.laboratory.receptive import fields_between
from backlight.laboratory.torch_model import TorchModel

IMAGE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
COLOURED = torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(4))
VECTOR = torch.randn(3, 5, generator=torch.Generator().manual_seed(5))
SEQUENCE = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(6))
TOKENS = torch.tensor([[1, 5, 2, 7], [3, 3, 0, 10]])
LOSS = nn.functional.cross_entropy
TARGET = torch.tensor([1, 0, 1])


def matrix_of(
    lab: TorchModel, source: str, sink: str, kind: Any = "gradient"
) -> tuple[np.ndarray[Any, Any], FlowEnd]:
    """All flows as a matrix of source cells by sink cells, and what goes around."""
    layers = {layer.name: layer for layer in lab.describe().layers}
    flows = np.zeros((layers[source].size, layers[sink].size))
    end = None
    for part in lab.flow(source, sink, kind, lambda: None):
        if isinstance(part, FlowChunk):
            if part.done == -1:
                flows[:] = 0
            np.add.at(flows, (part.source, part.sink), part.value)
        else:
            end = part
    assert end is not None
    return flows, end


CASES = [
    (convolution, IMAGE, ["input", "0", "2", "4"]),
    (strided, COLOURED, ["input", "0", "2", "4", "6"]),
    (pooling, IMAGE, ["input", "0", "2", "3", "4", "5", "7"]),
    (linear, VECTOR, ["input", "0", "2", "4"]),
    (Residual, IMAGE, ["input", "first", "second", "third", "head"]),
    (Attention, TOKENS, ["embedding", "norm", "attention", "feed", "head"]),
    (Recurrent, SEQUENCE, ["input", "rnn", "head"]),
]


def prepared(make: Any, inputs: torch.Tensor, layers: list[str]) -> tuple[nn.Module, TorchModel]:
    model = seeded(make)
    with torch.no_grad():
        model(inputs)
    target = TARGET[: len(inputs)]
    return model, TorchModel(model, inputs, target=target, loss=LOSS, layers=layers)


@pytest.mark.parametrize(
    ("make", "inputs", "layers"), CASES, ids=[make.__name__ for make, *_ in CASES]
)
@pytest.mark.parametrize("way", ["replicas", "graph"])
def test_flows_are_those_of_the_jacobian_and_add_up(
    make: Any,
    inputs: torch.Tensor,
    layers: list[str],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "graph":
        monkeypatch.setattr(torch_model, "REPLICA_BYTES", 0)
    model, lab = prepared(make, inputs, layers)
    activity = lab.run(Question(1, tuple(layers), Objective()))
    for source, sink in itertools.pairwise(layers):
        flows, end = matrix_of(lab, source, sink)
        expected = jacobian(model, inputs[1:2], source, sink).numpy() * activity.grads[
            sink
        ].reshape(-1, 1)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(flows, expected.T, atol=1e-5 * scale + 1e-9)
        total = activity.grads[source].reshape(-1)
        sums = flows.sum(1) + end.around.reshape(-1)
        np.testing.assert_allclose(sums, total, atol=1e-5 * np.abs(total).max())


class Centred(nn.Module):
    """Samples depend on each other, which copies of one sample would not show."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.second(hidden - 0.5 * hidden.mean(0))


def test_samples_that_depend_on_each_other_are_not_copied() -> None:
    model = seeded(Centred)
    lab = TorchModel(model, torch.ones(1, 5), layers=["input", "first", "second"])
    activity = lab.run(Question(0, ("first", "second"), Objective("second", tuple(range(8)))))
    flows, _ = matrix_of(lab, "first", "second")
    expected = 0.5 * model.second.weight.detach().numpy().T
    np.testing.assert_allclose(flows, expected, atol=1e-6)
    np.testing.assert_allclose(flows.sum(1), activity.grads["first"], atol=1e-5)


def test_convolutions_are_computed_only_where_they_reach() -> None:
    _model, lab = prepared(convolution, IMAGE, ["input", "0", "2"])
    lab.run(Question(0, ("input", "0", "2"), Objective()))
    chunks = list(lab.flow("0", "2", "gradient", lambda: None))
    assert isinstance(chunks[0], FlowChunk)
    assert chunks[0].total <= 4 * 9  # channels times colours, where the sink has 144 cells
    assert isinstance(chunks[-1], FlowEnd) and chunks[-1].reach is not None
    assert [(span.scale, span.low, span.high) for span in chunks[-1].reach] == [(1, 0, 2)] * 2


class Cropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 2:-2, 1::2]


GEOMETRIES = {
    "pooling in one dimension": (nn.MaxPool1d(2), (1, 2, 12)),
    "average pooling in one dimension": (nn.AvgPool1d(3, 2, padding=1), (1, 2, 12)),
    "adaptive pooling": (nn.AdaptiveAvgPool2d(4), (1, 2, 12, 8)),
    "uneven adaptive pooling": (nn.AdaptiveMaxPool2d((5, 3)), (1, 2, 12, 8)),
    "a crop": (Cropped(), (1, 2, 9, 9)),
    "a shuffle": (nn.PixelShuffle(2), (1, 4, 5, 5)),
    "an unshuffle": (nn.PixelUnshuffle(2), (1, 1, 6, 6)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 1, 6, 6)),
    "aligned corners": (
        nn.Upsample(size=(9, 5), mode="bilinear", align_corners=True),
        (1, 1, 6, 7),
    ),
    "transposed": (nn.ConvTranspose2d(1, 1, 3, 3, 1, 1, dilation=2), (1, 1, 5, 5)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_cell_reads_nothing_outside_of_its_field(name: str) -> None:
    module, shape = GEOMETRIES[name]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = module(x)
    fields = fields_between(x, y)
    assert fields is not None
    reads = torch.autograd.functional.jacobian(module, x.detach()).reshape(*y.shape, *x.shape)
    outside = 0
    for at in np.ndindex(*y.shape[2:]):
        of_cell = reads[(slice(None), slice(None), *at)].abs().sum((0, 1, 2, 3))
        spans = [field.cells(position) for field, position in zip(fields, at, strict=True)]
        inside = tuple(slice(max(0, first), last + 1) for first, last in spans)
        assert of_cell.sum() == of_cell[inside].sum()
        outside += of_cell.numel() - of_cell[inside].numel()
    assert outside > 0


def test_a_norm_leaves_cells_at_their_places() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"),
        nn.GroupNorm(1, 2),
        nn.Conv2d(2, 2, 3, stride=2),
    )
    lab = TorchModel(model, IMAGE, layers=["0", "2"])
    lab.run(Question(0, ("input", "0", "2"), Objective("2", (0,))))
    reaches = [matrix_of(lab, *pair)[1].reach for pair in (("input", "0"), ("0", "2"))]
    assert reaches == [(Span(1, -1, 1),) * 2, (Span(2, 0, 2),) * 2]


def test_a_skip_connection_goes_around() -> None:
    _, lab = prepared(Residual, IMAGE, ["first", "second", "third"])
    lab.run(Question(0, ("first", "second", "third"), Objective()))
    _, around_second = matrix_of(lab, "first", "second")
    assert np.abs(around_second.around).max() > 0
    plain = prepared(convolution, IMAGE, ["0", "2"])[1]
    plain.run(Question(0, ("0", "2"), Objective()))
    assert np.abs(matrix_of(plain, "0", "2")[1].around).max() == 0


# The numbers of the earlier tool's page: 4 × 4 -> 2 × 2 -> 1.
SEED_FLOWS = np.array(
    [
        [1.0, 0.99, 0.99, 0.99], [1.0, 1.0, 0.99, 0.99], [0.99, 1.0, 0.99, 0.99],
        [0.99, 1.0, 0.99, 0.99], [1.0, 0.99, 1.0, 0.99], [1.0, 1.0, 1.0, 1.0],
        [0.99, 1.0, 0.99, 1.0], [0.99, 1.0, 0.99, 1.0], [0.99, 0.99, 1.0, 0.99],
        [0.99, 0.99, 1.0, 1.0], [0.99, 0.99, 0.99, 1.0], [0.99, 0.99, 0.99, 1.0],
        [0.99, 0.99, 1.0, 0.99], [0.99, 0.99, 1.0, 1.0], [0.99, 0.99, 0.99, 1.0],
        [0.99, 0.99, 0.99, 1.0],
    ]
)  # fmt: skip
SEED_CONV1 = [[3.97, 3.98, 3.97, 3.97], [3.98, 4.0, 3.98, 3.98]] + [[3.97, 3.98, 3.97, 3.97]] * 2
SEED_CONV2 = [[15.88, 15.90], [15.90, 15.93]]


class Tiny(nn.Module):
    """4 × 4 -> 2 × 2 -> 1, with the flows of that page as weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Identity()
        self.conv2 = nn.Conv2d(1, 4, 4, bias=False)
        self.conv3 = nn.Conv2d(1, 1, 2, bias=False)
        with torch.no_grad():
            self.conv2.weight.copy_(torch.tensor(SEED_FLOWS.T).view(4, 1, 4, 4))
            self.conv3.weight.fill_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3(backlight.tap(self.conv2(self.conv1(x)).view(-1, 1, 2, 2), "square"))


def test_the_layout_of_the_earlier_tool_with_its_numbers() -> None:
    lab = TorchModel(Tiny(), torch.ones(1, 1, 4, 4), layers=["conv1", "square", "conv3"])
    question = Question(0, ("conv1", "square", "conv3"), Objective("conv3", (0,)))
    activity = lab.run(question)
    first, _ = matrix_of(lab, "conv1", "square")
    second, _ = matrix_of(lab, "square", "conv3")
    np.testing.assert_allclose(first, SEED_FLOWS, atol=1e-6)
    np.testing.assert_allclose(second, np.ones((4, 1)), atol=1e-6)
    np.testing.assert_allclose(activity.grads["conv1"][0], SEED_CONV1, atol=1e-5)
    # That page's numbers for the later layers are what flows into each cell.
    np.testing.assert_allclose(first.sum(0).reshape(2, 2), SEED_CONV2, atol=1e-5)
    assert second.sum() == pytest.approx(4.0)


def test_an_example_by_hand() -> None:
    """Two convolutions of width 2 and stride 2: each input cell reaches exactly one hidden cell."""
    model = nn.Sequential(
        nn.Conv2d(1, 1, 2, stride=2, bias=False), nn.Conv2d(1, 1, 2, stride=2, bias=False)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
        model[1].weight.copy_(torch.tensor([[[[5.0, 6.0], [7.0, -8.0]]]]))
    lab = TorchModel(model, torch.ones(1, 1, 4, 4), layers=["input", "0", "1"])
    activity = lab.run(Question(0, ("input", "0", "1"), Objective("1", (0,))))
    assert activity.values["1"].item() == 10 * (5 + 6 + 7 - 8)
    assert activity.grads["0"].tolist() == [[[5, 6], [7, -8]]]
    flows, end = matrix_of(lab, "input", "0")
    assert flows[0].tolist() == [5, 0, 0, 0]  # weight 1 times gradient 5
    assert flows[2].tolist() == [0, 6, 0, 0]
    assert flows[15].tolist() == [0, 0, 0, -32]  # weight 4 times gradient -8
    assert (flows != 0).sum() == 16 and np.abs(end.around).max() == 0
    hidden, _ = matrix_of(lab, "0", "1")
    assert hidden.tolist() == [[5], [6], [7], [-8]]


def test_activation_flow_adds_up_where_the_sink_is_linear() -> None:
    model, lab = prepared(convolution, IMAGE, ["input", "0", "2"])
    activity = lab.run(Question(0, ("input", "0", "2"), Objective()))
    flows, _ = matrix_of(lab, "input", "0", "activation")
    bias = model[0].bias.detach().numpy().repeat(64)
    np.testing.assert_allclose(flows.sum(0) + bias, activity.values["0"].reshape(-1), atol=1e-5)
    with pytest.raises(BacklightError, match=r"not linear.*Relu"):
        matrix_of(lab, "0", "2", "activation")


def test_a_trace_is_what_passes_through_a_cell() -> None:
    names = ("input", "0", "2", "4")
    _model, lab = prepared(convolution, IMAGE, list(names))
    activity = lab.run(Question(0, names, Objective()))
    cell = int(np.abs(activity.grads["0"]).argmax())
    traced = lab.trace("0", [cell])
    into, _ = matrix_of(lab, "input", "0")
    out_of, _ = matrix_of(lab, "0", "2")
    np.testing.assert_allclose(traced["input"].reshape(-1), into[:, cell], atol=1e-7)
    np.testing.assert_allclose(traced["2"].reshape(-1), out_of[cell], atol=1e-7)
    assert traced["4"].sum() == pytest.approx(activity.grads["0"].reshape(-1)[cell], rel=1e-4)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("batch_first", [True, False])
def test_time_is_a_layer(kind: type[nn.RNNBase], batch_first: bool) -> None:
    model = seeded(lambda: Recurrent(kind, batch_first=batch_first))
    inputs = SEQUENCE if batch_first else SEQUENCE.transpose(0, 1)
    moments = [f"rnn:t{n}" for n in range(6)]
    lab = TorchModel(model, inputs, layers=moments, batch_dim=0 if batch_first else 1)
    activity = lab.run(Question(1, tuple(moments), Objective("head", (1,))))
    expected = model.rnn(inputs)[0]
    expected = expected[1] if batch_first else expected[:, 1]
    got = np.stack([activity.values[name].reshape(-1) for name in moments])
    np.testing.assert_allclose(got, expected.detach().numpy(), atol=1e-6)
    flows, end = matrix_of(lab, "rnn:t3", "rnn:t4")
    total = activity.grads["rnn:t3"].reshape(-1)
    sums = flows.sum(1) + end.around.reshape(-1)
    np.testing.assert_allclose(sums, total, atol=1e-5 * np.abs(total).max())
    # With two layers, the lower one carries time past the upper one's output.
    assert np.abs(flows).max() > 0


def test_heads_of_attention_are_layers() -> None:
    _model, lab = prepared(Attention, TOKENS, ["embedding", "attention:heads", "head"])
    layers = {layer.name: layer for layer in lab.describe().layers}
    assert layers["attention:heads"].shape == (2, 4, 4)
    assert layers["attention:heads"].axes == ("head", "position", "feature")
    assert not layers["input"].is_real
    names = ("embedding", "attention:heads", "head")
    activity = lab.run(Question(0, names, Objective()))
    flows, end = matrix_of(lab, "embedding", "attention:heads")
    total = activity.grads["embedding"].reshape(-1)
    sums = flows.sum(1) + end.around.reshape(-1)
    np.testing.assert_allclose(sums, total, atol=1e-5 * np.abs(total).max())
    weights = prepared(lambda: Attention(gives_weights=True), TOKENS, ["attention:weights"])[1]
    run = weights.run(Question(0, ("attention:weights",), Objective()))
    np.testing.assert_allclose(run.values["attention:weights"].sum(-1), 1, atol=1e-5)


def test_a_pinned_cell_holds_its_value_and_lets_nothing_through() -> None:
    names = ("input", "0", "2")
    _, lab = prepared(convolution, IMAGE, list(names))
    mask = np.zeros((3, 8, 8), bool)
    mask[1, 2, 3] = True
    pins = {"0": Pin(mask, np.full((3, 8, 8), 9.0, np.float32))}
    plain = lab.run(Question(0, names, Objective()))
    pinned = lab.run(Question(0, names, Objective(), pins=pins))
    assert pinned.values["0"][1, 2, 3] == 9
    changed = pinned.values["2"] != plain.values["2"]
    assert changed[:, :3, 1:4].any() and not changed[:, 3:].any()
    flows, _ = matrix_of(lab, "input", "0")
    assert np.abs(flows[:, 64 + 2 * 8 + 3]).max() == 0
    assert np.abs(flows[:, 64 + 2 * 8 + 4]).max() > 0


def test_batch_normalisation_that_trains_runs_all_samples_together() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    lab = TorchModel(model, VECTOR, target=TARGET, loss=LOSS, layers=["input", "0", "1"])
    assert "together" in lab.describe().note
    activity = lab.run(Question(2, ("input", "0", "1"), Objective()))
    x = VECTOR.clone().requires_grad_()
    LOSS(model(x), TARGET).backward()
    np.testing.assert_allclose(activity.grads["input"], x.grad[2], atol=1e-6)
    # What leaves by way of the other samples goes around this sample's cells.
    flows, end = matrix_of(lab, "0", "1")
    total = activity.grads["0"]
    np.testing.assert_allclose(flows.sum(1) + end.around, total, atol=1e-5)
    assert np.abs(end.around).max() > 1e-4
