"""Statistics and sketches against a slow, obvious NumPy version, for every dtype and both paths."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backlight.reduce import native
from backlight.reduce.readable import state_of, states_of
from backlight.reduce.reducer import Reducer
from backlight.reduce.spec import NO_UNITS
from backlight.schema import PLAIN_STATS, STATISTICS, sketch_edges, sketch_key

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]


def observe(tensor, *, use_native=True, unit_dim=NO_UNITS):
    reducer = Reducer(use_native=use_native)
    reducer.observe(tensor, site=3, quantity=1, iteration=2, unit_dim=unit_dim)
    return reducer.take(step=9).to_pylist()[0]


def as_numbers(tensor):
    """The elements as NumPy float64, by torch's own conversion."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64).numpy().astype(np.float64)


def naive_statistics(x):
    x = x.reshape(-1)
    finite = x[np.isfinite(x)].astype(np.longdouble)
    row = {
        "count": x.size,
        "zeros": int((x == 0).sum()),
        "nans": int(np.isnan(x).sum()),
        "infs": int(np.isinf(x).sum()),
        **dict.fromkeys(STATISTICS),
    }
    if finite.size:
        mean = finite.sum() / finite.size
        row |= {
            "mean": mean,
            "std": np.sqrt(((finite - mean) ** 2).sum() / finite.size),
            "min": finite.min(),
            "max": finite.max(),
            "abs_mean": np.abs(finite).sum() / finite.size,
            "abs_max": np.abs(finite).max(),
            "rms": np.sqrt((finite**2).sum() / finite.size),
        }
    return row


def naive_sketch(x):
    return Counter(sketch_key(float(v)) for v in x.reshape(-1) if np.isfinite(v) and v != 0)


def naive_units(x, unit_dim):
    dead = constant = 0
    for unit in np.moveaxis(x, unit_dim, 0):
        dead += bool((unit == 0).all())
        constant += all(np.array_equal(sample, unit[0]) for sample in unit)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = x.std(axis=0)
    known = spread[np.isfinite(spread)]
    return {
        "units": x.shape[unit_dim],
        "dead_units": dead,
        "constant_units": constant,
        "batch_std": known.mean() if known.size else np.nan,
    }


def assert_row(row, tensor, *, check_units=None):
    numbers = as_numbers(tensor)
    expected = naive_statistics(numbers)
    largest = expected["abs_max"] or 0
    for name, value in expected.items():
        if value is None or isinstance(value, int):
            assert row[name] == value, name
        else:
            # A mean or a spread that cancels to nothing is as exact as its largest element allows.
            assert row[name] == pytest.approx(float(value), rel=1e-9, abs=1e-13 * float(largest)), (
                name
            )
    assert Counter(
        dict(zip(row["sketch_keys"], row["sketch_counts"], strict=True))
    ) == naive_sketch(numbers)
    assert row["sketch_keys"] == sorted(set(row["sketch_keys"]))
    assert row["shape"] == list(tensor.shape)
    assert row["dtype"] == str(tensor.dtype).removeprefix("torch.")
    if check_units is not None:
        for name, value in naive_units(numbers, check_units).items():
            assert row[name] == pytest.approx(value, rel=1e-6, nan_ok=True), name


@st.composite
def tensors(draw, dtype):
    """Tensors of any bits: subnormals, signed zeros, infinities, NaN with any payload."""
    size = draw(st.sampled_from([0, 1, 2, 7, 31, 1025, 3000]))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    width = torch.empty((), dtype=dtype).element_size()
    if dtype is torch.bool:
        return torch.from_numpy(generator.integers(0, 2, size).astype(bool))
    raw = generator.integers(0, 256, size * width, dtype=np.uint8)
    style = draw(st.sampled_from(["any bits", "small", "one value", "many zeros"]))
    tensor = torch.from_numpy(raw).view(dtype) if size else torch.empty(0, dtype=dtype)
    if style == "small":
        tensor = torch.from_numpy(generator.normal(size=size)).to(dtype)
    elif style == "one value" and size:
        tensor = tensor[:1].expand(size)
    elif style == "many zeros" and size:
        keep = torch.from_numpy(generator.integers(0, 2, size).astype(bool))
        tensor = torch.where(
            keep, tensor.to(torch.complex128 if dtype.is_complex else torch.float64), 0
        )
        tensor = (tensor.real if not dtype.is_complex else tensor).to(dtype)
    return tensor


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + UNSIGNED + COMPLEX, ids=str)
@given(data=st.data())
def test_statistics_equal_the_naive_ones(dtype, use_native, data):
    tensor = data.draw(tensors(dtype))
    assert_row(observe(tensor, use_native=use_native), tensor)


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int32], ids=str
)
@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 2**31),
)
def test_any_strides_and_units(dtype, use_native, shape, order, seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(shape, generator=generator) * 4).to(dtype)
    tensor[:, 0] = 0
    if shape[0] > 2:
        tensor[1] = tensor[0]
    dims = list(range(len(shape)))
    order.shuffle(dims)
    tensor = tensor.permute(dims)
    if tensor.shape[-1] > 2:
        tensor = tensor[..., ::2]
    unit_dim = order.randrange(1, len(shape))
    row = observe(tensor, use_native=use_native, unit_dim=unit_dim)
    assert_row(row, tensor, check_units=unit_dim if tensor.shape[0] > 1 else None)
    if tensor.shape[0] < 2:
        assert row["units"] is None


