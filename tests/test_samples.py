"""Raw values and statistics of chosen samples, against values taken by hand."""

from __future__ import annotations

import weakref
from math import ceil, nan

import ml_dtypes  # noqa: F401 - bfloat16 and float8 are read as numbers
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from backlight.capture.copies import copy_of, size_of, to_host
from backlight.capture.moments import copied_moments, sample_moments
from backlight.capture.samples import ValueKeeper
from backlight.errors import BacklightError
from backlight.reduce.spec import GRAD, VALUE
from backlight.samples import (
    SampleSelection,
    ValueBytes,
    as_neurons,
    as_selection,
    balanced,
    first,
    highest_loss,
    positions,
)
from backlight.schema import SAMPLES
from backlight.store.values import STORED_AS, read_values, values_path, write_values

# complex32, quantized and nested tensors are made here, and torch warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

DTYPES = [getattr(torch, name) for name in STORED_AS if hasattr(torch, name)]
MOMENTS = ("mean", "abs_mean", "std", "abs_max")


def fill(dtype, *shape, seed=0):
    """A tensor of any dtype, with values of its own range."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(*shape, 2, generator=generator, dtype=torch.float64) * 3
    if dtype.is_complex:
        return torch.view_as_complex(wide).to(dtype)
    return (wide[..., 0].abs() if dtype.itemsize == 1 else wide[..., 0]).to(dtype)


class Elsewhere(torch.Tensor):
    """A tensor that is not simply in the host's memory: its copies are tensors, as on a device."""


def name(dtype):
    return str(dtype).removeprefix("torch.")


def keep(
    tensor,
    selection,
    *,
    batch_dim=0,
    batch_size=None,
    losses=None,
    labels=None,
    is_late=False,
    **limits,
):
    """What is kept of one tensor; `is_late` says only at the end which samples."""
    keeper = ValueKeeper(None if is_late else selection, **limits)
    keeper.begin(batch_size=batch_size, holds_all=is_late)
    keeper.observe(tensor, site=3, quantity=GRAD, iteration=2, batch_dim=batch_dim)
    if losses is not None:
        keeper.losses(losses)
    if labels is not None:
        keeper.categories(labels)
    return keeper.take(step=9, keep=selection if is_late else None)


def from_disk(folder, values):
    write_values(folder, 0, 9, values)
    return read_values(values_path(folder, 0, 9))


def neurons_by_hand(size, neurons):
    """Which of so many neurons are kept."""
    if isinstance(neurons, list):
        return [place for place in dict.fromkeys(neurons) if place < size]
    return list(range(size))[:: max(1, ceil(size / (neurons or 4096)))]


def by_hand(tensor, samples, batch_dim, neurons=None):
    """The values of each sample as Python numbers, by torch's own conversion."""
    kept = []
    for sample in samples:
        flat = tensor.select(batch_dim, sample).reshape(-1).resolve_conj()
        wide = flat.to(torch.complex128 if flat.is_complex() else torch.float64).tolist()
        kept.append([wide[place] for place in neurons_by_hand(len(wide), neurons)])
    return kept


def moments_by_hand(tensor):
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    x = tensor.to(torch.float64).numpy().reshape(-1)
    x = x[np.isfinite(x)].astype(np.longdouble)
    if x.size == 0:
        return [None] * 4
    return [x.mean(), abs(x).mean(), np.sqrt(((x - x.mean()) ** 2).mean()), abs(x).max()]


def assert_moments(rows, tensor, batch_dim):
    for row in rows:
        want = moments_by_hand(tensor.select(batch_dim, row["sample"]))
        have = [row[name] for name in MOMENTS]
        assert [x is None for x in have] == [x is None for x in want]
        if want[0] is not None:
            np.testing.assert_allclose(have, [float(x) for x in want], rtol=1e-9, atol=1e-12)


# -- which samples


def test_selections():
    assert first(3).choose(2, ()) == [0, 1]
    assert positions([4, 1, 4]).choose(5, ()) == [4, 1]
    assert highest_loss(2).choose(4, [1.0, nan, 3.0, 3.0]) == [1, 2]
    assert balanced(5).choose(6, list("aaabbc")) == [0, 3, 5, 1, 4]
    assert balanced(9, "cb").choose(6, list("aaabbc")) == [5, 3, 4]
    assert balanced(2, []).choose(2, list("ab")) == []


@pytest.mark.parametrize("make", [first, highest_loss, balanced])
@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_below_one_is_refused(make, count):
    with pytest.raises(BacklightError, match=r"^The number of samples to keep is .* at least 1\.$"):
        make(count)


@pytest.mark.parametrize("places", [[], [-1], torch.tensor(2)], ids=str)
def test_positions_that_cannot_be_are_refused(places):
    with pytest.raises(BacklightError, match="counted from 0"):
        positions(places)


@given(labels=st.lists(st.sampled_from("abcd"), max_size=30), count=st.integers(1, 12))
def test_balanced_is_as_even_as_it_can_be(labels, count):
    chosen = balanced(count).choose(len(labels), labels)
    assert len(chosen) == len(set(chosen)) == min(count, len(labels))
    taken = {label: sum(labels[place] == label for place in chosen) for label in labels}
    for label, number in taken.items():
        # A category has fewer than another by more than one only if it has no more to give.
        assert number >= max(taken.values()) - 1 or number == labels.count(label)


# -- what is kept


