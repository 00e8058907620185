"""Writes the same statistics, without sketches, as SQLite and as TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from store_data import rows

COLUMNS = (
    *("step", "site", "count", "zeros", "nans", "infs"),
    *("mean", "std", "min", "max", "abs_mean", "abs_max", "rms", "batch_std"),
)


def write_peer(name: str, folder: Path, *, sites: int, steps: int) -> Path:
    """Write all observations, step by step as a trainer would."""
    folder.mkdir(parents=True)
    {"sqlite": _write_sqlite, "tensorboard": _write_tensorboard}[name](folder, sites, steps)
    return folder


def _chunk(first: int, last: int, sites: int) -> pa.Table:
    chosen, all_sites = np.arange(first, last), np.arange(sites)
    site, step = np.tile(all_sites, len(chosen)), np.repeat(chosen, sites)
    return rows(site, step, with_sketches=False).select(list(COLUMNS))


def _write_sqlite(folder: Path, sites: int, steps: int) -> None:
    import sqlite3

    names = ", ".join(f'"{name}"' for name in COLUMNS)
    with sqlite3.connect(folder / "stats.sqlite") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"CREATE TABLE stats ({names})")
        insert = f"INSERT INTO stats VALUES ({', '.join('?' * len(COLUMNS))})"
        for first in range(0, steps, 50):
            table = _chunk(first, min(first + 50, steps), sites)
            connection.executemany(insert, zip(*(c.to_pylist() for c in table), strict=True))
        connection.execute("CREATE INDEX by_site ON stats (site, step)")
        connection.execute("CREATE INDEX by_step ON stats (step, site)")
    connection.close()


def _write_tensorboard(folder: Path, sites: int, steps: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    shown = COLUMNS[2:]
    for step in range(steps):
        table = _chunk(step, step + 1, sites)
        columns = [table[name].to_pylist() for name in shown]
        values = [
            Summary.Value(tag=f"{site}/{name}", simple_value=column[site])
            for site in range(sites)
            for name, column in zip(shown, columns, strict=True)
        ]
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=values)))
    writer.close()