@pytest.fixture(params=[1, 8, 16])
def lanes(request):
    if native.use_lanes(request.param) != request.param:
        pytest.skip(f"this processor does not work on {request.param} floats at a time")
    yield request.param
    native.use_lanes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(37,), (5, 1000), (3, 17, 33), (70, 40, 16), (9000, 3)], ids=str)
def test_every_width_of_vectors_sees_the_same(lanes, dtype, shape):
    generator = torch.Generator().manual_seed(len(shape))
    tensor = torch.randn(shape, generator=generator) ** 5
    tensor[tensor.abs() < 0.01] = 0
    tensor[0].fill_(1e-40)  # a subnormal float32
    tensor[-1] = tensor[0]
    tensor = tensor.to(dtype)
    units = 1 if tensor.dim() > 1 else NO_UNITS
    assert_row(observe(tensor, unit_dim=units), tensor, check_units=units if units > 0 else None)
    tensor.view(-1)[3:40:11] = float("nan")
    tensor.view(-1)[4:40:7] = -float("inf")
    assert_row(observe(tensor, unit_dim=units), tensor, check_units=units if units > 0 else None)


def _mixed(generator):
    """Blocks of elements that are nowhere near each other: no window fits two of them."""
    scales = torch.tensor([1e-30, 1.0, 1e30, 0.0]).repeat(32).repeat_interleave(512)
    return torch.randn(len(scales), generator=generator) * scales


# Tensors that are long enough to be counted by twos, where the processor does so.
COUPLES = {
    "normal": lambda g: torch.randn(70_001, generator=g),
    "half zeros": lambda g: torch.randn(40_000, generator=g).relu(),
    "all zeros": lambda g: torch.zeros(10_000),
    "zeros first": lambda g: torch.cat([torch.zeros(20_000), torch.randn(20_000, generator=g)]),
    "all alike": lambda g: torch.full((300_000,), -1.5),
    "two values": lambda g: torch.where(torch.rand(200_000, generator=g) < 0.5, 1.0, -3.0),
    "wide": lambda g: torch.randn(50_000, generator=g) ** 9,
    "squares": lambda g: torch.randn(50_000, generator=g).square() * 1e-12,
    "blocks": _mixed,
    "largest": lambda g: (torch.rand(20_000, generator=g) * 2 - 1) * 3.4e38,
    "smallest": lambda g: torch.randn(20_000, generator=g) * 1e-37,
    "subnormal": lambda g: torch.randn(20_000, generator=g) * 1e-40,
    "decayed": lambda g: torch.randn(60_000, generator=g) * torch.logspace(-45, 0, 60_000),
    "grows": lambda g: torch.randn(60_000, generator=g) * torch.logspace(-30, 30, 60_000),
}


