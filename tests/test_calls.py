"""The functions that the user's code calls are seen, and nothing else changes."""

from __future__ import annotations

import copy
import gc
import json
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
import torch
from models import ALL, Problem
from tensor_classes import Tagged
from torch import autograd, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.functional import binary_cross_entropy, cross_entropy
from torch.nn.modules import module as torch_module
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import backlight
from backlight.capture.calls import CallCapture, FunctionCall, describe, fast_paths
from backlight.capture.calls.book import MOST_CALLS, MOST_CALLS_OF_A_LINE
from backlight.capture.calls.functions import FUNCTIONS

X = torch.tensor([[0.5, -1.0, 2.0], [0.25, 3.0, -0.5]])
LOGITS = X.clone().requires_grad_()
TARGET = torch.tensor([2, 0])
POSITIVE = X.abs()
PROBABLE = torch.full((2, 3), 0.25)
SIGNS = torch.tensor([1, -1])


@pytest.fixture(autouse=True)
def _no_modes_left() -> Iterator[None]:
    """One test that leaves a mode behind must not fail the others."""
    yield
    while _get_current_function_mode_stack():
        _pop_mode()


def raise_fault(doing: str, error: Exception) -> None:
    raise error


@contextmanager
def capturing(**options: Any) -> Iterator[CallCapture]:
    """A capture that is attached, and leaves no mode behind."""
    options = {"current_module": lambda: "", "on_fault": raise_fault, **options}
    capture = CallCapture(**options)
    before = _get_current_function_mode_stack()
    capture.attach()
    try:
        yield capture
    finally:
        capture.detach()
        assert _get_current_function_mode_stack() == before


def calls_of(action: Callable[[], Any], **options: Any) -> list[FunctionCall]:
    with capturing(**options) as capture:
        action()
    return capture.take()


def told(tensor: torch.Tensor) -> dict[str, Any]:
    """What is expected to be told of a plain finite tensor, computed in another way."""
    values = tensor.detach().flatten().tolist()
    made_by = {} if tensor.grad_fn is None else {"made_by": tensor.grad_fn.name()}
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "requires_grad": tensor.requires_grad,
        **made_by,
        "min": min(values),
        "max": max(values),
    }


# -- every function, with its arguments and its line