@st.composite
def strided(draw):
    """A tensor, contiguous or permuted, sliced and expanded, and a batch dimension of it."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    tensor = fill(draw(st.sampled_from(DTYPES)), *shape, seed=draw(st.integers(0, 9)))
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    cut = draw(st.integers(0, len(shape) - 1))
    part = slice(draw(st.integers(0, 1)), None, draw(st.integers(1, 2)))
    tensor = tensor[(slice(None),) * cut + (part,)]
    if draw(st.booleans()):
        tensor = tensor.contiguous()
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    if draw(st.booleans()) and tensor.is_complex():
        tensor = tensor.conj()
    if draw(st.booleans()):
        tensor = tensor.as_subclass(Elsewhere)
    return tensor, draw(st.integers(-tensor.dim(), tensor.dim() - 1))


NEURONS = st.one_of(
    st.none(), st.integers(1, 20), st.lists(st.integers(0, 30), min_size=1, max_size=8)
)


def selections():
    return st.one_of(
        st.builds(first, st.integers(1, 6)),
        st.builds(positions, st.lists(st.integers(0, 5), min_size=1)),
        st.builds(highest_loss, st.integers(1, 6)),
        st.builds(balanced, st.integers(1, 6)),
    )


@given(case=strided(), selection=selections(), neurons=NEURONS, is_late=st.booleans())
def test_values_and_statistics_are_those_taken_by_hand(
    tmp_path_factory, case, selection, neurons, is_late
):
    tensor, batch_dim = case
    size = tensor.shape[batch_dim]
    losses = [(7 * place) % 5 for place in range(size)]
    rows, values = keep(
        tensor,
        selection,
        batch_dim=batch_dim,
        losses=losses,
        labels=losses,
        is_late=is_late,
        neurons=as_neurons(neurons),
    )
    chosen = selection.choose(size, losses)
    if not chosen:
        assert rows is None and values is None
        return
    assert rows.schema == SAMPLES
    assert rows["sample"].to_pylist() == chosen
    plain = tensor.as_subclass(torch.Tensor)
    assert_moments(rows.to_pylist(), plain, batch_dim)
    kept = neurons_by_hand(plain.select(batch_dim, 0).numel(), neurons)
    if isinstance(neurons, list) and not kept:
        assert values is None
        return
    (entry,) = from_disk(tmp_path_factory.mktemp("run"), values)
    assert (entry.site, entry.quantity, entry.iteration) == (3, "grad", 2)
    assert entry.dtype == name(tensor.dtype)
    assert entry.shape == tuple(tensor.shape)
    assert entry.samples == tuple(chosen)
    wide = entry.array.astype(np.complex128 if tensor.is_complex() else np.float64)
    assert wide.tolist() == by_hand(plain, chosen, batch_dim, neurons)
    assert entry.neuron_positions.tolist() == kept


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_without_a_batch_is_kept_whole_and_has_no_samples(tmp_path, dtype):
    tensor = fill(dtype, 3, 4)
    rows, values = keep(tensor, first(2), batch_dim=None)
    assert rows is None
    (entry,) = from_disk(tmp_path, values)
    assert (entry.batch_dim, entry.samples, entry.array.shape) == (None, (), (12,))
    wide = entry.array.astype(np.complex128 if dtype.is_complex else np.float64)
    assert [wide.tolist()] == by_hand(tensor.unsqueeze(0), [0], 0)


def test_a_single_number_has_no_batch():
    rows, values = keep(torch.tensor(2.5), first(2))
    assert rows is None
    assert values.entries[0].array.tolist() == [2.5]


@pytest.mark.parametrize("selection", [first(2), highest_loss(2)])
def test_a_dimension_of_another_size_is_not_taken_for_the_batch(selection):
    rows, values = keep(torch.ones(8, 3), selection, batch_size=4, losses=[1.0] * 4)
    assert rows is None
    assert values.entries[0].batch_dim is None
    assert values.entries[0].array.shape == (24,)


@pytest.mark.parametrize("batch_dim", [2, -3])
def test_a_batch_dimension_out_of_range_is_refused(batch_dim):
    with pytest.raises(BacklightError, match=rf"^batch_dim is {batch_dim} .*\[2, 2\].*none\.$"):
        keep(torch.ones(2, 2), first(1), batch_dim=batch_dim)


@pytest.mark.parametrize("selection", [first(2), positions([1]), highest_loss(2), balanced(1)])
def test_an_empty_batch_has_nothing_to_keep(selection):
    assert keep(torch.ones(0, 3), selection, losses=[], labels=[]) == (None, None)


def test_samples_without_values_have_rows_without_statistics():
    rows, values = keep(torch.ones(2, 0), first(2))
    assert [rows[name].to_pylist() for name in MOMENTS] == [[None, None]] * 4
    assert values.entries[0].array.shape == (2, 0)


def test_a_step_of_which_nothing_was_seen_has_nothing_to_write():
    keeper = ValueKeeper(first(1))
    keeper.begin(batch_size=4)
    assert keeper.take(0) == (None, None)


def test_sparse_and_quantized_tensors_are_kept_by_their_values():
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert keep(dense.to_sparse(), first(2))[1].entries[0].array.tolist() == dense.tolist()
    kept = keep(torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8), first(2))
    assert kept[1].entries[0].array.tolist() == dense.tolist()


def test_tensors_without_values_are_left_out():
    keeper = ValueKeeper(first(1))
    keeper.begin()
    keeper.observe(torch.ones(2, 2, device="meta"), 0, VALUE)
    keeper.observe(torch.zeros(2, 2, dtype=torch.uint8).view(torch.bits8), 0, VALUE)
    torch.func.vmap(lambda row: (keeper.observe(row, 0, VALUE), row)[1])(torch.ones(2, 2))
    keeper.observe(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), 0, VALUE)
    assert keeper.take(0) == (None, None)
    assert keeper.left_out == {"tensors": 4}


def test_zeros_that_have_no_memory_are_zeros():
    rows, values = keep(torch._efficientzerotensor((2, 3)), first(2))
    assert values.entries[0].array.tolist() == [[0.0] * 3] * 2
    assert rows["abs_max"].to_pylist() == [0.0, 0.0]


def test_a_negated_view_is_kept_by_its_values():
    imaginary = torch.tensor([[1 + 2j]]).conj().imag  # contiguous, and not what its memory says
    assert imaginary.is_neg() and imaginary.is_contiguous()
    assert keep(imaginary, first(1))[1].entries[0].array.tolist() == [[-2.0]]


def test_a_conjugated_view_is_kept_by_its_values():
    conjugated = torch.tensor([[1 + 2j, 3j]]).conj()
    assert conjugated.is_conj() and conjugated.is_contiguous()
    assert keep(conjugated, first(1))[1].entries[0].array.tolist() == [[1 - 2j, -3j]]


def test_single_bytes_of_different_dtypes_are_not_taken_for_the_same():
    byte = torch.tensor([[200]], dtype=torch.uint8)
    keeper = ValueKeeper(first(1))
    keeper.begin()
    for site, tensor in enumerate([byte, byte.view(torch.int8), byte]):
        keeper.observe(tensor, site, VALUE)
    rows, values = keeper.take(0)
    assert rows["mean"].to_pylist() == [200.0, -56.0, 200.0]
    assert [entry.array.item() for entry in values.entries] == [200, -56, 200]


@pytest.mark.parametrize("selection", [first(2), positions([3, 1]), highest_loss(2)])
@pytest.mark.parametrize("neurons", [None, 2, [1]])
def test_tensors_of_inference_mode_and_views_are_kept(selection, neurons):
    base = torch.arange(48.0).reshape(4, 3, 4)
    with torch.inference_mode():
        made = base * 2
        for tensor in [made, made[:, 1], made.transpose(1, 2), base[:, :, 2], base.view(4, 12)]:
            _, values = keep(tensor, selection, losses=range(4), neurons=as_neurons(neurons))
            (entry,) = values.entries
            assert entry.array.tolist() == by_hand(tensor, entry.samples, 0, neurons)


# -- when it is kept


@pytest.mark.parametrize("selection", [first(2), positions([2, 0]), highest_loss(2), balanced(2)])
@pytest.mark.parametrize("batch_dim", [0, None])
def test_a_change_in_place_after_it_was_seen_changes_nothing(selection, batch_dim):
    tensor = torch.arange(12.0).reshape(4, 3)
    facts = torch.tensor([1.0, 2.0, 3.0, 4.0])
    keeper = ValueKeeper(selection)
    keeper.begin()
    keeper.losses(facts)
    keeper.categories(facts)
    facts.fill_(0.0)
    keeper.observe(tensor, 0, VALUE, batch_dim=batch_dim)
    tensor.fill_(-1.0)
    rows, values = keeper.take(0)
    assert values.entries[0].array.min() >= 0.0
    assert rows is None or min(rows["mean"].to_pylist()) >= 1.0


@pytest.mark.parametrize("kind", [torch.Tensor, Elsewhere])
@pytest.mark.parametrize("selection", [first(2), positions([0, 2]), highest_loss(2)])
@pytest.mark.parametrize("neurons", [None, 2, [2, 0]])
def test_a_tensor_is_left_as_it_was_and_not_held(kind, selection, neurons):
    tensor = torch.randn(4, 3).as_subclass(kind).requires_grad_()
    before, version, random = tensor.detach().clone(), tensor._version, torch.get_rng_state()
    alive = weakref.ref(tensor)
    keeper = ValueKeeper(selection, neurons=as_neurons(neurons))
    keeper.begin()
    keeper.observe(tensor, 0, VALUE)
    assert torch.equal(tensor, before) and tensor.requires_grad and tensor.grad_fn is None
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), random)
    for copy in [seen.values for seen in keeper._seen if isinstance(seen.values, torch.Tensor)]:
        assert not copy.requires_grad
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    del tensor
    assert alive() is None


def test_memory_that_was_seen_can_still_be_resized():
    for tensor in [torch.randn(4, 3), torch.randn(3, 4).t()]:
        keep(tensor, positions([0, 2]))
        tensor.untyped_storage().resize_(0)  # what NumPy was shown could not be


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("selection", [first(2), positions([3, 1]), highest_loss(2)])
def test_what_lies_in_memory_is_copied_without_an_operation_of_torch(selection):
    tensors = [torch.ones(4, 3), torch.ones(4, 3, requires_grad=True) * 2, torch.ones(4).bfloat16()]
    keeper = ValueKeeper(selection)
    keeper.begin()
    with Operations() as operations:
        for tensor in tensors:
            keeper.observe(tensor, 0, VALUE)
    assert operations.count == 0
    assert len(keeper.take(0)[1].entries) == 3


@pytest.mark.parametrize("change", [torch.Tensor.neg_, lambda tensor: tensor.data.neg_()])
def test_a_tensor_that_is_seen_twice_is_kept_as_it_was_each_time(change):
    tensor = fill(torch.float32, 2, 3)
    keeper = ValueKeeper(first(2))
    keeper.begin()
    keeper.observe(tensor, 0, VALUE)
    keeper.observe(tensor, 1, VALUE)
    change(tensor)
    keeper.observe(tensor, 2, VALUE)
    keeper.observe(tensor.view(torch.int32), 3, VALUE)  # the same bytes, and other numbers
    rows, values = keeper.take(0)
    arrays = [entry.array for entry in values.entries]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    np.testing.assert_array_equal(arrays[0], -arrays[2])
    np.testing.assert_array_equal(arrays[3], arrays[2].view(np.int32))
    for site, seen in enumerate([-tensor, -tensor, tensor, tensor.view(torch.int32)]):
        assert_moments(rows.to_pylist()[2 * site : 2 * site + 2], seen, 0)


def test_the_highest_losses_are_chosen_when_the_step_ends():
    keeper = ValueKeeper(highest_loss(2))
    keeper.begin(batch_size=4)
    activations = torch.arange(8.0).reshape(4, 2)
    keeper.observe(activations, 0, VALUE)
    keeper.losses(torch.tensor([[0.0, 2.0], [5.0, 5.0], [0.0, 0.0], [nan, 0.0]]))
    keeper.observe(-activations, 0, GRAD)
    keeper.data_indices([40, 41, 42, 43])
    rows, values = keeper.take(0)
    assert rows["sample"].to_pylist() == [3, 1, 3, 1]
    assert rows["data_index"].to_pylist() == [43, 41, 43, 41]
    assert rows["mean"].to_pylist() == [6.5, 2.5, -6.5, -2.5]
    assert [entry.array.tolist() for entry in values.entries] == [
        [[6.0, 7.0], [2.0, 3.0]],
        [[-6.0, -7.0], [-2.0, -3.0]],
    ]
    assert values.entries[0].data_indices == (43, 41)


def test_all_tensors_of_a_step_have_the_same_samples():
    keeper = ValueKeeper(highest_loss(1))
    keeper.begin(batch_size=2)
    for losses in ([0.0, 1.0], [1.0, 0.0]):  # the second ones come after the choice was made
        keeper.losses(losses)
        keeper.observe(torch.ones(2, 2), 0, VALUE)
    assert keeper.take(0)[0]["sample"].to_pylist() == [1, 1]


def test_without_losses_the_first_samples_are_kept_and_that_is_counted():
    keeper = ValueKeeper(highest_loss(2))
    keeper.begin(batch_size=3)
    keeper.observe(torch.ones(3, 2), 0, VALUE)
    assert keeper.take(0)[1].entries[0].samples == (0, 1)
    assert keeper.left_out == {"choices": 1}


def test_losses_that_are_of_another_batch_choose_nothing():
    keeper = ValueKeeper(highest_loss(2))
    keeper.begin()
    keeper.observe(torch.ones(6, 2), 0, VALUE)
    keeper.losses([1.0, 2.0])
    assert keeper.take(0) == (None, None)
    assert keeper.left_out == {"tensors": 1}


def test_what_is_said_of_a_batch_counts_from_then_on():
    keeper = ValueKeeper(first(2))
    keeper.begin()
    keeper.observe(torch.ones(6, 2), 0, VALUE)
    keeper.data_indices([7, 8, 9])
    keeper.observe(torch.ones(6, 2), 1, VALUE)
    keeper.observe(torch.ones(3, 2), 2, VALUE)
    rows, values = keeper.take(0)
    assert rows["site"].to_pylist() == [0, 0, 2, 2]
    assert rows["data_index"].to_pylist() == [None, None, 7, 8]
    assert [entry.batch_dim for entry in values.entries] == [0, None, 0]


def test_micro_batches_have_losses_and_indices_of_their_own():
    keeper = ValueKeeper(highest_loss(1))
    keeper.begin()
    for iteration, losses in enumerate([[0.0, 1.0, 0.5], [3.0, 2.0]]):
        keeper.observe(torch.ones(len(losses), 2), 0, VALUE, iteration)
        keeper.losses(losses, iteration=iteration)
        keeper.data_indices(torch.arange(len(losses)) + 10 * iteration, iteration=iteration)
    rows, _ = keeper.take(0)
    assert rows["iteration"].to_pylist() == [0, 1]
    assert rows["sample"].to_pylist() == [1, 0]
    assert rows["data_index"].to_pylist() == [1, 10]


def test_iterations_share_what_is_said_of_the_step():
    keeper = ValueKeeper(balanced(2))
    keeper.begin(batch_size=3)
    keeper.categories(["a", "a", "b"])
    for iteration in range(2):
        keeper.observe(torch.ones(3, 2), 0, VALUE, iteration)
    assert keeper.take(0)[0]["sample"].to_pylist() == [0, 2, 0, 2]


def test_a_step_knows_nothing_of_the_step_before():
    keeper = ValueKeeper(first(1))
    keeper.begin()
    keeper.data_indices([5])
    keeper.observe(torch.ones(1, 2), 0, VALUE)
    keeper.drop()
    keeper.begin()
    keeper.observe(torch.zeros(1, 2), 1, VALUE)
    rows, values = keeper.take(1)
    assert rows.select(["step", "site", "data_index", "mean"]).to_pylist() == [
        {"step": 1, "site": 1, "data_index": None, "mean": 0.0}
    ]
    assert [entry.site for entry in values.entries] == [1]


def test_quantities_may_belong_to_a_named_backward_pass():
    keeper = ValueKeeper(first(1))
    keeper.backwards = ["", "critic"]
    keeper.begin()
    keeper.observe(torch.ones(1, 2), 0, 4 + GRAD)
    rows, values = keeper.take(0)
    assert rows["quantity"].to_pylist() == ["grad"]
    assert rows["backward"].to_pylist() == ["critic"]
    assert (values.entries[0].quantity, values.entries[0].backward) == ("grad", "critic")


@pytest.mark.parametrize(
    ("say", "wrong"),
    [
        ("losses", torch.tensor(1.0)),
        ("losses", ["high"]),
        ("losses", 3.0),
        ("categories", torch.ones(3, 2)),
        ("categories", [[1], [2], [3]]),
        ("data_indices", torch.ones(3)),
        ("data_indices", [0.5, 1.0, 2.0]),
        ("data_indices", [1, 2]),
        ("data_indices", [0, 1, 1 << 63]),
        ("data_indices", torch.tensor([0, 1, (1 << 64) - 1], dtype=torch.uint64)),
    ],
)
def test_what_does_not_say_one_thing_of_each_sample_is_refused(say, wrong):
    keeper = ValueKeeper(first(1))
    keeper.begin(batch_size=3)
    argument = say.removeprefix("data_")
    with pytest.raises(BacklightError, match=rf"^run\.batch\({argument}=…\) got [^\n]*\.$"):
        getattr(keeper, say)(wrong)


@pytest.mark.parametrize("given_as", [list, tuple, np.array, torch.tensor, iter])
def test_what_is_said_of_samples_can_be_any_sequence(given_as):
    keeper = ValueKeeper(highest_loss(1))
    keeper.begin(batch_size=3)
    keeper.losses(given_as([0.0, 2.0, 1.0]))
    keeper.data_indices(given_as([7, 8, 9]))
    keeper.categories(np.array(["a", "b", "c"]))
    keeper.observe(torch.ones(3, 1), 0, VALUE)
    assert keeper.take(0)[0]["data_index"].to_pylist() == [8]


# -- statistics


def test_statistics_are_over_finite_values_and_null_where_there_are_none():
    tensor = torch.tensor([[1.0, nan, 3.0], [nan, torch.inf, -torch.inf], [0.0, 0.0, 0.0]])
    rows = keep(tensor, first(3))[0].to_pylist()
    assert [[row[name] for name in MOMENTS] for row in rows] == [
        [2.0, 2.0, 1.0, 3.0],
        [None] * 4,
        [0.0, 0.0, 0.0, 0.0],
    ]


def test_statistics_are_over_all_values_and_not_only_the_kept_ones():
    tensor = torch.arange(200.0).reshape(2, 100)
    rows, values = keep(tensor, first(2), neurons=as_neurons(10))
    assert values.entries[0].array.shape == (2, 10)
    assert rows["mean"].to_pylist() == [49.5, 149.5]


@pytest.mark.parametrize("neurons", [3, 300])
def test_large_batches_have_the_statistics_of_each_sample(neurons):
    tensors = [torch.randn(1500, neurons) + site for site in range(4)]
    keeper = ValueKeeper(highest_loss(3))
    keeper.begin()
    for site, tensor in enumerate(tensors):
        keeper.observe(tensor, site, VALUE)
    keeper.losses(range(1500))
    rows = keeper.take(0)[0].to_pylist()
    assert [row["sample"] for row in rows] == [1499, 1498, 1497] * 4
    for row in rows:
        assert_moments([row], tensors[row["site"]], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_operations_find_what_the_kernel_finds(dtype):
    tensor = fill(dtype, 5, 3, 4)
    if dtype.is_floating_point and dtype.itemsize > 1:
        tensor[1, 2, 3] = nan
        tensor[2, 0, 0] = torch.inf
        tensor[3] = nan
    want = [moments_by_hand(sample) for sample in tensor]
    want = [[nan if x is None else float(x) for x in row] for row in want]
    np.testing.assert_allclose(sample_moments(tensor).numpy(), want, rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_have_the_statistics_of_what_they_are_copies_of(dtype):
    tensors = [fill(dtype, 1 + n % 3, n, seed=n) for n in range(12)]
    copies = [(copy_of(tensor), name(dtype), len(tensor)) for tensor in tensors]
    for tensor, found in zip(tensors, copied_moments(copies), strict=True):
        want = [moments_by_hand(sample) for sample in tensor]
        want = [[nan if x is None else float(x) for x in row] for row in want]
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=12),
    chunk_bytes=st.integers(1, 300),
    odd=st.sampled_from([0.0, nan, torch.inf, 1e300, 1e-300]),
)
def test_it_does_not_matter_what_copies_are_looked_at_together(sizes, chunk_bytes, odd):
    tensors = [fill(torch.float64, *size, seed=n) for n, size in enumerate(sizes)]
    for tensor in tensors[::3]:
        tensor[:1, :2] = odd
    copies = [(copy_of(tensor), "float64", len(tensor)) for tensor in tensors]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backlight.capture.moments._CHUNK_BYTES", chunk_bytes)
        found = copied_moments(copies)
    for tensor, moments in zip(tensors, found, strict=True):
        np.testing.assert_allclose(moments, sample_moments(tensor).numpy(), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_extreme_values_do_not_overflow(size):
    extreme = torch.tensor([[size, -size]], dtype=torch.float64)
    copy = (copy_of(extreme), "float64", 1)
    for found in [sample_moments(extreme).tolist()[0], copied_moments([copy])[0].tolist()[0]]:
        np.testing.assert_allclose(found, [0.0, size, size, size], rtol=1e-12)


# -- the budget


def observe_many(keeper, sizes, *, samples=8, step=0):
    keeper.begin(batch_size=samples)
    for site, size in enumerate(sizes):
        keeper.observe(torch.full((samples, size), float(site)), site, VALUE)
    return keeper.take(step)


@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    step_bytes=st.integers(0, 40_000),
    selection=selections(),
)
def test_a_file_is_never_larger_than_the_budget(tmp_path_factory, sizes, step_bytes, selection):
    assume(not (selection.rule == "positions" and min(selection.places) > 7))
    keeper = ValueKeeper(selection, most_bytes=ValueBytes(step=step_bytes))
    keeper.begin(batch_size=8)
    keeper.data_indices([2**62 + place for place in range(8)])
    for site, size in enumerate(sizes):
        keeper.observe(torch.zeros(8, size), site, VALUE)
    keeper.losses(range(8))
    keeper.categories(range(8))
    rows, values = keeper.take(0)
    assert len(set(rows["site"].to_pylist())) == len(sizes)  # statistics are always there
    kept = [] if values is None else values.entries
    assert len(kept) + keeper.left_out["tensors"] == len(sizes)
    if values is not None:
        folder = tmp_path_factory.mktemp("run")
        assert write_values(folder, 0, 0, values) <= step_bytes


def test_the_largest_tensor_loses_neurons_first():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    _, values = observe_many(keeper, [100, 4000, 100])
    assert [entry.array.shape for entry in values.entries] == [(8, 100), (8, 500), (8, 100)]
    assert keeper.left_out == {"neurons": 3500}
    large = values.entries[1]
    assert large.neuron_positions.tolist() == list(range(0, 4000, 8))


def test_then_samples_are_lost_and_then_tensors():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=6_000))
    _, values = observe_many(keeper, [60] * 4)
    assert [entry.samples for entry in values.entries] == [(0, 1, 2, 3)] * 2 + [(0, 1)] * 2
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=1_000))
    rows, values = observe_many(keeper, [60] * 4)
    assert [(entry.site, entry.samples) for entry in values.entries] == [(0, (0,))]
    assert keeper.left_out == {"samples": 7, "tensors": 3}
    assert rows.num_rows == 4 * 8


def test_the_same_neurons_are_kept_in_every_step():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    found = [observe_many(keeper, [4000, 4000, 300], step=step)[1] for step in range(3)]
    steps = [[entry.neuron_step for entry in values.entries] for values in found]
    assert steps[0] == steps[1] == steps[2]
    # What the budget allows again comes back.
    observe_many(keeper, [4000], step=3)
    assert observe_many(keeper, [4000], step=4)[1].entries[0].neuron_step == 4


def test_neurons_come_back_when_all_of_them_fit():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    found = [observe_many(keeper, [1000] * 3)[1]]
    found += [observe_many(keeper, [1000])[1] for _ in range(2)]
    assert [values.entries[0].neuron_step for values in found] == [2, 2, 1]


def test_what_the_last_step_could_not_keep_is_not_copied_again():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    held = []
    for step in range(2):
        keeper.begin(batch_size=8)
        keeper.observe(torch.zeros(8, 4000), 0, VALUE)
        held.append(size_of(keeper._seen[0].values))
        keeper.take(step)
    assert held == [8 * 4000 * 4, 8 * 1000 * 4]


def test_a_tensor_that_became_smaller_is_kept_whole():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    observe_many(keeper, [4000])
    assert observe_many(keeper, [100])[1].entries[0].neuron_step == 1


def test_a_run_that_has_spent_its_budget_keeps_statistics_only():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(run=30_000))
    found = [observe_many(keeper, [200], step=step) for step in range(8)]
    assert sum(values.data_bytes for _, values in found if values is not None) <= 30_000
    assert found[0][1].entries[0].array.shape == (8, 200)
    assert found[-1][1] is None
    assert [rows.num_rows for rows, _ in found] == [8] * 8


def test_what_is_held_until_the_step_ends_is_bounded():
    keeper = ValueKeeper(highest_loss(1), most_bytes=ValueBytes(step=10_000))
    keeper.begin(batch_size=32)
    most = 0
    for site in range(60):
        keeper.observe(torch.full((32, 1000), float(site)), site, VALUE)
        most = max(
            most, sum(size_of(seen.values) for seen in keeper._seen if seen.values is not None)
        )
    assert most <= 16 * 10_000
    keeper.losses([float(sample == 20) for sample in range(32)])
    rows, values = keeper.take(0)
    assert rows["sample"].to_pylist() == [20] * 60
    assert all(entry.samples == (20,) for entry in values.entries)
    assert all((entry.array == entry.site).all() for entry in values.entries)
    assert len(values.entries) + keeper.left_out["tensors"] == 60


def test_several_tensors_come_from_a_device_in_one_copy():
    contents = [fill(torch.uint8, 2, 3), fill(torch.int16, 0, 4), b"here", fill(torch.int64, 1, 5)]
    for have, want in zip(to_host(contents), contents, strict=True):
        assert have == (want if isinstance(want, bytes) else want.numpy().tobytes())


def test_a_step_that_is_not_written_costs_nothing():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(run=10_000))
    for step in range(8):
        _, values = observe_many(keeper, [200], step=step)
        assert values.entries[0].array.shape == (8, 200)
        keeper.give_back(values)
    for step in range(8):
        values = observe_many(keeper, [200], step=step)[1]
    assert values is None


def test_what_fits_is_worked_out_again_when_something_has_changed():
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
    for sizes in [[4000, 100], [4000, 100], [100, 4000], [4000], [4000, 4000]]:
        fresh = ValueKeeper(first(8), most_bytes=ValueBytes(step=40_000))
        want = [entry.array.shape for entry in observe_many(fresh, sizes)[1].entries]
        observe_many(keeper, sizes)
        found = observe_many(keeper, sizes)[1]  # the first time it was thinned as before
        assert [entry.array.shape for entry in found.entries] == want


# -- which neurons


@pytest.mark.parametrize("given_as", [list, tuple, np.array, torch.tensor, iter, set])
def test_neurons_can_be_any_positions(given_as):
    assert as_neurons(given_as([2, 5])).places == (2, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        0,
        -1,
        True,
        1.5,
        "2",
        b"2",
        [],
        [-1],
        ["a"],
        [0.5],
        [True, False],
        {},
        {"a": "b"},
        {"a": None},
        {"a": 0},
        {"a": {"b": 1}},
        {"(": 3},
        {3: 3},
        {b"a": 3},
        torch.ones(3, 2),
        object(),
    ],
)
def test_neurons_that_cannot_be_are_refused_in_one_sentence(wrong):
    with pytest.raises(BacklightError, match=r"^neurons[^\n]*: give [^\n]*\.$"):
        as_neurons(wrong)


@pytest.mark.parametrize("wrong", ["ab", [1.5], ["a"], [True], 0, {"a": 1}, torch.ones(2, 2)])
def test_samples_that_cannot_be_are_refused_in_one_sentence(wrong):
    with pytest.raises(BacklightError, match=r"^[^\n]*: give [^\n]*\.$"):
        as_selection(wrong)


def test_neurons_are_chosen_by_the_names_of_sites(tmp_path):
    names = ["encoder.0:out.0", "encoder.1:out.0", "decoder:out.0", "head:out.0"]
    neurons = as_neurons({r"encoder\.0": [5, 1, 99], "encoder": 3, "head": []})
    asked = []
    keeper = ValueKeeper(
        first(2), neurons=neurons, site_name=lambda site: (asked.append(site), names[site])[1]
    )
    for step in range(2):
        keeper.begin()
        for site in range(4):
            keeper.observe(torch.arange(24.0).reshape(2, 12), site, VALUE)
        rows, values = keeper.take(step)
    assert asked == [0, 1, 2, 3]
    entries = from_disk(tmp_path, values)
    assert [entry.site for entry in entries] == [0, 1, 2]
    assert [entry.neuron_positions.tolist() for entry in entries] == [
        [5, 1],
        [0, 4, 8],
        list(range(12)),
    ]
    assert [entry.chosen_neurons for entry in entries] == [(5, 1), None, None]
    assert entries[0].array.tolist() == [[5.0, 1.0], [17.0, 13.0]]
    assert rows["mean"].to_pylist() == [5.5, 17.5] * 4  # over all neurons, whichever are kept
    assert keeper.left_out == {}


def test_neurons_by_the_names_of_sites_need_names():
    with pytest.raises(BacklightError, match=r"^Neurons are chosen by .*: give site_name\.$"):
        ValueKeeper(first(2), neurons=as_neurons({"a": 3}))


@pytest.mark.parametrize("kind", [torch.Tensor, Elsewhere])
def test_chosen_neurons_are_thinned_like_others(tmp_path, kind):
    chosen = [3 * place for place in reversed(range(200))]
    keeper = ValueKeeper(first(4), neurons=as_neurons(chosen), most_bytes=ValueBytes(step=4000))
    for step in range(2):  # in the second step they are thinned when they are seen
        keeper.begin()
        keeper.observe(torch.arange(4000.0).reshape(4, 1000).as_subclass(kind), 0, VALUE)
        _, values = keeper.take(step)
        (entry,) = from_disk(tmp_path, values)
        assert values_path(tmp_path, 0, 9).stat().st_size <= 4000
        assert entry.neuron_positions.tolist() == chosen[::4]
        assert entry.array.tolist() == [
            [1000.0 * row + place for place in chosen[::4]] for row in range(4)
        ]
    assert keeper.left_out == {"neurons": 300}


# -- deciding afterwards


def hold(*tensors, selection=None, **begin):
    """A keeper that has seen a step and holds all of it."""
    keeper = ValueKeeper(selection)
    keeper.begin(holds_all=True, **begin)
    for site, tensor in enumerate(tensors):
        keeper.observe(tensor, site, VALUE)
    return keeper


@pytest.mark.parametrize("selection", [None, first(2), highest_loss(1)])
@pytest.mark.parametrize(
    "chosen",
    [[3, 1], (3, 1), positions([3, 1]), torch.tensor([3, 1]), np.array([3, 1]), [3, 1, 99]],
)
def test_samples_can_be_chosen_when_the_step_has_ended(selection, chosen):
    keeper = hold(torch.arange(8.0).reshape(4, 2), torch.tensor(5.0), selection=selection)
    keeper.data_indices([40, 41, 42, 43])
    rows, values = keeper.take(0, keep=chosen)
    assert rows.select(["sample", "data_index", "mean"]).to_pylist() == [
        {"sample": 3, "data_index": 43, "mean": 6.5},
        {"sample": 1, "data_index": 41, "mean": 2.5},
    ]
    batch, alone = values.entries
    assert (batch.samples, batch.array.tolist()) == ((3, 1), [[6.0, 7.0], [2.0, 3.0]])
    assert alone.array.tolist() == [5.0]
    assert keeper.left_out == {}


def test_they_can_be_chosen_by_category_and_by_loss():
    tensor = torch.arange(4.0).reshape(4, 1)
    keeper = hold(tensor)
    keeper.categories(["a", "a", "a", "b"])
    assert keeper.take(0, keep=balanced(2))[1].entries[0].samples == (0, 3)
    keeper = hold(tensor)
    keeper.losses([0.0, 3.0, 9.0, 1.0])
    assert keeper.take(0, keep=highest_loss(2))[0]["sample"].to_pylist() == [2, 1]
    assert hold(tensor).take(0, keep=3)[0]["sample"].to_pylist() == [0, 1, 2]
    keeper = hold(tensor)
    assert keeper.take(0, keep=highest_loss(2))[0]["sample"].to_pylist() == [0, 1]
    assert keeper.left_out == {"choices": 1}


def test_without_a_word_the_selection_chooses():
    tensor = torch.arange(8.0).reshape(4, 2)
    assert hold(tensor, selection=positions([2])).take(0)[0]["sample"].to_pylist() == [2]
    assert hold(tensor).take(0) == (None, None)
    keeper = ValueKeeper(None)
    keeper.begin()
    keeper.observe(tensor, 0, VALUE)
    assert keeper.take(0, keep=[1]) == (None, None)


def test_no_sample_can_be_chosen_too():
    rows, values = hold(torch.ones(4, 2), torch.tensor(5.0)).take(0, keep=[])
    assert rows is None
    assert [entry.array.tolist() for entry in values.entries] == [[5.0]]


def test_of_samples_that_are_not_held_nothing_is_kept():
    keeper = ValueKeeper(positions([5, 2, 0]))
    keeper.begin()
    keeper.observe(torch.arange(12.0).reshape(6, 2), 0, VALUE)
    rows, values = keeper.take(0, keep=[0, 4, 5])
    assert rows.select(["sample", "mean"]).to_pylist() == [
        {"sample": 0, "mean": 0.5},
        {"sample": 5, "mean": 10.5},
    ]
    assert values.entries[0].array.tolist() == [[0.0, 1.0], [10.0, 11.0]]
    assert keeper.left_out == {"samples": 1}


def test_samples_that_were_chosen_early_can_be_chosen_from_again():
    seen = [fill(torch.float64, 8, 40, seed=site) for site in range(900)]
    keeper = ValueKeeper(highest_loss(3), neurons=as_neurons(4), most_bytes=ValueBytes(step=2000))
    keeper.begin()
    for site, tensor in enumerate(seen):
        keeper.observe(tensor, site, VALUE)
        if site == 0:
            keeper.losses(range(8))
    assert all(each.plan.samples == (7, 6, 5) for each in keeper._seen)  # too much was held
    rows, values = keeper.take(0, keep=[5, 1, 6])
    assert rows["sample"].to_pylist() == [5, 6] * 900
    for row in rows.to_pylist():
        assert_moments([row], seen[row["site"]], 0)
    for entry in values.entries:
        want = seen[entry.site][list(entry.samples)][:, entry.neuron_positions]
        np.testing.assert_array_equal(entry.array, want.numpy())


def test_samples_whose_values_were_given_up_come_last():
    seen = [fill(torch.float32, 8, 60, seed=site) for site in range(40)]
    keeper = ValueKeeper(first(8), most_bytes=ValueBytes(step=3000))
    keeper.begin()
    for site, tensor in enumerate(seen):
        keeper.observe(tensor, site, VALUE)
    given_up = [each.site for each in keeper._seen if 0 < each.extent.samples < 8]
    rows, values = keeper.take(0, keep=[7, 1, 0])
    assert set(given_up) & {entry.site for entry in values.entries if entry.samples[0] == 1}
    for row in rows.to_pylist():
        assert_moments([row], seen[row["site"]], 0)
    for entry in values.entries:
        want = seen[entry.site][list(entry.samples)]
        np.testing.assert_array_equal(entry.array, want.numpy())


def test_a_bad_choice_is_refused_and_can_be_corrected():
    keeper = hold(torch.ones(4, 2))
    for wrong in [[-1], "ab", 0, 2.5, {"a": 1}, ["a"]]:
        with pytest.raises(BacklightError, match=r"^[^\n]*: give [^\n]*\.$"):
            keeper.take(0, keep=wrong)
    assert keeper.take(0, keep=[1])[0]["sample"].to_pylist() == [1]


def test_the_choice_of_one_step_is_not_that_of_the_next():
    keeper = hold(torch.ones(4, 2), selection=first(1))
    keeper.take(0, keep=[3])
    keeper.begin()
    keeper.observe(torch.ones(4, 2), 0, VALUE)
    assert keeper.take(1)[0]["sample"].to_pylist() == [0]


@pytest.mark.parametrize("kind", [torch.Tensor, Elsewhere])
def test_what_is_held_for_a_later_choice_is_bounded(kind):
    keeper = ValueKeeper(first(2), most_bytes=ValueBytes(step=10_000))
    keeper.begin(batch_size=32, holds_all=True)
    seen = [fill(torch.float32, 32, 1000, seed=site) for site in range(30)]
    for site, tensor in enumerate(seen):
        keeper.observe(tensor.as_subclass(kind), site, VALUE)
        held = [each.values for each in keeper._seen if each.values is not None]
        assert sum(map(size_of, held)) <= 16 * 10_000
    rows, values = keeper.take(0, keep=[20, 3])
    assert rows["sample"].to_pylist() == [20, 3] * 30
    for row in rows.to_pylist():
        assert_moments([row], seen[row["site"]], 0)
    for entry in values.entries:
        want = seen[entry.site][[20, 3]][: len(entry.samples), entry.neuron_positions]
        np.testing.assert_array_equal(entry.array, want.numpy())
    assert len(values.entries) + keeper.left_out["tensors"] == 30


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    step_bytes=st.integers(0, 8_000),
    selection=selections(),
    later=st.one_of(st.none(), st.lists(st.integers(0, 7), max_size=4)),
    neurons=NEURONS,
    holds_all=st.booleans(),
    is_elsewhere=st.booleans(),
)
def test_whatever_is_lost_what_is_kept_is_true(
    tmp_path_factory, sizes, step_bytes, selection, later, neurons, holds_all, is_elsewhere
):
    keeper = ValueKeeper(
        selection, neurons=as_neurons(neurons), most_bytes=ValueBytes(step=step_bytes)
    )
    seen = [fill(torch.float32, 8, size, seed=site) for site, size in enumerate(sizes)]
    for step in range(2):
        keeper.begin(batch_size=8, holds_all=holds_all)
        keeper.losses(range(8))
        keeper.categories([0, 1] * 4)
        for site, tensor in enumerate(seen):
            keeper.observe(tensor.as_subclass(Elsewhere) if is_elsewhere else tensor, site, VALUE)
        rows, values = keeper.take(step, keep=later)
        for row in rows.to_pylist() if rows is not None else []:
            assert_moments([row], seen[row["site"]], 0)
        for entry in values.entries if values is not None else []:
            want = seen[entry.site][list(entry.samples)][:, entry.neuron_positions]
            np.testing.assert_array_equal(entry.array, want.numpy())
        if values is not None:
            assert write_values(tmp_path_factory.mktemp("run"), 0, 0, values) <= step_bytes


def test_a_selection_is_a_value():
    assert first(2) == SampleSelection("first", 2)
    assert hash(balanced(2, ["a"])) == hash(balanced(2, ["a"]))
