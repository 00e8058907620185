"""Rows by torch operations: any device, any dtype that torch converts to float64.

Slower than the kernel on the CPU, but nothing here waits for the device: every number stays there
until `to_batch` brings all of a step's rows over in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch

from backlight.reduce.spec import NO_UNITS
from backlight.schema import PLAIN_STATS, QUANTITIES, SKETCH_BIAS, STATISTICS
from backlight.store.columns import batch_of

_LARGEST_KEY = (1023 + SKETCH_BIAS) * 4 + 4
_NUMBERS = (
    "finite",
    "zeros",
    "nans",
    "infs",
    *STATISTICS,
    "dead_units",
    "constant_units",
    "batch_std",
)


@dataclass(slots=True)
class TorchTable:
    """Rows whose numbers are still on their device.

    >>> table = TorchTable()
    >>> table.observe(torch.tensor([1.0, -3.0]), order=0, iteration=0, site=7, quantity=0)
    >>> table.to_batch(5, backwards=[""])["mean"].to_pylist()
    [-1.0]
    """

    known: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[torch.Tensor] = field(default_factory=list)
    sketches: list[torch.Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.known)

    def observe(
        self,
        tensor: torch.Tensor,
        *,
        order: int,
        iteration: int,
        site: int,
        quantity: int,
        unit_dim: int = NO_UNITS,
        batch_dim: int = 0,
    ) -> None:
        """Add the statistics of one tensor as a row."""
        with torch.no_grad():
            wide = _as_float64(tensor.detach())
            by_sample = wide.movedim(batch_dim, 0) if batch_dim else wide
            units = _unit_count(by_sample, unit_dim)
            self.known.append(
                {
                    "iteration": iteration,
                    "order": order,
                    "site": site,
                    "quantity": quantity,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "count": wide.numel(),
                    "units": units,
                }
            )
            self.numbers.append(
                torch.stack([*_moments(wide), *_unit_numbers(by_sample, unit_dim, units)])
            )
            self.sketches.append(_dense_sketch(wide))

    def repeat(self, row: int, *, order: int, iteration: int, site: int) -> None:
        """Add a row again, for another site."""
        own = {"order": order, "iteration": iteration, "site": site}
        self.known.append({**self.known[row], **own})
        self.numbers.append(self.numbers[row])
        self.sketches.append(self.sketches[row].clone())

    def to_batch(self, step: int, backwards: list[str]) -> pa.RecordBatch:
        """The rows as a batch of `stats`; a quantity counts through them for each backward pass."""
        numbers = _to_host(self.numbers)
        sketches = _to_host(self.sketches)
        rows = [
            {
                "step": step,
                **known,
                **_named(known["quantity"], backwards),
                **_row_numbers(number, known["units"]),
                **_sparse(sketch),
            }
            for known, number, sketch in zip(self.known, numbers, sketches, strict=True)
        ]
        return batch_of(rows, PLAIN_STATS)

    def clear(self) -> None:
        """Forget all rows."""
        self.known.clear()
        self.numbers.clear()
        self.sketches.clear()


def _as_float64(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.to(torch.float64)


def _moments(wide: torch.Tensor) -> list[torch.Tensor]:
    flat = wide.reshape(-1)
    if flat.numel() == 0:
        return [flat.new_zeros(()) for _ in range(4 + len(STATISTICS))]
    finite = flat.isfinite()
    count = finite.sum().double()
    kept = torch.where(finite, flat, 0.0)
    abs_max = kept.abs().max()
    # Squares of extreme values would leave the range of float64.
    scale = torch.ones_like(abs_max)
    scale.masked_fill_(abs_max > 2.0**500, 2.0**-540).masked_fill_(abs_max < 2.0**-400, 2.0**540)
    scaled = kept * scale
    mean = scaled.sum() / count
    variance = torch.where(finite, scaled - mean, 0.0).square().sum() / count
    return [
        count,
        (flat == 0).sum().double(),
        flat.isnan().sum().double(),
        flat.isinf().sum().double(),
        mean / scale,
        variance.sqrt() / scale,
        torch.where(finite, flat, torch.inf).min(),
        torch.where(finite, flat, -torch.inf).max(),
        scaled.abs().sum() / count / scale,
        abs_max,
        (variance + mean.square()).sqrt() / scale,
    ]


def _unit_count(wide: torch.Tensor, unit_dim: int) -> int | None:
    if unit_dim < 1 or unit_dim >= wide.dim() or wide.shape[0] < 2 or wide.numel() == 0:
        return None
    return wide.shape[unit_dim]


def _unit_numbers(wide: torch.Tensor, unit_dim: int, units: int | None) -> list[torch.Tensor]:
    if units is None:
        return [wide.new_zeros(()) for _ in range(3)]
    by_unit = wide.movedim(unit_dim, 1).reshape(wide.shape[0], units, -1)
    dead = (by_unit == 0).all(dim=2).all(dim=0)
    constant = (by_unit == by_unit[:1]).all(dim=2).all(dim=0)
    spread = (by_unit - by_unit[:1]).var(dim=0, correction=0).sqrt()
    known = spread.isfinite()
    mean = torch.where(known, spread, 0.0).sum() / known.sum()
    return [dead.sum().double(), constant.sum().double(), mean]


def _dense_sketch(wide: torch.Tensor) -> torch.Tensor:
    """Counts for every key, negative ones first; key 0 gathers what the sketch leaves out."""
    flat = wide.reshape(-1)
    mantissa, exponent = torch.frexp(flat)
    quarter = (mantissa.abs() * 8.0 - 4.0).to(torch.int64)
    magnitude = (exponent.to(torch.int64) - 1 + SKETCH_BIAS) * 4 + quarter + 1
    is_counted = flat.isfinite() & (flat != 0)
    keys = torch.where(is_counted, torch.where(flat < 0, -magnitude, magnitude), 0)
    counts = torch.zeros(2 * _LARGEST_KEY + 1, dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(0, keys + _LARGEST_KEY, torch.ones_like(keys))


def _to_host(tensors: list[torch.Tensor]) -> list[Any]:
    """NumPy arrays, one copy for each device that the tensors are on."""
    found: dict[int, Any] = {}
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        host = torch.stack([tensors[place] for place in places]).cpu().numpy()
        found.update(zip(places, host, strict=True))
    return [found[place] for place in range(len(tensors))]


def _named(quantity: int, backwards: list[str]) -> dict[str, str]:
    backward, place = divmod(quantity, len(QUANTITIES))
    return {"quantity": QUANTITIES[place], "backward": backwards[backward]}


def _row_numbers(numbers: Any, units: int | None) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(_NUMBERS, numbers.tolist(), strict=True))
    for name in ("zeros", "nans", "infs", "dead_units", "constant_units"):
        row[name] = int(row[name])
    if row.pop("finite") == 0:
        row.update(dict.fromkeys(STATISTICS))
    if units is None:
        row.update(dict.fromkeys(("dead_units", "constant_units", "batch_std")))
    return row


def _sparse(sketch: Any) -> dict[str, list[int]]:
    sketch[_LARGEST_KEY] = 0
    places = sketch.nonzero()[0]
    return {
        "sketch_keys": (places - _LARGEST_KEY).tolist(),
        "sketch_counts": sketch[places].tolist(),
    }
