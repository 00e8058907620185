"""Which rows of a step are those of one of its iterations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from backlight.store.sketch_sample import grouped


def of_iteration(rows: pa.Table, iteration: int | None) -> pa.Table:
    """The rows of one iteration of each site and step; of the last for None.

    What was seen once, before or after all iterations, belongs to each of them. What was seen in
    one later iteration alone, as the loss of the last, belongs to that one.

    >>> seen = {"site": [1, 1, 2, 3], "step": [5, 5, 5, 5], "iteration": [0, 1, 0, 1]}
    >>> rows = pa.table(seen)
    >>> of_iteration(rows, None).to_pydict()
    {'site': [1, 2, 3], 'step': [5, 5, 5], 'iteration': [1, 0, 1]}
    >>> [of_iteration(rows, each)["site"].to_pylist() for each in (0, 1, 7)]
    [[1, 2], [1, 2, 3], [2]]
    """
    if rows.num_rows == 0:
        return rows
    site, number = rows["site"].to_numpy().astype(np.int64), rows["iteration"].to_numpy()
    order, starts = grouped(site, np.unique(rows["step"].to_numpy(), return_inverse=True)[1])
    lengths = np.diff(np.append(starts, len(order)))
    ends = (np.minimum, np.maximum)
    first, last = (np.repeat(end.reduceat(number[order], starts), lengths) for end in ends)
    is_once = (first == last) & (last <= 0)
    wanted = last if iteration is None else np.where(is_once, last, iteration)
    is_asked = np.empty(len(order), bool)
    is_asked[order] = number[order] == wanted
    return rows.filter(pa.array(is_asked))
