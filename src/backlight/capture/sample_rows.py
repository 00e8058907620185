"""The rows of the `samples` table: what each chosen sample of a step was like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from backlight.capture.moments import MOMENTS
from backlight.capture.seen import Seen
from backlight.schema import QUANTITIES, SAMPLES
from backlight.store.columns import column, numbers


def sample_rows(
    step: int, tensors: Sequence[Seen], backwards: Sequence[str]
) -> pa.RecordBatch | None:
    """A row for each kept sample of each tensor, in order; None if there are none."""
    shown = [seen for seen in tensors if seen.plan.batch_samples]
    if not shown:
        return None
    samples = [seen.plan.batch_samples for seen in shown]
    counts = [len(each) for each in samples]
    codes = np.repeat([seen.quantity for seen in shown], counts)
    columns = {
        "step": np.full(len(codes), step),
        "iteration": np.repeat([seen.iteration for seen in shown], counts),
        "site": np.repeat([seen.site for seen in shown], counts),
        "quantity": _named(QUANTITIES, codes % len(QUANTITIES)),
        "backward": _named(backwards, codes // len(QUANTITIES)),
        "sample": list(chain.from_iterable(samples)),
        "data_index": list(chain.from_iterable([seen.data_indices for seen in shown])),
        **dict(zip(MOMENTS, _moments(shown).T, strict=True)),
    }
    arrays = [_array(columns[field.name], field.type) for field in SAMPLES]
    return pa.RecordBatch.from_arrays(arrays, schema=SAMPLES)


def _named(names: Sequence[str], codes: Any) -> pa.Array:
    return column(names, pa.utf8()).take(numbers(codes, pa.int64()))


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return numbers(values, type_) if isinstance(values, np.ndarray) else column(values, type_)


def _moments(shown: Sequence[Seen]) -> Any:
    """The moments of the kept samples, one row for each."""
    return np.concatenate(
        [
            seen.moments if seen.moment_rows is None else seen.moments[seen.moment_rows]
            for seen in shown
        ]
    )