# The name, the call, and some of the arguments that are to be seen.
CASES: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    (
        "torch.nn.functional.cross_entropy",
        lambda: functional.cross_entropy(LOGITS, TARGET, label_smoothing=0.1),
        {"input": LOGITS, "target": TARGET, "label_smoothing": 0.1, "ignore_index": -100},
    ),
    (
        "torch.nn.functional.nll_loss",
        lambda: functional.nll_loss(LOGITS, TARGET),
        {"input": LOGITS, "target": TARGET, "reduction": "mean"},
    ),
    (
        "torch.nn.functional.mse_loss",
        lambda: functional.mse_loss(LOGITS, X, reduction="sum"),
        {"input": LOGITS, "target": X, "reduction": "sum"},
    ),
    (
        "torch.nn.functional.binary_cross_entropy",
        lambda: functional.binary_cross_entropy(PROBABLE, PROBABLE),
        {"input": PROBABLE, "target": PROBABLE, "weight": None},
    ),
    (
        "torch.nn.functional.binary_cross_entropy_with_logits",
        lambda: functional.binary_cross_entropy_with_logits(LOGITS, PROBABLE),
        {"input": LOGITS, "target": PROBABLE, "pos_weight": None},
    ),
    (
        "torch.nn.functional.kl_div",
        lambda: functional.kl_div(LOGITS, PROBABLE, reduction="batchmean"),
        {"input": LOGITS, "target": PROBABLE, "log_target": False},
    ),
    (
        "torch.nn.functional.softmax",
        lambda: functional.softmax(LOGITS, dim=0),
        {"input": LOGITS, "dim": 0},
    ),
    ("torch.softmax", lambda: torch.softmax(LOGITS, 1), {"input": LOGITS, "dim": 1}),
    ("torch.Tensor.softmax", lambda: LOGITS.softmax(-1), {"input": LOGITS, "dim": -1}),
    ("torch.special.softmax", lambda: torch.special.softmax(X, dim=1), {"input": X, "dim": 1}),
    (
        "torch.nn.functional.log_softmax",
        lambda: functional.log_softmax(LOGITS, dim=-1),
        {"input": LOGITS, "dim": -1},
    ),
    ("torch.log_softmax", lambda: torch.log_softmax(LOGITS, dim=1), {"input": LOGITS, "dim": 1}),
    ("torch.Tensor.log_softmax", lambda: LOGITS.log_softmax(1), {"input": LOGITS, "dim": 1}),
    ("torch.sigmoid", lambda: torch.sigmoid(LOGITS), {"input": LOGITS}),
    ("torch.Tensor.sigmoid", lambda: LOGITS.sigmoid(), {"input": LOGITS}),
    ("torch.nn.functional.logsigmoid", lambda: functional.logsigmoid(LOGITS), {"input": LOGITS}),
    ("torch.log", lambda: torch.log(POSITIVE), {"input": POSITIVE}),
    ("torch.Tensor.log", lambda: POSITIVE.log(), {"input": POSITIVE}),
    ("torch.Tensor.log_", lambda: POSITIVE.clone().log_(), {"input": POSITIVE}),
    ("torch.log1p", lambda: torch.log1p(POSITIVE), {"input": POSITIVE}),
    ("torch.Tensor.log2", lambda: POSITIVE.log2(), {"input": POSITIVE}),
    ("torch.exp", lambda: torch.exp(LOGITS), {"input": LOGITS}),
    ("torch.sqrt", lambda: torch.sqrt(POSITIVE), {"input": POSITIVE}),
    ("torch.Tensor.rsqrt", lambda: POSITIVE.rsqrt(), {"input": POSITIVE}),
    ("torch.Tensor.div", lambda: X / POSITIVE, {"input": X, "other": POSITIVE}),
    ("torch.Tensor.div", lambda: 1 / POSITIVE, {"input": 1, "other": POSITIVE}),
    ("torch.Tensor.div_", lambda: X.clone().div_(POSITIVE), {"input": X, "other": POSITIVE}),
    ("torch.div", lambda: torch.div(X, 0), {"input": X, "other": 0, "rounding_mode": None}),
    ("torch.true_divide", lambda: torch.true_divide(X, POSITIVE), {"other": POSITIVE}),
    ("torch.Tensor.pow", lambda: POSITIVE**0.5, {"input": POSITIVE, "exponent": 0.5}),
    ("torch.pow", lambda: torch.pow(POSITIVE, -1), {"input": POSITIVE, "exponent": -1}),
    ("torch.Tensor.pow", lambda: X.pow(math.inf), {"input": X, "exponent": "inf"}),
    ("torch.Tensor.pow", lambda: 2.0**POSITIVE, {"input": 2.0, "exponent": POSITIVE}),
    ("torch.clamp", lambda: torch.clamp(X, min=0), {"input": X, "min": 0, "max": None}),
    ("torch.Tensor.clamp", lambda: X.clamp(0, 1), {"input": X, "min": 0, "max": 1}),
    ("torch.nn.functional.one_hot", lambda: functional.one_hot(TARGET, 3), {"num_classes": 3}),
    ("torch.nn.functional.normalize", lambda: functional.normalize(X, dim=0), {"dim": 0, "p": 2.0}),
    (
        "torch.nn.functional.cosine_similarity",
        lambda: functional.cosine_similarity(X, POSITIVE),
        {"x1": X, "x2": POSITIVE, "dim": 1},
    ),
]


@pytest.mark.parametrize(
    ("name", "action", "expected"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_a_function_is_seen_with_its_arguments_and_its_line(
    name: str, action: Callable[[], Any], expected: dict[str, Any]
) -> None:
    (call,) = calls_of(action)
    assert call.function == name
    for key, value in expected.items():
        is_tensor = isinstance(value, torch.Tensor)
        assert (
            {**call.arguments[key], **told(value)} == call.arguments[key]
            if is_tensor
            else (call.arguments[key] == value)
        )
    number = action.__code__.co_firstlineno
    assert call.source == f"{__file__}:{number}"
    assert call.code == Path(__file__).read_text(encoding="utf-8").splitlines()[number - 1].strip()


@pytest.mark.parametrize(
    "action",
    [case[1] for case in CASES if case[1]().isfinite().all()],
    ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES) if case[1]().isfinite().all()],
)
def test_the_result_is_told_like_an_argument(action: Callable[[], Any]) -> None:
    (call,) = calls_of(action)
    assert {**call.result, **told(action())} == call.result


LOSS_ARGUMENTS = {
    "cosine_embedding_loss": (X, X, SIGNS),
    "ctc_loss": (
        torch.zeros(4, 1, 3),
        torch.tensor([[1, 2]]),
        torch.tensor([4]),
        torch.tensor([2]),
    ),
    "gaussian_nll_loss": (X, X, POSITIVE),
    "margin_ranking_loss": (X[0], X[1], torch.ones(3)),
    "multi_margin_loss": (X, TARGET),
    "multilabel_margin_loss": (X, torch.tensor([[0, 1, -1], [2, -1, -1]])),
    "nll_loss": (X, TARGET),
    "triplet_margin_loss": (X, POSITIVE, PROBABLE),
    "triplet_margin_with_distance_loss": (X, POSITIVE, PROBABLE),
}


