"""Which steps are recorded.

A schedule says for each step, by its number and kind, why it is recorded, or None. It may learn
from what recording costs. The default keeps that under a share of the training time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import inf
from typing import Protocol, runtime_checkable

import numpy as np

from backlight.errors import BacklightError


@runtime_checkable
class Schedule(Protocol):
    """Decides which steps are recorded."""

    def wants(self, step: int, kind: str) -> str | None:
        """Why this step is recorded, in a word or two; None if it is not.

        Before a step begins it is asked for as one of training; if it turns out to be of another
        kind, the schedule is asked again, and the last question counts.
        """

    def learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """A step has ended; recording took a part of its duration, 0 if there was none."""


class Every:
    """Each n-th step of each kind, the first one included.

    >>> schedule, recorded = Every(10), []
    >>> for step in range(25):
    ...     if schedule.wants(step, "train"):
    ...         recorded.append(step)
    ...     schedule.learn("train", 1.0, 0.0)
    >>> recorded
    [0, 10, 20]
    >>> schedule.wants(25, "evaluation")
    'every 10'
    """

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise BacklightError(f"every={n!r} is not a whole number of steps: use 1 or more.")
        self._n, self._reason = n, f"every {n}"
        self._seen: dict[str, int] = {}

    def wants(self, step: int, kind: str) -> str | None:
        """Yes for each n-th step of its kind."""
        return self._reason if self._count(step, kind) % self._n == 0 else None

    def cycle(self) -> tuple[str, int]:
        """The n - 1 steps of a kind after each that is wanted are not."""
        return self._reason, self._n - 1

    def lease(self, step: int, kind: str) -> tuple[int, float]:
        """The steps up to the next n-th."""
        return self._n - 1 - self._count(step, kind) % self._n, inf

    def learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """Costs change nothing; steps are counted."""
        self._seen[kind] = self._seen.get(kind, 0) + 1

    def _count(self, step: int, kind: str) -> int:
        """How many there were of this kind. A resumed run begins with the number of its step."""
        return self._seen.setdefault(kind, 0 if self._seen else step)


class PerKind:
    """Each kind of step on its own: a gap of at least `gap` steps, which grows by `backoff`.

    >>> schedule = PerKind(gap=1, backoff=2.0)
    >>> [step for step in range(20) if schedule.wants(step, "train")]
    [0, 1, 3, 7, 15]
    >>> schedule.wants(16, "rare")
    'first of its kind'
    """

    def __init__(self, *, gap: int = 1, backoff: float = 1.0) -> None:
        if not (_is_number(gap) and _is_number(backoff) and gap >= 1 and backoff >= 1):
            raise BacklightError(
                f"PerKind(gap={gap!r}, backoff={backoff!r}): both must be numbers of at least 1."
            )
        self._first_gap, self._backoff = gap, backoff
        self._gaps: dict[str, float] = {}
        self._last: dict[str, int] = {}
        self._wanted: tuple[int, str] | None = None  # the last; it may be of another kind

    def wants(self, step: int, kind: str) -> str | None:
        """Yes for the first step of a kind, and after a long enough gap since its last one."""
        if self._wanted is not None and self._wanted[0] < step:
            self._count(*self._wanted)
        self._wanted = None
        if kind in self._last and step - self._last[kind] < self._gaps[kind]:
            return None
        self._wanted = step, kind
        return "gap of its kind" if kind in self._last else "first of its kind"

    def _count(self, step: int, kind: str) -> None:
        """A step that was wanted has been, and was of this kind."""
        gap = self._gaps.get(kind)
        self._last[kind] = step
        self._gaps[kind] = self._first_gap if gap is None else gap * self._backoff

    def learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """Costs change nothing."""


class Chosen:
    """The steps of a set, or those that a function of the step's number and kind says yes to.

    >>> schedule = Chosen({3, 5})
    >>> [step for step in range(8) if schedule.wants(step, "train")]
    [3, 5]
    >>> Chosen(lambda step: step < 2).wants(1, "train")
    'chosen'
    """

    def __init__(self, choice: Collection[int] | Callable[..., bool]) -> None:
        self._steps = None if callable(choice) else frozenset(choice)
        self._ask = choice if callable(choice) else None
        self._takes_kind = self._ask is not None and _takes_two(self._ask)

    def wants(self, step: int, kind: str) -> str | None:
        """What the set or the function says."""
        if self._ask is None:
            return "chosen" if step in (self._steps or ()) else None
        answer: object = self._ask(step, kind) if self._takes_kind else self._ask(step)
        if answer is not None and not isinstance(answer, (int, np.bool_, np.integer)):
            raise BacklightError(
                f"The schedule answered with a {type(answer).__name__}: return True or False."
            )
        return "chosen" if answer else None

    def learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """Costs change nothing."""


class Budget:
    """Keeps the time spent recording under a share of the training time.

    Dense at the start: the first steps of each kind are recorded. After that a step is recorded
    when the budget can pay for it; a kind that is rare is also recorded at its 16th, 32nd, 64th, …
    step, so that it is never starved.

    >>> schedule = Budget(0.5)
    >>> for step in range(100):
    ...     cost = 2.0 if schedule.wants(step, "train") else 0.0
    ...     schedule.learn("train", 1.0 + cost, cost)
    >>> round(schedule.share, 1)
    0.5
    """

    dense_steps = 8

    def __init__(self, share: float) -> None:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise BacklightError(f"budget={share!r} is no share of the time: use 0.03 for 3%.")
        self._budget = share
        self._training_secs = self._recording_secs = 0.0
        self._costs: dict[str, float] = {}
        self._seen: Counter[str] = Counter()

    @property
    def share(self) -> float:
        """The share of the time without recording that recording took so far."""
        return self._recording_secs / self._training_secs if self._training_secs else 0.0

    def wants(self, step: int, kind: str) -> str | None:
        """Yes while the budget pays for what a step of this kind is known to cost."""
        seen = self._seen[kind]
        if seen < self.dense_steps:
            return "start"
        if seen >= 2 * self.dense_steps and (seen & (seen - 1)) == 0:
            return "rare kind"
        paid = self._recording_secs + self._costs.get(kind, 0.0)
        return "budget" if paid <= self._budget * self._training_secs else None

    def lease(self, step: int, kind: str) -> tuple[int, float]:
        """The steps before the next one that is wanted for being rare, and until it can be paid."""
        seen = self._seen[kind]
        if seen < self.dense_steps:
            return 0, 0.0
        most = (1 << seen.bit_length()) - seen - 1
        paid = self._recording_secs + self._costs.get(kind, 0.0)
        # A little less, because sums are rounded: then it is asked once more.
        return most, paid / self._budget * (1 - 1e-9) - self._training_secs

    def learn(self, kind: str, duration_secs: float, recording_secs: float) -> None:
        """Pay for a recorded step, and let the others earn."""
        self._seen[kind] += 1
        self._training_secs += max(duration_secs - recording_secs, 0.0)
        self._recording_secs += recording_secs
        if recording_secs:
            before = self._costs.get(kind, recording_secs)
            self._costs[kind] = before + 0.2 * (recording_secs - before)


def lease(schedule: Schedule, step: int, kind: str) -> tuple[int, float]:
    """For how many steps of a kind after this one, which is not wanted, none is wanted either.

    That holds while they train for fewer seconds than it says too. Other schedules than those here
    have to be asked at each step.

    >>> lease(Every(10), 3, "train")
    (6, inf)
    """
    if type(schedule) is Every or type(schedule) is Budget:
        return schedule.lease(step, kind)
    return 0, 0.0


def cycle(schedule: Schedule) -> tuple[str, int] | None:
    """Why steps are recorded, and how many of their kind after each are not, if that stays so.

    >>> cycle(Every(10)), cycle(Budget(0.03))
    (('every 10', 9), None)
    """
    return schedule.cycle() if type(schedule) is Every else None


def make_schedule(every: int | None, budget: float | None, schedule: object | None) -> Schedule:
    """The schedule that the options of `backlight.watch` ask for; at most one may be given."""
    if sum(option is not None for option in (every, budget, schedule)) > 1:
        raise BacklightError("Give only one of every=, budget= and schedule=.")
    if every is not None:
        return Every(every)
    if schedule is None:
        return Budget(0.03 if budget is None else budget)
    if isinstance(schedule, Schedule) and not isinstance(schedule, type):
        return schedule
    if (callable(schedule) and not isinstance(schedule, type)) or (
        isinstance(schedule, Collection) and all(isinstance(step, int) for step in schedule)
    ):
        return Chosen(schedule)
    raise BacklightError(
        f"schedule is {_kind_of(schedule)}: pass a set of steps, a function of the step's "
        "number, or a backlight.schedule.Schedule."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _takes_two(function: Callable[..., bool]) -> bool:
    """Whether a function wants the step's kind beside its number."""
    from inspect import Parameter, signature

    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is Parameter.empty]
    return len(required) >= 2
