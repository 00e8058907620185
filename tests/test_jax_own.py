"""Statistics that the user asks for in JAX: traced into the step, through every transformation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from reading import find

import backlight
import backlight.jax
from backlight.errors import BacklightError, BacklightWarning
from backlight.jax import tap
from backlight.jax.extras import built_in
from backlight.own.statistic import block_statistics, statistic_of
from backlight.reduce.extras import built_in as torch_built_in

ASKED = [
    *(statistic_of(name) for name in ("min_abs", "rm4", "rm8")),
    *block_statistics((2, 3), "float8_e4m3fn"),
    *block_statistics((1, 32), "float6_e2m3fn"),
]
DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 70), (3, 4, 9), (7,), (), (0, 3)])
def test_extras_are_those_of_torch(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    values = rng.normal(size=shape) * 2.0 ** rng.uniform(-12, 6, shape)
    if values.size > 20:
        values.flat[:6] = [0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-39]
    is_real = "float" in dtype
    array = np.where(np.isfinite(values), values, 0).astype(dtype) if not is_real else None
    if array is None:
        array = values.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    wide = torch.tensor(np.asarray(array, np.float64))
    run = jax.jit(lambda array: [jnp.asarray(built_in(each, array)) for each in ASKED])
    for each, found in zip(ASKED, run(array), strict=True):
        expected = float(torch_built_in(each, wide))
        is_exact = each.name == "min_abs" or "lost" in each.name
        if each.name == "min_abs":
            found = np.asarray(found)  # JAX itself may take what is subnormal for 0
        assert float(found) == pytest.approx(
            expected, rel=1e-7 if is_exact else 3e-6, abs=1e-6 * (not is_exact), nan_ok=True
        ), each.name


def kurtosis(values: Any) -> Any:
    centred = values - values.mean()
    return (centred**4).mean() / (centred**2).mean() ** 2


def loss_of(w: Any, x: Any) -> Any:
    def body(carry: Any, number: Any) -> Any:
        carry = tap("loop", jnp.tanh(carry + number))
        return carry, None

    hidden, _ = jax.lax.scan(jax.checkpoint(body), tap("before", x @ w), jnp.arange(3.0))
    hidden = jax.lax.cond(
        x.sum() > 1e9, lambda y: tap("rare", y), lambda y: tap("usual", y * 2), hidden
    )
    return jax.vmap(lambda row: (tap("row", row) ** 2).sum())(hidden).mean()


@jax.jit
def update(w: Any, x: Any) -> Any:
    loss, grad = jax.value_and_grad(loss_of)(w, x)
    return w - 0.1 * backlight.jax.gradients(grad), loss


W, X = jnp.ones((3, 4)), jax.random.normal(jax.random.key(0), (8, 3))


def test_a_statistic_is_traced_through_scan_remat_cond_and_vmap(root: Path) -> None:
    with backlight.jax.watch(root=root, every=1) as run:
        ours = run.wrap(update)
        ours(W, X)
        run.statistic("kurtosis", kurtosis)
        run.statistic("top", lambda values: values.max(), include="loop|row", quantities={"value"})
        ours(W, X)
    rows = backlight.open(run.path).stats().rows()
    assert {row["kurtosis"] for row in rows if row["step"] == 0} == {None}
    later = [row for row in rows if row["step"] == 1]
    assert {row["name"] for row in later} >= {"loop", "before", "usual", "row"}
    for row in later:
        is_chosen = row["name"] in ("loop", "row") and row["quantity"] == "value"
        assert row["top"] == (pytest.approx(row["max"]) if is_chosen else None), row["name"]
        assert (row["kurtosis"] is not None) == (row["std"] > 0), row["name"]
    assert sorted(row["iteration"] for row in later if row["top"] and row["name"] == "loop") == [
        *(0, 1, 2)
    ]
    value = next(row for row in later if row["name"] == "before" and row["quantity"] == "value")
    assert value["kurtosis"] == pytest.approx(float(kurtosis(X @ W)), rel=1e-5)


def test_exact_training_is_the_same_to_the_last_bit(root: Path) -> None:
    bare, ours = W, W
    with backlight.jax.watch(root=root, every=1, exact=True) as run:
        run.statistic("kurtosis", kurtosis)
        run.blocks((1, 32))
        step = run.wrap(update)
        for _ in range(3):
            bare, _ = update(bare, X)
            ours, _ = step(ours, X)
    assert np.array_equal(bare, ours)
    assert len(find(run.path, "loop", "value")) == 9


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda values: 1 / 0, "failed at 'before' (ZeroDivisionError: division by zero)"),
        (lambda values: float(values.max()), "failed at 'before' (ConcretizationTypeError"),
        (lambda values: values, "returned an array of the shape (8, 4) at 'before'"),
        (lambda values: "much", "failed at 'before' (TypeError"),
    ],
)
def test_a_function_that_cannot_be_traced_is_said_once(
    function: Any, said: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")
    with (
        pytest.warns(BacklightWarning) as caught,
        backlight.jax.watch(root=root, every=1) as run,
    ):
        run.statistic("bad", function, include="before", quantities={"value"})
        step = run.wrap(update)
        w = step(step(W, X)[0], X)[0]
    assert len(caught) == 1 and f"The statistic 'bad' {said}" in str(caught[0].message)
    assert np.isfinite(w).all()
    assert {row["bad"] for row in backlight.open(run.path).stats()} == {None}


def test_what_cannot_be_asked_for_is_one_sentence(root: Path) -> None:
    run = backlight.jax.watch(root=root)
    with pytest.raises(BacklightError, match="needs a function"):
        run.statistic("kurtosis")
    run.finish()
    with pytest.raises(BacklightError, match=r"after run\.finish"):
        run.statistic("rm4")
