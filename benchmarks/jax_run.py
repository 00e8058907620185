"""How much slower a small GPT in Flax trains while it is recorded.

One training goes on in blocks of steps that take turns, in an order that changes: bare, bare again
as a control, and recorded at every step, at every 10th and never. A ratio is the median over rounds
of a block's time divided by that of the bare one in the same round. It is told twice: by the clock,
and by the time of all processors, which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from rich.console import Console
from rich.table import Table

import backlight.jax

VARIANTS = {"control": None, "every step": 1, "every 10th": 10, "not recorded": 10**9}
BUDGETS = {"every step": 1.30, "every 10th": 1.05, "not recorded": 1.00}
WIDTH, LAYERS, HEADS, LENGTH, BATCH, WORDS = 128, 4, 4, 128, 8, 256


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


class Gpt(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(WORDS, WIDTH)(tokens) + nn.Embed(LENGTH, WIDTH)(jnp.arange(LENGTH))
        mask = nn.make_causal_mask(tokens)
        for _ in range(LAYERS):
            x = Block()(x, mask)
        return nn.Dense(WORDS)(nn.LayerNorm()(x))


@jax.jit
def train(state: TrainState, tokens: Any) -> Any:
    def loss_of(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, tokens)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return losses.mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


class Loop:
    """A training that goes on block by block.

    It is one for all: each would keep the memory that it happened to get, which alone makes one of
    them slower than another by more than what is to be measured.
    """

    def __init__(self) -> None:
        self.tokens = jax.random.randint(jax.random.key(0), (BATCH, LENGTH), 0, WORDS)
        model = Gpt()
        params = jax.jit(model.init)(jax.random.key(1), self.tokens)["params"]
        self._state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def train(self, step: Callable[..., Any], steps: int) -> tuple[float, float]:
        """Seconds of a step, by the clock and of all processors."""
        self._state, loss = step(self._state, self.tokens)
        loss.block_until_ready()  # what the block before it left behind is over
        started = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._state, loss = step(self._state, self.tokens)
        loss.block_until_ready()
        ended = time.perf_counter(), time.process_time()
        return (ended[0] - started[0]) / steps, (ended[1] - started[1]) / steps


Times = dict[str, list[tuple[float, float]]]


def measure(rounds: int, steps: int, root: Path) -> tuple[Times, float, float]:
    """The seconds of a step by variant and round; and what compiling took, bare and recorded."""
    runs = {n: backlight.jax.watch(root=root, every=e, name=n) for n, e in VARIANTS.items() if e}
    tools = {"bare": train}
    tools |= {name: runs[name].wrap(train) if name in runs else train for name in VARIANTS}
    loop, started = Loop(), time.perf_counter()
    loop.train(train, 1)
    bare_secs = time.perf_counter() - started
    for tool in tools.values():
        loop.train(tool, 11)
    compile_secs = runs["every step"]._programs.compile_secs
    times: Times = {name: [] for name in tools}
    order, shuffle = list(tools), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            times[name].append(loop.train(tools[name], steps))
    for run in runs.values():
        run.finish()
    return times, bare_secs, compile_secs


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each variant")
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="backlight-bench-"))
    try:
        times, bare, recorded = measure(arguments.rounds, arguments.steps, root)
    finally:
        shutil.rmtree(root)
    table = Table(title="a small GPT in Flax: time of a step, as a ratio to bare, of its budget")
    for heading in ("by", "bare step", *VARIANTS, "compiled in", "recorded step compiled in"):
        table.add_column(heading, justify="right")
    for place, clock in enumerate(("clock", "processors")):
        cells = [f"{median(each[place] for each in times['bare']) * 1000:.1f} ms"]
        for name in VARIANTS:
            pairs = zip(times[name], times["bare"], strict=True)
            own = median(a[place] / b[place] for a, b in pairs)
            cells.append(f"{own:.2f}" + (f" of {BUDGETS[name]:.2f}" if name in BUDGETS else ""))
        table.add_row(clock, *cells, f"{bare:.1f} s", f"{recorded:.1f} s")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
