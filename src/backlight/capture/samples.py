"""Keeps raw values of chosen samples until a step ends, and says what each sample was like.

What is kept is copied at once, because a tensor may change after it was seen. It stays on its
device until the step ends, so that nothing waits for the device, and it is bounded: while a step is
under way as on disk, the largest tensors lose detail first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import torch

from backlight.capture.copies import Copy, dense, has_values, is_plain, size_of, to_host
from backlight.capture.facts import BatchFacts
from backlight.capture.moments import CopiedRows, Moments, copied_moments
from backlight.capture.plans import ALONE, NeuronGroups, Plan, checked_dim, make_plan
from backlight.capture.sample_rows import sample_rows
from backlight.capture.seen import Seen
from backlight.errors import BacklightError
from backlight.reduce.readable import local_part
from backlight.samples import (
    USUAL_BYTES,
    Fact,
    NeuronSelection,
    SampleSelection,
    ValueBytes,
    as_selection,
)
from backlight.schema import QUANTITIES
from backlight.store.values import Extent, KeptValues, StepValues, fit

_HELD_STEPS: Final = 16
"""How many times a step's budget may be held in memory until it is known what is kept."""

_MOST_PLANS: Final = 4096
"""How many plans are remembered: tensors may have another shape in every step."""


class ValueKeeper:
    """Keeps values of chosen samples, and one row of the `samples` table for each of them.

    Without a `selection`, samples are kept only where `take` is told which. `neurons` says which
    neurons are kept of each; if that depends on the site, `site_name` has to give a site's name.
    Of `most_bytes` for the run, an earlier part of it has spent `spent_bytes`.

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
        selection: SampleSelection | None,
        *,
        neurons: NeuronSelection | None = None,
        site_name: Callable[[int], str] | None = None,
        most_bytes: ValueBytes = USUAL_BYTES,
        spent_bytes: int = 0,
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self.misfit: str | None = None  # what the user told of the last step that fits no tensor
        self.is_spent = False  # the run's budget of bytes: from some step on less is kept
        self.is_cut = False  # by a step's budget, what some step would have kept
        self.backwards = [""]  # the names of backward passes that quantities may speak of
        self._selection = selection
        self._step_bytes = most_bytes.step
        self._run_bytes_left = max(most_bytes.run - spent_bytes, 0)
        self._groups = NeuronGroups(neurons or NeuronSelection(), site_name)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._neuron_steps: dict[tuple[int, int, int], tuple[int, int]] = {}  # of thinned tensors
        self._fitted: tuple[list[Plan], int, list[Extent]] = [], 0, []
        self._moments = Moments()
        self.drop()

    def begin(self, *, batch_size: int | None = None, holds_all: bool = False) -> None:
        """Start a step. A dimension of another size than `batch_size` is not taken for a batch.

        With `holds_all`, all samples are held until `take` is told which of them to keep.
        """
        self.drop()
        self._facts = BatchFacts(batch_size)
        self._holds_all = holds_all

    def drop(self) -> None:
        """Forget what was seen since the step began."""
        self._facts = BatchFacts()
        self._holds_all = False
        self._rule = self._selection
        self._batches: dict[tuple[int, int], tuple[bool, tuple[int, ...] | None]] = {}
        self._chosen: dict[tuple[int, int], tuple[int, ...]] = {}
        self._seen: list[Seen] = []
        self._held_bytes = 0
        self._moments.clear()

    def categories(self, labels: Any, *, iteration: int | None = None) -> None:
        """Say to which category each sample belongs, in a part of the step or one iteration."""
        self.learn("categories", labels, iteration)

    def data_indices(self, indices: Any, *, iteration: int | None = None) -> None:
        """Say where in the data set each sample is."""
        self.learn("data_indices", indices, iteration)

    def losses(self, per_sample_losses: Any, *, iteration: int | None = None) -> None:
        """Say which loss each sample has; the means, where a sample has several."""
        self.learn("losses", per_sample_losses, iteration)

    def learn(
        self, fact: Fact, values: Any, iteration: int | None = None, *, is_ahead: bool = False
    ) -> None:
        """Take any of these; what `is_ahead` is of the forward pass that comes next."""
        self._facts.give(fact, values, iteration, is_ahead=is_ahead)
        self._batches.clear()

    def begin_part(self, iteration: int) -> None:
        """Another part of the step begins, such as a micro-batch, whose samples are others."""
        self._facts.begin_part(iteration)
        self._batches.clear()

    def reach(self, iteration: int) -> None:
        """A forward pass begins, in an iteration that the user has begun."""
        self._facts.reach(iteration)
        self._batches.clear()

    def observe(
        self,
        tensor: torch.Tensor,
        site: int,
        quantity: int,
        iteration: int = 0,
        batch_dim: int | None = 0,
    ) -> None:
        """Copy what may be kept of a tensor, and nothing else; nothing waits for its device."""
        if self._rule is None and not self._holds_all:
            return
        is_in_memory = is_plain(tensor)
        if not is_in_memory:
            tensor = local_part(tensor)
            if not has_values(tensor):
                self.left_out["tensors"] += 1
                return
            tensor = dense(tensor)
        plan = self._plan(tensor, batch_dim, iteration, site)
        extent, moments = plan.wanted, None
        if not extent.samples:
            return
        if self._neuron_steps:
            extent = self._thinned(plan, (site, quantity, iteration))
        if is_in_memory and plan.spans and extent is plan.wanted:
            values: Copy | None = self._once(plan, plan.read(tensor.data_ptr()))
        else:
            values, moments = self._copied(tensor, plan, extent)
        self._seen.append(Seen(plan, site, quantity, iteration, extent, values, moments))
        self._held_bytes += 0 if values is None else size_of(values)
        if self._held_bytes > _HELD_STEPS * self._step_bytes:
            self._relieve()

    def take(
        self, step: int, *, keep: SampleSelection | Iterable[int] | int | None = None
    ) -> tuple[pa.RecordBatch | None, StepValues | None]:
        """The step's rows of the `samples` table, and the values to write; None if there are none.

        `keep` says which samples, if not those that the keeper was made for; of those that are not
        held nothing is kept. What the values take on disk is counted as part of the run's budget.

        >>> keeper = ValueKeeper(None)
        >>> keeper.begin(holds_all=True)
        >>> keeper.observe(torch.tensor([[1.0], [2.0], [3.0]]), site=0, quantity=0)
        >>> keeper.take(step=0, keep=[2, 0])[1].entries[0].array.tolist()
        [[3.0], [1.0]]
        """
        if keep is not None:
            self._rule = _as_rule(keep)
            self._chosen.clear()
        rows = values = self.misfit = None
        if self._rule is not None:
            self._facts.settle()
            self.misfit = self._facts.misfit({seen.plan.shape for seen in self._seen} - {()})
            self._decide(is_end=True, is_narrower=keep is not None)
            if isinstance(keep, Sequence) and keep:
                self._check_chosen()
            self._fit_budget(min(self._step_bytes, self._run_bytes_left))
            self._bring_home()
            self._complete()
            rows = sample_rows(step, self._seen, self.backwards)
            values = self._values()
        self.drop()
        return rows, values

    def give_back(self, values: StepValues) -> None:
        """Say that values which were taken are not written: the run's budget has them again."""
        self._run_bytes_left += values.most_file_bytes

    # -- what is kept of a tensor

    def _plan(self, tensor: torch.Tensor, batch_dim: int | None, iteration: int, site: int) -> Plan:
        shape = tensor.shape
        dim = 0 if batch_dim == 0 and shape else checked_dim(shape, batch_dim)
        samples: tuple[int, ...] | None = ALONE
        if dim is not None:
            batch = (shape[dim], iteration)
            known = self._batches.get(batch)
            if known is None:
                known = self._batches[batch] = self._look_up(*batch)
            is_batch, samples = known
            if not is_batch:
                dim, samples = None, ALONE
        return self._plan_for(shape, tensor.dtype, dim, samples, self._groups.at(site))

    def _look_up(self, size: int, iteration: int) -> tuple[bool, tuple[int, ...] | None]:
        """Whether a dimension of this size is a batch, and which of its samples, if known."""
        if not self._facts.is_batch(size, iteration):
            return False, None
        return True, None if self._holds_all else self._choose(size, iteration, may_wait=False)

    def _plan_for(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        dim: int | None,
        samples: tuple[int, ...] | None,
        group: int,
    ) -> Plan:
        key = (shape, dtype, dim, samples, group)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            neurons = self._groups.selections[group]
            plan = make_plan(tuple(shape), dtype, dim, samples, neurons, group)
            self._plans[key] = plan
        return plan

    def _choose(self, size: int, iteration: int, *, may_wait: bool) -> tuple[int, ...] | None:
        """The chosen samples, or None if that is not known; once chosen, it stays so."""
        key = (size, iteration)
        if key not in self._chosen and self._rule is not None:
            samples = self._facts.choose(self._rule, size, iteration, may_wait=may_wait)
            if samples is not None:
                self._chosen[key] = tuple(samples)
        return self._chosen.get(key)

    def _thinned(self, plan: Plan, key: tuple[int, int, int]) -> Extent:
        """What a tensor lost in the last step it would lose again: it is not copied."""
        neurons, step = self._neuron_steps.get(key, (-1, 0))
        if neurons != plan.wanted.neurons or step <= plan.wanted.neuron_step:
            return plan.wanted
        return replace(plan.wanted, neuron_step=step)

    def _once(self, plan: Plan, values: bytes) -> bytes:
        """The last copy again, if a tensor is seen at several sites, one after the other."""
        if self._seen:
            last = self._seen[-1]
            if last.plan is plan and type(last.values) is bytes and last.values == values:
                return last.values
        return values

    def _copied(
        self, tensor: torch.Tensor, plan: Plan, extent: Extent
    ) -> tuple[Copy | None, int | None]:
        """A copy, and where the moments are of that which it does not hold."""
        rows = plan.rows(tensor)
        is_partial = plan.batch_dim is not None and not plan.has_all(extent)
        moments = self._moments.add(rows) if is_partial else None
        values = None if plan.columns == () else plan.copy(rows, extent.neuron_step)
        return values, moments

    # -- which samples

    def _check_chosen(self) -> None:
        """Say so where positions were asked for that no batch of the step has."""
        if self._chosen and not any(self._chosen.values()):
            most = max(size for size, _ in self._chosen)
            raise BacklightError(
                f"step.keep() got samples that the batch does not have, which has {most}: no raw "
                f"values of this step are kept; use numbers from 0 to {most - 1}."
            )

    def _decide(self, *, is_end: bool = False, is_narrower: bool = False) -> None:
        """Choose the samples of the tensors of which all are held, where that can be known."""
        for seen in self._seen:
            if seen.plan.batch_dim is not None and (seen.plan.samples is None or is_narrower):
                size = seen.plan.batch_size
                samples = self._choose(size, seen.iteration, may_wait=is_end)
                if samples is None and is_end:
                    samples = self._without_facts(seen)
                if samples is not None:
                    self._settle(seen, samples)

    def _settle(self, seen: Seen, samples: tuple[int, ...]) -> None:
        plan, places = seen.plan, list(samples)
        if plan.samples is not None:
            places = [plan.samples.index(sample) for sample in samples if sample in plan.samples]
            places.sort(key=lambda place: place >= seen.extent.samples)  # first, if still held
            self.left_out += Counter(samples=len(samples) - len(places))
            samples = tuple(plan.samples[place] for place in places)
        narrower = self._plan_for(plan.shape, plan.dtype, plan.batch_dim, samples, plan.group)
        seen.decide(narrower, places)

    def _without_facts(self, seen: Seen) -> tuple[int, ...]:
        size = seen.plan.batch_size
        if self._rule is None or not self._facts.is_batch(size, seen.iteration):
            self.left_out += Counter(tensors=int(seen.values is not None))
            return ()
        self.left_out["choices"] += 1
        return tuple(range(min(self._rule.count, size)))

    # -- how much of it

    def _relieve(self) -> None:
        """Hold less: more was seen in a step than may be held until it ends."""
        if not self._holds_all:
            self._decide()
        self._shrink(_HELD_STEPS * self._step_bytes // 2)

    def _fit_budget(self, budget_bytes: int) -> None:
        wanted_bytes = sum([seen.plan.file_bytes for seen in self._seen if seen.values is not None])
        if wanted_bytes > budget_bytes:
            is_of_run = budget_bytes == self._run_bytes_left
            self.is_spent, self.is_cut = self.is_spent or is_of_run, self.is_cut or not is_of_run
        if wanted_bytes > budget_bytes or self._neuron_steps:
            self._shrink(budget_bytes)

    def _shrink(self, budget_bytes: int) -> None:
        held = [seen for seen in self._seen if seen.values is not None]
        pairs = list(zip(held, self._fit([seen.plan for seen in held], budget_bytes), strict=True))
        self._find_moments([seen for seen, extent in pairs if extent is not seen.extent])
        for seen, extent in pairs:
            seen.cut(extent)
            self._remember(seen, extent)
        self.left_out += Counter(tensors=sum(seen.values is None for seen in held))
        self._held_bytes = sum(size_of(seen.values) for seen in held if seen.values is not None)

    def _fit(self, plans: list[Plan], budget_bytes: int) -> list[Extent]:
        """What fits, which in most steps is the same as in the last one."""
        if self._fitted[0] != plans or self._fitted[1] != budget_bytes:
            found = fit([plan.wanted for plan in plans], budget_bytes)
            self._fitted = plans, budget_bytes, found
        return self._fitted[2]

    def _remember(self, seen: Seen, extent: Extent) -> None:
        wanted = seen.plan.wanted
        if extent.samples and extent.neuron_step > wanted.neuron_step:
            self._neuron_steps[seen.key] = wanted.neurons, extent.neuron_step
        else:
            self._neuron_steps.pop(seen.key, None)

    # -- the end of a step

    def _bring_home(self) -> None:
        """Get the copies that are on a device."""
        away = [seen for seen in self._seen if isinstance(seen.values, torch.Tensor)]
        copies = [seen.values for seen in away if seen.values is not None]
        for seen, copy in zip(away, to_host(copies), strict=True):
            seen.values = copy

    def _find_moments(self, those: Sequence[Seen]) -> None:
        """Compute the moments that only the values have as yet."""
        copies: list[CopiedRows] = []
        waiting: list[tuple[Seen, int]] = []
        for seen in those:
            if seen.moments is None and seen.values is not None and seen.plan.batch_dim is not None:
                if not isinstance(seen.values, bytes):
                    seen.moments = self._moments.add(seen.values)
                    continue
                # What several sites share is looked at once.
                if not waiting or not waiting[-1][0].shares_values(seen):
                    copies.append((seen.values, seen.plan.dtype_name, seen.extent.samples))
                waiting.append((seen, len(copies) - 1))
        found = copied_moments(copies)
        for seen, place in waiting:
            seen.moments = found[place]

    def _complete(self) -> None:
        """Get all that is said of the samples."""
        self._find_moments(self._seen)
        computed = self._moments.take()
        indices: dict[tuple[Plan, int], tuple[int | None, ...]] = {}
        for seen in self._seen:
            if type(seen.moments) is int:
                seen.moments = computed[seen.moments]
            key = (seen.plan, seen.iteration)
            if key not in indices:
                indices[key] = self._indices(*key)
            seen.data_indices = indices[key]

    def _indices(self, plan: Plan, iteration: int) -> tuple[int | None, ...]:
        """Where the samples are in the user's data set; None where that was not said."""
        known = self._facts.get("data_indices", iteration, may_wait=True)
        if known is None or len(known) != plan.batch_size:
            return (None,) * len(plan.batch_samples)
        return tuple([known[place] for place in plan.batch_samples])

    def _values(self) -> StepValues | None:
        held = [seen for seen in self._seen if seen.values is not None]
        if not held:
            return None
        for seen in held:
            if seen.extent is not seen.plan.wanted:
                self._count_losses(seen.plan.wanted, seen.extent)
        file_bytes = sum([seen.file_bytes for seen in held])
        self._run_bytes_left -= file_bytes
        return StepValues(tuple([self._entry(seen) for seen in held]), file_bytes)

    def _count_losses(self, wanted: Extent, kept: Extent) -> None:
        neurons, samples = wanted.columns - kept.columns, wanted.samples - kept.samples
        self.left_out += Counter(neurons=neurons, samples=samples)

    def _entry(self, seen: Seen) -> KeptValues:
        plan, extent = seen.plan, seen.extent
        samples, indices = plan.batch_samples, seen.data_indices
        if len(samples) > extent.samples:
            samples, indices = samples[: extent.samples], indices[: extent.samples]
        chosen = plan.kept_neurons(extent)
        backward, quantity = divmod(seen.quantity, len(QUANTITIES))
        assert isinstance(seen.values, bytes)
        return KeptValues(  # by position, which takes half as long
            seen.site,
            QUANTITIES[quantity],
            self.backwards[backward],
            seen.iteration,
            plan.dtype_name,
            plan.shape,
            plan.batch_dim,
            samples,
            indices,
            plan.neurons,
            extent.neuron_step if chosen is None else 1,
            plan.array(seen.values, extent),
            chosen_neurons=chosen,
        )


def _as_rule(keep: object) -> SampleSelection | None:
    """Which samples are kept; unlike those to watch, they may turn out to be none."""
    if isinstance(keep, Iterable) and not isinstance(keep, (str, bytes, Mapping)):
        keep = tuple(keep)
    return SampleSelection("positions", 0) if keep == () else as_selection(keep)
