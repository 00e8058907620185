"""Makes one run of what several ranks wrote, each of which numbers its sites from 0."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import SITES
from backlight.store.follow import RankBatch

RANK: Final = pa.field("rank", pa.int32(), nullable=False)


def with_rank(taken: RankBatch) -> pa.RecordBatch:
    """The batch with a last column that says which rank wrote it.

    >>> with_rank(RankBatch(3, pa.record_batch({"step": [7]}))).to_pylist()
    [{'step': 7, 'rank': 3}]
    """
    ranks = pa.repeat(pa.scalar(taken.rank, pa.int32()), taken.batch.num_rows)
    schema = taken.batch.schema.append(RANK)
    return pa.RecordBatch.from_arrays([*taken.batch.columns, ranks], schema=schema)


class SiteNumbers:
    """Gives each site one number for all ranks.

    Sites of the same name on several ranks are one site, and its rows are their union. A number
    that a rank gave is kept where it is free, so with one rank nothing changes.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[int, int]] = {}  # name -> (rank, number)
        self._numbers: dict[int, dict[int, int]] = defaultdict(dict)  # rank -> its own -> number
        self._used: set[int] = set()
        self._waiting: list[RankBatch] = []

    def number(self, taken: list[RankBatch]) -> list[pa.RecordBatch]:
        """The rows of sites that are new to the run, with their numbers for all ranks."""
        batches = []
        for each in taken:
            rows = [row for row in each.batch.to_pylist() if self._adopt(each.rank, row)]
            if rows:
                batch = pa.RecordBatch.from_pylist(rows, schema=SITES)
                batches.append(with_rank(RankBatch(each.rank, batch)))
        return batches

    def _adopt(self, rank: int, row: dict[str, Any]) -> bool:
        """Number a site in place; whether the run has not had it before."""
        own, name = row["site"], row["name"]
        if own in self._numbers[rank]:
            return False
        owner = self._owners.get(name)
        if owner is not None and owner[0] != rank:
            self._numbers[rank][own] = owner[1]
            return False
        row["site"] = own if own not in self._used else max(self._used) + 1
        self._used.add(row["site"])
        self._owners.setdefault(name, (rank, row["site"]))
        self._numbers[rank][own] = row["site"]
        return True

    def renumber(self, taken: list[RankBatch]) -> list[pa.RecordBatch]:
        """Rows with their sites' numbers for all ranks; a row of an unknown site waits for it."""
        asked, self._waiting = [*self._waiting, *taken], []
        batches = [self._renumber(each) for each in asked]
        return [batch for batch in batches if batch.num_rows]

    def _renumber(self, taken: RankBatch) -> pa.RecordBatch:
        numbers = self._numbers[taken.rank]
        own = pa.array(numbers.keys(), pa.int32())
        index = pc.index_in(taken.batch.column("site"), value_set=own)
        batch = taken.batch
        if index.null_count:
            self._waiting.append(RankBatch(taken.rank, batch.filter(index.is_null())))
            batch, index = batch.filter(index.is_valid()), index.drop_null()
        column = pa.array(numbers.values(), pa.int32()).take(index)
        position = batch.schema.get_field_index("site")
        columns = [*batch.columns[:position], column, *batch.columns[position + 1 :]]
        renumbered = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return with_rank(RankBatch(taken.rank, renumbered))
