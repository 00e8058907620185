"""What was recorded of one sample at all sites, as rows that look like those of whole batches.

The `samples` table has four statistics of each kept sample; others follow from them. So whoever
reads rows of `stats` can read these instead, and shows one sample rather than its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.store.snapshot import Snapshot
from backlight.store.summary import of_lowest_rank
from backlight.store.tiles import NORM, floats, matching

RECORDED: Final = ("mean", "abs_mean", "std", "abs_max")
KNOWN: Final = (*RECORDED, "rms", NORM)
"""The statistics that are known of each kept sample."""

PLACE: Final = ("step", "iteration", "site", "quantity", "backward")
"""What tells apart the rows of one sample, in the one rank that has it."""


@dataclass(frozen=True)
class SampleKey:
    """A sample by its position in the batch, or by its place in the data where that was told.

    >>> SampleKey.of("3"), SampleKey.of("#17")
    (SampleKey(position=3, data_index=None), SampleKey(position=None, data_index=17))
    >>> SampleKey.of("last")
    Traceback (most recent call last):
    backlight.errors.BacklightError: There is no sample 'last': use a position in the batch, or ...
    """

    position: int | None
    data_index: int | None

    @classmethod
    def of(cls, text: str) -> SampleKey:
        """The sample that an address means."""
        digits = text.removeprefix("#")
        # The columns of the table hold no longer numbers.
        longest = 9 if text == digits else 18
        if not (digits.isascii() and digits.isdigit() and len(digits) <= longest):
            raise BacklightError(
                f"There is no sample {text[:40]!r}: use a position in the batch, or # and a place "
                "in the data."
            )
        number = int(digits)
        return cls(None, number) if text != digits else cls(number, None)

    def is_row(self, rows: pa.Table) -> pa.Table:
        """The rows of `samples` that are of this one."""
        if self.data_index is not None:
            return rows.filter(pc.field("data_index") == self.data_index)
        is_asked = (pc.field("sample") == self.position) & pc.field("data_index").is_null()
        return rows.filter(is_asked)

    def place_in(self, samples: tuple[int, ...], indices: tuple[int | None, ...]) -> int | None:
        """Which of some kept samples it is.

        >>> SampleKey.of("5").place_in((2, 5), (None, None)), SampleKey.of("5").place_in((5,), (9,))
        (1, None)
        """
        for place, (sample, index) in enumerate(zip(samples, indices, strict=True)):
            # One that has a place in the data is called by that, as the page does.
            is_it = self.position == sample if index is None else self.data_index == index
            if is_it:
                return place
        return None


def sample_rows(
    snapshot: Snapshot,
    steps: npt.NDArray[np.int64],
    sample: SampleKey,
    batch_dims: Mapping[int, int | None],
) -> pa.Table:
    """What was recorded of a sample at some steps: a row for each place at which it was kept.

    `count` is how many finite elements of it there are, and null where that is not known.
    `nans` or `infs` are not 0 where it has no finite element at all. `batch_dims` says of sites
    which dimension counts samples: 0, if they are not in it; None where nobody knows.
    """
    rows = snapshot.of_steps(steps, [*PLACE, "sample", "data_index", *RECORDED], table="samples")
    rows = of_lowest_rank(sample.is_row(rows))
    tensors = snapshot.of_steps(steps, [*PLACE, "shape", "count", "nans", "infs"])
    places = matching(rows, tensors, (*PLACE, "rank"))
    elements = _elements_of_samples(tensors, batch_dims)[places]
    nans, infs = (np.append(tensors[name].to_numpy(), 0)[places] for name in ("nans", "infs"))
    mean, std = floats(rows["mean"]), floats(rows["std"])
    is_broken = np.isnan(mean)
    is_known = (places >= 0) & (is_broken | (nans + infs == 0))
    return pa.table(
        {
            **{name: rows[name] for name in (*PLACE, "rank", *RECORDED)},
            "rms": _numbers(np.hypot(mean, std)),
            "count": _numbers(np.where(is_known, elements, np.nan)),
            "nans": (is_broken & (nans > 0)).astype(np.int64),
            "infs": (is_broken & (nans == 0) & (infs > 0)).astype(np.int64),
        }
    )


def _elements_of_samples(
    tensors: pa.Table, batch_dims: Mapping[int, int | None]
) -> npt.NDArray[np.float64]:
    """How many elements each sample of a tensor has; NaN where that is not known.

    There is one more at the end, for what has no tensor.
    """
    shapes = tensors["shape"].combine_chunks()
    offsets, sizes = np.asarray(shapes.offsets), np.append(np.asarray(shapes.flatten()), 0)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    dims = np.zeros(tensors.num_rows, np.int64)
    site = tensors["site"].to_numpy()
    for each, dim in batch_dims.items():
        dims[site == each] = -1 if dim is None else dim
    has_dim = (dims >= 0) & (dims < lengths)
    batch = np.where(has_dim, sizes[np.where(has_dim, starts + dims, 0)], 0)
    found = floats(tensors["count"]) / np.where(batch > 0, batch, np.nan)
    return np.append(found, np.nan)


def _numbers(values: Any) -> pa.Array:
    return pa.array(values, pa.float64(), from_pandas=True)
