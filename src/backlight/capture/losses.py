"""The losses of a captured step: the tensors that its backward passes start from."""

from __future__ import annotations

import torch

from backlight.capture.named import NamedTensors
from backlight.capture.observer import Observer
from backlight.capture.sites import SiteBook
from backlight.course import Course
from backlight.telling import LOSS


class LossCapture:
    """Records each loss under its name, and gives one to those that the user has not named."""

    def __init__(self, course: Course, observer: Observer, sites: SiteBook) -> None:
        self.found = NamedTensors()  # those of the step that the user has not named
        self.named = NamedTensors()  # all that the user has named in the step
        self._sites_by_number: dict[int, int] = {}  # of an iteration's losses, in their order
        self._course = course
        self._observer = observer
        self._sites = sites

    @property
    def first_site(self) -> int:
        """The site of an iteration's first loss; below 0 where it has none."""
        return self._sites_by_number.get(1, -1)

    def begin(self) -> None:
        """Another step begins."""
        self.found.clear()
        self.named.clear()

    def see(self, tensor: torch.Tensor) -> None:
        """A backward pass starts from a tensor."""
        if self.found.known and self.found.site_of(tensor) is not None:
            return
        if self.named.known and self._is_named(tensor):
            return
        course, observer = self._course, self._observer
        number = course.losses + 1 if course.loss_iteration == observer.iteration else 1
        course.loss_iteration, course.losses = observer.iteration, number
        site = self._sites_by_number.get(number)
        if site is None:
            site = self._sites_by_number[number] = self._name(number)
        if observer.graph is not None and site >= 0:
            observer.graph.loss(site, tensor)
        observer.on_named(site, tensor, observer.iteration, batch_dim=None)
        self.found.add(tensor, site)

    def _is_named(self, tensor: torch.Tensor) -> bool:
        """Whether the user has named this loss: then it has a site, and needs no other."""
        site = self.named.site_of(tensor)
        if site is None:
            return False
        self._sites.call_loss(site)
        if self._observer.graph is not None:
            self._observer.graph.loss(site, tensor)
        return True

    def _name(self, number: int) -> int:
        """The site of the loss of an iteration's first backward pass, or of a later one."""
        name = LOSS if number == 1 else f"{LOSS}#{number}"
        return self._sites.named(
            name, module="", node=LOSS, role=name, kind="loss", step=self._course.step
        )