@pytest.mark.parametrize("name", [name for name in dir(functional) if name.endswith("_loss")])
def test_every_loss_of_torch_is_seen(name: str) -> None:
    arguments = LOSS_ARGUMENTS.get(name, (X, PROBABLE))
    (call,) = calls_of(lambda: getattr(functional, name)(*arguments))
    assert call.function == f"torch.nn.functional.{name}"
    first = next(iter(call.arguments.values()))
    assert first["shape"] == list(arguments[0].shape) and first["min"] == arguments[0].min()
    assert call.result["shape"] == []


def test_functions_that_were_imported_by_name_are_seen() -> None:
    calls = calls_of(lambda: (cross_entropy(X, TARGET), binary_cross_entropy(PROBABLE, PROBABLE)))
    assert [call.function.rpartition(".")[2] for call in calls] == [
        "cross_entropy",
        "binary_cross_entropy",
    ]


def test_loss_modules_are_seen_as_their_function() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.2)
    (call,) = calls_of(lambda: loss(X, TARGET))
    assert call.function == "torch.nn.functional.cross_entropy"
    assert call.code == "(call,) = calls_of(lambda: loss(X, TARGET))"


def test_dropout_and_norms_tell_whether_they_train() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Dropout(0.3))
    batch_norm, layer_norm, dropout = calls_of(lambda: model.train()(X))
    assert batch_norm.function == "torch.nn.functional.batch_norm"
    assert batch_norm.arguments["training"] is True and batch_norm.arguments["momentum"] == 0.1
    assert layer_norm.arguments["normalized_shape"] == [3] and layer_norm.arguments["eps"] == 1e-5
    assert dropout.arguments["training"] is True and dropout.arguments["p"] == 0.3
    batch_norm, _, dropout = calls_of(lambda: model.eval()(X))
    assert batch_norm.arguments["training"] is False and dropout.arguments["training"] is False
    (dropout,) = calls_of(lambda: torch.dropout(X, 0.1, train=False))
    assert dropout.arguments["training"] is False


def test_attention_tells_its_mask() -> None:
    heads = torch.randn(1, 2, 4, 3)
    attend = functional.scaled_dot_product_attention
    (call,) = calls_of(lambda: attend(heads, heads, heads, is_causal=True))
    assert call.arguments["is_causal"] is True and call.arguments["attn_mask"] is None
    assert call.arguments["query"]["shape"] == [1, 2, 4, 3]
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    (call,) = calls_of(lambda: attend(heads, heads, heads, mask))
    assert call.arguments["is_causal"] is False
    assert call.arguments["attn_mask"] == told(mask)


def test_the_attention_module_is_seen_as_its_function() -> None:
    attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
    x = torch.randn(1, 3, 4)
    (call,) = calls_of(lambda: attention(x, x, x))
    assert call.function == "torch.nn.functional.multi_head_attention_forward"
    assert call.arguments["num_heads"] == 2 and call.arguments["dropout_p"] == 0.2


def test_what_cuts_the_graph_is_seen() -> None:
    calls = calls_of(lambda: (LOGITS.detach(), LOGITS.data, LOGITS.argmax(dim=1, keepdim=True)))
    assert [call.function for call in calls] == [
        "torch.Tensor.detach",
        "torch.Tensor.data",
        "torch.Tensor.argmax",
    ]
    for call in calls:
        assert call.arguments["input"]["requires_grad"] and not call.result["requires_grad"]
    assert calls[2].arguments["dim"] == 1 and calls[2].arguments["keepdim"] is True
    assert calls_of(lambda: (X.detach(), X.data)) == []


def test_harmless_arithmetic_is_not_recorded() -> None:
    assert calls_of(lambda: (X / 8.0, X**2, X.pow(3), X + X, X @ X.T, X.relu(), X.shape)) == []


def test_a_softmax_before_a_loss_is_told_as_what_made_its_input() -> None:
    calls = calls_of(lambda: cross_entropy(LOGITS.softmax(1).view(2, 3), TARGET))
    assert calls[-1].arguments["input"]["made_by"] == "SoftmaxBackward0"


def test_the_names_are_configurable() -> None:
    def action() -> None:
        cross_entropy(X, TARGET)
        X.softmax(1)

    calls = calls_of(action, functions=frozenset({"softmax"}))
    assert [call.function for call in calls] == ["torch.Tensor.softmax"]
    assert {"softmax", "cross_entropy", "clip_grad_norm_", "huber_loss"} <= FUNCTIONS


