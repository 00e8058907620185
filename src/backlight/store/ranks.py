"""Makes one run of what several ranks wrote, each of which numbers its sites from 0."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import SITES

RANK: Final = pa.field("rank", pa.int32(), nullable=False)


def with_rank(rank: int, rows: Any) -> Any:
    """A batch or table with a last column that says which rank wrote it.

    >>> with_rank(3, pa.record_batch({"step": [7]})).to_pylist()
    [{'step': 7, 'rank': 3}]
    """
    return rows.append_column(RANK, pa.repeat(pa.scalar(rank, pa.int32()), rows.num_rows))


class SiteNumbers:
    """Gives each site one number for all ranks.

    Sites of the same name on several ranks are one site, and its rows are their union. A number
    that a rank gave is kept where it is free, so with one rank nothing changes.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[int, int]] = {}  # name -> (rank, number)
        self._numbers: dict[int, dict[int, int]] = defaultdict(dict)  # rank -> its own -> number
        # rank -> number -> its own
        self._own: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        self._renumbered: set[int] = set()  # ranks some of whose own numbers were taken
        self._used: set[int] = set()
        self._next = 0  # larger than all that are used

    def copy(self) -> SiteNumbers:
        """What is known now, whatever is learnt later."""
        copied = SiteNumbers()
        copied._owners, copied._used = dict(self._owners), set(self._used)
        copied._numbers.update({rank: dict(each) for rank, each in self._numbers.items()})
        copied._own.update({rank: dict(each) for rank, each in self._own.items()})
        copied._renumbered, copied._next = set(self._renumbered), self._next
        return copied

    def number(self, rank: int, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows of sites that are new to the run, with their numbers for all ranks."""
        rows = [row for row in batch.to_pylist() if self._adopt(rank, row)]
        return with_rank(rank, pa.RecordBatch.from_pylist(rows, schema=SITES)) if rows else None

    def _adopt(self, rank: int, row: dict[str, Any]) -> bool:
        """Number a site in place; whether the run has not had it before."""
        own, name = row["site"], row["name"]
        if own in self._numbers[rank] or own < 0:
            return False
        owner = self._owners.get(name)
        if owner is not None and owner[0] != rank:
            self._learn(rank, own, owner[1])
            return False
        row["site"] = own if own not in self._used else self._next
        self._used.add(row["site"])
        self._next = max(self._next, row["site"] + 1)
        self._owners.setdefault(name, (rank, row["site"]))
        self._learn(rank, own, row["site"])
        return True

    def _learn(self, rank: int, own: int, number: int) -> None:
        self._numbers[rank][own] = number
        self._own[rank][number] = (*self._own[rank].get(number, ()), own)
        if own != number:
            self._renumbered.add(rank)

    def own(self, rank: int, sites: set[int]) -> list[int]:
        """The numbers that a rank itself gave to some sites."""
        known = self._own.get(rank, {})
        return [own for site in sorted(sites) for own in known.get(site, ())]

    def number_of(self, rank: int, own: int) -> int | None:
        """The number for all ranks of a site that a rank gave a number; None of an unknown one."""
        return self._numbers.get(rank, {}).get(own)

    def renumber(self, rank: int, rows: Any) -> tuple[Any, Any]:
        """A rank's rows with the numbers for all ranks, and those of sites that are unknown yet."""
        numbers = self._numbers.get(rank, {})
        if rank not in self._renumbered and self._knows(rank, rows):
            return with_rank(rank, rows), rows.slice(0, 0)
        own = pa.array(numbers.keys(), pa.int32())
        index = pc.index_in(rows.column("site"), value_set=own)
        unknown = rows.slice(0, 0)
        if index.null_count:
            unknown = rows.filter(pc.is_null(index))
            rows, index = rows.filter(pc.is_valid(index)), index.drop_null()
        column = pa.array(numbers.values(), pa.int32()).take(index)
        position = rows.schema.get_field_index("site")
        field = rows.schema.field(position)
        return with_rank(rank, rows.set_column(position, field, column)), unknown

    def _knows(self, rank: int, rows: Any) -> bool:
        """Whether every site of the rows is known, told from their ends: numbers are dense."""
        ends = pc.min_max(rows.column("site")).as_py()
        if ends["min"] is None:
            return True
        known = self._numbers.get(rank, {})
        is_dense = len(known) == self._next  # as with one rank, and none that was renumbered
        return is_dense and ends["min"] >= 0 and ends["max"] in known
