"""Reads what a test has recorded, with plain Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa


def read(path: Path, table: str) -> list[dict]:
    """The rows of a table, of all its segments."""
    rows: list[dict] = []
    for file in sorted((path / table).glob("*.arrows")):
        rows += pa.ipc.open_stream(file).read_all().to_pylist()
    return rows


def observations(path: Path) -> list[dict]:
    """The rows of `stats`, each with its site's row."""
    sites = {site["site"]: site for site in read(path, "sites")}
    return [{**sites[row["site"]], **row} for row in read(path, "stats")]


def find(path: Path, name: str, quantity: str = "value", **where: object) -> list[dict]:
    """The observations of one site and quantity, in order."""
    rows = [
        row
        for row in observations(path)
        if row["name"] == name
        and row["quantity"] == quantity
        and all(row[key] == value for key, value in where.items())
    ]
    return sorted(rows, key=lambda row: (row["step"], row["order"]))
