"""A JAX function in the lab, behind the same interface as a PyTorch model.

The function is called with its input and with `tap`, which names what it is given and gives back
what goes on in its place: the same value, or one that is pinned. What a small change there would
do is the gradient; flows are products with the Jacobian between two such places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.interface import (
    Activity,
    Array,
    Description,
    FlowChunk,
    FlowEnd,
    FlowKind,
    Layer,
    Question,
)

Tap = Callable[[str, Any], Any]
Forward = Callable[[Any, Tap], Any]
_INPUT: Final = "input"
_OUTPUT: Final = "output"
_CHUNK_BYTES: Final = 48 << 20


class JaxModel:
    """A JAX function that serves the lab's page.

    The first dimension counts samples. Of what has rows and columns, the last one counts channels,
    unless `channels_last` says otherwise; the page has them first.

    >>> weights = jnp.array([[1.0, -2.0], [3.0, 4.0]])
    >>> def forward(x, tap):
    ...     return tap("hidden", x @ weights).sum(-1, keepdims=True)
    >>> model = JaxModel(forward, np.ones((1, 2)))
    >>> [layer.name for layer in model.describe().layers]
    ['input', 'hidden', 'output']
    """

    def __init__(
        self,
        forward: Forward,
        inputs: Any,
        *,
        target: Any = None,
        loss: Callable[[Any, Any], Any] | None = None,
        labels: Sequence[str] = (),
        name: str = "",
        channels_last: bool = True,
    ) -> None:
        self._forward, self._inputs = forward, np.asarray(inputs)
        self._target = None if target is None else np.asarray(target)
        self._loss, self._labels = loss, tuple(labels)
        self._name = name or getattr(forward, "__name__", type(forward).__name__)
        self._channels_last = channels_last
        self._asked: Question | None = None
        self._grads: dict[str, Any] = {}
        self._shapes = {name: each.shape for name, each in self._values(self._batch(0)).items()}

    def describe(self) -> Description:
        """What the function names, in the order in which it does."""
        kinds = {_INPUT: "input", _OUTPUT: "output"}
        layers = tuple(
            Layer(name, shape[1:], kinds.get(name, "hidden"), axes=_axes(len(shape) - 1))
            for name, shape in self._shapes.items()
        )
        return Description(
            self._name,
            layers,
            tuple(self._shapes),
            samples=len(self._inputs),
            has_loss=self._loss is not None,
            labels=self._labels,
            has_activation_flow=False,
        )

    def sample(self, number: int) -> dict[str, Array]:
        """The input of a sample before any edit."""
        return {_INPUT: np.asarray(self._to_page(self._inputs[number : number + 1])[0], np.float32)}

    def run(self, question: Question) -> Activity:
        """Run the function on a sample that may be edited, with cells that may be pinned."""
        self._asked = question
        nudges = {name: jnp.zeros(shape) for name, shape in self._shapes.items()}
        (value, seen), self._grads = jax.value_and_grad(self._objective, has_aux=True)(nudges)
        names = [name for name in self._shapes if name in question.layers]
        target = None if self._target is None else np.asarray(self._target[question.sample])
        return Activity(
            {name: np.asarray(seen[name][0], np.float32) for name in names},
            {name: np.asarray(self._grads[name][0], np.float32) for name in names},
            float(value),
            self._objective_name(question),
            None if target is None else target.astype(np.float32),
        )

    def flow(
        self, source: str, sink: str, kind: FlowKind, check: Callable[[], None]
    ) -> Iterator[FlowChunk | FlowEnd]:
        """The flows between two places of the last run, and what goes around the second."""
        if kind != "gradient":
            raise BacklightError("A JAX function has gradient flows only.")
        _, pull = jax.vjp(self._moved(source, sink), jnp.zeros(self._shapes[source]))
        weights = np.asarray(self._grads[sink]).reshape(-1)
        cells = np.flatnonzero(weights)
        size = max(prod(self._shapes[each]) for each in (source, sink))
        at_a_time = max(1, _CHUNK_BYTES // (4 * size))
        for first in range(0, len(cells), at_a_time):
            check()
            own = cells[first : first + at_a_time]
            vectors = np.zeros((len(own), len(weights)), np.float32)
            vectors[np.arange(len(own)), own] = weights[own]
            (found,) = jax.vmap(pull)(vectors.reshape(-1, *self._shapes[sink]))
            row, cell = np.nonzero(flat := np.asarray(found).reshape(len(own), -1))
            ends = cell.astype(np.int32), own[row].astype(np.int32)
            yield FlowChunk(*ends, flat[row, cell], first + len(own), len(cells))
        around = jax.grad(lambda nudge: self._objective({source: nudge}, cut=sink)[0])(
            jnp.zeros(self._shapes[source])
        )
        yield FlowEnd(np.asarray(around, np.float32)[0])

    def trace(self, layer: str, cells: Sequence[int]) -> dict[str, Array]:
        """How much of each cell's gradient passes through some cells of one layer."""
        mask = np.zeros(prod(self._shapes[layer]), np.float32)
        mask[list(cells)] = 1
        chosen = jnp.asarray(mask.reshape(self._shapes[layer]))
        names, found = list(self._shapes), {}
        for name in names:
            zero = jnp.zeros(self._shapes[name])
            if name == layer:
                through = chosen * self._grads[layer]
            elif names.index(name) < names.index(layer):
                through = jax.vjp(self._moved(name, layer), zero)[1](chosen * self._grads[layer])[0]
            else:
                here = jnp.zeros(self._shapes[layer])
                moved = jax.jvp(self._moved(layer, name), (here,), (chosen,))[1]
                through = moved * self._grads[name]
            found[name] = np.asarray(through, np.float32)[0]
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _batch(self, sample: int) -> Any:
        edited = self._asked.inputs.get(_INPUT) if self._asked else None
        own = self._inputs[sample : sample + 1]
        return jnp.asarray(own if edited is None else self._from_page(edited[None]), jnp.float32)

    def _to_page(self, value: Any) -> Any:
        return jnp.moveaxis(value, -1, 1) if self._channels_last and value.ndim > 3 else value

    def _from_page(self, value: Any) -> Any:
        return jnp.moveaxis(value, 1, -1) if self._channels_last and value.ndim > 3 else value

    def _values(
        self, x: Any, nudges: Mapping[str, Any] | None = None, cut: str | None = None
    ) -> dict[str, Any]:
        """Every named value; a nudge is added to its own, and a cut lets no gradient through."""
        pins = self._asked.pins if self._asked else {}
        seen: dict[str, Any] = {}

        def tap(name: str, value: Any) -> Any:
            if name in seen:
                raise BacklightError(f"The function names {name!r} twice.")
            value = self._to_page(value)
            if name in pins:
                value = jnp.where(pins[name].mask, pins[name].values, value)
            seen[name] = value + (nudges or {}).get(name, 0.0)
            goes_on = jax.lax.stop_gradient(seen[name]) if name == cut else seen[name]
            return self._from_page(goes_on)

        tap(_OUTPUT, self._forward(tap(_INPUT, x), tap))
        return seen

    def _run_again(self, nudges: Mapping[str, Any], cut: str | None = None) -> dict[str, Any]:
        if self._asked is None:
            raise BacklightError("The function has not been run yet.")
        return self._values(self._batch(self._asked.sample), nudges, cut)

    def _moved(self, source: str, sink: str) -> Callable[[Any], Any]:
        """The value at one place, by a nudge at another."""
        return lambda nudge: self._run_again({source: nudge})[sink]

    def _objective(self, nudges: Mapping[str, Any], cut: str | None = None) -> tuple[Any, Any]:
        assert self._asked is not None
        seen, wanted = self._run_again(nudges, cut), self._asked.objective
        layer = wanted.layer or _OUTPUT
        value = jax.lax.stop_gradient(seen[layer]) if layer == cut else seen[layer]
        if wanted.layer is None and self._loss is not None:
            sample = self._asked.sample
            target = None if self._target is None else self._target[sample : sample + 1]
            return jnp.sum(self._loss(self._from_page(value), target)), seen
        flat = value.reshape(-1)
        if wanted.cells:
            return flat[np.asarray(wanted.cells)].sum(), seen
        return flat[jnp.argmax(jax.lax.stop_gradient(flat))], seen

    def _objective_name(self, question: Question) -> str:
        wanted = question.objective
        if wanted.layer is None and self._loss is not None:
            return getattr(self._loss, "__name__", "the loss")
        which = ", ".join(map(str, wanted.cells[:4]))
        layer = wanted.layer or _OUTPUT
        return f"{layer}[{which}]" if which else f"the largest of {layer}"


def _axes(dims: int) -> tuple[str, ...]:
    pictures = {3: ("channel", "y", "x"), 4: ("channel", "z", "y", "x")}
    return {1: ("unit",), 2: ("position", "feature"), **pictures}.get(dims, ())
