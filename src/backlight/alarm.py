"""Tells when something happens that the steps before it should be kept for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from math import isnan
from typing import Any, Final, NamedTuple

from backlight.blackbox import Nonfinite, SpikeDetector, gradient_norm, nonfinite_in

_TOLD_AT_ONCE: Final = 8
"""So many values that are not finite are told without a pause. After that, pauses grow, so that
n steps have some 4 √n of them: in some loops they come and go at every other step."""

_SPREADING_STEPS: Final = 8
"""While a value that is not finite lasts, others that follow within so many steps came of it."""


class Happening(NamedTuple):
    """What happened, of which kind, and at which site; -1 where that is none."""

    kind: str
    text: str
    site: int = -1


class Alarm:
    """Looks at what a step recorded, at the loss that it had, and at the losses that are logged."""

    def __init__(self) -> None:
        self._logged_losses = SpikeDetector()
        self._losses: defaultdict[str, SpikeDetector] = defaultdict(SpikeDetector)  # by kind
        self._gradient_norms = SpikeDetector()
        self._spiked = {True: -1, False: -1}  # the last step that did, by a loss logged or found
        self._nonfinite = (_Kind(), _Kind())  # where there is NaN, and where infinity
        self._is_nan_logged = False  # the last loss that was
        self._told = self._pause = 0  # how many of those, and the steps until the next

    @property
    def losses(self) -> deque[float]:
        """The last losses that were logged."""
        return self._logged_losses.values

    @property
    def is_calm(self) -> bool:
        """Whether a step whose values are all finite changes nothing here."""
        return not self._pause and not any(kind.places for kind in self._nonfinite)

    def remember(self, losses: list[float]) -> None:
        """Take in losses that were logged, of which it is known that none is a spike."""
        self._logged_losses.remember(losses)

    def nonfinite(
        self,
        stats: Any,
        where: Callable[[int], str] | None = None,
        *,
        are_gradients_scaled: bool = False,
    ) -> Happening | None:
        """A value that is not finite, at a place that was finite when it was last seen.

        What it spreads to in the steps after it is no news, nor is a mask that is always infinite,
        nor, where they `are_gradients_scaled` too far, a gradient.
        """
        if stats is None:
            return None
        self._pause = max(self._pause - 1, 0)
        nan, infinite = self._nonfinite
        if getattr(stats, "is_finite", False) and not (nan.places or infinite.places):
            return None  # as most steps are
        found = nonfinite_in(stats, [kind.places for kind in self._nonfinite])
        if are_gradients_scaled:
            found = found.without_gradients()
        is_waiting = self._pause > 0
        news = [
            place
            for kind, places in zip(self._nonfinite, found.kinds, strict=True)
            for place in kind.see(places, found.seen, is_waiting=is_waiting)
        ]
        if not news:
            return None
        self._told += 1
        self._pause = self._told // _TOLD_AT_ONCE
        return _told_of(found, news, where)

    def gradient_spike(self, stats: Any, scale: float = 1.0) -> Happening | None:
        """A norm of all gradients, without their scale, that stands out from those before it."""
        norm = gradient_norm(stats)
        norm = None if norm is None else norm / scale
        if norm is None or not self._gradient_norms.is_spike(norm):
            return None
        return Happening("spike", f"gradient norm {norm:.4g}")

    def loss_spike(self, step: int, loss: float, kind: str | None = None) -> Happening | None:
        """A loss that stands out from those before it: of steps of a kind, or that were logged.

        What was told of the one is not told of the other in the same step.
        """
        if kind is None and isnan(loss):
            return self._nan_is_logged()
        is_logged = kind is None
        detector = self._logged_losses if kind is None else self._losses[kind]
        self._is_nan_logged &= not is_logged
        if not detector.is_spike(loss) or step == self._spiked[not is_logged]:
            return None
        self._spiked[is_logged] = step
        return Happening("spike", f"loss {loss:.4g}")

    def _nan_is_logged(self) -> Happening | None:
        """A loss that is NaN, though none before it was, nor anything that was recorded."""
        is_news = not self._is_nan_logged and not any(kind.places for kind in self._nonfinite)
        self._is_nan_logged = True
        return Happening("nonfinite", "loss nan") if is_news else None


class _Kind:
    """Where values are NaN, or infinite: the places that were so when each was last seen."""

    def __init__(self) -> None:
        self.places: set[int] = set()
        self._spreading: set[int] = set()  # those of what was told last, while it may yet spread
        self._quiet_steps = 0

    def see(self, places: set[int], seen: set[int], *, is_waiting: bool) -> set[int]:
        """The places of a step that are news; while it is waited, they are so later, if at all."""
        self.places -= seen - places
        self._spreading &= self.places
        new = places - self.places
        self._quiet_steps = 0 if new else self._quiet_steps + 1
        if self._quiet_steps >= _SPREADING_STEPS:
            self._spreading.clear()
        is_told = not self._spreading
        if is_told and is_waiting:
            return set()
        self._spreading |= new
        self.places |= new
        return new if is_told else set()


def _told_of(found: Nonfinite, news: list[int], where: Callable[[int], str] | None) -> Happening:
    row = found.first_of(news)
    text = (
        f"{row['nans']} NaN and {row['infs']} infinite of {row['count']} elements "
        f"({row['quantity']})"
    )
    place = where(row["order"]) if where is not None else ""
    return Happening("nonfinite", f"{text}, {place}" if place else text, row["site"])
