"""Rows that are laid out already as the body of a message of an Arrow stream.

The kernel makes them: for the few rows of a step, Arrow takes longer than a small network for a
layer. The header of such a message has the same length however many rows there are, so that Arrow
makes one for each schema, and only the numbers in it are put in.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from backlight.store.flatbuffer import PREFIX, field_at


class Packed(NamedTuple):
    """Rows of a table, as the body of a message, and what its header is to say of them."""

    schema: pa.Schema
    num_rows: int
    nodes: bytes  # of each column, and of what lists hold: how many there are, how many are missing
    buffers: bytes  # each one's offset in the body, and its length
    body: bytes
    is_finite: bool = False  # known to have been made of finite numbers alone

    @property
    def nbytes(self) -> int:
        """How much memory the rows take."""
        return len(self.body)


class Heading:
    """The header of messages of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        nothing = [pa.nulls(1, field.type) for field in schema]
        message = memoryview(pa.RecordBatch.from_arrays(nothing, schema=schema).serialize())
        self.pattern = bytes(message[: PREFIX.size + PREFIX.unpack_from(message)[1]])
        root = PREFIX.size + struct.unpack_from("<I", self.pattern, PREFIX.size)[0]
        batch = self._behind(field_at(self.pattern, root, 2))
        # Of the body's length, the number of rows, the nodes and the buffers.
        self.places = (
            field_at(self.pattern, root, 3),
            field_at(self.pattern, batch, 0),
            self._behind(field_at(self.pattern, batch, 1)) + 4,
            self._behind(field_at(self.pattern, batch, 2)) + 4,
        )

    def _behind(self, offset_at: int) -> int:
        return int(offset_at + struct.unpack_from("<I", self.pattern, offset_at)[0])

    def fill(self, rows: Packed) -> bytes:
        """The header of these rows."""
        header = bytearray(self.pattern)
        body_at, rows_at, nodes_at, buffers_at = self.places
        struct.pack_into("<q", header, body_at, len(rows.body))
        struct.pack_into("<q", header, rows_at, rows.num_rows)
        header[nodes_at : nodes_at + len(rows.nodes)] = rows.nodes
        header[buffers_at : buffers_at + len(rows.buffers)] = rows.buffers
        return bytes(header)


@lru_cache
def _heading(schema: pa.Schema) -> Heading:
    return Heading(schema)


def as_batch(rows: Packed | pa.RecordBatch) -> pa.RecordBatch:
    """Rows as Arrow has them."""
    if not isinstance(rows, Packed):
        return rows
    message = _heading(rows.schema).fill(rows) + rows.body
    return pa.ipc.read_record_batch(pa.py_buffer(message), rows.schema)
