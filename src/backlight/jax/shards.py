"""Rows of arrays that are sharded over several devices: each device reads its own part of them.

How the compiler shards an array is known only when it asks how to split its row, which is noted
then. So a row has as many parts as there are devices. They are merged on the host, each part of the
array once, however often it is replicated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from backlight.jax.statistics import observe
from backlight.jax.words import COUNTS, FIRST_NUMBER, HEADER, NUMBERS
from backlight.reduce.spec import NO_UNITS

_DEAD, _CONSTANT = COUNTS.index("dead_units"), COUNTS.index("constant_units")
_BATCH_STD = NUMBERS.index("batch_std")


@dataclass(slots=True)
class Sharding:
    """Which devices have which part of an array; until the compiler says so, the first has all."""

    devices: list[str] = field(default_factory=list)
    primary: list[int] = field(default_factory=lambda: [0])  # each part once

    @classmethod
    def of_mesh(cls, mesh: Any) -> Sharding:
        """Every device has a part of its own."""
        devices = [str(device) for device in np.asarray(mesh.devices).flat]
        return cls(devices, list(range(len(devices))))

    def note(self, mesh: Any, spec: Any) -> None:
        """The compiler shards the array so."""
        used = {axis for part in spec for axis in _axes(part)}
        sizes = [mesh.shape[axis] for axis in mesh.axis_names]
        every = np.indices(sizes).reshape(len(sizes), -1).T
        spare = [place for place, axis in enumerate(mesh.axis_names) if axis not in used]
        self.devices = [str(device) for device in np.asarray(mesh.devices).flat]
        self.primary = [i for i, index in enumerate(every) if not index[spare].any()]

    def shard_of(self, part: int) -> str:
        """A part's number among all, and its device, in words."""
        device = self.devices[part] if part < len(self.devices) else "the first device"
        return f"on shard {self.primary.index(part) + 1} of {len(self.primary)}, {device}"


def observe_shards(array: Any, old: Any, unit_dim: int, devices: int) -> tuple[Any, Sharding]:
    """The parts of an array's row, one for each device, and what will be known of the sharding."""
    sharding = Sharding()
    arrays = (array,) if old is None else (array, old)
    words = _partitioned(sharding, arrays, devices)(*arrays)
    if unit_dim == NO_UNITS or array.shape[0] < 2 or array.size == 0:
        return words, sharding
    return _with_units(words, array, unit_dim), sharding


def _partitioned(sharding: Sharding, arrays: tuple[Any, ...], devices: int) -> Any:
    @custom_partitioning
    def parts(*arrays: Any) -> Any:
        row = observe(*arrays)
        return jnp.zeros((devices, row.size), row.dtype).at[0].set(row)

    def partition(mesh: Any, given: Any, result: Any) -> Any:
        whole = given[0].sharding
        if not _is_even(given[0].shape, whole.spec, mesh):
            whole = NamedSharding(mesh, PartitionSpec())
        sharding.note(mesh, whole.spec)
        spread = NamedSharding(mesh, PartitionSpec(tuple(mesh.axis_names)))
        return mesh, lambda *local: observe(*local)[None], spread, (whole,) * len(given)

    def infer(mesh: Any, given: Any, result: Any) -> Any:
        return NamedSharding(mesh, PartitionSpec(tuple(mesh.axis_names)))

    dims = " ".join(f"d{number}" for number in range(arrays[0].ndim))
    rule = ", ".join([dims] * len(arrays)) + " -> shard word"
    parts.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return parts


def _axes(part: Any) -> tuple[str, ...]:
    """The axes of the mesh that one dimension of an array is sharded over."""
    return part if isinstance(part, tuple) else (part,) if part else ()


def _is_even(shape: Any, spec: Any, mesh: Any) -> bool:
    """Whether no device has elements that the array does not have."""
    for size, part in zip(shape, spec, strict=False):
        if size % int(np.prod([mesh.shape[axis] for axis in _axes(part)], dtype=int)):
            return False
    return True