# -- ranges


def test_ranges_are_those_of_finite_elements() -> None:
    x = torch.tensor([1.0, math.nan, -2.0, math.inf, -math.inf, math.nan])
    (call,) = calls_of(lambda: x.exp())
    assert call.arguments["input"] == {
        "shape": [6],
        "dtype": "float32",
        "requires_grad": False,
        "min": -2.0,
        "max": 1.0,
        "nans": 2,
        "infs": 2,
    }


def test_a_tensor_without_finite_elements_has_no_range() -> None:
    (call,) = calls_of(lambda: torch.tensor([math.nan, math.inf]).exp())
    told = call.arguments["input"]
    assert (told["min"], told["max"], told["nans"], told["infs"]) == (None, None, 1, 1)


def test_zeros_are_counted_where_they_are_singular() -> None:
    x = torch.tensor([0.0, -1.0, 0.0, 2.0])
    divided, logged = calls_of(lambda: (X.flatten()[:4] / x, torch.log(x)))
    assert divided.arguments["other"]["zeros"] == 2 and "zeros" not in divided.arguments["input"]
    assert logged.arguments["input"]["zeros"] == 2


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int64", "uint8"])
def test_ranges_of_other_dtypes(dtype: str) -> None:
    x = torch.tensor([0, 1, 2]).to(getattr(torch, dtype))
    (call,) = calls_of(lambda: x.clamp(0, 1))
    assert call.arguments["input"] == told(x)
    json.dumps(call.arguments, allow_nan=False)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, dtype=torch.complex64), "dtype or layout"),
        (torch.zeros(2, 2).to_sparse(), "dtype or layout"),
        (torch.zeros(0, 3), "empty"),
        (torch.zeros(2, device="meta"), "no values"),
        (torch.zeros(5, 5), "more than 24 elements"),
    ],
)
def test_it_is_said_why_there_is_no_range(
    tensor: torch.Tensor, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "MEASURED_ELEMENTS", 24)
    (call,) = calls_of(lambda: tensor.sqrt())
    assert call.arguments["input"]["unmeasured"] == reason
    assert "min" not in call.arguments["input"]


def test_arguments_are_read_before_they_are_changed_in_place() -> None:
    x = torch.tensor([1.0, 4.0])
    (call,) = calls_of(lambda: x.sqrt_())
    assert call.arguments["input"]["max"] == 4.0 and call.result["max"] == 2.0


def test_everything_is_json() -> None:
    def action() -> None:
        functional.layer_norm(X, (3,))
        torch.clamp(X, max=math.inf)
        X.softmax(1, dtype=torch.float64)
        functional.triplet_margin_with_distance_loss(X, X, X, distance_function=torch.dist)

    calls = calls_of(action)
    for call in calls:
        json.dumps([call.arguments, call.result], allow_nan=False)
    assert calls[1].arguments["max"] == "inf" and calls[2].arguments["dtype"] == "float64"
    assert isinstance(calls[3].arguments["distance_function"], str)


# -- where a call is


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).softmax(dim=1)  # the line of the module


def test_the_module_and_the_iteration_are_told() -> None:
    module = [""]
    net = Net()
    with capturing(current_module=lambda: module[0]) as capture:
        capture.iteration, module[0] = 3, "net"
        y = net(X)
        capture.iteration, module[0] = 4, ""
        cross_entropy(y, TARGET)
    inner, outer = capture.take()
    assert (inner.module, inner.iteration, outer.module, outer.iteration) == ("net", 3, "", 4)
    assert inner.code == "return self.linear(x).softmax(dim=1)  # the line of the module"
    assert outer.code == "cross_entropy(y, TARGET)"


