"""Runs of JAX programs: what is seen through every transformation, by name, and at what price."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from reading import find, observations, read

import backlight.jax
from backlight.errors import BacklightError, BacklightWarning

X = jax.random.normal(jax.random.key(0), (8, 3))
Y = X.sum(axis=1, keepdims=True)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = backlight.jax.tap("hidden", nn.relu(nn.Dense(4)(x)))
        return nn.Dense(1)(x)


def linen_state() -> TrainState:
    net = Net()
    params = net.init(jax.random.key(1), X)["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(0.01))


@jax.jit
def linen_step(state: TrainState, x: Any, y: Any) -> Any:
    def loss_of(params: Any) -> Any:
        return ((state.apply_fn({"params": params}, x) - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def record(root: Path, function: Any, *args: Any, **options: Any) -> tuple[Path, Any]:
    """One recorded call; the run's folder and what the call returned."""
    with backlight.jax.watch(root=root, every=1, **options) as run:
        result = run.wrap(function)(*args)
    return run.path, result


def same(ours: Any, theirs: Any) -> bool:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def assert_row(row: dict, array: Any) -> None:
    """A row has the numbers of this array."""
    wide = np.asarray(array, np.float64)
    assert row["shape"] == list(wide.shape) and row["count"] == wide.size
    for name, value in (("mean", wide.mean()), ("std", wide.std()), ("max", wide.max())):
        assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
    assert sum(row["sketch_counts"]) == (wide != 0).sum()


# -- what is seen


def test_a_linen_model_is_seen_by_name_without_changing_it(root: Path) -> None:
    state = linen_state()
    path, (after, loss) = record(root, linen_step, state, X, Y)
    dense = state.params["Dense_0"]
    out = X @ dense["kernel"] + dense["bias"]
    assert_row(*find(path, "Dense_0:in.0"), X)
    assert_row(*find(path, "Dense_0:out.0"), out)
    assert_row(*find(path, "hidden"), nn.relu(out))
    assert_row(*find(path, "Dense_1:in.0"), nn.relu(out))
    assert_row(*find(path, "Dense_0.kernel"), dense["kernel"])
    update = after.params["Dense_0"]["kernel"] - dense["kernel"]
    assert_row(*find(path, "Dense_0.kernel", "update"), update)
    assert_row(*find(path, "Dense_0.kernel:mu"), after.opt_state[0].mu["Dense_0"]["kernel"])
    assert_row(*find(path, "(loss)"), loss)
    [row] = find(path, "hidden")
    assert row["tensor_class"] == "tensor" and row["units"] == 4
    assert row["dead_units"] == int((nn.relu(out) == 0).all(axis=0).sum())


def test_gradients_of_activations_and_parameters_are_those_of_jax(root: Path) -> None:
    state = linen_state()
    path, _ = record(root, linen_step, state, X, Y)

    def loss_of(params: Any, offset: Any) -> Any:
        hidden = nn.relu(X @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]) + offset
        out = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return ((out - Y) ** 2).mean()

    grads, hidden = jax.grad(loss_of, (0, 1))(state.params, jnp.zeros((8, 4)))
    assert_row(*find(path, "hidden", "grad"), hidden)
    for layer, leaves in grads.items():
        for leaf, grad in leaves.items():
            assert_row(*find(path, f"{layer}.{leaf}", "grad"), grad)


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.rest = nnx.List([nnx.Linear(4, 1, rngs=rngs)])

    def __call__(self, x: Any) -> Any:
        return self.rest[0](nnx.relu(self.norm(self.first(x))))


