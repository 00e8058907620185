"""Tells when something happens that the steps before it should be kept for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from backlight.blackbox import SpikeDetector, first_nonfinite, gradient_norm


class Happening(NamedTuple):
    """What happened, of which kind, and at which site; -1 where that is none."""

    kind: str
    text: str
    site: int = -1


class Alarm:
    """Looks at what a step recorded, and at the losses that are logged."""

    def __init__(self) -> None:
        self._spikes = {"loss": SpikeDetector(), "gradient norm": SpikeDetector()}
        self._has_been_nonfinite = False

    @property
    def losses(self) -> deque[float]:
        """The last losses."""
        return self._spikes["loss"].values

    def remember(self, losses: list[float]) -> None:
        """Take in losses of which it is known that none is a spike."""
        self._spikes["loss"].remember(losses)

    def nonfinite(self, stats: Any, where: Callable[[int], str] | None = None) -> Happening | None:
        """The first value of the run that is not finite."""
        if self._has_been_nonfinite or getattr(stats, "is_finite", False):
            return None
        found = first_nonfinite(stats)
        if found is None:
            return None
        self._has_been_nonfinite = True
        text = (
            f"{found['nans']} NaN and {found['infs']} infinite of {found['count']} elements "
            f"({found['quantity']})"
        )
        place = where(found["order"]) if where is not None else ""
        text = f"{text}, {place}" if place else text
        return Happening("nonfinite", text, found["site"])

    def gradient_spike(self, stats: Any) -> Happening | None:
        """A norm of all gradients that stands out from those before it."""
        norm = gradient_norm(stats)
        return None if norm is None else self._spike("gradient norm", norm)

    def loss_spike(self, loss: float) -> Happening | None:
        """A loss that stands out from those before it."""
        return self._spike("loss", loss)

    def _spike(self, what: str, value: float) -> Happening | None:
        if not self._spikes[what].is_spike(value):
            return None
        return Happening("spike", f"{what} {value:.4g}")
