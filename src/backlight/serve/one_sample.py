"""One sample of the batch at all sites: a statistic at one step and over steps, its gradients."""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlight.schema import QUANTITIES
from backlight.serve.graphs import value_of
from backlight.serve.kept_values import ValueFiles
from backlight.serve.sample_values import (
    VALUE_STATISTICS,
    batch_dims,
    sample_over_steps,
    value_rows,
)
from backlight.store.heatmap import CELLS, Columns, cells_of, single_columns
from backlight.store.iterations import of_iteration
from backlight.store.one_sample import KNOWN, PLACE, SampleKey, sample_rows
from backlight.store.reader import RunReader, check_one_of, check_positive
from backlight.store.tiles import matching

STATISTICS: Final = (*KNOWN, *VALUE_STATISTICS)
_NO_TILES: Final = pa.schema(
    [("block", pa.int64()), *(field for field in CELLS if field.name != "column")]
).empty_table()


class OneSample:
    """What a run tells of one of its samples."""

    def __init__(self, reader: RunReader, files: ValueFiles, sample: str) -> None:
        self.key = SampleKey.of(sample)
        self._reader, self._files = reader, files

    def moment(self, step: int, *, quantity: str = "value", statistic: str = "rms") -> pa.Table:
        """`site, iteration, nans, infs, value`: one statistic of the sample at one step."""
        _check(quantity, statistic)
        rows = self._values(step, quantity)
        if statistic not in VALUE_STATISTICS:
            rows = self._with_counts(self._recorded(np.array([step])), rows)
            rows = rows.filter(pc.field("quantity") == quantity)
        columns = {name: rows[name] for name in ("site", "iteration", "nans", "infs")}
        return pa.table({**columns, "value": value_of(rows, statistic)})

    def heatmap(
        self,
        *,
        quantity: str = "value",
        statistic: str = "abs_max",
        columns: int = 500,
        first: int | None = None,
        last: int | None = None,
        iteration: int | None = None,
        kind: str | None = None,
    ) -> pa.Table:
        """`site, column, value, nans, infs` of the sample over recorded steps, as of whole batches.

        Its metadata has also `steps`: of how many, and how many there are.
        """
        _check(quantity, statistic)
        check_positive("columns", columns)
        steps = self._reader.steps_between(first, last, kind)
        if statistic in VALUE_STATISTICS:
            read = sample_over_steps(
                self._files, self._reader, self.key, quantity=quantity, columns=columns, steps=steps
            )
            asked, rows, used = read.columns, read.rows, read.steps_used
        else:
            asked = self._readable(steps, columns)
            rows, used = self._recorded(asked.steps), len(asked.steps)
        rows = rows.filter(pc.field("quantity") == quantity)
        rows = rows if iteration is None else of_iteration(rows, iteration)
        table = cells_of(asked, rows, _NO_TILES, statistic=statistic)
        said = {"columns": asked.ranges, "fullest": asked.fullest, "steps": [used, len(steps)]}
        told = {name: json.dumps(each) for name, each in said.items()}
        return table.replace_schema_metadata(told)

    def observations(self, step: int) -> pa.Table:
        """What was seen of the sample at a step, as rows that the flow of gradients is told from.

        Those of which it is not known how many elements they have are not among them.
        """
        rows = self._recorded(np.array([step]))
        return _observed(self._with_counts(rows, self._values(step, "grad")))

    def observations_over(self, steps: npt.NDArray[np.int64]) -> pa.Table:
        """The same of several steps, without what only raw values tell."""
        return _observed(self._recorded(steps))

    def _recorded(self, steps: npt.NDArray[np.int64]) -> pa.Table:
        dims = batch_dims(self._files, self._reader, int(steps[-1]) if len(steps) == 1 else None)
        return sample_rows(self._reader.snapshot, steps, self.key, dims)

    def _values(self, step: int, quantity: str) -> pa.Table:
        return value_rows(self._files, self._reader, [step], self.key, quantity=quantity)

    def _with_counts(self, rows: pa.Table, values: pa.Table) -> pa.Table:
        """Rows with the counts that raw values tell: some elements may be NaN or infinite."""
        places = matching(rows, values, PLACE)
        for name in ("count", "nans", "infs"):
            counted = values[name].to_numpy()
            if name == "count":  # of the finite ones, as the recorded rows have it
                counted = counted - values["nans"].to_numpy() - values["infs"].to_numpy()
            own = rows[name].to_numpy()
            found = np.where(places >= 0, np.append(counted, 0)[places], own)
            index, type_ = rows.schema.get_field_index(name), rows.schema.field(name).type
            rows = rows.set_column(index, name, pa.array(found, from_pandas=True).cast(type_))
        return rows

    def _readable(self, steps: npt.NDArray[np.int64], columns: int) -> Columns:
        rows = self._reader.rows
        recorded = max(1, len(self._reader.snapshot.recorded_steps))
        return single_columns(steps, columns, (rows["stats"] + rows["samples"]) / recorded)


def _observed(rows: pa.Table) -> pa.Table:
    """Rows that count all elements, as those of whole batches do, where their number is known."""
    rows = rows.filter(pc.field("count").is_valid())
    broken = pc.cast(pc.add(rows["nans"], rows["infs"]), pa.float64())
    index = rows.schema.get_field_index("count")
    return rows.set_column(index, "count", pc.add(rows["count"], broken))


def _check(quantity: str, statistic: str) -> None:
    check_one_of("quantity", quantity, QUANTITIES)
    check_one_of("statistic of single samples", statistic, STATISTICS)