@pytest.mark.parametrize("kind", COUPLES)
@pytest.mark.parametrize("samples", [0, 16, 17, 2100])
def test_counting_by_twos_misses_nothing(lanes, kind, samples):
    tensor = COUPLES[kind](torch.Generator().manual_seed(3))
    if samples:
        positions = max(len(tensor) // samples // 16, 1) * 16  # whole vectors of them
        tensor = tensor[torch.arange(samples * positions) % len(tensor)].view(samples, positions)
    units = 1 if samples else NO_UNITS
    assert_row(observe(tensor, unit_dim=units), tensor, check_units=units if samples else None)
    tensor.view(-1)[::1000] = float("nan")
    tensor.view(-1)[7::1001] = float("inf")
    assert_row(observe(tensor, unit_dim=units), tensor, check_units=units if samples else None)


@pytest.mark.parametrize("kind", ["normal", "wide", "blocks", "grows"])
def test_how_elements_are_counted_changes_no_other_number(kind):
    tensor = COUPLES[kind](torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    rows = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            rows.append(observe(tensor))
            # Behind others, so that what was counted before leaves nothing behind.
            table = Reducer()
            table.observe_many([(tensor * 3, 1, 0), (tensor, 3, 1), (tensor[:3000], 2, 0)], 2)
            rows.append(table.take(step=9).to_pylist()[1] | {"order": 0})
    finally:
        torch.set_num_threads(before)
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_chunks_and_threads_give_the_same_bits(threads):
    tensor = torch.randn(3, 200_001, generator=torch.Generator().manual_seed(1)) ** 3
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = observe(tensor, unit_dim=1)
        torch.set_num_threads(threads)
        together = observe(tensor, unit_dim=1)
    finally:
        torch.set_num_threads(before)
    assert together == alone
    assert_row(together, tensor)


def test_a_large_mean_does_not_swallow_the_spread():
    tensor = torch.randn(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    row = observe(tensor + 1e8)
    assert row["std"] == pytest.approx(float((tensor + 1e8).std(correction=0)), rel=1e-6)


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("magnitude", [1e-320, 1e-200, 1e200, 1e308])
def test_extreme_values_keep_their_statistics(magnitude, use_native):
    tensor = torch.tensor([magnitude, -magnitude, magnitude / 2, 0.0], dtype=torch.float64)
    assert_row(observe(tensor, use_native=use_native), tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
@pytest.mark.parametrize("size", [1, 9, 2000])
def test_a_tensor_of_one_special_value(value, dtype, size):
    tensor = torch.full((size,), value, dtype=dtype)
    assert_row(observe(tensor), tensor)


def test_subnormals_survive_a_processor_that_flushes_them():
    tensor = torch.tensor([1e-40, -1e-45, 6e-8], dtype=torch.float32)
    half = torch.tensor([6e-8, 0.5], dtype=torch.float16)
    if not torch.set_flush_denormal(True):
        pytest.fail("this processor cannot flush denormals, so the case cannot be tried")
    try:
        rows = observe(tensor), observe(half)
    finally:
        torch.set_flush_denormal(False)
    assert sum(rows[0]["sketch_counts"]) == 3
    assert rows[0]["zeros"] == rows[1]["zeros"] == 0
    assert_row(rows[1], half)


def test_views_that_are_not_what_they_seem():
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert_row(observe(conjugate), conjugate)
    negative = conjugate.imag
    assert negative.is_neg()
    assert_row(observe(negative), negative)
    sparse = torch.sparse_coo_tensor([[0, 2]], [5.0, -1.0], (4,), check_invariants=True)
    assert observe(sparse)["zeros"] == 2


def test_observing_changes_nothing():
    tensor = torch.randn(8, 8, requires_grad=True)
    version, state = tensor._version, torch.get_rng_state()
    for use_native in (True, False):
        observe(tensor, use_native=use_native, unit_dim=1)
    assert tensor._version == version
    assert tensor.grad_fn is None and tensor._backward_hooks is None
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_of_both_paths_come_in_one_batch_and_in_order():
    reducer = Reducer()
    reducer.observe(torch.ones(2), site=0, quantity=0)
    reducer.observe(torch.ones(2, dtype=torch.complex64), site=1, quantity=0)
    reducer.observe(torch.ones(2), site=2, quantity=1)
    batch = reducer.take(step=4)
    order = dict(zip(batch["order"].to_pylist(), batch["site"].to_pylist(), strict=True))
    assert order == {0: 0, 1: 1, 2: 2}
    assert set(batch["step"].to_pylist()) == {4}
    assert reducer.take(step=5) is None


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: v != 0))
def test_a_value_lies_in_its_bin(value):
    low, high = sketch_edges(sketch_key(value))
    assert low <= value <= high


def test_the_kernel_is_compiled_here():
    assert native.is_available(), native.why_unavailable()


ITEM_DTYPES = [*FLOATS, *INTEGERS, *UNSIGNED, torch.complex64]


def some_tensors(generator):
    """Tensors of every kind: of any size, dtype and layout, and some for torch only."""
    for dtype in ITEM_DTYPES:
        for shape in [(), (0,), (5,), (64, 33), (4, 3, 2, 2)]:
            yield (torch.randn(shape, generator=generator) * 3).to(dtype)
    yield torch.randn(300, 501, generator=generator).t()
    yield torch.randn(70_000, generator=generator)[::2]
    yield torch.nn.Parameter(torch.randn(200, 200, generator=generator))
    yield torch.tensor([1 + 2j]).conj().imag
    yield torch.full((3, 3), torch.nan)
    yield torch.tensor([1e-320, 1e300], dtype=torch.float64)


@pytest.mark.parametrize("use_exchange", [True, False], ids=["exchange", "attributes"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_at_once_equal_one_by_one(threads, use_exchange):
    items = [
        (t, n + 3, n % 4) for n, t in enumerate(some_tensors(torch.Generator().manual_seed(0)))
    ]
    before = torch.get_num_threads()
    alone, together = Reducer(), Reducer()
    native.connect(use_exchange=use_exchange)
    try:
        torch.set_num_threads(1)
        for item in items:
            alone.observe(*item, iteration=2)
        torch.set_num_threads(threads)
        together.observe_many(items, iteration=2)
    finally:
        torch.set_num_threads(before)
        native.connect()
    rows = together.take(step=1)
    assert rows["order"].to_pylist() != sorted(rows["order"].to_pylist())  # torch's rows come last
    # As text, because NaN is not equal to itself.
    assert str(rows.to_pylist()) == str(alone.take(step=1).to_pylist())
    assert len(rows) == len(items) == len({row["order"] for row in rows.to_pylist()})


def test_many_work_without_the_kernel_and_without_items():
    reducer = Reducer(use_native=False)
    reducer.observe_many([])
    assert reducer.take(step=1) is None
    reducer.observe_many([(torch.ones(2), 4, 0), (torch.zeros(3), 5, 1)], iteration=7)
    rows = reducer.take(step=1).to_pylist()
    assert [(row["site"], row["iteration"], row["count"]) for row in rows] == [(4, 7, 2), (5, 7, 3)]


@pytest.mark.parametrize("last", [torch.float32, torch.complex64], ids=str)
def test_a_row_after_many_can_be_repeated(last):
    reducer = Reducer()
    assert reducer.observe_many([(torch.ones(2), 0, 0)]) == []
    reducer.repeat(reducer.observe(torch.full((3,), 2, dtype=last), 1, 0), 2)
    rows = sorted(reducer.take(step=1).to_pylist(), key=lambda row: row["order"])
    assert [row["site"] for row in rows] == [0, 1, 2]
    assert {**rows[2], "site": 1, "order": 1} == rows[1]


def test_items_that_are_none_are_refused():
    with pytest.raises(TypeError, match="tuple"):
        Reducer().observe_many([[torch.ones(2), 0, 0]])


DIFFERENCE_DTYPES = [*FLOATS[:4], torch.int32, torch.complex64]


@pytest.mark.parametrize("dtype", DIFFERENCE_DTYPES, ids=str)
@given(data=st.data())
def test_a_difference_is_that_of_torch(dtype, data):
    new = data.draw(tensors(dtype))
    old = data.draw(st.sampled_from([new.flip(0), new.clone(), new * 0, new.roll(1)]))
    alone, together = Reducer(), Reducer()
    alone.observe(new - old, site=1, quantity=3, iteration=2)
    together.observe_many([(new, 1, 3, old)], iteration=2)
    assert str(together.take(step=1).to_pylist()) == str(alone.take(step=1).to_pylist())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.t().contiguous().t(),  # the same shape, another layout
        lambda t: t[:1].expand_as(t),
        lambda t: t.to(torch.float64),
        lambda t: t[0],  # broadcast
        lambda t: torch.nn.Parameter(t * 0.9),
    ],
)
def test_a_difference_of_unlike_tensors(change):
    new = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    old = change(new * 0.9)
    reducer = Reducer()
    reducer.observe_many([(new, 0, 3, old)])
    assert_row(reducer.take(step=1).to_pylist()[0], (new - old).detach())


def test_differences_of_views_and_chunks():
    generator = torch.Generator().manual_seed(0)
    new, old = (torch.randn(300, 500, generator=generator) for _ in range(2))
    pairs = [(new, old), (new.t(), old.t()), (new[:, ::2], old[:, ::2]), (new[3], old[3])]
    alone, together = Reducer(), Reducer()
    for number, (a, b) in enumerate(pairs):
        alone.observe(a - b, site=number, quantity=3)
    together.observe_many([(a, number, 3, b) for number, (a, b) in enumerate(pairs)])
    expected, found = alone.take(step=1).to_pylist(), together.take(step=1).to_pylist()
    for row, other in zip(found, expected, strict=True):
        assert row.pop("std") == pytest.approx(other.pop("std"), rel=1e-12)
        assert row.pop("mean") == pytest.approx(other.pop("mean"), rel=1e-9, abs=1e-15)
        assert row.pop("rms") == pytest.approx(other.pop("rms"), rel=1e-12)
        assert row.pop("abs_mean") == pytest.approx(other.pop("abs_mean"), rel=1e-12)
        assert row == other


def test_tensors_without_memory_are_left_to_torch():
    meta = torch.empty(3, device="meta")
    table = native.new_table()
    assert table.observe(meta, 0, 0, 0, 0, NO_UNITS) == -1
    assert table.observe(torch.ones(1).to_sparse(), 0, 0, 0, 0, NO_UNITS) == -1
    assert table.observe(torch.ones([1] * 13), 0, 0, 0, 0, NO_UNITS) == -1
    assert table.observe_many([(meta, 0, 0), (torch.ones(1), 0, 0), (meta, 0, 0)], 0, 0) == [0, 2]
    assert len(table) == 1


def test_the_columns_are_those_of_the_schema():
    reducer = Reducer()
    reducer.backwards = ["", "généré"]
    reducer.observe(torch.full((2,), torch.nan), site=0, quantity=3)
    reducer.observe(torch.ones(4, 3), site=1, quantity=5, unit_dim=1)
    batch = reducer.take(step=2**40)
    copy = batch.to_pylist()
    reducer.observe(torch.zeros(100), site=5, quantity=0)  # a batch has its own memory
    batch.validate(full=True)
    assert tuple(PLAIN_STATS.names) == native._kernel.COLUMNS and batch.schema == PLAIN_STATS
    assert batch.to_pylist() == copy
    assert [row["quantity"] for row in copy] == ["update", "grad"]
    assert [row["backward"] for row in copy] == ["", "généré"]
    assert [row["mean"] for row in copy] == [None, 1.0]
    assert [row["units"] for row in copy] == [None, 3]
    assert {row["step"] for row in copy} == {2**40}


def test_a_quantity_without_a_name_is_refused():
    reducer = Reducer()
    reducer.observe(torch.ones(2), site=0, quantity=4)
    with pytest.raises(IndexError, match="no name"):
        reducer.take(step=1)


def test_what_has_no_values_is_left_out_and_said():
    meta, wide = torch.empty(3, device="meta"), torch.ones(2, dtype=torch.complex64)
    for reducer in (Reducer(), Reducer(use_native=False)):
        assert reducer.observe(meta, 0, 0) is None
        items = [(torch.ones(2), 0, 0), (meta, 1, 0), (wide, 2, 0), (torch.ones(3), 3, 3, meta)]
        assert reducer.observe_many(items) == [1, 3]
        rows = reducer.take(step=1).to_pylist()
        assert {row["site"] for row in rows} == {0, 2}


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        (lambda t: t, False),
        (lambda t: t.add_(1), True),
        (lambda t: t.data.mul_(2), True),  # not counted as a change
        (lambda t: t.clone(), True),
    ],
)
def test_a_state_tells_a_change(change, is_told):
    numbers = torch.rand(64, 3, 3, 3, requires_grad=False).to(memory_format=torch.channels_last)
    before = state_of(numbers)
    assert before is not None
    assert (state_of(change(numbers)) != before) is is_told


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_state_tells_every_single_element_and_their_order(count, dtype):
    numbers = torch.zeros(count, dtype=dtype)
    before = state_of(numbers)
    for place in {0, count // 3, count - 1}:
        numbers.data[place] += 1
        assert state_of(numbers) != before
        numbers.data[place] -= 1
        assert state_of(numbers) == before
    numbers.data[0] = 1
    first = state_of(numbers)
    numbers.data.copy_(numbers.roll(1))
    assert (state_of(numbers) != first) is (count > 1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.ones(4, 4)[:, ::2],
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        freed(torch.ones(2)),
    ],
    ids=["empty", "gaps", "meta", "sparse", "freed"],
)
def test_a_state_that_cannot_be_told_is_none(tensor):
    assert state_of(tensor) is None


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 1), (3, 300), (130, 9), (5, 4, 3, 3), (600, 257)])
def test_units_of_any_size(shape, dtype, use_native):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensor[:, : shape[1] // 3] = 0
    tensor[:, shape[1] // 3 : shape[1] // 2] = 0.5
    row = observe(tensor, use_native=use_native, unit_dim=1)
    assert_row(row, tensor, check_units=1)


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_units_that_are_not_finite(dtype, use_native):
    inf, nan = torch.inf, torch.nan
    columns = [
        [nan, nan, nan],
        [inf, inf, inf],
        [inf, 1.0, inf],
        [inf, -inf, inf],
        [0.0, 0.0, nan],
        [0.0, -0.0, 0.0],
        [2.0, 2.0, 2.0],
        [1e-40, 0.0, 0.0],
    ]
    tensor = torch.tensor(columns, dtype=dtype).t()
    row = observe(tensor, use_native=use_native, unit_dim=1)
    assert_row(row, tensor, check_units=1)
    assert (row["dead_units"], row["constant_units"]) == (1, 3)


@pytest.mark.parametrize("use_native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("batch_dim", [0, 1, 2, 3])
def test_any_dimension_can_count_samples(batch_dim, use_native):
    tensor = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))[:, ::2]
    by_sample = tensor.movedim(batch_dim, 0)
    by_sample[:, 1] = 0
    reducer = Reducer(use_native=use_native)
    reducer.observe(tensor, 0, 0, 0, 1, batch_dim)
    (row,) = reducer.take(0).to_pylist()
    assert_row(row, tensor)
    for name, value in naive_units(as_numbers(by_sample), 1).items():
        assert row[name] == pytest.approx(value, rel=1e-6), name


def test_units_in_any_layout_and_on_any_threads():
    tensor = torch.randn(16, 24, 20, 20, generator=torch.Generator().manual_seed(0)).relu()
    tensor[:, 3] = 0
    layouts = [tensor, tensor.contiguous(memory_format=torch.channels_last), tensor[:, :, ::2]]
    before = torch.get_num_threads()
    for layout in layouts:
        rows = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            rows.append(observe(layout, unit_dim=1))
        torch.set_num_threads(before)
        assert rows[0] == rows[1] == rows[2]
        assert_row(rows[0], layout, check_units=1)
        assert rows[0]["dead_units"] == 1


@pytest.mark.parametrize("count", [1, 15, 16, 17, 16384, 16385, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_state_changes_with_any_element_and_is_the_same_however_it_is_read(count, dtype):
    numbers = torch.randn(count).to(dtype)
    before = state_of(numbers)
    assert before is not None and states_of([torch.ones(3), numbers])[1] == before
    assert Reducer().observe_marked(numbers, 0, 1) == before
    for place in {0, count // 2, count - 1}:
        old = numbers[place].item()
        numbers.data[place] = 1e3  # which counts as no change
        assert state_of(numbers) != before
        numbers.data[place] = old
        assert state_of(numbers) == before
    if count > 1:
        first, last = numbers[0].item(), numbers[-1].item()
        numbers.data[0], numbers.data[-1] = last, first  # the order counts too
        assert state_of(numbers) != before


def test_many_states_are_those_of_each_alone_on_any_number_of_threads():
    tensors = [torch.randn(size) for size in (5, 70_000, 0, 16384, 300_001)]
    tensors.append(torch.randn(64, 64)[:, ::2])  # with gaps
    alone = [state_of(tensor) for tensor in tensors]
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert states_of(tensors) == alone
    finally:
        torch.set_num_threads(threads)
    assert [state is None for state in alone] == [False, False, True, False, False, True]


def test_a_row_with_a_state_is_the_row_without():
    tensor = torch.randn(333, 77)
    marked, plain = Reducer(), Reducer()
    marked.observe_marked(tensor, 4, 1, 2)
    plain.observe(tensor, 4, 1, 2)
    assert marked.take(step=1).equals(plain.take(step=1))
