"""What the kernel's types do, in Python: used where Backlight is installed without the kernel."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

_perf = time.perf_counter


class Seen:
    """A tensor as it was when it was read, without keeping it alive.

    Called with its gradient, it lets the observer see that.
    """

    __slots__ = (
        "_first",
        "_mark",
        "_observer",
        "_sights",
        "_step",
        "_tensor",
        "_told",
        "row",
        "units",
    )

    def __init__(
        self, observer: Any, tensor: Any, mark: tuple[int, int] | None, row: int | None, units: int
    ) -> None:
        self._observer, self._step = observer, observer.step
        self._tensor = weakref.ref(tensor)
        self._mark = mark
        self.row = row
        self.units = units
        self._sights: list[tuple[int, int]] = []  # site and iteration
        self._first = self._told = 0

    def __call__(self, grad: Any) -> None:
        """A gradient of it has come."""
        observer = self._observer
        if self._step == observer.step and observer.is_open:
            started = _perf()
            observer.has_backward = True
            observer._on_grad(self, grad)
            observer.recording_secs += _perf() - started

    @property
    def has_sights(self) -> bool:
        """Whether its gradient is waited for."""
        return bool(self._sights)

    def is_again(self, tensor: Any, mark: tuple[int, int] | None) -> bool:
        """Whether this is that tensor, unchanged."""
        return mark is not None and mark == self._mark and self._tensor() is tensor

    def add_sight(self, site: int, iteration: int) -> None:
        """The tensor is seen at a site, in an iteration."""
        self._sights.append((site, iteration))

    def take_sights(self) -> list[tuple[int, int]]:
        """Where a gradient belongs to: the sights since the last one, or again the same.

        A leaf that several iterations see has a gradient of each of their backward passes.
        """
        if self._told < len(self._sights):
            self._first, self._told = self._told, len(self._sights)
        return self._sights[self._first :]


class Sights:
    """What an observer knows of the step under way."""

    recording_secs = 0.0
    step = iteration = update_iteration = grad_code = 0
    is_open = has_backward = is_native = is_plain = is_quick = False

    def see(self, tensor: Any, site: int, units: int) -> bool:
        """A tensor is seen at a site; it is left to others to read it."""
        return False

    def before_update(self, trained: list[tuple[Any, Any]]) -> bool:
        """An optimizer is about to step; it is left to others to read what it trains."""
        return False

    def after_update(self, trained: list[tuple[Any, Any]], states: Any) -> bool:
        """The same, after it has stepped."""
        return False


class Held:
    """A parameter or a buffer of a module. Called with a gradient of it, it lets that be seen."""

    def __init__(
        self, observer: Any, owner: Any, shelf: str, place: str, identity: int, site: int
    ) -> None:
        self._observer = observer
        self.site = site
        self.before: Any = None  # the value before an update
        self.states: dict[str, int] = {}
        self.is_before_known = False
        self.hooked = 0
        self.has_others = False
        self._made: int | None = None
        self._made_step, self._times = -1, 0

    def __call__(self, grad: Any) -> None:
        """Autograd has made a gradient."""
        observer = self._observer
        if observer.is_open:
            started = _perf()
            observer.has_backward = True
            observer._on_parameter_grad(self, grad)
            observer.recording_secs += _perf() - started

    @property
    def has_been_made(self) -> bool:
        """Whether autograd has made a gradient in this step."""
        return self._made_step == self._observer.step and self._times > 0

    @property
    def made(self) -> int | None:
        """The fingerprint of the gradient that autograd made, if it made one, in this step."""
        return self._made if self.has_been_made else None

    def note_made(self, fingerprint: int | None) -> None:
        """Autograd has made a gradient; of several, none is what is applied."""
        self._times = self._times + 1 if self.has_been_made else 1
        self._made_step = self._observer.step
        self._made = fingerprint if self._times == 1 else None


def hook_held(places: list[Any], key: Any) -> list[Any]:
    """Those that others must put on their parameters: all."""
    return places


def unhook_held(places: list[Any]) -> list[Any]:
    """Those that others must take off their parameters: all."""
    return places


def are_held(places: list[Any]) -> bool:
    """Whether the tensor of each is there: false, which says that others must look."""
    return False


def size_of(module: Any) -> int:
    """How many tensors and modules a module has itself; -1 of None."""
    if module is None:
        return -1
    shelves = module._parameters, module._buffers, module._modules
    return sum(each is not None for shelf in shelves for each in shelf.values())


def has_strangers(found: Mapping[int, tuple[Callable[[], Any], Any]]) -> bool:
    """Whether any module is gone, or has one in it that is not among them."""
    for reference, *_ in found.values():
        module = reference()
        inside = () if module is None else module._modules.values()
        if module is None or any(each is not None and id(each) not in found for each in inside):
            return True
    return False


def sizes_differ(sizes: list[tuple[Callable[[], Any], int]]) -> bool:
    """Whether any module, by a weak reference, has not so many tensors and modules."""
    return any(size_of(reference()) != size for reference, size in sizes)


def find_held(places: list[Any]) -> list[tuple[Any, Any]] | None:
    """Pairs of each and its tensor: None, which says that others must look."""
    return None


class Call:
    """One call of a module; the same in every step, so that what is known of it stays."""

    __slots__ = ("is_recomputed", "module", "module_class", "number", "places")

    def __init__(self, module: str, module_class: str, number: int, is_recomputed: bool) -> None:
        self.module = module
        self.module_class = module_class
        self.number = number
        self.is_recomputed = is_recomputed
        self.places: dict[str, tuple[int, int, int]] = {}


class Callee:
    """A module, without keeping it alive, and its calls by their number."""

    __slots__ = ("calls", "reference", "round", "takes_keywords", "times")

    def __init__(self, reference: Callable[[], Any], calls: list[Call]) -> None:
        self.reference = reference
        self.calls = calls
        self.round, self.times, self.takes_keywords = -1, 0, -1


class CallHooks:
    """The hooks on modules, each of which is left to a method."""

    _sights: Any = None
    hooks_secs = 0.0
    _round = _rounds_since = _thread = 0
    is_quick = _is_listening = _is_set = False
    _hooks: tuple[tuple[Any, Any], ...] = ()

    @property
    def before(self) -> Callable[..., None]:
        """A module is called: torch's hook, which looks into the frame that calls it."""
        hook: Callable[..., None] = self._before_call  # type: ignore[attr-defined]
        return hook

    def after(self, module: Any, args: Any, *rest: Any) -> None:
        """A module has returned, or raised: torch's hook."""
        self._after_call(module, args, *rest)  # type: ignore[attr-defined]
