"""Rows that are packed without Arrow are, to the byte, those that Arrow makes."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlight.schema import TABLES
from backlight.store.messages import head_and_body
from backlight.store.row_packer import RowPacker

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


def by_arrow(schema, row):
    array = pa.array([row], pa.struct(list(schema)))
    return head_and_body(pa.RecordBatch.from_struct_array(array))


@pytest.mark.parametrize("table", PACKED)
@given(data=st.data())
def test_a_packed_row_is_what_arrow_makes_of_it(table, data):
    schema = TABLES[table]
    packer = RowPacker(schema)
    for row in data.draw(st.lists(rows(schema), min_size=1, max_size=4)):
        packed = packer.pack(row)
        header, body = by_arrow(schema, row)
        assert packed is not None and packed.body == bytes(body) and packed.header == bytes(header)


def test_numbers_that_are_not_finite_are_kept():
    packer = RowPacker(TABLES["scalars"])
    for value in (math.nan, math.inf, -math.inf, -0.0):
        row = {"step": 1, "name": "loss", "value": value, "logged_at": 0.0}
        body = packer.pack(row).body
        assert body == bytes(by_arrow(TABLES["scalars"], row)[1])


@pytest.mark.parametrize(
    "row",
    [
        {"step": 2**63, "text": "too much", "written_at": 0.0},
        {"step": 1, "text": 5, "written_at": 0.0},
        {"step": 1, "text": "\ud800", "written_at": 0.0},
        {"step": "1", "text": "no digit", "written_at": 0.0},
    ],
    ids=["large", "no text", "half a character", "no number"],
)
def test_what_cannot_be_packed_is_left_to_arrow(row):
    packer = RowPacker(TABLES["notes"])
    assert packer.pack({"step": 1, "text": "as usual", "written_at": 0.0}) is not None
    assert packer.pack(row) is None


def test_tables_with_lists_are_left_to_arrow():
    assert RowPacker(TABLES["sites"]).pack({}) is None


def test_what_a_row_does_not_say_is_missing():
    row = {"step": 1, "kind": "train", "recorded": True, "reason": "", "iterations": 1, "graph": "",
           "started_at": 0.0, "duration_secs": 0.0, "recording_secs": 0.0}  # fmt: skip
    body = RowPacker(TABLES["steps"]).pack(row).body
    assert body == bytes(by_arrow(TABLES["steps"], row)[1])