def activate_in(file: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that torch is called from, as if it stood in this file."""
    space: dict[str, Any] = {}
    exec(compile("def activate(x):\n    return x.softmax(1)\n", str(file), "exec"), space)
    return space["activate"]


def test_a_call_inside_a_library_is_found_at_the_line_of_the_user(tmp_path: Path) -> None:
    activate = activate_in(tmp_path / "site-packages" / "library.py")
    (call,) = calls_of(lambda: activate(X))
    assert call.code == "(call,) = calls_of(lambda: activate(X))"


def test_a_call_inside_a_library_that_runs_by_itself_is_found_there(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "library.py"
    activate, capture = activate_in(file), CallCapture(lambda: "", on_fault=raise_fault)
    # A thread has no frame of the user's above it.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(capture.attach).result()
        thread.submit(activate, X).result()
        thread.submit(capture.detach).result()
    (call,) = capture.take()
    assert call.source == f"{file}:2"


def test_what_the_recorder_calls_is_not_recorded() -> None:
    package = Path(backlight.__file__).parent
    activate, demonstrate = activate_in(package / "hook.py"), activate_in(package / "demo" / "a.py")
    assert calls_of(lambda: activate(X)) == []
    (call,) = calls_of(lambda: demonstrate(X))
    assert call.source == f"{package / 'demo' / 'a.py'}:2"


def test_warnings_name_the_line_of_the_user() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls = calls_of(lambda: functional.mse_loss(X, X[:1]))
        calls += calls_of(lambda: functional.softmax(X))
    assert [f"{each.filename}:{each.lineno}" for each in caught] == [call.source for call in calls]
    assert calls[0].arguments["target"]["shape"] == [1, 3]


# -- backward passes


def backward(loss: torch.Tensor) -> None:
    loss.backward()


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("torch.Tensor.backward", backward),
        ("torch.autograd.backward", lambda loss: torch.autograd.backward(loss)),
        ("torch.autograd.backward", lambda loss: autograd.backward([loss])),
        ("torch.autograd.grad", lambda loss: autograd.grad(loss, LOGITS)),
        ("torch.autograd.grad", lambda loss: torch.autograd.grad([loss], [LOGITS])),
    ],
)
def test_where_a_backward_pass_starts(name: str, start: Callable[[torch.Tensor], Any]) -> None:
    with capturing() as capture:
        loss = LOGITS.square().mean()
        start(loss)
    (call,) = capture.take()
    root = next(iter(call.arguments.values()))
    root = root[0] if isinstance(root, list) else root
    assert call.function == name and root["made_by"] == "MeanBackward0"
    assert root["min"] == loss.item()


# -- gradient clipping


def parameters_with_gradients() -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2).double())]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 3.0)
    return parameters


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize(
    "clip", [torch.nn.utils.clip_grad_norm_, clip_grad_norm_], ids=["attribute", "imported"]
)
def test_clipping_the_norm_is_seen(clip: Callable[..., Any], foreach: bool | None) -> None:
    parameters = parameters_with_gradients()
    with capturing() as capture:
        total = clip(iter(parameters), 1, foreach=foreach)
    (call,) = capture.take()
    assert call.function == "torch.nn.utils.clip_grad_norm_"
    assert call.arguments["max_norm"] == 1 and call.arguments["norm_type"] == 2.0
    assert call.arguments["gradients"] == 2
    assert call.result["min"] == total.item() == pytest.approx(6.0)
    assert call.code == "total = clip(iter(parameters), 1, foreach=foreach)"


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize(
    "clip", [torch.nn.utils.clip_grad_value_, clip_grad_value_], ids=["attribute", "imported"]
)
def test_clipping_values_is_seen_once(clip: Callable[..., Any], foreach: bool | None) -> None:
    parameters = parameters_with_gradients()
    (call,) = calls_of(lambda: clip(iter(parameters), 0.5, foreach=foreach))
    assert call.function == "torch.nn.utils.clip_grad_value_"
    assert call.arguments == {"clip_value": 0.5, "gradients": 2} and call.result is None
    assert [parameter.grad.max().item() for parameter in parameters] == [0.5, 0.5]


def test_clipping_without_gradients_is_seen() -> None:
    (call,) = calls_of(lambda: clip_grad_norm_([nn.Parameter(torch.zeros(2))], 1.0))
    assert call.arguments["gradients"] == 0 and call.result == 0.0


def test_clipping_with_a_given_norm_is_seen() -> None:
    if not hasattr(torch.nn.utils, "clip_grads_with_norm_"):
        pytest.skip("this torch has only clip_grad_norm_")
    clip = torch.nn.utils.clip_grads_with_norm_
    (call,) = calls_of(lambda: clip(parameters_with_gradients(), 2.0, torch.tensor(6.0)))
    assert call.function == "torch.nn.utils.clip_grads_with_norm_"
    assert call.arguments["max_norm"] == 2.0 and call.result["max"] == 6.0


# -- other modes on the stack


class Passing(TorchFunctionMode):
    """A mode of the user's, which counts what it sees."""

    def __init__(self) -> None:
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def modes() -> list[Any]:
    return _get_current_function_mode_stack()


# a and A enter and leave a mode, d and D `torch.device`, + and - attach and detach.
ORDERS = sorted(
    {
        "".join(order)
        for nested in ("aAdD", "dDaA", "adDA", "daAD")
        for first, last in combinations_with_replacement(range(5), 2)
        for order in [nested[:first] + "+" + nested[first:last] + "-" + nested[last:]]
    }
)


@pytest.mark.parametrize("order", ORDERS)
def test_modes_of_the_user_come_and_go_in_any_order(order: str) -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    mode, device = Passing(), torch.device("meta")
    actions = {
        "a": mode.__enter__,
        "A": lambda: mode.__exit__(None, None, None),
        "d": device.__enter__,
        "D": lambda: device.__exit__(None, None, None),
        "+": capture.attach,
        "-": capture.detach,
    }
    expected = 0
    for place, action in enumerate(order):
        actions[action]()
        left = order[place + 1 :]
        before = mode.seen
        X.softmax(1)
        assert (mode.seen > before) == ("A" in left and "a" not in left)
        assert torch.zeros(1).is_meta == ("D" in left and "d" not in left)
        expected += "-" in left and "+" not in left
    assert modes() == []
    calls = capture.take()
    assert len(calls) == expected and {call.code for call in calls} <= {"X.softmax(1)"}


def test_the_default_device_can_be_changed_while_it_looks() -> None:
    try:
        with capturing() as capture:
            torch.set_default_device("meta")
            assert torch.zeros(1).is_meta
            torch.set_default_device(None)
            X.softmax(1)
        assert len(capture.take()) == 1
        torch.set_default_device("meta")
        with capturing():
            assert torch.zeros(1).is_meta
        assert torch.zeros(1).is_meta
        capture.attach()
        torch.set_default_device(None)  # which was set before it looked
        assert not torch.zeros(1).is_meta
        capture.detach()
    finally:
        torch.set_default_device(None)
    assert modes() == []


def test_attaching_and_detaching_twice_is_the_same_as_once() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    capture.detach()
    capture.attach()
    capture.attach()
    assert len(modes()) == 1
    X.softmax(1)
    capture.detach()
    capture.detach()
    assert modes() == [] and len(capture.take()) == 1 and capture.take() == []


def test_detaching_inside_a_backward_pass_is_made_good_by_the_next() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    capture.attach()
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda grad: capture.detach())
    weight.sum().backward()
    X.softmax(1)
    assert [call.function for call in capture.take()] == ["torch.Tensor.backward"]
    capture.detach()
    assert modes() == []


