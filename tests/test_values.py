"""Raw values on disk: what is written is what is read, without torch, and damage is said so."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from backlight.errors import BacklightError
from backlight.store.values import (
    STORED_AS,
    Extent,
    KeptValues,
    StepValues,
    fit,
    read_values,
    values_path,
    write_values,
)

SMALL_FLOATS = [name for name in STORED_AS if hasattr(ml_dtypes, name)]


def kept(array, dtype, **changes):
    rows, columns = array.shape[:2]
    entry = KeptValues(
        site=3,
        quantity="grad",
        backward="actor",
        iteration=2,
        dtype=dtype,
        shape=(9, 4, columns),
        batch_dim=0,
        samples=tuple(range(rows)),
        data_indices=tuple(100 + row for row in range(rows)),
        neurons=3 * columns,
        neuron_step=3,
        array=array,
    )
    return replace(entry, **changes)


def numbers(dtype):
    """All sorts of bit patterns: two rows of 128."""
    bits = np.arange(256, dtype=np.uint8).reshape(2, 128)
    stored = STORED_AS[dtype]
    if dtype == "bool":
        return bits % 3 == 0
    if dtype == "complex32":
        return np.stack([bits, 255 - bits], axis=2).astype(np.float16)
    if dtype.startswith("complex"):
        return (bits + 1j * bits[::-1]).astype(dtype)
    if stored == dtype:
        return (bits.astype(np.int64) - 100).astype(dtype)
    return (bits.astype(np.uint16) * 257).astype(stored)


def expected(dtype):
    array = numbers(dtype)
    if dtype == "complex32":
        return array[..., 0] + 1j * array[..., 1].astype(np.float32)
    return array.view(getattr(ml_dtypes, dtype)) if dtype in SMALL_FLOATS else array


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with every dtype in it."""
    folder = tmp_path_factory.mktemp("run")
    entries = tuple(kept(numbers(dtype), dtype) for dtype in STORED_AS)
    write_values(folder, 1, 20, StepValues(entries))
    return values_path(folder, 1, 20)


@pytest.mark.parametrize("dtype", STORED_AS)
def test_a_dtype_is_read_as_it_was_written(written, dtype):
    entry = next(entry for entry in read_values(written) if entry.dtype == dtype)
    want = expected(dtype)
    assert entry.note == ""
    assert entry.array.dtype == (np.complex64 if dtype == "complex32" else want.dtype)
    if dtype in SMALL_FLOATS:
        assert entry.array.tobytes() == want.tobytes()
    else:
        np.testing.assert_array_equal(entry.array, want)


def test_what_a_tensor_was_cut_from_is_read_as_it_was_written(tmp_path):
    entry = kept(np.ones((2, 4), np.float32), "float32", data_indices=(None, 7), samples=(5, 1))
    write_values(tmp_path, 0, 3, StepValues((entry,)))
    found = read_values(tmp_path / "values" / "0-3.safetensors")[0]
    assert replace(found, array=None).__repr__() == replace(entry, array=None).__repr__()
    assert found.neuron_positions.tolist() == [0, 3, 6, 9]


