"""Arrays that are sharded over several devices: statistics of the whole, faults by their shard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reading import find, read

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import backlight.jax

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
data = np.load(sys.argv[2])
optimizer = optax.adam(0.1)

def loss_of(params, x):
    hidden = backlight.jax.tap("hidden", jnp.log(x @ params["w"]))
    return jnp.where(jnp.isfinite(hidden), hidden, 0).sum()

@jax.jit
def step(params, state, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

params = {"w": put(data["w"], None, "model")}
with backlight.jax.watch(root=sys.argv[1], every=1) as run:
    run.statistic("top", lambda values: values.max(), include="^w$")
    run.statistic("rm4")
    run.blocks((8, 2), "float8_e4m3fn")
    ours, state = run.wrap(step), optimizer.init(params)
    for _ in range(2):
        params, state, loss = ours(params, state, put(data["x"], "data", None))
assert params["w"].sharding.spec == P(None, "model"), params["w"].sharding
print(run.path)
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    folder = tmp_path_factory.mktemp("sharded")
    random = np.random.default_rng(0)
    x, w = random.uniform(0.1, 1, (8, 6)), random.uniform(0.1, 1, (6, 4))
    x[5] *= -1  # in the second half of the batch
    np.savez(folder / "data.npz", x=x.astype(np.float32), w=w.astype(np.float32))
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder / "runs", folder / "data.npz"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1]), x, w


def test_statistics_are_those_of_the_whole_array(sharded: tuple) -> None:
    path, x, w = sharded
    with np.errstate(invalid="ignore"):
        hidden = np.log(x @ w)
    finite = hidden[np.isfinite(hidden)]
    row = find(path, "hidden")[0]
    assert (row["count"], row["nans"], row["shape"]) == (32, 4, [8, 4])
    assert row["mean"] == pytest.approx(finite.mean(), rel=1e-5)
    assert row["std"] == pytest.approx(finite.std(), rel=1e-5)
    assert row["min"] == pytest.approx(finite.min(), rel=1e-4)
    assert row["rms"] == pytest.approx(np.sqrt((finite**2).mean()), rel=1e-5)
    assert sum(row["sketch_counts"]) == len(finite)
    assert (row["units"], row["dead_units"], row["constant_units"]) == (4, 0, 0)


def test_own_statistics_are_those_of_the_whole_array(sharded: tuple) -> None:
    path, _, w = sharded
    row = find(path, "w", "value")[0]
    top, rm4, spread, block_lost, lost = row["own"]
    values = w.astype(np.float32).astype(np.float64)
    assert top == pytest.approx(values.max())
    assert rm4 == pytest.approx((values**4).mean() ** 0.25)
    assert spread == pytest.approx(np.log2([values[:, :2].max(), values[:, 2:].max()]).std())
    assert (block_lost, lost) == (0, 0)
    assert find(path, "hidden", "value")[0]["own"][0] is None


def test_what_is_replicated_counts_once(sharded: tuple) -> None:
    path, _, w = sharded
    weight, grad = find(path, "w")[0], find(path, "w", "grad")[0]
    assert weight["count"] == grad["count"] == w.size
    assert weight["mean"] == pytest.approx(w.mean(), rel=1e-5)
    assert find(path, "w:mu") and find(path, "w", "update")


def test_the_first_value_that_is_not_finite_is_named_with_its_shard(sharded: tuple) -> None:
    path, *_ = sharded
    [event] = read(path, "events")
    names = {site["site"]: site["name"] for site in read(path, "sites")}
    assert names[event["site"]] == "hidden"
    assert event["text"] == ("4 NaN and 0 infinite of 32 elements (value), on shard 3 of 4, cpu:2")
