"""A live PyTorch model in the lab: runs it on edited inputs, and computes its flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from backlight.capture.names import unwrap
from backlight.errors import BacklightError
from backlight.laboratory import flows as flowing
from backlight.laboratory.interface import (
    Activity,
    Array,
    Description,
    FlowChunk,
    FlowEnd,
    FlowKind,
    Layer,
    Objective,
    Pin,
    Question,
)
from backlight.laboratory.receptive import fields_between, nonlinear_between, places_between
from backlight.laboratory.tapping import OUTPUT, Seen, Taps
from backlight.laboratory.untouched import untouched

REPLICA_BYTES: Final = 192 << 20
"""About what the activations of all copies of a sample may take."""
_MOST_REPLICAS: Final = 64
_FEWEST_REPLICAS: Final = 4
_MOST_CHOSEN: Final = 5
_WEIGHTY: Final = (
    nn.Linear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.modules.conv._ConvNd,
    nn.RNNCellBase,
)

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass
class Pass:
    """One run of the model, with its graph."""

    question: Question
    tensors: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor]
    objective: torch.Tensor
    is_random: bool
    replicas: Replicas | None = None
    has_tried_replicas: bool = False


@dataclass
class Replicas:
    """The same sample many times in one batch, so that one backward pass makes many products."""

    count: int
    tensors: dict[str, torch.Tensor]
    dims: dict[str, int] = field(default_factory=dict)

    def vjp(self, source: torch.Tensor, sink: torch.Tensor, names: tuple[str, str]) -> flowing.Vjp:
        """Products, at most `count - 1` at a time: the last copy is another sample."""
        source_dim, sink_dim = (self.dims[name] for name in names)
        source_copy, sink_copy = (self.tensors[name] for name in names)

        def vjp(vectors: torch.Tensor) -> torch.Tensor:
            full = vectors.new_zeros(self.count, *sink.shape)
            full[: len(vectors)] = vectors.view(-1, *sink.shape)
            merged = full.movedim(0, sink_dim).reshape(sink_copy.shape)
            grad = flowing.pull_back(source_copy, sink_copy, merged, is_batched=False)
            split = grad.reshape(*source.shape[:source_dim], self.count, *source.shape[source_dim:])
            return split.movedim(source_dim, 0)[: len(vectors)]

        return vjp


class TorchModel:
    """A PyTorch model that serves the lab's page.

    Where a layer needs the whole batch, as batch normalisation does while training, all samples
    are run together; otherwise a sample is run alone.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        *,
        target: Any = None,
        loss: Loss | None = None,
        layers: Sequence[str] | None = None,
        batch_dim: int | None = 0,
        tokens: Sequence[str] = (),
        labels: Sequence[str] = (),
        name: str | None = None,
        seed: int | None = 0,
    ) -> None:
        self.model = unwrap(model)
        if not isinstance(self.model, nn.Module):
            raise BacklightError(
                f"The lab runs a torch.nn.Module, not a {type(model).__name__}: put what you "
                "compute into the forward of one."
            )
        self._args, self._keywords, self._inputs = _arguments(inputs)
        self._target, self._loss, self._seed = target, loss, seed
        self._batch_dim = batch_dim
        self.samples = self._count_samples()
        self._is_together = self.samples > 1 and _mixes_samples(self.model)
        self._tokens, self._labels = tuple(tokens), tuple(labels)
        self._name = name or type(self.model).__name__
        self._pass: Pass | None = None
        self._changes_itself = False
        self._dims: dict[tuple[int, ...], int] = {}
        self._layers, self._aliases, self._bytes = self._discover()
        self._chosen = self._choose(layers)

    # -- what the page asks

    def describe(self) -> Description:
        """What the model is made of."""
        note = "All samples are run together: batch normalisation is training."
        return Description(
            name=self._name,
            layers=tuple(self._layers.values()),
            chosen=self._chosen,
            samples=self.samples,
            has_loss=self._loss is not None,
            tokens=self._tokens,
            labels=self._labels,
            note=note if self._is_together else "",
        )

    def sample(self, number: int) -> dict[str, Array]:
        """The inputs of a sample before any edit."""
        return {
            name: _array(self._of_sample(self._slice(tensor, number), number)).reshape(
                self._layers[name].shape
            )
            for name, tensor in self._inputs.items()
        }

    def run(self, question: Question) -> Activity:
        """Run the model on a sample that may be edited, with cells that may be pinned."""
        self._pass = None
        done = self._pass = self._run(question)
        sample = question.sample
        values = {name: self._cells(name, each, sample) for name, each in done.tensors.items()}
        for name, tensor in self._inputs.items():
            if name in question.layers and name not in values:
                own = self._slice(self._edited(name, tensor, question), question.sample)
                values[name] = self._cells(name, own, sample)
        grads = {name: self._cells(name, grad, sample) for name, grad in done.grads.items()}
        return Activity(
            values,
            grads,
            float(done.objective.detach()),
            self._name_of_objective(question.objective, done),
            self._target_array(question.sample),
        )

    def flow(
        self, source: str, sink: str, kind: FlowKind, check: Callable[[], None]
    ) -> Iterator[FlowChunk | FlowEnd]:
        """The flows between two layers of the last run."""
        done = self._last_pass()
        if source not in done.tensors or sink not in done.tensors:
            missing = source if source not in done.tensors else sink
            raise BacklightError(f"The layer {missing!r} has no gradient to follow.")
        ends = done.tensors[source], done.tensors[sink]
        fields = fields_between(*ends)
        weights = done.grads[sink]
        if kind == "activation":
            nonlinear = nonlinear_between(*ends)
            if nonlinear is not None:
                raise BacklightError(
                    f"{sink!r} is not linear in {source!r} ({nonlinear} is between them), so its "
                    "cells are no sums of contributions: choose gradient flows."
                )
            weights = torch.ones_like(ends[1])
        sample = done.question.sample
        factor = self._cells(source, ends[0], sample) if kind == "activation" else None
        for chunk in self._chunks(done, (source, sink), weights, fields, check):
            yield chunk if factor is None else _scaled(chunk, factor)
        check()
        around = (
            self._cells(source, self._around(done, *ends), sample)
            if kind == "gradient"
            else np.zeros(self._layers[source].shape, np.float32)
        )
        places = fields or places_between(*ends)
        yield FlowEnd(
            around, reach=None if places is None else tuple(each.as_span() for each in places)
        )

    def trace(self, layer: str, cells: Sequence[int]) -> dict[str, Array]:
        """How much of each cell's gradient, in each layer, passes through these cells."""
        done = self._last_pass()
        if layer not in done.tensors:
            raise BacklightError(f"The layer {layer!r} has no gradient to trace.")
        here, grad = done.tensors[layer], done.grads[layer]
        mask = self._mask(here, cells)
        found = {}
        names = list(done.tensors)
        for place, name in enumerate(names):
            other = done.tensors[name]
            if name == layer:
                through = mask * grad
            elif place < names.index(layer):
                through = flowing.pull_back(other, here, mask * grad, is_batched=False)
            else:
                through = flowing.push_forward(here, other, mask) * done.grads[name]
            found[name] = self._cells(name, through, done.question.sample)
        return found

    def close(self) -> None:
        """Let go of the graph."""
        self._pass = None

    # -- running

    def _last_pass(self) -> Pass:
        if self._pass is None:
            raise BacklightError("The model has not been run yet, or its last run failed.")
        return self._pass

    def _run(self, question: Question, copies: int = 1) -> Pass:
        wanted = [self._aliases.get(name, name) for name in question.layers]
        objective = question.objective.layer
        if objective is not None:
            wanted.append(self._aliases.get(objective, objective))
        leaves = self._leaves(question, copies)
        pins = {
            self._aliases.get(name, name): self._pin(name, pin, question.sample)
            for name, pin in question.pins.items()
            if name not in self._inputs
        }
        taps = Taps(self.model, wanted, pins)
        as_it_was = untouched(self.model, seed=self._seed, on_copies=self._changes_itself)
        with as_it_was, torch.enable_grad():
            before = torch.get_rng_state()
            with taps:
                output = self.model(*self._call_args(leaves), **self._call_keywords(leaves))
            is_random = not torch.equal(before, torch.get_rng_state())
            tensors = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
            tensors |= {name: seen.tensor for name, seen in taps.seen.items()}
            value = self._objective(question, output, tensors) if copies == 1 else None
        ordered = {name: tensors[name] for name in self._layers if name in tensors}
        if value is None:
            return Pass(question, ordered, {}, torch.zeros(()), is_random)
        asked = {*wanted, *question.layers}
        kept = {name: tensor for name, tensor in ordered.items() if name in asked}
        grads = torch.autograd.grad(
            value, list(kept.values()), retain_graph=True, allow_unused=True
        )
        filled = {
            name: torch.zeros_like(kept[name]) if grad is None else grad
            for name, grad in zip(kept, grads, strict=True)
        }
        return Pass(question, kept, filled, value, is_random)

    def _leaves(self, question: Question, copies: int) -> dict[str, torch.Tensor]:
        leaves = {}
        for name, tensor in self._inputs.items():
            own = self._slice(self._edited(name, tensor, question), question.sample)
            if copies > 1 and self._has_batch(tensor):
                sizes = [1] * own.dim()
                sizes[self._batch_dim or 0] = copies
                own = own.repeat(sizes)
                self._make_stranger(own)
            leaf = own.detach().clone()
            leaves[name] = leaf.requires_grad_() if leaf.is_floating_point() else leaf
        return leaves

    def _make_stranger(self, copies: torch.Tensor) -> None:
        """Make the last copy another sample: if the others change, samples depend on each other."""
        dim = self._batch_dim or 0
        last = copies.select(dim, -1)
        other = last.reshape(-1).flip(0).reshape(last.shape)
        if torch.equal(last, other) and copies.is_floating_point():
            other = last * 0.5
        last.copy_(other)

    def _edited(self, name: str, tensor: torch.Tensor, question: Question) -> torch.Tensor:
        """An input of all samples, in which one sample is as the page edited it."""
        if name not in question.inputs:
            return tensor
        edited = torch.as_tensor(question.inputs[name]).to(tensor.device, tensor.dtype)
        whole = tensor.detach().clone()
        place = self._slice(whole, question.sample, is_alone=True)
        place.copy_(edited.reshape(place.shape))
        return whole

    def _call_args(self, leaves: Mapping[str, torch.Tensor]) -> list[Any]:
        # Copies: a model may change its input in place, which a leaf does not allow.
        return [_fill(each, leaves) for each in self._args]

    def _call_keywords(self, leaves: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {key: _fill(each, leaves) for key, each in self._keywords.items()}

    def _objective(
        self, question: Question, output: Any, tensors: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        wanted = question.objective
        if wanted.layer is None and self._loss is not None:
            loss = self._loss(output, self._target_of(question.sample))
            if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
                raise BacklightError(
                    "The loss does not depend on the model's parameters or inputs: "
                    "return a tensor that is computed from the output."
                )
            return loss.sum()
        name = self._aliases.get(wanted.layer or OUTPUT, wanted.layer or OUTPUT)
        tensor = tensors.get(name)
        if tensor is None and wanted.layer is None:
            tensor = _first_tensor(output)
        if tensor is None and wanted.layer is None:
            raise BacklightError(
                "The model returns no real tensor to take gradients of: pass a loss, or select a "
                "cell of a layer and take gradients of that."
            )
        if tensor is None:
            raise BacklightError(f"There is no layer {name!r} to take gradients of.")
        flat = self._of_sample(tensor, question.sample).reshape(-1)
        cells = list(wanted.cells) or [int(flat.detach().argmax())]
        if max(cells) >= flat.numel():
            raise BacklightError(f"The layer {name!r} has {flat.numel()} cells, not {max(cells)}.")
        return flat[cells].sum()

    def _name_of_objective(self, objective: Objective, done: Pass) -> str:
        if objective.layer is None and self._loss is not None:
            return getattr(self._loss, "__name__", type(self._loss).__name__)
        name = objective.layer or OUTPUT
        if not objective.cells:
            return f"the largest of {name}"
        which = ", ".join(map(str, objective.cells[:4])) + ("…" * (len(objective.cells) > 4))
        return f"{name}[{which}]"

    # -- flows

    def _chunks(
        self,
        done: Pass,
        names: tuple[str, str],
        weights: torch.Tensor,
        fields: Any,
        check: Callable[[], None],
    ) -> Iterator[FlowChunk]:
        source, sink = (done.tensors[name] for name in names)
        sample = done.question.sample
        shapes = [tuple(self._of_sample(each, sample).shape) for each in (source, sink)]
        own = self._of_sample(weights, sample)
        probes = flowing.plan(own, shapes[0], shapes[1], fields)
        vjp, most = self._vjp(done, names, len(probes))
        try:
            yield from flowing.flows(vjp, probes, source.numel(), check, most=most)
        except flowing.OutsideFieldError:
            probes = flowing.plan(own, shapes[0], shapes[1], None)
            yield FlowChunk(*(np.zeros(0, np.int32),) * 2, np.zeros(0, np.float32), -1, len(probes))
            yield from flowing.flows(vjp, probes, source.numel(), check, most=most)

    def _vjp(
        self, done: Pass, names: tuple[str, str], probes: int
    ) -> tuple[flowing.Vjp, int | None]:
        """The fastest way to make this many products, and how many it makes at a time."""
        source, sink = (done.tensors[name] for name in names)
        if probes >= _FEWEST_REPLICAS and not done.has_tried_replicas:
            done.has_tried_replicas = True
            done.replicas = self._replicate(done)
        if probes >= _FEWEST_REPLICAS and done.replicas is not None:
            return done.replicas.vjp(source, sink, names), done.replicas.count - 1
        plain = flowing.vmapped(source, sink)
        if not self._is_together:
            return plain, None
        sample = done.question.sample
        source_dim, sink_dim = (1 + self._dim_of(each) for each in (source, sink))

        def of_sample(vectors: torch.Tensor) -> torch.Tensor:
            full = vectors.new_zeros(len(vectors), *sink.shape)
            own = full.select(sink_dim, sample)
            own.copy_(vectors.view(own.shape))
            return plain(full).select(source_dim, sample)

        return of_sample, None

    def _replicate(self, done: Pass) -> Replicas | None:
        if self._is_together or self._batch_dim is None or done.is_random:
            return None
        count = min(_MOST_REPLICAS, REPLICA_BYTES // max(1, self._bytes))
        if count < _FEWEST_REPLICAS:
            return None
        try:
            copies = self._run(done.question, count)
        except Exception:
            return None
        replicas = Replicas(count, copies.tensors)
        for name, tensor in done.tensors.items():
            dim = _replica_dim(tensor, copies.tensors.get(name), count)
            if dim is None:
                return None
            replicas.dims[name] = dim
        return replicas

    def _around(self, done: Pass, source: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        """The gradient at the source of all that does not pass through the sink."""
        sample = done.question.sample

        def block(grad: torch.Tensor) -> torch.Tensor:
            if not self._is_together:
                return torch.zeros_like(grad)
            blocked = grad.clone()
            self._of_sample(blocked, sample).zero_()
            return blocked

        handle = sink.register_hook(block)
        try:
            return flowing.pull_back(
                source, done.objective, torch.ones_like(done.objective), is_batched=False
            )
        finally:
            handle.remove()

    # -- samples and cells

    def _count_samples(self) -> int:
        if self._batch_dim is None:
            return 1
        sizes = {
            tensor.shape[self._batch_dim]
            for tensor in self._inputs.values()
            if tensor.dim() > self._batch_dim
        }
        if not sizes:
            raise BacklightError("The inputs have no batch dimension: pass batch_dim=None.")
        if max(sizes) == 0:
            raise BacklightError("The inputs hold no sample: pass at least one.")
        return int(max(sizes))

    def _has_batch(self, tensor: torch.Tensor) -> bool:
        dim = self._batch_dim
        return dim is not None and tensor.dim() > dim and tensor.shape[dim] == self.samples

    def _slice(
        self, tensor: torch.Tensor, sample: int, *, is_alone: bool | None = None
    ) -> torch.Tensor:
        """One sample of an input, as a batch of one; all of it where samples are run together."""
        is_whole = self._is_together if is_alone is None else not is_alone
        if is_whole or not self._has_batch(tensor):
            return tensor
        return tensor.narrow(self._batch_dim or 0, sample, 1)

    def _dim_of(self, tensor: torch.Tensor) -> int:
        """The dimension of a tensor of a pass that counts samples; -1 where none does."""
        if self._batch_dim is None:
            return -1
        count = self.samples if self._is_together else 1
        found = (self._dims.get(tuple(tensor.shape), self._batch_dim), 0)
        return next((n for n in found if tensor.dim() > n and tensor.shape[n] == count), -1)

    def _find_dims(self, alone: Mapping[str, Seen]) -> dict[tuple[int, ...], int]:
        """The dimension that counts samples, by shape: the one that twice as many samples double.

        It is asked only where it is not the first, since inside of the model it may then be.
        """
        if not self._batch_dim:
            return {}
        leaves = {
            name: torch.cat([own, own], self._batch_dim) if self._has_batch(tensor) else own
            for name, tensor in self._inputs.items()
            for own in (self._slice(tensor, 0).detach(),)
        }
        taps = Taps(self.model, None)
        try:
            with untouched(self.model, seed=self._seed, on_copies=True), torch.enable_grad(), taps:
                self.model(*self._call_args(leaves), **self._call_keywords(leaves))
        except Exception:  # it takes so many samples and no others
            return {}
        found = {}
        for name, seen in alone.items():
            if name in taps.seen and taps.seen[name].tensor.dim() == seen.tensor.dim():
                shape, double = seen.tensor.shape, taps.seen[name].tensor.shape
                grown = [n for n, size in enumerate(shape) if double[n] == 2 * size]
                found[tuple(shape)] = grown[0] if grown else self._batch_dim
        return found

    def _of_sample(self, tensor: torch.Tensor, sample: int) -> torch.Tensor:
        """One sample of any tensor of a pass, without its batch dimension."""
        dim = self._dim_of(tensor)
        return tensor if dim < 0 else tensor.select(dim, sample if self._is_together else 0)

    def _cells(self, name: str, tensor: torch.Tensor, sample: int) -> Array:
        return _array(self._of_sample(tensor, sample)).reshape(self._layers[name].shape)

    def _mask(self, tensor: torch.Tensor, cells: Sequence[int]) -> torch.Tensor:
        mask = torch.zeros_like(tensor)
        own = self._of_sample(mask, self._last_pass().question.sample)
        flat = own.new_zeros(own.numel())
        flat[list(cells)] = 1
        own.copy_(flat.view(own.shape))
        return mask

    def _pin(self, name: str, pin: Pin, sample: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A pin as tensors of the layer's own shape, so that copies of a sample are pinned too."""
        known = self._layers.get(self._aliases.get(name, name))
        if known is None:
            raise BacklightError(f"There is no layer {name!r} to pin.")
        shape = self._full_shapes[known.name]
        device = next(iter(self._inputs.values())).device
        mask = torch.zeros(shape, dtype=torch.bool, device=device)
        values = torch.zeros(shape, dtype=self._dtypes[known.name], device=device)
        for whole, given in ((mask, pin.mask), (values, pin.values)):
            own = self._of_sample(whole, sample)
            own.copy_(torch.as_tensor(given).reshape(own.shape))
        return mask, values

    def _target_of(self, sample: int) -> Any:
        if self._is_together or self._batch_dim is None:
            return self._target
        return self._sample_in(self._target, sample)

    def _sample_in(self, target: Any, sample: int) -> Any:
        """One sample of a target, which may hold several tensors."""
        if isinstance(target, Mapping):
            return {key: self._sample_in(each, sample) for key, each in target.items()}
        if isinstance(target, (tuple, list)) and not hasattr(target, "_fields"):
            return type(target)(self._sample_in(each, sample) for each in target)
        if not isinstance(target, torch.Tensor):
            return target
        is_batch = target.dim() > 0 and target.shape[0] == self.samples
        return target[sample : sample + 1] if is_batch else target

    def _target_array(self, sample: int) -> Array | None:
        target = self._target_of(sample)
        if not isinstance(target, torch.Tensor):
            return None
        own = target[sample] if self._is_together and target.dim() else target
        return _array(own).astype(np.float32)

    # -- getting to know the model

    def _discover(self) -> tuple[dict[str, Layer], dict[str, str], int]:
        leaves = {
            name: self._slice(tensor, 0).detach().clone() for name, tensor in self._inputs.items()
        }
        for leaf in leaves.values():
            if leaf.is_floating_point():
                leaf.requires_grad_()
        taps = Taps(self.model, None)
        run = untouched(self.model, seed=self._seed, on_copies=True)
        with run as copies, torch.enable_grad(), taps:
            try:
                self.model(*self._call_args(leaves), **self._call_keywords(leaves))
            except Exception as error:
                raise BacklightError(
                    f"The model cannot be run on these inputs ({type(error).__name__}: {error})."
                ) from error
        self._changes_itself = copies is not None and copies.have_changed()
        self._dims = self._find_dims(taps.seen)
        layers = {
            name: Layer(
                name,
                tuple(self._of_sample(leaf, 0).shape),
                "input",
                is_real=leaf.is_floating_point(),
                axes=_axes(self._of_sample(leaf, 0).dim(), "input"),
            )
            for name, leaf in leaves.items()
        }
        final = taps.aliases.get(OUTPUT, OUTPUT)
        self._full_shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for name, seen in taps.seen.items():
            if not seen.tensor.is_floating_point():
                continue
            if self._is_together and self._dim_of(seen.tensor) < 0:
                continue  # the samples' parts of it are not known
            shape = tuple(self._of_sample(seen.tensor, 0).shape)
            shape = shape[-1:] if _is_moment(name) else shape
            kind = "output" if name == final else "hidden"
            axes = _axes(len(shape), seen.place)
            layers[name] = Layer(name, shape, kind, seen.module_class, axes=axes)
            self._full_shapes[name] = tuple(seen.tensor.shape)
            self._dtypes[name] = seen.tensor.dtype
        total = sum(seen.tensor.numel() * 4 for seen in taps.seen.values())
        return layers, dict(taps.aliases), total

    def _choose(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        inputs = [name for name, layer in self._layers.items() if layer.kind == "input"][:1]
        if wanted is not None:  # the input is always there, to be edited
            return tuple(dict.fromkeys([*inputs, *map(self._find, wanted)]))
        modules = dict(self.model.named_modules())
        weighty = [
            name
            for name, layer in self._layers.items()
            if layer.kind != "input" and (_is_moment(name) or self._is_weighty(name, modules))
        ]
        final = [name for name, layer in self._layers.items() if layer.kind == "output"]
        hidden = [name for name in weighty or list(self._layers)[1:] if name not in final]
        return (*inputs, *_spread(hidden, _MOST_CHOSEN - 1), *final)

    def _is_weighty(self, name: str, modules: Mapping[str, nn.Module]) -> bool:
        """Whether a layer does a layer's work; a recurrent one only where it has no moments."""
        module = modules.get(name.partition("#")[0])
        if isinstance(module, nn.RNNBase):
            return f"{name}:t0" not in self._layers
        return _has_weights(module)

    def _find(self, name: str) -> str:
        plain = name.removesuffix(":out.0")
        found = self._aliases.get(plain, plain)
        if found not in self._layers and plain in dict(self.model.named_modules()):
            raise BacklightError(
                f"The module {name!r} gives no real tensor with a gradient on these inputs: it is "
                "not called, or under no_grad, or its samples cannot be told apart."
            )
        if found not in self._layers:
            known = ", ".join(list(self._layers)[:12])
            raise BacklightError(f"There is no layer {name!r}: the first ones are {known}.")
        return found


def _arguments(inputs: Any) -> tuple[list[Any], dict[str, Any], dict[str, torch.Tensor]]:
    """The arguments of the model's call, and the tensors among them by name."""
    tensors: dict[str, torch.Tensor] = {}

    def take(name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.as_tensor(value)
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                raise BacklightError(
                    f"{name!r} is complex, and the lab edits real numbers: make it a part of the "
                    "model that they become complex."
                )
            if value.layout is not torch.strided:
                raise BacklightError(
                    f"{name!r} is sparse, and the lab edits every cell: pass it as a dense tensor, "
                    "and let the model make it sparse."
                )
            tensors[name] = value.detach()
            return _Place(name)
        if isinstance(value, Mapping):
            return {key: take(f"{name}.{key}", each) for key, each in value.items()}
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(take(f"{name}.{n}", each) for n, each in enumerate(value))
        return value

    args: list[Any] = []
    keywords: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        keywords = {key: take(f"input.{key}", value) for key, value in inputs.items()}
    elif isinstance(inputs, (tuple, list)) and len(inputs) > 1:
        args = [take(f"input.{n}", value) for n, value in enumerate(inputs)]
    else:
        alone = inputs[0] if isinstance(inputs, (tuple, list)) and inputs else inputs
        args = [take("input", alone)]
    if not tensors:
        raise BacklightError(
            f"The inputs hold no tensor but {type(inputs).__name__}: pass what the model takes, "
            "a tensor, a tuple of arguments or a dict of keywords."
        )
    return args, keywords, tensors


@dataclass(frozen=True)
class _Place:
    name: str


def _fill(value: Any, leaves: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return leaves[value.name].clone()
    if isinstance(value, dict):
        return {key: _fill(each, leaves) for key, each in value.items()}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_fill(each, leaves) for each in value)
    return value


def _array(tensor: torch.Tensor) -> Array:
    own = tensor.detach().cpu()
    own = own.float() if own.is_floating_point() else own
    array: Array = own.contiguous().numpy()
    return array


def _scaled(chunk: FlowChunk, factor: Array) -> FlowChunk:
    value = chunk.value * factor.reshape(-1)[chunk.source]
    return FlowChunk(chunk.source, chunk.sink, value, chunk.done, chunk.total)


def _replica_dim(alone: torch.Tensor, copies: torch.Tensor | None, count: int) -> int | None:
    """The dimension along which copies of a sample lie, if each is like the sample."""
    if copies is None or copies.dim() != alone.dim():
        return None
    sizes = zip(alone.shape, copies.shape, strict=True)
    different = [dim for dim, (one, many) in enumerate(sizes) if many != one]
    if len(different) != 1 or copies.shape[different[0]] != count * alone.shape[different[0]]:
        return None
    dim = different[0]
    split = copies.detach().unflatten(dim, (count, -1))
    first, last = (split.select(dim, place) for place in (0, count - 2))
    own = alone.detach()
    is_close = [
        torch.isclose(each, own, rtol=1e-4, atol=1e-5, equal_nan=True).all()
        for each in (first, last)
    ]
    return dim if all(map(bool, is_close)) else None


def _has_weights(module: nn.Module | None) -> bool:
    """Whether a module has a matrix of its own, or is known to do a layer's work."""
    if module is None:
        return False
    own = (each.dim() >= 2 for each in module.parameters(recurse=False))
    return isinstance(module, _WEIGHTY) or any(own)


def _mixes_samples(model: nn.Module) -> bool:
    norms = (nn.modules.batchnorm._BatchNorm,)
    return any(
        isinstance(module, norms) and (module.training or module.running_mean is None)
        for module in model.modules()
    )


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(items, (tuple, list)) or isinstance(value, Mapping):
        found = (_first_tensor(each) for each in items)
        return next((each for each in found if each is not None), None)
    return None


def _axes(dims: int, place: str) -> tuple[str, ...]:
    if place == "heads" and dims == 3:
        return ("head", "position", "feature")
    if place == "weights" and dims >= 2:
        return ("head", "query", "key")[-dims:] if dims <= 3 else ()
    names = {
        1: ("unit",),
        2: ("position", "feature"),
        3: ("channel", "y", "x"),
        4: ("channel", "z", "y", "x"),
    }
    return names.get(dims, ())


def _is_moment(name: str) -> bool:
    tail = name.rpartition(":")[2]
    return tail[:1] == "t" and tail[1:].isdigit()


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many, evenly spread."""
    if len(names) <= most:
        return list(names)
    return [names[round(n * (len(names) - 1) / (most - 1))] for n in range(most)]
