"""Rows that are packed without Arrow are those that Arrow makes of them."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlight.reduce import native
from backlight.schema import TABLES
from backlight.store.packed import as_batch
from backlight.store.row_packer import RowPacker

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the kernel packs them")

PACKED = ["steps", "scalars", "notes", "events"]
VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False) | st.integers(-1000, 1000),
    "bool": st.booleans(),
    "string": st.text(max_size=40),
}


def rows(schema):
    columns = {}
    for field in schema:
        values = VALUES[str(field.type)]
        columns[field.name] = st.none() | values if field.nullable else values
    return st.fixed_dictionaries(columns)


def by_arrow(schema, rows):
    return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(list(schema))))


def packed(table, rows):
    batch = as_batch(RowPacker(TABLES[table]).pack(rows))
    batch.validate(full=True)
    return batch


@pytest.mark.parametrize("table", PACKED)
@given(data=st.data())
def test_packed_rows_are_what_arrow_makes_of_them(table, data):
    drawn = data.draw(st.lists(rows(TABLES[table]), min_size=1, max_size=20))
    assert packed(table, drawn).equals(by_arrow(TABLES[table], drawn))


def test_many_rows_are_packed_like_few():
    drawn = [
        {"step": step, "name": "loss" * (step % 3), "value": step / 7, "logged_at": 1.0}
        for step in range(3000)
    ]
    assert packed("scalars", drawn).equals(by_arrow(TABLES["scalars"], drawn))


def test_numbers_that_are_not_finite_are_kept():
    values = [math.nan, math.inf, -math.inf, -0.0]
    drawn = [{"step": 1, "name": "loss", "value": value, "logged_at": 0.0} for value in values]
    assert str(packed("scalars", drawn)["value"].to_pylist()) == str(values)


@pytest.mark.parametrize(
    "row",
    [
        {"step": 2**63, "text": "too much", "written_at": 0.0},
        {"step": 1, "text": 5, "written_at": 0.0},
        {"step": 1, "text": "\ud800", "written_at": 0.0},
        {"step": "1", "text": "no digit", "written_at": 0.0},
        {"step": True, "text": "no number", "written_at": 0.0},
    ],
    ids=["large", "no text", "half a character", "no number", "a truth"],
)
def test_what_cannot_be_packed_is_left_to_arrow(row):
    packer, usual = RowPacker(TABLES["notes"]), {"step": 1, "text": "as usual", "written_at": 0.0}
    assert packer.pack([usual]) is not None
    assert packer.pack([row]) is None and packer.pack([usual, row]) is None


def test_a_number_that_is_too_large_for_its_column_is_left_to_arrow():
    row = {"step": 1, "kind": "spike", "site": 2**31, "text": "", "happened_at": 0.0}
    assert RowPacker(TABLES["events"]).pack([{**row, "site": 2**31 - 1}]) is not None
    assert RowPacker(TABLES["events"]).pack([row]) is None


def test_tables_with_lists_are_left_to_arrow():
    assert RowPacker(TABLES["sites"]).pack([{}]) is None


def test_what_a_row_does_not_say_is_missing():
    row = {"step": 1, "kind": "train", "recorded": True, "reason": "", "iterations": 1, "graph": "",
           "started_at": 0.0, "duration_secs": 0.0, "recording_secs": 0.0}  # fmt: skip
    assert packed("steps", [row]).equals(by_arrow(TABLES["steps"], [row]))
