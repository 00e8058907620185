"""Backlight for JAX: records what happens inside of a training step. JAX is imported when asked.

>>> import backlight.jax
>>> run = backlight.jax.watch(root=__import__("tempfile").mkdtemp())
>>> run.finish()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from backlight.capture.select import Pattern
    from backlight.jax.run import JaxRun
    from backlight.schedule import Schedule

Tree = TypeVar("Tree")


def watch(
    *,
    project: str | None = None,
    name: str | None = None,
    root: str | Path = "backlight-runs",
    config: Mapping[str, Any] | None = None,
    every: int | None = None,
    budget: float | None = None,
    schedule: Collection[int] | Callable[..., bool] | Schedule | None = None,
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    classes: Collection[str] | None = None,
    blackbox: int = 0,
    exact: bool = False,
    loss: str | None = None,
    resume: str | Path | None = None,
) -> JaxRun:
    """Begin a run. `run.wrap(step)` is the training step, recorded; the loop stays as it is.

    Args:
        project: the folder of runs that belong together; by default the script's name.
        name: the run's name; by default the time. Where it is taken, a number is added.
        root: the folder that projects are written to.
        config: settings to keep with the run, such as the learning rate.
        every: record each n-th step, beginning with the first.
        budget: keep the time spent recording under this share of training; 0.03 by default.
        schedule: which steps to record: a set of steps, a function of the step's number (and
            kind), or a `backlight.schedule.Schedule`.
        include: record only sites whose names match one of these regular expressions, or for which
            a function of the `Site` is true.
        exclude: do not record these sites, given in the same way.
        classes: record only these tensor classes: input, output, parameter, buffer, optimizer,
            tensor.
        blackbox: hold this many of the last steps in memory, and write them when something
            happens: a non-finite value, a spike, an exception, the end.
        exact: run a recorded step twice, once for the statistics and once as it is, and go on from
            the latter: training is the same to the last bit.
        loss: the name of the loss among what the step returns; by default the first single number,
            one called a loss before others.
        resume: go on with this earlier run instead of beginning a new one.

    >>> import tempfile, jax, jax.numpy as jnp, backlight.jax
    >>> def loss_of(w, x):
    ...     return (backlight.jax.tap("y", x @ w) ** 2).mean()
    >>> def update(w, x):
    ...     loss, grad = jax.value_and_grad(loss_of)(w, x)
    ...     return w - 0.1 * grad, loss
    >>> with backlight.jax.watch(root=tempfile.mkdtemp(), every=1) as run:
    ...     step, w = run.wrap(jax.jit(update)), jnp.ones((3, 1))
    ...     for _ in range(3):
    ...         w, loss = step(w, jnp.ones((4, 3)))
    ...         run.log(loss=loss)
    >>> run.current_step
    2
    """
    from backlight.api import script_name
    from backlight.jax.run import JaxRun
    from backlight.options import check_options, run_folder, writing_to

    options = check_options(
        root=root,
        config=config,
        every=every,
        budget=budget,
        schedule=schedule,
        include=include,
        exclude=exclude,
        classes=classes,
        blackbox=blackbox,
    )
    project = script_name() if project is None else project
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}" if name is None else name
    path = run_folder(root, project, name, resume)
    with writing_to(path):
        return JaxRun(path, options, exact=exact, loss=loss, is_resumed=resume is not None)


def tap(name: str, array: Tree) -> Tree:
    """Name an array, or a tree of them, so that it and its gradient are recorded; returns it.

    Use what it returns. Outside of a recorded step it is the argument itself.

    >>> import jax.numpy as jnp, backlight.jax
    >>> backlight.jax.tap("half-way", jnp.ones(2)).tolist()
    [1.0, 1.0]
    """
    taps = sys.modules.get("backlight.jax.taps")
    return array if taps is None else taps.tap(name, array)


def gradients(tree: Tree) -> Tree:
    """Say which tree has the parameters' gradients, where no optimizer of optax is given them.

    >>> import backlight.jax
    >>> backlight.jax.gradients({"w": 1.0})
    {'w': 1.0}
    """
    optimizers = sys.modules.get("backlight.jax.optimizers")
    return tree if optimizers is None else optimizers.mark_gradients(tree)