@nnx.jit
def nnx_step(model: NnxNet, optimizer: nnx.Optimizer, x: Any, y: Any) -> Any:
    loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def test_an_nnx_model_is_seen_by_name_and_changed_in_place(root: Path) -> None:
    def train(step: Any) -> Any:
        model = NnxNet(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
        losses = [step(model, optimizer, X, Y) for _ in range(3)]
        return losses, nnx.state(model), nnx.state(optimizer)

    bare = train(nnx_step)
    with backlight.jax.watch(root=root, every=2) as run:
        ours = train(run.wrap(nnx_step))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(bare), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    names = {row["name"] for row in read(run.path, "sites")}
    assert {"first:out.0", "rest.0:in.0", "first.kernel", "rest.0.bias:trace"} <= names
    assert {"norm.mean", "norm.scale", "(model):in.0"} <= names
    [mean] = find(run.path, "norm.mean", step=0)
    assert mean["tensor_class"] == "buffer"
    assert find(run.path, "first.kernel", "grad") and find(run.path, "first:out.0", "grad")
    assert nnx.Linear.__call__.__name__ == "__call__" and not hasattr(
        nnx.Linear.__call__, "__wrapped__"
    )


def test_raw_parameters_are_found_because_they_come_out_again(root: Path) -> None:
    def step(layers: Any, batch: dict) -> Any:
        def loss_of(layers: Any) -> Any:
            return ((batch["x"] @ layers[0]["w"] @ layers[1]["w"]) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(layers)
        grads = backlight.jax.gradients(grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, grads), {
            "loss": loss,
            "other": 1.0 * loss,
        }

    layers = [{"w": jnp.ones((3, 4))}, {"w": jnp.ones((4, 1))}]
    path, (after, _) = record(root, jax.jit(step), layers, {"x": X})
    assert_row(*find(path, "0.w"), layers[0]["w"])
    assert_row(*find(path, "1.w", "update"), after[1]["w"] - layers[1]["w"])
    assert find(path, "0.w", "grad") and find(path, "(loss)")
    assert not any(row["name"].startswith("x") for row in read(path, "sites"))
    [step_row] = read(path, "steps")
    assert step_row["batch_size"] == 8


def layer(w: Any, x: Any) -> Any:
    return backlight.jax.tap("out", jnp.tanh(backlight.jax.tap("in", x) @ w))


W = 0.5 * jnp.eye(3)
TRANSFORMED = {
    "jit": lambda w, x: jax.jit(layer)(w, x).sum(),
    "vmap": lambda w, x: jax.vmap(layer, (None, 0))(w, x).sum(),
    "remat": lambda w, x: jax.checkpoint(layer)(w, x).sum(),
    "remat in jit": lambda w, x: jax.jit(jax.checkpoint(layer))(w, x).sum(),
    "cond": lambda w, x: jax.lax.cond(w.sum() > 0, layer, lambda w, x: x @ w, w, x).sum(),
    "custom rule": lambda w, x: jax.nn.relu(jax.nn.silu(layer(w, x))).sum(),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_tap_and_its_gradient_are_seen_once_through(name: str, root: Path) -> None:
    loss_of = TRANSFORMED[name]
    step = jax.jit(lambda w, x: jax.value_and_grad(loss_of)(w, x))
    path, ours = record(root, step, W, X)
    assert same(ours, step(W, X)) or np.allclose(ours[1], step(W, X)[1], rtol=1e-6)
    assert_row(*find(path, "in"), X)
    assert_row(*find(path, "out"), jnp.tanh(X @ W))
    [grad] = find(path, "out", "grad")
    if name == "custom rule":
        assert grad["abs_max"] > 0
    else:
        assert_row(grad, jnp.ones((8, 3)))


@pytest.mark.parametrize("is_remat", [False, True])
def test_a_scan_has_an_iteration_for_each_pass(is_remat: bool, root: Path) -> None:
    def loss_of(w: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            return layer(w, x), None

        return jax.lax.scan(jax.checkpoint(body) if is_remat else body, X, None, length=3)[0].sum()

    path, _ = record(root, jax.jit(jax.grad(loss_of)), W)
    x, values = X, []
    for _ in range(3):
        x = jnp.tanh(x @ W)
        values.append(x)
    rows = find(path, "out")
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    for row, value in zip(rows, values, strict=True):
        assert_row(row, value)
    grads = sorted(find(path, "out", "grad"), key=lambda row: row["iteration"])
    assert_row(grads[2], jnp.ones((8, 3)))
    assert_row(grads[1], (1 - values[2] ** 2) @ W.T)
    assert read(path, "steps")[0]["iterations"] == 3


def test_of_a_loop_without_a_known_end_the_last_pass_is_seen(root: Path) -> None:
    def step(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, layer(w, c[1])), (0, x))[
            1
        ]

    path, result = record(root, jax.jit(step), W, X)
    assert_row(*find(path, "out"), result)


def test_a_branch_that_does_not_run_has_no_row(root: Path) -> None:
    step = jax.jit(lambda w, x: jax.lax.cond(w.sum() < 0, layer, lambda w, x: x @ w, w, x))
    path, _ = record(root, step, W, X)
    assert find(path, "out") == [] and {"in", "out"} <= {s["name"] for s in read(path, "sites")}


def test_a_module_that_is_called_twice_has_two_calls(root: Path) -> None:
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            return dense(jnp.tanh(dense(x)))

    net = Twice()
    params = net.init(jax.random.key(0), X)
    path, _ = record(root, jax.jit(jax.grad(lambda p: net.apply(p, X).sum())), params)
    first, second = find(path, "dense:out.0"), find(path, "dense#2:out.0")
    assert_row(second[0], net.apply(params, X))
    assert first[0]["mean"] != second[0]["mean"]
    assert_row(*find(path, "dense#2:out.0", "grad"), jnp.ones((8, 3)))
    assert find(path, "dense:out.0", "grad")[0]["std"] > 0


def test_the_graph_has_what_was_made_from_what(root: Path) -> None:
    path, _ = record(root, linen_step, linen_state(), X, Y)
    [file] = (path / "graphs").glob("*.json")
    graph = json.loads(file.read_text())
    names = {site["site"]: site["name"] for site in read(path, "sites")}
    edges = {(names[a], names[b]) for kind in graph["edges"].values() for a, b in kind}
    assert {
        ("(model):in.0", "Dense_0:in.0"),
        ("Dense_0:in.0", "Dense_0:out.0"),
        ("Dense_0.kernel", "Dense_0:out.0"),
        ("Dense_0:out.0", "hidden"),
        ("hidden", "Dense_1:in.0"),
        ("(model):out.0", "(loss)"),
    } <= edges
    assert ("Dense_0:in.0", "hidden") not in edges
    assert read(path, "steps")[0]["graph"] == graph["signature"]


# -- training is not harmed


def test_a_step_that_is_not_recorded_is_the_users_own(root: Path) -> None:
    traces = []

    @jax.jit
    def step(w: Any) -> Any:
        traces.append(1)
        return layer(w, X).sum() + w

    step(W)
    with backlight.jax.watch(root=root, schedule={1}) as run:
        ours = run.wrap(step)
        for _ in range(3):
            ours(W)
    assert len(traces) == 2, "once for the user, once for the recorded step"
    assert step._cache_size() == 1
    assert "backlight" not in step.lower(W).as_text()


def test_exact_runs_both_and_goes_on_from_the_users_own(root: Path) -> None:
    calls = []
    state = linen_state()

    def step(*args: Any) -> Any:
        calls.append(1)
        return linen_step(*args)

    bare = state
    for _ in range(3):
        bare, _ = linen_step(bare, X, Y)
    with backlight.jax.watch(root=root, every=1, exact=True) as run:
        ours, wrapped = state, run.wrap(step)
        for _ in range(3):
            ours, _ = wrapped(ours, X, Y)
    assert same(ours, bare)
    assert len(calls) == 4, "three steps, and one trace"
    assert len(find(run.path, "hidden")) == 3


def test_arguments_that_the_user_donates_survive_a_recorded_step(root: Path) -> None:
    step = jax.jit(lambda w, x: (w - 0.1 * x.mean(), (w * x).sum()), donate_argnums=0)
    with backlight.jax.watch(root=root, every=2) as run:
        ours, w = run.wrap(step), jnp.ones(3)
        for _ in range(4):
            w, _ = ours(w, jnp.ones(3))
    np.testing.assert_allclose(w, 0.6, rtol=1e-6)


def test_static_arguments_and_numbers(root: Path) -> None:
    @jax.jit
    def plain(w: Any, rate: float) -> Any:
        return w - rate * backlight.jax.tap("t", w)

    static = jax.jit(lambda w, n: backlight.jax.tap("s", w) * n, static_argnums=1)
    with backlight.jax.watch(root=root, every=1) as run:
        ours = run.wrap(plain)
        for rate in (0.1, 0.2, 0.3):
            w = ours(jnp.ones(2), rate)
        scaled = run.wrap(static)(jnp.ones(2), 3)
    np.testing.assert_allclose(w, 0.7, rtol=1e-6)
    assert scaled.tolist() == [3.0, 3.0]
    assert len(find(run.path, "t")) == 3 and len(find(run.path, "s")) == 1


# -- the run


def test_the_loop_of_other_tools_has_its_counterpart(root: Path) -> None:
    net, optimizer = Net(), optax.sgd(0.1)

    def update(params: Any, state: Any, optimizer: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(lambda p: ((net.apply(p, x) - y) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, grads

    params = net.init(jax.random.key(1), X)
    with backlight.jax.watch(root=root, every=1) as run:
        state = optimizer.init(params)
        for _ in range(2):
            params, state, _ = run.intercept(update, params, state, optimizer, X, Y)
    assert len(find(run.path, "Dense_0.kernel", "grad")) == 2
    assert len(find(run.path, "Dense_1.bias", "update")) == 2


def test_options_schedule_select_and_keep(root: Path) -> None:
    with backlight.jax.watch(
        root=root,
        every=3,
        include="Dense_0",
        exclude="bias",
        classes={"parameter", "output"},
        config={"lr": 0.01},
        name="chosen",
        project="p",
    ) as run:
        step, state = run.wrap(linen_step), linen_state()
        for _ in range(4):
            state, loss = step(state, X, Y)
            run.log(loss=loss)
        run.note("done")
    assert run.path == root / "p" / "chosen"
    assert {site["name"] for site in read(run.path, "sites")} == {"Dense_0.kernel", "Dense_0:out.0"}
    assert [row["recorded"] for row in read(run.path, "steps")] == [True, False, False, True]
    assert [row["step"] for row in read(run.path, "scalars")] == [0, 1, 2, 3]
    info = json.loads((run.path / "run.json").read_text())
    assert info["config"] == {"lr": 0.01} and info["environment"]["jax"] == jax.__version__
    assert [(m["name"], m["class"], m["parameters"]) for m in info["modules"]] == [
        ("", "Net", 0),
        ("Dense_0", "Dense", 16),
        ("Dense_1", "Dense", 5),
    ]


def test_a_run_goes_on_after_a_restart(root: Path) -> None:
    state = linen_state()
    path, _ = record(root, linen_step, state, X, Y, name="first")
    sites = len(read(path, "sites"))
    with backlight.jax.watch(resume=path, every=1) as run:
        run.wrap(linen_step)(state, X, Y)
    assert [row["step"] for row in read(path, "steps")] == [0, 1]
    assert len(read(path, "sites")) == sites


def test_the_black_box_is_opened_by_the_first_value_that_is_not_finite(root: Path) -> None:
    step = jax.jit(lambda w, x: (w, backlight.jax.tap("log", jnp.log(w * x)).sum()))
    with backlight.jax.watch(root=root, schedule={99}, blackbox=2) as run:
        ours = run.wrap(step)
        for scale in (1.0, 1.0, 1.0, 0.0, 1.0):
            ours(jnp.ones(3), jnp.full(3, scale))
    assert [row["step"] for row in read(run.path, "steps") if row["recorded"]] == [2, 3, 4]
    [event] = [each for each in read(run.path, "events") if each["kind"] == "nonfinite"]
    names = {site["site"]: site["name"] for site in read(run.path, "sites")}
    assert names[event["site"]] == "log" and event["step"] == 3
    assert event["text"] == "0 NaN and 3 infinite of 3 elements (value)"


# -- bad input: one sentence each, and training goes on


@pytest.fixture
def forgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLIGHT_STRICT", "0")


def told(root: Path, function: Any, *calls: tuple) -> tuple[list[str], list[Any], Path]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with backlight.jax.watch(root=root, every=1) as run:
            step = run.wrap(function)
            results = [step(*args) for args in calls]
    ours = [str(each.message) for each in caught if each.category is BacklightWarning]
    return ours, results, run.path


@pytest.mark.usefixtures("forgiving")
def test_a_name_that_is_used_twice(root: Path) -> None:
    step = jax.jit(lambda w: backlight.jax.tap("t", backlight.jax.tap("t", w) * 2))
    [sentence], results, path = told(root, step, (jnp.ones(2),))
    assert sentence == (
        "Two tensors are named 't' in one step: name the second one otherwise; "
        "only the first is recorded."
    )
    assert results[0].tolist() == [2.0, 2.0] and find(path, "t")[0]["mean"] == 1.0


@pytest.mark.usefixtures("forgiving")
def test_a_dtype_without_statistics(root: Path) -> None:
    step = jax.jit(lambda k: jax.random.normal(backlight.jax.tap("key", k), (2,)))
    [sentence], results, _ = told(root, step, (jax.random.key(0),))
    assert sentence == (
        "backlight.jax.tap('key') got an array of dtype key<fry>, which has no statistics: "
        "it is not recorded."
    )
    assert same(results[0], step(jax.random.key(0)))


@pytest.mark.usefixtures("forgiving")
def test_arguments_that_change_their_shape(root: Path) -> None:
    step = jax.jit(lambda w: backlight.jax.tap("t", w) * 2)
    calls = [(jnp.ones(size),) for size in (2, 3, 2, 4)]
    sentences, results, path = told(root, step, *calls)
    [sentence] = sentences  # though two shapes were new
    assert sentence == (
        "The arguments of the step have another shape (float32[2], now float32[3]) at step 1, "
        "so it is compiled again for recording."
    )
    assert [row["shape"] for row in find(path, "t")] == [[2], [3], [2], [4]]
    assert [result.shape for result in results] == [(2,), (3,), (2,), (4,)]


@pytest.mark.usefixtures("forgiving")
def test_a_tracer_that_escapes_to_the_log(root: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with backlight.jax.watch(root=root, every=1) as run:

            def step(w: Any) -> Any:
                run.log(loss=w.sum())
                return w * 2

            result = run.wrap(jax.jit(step))(jnp.ones(2))
    assert result.tolist() == [2.0, 2.0]
    [sentence] = [str(each.message) for each in caught]
    assert sentence == (
        "run.log(loss) was called inside of a function that JAX traces: return the value from the "
        "step, and log it outside."
    )


@pytest.mark.usefixtures("forgiving")
def test_a_tracer_that_escaped_from_the_users_own_trace(root: Path) -> None:
    kept: list[Any] = []

    @jax.jit
    def step(w: Any) -> Any:
        kept.append(w)
        return sum(kept)

    step(jnp.ones(2))  # compiled, so that the user's own calls do not meet what was kept
    [sentence], results, _ = told(root, step, (jnp.ones(2),))
    assert sentence.startswith("The step cannot be traced by JAX, so it is not recorded (")
    assert "it uses an array that has escaped from an earlier trace" in sentence
    assert results[0].tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("forgiving")
def test_a_step_that_cannot_be_traced_runs_as_it_is(root: Path) -> None:
    def step(w: Any) -> Any:
        return w * 2 if float(w.sum()) > 1 else w

    [sentence], results, path = told(root, step, (jnp.ones(2),), (jnp.ones(2),))
    assert sentence.startswith("The step cannot be traced by JAX, so it is not recorded (")
    assert sentence.endswith("training goes on: give run.wrap() a function that jax.jit takes.")
    assert [result.tolist() for result in results] == [[2.0, 2.0]] * 2
    assert [row["recorded"] for row in read(path, "steps")] == [False, False]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 0}, "every=0 is not a whole number of steps: use 1 or more."),
        ({"root": 5}, "root=5 is no folder: pass a path to write runs to."),
        ({"classes": {"activation"}}, "classes has 'activation': use a set of input,"),
        ({"resume": "nowhere"}, "resume='nowhere' is no run: pass the path of an earlier run."),
    ],
)
def test_bad_options(options: dict, sentence: str, root: Path) -> None:
    with pytest.raises(BacklightError) as caught:
        backlight.jax.watch(**{"root": root, **options})
    assert str(caught.value).startswith(sentence)


def test_every_row_has_its_order(root: Path) -> None:
    path, _ = record(root, linen_step, linen_state(), X, Y)
    rows = observations(path)
    assert [row["order"] for row in rows] == list(range(len(rows)))