def test_a_tensor_without_a_batch_has_columns_only(tmp_path):
    entry = kept(np.ones((1, 4)), "float64", batch_dim=None, samples=(), data_indices=())
    write_values(tmp_path, 0, 0, StepValues((replace(entry, array=np.arange(4.0)),)))
    assert read_values(values_path(tmp_path, 0, 0))[0].array.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_entries_come_in_the_order_in_which_they_were_seen(tmp_path):
    entries = [kept(np.full((1, 2), n, np.int32), "int32", site=99 - n // 2) for n in range(24)]
    write_values(tmp_path, 0, 0, StepValues(tuple(entries)))
    found = read_values(values_path(tmp_path, 0, 0))
    assert [entry.array[0, 0] for entry in found] == list(range(24))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16"])
def test_nothing_can_be_kept_too(tmp_path, shape, dtype):
    array = np.zeros(shape, dtype if dtype != "bfloat16" else np.uint16)
    write_values(tmp_path, 0, 0, StepValues((kept(array, dtype),)))
    assert read_values(values_path(tmp_path, 0, 0))[0].array.shape == shape


def test_an_array_need_not_be_contiguous(tmp_path):
    array = np.arange(24, dtype=np.complex64).reshape(4, 6).T[::2]
    write_values(tmp_path, 0, 0, StepValues((kept(array, "complex64"),)))
    np.testing.assert_array_equal(read_values(values_path(tmp_path, 0, 0))[0].array, array)


def test_chosen_neurons_are_read_as_they_were_written(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    chosen = kept(array, "float32", neurons=9, neuron_step=1, chosen_neurons=(8, 0, 4))
    spread = kept(array, "float32", site=4)
    write_values(tmp_path, 0, 0, StepValues((chosen, spread)))
    found = read_values(values_path(tmp_path, 0, 0))
    assert [entry.chosen_neurons for entry in found] == [(8, 0, 4), None]
    assert [entry.neuron_positions.tolist() for entry in found] == [[8, 0, 4], [0, 3, 6]]
    # Whoever knows nothing of chosen neurons reads the rest of the file as before.
    with safe_open(values_path(tmp_path, 0, 0), framework="numpy") as file:
        told = {**file.metadata()}
    assert told.pop("crc32").isdigit()
    described = [json.loads(text) for text in told.values()]
    assert {each["site"]: "chosen_neurons" in each for each in described} == {3: True, 4: False}


@pytest.mark.parametrize("name", ['"', "\\", "a\nb", "é", "\U0001f600", "\ud800", "}", "\x00", ""])
def test_a_backward_pass_may_have_any_name(tmp_path, name):
    entry = kept(np.ones((2, 4), np.float32), "float32", backward=name)
    write_values(tmp_path, 0, 0, StepValues((entry,)))
    assert read_values(values_path(tmp_path, 0, 0))[0].backward == name


def test_what_was_read_can_be_written_again(tmp_path, written):
    found = read_values(written)
    found = [entry for entry in found if entry.dtype != "complex32"]  # which NumPy has not
    write_values(tmp_path, 0, 0, StepValues(tuple(found)))
    for have, want in zip(read_values(values_path(tmp_path, 0, 0)), found, strict=True):
        assert have.array.dtype == want.array.dtype
        assert have.array.tobytes() == want.array.tobytes()


def test_every_array_is_aligned(tmp_path):
    names = ["uint8", "float64", "bool", "int16", "bfloat16", "complex64", "float32"]
    entries = [kept(numbers(name)[:, :3], name) for name in names]
    write_values(tmp_path, 0, 0, StepValues(tuple(entries)))
    content = values_path(tmp_path, 0, 0).read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    sizes = {"BOOL": 1, "U8": 1, "U16": 2, "I16": 2, "F32": 4, "F64": 8}
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    assert all(tensor["data_offsets"][0] % sizes[tensor["dtype"]] == 0 for tensor in tensors)
    found = read_values(values_path(tmp_path, 0, 0))
    assert [entry.dtype for entry in found] == names


def test_the_size_is_the_size_of_the_file(tmp_path):
    size = write_values(tmp_path, 0, 0, StepValues((kept(np.ones((2, 9)), "float64"),)))
    assert size == values_path(tmp_path, 0, 0).stat().st_size
    assert [file.name for file in (tmp_path / "values").iterdir()] == ["0-0.safetensors"]


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    values_path(tmp_path, 0, 0).mkdir(parents=True)  # the name is taken by a folder
    with pytest.raises(OSError, match="irectory"):
        write_values(tmp_path, 0, 0, StepValues((kept(np.ones((2, 9)), "float64"),)))
    assert [file.name for file in (tmp_path / "values").iterdir()] == ["0-0.safetensors"]


def test_any_tool_reads_the_file(written):
    arrays = load_file(written)
    assert len(arrays) == len(STORED_AS)
    assert {array.dtype.name for array in arrays.values()} == set(STORED_AS.values())


READ = """
import json, sys
if "--without" in sys.argv:
    sys.modules["ml_dtypes"] = None
from backlight.store.values import read_values
entries = read_values(sys.argv[1])
found = {e.dtype: (e.array.dtype.name, e.note, float(abs(e.array[0, 1]))) for e in entries}
assert "torch" not in sys.modules
print(json.dumps(found))
"""


def read_elsewhere(path, *arguments):
    command = [sys.executable, "-c", READ, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_without_torch_reads_everything(written):
    found = read_elsewhere(written)
    assert set(found) == set(STORED_AS)
    assert found["bfloat16"][0] == "bfloat16"


def test_without_ml_dtypes_bits_are_called_bits(written):
    found = read_elsewhere(written, "--without")
    assert found["bfloat16"] == [
        "float32",
        "bfloat16, widened to float32",
        float(expected("bfloat16")[0, 1]),
    ]
    dtype, note, number = found["float8_e5m2"]
    assert (dtype, number) == ("uint8", 1.0)
    assert note == "the bits of float8_e5m2: install ml_dtypes to read them as numbers"


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(BacklightError, match=r"^There are no raw values .*gone.* were kept\.$"):
        read_values(tmp_path / "gone.safetensors")


def test_a_torn_file_is_said_so_wherever_it_is_torn(tmp_path, written):
    whole = written.read_bytes()
    torn = tmp_path / "torn.safetensors"
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        torn.write_bytes(whole[:length])
        with pytest.raises(BacklightError, match=r"torn\.safetensors") as caught:
            read_values(torn)
        assert str(caught.value).count("\n") == 0


@given(place=st.integers(0, 3000), byte=st.integers(0, 255))
def test_a_damaged_byte_is_an_error_for_people_or_another_value(written, place, byte):
    content = bytearray(written.read_bytes())
    content[place] = byte
    damaged = written.with_name("damaged.safetensors")
    damaged.write_bytes(content)
    with suppress(BacklightError):
        assert all(entry.array.shape == entry.array_shape for entry in read_values(damaged))


DESCRIBED = {
    "site": 3,
    "quantity": "grad",
    "backward": "",
    "iteration": -1,
    "dtype": "float32",
    "shape": [9, 4, 3],
    "batch_dim": 0,
    "samples": [0, 8],
    "data_indices": [None, -5],
    "neurons": 9,
    "neuron_step": 3,
}


def write_by_hand(path, text, array=None):
    array = np.ones((2, 3), np.float32) if array is None else array
    save_file({"0.3.grad.2": array}, path, metadata={"0.3.grad.2": text})
    return path


def test_a_file_without_chosen_neurons_is_read_as_before(tmp_path):
    (entry,) = read_values(write_by_hand(tmp_path / "old.safetensors", json.dumps(DESCRIBED)))
    assert entry.chosen_neurons is None
    assert entry.neuron_positions.tolist() == [0, 3, 6]
    assert (entry.samples, entry.data_indices) == ((0, 8), (None, -5))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("site", "3"),
        ("site", -1),
        ("site", True),
        ("site", 10**30),
        ("site", None),
        ("quantity", 3),
        ("quantity", ["grad"]),
        ("backward", None),
        ("backward", {"a": 1}),
        ("iteration", 0.5),
        ("iteration", 2**63),
        ("dtype", "float64"),
        ("dtype", "object"),
        ("dtype", []),
        ("dtype", None),
        ("shape", 3),
        ("shape", "934"),
        ("shape", [9, -4]),
        ("shape", [9, [4]]),
        ("shape", [9, 10**30]),
        ("batch_dim", 3),
        ("batch_dim", -1),
        ("batch_dim", "0"),
        ("batch_dim", None),
        ("samples", [1]),
        ("samples", [0, 9]),
        ("samples", [0, -1]),
        ("samples", [0, 0.5]),
        ("samples", "01"),
        ("samples", 2),
        ("samples", {"0": 1, "1": 2}),
        ("data_indices", [None]),
        ("data_indices", [None, "a"]),
        ("data_indices", [None, 10**30]),
        ("data_indices", "ab"),
        ("data_indices", None),
        ("neurons", 10**30),
        ("neurons", 5),
        ("neurons", -9),
        ("neurons", 9.0),
        ("neuron_step", 0),
        ("neuron_step", -3),
        ("neuron_step", "3"),
        ("chosen_neurons", [0, 1]),
        ("chosen_neurons", [0, 1, 9]),
        ("chosen_neurons", [0, 1, -1]),
        ("chosen_neurons", [0, 1, "2"]),
        ("chosen_neurons", "012"),
        ("chosen_neurons", 3),
        ("array", [1]),
        ("stranger", 1),
    ],
)
def test_metadata_that_does_not_fit_the_values_is_refused(tmp_path, key, value):
    text = json.dumps({**DESCRIBED, key: value})
    with pytest.raises(BacklightError, match="torn or damaged") as caught:
        read_values(write_by_hand(tmp_path / "odd.safetensors", text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("key", DESCRIBED)
def test_metadata_that_is_not_all_there_is_refused(tmp_path, key):
    text = json.dumps({name: value for name, value in DESCRIBED.items() if name != key})
    with pytest.raises(BacklightError, match="torn or damaged"):
        read_values(write_by_hand(tmp_path / "odd.safetensors", text))


@pytest.mark.parametrize(
    "text", ["", "3", "null", "[1]", '"a"', "{", "[" * 100_000, "1" * 5000, "{}", "NaN", "\x00"]
)
def test_metadata_that_describes_nothing_is_refused(tmp_path, text):
    with pytest.raises(BacklightError, match="torn or damaged") as caught:
        read_values(write_by_hand(tmp_path / "odd.safetensors", text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_neurons_that_nobody_can_list_are_refused(tmp_path):
    described = {**DESCRIBED, "samples": [], "data_indices": [], "neurons": 10**10}
    array = np.empty((0, -(-(10**10) // 3)), np.float32)
    with pytest.raises(BacklightError, match="torn or damaged"):
        read_values(write_by_hand(tmp_path / "odd.safetensors", json.dumps(described), array))


def test_a_safetensors_file_of_someone_else_is_refused(tmp_path):
    save_file({"weight": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(BacklightError, match=r"model\.safetensors"):
        read_values(tmp_path / "model.safetensors")


# -- the budget

EXTENTS = st.lists(
    st.builds(
        Extent,
        samples=st.integers(0, 40),
        neurons=st.integers(0, 9000),
        neuron_step=st.integers(1, 3),
        item_bytes=st.sampled_from([1, 2, 4, 8, 16]),
        is_open=st.booleans(),
        has_positions=st.booleans(),
    ),
    max_size=12,
)


@given(wanted=EXTENTS, budget=st.integers(0, 1 << 20))
def test_what_is_kept_fits_and_is_part_of_what_was_wanted(wanted, budget):
    found = fit(wanted, budget)
    assert sum(extent.file_bytes for extent in found) <= budget
    for want, have in zip(wanted, found, strict=True):
        assert have.samples <= want.samples
        assert have.neuron_step % want.neuron_step == 0
        assert have.neurons == want.neurons
        if want.is_open:
            assert have.samples in (0, want.samples)


@given(wanted=EXTENTS)
def test_within_the_budget_nothing_is_lost(wanted):
    assert fit(wanted, sum(extent.file_bytes for extent in wanted)) == wanted


@given(wanted=EXTENTS, budget=st.integers(0, 1 << 20))
def test_whoever_lost_something_was_as_large_as_all_that_is_left(wanted, budget):
    found = fit(wanted, budget)
    cut = [want.file_bytes for want, have in zip(wanted, found, strict=True) if want != have]
    assert all(size >= max(have.file_bytes for have in found) for size in cut)


def test_neurons_go_first_then_samples_then_the_tensor():
    extent = Extent(samples=4, neurons=200, neuron_step=1, item_bytes=4)
    seen = []
    while extent.samples:
        seen.append((extent.samples, extent.columns))
        extent = extent.less()
    assert seen == [(4, 200), (4, 100), (4, 50), (2, 50), (1, 50)]
