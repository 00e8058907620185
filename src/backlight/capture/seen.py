"""What is held of one tensor until its step ends: a copy of values, and how its samples were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from backlight.capture.copies import Copy, pick_rows, thin
from backlight.capture.plans import Plan
from backlight.store.values import Extent


@dataclass(slots=True, eq=False)
class Seen:
    """A tensor that was seen."""

    plan: Plan
    site: int
    quantity: int  # counts through `QUANTITIES` once for each backward pass
    iteration: int
    extent: Extent  # of the copy
    values: Copy | None
    moments: Any = None  # an array, or its place in `Moments`; None if the values still have them
    moment_rows: list[int] | None = None  # which of its rows are of kept samples; None for all
    data_indices: tuple[int | None, ...] = ()  # of the kept samples

    @property
    def key(self) -> tuple[int, int, int]:
        """Where it was seen."""
        return self.site, self.quantity, self.iteration

    @property
    def file_bytes(self) -> int:
        """At most what the copy takes in a file."""
        is_whole = self.extent is self.plan.wanted
        return self.plan.file_bytes if is_whole else self.extent.file_bytes

    def shares_values(self, other: Seen) -> bool:
        """Whether both have the very same copy, and take it for the same."""
        return self.values is other.values and self.plan is other.plan

    def decide(self, plan: Plan, places: list[int]) -> None:
        """Keep the samples at these places, and no others; those that are held come first."""
        held, rows, extent = self.extent, places, plan.wanted
        if held is not self.plan.wanted:
            rows = [place for place in places if place < held.samples]
            extent = replace(held, samples=len(rows), is_open=False)
        if self.values is not None:
            self.values = pick_rows(self.values, held.samples, rows) if rows else None
        if self.moments is not None:
            before = self.moment_rows
            self.moment_rows = places if before is None else [before[place] for place in places]
        self.plan, self.extent = plan, extent

    def cut(self, extent: Extent) -> None:
        """Keep no more of the values than this."""
        held = self.extent
        rows = min(extent.samples, held.samples)
        factor = max(1, extent.neuron_step // held.neuron_step)
        if rows == 0 or self.values is None:
            self.values = None
        elif rows < held.samples or factor > 1:
            self.values = thin(self.values, held.samples, held.item_bytes, rows, factor)
            self.extent = replace(held, samples=rows, neuron_step=held.neuron_step * factor)
