"""What is kept of all tensors of one shape and dtype: worked out once, and used for each."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import string_at
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from backlight.capture.copies import DTYPE_NAMES, Copy, copy_of, pick_columns, picked, runs
from backlight.errors import BacklightError
from backlight.samples import NeuronSelection
from backlight.store.values import STORED_AS, Extent

Runs: TypeAlias = tuple[tuple[int, int], ...]

ALONE: Final = (0,)
"""The samples of a tensor without a batch: it is taken for the only one."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What is kept of a tensor, where its samples and its neurons are chosen."""

    dtype: torch.dtype
    dtype_name: str
    array_dtype: Any  # of the NumPy array that holds the values
    array_shape: tuple[int, ...]  # of the array that holds all that is wanted
    shape: tuple[int, ...]
    batch_dim: int | None
    batch_size: int
    samples: tuple[int, ...] | None  # None until it is known which are kept
    batch_samples: tuple[int, ...]  # the same; none without a batch, or until it is known
    neurons: int  # of a whole sample
    columns: tuple[int, ...] | None  # the chosen neurons; None if they are evenly spread
    group: int  # of sites that have the same neurons chosen
    wanted: Extent  # what would be kept without a budget
    file_bytes: int  # what that takes
    sample_runs: Runs
    spans: Runs  # where its bytes are in a contiguous tensor; () if they are not in one piece

    def read(self, address: int) -> bytes:
        """What is wanted of a contiguous tensor at this address of the host's memory."""
        if len(self.spans) == 1:
            offset, size = self.spans[0]
            return string_at(address + offset, size)
        return b"".join([string_at(address + offset, size) for offset, size in self.spans])

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """The samples of a tensor as rows of all their neurons; a view of it where it can be."""
        rows = tensor.detach()
        if self.batch_dim:
            rows = rows.movedim(self.batch_dim, 0)
        if self.batch_dim is not None and self.samples is not None:
            rows = picked(rows, self.sample_runs)
        is_matrix = self.batch_dim is not None and len(self.shape) == 2
        return rows if is_matrix else rows.reshape(self.wanted.samples, self.neurons)

    def copy(self, rows: torch.Tensor, neuron_step: int) -> Copy:
        """A copy of what is kept of these rows."""
        if self.columns is not None:
            return pick_columns(rows, self.columns[::neuron_step])
        return copy_of(rows if neuron_step == 1 else rows[:, ::neuron_step])

    def has_all(self, extent: Extent) -> bool:
        """Whether a copy of this extent holds all values of each of its samples."""
        return self.columns is None and extent.neuron_step == 1

    def kept_neurons(self, extent: Extent) -> tuple[int, ...] | None:
        """The chosen neurons that are left in an extent; None if none were chosen."""
        return None if self.columns is None else self.columns[:: extent.neuron_step]

    def array(self, data: bytes, extent: Extent) -> Any:
        """A copy's values as the array that is stored."""
        is_whole = extent is self.wanted
        shape = self.array_shape if is_whole else _array_shape(extent, self.batch_dim, self.dtype)
        return np.ndarray(shape, self.array_dtype, data)


def make_plan(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    batch_dim: int | None,
    samples: tuple[int, ...] | None,
    selection: NeuronSelection,
    group: int,
) -> Plan:
    """The plan for tensors of a shape, whose samples are known, or None for all of them."""
    batch_size = 1 if batch_dim is None else shape[batch_dim]
    neurons = prod(size for dim, size in enumerate(shape) if dim != batch_dim)
    columns = selection.columns(neurons)
    step = max(1, -(-neurons // selection.most))
    wanted = Extent(
        samples=batch_size if samples is None else len(samples),
        neurons=neurons if columns is None else len(columns),
        neuron_step=step if columns is None else 1,
        item_bytes=dtype.itemsize,
        is_open=samples is None,
        has_positions=columns is not None,
    )
    parts = ((0, batch_size),) if samples is None else runs(samples)
    row_bytes = neurons * dtype.itemsize
    spans = tuple((first * row_bytes, length * row_bytes) for first, length in parts)
    has_spans = not batch_dim and columns is None and step == 1
    return Plan(
        dtype=dtype,
        dtype_name=DTYPE_NAMES[dtype],
        array_dtype=_array_dtype(DTYPE_NAMES[dtype]),
        array_shape=_array_shape(wanted, batch_dim, dtype),
        shape=shape,
        batch_dim=batch_dim,
        batch_size=batch_size,
        samples=samples,
        batch_samples=() if batch_dim is None else samples or (),
        neurons=neurons,
        columns=columns,
        group=group,
        wanted=wanted,
        file_bytes=wanted.file_bytes,
        sample_runs=parts,
        spans=spans if has_spans else (),
    )


def _array_dtype(name: str) -> Any:
    return np.dtype(name if name in ("complex64", "complex128") else STORED_AS[name])


def _array_shape(extent: Extent, batch_dim: int | None, dtype: torch.dtype) -> tuple[int, ...]:
    rows = () if batch_dim is None else (extent.samples,)
    pair = (2,) if dtype is torch.complex32 else ()  # NumPy has no complex numbers of that size
    return (*rows, extent.columns, *pair)


def checked_dim(shape: tuple[int, ...], batch_dim: int | None) -> int | None:
    """The batch dimension, counted from the front; a single number has none."""
    dims = len(shape)
    if batch_dim is None or (dims == 0 and batch_dim in (0, -1)):
        return None
    if not -dims <= batch_dim < dims:
        raise BacklightError(
            f"batch_dim is {batch_dim} for a tensor of shape {list(shape)}: "
            "give the dimension that counts samples, or None if there is none."
        )
    return batch_dim % dims


class NeuronGroups:
    """Which neurons are chosen at each site, as a number for each of the different choices."""

    def __init__(self, neurons: NeuronSelection, site_name: Callable[[int], str] | None) -> None:
        if neurons.by_site and site_name is None:
            raise BacklightError(
                "Neurons are chosen by the names of sites, and the sites have no names: give "
                "site_name."
            )
        self.selections = [] if neurons.by_site else [neurons]
        self._neurons = neurons
        self._site_name = site_name
        self._found: dict[int, int] = {}

    def at(self, site: int) -> int:
        """The place in `selections` of the one for a site."""
        if self._site_name is None or not self._neurons.by_site:
            return 0
        found = self._found.get(site)
        if found is None:
            selection = self._neurons.at(self._site_name(site))
            if selection not in self.selections:
                self.selections.append(selection)
            found = self._found[site] = self.selections.index(selection)
        return found
