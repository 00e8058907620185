"""The same network, weights and data in PyTorch, linen and NNX have the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from reading import find

import backlight
import backlight.jax
from backlight.schema import COUNTS, STATISTICS, UNIT_STATISTICS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 6)).astype(np.float32)
Y = RANDOM.standard_normal((16, 1)).astype(np.float32)
WEIGHTS = {
    "fc1": (RANDOM.standard_normal((6, 8)).astype(np.float32), np.zeros(8, np.float32)),
    "fc2": (RANDOM.standard_normal((8, 1)).astype(np.float32), np.zeros(1, np.float32)),
}
STEPS, RATE = 3, 0.05


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 8), torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1, name="fc2")(nn.relu(nn.Dense(8, name="fc1")(x)))


class NnxNet(nnx.Module):
    def __init__(self) -> None:
        self.fc1, self.fc2 = nnx.Linear(6, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 1, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.fc2(nnx.relu(self.fc1(x)))


def ask(run: Any) -> None:
    """The same statistics besides, in every framework."""
    run.statistic("top", lambda values: (values**2).max())
    for name in ("min_abs", "rm4", "rm8"):
        run.statistic(name)
    run.blocks((2, 4), "float4_e2m1fn", classes={"input", "output"})


def in_torch(root: Path) -> Path:
    model = TorchNet()
    with torch.no_grad():
        for name, (kernel, bias) in WEIGHTS.items():
            getattr(model, name).weight.copy_(torch.from_numpy(kernel.T))
            getattr(model, name).bias.copy_(torch.from_numpy(bias))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        ask(run)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (model(torch.from_numpy(X)) - torch.from_numpy(Y)).square().mean().backward()
            optimizer.step()
    return run.path


def in_linen(root: Path) -> Path:
    model, optimizer = LinenNet(), optax.sgd(RATE, momentum=0.9)
    params = {"params": {n: {"kernel": k, "bias": b} for n, (k, b) in WEIGHTS.items()}}

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: ((model.apply(p, x) - y) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    with backlight.jax.watch(root=root, every=1) as run:
        ask(run)
        ours, state = run.wrap(step), optimizer.init(params)
        for _ in range(STEPS):
            params, state, _ = ours(params, state, X, Y)
    return run.path


def in_nnx(root: Path) -> Path:
    model = NnxNet()
    for name, (kernel, bias) in WEIGHTS.items():
        layer = getattr(model, name)
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), jnp.asarray(bias)
    optimizer = nnx.Optimizer(model, optax.sgd(RATE, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    with backlight.jax.watch(root=root, every=1) as run:
        ask(run)
        ours = run.wrap(step)
        for _ in range(STEPS):
            ours(model, optimizer, X, Y)
    return run.path


SEEN = [
    ("fc1:in.0", "fc1:in.0", "value"),
    ("fc1:out.0", "fc1:out.0", "value"),
    ("fc1:out.0", "fc1:out.0", "grad"),
    ("fc2:in.0", "fc2:in.0", "value"),
    ("fc2:in.0", "fc2:in.0", "grad"),
    ("fc2:out.0", "fc2:out.0", "grad"),
    ("(model):out.0", "(model):out.0", "value"),
    ("(loss)", "(loss)", "value"),
    *[(f"{n}.weight", f"{n}.kernel", q) for n in WEIGHTS for q in ("value", "grad", "update")],
    *[(f"{n}.bias", f"{n}.bias", q) for n in WEIGHTS for q in ("value", "grad", "update")],
    ("fc1.weight:momentum_buffer", "fc1.kernel:trace", "value"),
]


@pytest.mark.parametrize("train", [in_linen, in_nnx])
def test_the_same_network_has_the_same_numbers(train: Any, root: Path) -> None:
    theirs, ours = in_torch(root), train(root)
    for their_name, our_name, quantity in SEEN:
        rows = find(theirs, their_name, quantity), find(ours, our_name, quantity)
        assert len(rows[0]) == len(rows[1]) == STEPS, (our_name, quantity)
        for a, b in zip(*rows, strict=True):
            assert_same(a, b, f"{our_name} {quantity} at step {a['step']}")


def assert_same(a: dict, b: dict, where: str) -> None:
    assert [a[name] for name in COUNTS] == [b[name] for name in COUNTS], where
    assert sorted(a["shape"]) == sorted(b["shape"]) and a["dtype"] == b["dtype"], where
    scale = a["abs_max"] or 1.0
    for name in (*STATISTICS, *UNIT_STATISTICS):
        assert (a[name] is None) == (b[name] is None), (where, name)
        if a[name] is not None:
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6 * scale), (where, name)
    assert [each is None for each in a["own"]] == [each is None for each in b["own"]], where
    assert None not in a["own"][:4], where
    for place, (theirs, ours) in enumerate(zip(a["own"], b["own"], strict=True)):
        slack = 1e-6 * scale if place < 5 else 1.01 / a["count"]  # a share may differ by one
        assert ours == (theirs and pytest.approx(theirs, rel=1e-4, abs=slack)), (where, place)
    # A number at the edge of a bin may fall on either side of it.
    bins = [dict(zip(row["sketch_keys"], row["sketch_counts"], strict=True)) for row in (a, b)]
    moved = sum(abs(bins[0].get(key, 0) - bins[1].get(key, 0)) for key in {**bins[0], **bins[1]})
    assert moved <= max(2, 0.02 * a["count"]), where