def _with_units(words: Any, array: Any, unit_dim: int) -> Any:
    """Units go over the whole batch, wherever it is; they are kept in the first part."""
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    others = tuple(dim for dim in range(array.ndim) if dim != unit_dim)
    dead = (wide == 0).all(axis=others).sum()
    is_same = wide.max(axis=0) == wide.min(axis=0)
    constant = is_same.all(axis=tuple(dim - 1 for dim in others if dim)).sum()
    spread = wide.std(axis=0)
    known = jnp.isfinite(spread)
    mean = jnp.where(known, spread, 0).sum() / known.sum()
    bits = jax.lax.bitcast_convert_type(mean.astype(jnp.float32), jnp.uint32)
    # A float32 in the low word; merging makes a float64 of it.
    place = FIRST_NUMBER + 2 * _BATCH_STD
    for where, value in ((_DEAD, dead), (_CONSTANT, constant), (place, bits)):
        words = words.at[0, where].set(value.astype(jnp.uint32))
    return words


# -- on the host


def merge(parts: Any, sharding: Sharding, own_words: int = 0) -> Any:
    """Rows of the whole array from those of its parts: [row, device, word] becomes [row, word].

    The words of own statistics at a row's end are of the whole array already.
    """
    own = parts[:, sharding.primary]
    merged = np.zeros((len(own), own.shape[2]), np.uint32)
    merged[:, :FIRST_NUMBER] = own[:, :, :FIRST_NUMBER].sum(axis=1)
    merged[:, 0] = own[:, :, 0].max(axis=1)
    merged[:, HEADER:] = own[:, :, HEADER:].sum(axis=1)
    end = own.shape[2] - own_words
    merged[:, end:] = own[:, 0, end:]
    place = FIRST_NUMBER + 2 * _BATCH_STD
    batch_std = np.ascontiguousarray(parts[:, 0, place]).view(np.float32).astype(np.float64)
    numbers = np.ascontiguousarray(own[:, :, FIRST_NUMBER:HEADER]).view(np.float64)
    whole = _merge_numbers(own[:, :, COUNTS.index("finite")].astype(np.float64), numbers)
    whole[:, _BATCH_STD] = batch_std
    merged[:, FIRST_NUMBER:HEADER] = whole.view(np.uint32)
    return merged


def _merge_numbers(counts: Any, numbers: Any) -> Any:
    of = {name: numbers[:, :, place] for place, name in enumerate(NUMBERS)}
    total = np.maximum(counts.sum(axis=1), 1)
    mean = (counts * of["mean"]).sum(axis=1) / total
    spread = of["std"] ** 2 + (of["mean"] - mean[:, None]) ** 2
    variance = (counts * spread).sum(axis=1) / total
    has_any = counts > 0
    whole = {
        "mean": mean,
        "std": np.sqrt(variance),
        "min": np.where(has_any, of["min"], np.inf).min(axis=1),
        "max": np.where(has_any, of["max"], -np.inf).max(axis=1),
        "abs_mean": (counts * of["abs_mean"]).sum(axis=1) / total,
        "abs_max": np.where(has_any, of["abs_max"], 0).max(axis=1),
        "rms": np.sqrt(variance + mean**2),
        "batch_std": np.zeros(len(mean)),
    }
    return np.ascontiguousarray(np.stack([whole[name] for name in NUMBERS], axis=1))


def first_bad_part(parts: Any, sharding: Sharding) -> str:
    """Which part of an array has the first value that is not finite; empty if none has."""
    bad = parts[..., COUNTS.index("nans")] + parts[..., COUNTS.index("infs")]
    bad = bad.reshape(-1, bad.shape[-1]).sum(axis=0)
    found = next((part for part in sharding.primary if bad[part]), None)
    return "" if found is None else sharding.shard_of(found)
