"""An answer of the reader: a table that turns into what the user works with."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa

from backlight.errors import BacklightError


class Answer:
    """A table as Arrow, pandas or Polars. pandas and Polars are imported when they are asked for.

    >>> answer = Answer(pa.table({"step": [0, 1], "loss": [2.0, 1.0]}))
    >>> answer
    <2 rows: step, loss>
    >>> answer["loss"].tolist(), answer.rows()[1]
    ([2.0, 1.0], {'step': 1, 'loss': 1.0})
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def arrow(self) -> pa.Table:
        """As an Arrow table."""
        return self._table

    def df(self) -> Any:
        """As a pandas DataFrame."""
        _library("pandas")
        return self._table.to_pandas()

    def pl(self) -> Any:
        """As a Polars DataFrame."""
        return _library("polars").from_arrow(self._table)

    def rows(self) -> list[dict[str, Any]]:
        """As dictionaries."""
        rows: list[dict[str, Any]] = self._table.to_pylist()
        return rows

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self._table.schema.names
        return names

    def __getitem__(self, name: str) -> Any:
        """One column as a NumPy array."""
        if name not in self.columns:
            raise BacklightError(f"There is no column {name!r}: use {', '.join(self.columns)}.")
        return self._table[name].to_numpy()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<{len(self)} rows: {', '.join(self.columns)}>"


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise BacklightError(
            f"{name} is not installed: `pip install {name}`, or use .arrow()."
        ) from None
