"""Questions to a run's tables: one `.sql` file each, run by an in-memory DuckDB.

The database can reach nothing but the tables that it is handed: no file, no network, no Python
variable, and no statement can change that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backlight.errors import BacklightError

if TYPE_CHECKING:
    import duckdb

QUESTIONS_PER_DATABASE: Final = 300
"""A database remembers each buffer that it ever took, which is up to 10 KB for a question, and
forgets none before it has 25,000 or more of a size: a viewer would grow by tens of MB."""


class _Databases:
    """One database for the whole process, and now and then a new one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._left = 0

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For one question: what is registered belongs to it alone."""
        with self._lock:
            if not self._left:
                # Questions that are still under way keep theirs until they are answered.
                self._database, self._left = _connect(), QUESTIONS_PER_DATABASE
            self._left -= 1
            return self._database.cursor()


_databases = _Databases()


def query(name: str, tables: Mapping[str, pa.Table], **parameters: Any) -> pa.Table:
    """Run `<name>.sql` over the tables.

    >>> rows = pa.table({"step": [1, 2], "text": ["a", "b"], "written_at": [0.0, 1.0]})
    >>> query("notes", {"notes": rows})["text"].to_pylist()
    ['a', 'b']
    """
    import duckdb

    cursor = _databases.cursor()
    try:
        for table, rows in tables.items():
            cursor.register(table, rows)
        return cursor.sql(_text(name), params=parameters).to_arrow_table()
    except duckdb.Error as error:
        reason = str(error).split("\n")[0][:200]
        raise BacklightError(
            f"The {name} of the run cannot be told ({reason}): `backlight repair` looks for damage."
        ) from None
    finally:
        cursor.close()


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")


def _connect() -> duckdb.DuckDBPyConnection:
    import duckdb

    database = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": False,
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allocator_background_threads": True,  # gives back what threads that are gone had
            "threads": min(4, os.cpu_count() or 1),
        },
    )
    database.execute("SET lock_configuration = true")
    return database
