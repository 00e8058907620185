"""What a training loop does, taken down by hand: no part of Backlight takes part in it.

A loop is run twice from the same seed, once with `Hand` and once with Backlight. What `Hand` saw is
kept as it was, element by element, and every row that Backlight wrote is compared with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from traceback import extract_stack
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from loops import Loop
from reading import observations
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import checkpoint

from backlight.schema import sketch_edges

CHANNELS_FIRST = ("Conv1d", "BatchNorm1d", "MaxPool1d")
"""The module classes of the loops whose three-dimensional tensors have channels first."""


class Place(NamedTuple):
    """Where and when something is seen."""

    step: int
    iteration: int
    name: str
    quantity: str


class Sight(NamedTuple):
    """A tensor as it was, and what is said of it besides its elements."""

    tensor: torch.Tensor
    tensor_class: str
    unit_dim: int | None = None


def tensors_in(value: object, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    if isinstance(value, Mapping):
        items = list(value.items())
    elif is_dataclass(value):
        items = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif hasattr(value, "_fields"):
        items = list(value._asdict().items())
    else:
        items = list(enumerate(value)) if isinstance(value, (tuple, list)) else []
    for key, item in items:
        yield from tensors_in(item, f"{place}.{key}")


def by_first_name(named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Tied tensors have several names, and are known by the first."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in named:
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def copied(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().clone()


class Applied(NamedTuple):
    """A gradient as an optimizer saw it, and those that autograd had made until then."""

    grad: torch.Tensor
    made: list[torch.Tensor]


class Hand:
    """Listens to a loop with hooks of its own, and keeps a copy of everything it sees."""

    def __init__(self, loop: Loop) -> None:
        self.seen: dict[Place, list[Sight]] = defaultdict(list)
        self.applied: dict[tuple[int, int, str], list[Applied]] = defaultdict(list)
        self._made: dict[str, list[torch.Tensor]] = defaultdict(list)
        self.rest: dict[tuple[int, str], Sight] = {}
        self._loop = loop
        self._step = self._iteration = 0
        self._is_open = self._has_backward = False
        self._calls: Counter[str] = Counter()
        self._under_way: list[tuple[str, int]] = []
        self._losses: list[int] = []  # the iterations of those of the step
        self._last_loss: torch.Tensor | None = None
        self._hooked: set[tuple[str, int]] = set()
        self._hooked_parameters: set[torch.Tensor] = set()
        self._leaf_handles: list[Any] = []
        self._stepped: set[int] = set()
        self._before: dict[str, torch.Tensor] = {}
        self._grads: dict[str, torch.Tensor | None] = {}
        self._made_before: dict[str, list[torch.Tensor]] = {}
        for prefix, model in loop.models.items():
            for name, module in model.named_modules(prefix=prefix):
                self._listen(name, module)
        for number, optimizer in enumerate(loop.optimizers):
            optimizer.register_step_pre_hook(lambda o, *_: self._before_update(o))
            optimizer.register_step_post_hook(lambda o, *_, n=number: self._after_update(o, n))

    @classmethod
    def watches(cls, loop: Loop, steps: int, monkeypatch: pytest.MonkeyPatch) -> Hand:
        """Train a loop, and take down what happens."""
        hand = cls(loop)
        backward = torch.Tensor.backward

        def seen_backward(tensor: torch.Tensor, *args: Any, **keywords: Any) -> None:
            hand._see_loss(tensor)
            backward(tensor, *args, **keywords)

        update = torch.amp.GradScaler._maybe_opt_step

        def seen_update(scaler: Any, optimizer: torch.optim.Optimizer, state: Any) -> Any:
            if any(found.item() for found in state["found_inf_per_device"].values()):
                hand._without_update(optimizer)
            return update(scaler, optimizer, state)

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "backward", seen_backward)
            patch.setattr(torch.amp.GradScaler, "_maybe_opt_step", seen_update)
            for step in range(steps):
                loop.step(step)
        return hand

    # -- modules

    def _listen(self, name: str, module: nn.Module) -> None:
        def before(module: nn.Module, args: Any, keywords: Any) -> None:
            call = self._enter(name)
            self._see_all(call, module, "input", tensors_of_call(args, keywords))

        def after(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
            found = [("out.0", output)]
            if not isinstance(output, torch.Tensor):
                found = list(tensors_in(output, "out"))
            self._see_all(self._leave(name), module, "output", found)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)

    def _enter(self, name: str) -> tuple[str, int]:
        if is_in_backward():  # a checkpoint runs it again
            assert self._calls[name] == 1, "which of several calls it is, nobody knows"
            return name, 1
        if not self._under_way:
            if not self._is_open and (torch.is_grad_enabled() or is_in_checkpoint()):
                self._is_open = True
                self._hook_parameters()
            if self._is_open and self._has_backward:
                self._iteration += 1
                self._calls.clear()
                self._has_backward = False
        self._calls[name] += self._is_open
        self._under_way.append((name, self._calls[name]))
        return self._under_way[-1]

    def _leave(self, name: str) -> tuple[str, int]:
        if is_in_backward():
            return name, 1
        self._hook_parameters()
        while self._under_way[-1][0] != name:  # a call that an exception ended
            self._under_way.pop()
        return self._under_way.pop()

    def _see_all(
        self,
        call: tuple[str, int],
        module: nn.Module,
        tensor_class: str,
        found: list[tuple[str, torch.Tensor]],
    ) -> None:
        caller = (call[0] or "(model)") + (f"#{call[1]}" if call[1] > 1 else "")
        for place, tensor in found if self._is_open else ():
            units = None
            if tensor.dim() > 1:
                is_image = tensor.dim() > 3 or type(module).__name__ in CHANNELS_FIRST
                units = 1 if is_image else tensor.dim() - 1
            self._see_activation(f"{caller}:{place}", tensor, tensor_class, units)

    def _see_activation(
        self, name: str, tensor: torch.Tensor, tensor_class: str, units: int | None
    ) -> None:
        if not is_in_backward():
            self._note(name, "value", tensor, tensor_class, units)
        iteration = self._iteration
        if not tensor.requires_grad or (name, iteration) in self._hooked:
            return
        self._hooked.add((name, iteration))

        def seen(grad: torch.Tensor) -> None:
            self._has_backward = True
            if tensor.is_leaf and iteration != self._iteration:
                return  # it is the gradient of a later iteration, which saw the leaf too
            self._note(name, "grad", grad, tensor_class, iteration=iteration)

        handle = tensor.register_hook(seen)
        if tensor.is_leaf:
            self._leaf_handles.append(handle)

    def _see_loss(self, tensor: torch.Tensor) -> None:
        if self._is_open and tensor is not self._last_loss:
            times = sum(iteration == self._iteration for iteration in self._losses) + 1
            self._losses.append(self._iteration)
            self._last_loss = tensor
            name = "(loss)" if times == 1 else f"(loss)#{times}"
            self._see_activation(name, tensor, "tensor", None)

    # -- parameters, buffers and optimizers

    def _parameters(self) -> dict[str, torch.Tensor]:
        return by_first_name(
            found
            for prefix, model in self._loop.models.items()
            for found in model.named_parameters(prefix=prefix, remove_duplicate=False)
        )

    def _buffers(self) -> dict[str, torch.Tensor]:
        return by_first_name(
            found
            for prefix, model in self._loop.models.items()
            for found in model.named_buffers(prefix=prefix, remove_duplicate=False)
        )

    def _hook_parameters(self) -> None:
        for name, parameter in self._parameters().items():
            is_known = parameter in self._hooked_parameters or is_lazy(parameter)
            # In a functional call something else stands in for it.
            if not is_known and parameter.requires_grad and isinstance(parameter, nn.Parameter):
                self._hooked_parameters.add(parameter)
                parameter.register_hook(lambda grad, name=name: self._see_grad(name, grad))

    def _see_grad(self, name: str, grad: torch.Tensor) -> None:
        self._has_backward = True
        self._made[name].append(copied(grad))
        self._note(name, "grad", grad, "parameter")

    def _held(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self._parameters().items() if id(p) in held}

    def _before_update(self, optimizer: torch.optim.Optimizer) -> None:
        iteration = self._update_iteration(optimizer)
        for name, parameter in self._held(optimizer).items():
            self._before[name] = copied(parameter)
            self._note(name, "value", parameter, "parameter", iteration=iteration)
            self._grads[name] = None if parameter.grad is None else copied(parameter.grad)
        self._made_before = {name: list(made) for name, made in self._made.items()}

    def _after_update(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        iteration = self._update_iteration(optimizer)
        for name, parameter in self._held(optimizer).items():
            if parameter.grad is not None:
                self._see_applied(name, parameter.grad, iteration)
                change = copied(parameter) - self._before[name]
                self._note(name, "update", change, "parameter", iteration=iteration)
            self._see_states(name, optimizer.state.get(parameter, {}), iteration)
        self._end_update(number)

    def _update_iteration(self, optimizer: torch.optim.Optimizer) -> int:
        """An update is of the whole step, unless it had another one of the same optimizer."""
        has_stepped = self._loop.optimizers.index(optimizer) in self._stepped
        return self._iteration if has_stepped else 0

    def _without_update(self, optimizer: torch.optim.Optimizer) -> None:
        iteration = self._update_iteration(optimizer)
        for name, parameter in self._held(optimizer).items():
            self._note(name, "value", parameter, "parameter", iteration=iteration)
            self._see_states(name, optimizer.state.get(parameter, {}), iteration)
        self._end_update(self._loop.optimizers.index(optimizer))

    def _see_states(self, name: str, states: dict[str, Any], iteration: int) -> None:
        for key, state in states.items():
            for place, tensor in list(tensors_in(state, key))[:32] if key != "step" else ():
                self._note(f"{name}:{place}", "value", tensor, "optimizer", iteration=iteration)

    def _end_update(self, number: int) -> None:
        self._stepped.add(number)
        if len(self._stepped) == len(self._loop.optimizers):
            self._end_step()

    def _see_applied(self, name: str, grad: torch.Tensor, iteration: int) -> None:
        made, applied = self._made_before.get(name, []), self._grads[name]
        if len(self._made[name]) > len(made):  # a closure has made another one meanwhile
            made, applied = self._made[name][-1:], copied(grad)
        self.applied[self._step, iteration, name].append(Applied(applied, made))

    def _end_step(self) -> None:
        held = set().union(*(self._held(optimizer) for optimizer in self._loop.optimizers))
        for name, parameter in self._parameters().items():
            if name not in held:
                self.rest[self._step, name] = Sight(copied(parameter), "parameter")
        for name, buffer in self._buffers().items():
            self.rest[self._step, name] = Sight(copied(buffer), "buffer")
        self._step += 1
        self._iteration = 0
        self._is_open = self._has_backward = False
        self._calls.clear()
        self._hooked.clear()
        self._stepped.clear()
        self._made.clear()
        self._losses.clear()
        self._last_loss = None
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def _note(
        self,
        name: str,
        quantity: str,
        tensor: torch.Tensor,
        tensor_class: str,
        units: int | None = None,
        iteration: int | None = None,
    ) -> None:
        place = Place(
            self._step, self._iteration if iteration is None else iteration, name, quantity
        )
        self.seen[place].append(Sight(copied(tensor), tensor_class, units))


def is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def is_in_checkpoint() -> bool:
    """Whether this is run by reentrant checkpointing, without gradients at first, to train it."""
    places = [(frame.filename, frame.name) for frame in extract_stack()]
    is_evaluation = any(name == "evaluate" for _, name in places)
    return (checkpoint.__file__, "forward") in places and not is_evaluation


def tensors_of_call(args: Any, keywords: Any) -> list[tuple[str, torch.Tensor]]:
    positional = [each for n, arg in enumerate(args) for each in tensors_in(arg, f"in.{n}")]
    return positional + [each for k, arg in keywords.items() for each in tensors_in(arg, f"in.{k}")]


# -- a row and a tensor


@cache
def edges(key: int) -> tuple[float, float]:
    return sketch_edges(key)


def elements(tensor: torch.Tensor) -> np.ndarray:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    return dense.to(torch.float64).numpy()


def expected_row(sight: Sight) -> dict[str, Any]:
    """The numbers that are exact, and those that are rounded, as NumPy finds them in float64."""
    values = elements(sight.tensor)
    finite = values[np.isfinite(values)]
    row: dict[str, Any] = {
        "tensor_class": sight.tensor_class,
        "dtype": str(sight.tensor.dtype).removeprefix("torch."),
        "shape": list(sight.tensor.shape),
        "count": values.size,
        "zeros": int((values == 0).sum()),
        "nans": int(np.isnan(values).sum()),
        "infs": int(np.isinf(values).sum()),
        "min": finite.min() if finite.size else None,
        "max": finite.max() if finite.size else None,
        "abs_max": np.abs(finite).max() if finite.size else None,
        **expected_units(values, sight),
    }
    if finite.size:
        row["mean"] = near(finite.mean(), finite)
        row["abs_mean"] = near(np.abs(finite).mean(), finite)
        row["std"] = near(finite.std(), finite)
        row["rms"] = near(np.sqrt(np.square(finite).mean()), finite)
    else:
        row |= dict.fromkeys(("mean", "abs_mean", "std", "rms"))
    return row


def near(value: float, finite: np.ndarray) -> Any:
    scale = float(np.abs(finite).max(initial=0.0))
    return pytest.approx(float(value), rel=1e-9, abs=1e-12 * scale, nan_ok=True)


def expected_units(values: np.ndarray, sight: Sight) -> dict[str, Any]:
    names = ("units", "dead_units", "constant_units", "batch_std")
    if sight.unit_dim is None or values.shape[0] < 2 or values.size == 0:
        return dict.fromkeys(names)
    by_unit = np.moveaxis(values, sight.unit_dim, 0)
    by_unit = by_unit.reshape(len(by_unit), values.shape[0], -1)
    with np.errstate(invalid="ignore"):
        spread = by_unit.std(axis=1)
    known = spread[np.isfinite(spread)]
    return {
        "units": len(by_unit),
        "dead_units": int((by_unit == 0).all(axis=(1, 2)).sum()),
        "constant_units": int((by_unit == by_unit[:, :1]).all(axis=(1, 2)).sum()),
        "batch_std": near(known.mean() if known.size else np.nan, known),
    }


def assert_row_is(row: dict[str, Any], sight: Sight, place: object) -> None:
    expected = expected_row(sight)
    wrong = {name: (row[name], right) for name, right in expected.items() if row[name] != right}
    assert not wrong, f"{place}: {wrong} (found, expected)"
    assert_sketch_is(row, elements(sight.tensor), place)


def assert_sketch_is(row: dict[str, Any], values: np.ndarray, place: object) -> None:
    """Every bin holds what lies between its edges, and all bins hold what is finite and not 0."""
    ordered = np.sort(values[np.isfinite(values) & (values != 0)])
    keys, counts = row["sketch_keys"], row["sketch_counts"]
    assert keys == sorted(set(keys)) and 0 not in keys, place
    assert sum(counts) == len(ordered), place
    for key, count in zip(keys, counts, strict=True):
        side = "left" if key > 0 else "right"  # a bin holds its edge that is nearer to 0
        first, last = np.searchsorted(ordered, edges(key), side=side)
        assert count == last - first > 0, (place, key)


# -- a run and a hand


def assert_run_is(path: Path, hand: Hand) -> int:
    """Every row is what the hand saw, and all that it saw is there. The number of rows."""
    rows: dict[Place, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(observations(path), key=lambda row: row["order"]):
        rows[Place(row["step"], row["iteration"], row["name"], row["quantity"])].append(row)
    total = sum(map(len, rows.values()))
    _assert_applied(rows, hand)
    _assert_rest(rows, hand)
    missing = {place: len(s) for place, s in hand.seen.items() if len(rows[place]) < len(s)}
    assert not missing, f"not in the run: {sorted(missing)[:5]} of {len(missing)}"
    surplus = {place: len(r) for place, r in rows.items() if len(r) > len(hand.seen[place])}
    assert not surplus, f"only in the run: {sorted(surplus)[:5]} of {len(surplus)}"
    for place, sights in hand.seen.items():
        for row, sight in zip(rows[place], sights, strict=True):
            assert_row_is(row, sight, place)
    return total


def _assert_applied(rows: dict[Place, list[dict[str, Any]]], hand: Hand) -> None:
    """What the optimizer saw is stored, or it is the one gradient that autograd made."""
    for (step, iteration, name), applied in hand.applied.items():
        stored = rows.pop(Place(step, iteration, name, "grad_applied"), [])
        if stored:
            for row, (grad, _) in zip(stored, applied, strict=True):
                assert_row_is(row, Sight(grad, "parameter"), (step, name, "grad_applied"))
            continue
        for grad, made in applied:
            assert len(made) == 1, (step, name, "grad_applied is not stored")
            same = elements(made[0]).tobytes() == elements(grad).tobytes()
            assert same, (step, name, "grad_applied is not stored, and differs")


def _assert_rest(rows: dict[Place, list[dict[str, Any]]], hand: Hand) -> None:
    """A buffer, or a parameter that no optimizer holds, is stored when it has changed."""
    last: dict[str, bytes] = {}
    for (step, name), sight in hand.rest.items():
        stored = rows.pop(Place(step, 0, name, "value"), [])
        content = elements(sight.tensor).tobytes()
        assert len(stored) == 1 or (not stored and last.get(name) == content), (step, name)
        for row in stored:
            assert_row_is(row, sight, (step, name))
        last[name] = content
