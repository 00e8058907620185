"""Keeps raw values of chosen samples until a step ends, and says what each sample was like.

What is kept is copied at once, because a tensor may change after it was seen. It stays on its
device until the step ends, so that nothing waits for the device, and it is bounded: while a step is
under way as on disk, the largest tensors lose detail first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from backlight.capture.facts import BatchFacts
from backlight.capture.moments import MOMENTS, Moments, dtype_name, to_host
from backlight.errors import BacklightError
from backlight.samples import SampleSelection
from backlight.schema import QUANTITIES, SAMPLES
from backlight.store.values import STORED_AS, Extent, KeptValues, StepValues, fit

_HELD_STEPS: Final = 16
"""How many times a step's budget may be held in memory until it is known what is kept."""


@dataclass(slots=True)
class _Seen:
    """What is held of one tensor until the step ends."""

    site: int
    quantity: int
    iteration: int
    dtype: str
    shape: tuple[int, ...]
    batch_dim: int | None
    batch_size: int
    samples: list[int] | None  # None until it is known which are kept
    wanted: Extent  # what would be kept without a budget
    neuron_step: int = 0
    values: torch.Tensor | None = None  # one row for each sample, of every neuron_step-th neuron
    moments: int = -1  # where its samples' moments are; -1 if it has no samples
    has_all_moments: bool = False  # of every sample, because it was not known which are kept

    @property
    def key(self) -> tuple[int, int, int]:
        return self.site, self.quantity, self.iteration

    @property
    def held_bytes(self) -> int:
        return 0 if self.values is None else self.values.nbytes

    def decide(self, samples: list[int]) -> None:
        """Keep these samples and no others."""
        self.samples = samples
        self.wanted = replace(self.wanted, samples=len(samples), is_open=False)
        if self.values is not None:
            self.values = _picked(self.values, samples).clone() if samples else None

    def cut(self, extent: Extent) -> None:
        """Keep no more than this."""
        values, factor = self.values, max(1, extent.neuron_step // self.neuron_step)
        if extent.samples == 0:
            self.values = None
        elif values is not None and (factor > 1 or extent.samples < len(values)):
            # A copy, because a view would keep all of it in memory.
            self.values = _contiguous(values[: extent.samples, ::factor])
            self.neuron_step *= factor


class ValueKeeper:
    """Keeps values of chosen samples, and one row of the `samples` table for each of them.

    `left_out` counts what the budget or the tensors did not allow: `neurons` and `samples` of
    tensors that are kept, whole `tensors`, and `choices` for want of losses or categories, where
    the first samples were kept instead.

    >>> from backlight.samples import highest_loss
    >>> keeper = ValueKeeper(highest_loss(1))
    >>> keeper.begin(batch_size=3)
    >>> keeper.observe(torch.tensor([[1.0, 1.0], [2.0, 4.0], [0.0, 0.0]]), site=0, quantity=0)
    >>> keeper.losses([0.1, 0.9, 0.5])
    >>> rows, values = keeper.take(step=7)
    >>> rows.select(["step", "sample", "mean", "std"]).to_pylist()
    [{'step': 7, 'sample': 1, 'mean': 3.0, 'std': 1.0}]
    >>> values.entries[0].array.tolist(), values.entries[0].samples
    ([[2.0, 4.0]], (1,))
    """

    def __init__(
        self,
        selection: SampleSelection,
        *,
        step_bytes: int = 4 << 20,
        run_bytes: int = 1 << 30,
        max_neurons: int = 4096,
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self.backwards = [""]  # the names of backward passes that quantities may speak of
        self._selection = selection
        self._step_bytes = step_bytes
        self._run_bytes_left = run_bytes
        self._max_neurons = max(1, max_neurons)
        self._neuron_steps: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._moments = Moments()
        self.drop()

    def begin(self, *, batch_size: int | None = None) -> None:
        """Start a step. A dimension of another size than `batch_size` is not taken for a batch."""
        self.drop()
        self._facts = BatchFacts(batch_size)

    def drop(self) -> None:
        """Forget what was seen since the step began."""
        self._facts = BatchFacts()
        self._seen: list[_Seen] = []
        self._held_bytes = 0
        self._moments.clear()

    def categories(self, labels: Any, *, iteration: int | None = None) -> None:
        """Say to which category each sample belongs, in all of the step or in one iteration."""
        self._facts.give("categories", labels, iteration)

    def data_indices(self, indices: Any, *, iteration: int | None = None) -> None:
        """Say where in the data set each sample is."""
        self._facts.give("data_indices", indices, iteration)

    def losses(self, per_sample_losses: Any, *, iteration: int | None = None) -> None:
        """Say which loss each sample has; the means, where a sample has several."""
        self._facts.give("losses", per_sample_losses, iteration)

    def observe(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        iteration: int = 0,
        batch_dim: int | None = 0,
    ) -> None:
        """Copy what may be kept of a tensor, and nothing else; nothing waits for its device."""
        dim = _checked_dim(tensor, batch_dim)
        if not _has_values(tensor):
            self.left_out["tensors"] += 1
            return
        with torch.no_grad():
            whole = _dense(tensor.detach())
            if dim is not None and not self._facts.is_batch(whole.shape[dim], iteration):
                dim = None
            rows = whole.unsqueeze(0) if dim is None else whole.movedim(dim, 0)
            samples = [0] if dim is None else self._choose(len(rows), iteration, may_wait=False)
            seen = _Seen(
                site=site,
                quantity=quantity,
                iteration=iteration,
                dtype=dtype_name(whole),
                shape=tuple(whole.shape),
                batch_dim=dim,
                batch_size=len(rows),
                samples=samples,
                wanted=self._wanted(rows, samples),
            )
            if seen.wanted.samples:
                self._keep(seen, rows if samples is None else _picked(rows, samples))

    def take(self, step: int) -> tuple[pa.RecordBatch | None, StepValues | None]:
        """The step's rows of the `samples` table, and the values to write; None if there are none.

        What the values take on disk is counted as part of the run's budget.
        """
        with torch.no_grad():
            self._decide(is_end=True)
            self._shrink(min(self._step_bytes, self._run_bytes_left))
            rows, values = self._rows(step), self._values()
        self.drop()
        return rows, values

    def _wanted(self, rows: torch.Tensor, samples: list[int] | None) -> Extent:
        neurons = rows.shape[1:].numel()
        return Extent(
            samples=len(rows) if samples is None else len(samples),
            neurons=neurons,
            neuron_step=max(1, -(-neurons // self._max_neurons)),
            item_bytes=rows.element_size(),
            is_open=samples is None,
        )

    def _choose(self, size: int, iteration: int, *, may_wait: bool) -> list[int] | None:
        return self._facts.choose(self._selection, size, iteration, may_wait=may_wait)

    def _keep(self, seen: _Seen, rows: torch.Tensor) -> None:
        self._seen.append(seen)
        if seen.batch_dim is not None:
            seen.moments = self._moments.add(rows)
            seen.has_all_moments = seen.samples is None
        if min(self._step_bytes, self._run_bytes_left) < Extent(1, 1, 1, 1).file_bytes:
            self.left_out["tensors"] += 1
            return
        # What a tensor lost in the last step it would lose again: don't copy it.
        neurons, step = self._neuron_steps.get(seen.key, (0, 0))
        same = neurons == seen.wanted.neurons
        seen.neuron_step = max(step if same else 1, seen.wanted.neuron_step)
        seen.values = _contiguous(rows.unsqueeze(-1).flatten(1)[:, :: seen.neuron_step])
        self._held_bytes += seen.held_bytes
        most = _HELD_STEPS * self._step_bytes
        if self._held_bytes > most:
            self._decide()
            self._shrink(most // 2)

    def _decide(self, *, is_end: bool = False) -> None:
        """Choose the samples of the tensors of which all are held, where that can be known."""
        for seen in self._seen:
            if seen.samples is None:
                samples = self._choose(seen.batch_size, seen.iteration, may_wait=is_end)
                if samples is None and is_end:
                    samples = self._without_facts(seen)
                if samples is not None:
                    seen.decide(samples)

    def _without_facts(self, seen: _Seen) -> list[int]:
        if not self._facts.is_batch(seen.batch_size, seen.iteration):
            self.left_out += Counter(tensors=int(seen.values is not None))
            return []
        self.left_out["choices"] += 1
        return list(range(min(self._selection.count, seen.batch_size)))

    def _shrink(self, budget_bytes: int) -> None:
        held = [seen for seen in self._seen if seen.values is not None]
        extents = fit([seen.wanted for seen in held], budget_bytes)
        for seen, extent in zip(held, extents, strict=True):
            seen.cut(extent)
            self._neuron_steps[seen.key] = seen.wanted.neurons, extent.neuron_step
            self.left_out += Counter(tensors=int(seen.values is None))
        self._held_bytes = sum(seen.held_bytes for seen in self._seen)

    def _named(self, quantity: int) -> tuple[str, str]:
        backward, place = divmod(quantity, len(QUANTITIES))
        return QUANTITIES[place], self.backwards[backward]

    def _indices(self, seen: _Seen, samples: Sequence[int]) -> list[int | None]:
        """Where the samples are in the user's data set; None where that was not said."""
        known = self._facts.get("data_indices", seen.iteration, may_wait=True)
        is_known = known is not None and len(known) == seen.batch_size
        return [known[place] if known and is_known else None for place in samples]

    def _rows(self, step: int) -> pa.RecordBatch | None:
        moments = self._moments.take()
        chosen = [(seen, seen.samples) for seen in self._seen if seen.moments >= 0]
        pairs = [(seen, samples) for seen, samples in chosen if samples]
        if not pairs:
            return None

        def column(value: Callable[[_Seen], Any]) -> list[Any]:
            return [each for seen, samples in pairs for each in [value(seen)] * len(samples)]

        indices = [self._indices(*pair) for pair in pairs]
        numbers = [
            moments[seen.moments][samples if seen.has_all_moments else slice(None)]
            for seen, samples in pairs
        ]
        columns = {
            "step": column(lambda _: step),
            "iteration": column(lambda seen: seen.iteration),
            "site": column(lambda seen: seen.site),
            "quantity": column(lambda seen: self._named(seen.quantity)[0]),
            "backward": column(lambda seen: self._named(seen.quantity)[1]),
            "sample": [place for _, samples in pairs for place in samples],
            "data_index": [each for those in indices for each in those],
            **dict(zip(MOMENTS, np.concatenate(numbers).T, strict=True)),
        }
        arrays = [pa.array(columns[f.name], f.type, from_pandas=True) for f in SAMPLES]
        return pa.RecordBatch.from_arrays(arrays, schema=SAMPLES)

    def _values(self) -> StepValues | None:
        held = [seen for seen in self._seen if seen.values is not None]
        arrays = to_host([seen.values for seen in held if seen.values is not None])
        entries = [self._entry(seen, array) for seen, array in zip(held, arrays, strict=True)]
        return StepValues(tuple(entries)) if entries else None

    def _entry(self, seen: _Seen, content: Any) -> KeptValues:
        kept = replace(seen.wanted, samples=len(content), neuron_step=seen.neuron_step)
        self._run_bytes_left -= kept.file_bytes
        self.left_out += Counter(
            neurons=seen.wanted.columns - kept.columns, samples=seen.wanted.samples - kept.samples
        )
        array = _numbers(content, seen.dtype, (kept.samples, kept.columns))
        samples = [] if seen.batch_dim is None else (seen.samples or [])[: kept.samples]
        quantity, backward = self._named(seen.quantity)
        return KeptValues(
            site=seen.site,
            quantity=quantity,
            backward=backward,
            iteration=seen.iteration,
            dtype=seen.dtype,
            shape=seen.shape,
            batch_dim=seen.batch_dim,
            samples=tuple(samples),
            data_indices=tuple(self._indices(seen, samples)),
            neurons=kept.neurons,
            neuron_step=kept.neuron_step,
            array=array[0] if seen.batch_dim is None else array,
        )


def _checked_dim(tensor: torch.Tensor, batch_dim: int | None) -> int | None:
    """The batch dimension, counted from the front; a single number has none."""
    dims = tensor.dim()
    if batch_dim is None or (dims == 0 and batch_dim in (0, -1)):
        return None
    if not -dims <= batch_dim < dims:
        raise BacklightError(
            f"batch_dim is {batch_dim} for a tensor of shape {list(tensor.shape)}: "
            "give the dimension that counts samples, or None if there is none."
        )
    return batch_dim % dims


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values can be copied and stored."""
    is_known = tensor.is_quantized or dtype_name(tensor) in STORED_AS
    return is_known and not tensor.is_nested and not tensor.is_meta


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with nothing between them and their bytes."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def _picked(rows: torch.Tensor, samples: list[int]) -> torch.Tensor:
    """These rows: a view where they follow each other, else a copy, without an index tensor.

    An index tensor would have to be sent to the device, and that waits for it.
    """
    if samples == list(range(samples[0], samples[0] + len(samples))):
        return rows.narrow(0, samples[0], len(samples))
    return torch.stack([rows[sample] for sample in samples])


def _contiguous(values: torch.Tensor) -> torch.Tensor:
    """A copy that holds these values and no others."""
    return values.clone(memory_format=torch.contiguous_format)


def _numbers(content: Any, dtype: str, shape: tuple[int, int]) -> Any:
    """Bytes as the NumPy array that `KeptValues` wants for a dtype."""
    if dtype == "complex32":
        return content.view(np.float16).reshape(*shape, 2)
    return content.view(dtype if dtype.startswith("complex") else STORED_AS[dtype])
