from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from backlight.schema import NOTES, TABLES
from backlight.store import stream_follower
from backlight.store.follow import GrowingTable, TableFollower
from backlight.store.stream_follower import StreamFollower
from backlight.store.writer import RunWriter


def notes(*texts: str) -> pa.RecordBatch:
    rows = [{"step": 0, "text": text, "written_at": 0.0} for text in texts]
    return pa.RecordBatch.from_pylist(rows, schema=NOTES)


def stream(*batches: pa.RecordBatch, schema: pa.Schema = NOTES) -> tuple[bytes, list[int]]:
    """A whole stream, and the length that it had after each batch."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return sink.getvalue().to_pybytes(), ends


def texts(batches: list[pa.RecordBatch]) -> list[str]:
    return [text for batch in batches for text in batch.column("text").to_pylist()]


THREE = (notes("a"), notes("b", "b"), notes("c" * 40))
ALL = ["a", "b", "b", "c" * 40]


def test_a_file_that_does_not_exist_yet_has_no_rows(tmp_path: Path) -> None:
    follower = StreamFollower(tmp_path / "later.arrows", NOTES)
    assert follower.take() == []
    (tmp_path / "later.arrows").write_bytes(stream(*THREE)[0])
    assert texts(follower.take()) == ALL
    assert follower.problem is None


def test_a_tail_torn_at_any_byte_is_taken_up_when_the_rest_arrives(tmp_path: Path) -> None:
    content, _ = stream(*THREE)
    for cut in range(len(content) + 1):
        path = tmp_path / f"{cut}.arrows"
        follower = StreamFollower(path, NOTES)
        path.write_bytes(content[:cut])
        early = texts(follower.take())
        assert follower.problem is None, cut
        with path.open("ab") as file:
            file.write(content[cut:])
        assert early + texts(follower.take()) == ALL, cut
        assert follower.problem is None, cut


def test_a_batch_is_taken_as_soon_as_its_last_byte_is_there(tmp_path: Path) -> None:
    content, ends = stream(*THREE)
    path = tmp_path / "s.arrows"
    follower = StreamFollower(path, NOTES)
    taken: list[int] = []
    with path.open("wb", buffering=0) as file:
        for length, byte in enumerate(content, start=1):
            file.write(bytes([byte]))
            taken += [length] * len(follower.take())
    assert taken == ends


def test_no_damaged_byte_makes_it_raise(tmp_path: Path) -> None:
    content, _ = stream(*THREE)
    path = tmp_path / "s.arrows"
    path.write_bytes(content)
    reported = 0
    with path.open("r+b", buffering=0) as file:
        for position in range(len(content)):
            for damage in (b"\x00", b"\x7f", b"\xff", content[position : position + 1]):
                os.pwrite(file.fileno(), damage, position)
                follower = StreamFollower(path, NOTES)
                follower.take()
                reported += follower.problem is not None
    assert reported > 100
    assert texts(StreamFollower(path, NOTES).take()) == ALL


def test_damage_is_reported_and_what_came_before_it_is_kept(tmp_path: Path) -> None:
    content, ends = stream(*THREE)
    path = tmp_path / "s.arrows"
    path.write_bytes(content[: ends[1]] + b"what is this? " * 9)
    follower = StreamFollower(path, NOTES)
    assert texts(follower.take()) == ["a", "b", "b"]
    assert follower.problem is not None
    assert f"damaged at byte {ends[1]}" in follower.problem
    assert follower.take() == []
    assert follower.problem is not None


def test_a_tail_of_zeros_is_no_end_of_the_stream(tmp_path: Path) -> None:
    content, ends = stream(*THREE)
    path = tmp_path / "s.arrows"
    path.write_bytes(content[: ends[1]] + bytes(64))
    follower = StreamFollower(path, NOTES)
    assert texts(follower.take()) == ["a", "b", "b"]
    assert follower.problem is not None
    # As after a crash of the file server: the bytes themselves came late.
    path.write_bytes(content)
    assert texts(follower.take()) == ["c" * 40]
    assert follower.problem is None


def test_a_file_that_is_no_stream_at_all_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.arrows"
    path.write_text("step,text,written_at\n0,hello,0\n")
    follower = StreamFollower(path, NOTES)
    assert follower.take() == []
    assert follower.problem is not None


def test_a_file_that_became_shorter_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.arrows"
    content, ends = stream(*THREE)
    path.write_bytes(content[: ends[2]])
    follower = StreamFollower(path, NOTES)
    follower.take()
    path.write_bytes(content[:100])
    assert follower.take() == []
    assert follower.problem is not None
    assert "shorter" in follower.problem


def test_what_was_taken_is_not_read_again(tmp_path: Path) -> None:
    content, ends = stream(*THREE)
    path = tmp_path / "s.arrows"
    path.write_bytes(content[: ends[1]])
    follower = StreamFollower(path, NOTES)
    follower.take()
    path.write_bytes(b"\x00" * ends[1] + content[ends[1] :])
    assert texts(follower.take()) == ["c" * 40]


def test_messages_larger_than_a_chunk_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, _ = stream(*THREE, notes("d" * 5000), notes("e"))
    path = tmp_path / "s.arrows"
    path.write_bytes(content)
    for chunk_bytes in (1, 7, 100, 1000):
        monkeypatch.setattr(stream_follower, "_CHUNK_BYTES", chunk_bytes)
        follower = StreamFollower(path, NOTES)
        assert texts(follower.take()) == [*ALL, "d" * 5000, "e"]
        assert follower.problem is None


def test_columns_of_another_minor_version_are_brought_in_line(tmp_path: Path) -> None:
    wanted = NOTES.append(pa.field("author", pa.utf8()))
    batch = pa.record_batch({"mood": [1], "text": ["hi"], "step": pa.array([3], pa.int32())})
    batch = batch.append_column("written_at", pa.array([0.5]))
    path = tmp_path / "s.arrows"
    path.write_bytes(stream(batch, schema=batch.schema)[0])
    follower = StreamFollower(path, wanted)
    (taken,) = follower.take()
    assert taken.to_pylist() == [{"step": 3, "text": "hi", "written_at": 0.5, "author": None}]


def test_a_stream_without_a_needed_column_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.arrows"
    batch = pa.record_batch({"step": [1]})
    path.write_bytes(stream(batch, schema=batch.schema)[0])
    follower = StreamFollower(path, NOTES)
    assert follower.take() == []
    assert follower.problem is not None
    assert "'text' is missing" in follower.problem


def test_a_table_is_the_union_of_segments_and_ranks(tmp_path: Path) -> None:
    table = TableFollower(tmp_path, NOTES)
    assert not table.take()
    for name in ("1-0000", "0-0001", "0-0000", "10-0000"):
        (tmp_path / f"{name}.arrows").write_bytes(stream(notes(name))[0])
    for stray in ("0-0000.arrows.tmp", "notes.txt", "x-0.arrows", "0-0002.parquet"):
        (tmp_path / stray).write_bytes(b"no")
    taken = table.take()
    assert [each.rank for each in taken] == [0, 0, 1, 10]
    assert texts([each.batch for each in taken]) == ["0-0000", "0-0001", "1-0000", "10-0000"]
    (tmp_path / "0-0002.arrows").write_bytes(stream(notes("new"))[0])
    assert texts([each.batch for each in table.take()]) == ["new"]
    assert table.problems == []


def test_what_the_writer_appends_is_there_at_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    table = TableFollower(tmp_path / "notes", TABLES["notes"])
    for text in ("one", "two", "three"):
        writer.append("notes", notes(text))
        assert texts([each.batch for each in table.take()]) == [text]
    writer.close()
    assert not table.take()
    assert table.problems == []


def test_a_growing_table_keeps_order_and_leaves_earlier_reads_alone() -> None:
    table = GrowingTable(NOTES)
    table.append([notes("a")])
    early = table.read()
    for number in range(300):
        table.append([notes(str(number))])
    assert early["text"].to_pylist() == ["a"]
    assert table.read()["text"].to_pylist() == ["a", *map(str, range(300))]
    assert table.read()["text"].num_chunks < 12


def test_a_stream_that_goes_while_it_is_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0-0000.arrows"
    path.write_bytes(stream(*THREE)[0])
    follower = StreamFollower(path, NOTES)
    size = follower._size

    def goes() -> int:
        found = size()
        path.unlink()
        return found

    monkeypatch.setattr(follower, "_size", goes)
    assert follower.take() == []
    assert follower.is_missing  # so that whoever follows the table looks again
    assert follower.problem is None
