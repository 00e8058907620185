"""Exact flows between two tensors by vector–Jacobian products.

The flow from cell i of the source to cell j of the sink is ∂sink_j/∂source_i · weight_j, where the
weights are the gradient at the sink. One product gives the flows into one cell of the sink; where
the geometry is known, one product gives those into many cells that read nothing in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
import torch

from backlight.laboratory.interface import FlowChunk
from backlight.laboratory.receptive import Fields

Vjp = Callable[[torch.Tensor], torch.Tensor]
"""From vectors at the sink, one in each row, to those at the source; both of a sample's shape."""

CHUNK_BYTES: Final = 48 << 20
"""About what the vectors of one batch of products may take, at the larger of both ends."""


@dataclass(frozen=True)
class Probes:
    """The vectors that are multiplied: each asks for the flows into some cells of the sink.

    `owner` has a row for each colour and a column for each position of the source: the position of
    the sink that the flow there belongs to, or -1. Without it each probe is of one cell.
    """

    weights: torch.Tensor  # flat, one for each cell of the sink
    channel: torch.Tensor  # for each probe: the channel, or the cell where there are no colours
    colour: torch.Tensor
    colour_of: torch.Tensor | None = None  # of each position of the sink
    owner: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.channel)

    def vectors(self, first: int, last: int) -> torch.Tensor:
        """The probes from `first` to before `last`, flat."""
        channel, colour = self.channel[first:last], self.colour[first:last]
        count, cells = len(channel), self.weights.numel()
        vectors = self.weights.new_zeros(count, cells)
        rows = torch.arange(count, device=channel.device)
        if self.colour_of is None:
            vectors[rows, channel] = self.weights[channel]
            return vectors
        positions = self.colour_of.numel()
        of_channel = self.weights.view(-1, positions)[channel]
        is_asked = self.colour_of[None, :] == colour[:, None]
        vectors.view(count, -1, positions)[rows, channel] = of_channel * is_asked
        return vectors

    def flows(self, first: int, answers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The source, the sink and the value of each flow in the products' answers, flat."""
        row, source = answers.nonzero(as_tuple=True)
        value = answers[row, source]
        probe = row + first
        if self.owner is None:
            return source, self.channel[probe], value
        positions_in, positions_out = self.owner.shape[1], self.colour_of.numel()  # type: ignore[union-attr]
        at = self.owner[self.colour[probe], source % positions_in]
        if bool((at < 0).any()):
            raise OutsideFieldError
        return source, self.channel[probe] * positions_out + at, value

    def largest(self, most: int) -> Probes:
        """At most so many of the probes: those whose cells have the most weight."""
        if len(self) <= most:
            return self
        size = self.weights.abs()
        if self.colour_of is not None:
            per_channel = size.view(-1, self.colour_of.numel())
            colours = int(self.colour.max()) + 1
            size = size.new_zeros(len(per_channel), colours)
            size.index_add_(1, self.colour_of, per_channel)
        weight = size[self.channel] if self.colour_of is None else size[self.channel, self.colour]
        kept = weight.argsort(descending=True, stable=True)[:most].sort().values
        return replace(self, channel=self.channel[kept], colour=self.colour[kept])


class OutsideFieldError(Exception):
    """A flow comes from where the geometry says that none can come from."""


def plan(
    weights: torch.Tensor,
    source_shape: tuple[int, ...],
    sink_shape: tuple[int, ...],
    fields: Fields | None,
) -> Probes:
    """The fewest probes that tell every flow apart; cells whose weight is 0 are not asked for."""
    flat = weights.reshape(-1)
    if fields is None or len(sink_shape) != len(fields) + 1:
        cells = flat.nonzero().reshape(-1)
        return Probes(flat, cells, torch.zeros_like(cells))
    periods = [min(each.period, size) for each, size in zip(fields, sink_shape[1:], strict=True)]
    colour_of = _colours(sink_shape[1:], periods).to(flat.device)
    colours = prod(periods)
    is_needed = torch.zeros(sink_shape[0], colours, dtype=torch.bool, device=flat.device)
    channel, position = (flat.view(sink_shape[0], -1) != 0).nonzero(as_tuple=True)
    is_needed[channel, colour_of[position]] = True
    asked_channel, asked_colour = is_needed.nonzero(as_tuple=True)
    owner = _owners(fields, periods, source_shape[1:], sink_shape[1:]).to(flat.device)
    return Probes(flat, asked_channel, asked_colour, colour_of, owner)


def _colours(sizes: tuple[int, ...], periods: list[int]) -> torch.Tensor:
    """A number for each position, such that positions of one number read nothing in common."""
    colour = torch.zeros(sizes, dtype=torch.long)
    for dim, period in enumerate(periods):
        shape = [-1 if each == dim else 1 for each in range(len(sizes))]
        colour = colour * period + (torch.arange(sizes[dim]) % period).view(shape)
    return colour.reshape(-1)


def _owners(
    fields: Fields, periods: list[int], source: tuple[int, ...], sink: tuple[int, ...]
) -> torch.Tensor:
    """For each colour and position of the source: which position of the sink reads it, or -1."""
    along = [_owners_along(*each) for each in zip(fields, periods, source, sink, strict=True)]
    tables = []
    for colours in product(*(range(period) for period in periods)):
        owner = torch.zeros(source, dtype=torch.long)
        for dim, colour in enumerate(colours):
            shape = [-1 if each == dim else 1 for each in range(len(source))]
            own = along[dim][colour].view(shape)
            owner = torch.where((owner < 0) | (own < 0), -1, owner * sink[dim] + own)
        tables.append(owner.reshape(-1))
    return torch.stack(tables)


def _owners_along(field: Any, period: int, source: int, sink: int) -> torch.Tensor:
    owner = torch.full((period, source), -1, dtype=torch.long)
    for position in range(sink):
        first, last = field.cells(position)
        owner[position % period, max(first, 0) : max(last + 1, 0)] = position
    return owner


def flows(
    vjp: Vjp,
    probes: Probes,
    source_size: int,
    check: Callable[[], None],
    *,
    most: int | None = None,
) -> Iterator[FlowChunk]:
    """Every flow that is not 0, in chunks whose memory is bounded.

    `most` is how many products can be made at a time, where that is bounded.
    """
    cells = max(source_size, probes.weights.numel())
    at_a_time = max(1, CHUNK_BYTES // (cells * probes.weights.element_size()))
    at_a_time = min(at_a_time, most) if most else at_a_time
    for first in range(0, len(probes), at_a_time):
        check()
        last = min(first + at_a_time, len(probes))
        answers = vjp(probes.vectors(first, last)).reshape(last - first, -1)
        source, sink, value = probes.flows(first, answers)
        yield FlowChunk(
            to_numpy(source, np.int32),
            to_numpy(sink, np.int32),
            to_numpy(value, np.float32),
            last,
            len(probes),
        )


def to_numpy(tensor: torch.Tensor, dtype: Any) -> Any:
    """A tensor as an array; NumPy has no bfloat16."""
    own = tensor.detach().cpu()
    own = own.float() if own.is_floating_point() else own
    return own.numpy().astype(dtype, copy=False)


def vmapped(source: torch.Tensor, sink: torch.Tensor) -> Vjp:
    """Products on the graph itself, batched where every operation allows it."""

    def vjp(vectors: torch.Tensor) -> torch.Tensor:
        shaped = vectors.view(-1, *sink.shape)
        try:
            return pull_back(source, sink, shaped, is_batched=True)
        except RuntimeError:
            rows = [pull_back(source, sink, row, is_batched=False) for row in shaped]
            return torch.stack(rows)

    return vjp


def pull_back(
    source: torch.Tensor, sink: torch.Tensor, vectors: torch.Tensor, *, is_batched: bool
) -> torch.Tensor:
    """A vector at the sink times the Jacobian; several in one go where `is_batched`."""
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        sink, source, vectors, retain_graph=True, allow_unused=True, is_grads_batched=is_batched
    )
    grad = found[0]
    if grad is None:
        count = vectors.shape[:1] if is_batched else ()
        return source.new_zeros(*count, *source.shape)
    return grad


def push_forward(source: torch.Tensor, sink: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """The Jacobian times a vector at the source: what a small change there does to the sink.

    >>> source = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> push_forward(source, source * source, torch.tensor([1.0, 0.0]))
    tensor([2., 0.])
    """
    # Reverse mode twice: the first product is linear in its vector, and is differentiated by it.
    dummy = torch.zeros_like(sink, requires_grad=True)
    pulled: torch.Tensor | None
    (pulled,) = torch.autograd.grad(
        sink, source, dummy, create_graph=True, retain_graph=True, allow_unused=True
    )
    if pulled is None or not pulled.requires_grad:
        return torch.zeros_like(sink)
    pushed: torch.Tensor | None
    (pushed,) = torch.autograd.grad(pulled, dummy, tangent, allow_unused=True)
    return torch.zeros_like(sink) if pushed is None else pushed