def test_a_dispatch_mode_of_the_user_does_not_see_the_measuring() -> None:
    class Counting(TorchDispatchMode):
        seen: list[str]

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def seen_by_user() -> list[str]:
        mode = Counting()
        mode.seen = []
        with mode:
            cross_entropy(LOGITS, TARGET)
        return mode.seen

    alone = seen_by_user()
    with capturing() as capture:
        assert seen_by_user() == alone
    assert capture.take()[0].arguments["input"]["max"] == 3.0


# -- what it must not disturb


def test_exceptions_of_the_user_pass_through() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    with pytest.raises(ValueError, match="Expected input batch_size") as bare:
        cross_entropy(X, torch.tensor([0]))
    capture.attach()
    with pytest.raises(ValueError, match="Expected input batch_size") as seen:
        cross_entropy(X, torch.tensor([0]))
    capture.detach()
    assert seen.value.args == bare.value.args and type(seen.value) is type(bare.value)
    assert seen.value.__cause__ is None and seen.value.__context__ is None
    assert capture.take() == [] and modes() == []


def test_a_fault_of_its_own_is_reported_and_the_call_goes_on() -> None:
    faults: list[tuple[str, Exception]] = []

    def fails(*_: Any) -> str:
        raise KeyError("no such module")

    capture = CallCapture(fails, on_fault=lambda *fault: faults.append(fault))
    capture.attach()
    loss = cross_entropy(LOGITS, TARGET)
    loss.backward()
    capture.detach()
    assert loss.item() == cross_entropy(LOGITS, TARGET).item()
    assert [type(error) for _, error in faults] == [KeyError, KeyError]
    assert "cross_entropy" in faults[0][0] and capture.take() == []


def test_without_anyone_to_tell_a_fault_is_silent() -> None:
    capture = CallCapture(lambda: str(1 / 0))
    capture.attach()
    assert X.softmax(1).shape == X.shape
    capture.detach()


