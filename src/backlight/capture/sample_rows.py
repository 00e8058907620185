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
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in SAMPLES]
    return pa.RecordBatch.from_arrays(arrays, schema=SAMPLES)


def _named(names: Sequence[str], codes: Any) -> Any:
    return np.array(names, object)[codes]


def _moments(shown: Sequence[Seen]) -> Any:
    """The moments of the kept samples, one row for each."""
    return np.concatenate(
        [
            seen.moments if seen.moment_rows is None else seen.moments[seen.moment_rows]
            for seen in shown
        ]
    )
