"""The writer: segments end by size, half a message is taken back, old files stay as they are."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sample_runs import SampleRun

from backlight.schema import TABLES
from backlight.store import streams
from backlight.store.flatbuffer import PREFIX
from backlight.store.layout import list_sources
from backlight.store.messages import check, message_length
from backlight.store.reader import RunReader
from backlight.store.stream_follower import StreamFollower
from backlight.store.writer import RunWriter, create_run_folder


def read(path: Path) -> RunReader:
    reader = RunReader(path)
    reader.refresh()
    return reader


def column_of(file: Path, name: str) -> list[Any]:
    """A column of the notes in a stream, which are read with their checksums."""
    taken = StreamFollower(file, TABLES["notes"]).take()
    return [value for batch in taken for value in batch[name].to_pylist()]


def test_segments_end_by_size_and_each_is_a_whole_stream(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEGMENT_BYTES", 50_000)
    run = SampleRun(root, "p", "r", sites=8, seed=0)
    reader = read(run.path)
    for step in range(30):
        run.append_step(step)
        reader.refresh()
        assert reader.rows["stats"] == (step + 1) * len(run.places)
    run.end("finished")
    files = sorted((run.path / "stats").iterdir())
    assert len(files) > 4
    assert [file.name for file in files] == [f"0-{n:04}.arrows" for n in range(len(files))]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 50_000 + 20_000
    rows = sum(pa.ipc.open_stream(file).read_all().num_rows for file in files)
    assert rows == 30 * len(run.places)
    assert list_sources(run.path / "steps").streams[0].name == "0-0000.arrows"


def test_any_reader_of_arrow_reads_what_is_not_closed_yet(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=3, seed=0)
    run.append_step(0)
    run.append_step(1)
    with pa.ipc.open_stream(run.path / "stats" / "0-0000.arrows") as stream:
        assert stream.read_next_batch().num_rows == len(run.places)
        assert stream.read_next_batch()["step"].to_pylist() == [1] * len(run.places)
    run.end(None)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_half_a_message_is_taken_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    run = SampleRun(root, "p", "r", sites=3, seed=0)
    run.append_step(0)

    def half(descriptor: int, pieces: list[Any]) -> int:
        os.write(descriptor, b"".join(pieces)[:100])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(streams, "_write_all", half)
        with pytest.raises(type(error)):
            run.append_step(1)
    run.append_step(2)
    reader = read(run.path)
    assert reader.snapshot.recorded_steps.tolist() == [0, 2]
    assert reader.problems == []
    run.end(None)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """No file can become larger, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_segment_that_cannot_be_begun_leaves_nothing(root: Path) -> None:
    writer = RunWriter(create_run_folder(root, "p", "r"))
    note = {"text": "note", "written_at": 0.0}
    before = sorted(Path("/proc/self/fd").iterdir())
    with files_of_at_most(100), pytest.raises(OSError, match="too large"):  # half an opening
        writer.append_rows("notes", [{"step": 0, **note}])
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert list((writer.path / "notes").iterdir()) == []
    writer.append_rows("notes", [{"step": 1, **note}])
    writer.close()
    (file,) = (writer.path / "notes").iterdir()
    assert column_of(file, "step") == [1]


def test_half_a_packed_message_is_taken_back(root: Path) -> None:
    writer = RunWriter(create_run_folder(root, "p", "r"))
    notes = [{"step": step, "text": "note" * 500, "written_at": 0.0} for step in range(3)]
    writer.append_rows("notes", notes[:1])
    file = writer.path / "notes" / "0-0000.arrows"
    size = file.stat().st_size
    # In the midst of the next one.
    with files_of_at_most(size + 700), pytest.raises(OSError, match="too large"):
        writer.append_rows("notes", notes[1:2])
    assert file.stat().st_size == size
    writer.append_rows("notes", notes[2:])
    writer.close()
    assert column_of(file, "step") == [0, 2]


def test_a_packed_message_of_any_length_has_the_checksum_of_zlib(root: Path) -> None:
    writer = RunWriter(create_run_folder(root, "p", "r"))
    lengths = [*range(300), 4095, 4096, 4097, 100_003]
    for length in lengths:
        text = "".join(map(chr, (33 + place % 90 for place in range(length))))
        writer.append_rows("notes", [{"step": length, "text": text, "written_at": 0.5}])
    writer.close()
    content = pa.py_buffer((writer.path / "notes" / "0-0000.arrows").read_bytes())
    position, numbers = message_length(content, 0), []
    while (length := message_length(content, position)) > PREFIX.size:
        numbers.append(check(content.slice(position, length))[1])  # by zlib
        position += length
    assert numbers == list(range(len(lengths)))
    texts = column_of(writer.path / "notes" / "0-0000.arrows", "text")
    assert [len(text) for text in texts] == lengths


def test_writing_imports_neither_duckdb_nor_parquet() -> None:
    code = (
        "import sys, backlight.store.writer, backlight.store.resume;"
        "print([m for m in ('duckdb', 'pyarrow.parquet', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_new_writer_never_writes_into_old_files(root: Path) -> None:
    run = SampleRun(root, "p", "r", sites=3, seed=0)
    run.append_step(0)
    run.end("finished")
    before = {f: f.read_bytes() for f in run.path.rglob("*.arrows")}
    again = RunWriter(run.path)
    again.append_rows("notes", [{"step": 1, "text": "again", "written_at": 0.0}])
    again.close()
    assert {f: f.read_bytes() for f in before} == before
    assert (run.path / "notes" / "0-0001.arrows").exists()


def test_a_graph_that_cannot_be_written_leaves_no_part_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(file: Path, text: str, **_: object) -> None:
        file.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = RunWriter(create_run_folder(root, "tests", "full"))
    writer.write_graph("first", {"nodes": []})
    monkeypatch.setattr(Path, "write_text", fill_up)
    with pytest.raises(OSError, match="No space"):
        writer.write_graph("second", {"nodes": []})
    assert [file.name for file in (writer.path / "graphs").iterdir()] == ["first.json"]