def train(make: Callable[[], Problem], capture: CallCapture | None) -> dict[str, Any]:
    torch.manual_seed(0)
    problem = make()
    for step in range(3):
        problem.optimizer.zero_grad()
        if capture is not None:
            capture.attach()
        loss = problem.loss(step)
        loss.backward()
        clip_grad_norm_(problem.model.parameters(), 0.1)
        if capture is not None:
            capture.detach()
        problem.optimizer.step()
    tensors = {**problem.model.state_dict(), "rng": torch.get_rng_state(), "loss": loss.detach()}
    for name, parameter in problem.model.named_parameters():
        tensors[f"{name}.grad"] = parameter.grad
    return copy.deepcopy(tensors)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_training_is_the_same_bit_by_bit(make: Callable[[], Problem]) -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    bare, seen = train(make, None), train(make, capture)
    assert bare.keys() == seen.keys()
    for name in bare:
        assert torch.equal(bare[name], seen[name]), name
    functions = [call.function for call in capture.take()]
    assert functions.count("torch.Tensor.backward") == 3
    assert functions.count("torch.nn.utils.clip_grad_norm_") == 3
    assert modes() == []


class FastAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


FAST = [FastAttention, encoder_layer, lambda: nn.TransformerEncoder(encoder_layer(), 2)]


@pytest.mark.parametrize("make", FAST, ids=["attention", "layer", "encoder"])
@pytest.mark.parametrize("is_training", [False, True])
def test_a_frozen_part_takes_its_fast_path_as_without(
    make: Callable[[], nn.Module], is_training: bool
) -> None:
    torch.manual_seed(0)
    frozen = make().requires_grad_(False).train(is_training)
    x = torch.randn(2, 5, 16)

    def action() -> torch.Tensor:
        torch.manual_seed(1)
        return frozen(x).softmax(-1)

    bare = action()
    with capturing() as capture:
        assert torch.equal(action(), bare)
    functions = [call.function for call in capture.take()]
    assert functions[-1] == "torch.Tensor.softmax"
    assert len(functions) == 1 or is_training


def test_an_interrupt_between_two_hooks_leaves_none_of_them(monkeypatch) -> None:
    class Interrupted(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            raise KeyboardInterrupt

    before = dict(torch_module._global_forward_pre_hooks)
    monkeypatch.setattr(fast_paths, "_global_forward_hooks", Interrupted())
    paths = fast_paths.FastPaths(lambda: None, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        paths.attach()
    assert torch_module._global_forward_pre_hooks != before
    paths.detach()
    assert torch_module._global_forward_pre_hooks == before


def test_a_fast_path_that_fails_is_looked_at_afterwards() -> None:
    layer = encoder_layer().eval()
    with capturing() as capture:
        with pytest.raises(AssertionError, match="embedding dimension"):
            layer(torch.zeros(2, 5, 3))
        X.softmax(1)
    assert [call.function for call in capture.take()] == ["torch.Tensor.softmax"]


def test_the_graph_and_grad_modes_are_as_without() -> None:
    def action() -> list[Any]:
        y = functional.softmax(LOGITS, 1)
        with torch.no_grad():
            z = LOGITS.exp()
        return [type(y.grad_fn).__name__, y._version, y.requires_grad, z.requires_grad]

    bare = action()
    with capturing():
        assert action() == bare and torch.is_grad_enabled()


def test_recomputation_counts_once() -> None:
    for use_reentrant in (False, True):
        with capturing() as capture:
            x = X.clone().requires_grad_()
            y = checkpoint(lambda x: x.softmax(1).sin(), x, use_reentrant=use_reentrant)
            y.sum().backward()
        functions = [call.function for call in capture.take()]
        assert functions == ["torch.Tensor.softmax", "torch.Tensor.backward"]


def test_recomputation_counts_once_where_a_library_runs_the_engine_itself() -> None:
    with capturing() as capture:
        x = X.clone().requires_grad_()
        y = checkpoint(lambda x: x.softmax(1).sin(), x, use_reentrant=False).sum()
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((y,), (torch.ones(()),), False, False, (), True, True)
    assert x.grad is not None
    assert [call.function for call in capture.take()] == ["torch.Tensor.softmax"]


def test_nothing_is_kept_alive() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    capture.attach()
    x = torch.randn(4, 3, requires_grad=True)
    hidden = (x * 2).softmax(1)
    loss = functional.mse_loss(hidden, torch.zeros(4, 3))
    loss.backward()
    clip_grad_norm_([x], 1.0)
    gone = [weakref.ref(each) for each in (x, hidden, loss)]
    gc.disable()
    try:
        del x, hidden, loss
        assert [each() for each in gone] == [None, None, None]
    finally:
        gc.enable()
        capture.detach()
    assert len(capture.take()) == 4


def test_other_threads_are_not_looked_at() -> None:
    with capturing() as capture:
        thread = threading.Thread(target=lambda: X.softmax(1))
        thread.start()
        thread.join()
    assert capture.take() == []


def test_detaching_in_another_thread_leaves_it_blind() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    capture.attach()
    thread = threading.Thread(target=capture.detach)
    thread.start()
    thread.join()
    X.softmax(1)
    assert capture.take() == []
    capture.detach()
    assert modes() == []


def test_a_tensor_subclass_of_the_user_works_as_without() -> None:
    def action() -> torch.Tensor:
        Tagged.seen.clear()
        x = X.as_subclass(Tagged)
        return functional.cross_entropy(x.softmax(1), TARGET)

    bare, bare_seen = action(), list(Tagged.seen)
    with capturing() as capture:
        result = action()
    assert type(result) is Tagged and Tagged.seen == bare_seen
    assert result.as_subclass(torch.Tensor) == bare.as_subclass(torch.Tensor)
    softmax, loss = capture.take()
    assert softmax.arguments["input"] == told(X) and loss.result["shape"] == []


def test_functions_of_other_libraries_need_not_be_hashable() -> None:
    class AddOne:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    with capturing():
        result = torch.overrides.handle_torch_function(AddOne(), (X,), X)
    assert torch.equal(result, X + 1)


def test_fake_and_traced_tensors_are_not_looked_at() -> None:
    with capturing() as capture:
        with FakeTensorMode():
            torch.empty(3).softmax(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(lambda x: x.softmax(0), torch.ones(3), check_trace=False)
    assert capture.take() == []


def test_transformed_functions_are_not_looked_at() -> None:
    with capturing() as capture:
        result = torch.func.vmap(lambda x: x.softmax(0))(X)
        gradient = torch.func.grad(lambda x: x.exp().sum())(X)
    assert torch.equal(result, X.softmax(1)) and torch.equal(gradient, X.exp())
    assert capture.take() == []


def test_inference_tensors_and_views_changed_in_place_are_described() -> None:
    with capturing() as capture:
        with torch.inference_mode():
            X.clone().view(6).softmax(0)
        base = LOGITS * 1
        first, _ = base.unbind()
        with torch.no_grad():
            base.mul_(2)
        first.detach()
    assert len(capture.take()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_stays_whole(backend: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds to import

    counter = CompileCounterWithBackend(backend)

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(x, dim=1).log().clamp(min=-5)

    def gradient() -> torch.Tensor:
        (found,) = torch.autograd.grad(compiled(LOGITS).sum(), LOGITS)
        return found

    compiled = torch.compile(function, backend=counter, fullgraph=True)
    bare = gradient()
    for _ in range(3):
        with capturing() as capture:
            assert torch.equal(gradient(), bare)
        assert torch.equal(gradient(), bare)
        seen = capture.take()
        assert seen[-1].function == "torch.autograd.grad"
        # Only a backend that runs Python is seen; its code bears the function's first line.
        inside = ["def function(x: torch.Tensor) -> torch.Tensor:"] * 3
        assert [call.code for call in seen[:-1]] == (inside if backend == "eager" else [])
    # Compiled once for each state of the mode stack, and in one piece.
    assert counter.frame_count == 2


# -- bounds


def test_a_line_that_repeats_itself_is_folded() -> None:
    xs = [torch.tensor([float(i)]) for i in range(-200, 0)]
    with capturing() as capture:
        for x in xs:
            x.exp()
        X.exp()
    calls = capture.take()
    assert len(calls) == MOST_CALLS_OF_A_LINE + 2
    folded = calls[-2]
    assert folded.arguments["repeats"] == 200 - MOST_CALLS_OF_A_LINE
    assert folded.arguments["input"]["min"] == -150.0 and folded.arguments["input"]["max"] == -1.0
    assert folded.result["max"] == pytest.approx(math.exp(-1))


def test_folding_keeps_counts_and_different_calls_apart() -> None:
    with capturing() as capture:
        for i in range(MOST_CALLS_OF_A_LINE + 6):
            torch.clamp(torch.tensor([math.nan, i]), min=i % 2)
    folded = capture.take()[MOST_CALLS_OF_A_LINE:]
    assert [call.arguments["min"] for call in folded] == [0, 1]
    assert [call.arguments["repeats"] for call in folded] == [3, 3]
    assert [call.arguments["input"]["nans"] for call in folded] == [3, 3]
    assert folded[0].arguments["input"]["max"] == MOST_CALLS_OF_A_LINE + 4


def test_the_number_of_records_is_bounded() -> None:
    with capturing() as capture:
        for i in range(MOST_CALLS + 100):
            torch.clamp(X, min=i)
    assert len(capture.take()) == MOST_CALLS


def test_many_modes_at_once() -> None:
    capture = CallCapture(lambda: "", on_fault=raise_fault)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(Passing())
        capture.attach()
        stack.enter_context(Passing())
        X.softmax(1)
    X.softmax(1)
    capture.detach()
    assert len(capture.take()) == 2 and modes() == []
