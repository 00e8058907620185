"""Parameters, buffers and optimizer states of a recorded step, many read in one native call.

For a small model, what Python does for each tensor costs more than reading it. So which tensor is
which site is worked out once and remembered, until the model or the optimizer changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from backlight.capture.graph import GraphCapture
from backlight.capture.names import ModelNames, OwnedTensor
from backlight.capture.optimizer import OptimizerCapture
from backlight.capture.sights import Held, Sights, are_held, find_held, hook_held, unhook_held
from backlight.capture.sites import LEFT_OUT, SiteBook
from backlight.capture.trees import states_in
from backlight.reduce.native import fingerprints
from backlight.reduce.readable import State, has_values, state_of, states_of
from backlight.reduce.reducer import Item, Reducer
from backlight.reduce.spec import GRAD_APPLIED, UPDATE, VALUE

_NO_STATE: Mapping[str, Any] = {}
_NO_STATES: Mapping[torch.Tensor, Mapping[str, Any]] = {}


class _Place(Held):
    """A parameter or a buffer, and what is remembered of it. It is the hook on its gradients."""

    def __init__(self, sights: Sights, owned: OwnedTensor, site: int) -> None:
        super().__init__(sights, owned.owner, owned.shelf, owned.place, owned.identity, site)
        self.owned = owned
        self.last: State | None = None  # as it was when it was last read
        self.is_written = False  # that row, and no longer only held
        self.hooks: Any = None  # those of the parameter, by a key of each, if ours is among them
        self.key: Any = None
        self.is_first_hook = False  # nobody had put one on the parameter before

    def room(self, parameter: torch.Tensor) -> torch.Tensor:
        """Memory for a copy of the parameter, the same each time."""
        room: torch.Tensor | None = self.before
        if room is None or room.shape != parameter.shape or room.dtype != parameter.dtype:
            room = self.before = torch.empty_like(parameter, requires_grad=False)
        return room


class Known(NamedTuple):
    """What is known of parameters and buffers before a step, if all is as it was in the last."""

    held: list[_Place]  # all
    unhooked: list[_Place]  # those whose gradients are not seen yet
    key: object  # of the hooks on them
    trained: tuple[list[int], list[_Place]]  # by the optimizer: identities, places
    has_states: bool


class OwnedCapture:
    """Reads what models and optimizers own. Between steps it keeps no tensor of theirs alive."""

    def __init__(
        self,
        names: ModelNames,
        sites: SiteBook,
        reducer: Reducer,
        sights: Sights,
    ) -> None:
        self._names = names
        self._sites = sites
        self._reducer = reducer
        self._has_states = sites.has_class("optimizer")
        self._places: dict[int, _Place] = {}  # by the identity of the tensor
        self._all: list[_Place] = []  # the same
        self.with_gradients: list[_Place] = []  # parameters whose gradients are wanted
        self._unhooked: list[_Place] = []  # those of them whose gradients are not seen yet
        self._generation = -1
        self._held: list[list[int]] = []
        self._by_optimizer: dict[OptimizerCapture, tuple[list[int], list[_Place]]] = {}
        self.stepping: dict[OptimizerCapture, list[tuple[_Place, torch.Tensor]]] = {}
        self._rest: list[_Place] = []
        self.waiting: list[_Place] = []  # for a parameter that is there
        self._sights = sights
        self.is_in_use = False  # by autograd, in a backward pass of another thread than this one

    # -- the course of a step

    def begin(self) -> None:
        """A recorded step begins: each gradient of a parameter is seen."""
        is_known = self._generation == self._names.generation
        are_there = is_known and are_held(self._all)
        if not are_there:
            self._hook_swapped()
        self._names.refresh(are_there=are_there)
        if self._generation != self._names.generation:
            self._learn_names()
        if self.waiting:
            self.waiting.clear()
        if self.stepping:
            self._forget_updates()
        if self._unhooked:
            self._hook_all()

    def known_of(self, optimizer: OptimizerCapture) -> Known | None:
        """What the last step has shown; None where the next one cannot be told by that."""
        trained = self._by_optimizer.get(optimizer)
        is_open = self.waiting or self.stepping
        if trained is None or is_open or self._generation != self._names.generation:
            return None
        return Known(self._all, self._unhooked, self, trained, self._has_states)

    def has_rest(self, optimizer: OptimizerCapture) -> bool:
        """Whether a step's end reads more than what this optimizer trains, as far as is known."""
        trained, _ = self._by_optimizer.get(optimizer, (None, []))
        is_known = self._generation == self._names.generation and self._held == [trained]
        return not is_known or bool(self._rest)

    def look_again(self) -> None:
        """The names were read again in the midst of a step: gradients belong to those of now."""
        if self._generation != self._names.generation:
            self._learn_names()
            self._hook_all()

    def _hook_all(self) -> None:
        left = hook_held(self._unhooked, self)
        for place in left:
            if place.hooks is None:
                self._hook(place)
        # One of which no gradient is wanted now may ask for them later.
        self._unhooked = [place for place in left if place.hooks is None]

    def _hook(self, place: _Place) -> None:
        parameter = place.owned.tensor()
        if parameter is None or is_lazy(parameter):
            self.waiting.append(place)
        elif parameter.requires_grad and has_values(parameter):
            place.is_first_hook = parameter._backward_hooks is None
            if place.is_first_hook and type(parameter) is nn.Parameter and parameter.is_leaf:
                # What register_hook does, but for a handle that would be made anew at each step.
                place.key, place.hooks = self, OrderedDict({self: place})
                parameter._backward_hooks = place.hooks
            else:
                handle = parameter.register_hook(place)
                place.key, place.hooks = handle.id, handle.hooks_dict_ref()
            place.hooked = parameter._cdata

    def _hook_swapped(self) -> None:
        """Set hooks anew where `torch.utils.swap_tensors` has left a parameter without.

        It has the inside of another one then, which does not know them; and the hooks that the user
        adds join ours, and would be called no more than these. Where hooks of the user's were left
        behind, they would not be called without ours either.
        """
        for place in self._all:
            parameter = None if place.hooks is None else place.owned.tensor()
            if parameter is None:
                continue
            if parameter._cdata == place.hooked:
                place.has_others = len(place.hooks) > 1
                continue
            place.hooked = parameter._cdata
            is_ours = place.is_first_hook and not place.has_others
            if is_ours and parameter._backward_hooks is place.hooks:
                parameter._backward_hooks = place.hooks

    def hook_late(self) -> None:
        """A module has run: parameters that did not exist before may do so now."""
        waiting, self.waiting = self.waiting, []
        for place in waiting:
            self._hook(place)

    def release(self) -> None:
        """Leave nothing on the parameters: the next step is not recorded."""
        if self.is_in_use:
            return
        if self.stepping:
            self._forget_updates()
        for place in unhook_held(self._all):
            self._unhook(place)
        self._unhooked[:] = self.with_gradients

    def _forget_updates(self) -> None:
        """Forget those that an exception cut short."""
        for place in self._all:
            place.is_before_known = False
        self.stepping.clear()

    def _unhook(self, place: _Place | None) -> None:
        if place is None or place.hooks is None:
            return
        hooks, place.hooks = place.hooks, None
        hooks.pop(place.key, None)
        parameter = place.owned.tensor() if place.is_first_hook and not hooks else None
        if parameter is not None and parameter._backward_hooks is hooks:
            # As it was: autograd would look at each gradient whether there is a hook to call.
            parameter._backward_hooks = None

    # -- which tensor is which site

    def _learn_names(self) -> None:
        if self._generation == self._names.generation:
            return
        known, self._places = self._places, {}
        for tensor_class, owned in self._owned():
            place = known.pop(owned.identity, None)
            if place is None or place.owned != owned:
                self._unhook(place)
                place = _Place(self._sights, owned, self._site_of(tensor_class, owned))
            self._places[owned.identity] = place
        for place in known.values():
            self._unhook(place)
        self._generation = self._names.generation
        self._all = list(self._places.values())
        self.with_gradients = [
            place for place in self._all if place.site >= 0 and place.owned.shelf == "_parameters"
        ]
        self._unhooked = [place for place in self.with_gradients if place.hooks is None]
        self._held = []
        self._by_optimizer.clear()

    def _owned(self) -> list[tuple[str, OwnedTensor]]:
        owned = [("parameter", each) for each in self._names.parameters()]
        return owned + [("buffer", each) for each in self._names.buffers()]

    def _site_of(self, tensor_class: str, owned: OwnedTensor) -> int:
        if not self._sites.has_class(tensor_class):
            return LEFT_OUT
        return self._sites.owned(
            tensor_class,
            owned.module,
            owned.module_class,
            owned.place,
            aliases=owned.aliases,
            step=self._sights.step,
        )

    def _trained(self, optimizer: OptimizerCapture) -> list[tuple[_Place, torch.Tensor]]:
        """The places of what an optimizer trains, in the models' order, and the parameters."""
        if self._generation != self._names.generation:
            self._learn_names()
        held = optimizer.held()
        known, places = self._by_optimizer.get(optimizer, ([], []))
        if known != held:
            if self._names.has_changed():  # by a parameter that the forward pass has made
                self._names.scan()
                self._learn_names()
            every = set(held)
            places = [place for identity, place in self._places.items() if identity in every]
            self._by_optimizer[optimizer] = held, places
        return _found(places)

    def show(self, graph: GraphCapture) -> None:
        """Show parameters and buffers to the graph of this step."""
        for place in self._places.values():
            tensor = place.owned.tensor()
            if tensor is not None and place.site >= 0 and has_values(tensor):
                graph.parameter(place.site, tensor)

    # -- updates

    def before_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer is about to step: its parameters as they were used, its gradients.

        The parameters are copied too, so that their updates can be told.
        """
        if optimizer in self.stepping:
            return  # it calls the step of the class that it is derived from
        self.stepping[optimizer] = trained = self._trained(optimizer)
        if not optimizer.has_closure and self._sights.before_update(trained):
            return
        items: list[Item] = []
        moving: dict[int, _Place] = {}
        for place, parameter in trained:
            if place.site < 0:
                continue
            if parameter.grad is None and not optimizer.has_closure:
                items.append((parameter, place.site, VALUE))
                continue
            place.is_before_known = True
            moving[len(items)] = place
            items.append((parameter, place.site, VALUE, None, place.room(parameter)))
        if not optimizer.has_closure:
            items += _applied(trained)
        for unread in self._reducer.observe_many(items, self._sights.update_iteration):
            if unread in moving:
                moving[unread].is_before_known = False

    def after_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer has stepped: what it did to its parameters, and what it keeps for them."""
        states = optimizer.states() if self._has_states else _NO_STATES
        trained = self.stepping.pop(optimizer, None)
        trained = self._trained(optimizer) if trained is None else trained
        if not optimizer.has_closure and self._sights.after_update(trained, states):
            return
        items: list[Item] = []
        if optimizer.has_closure:
            items += _applied([each for each in trained if each[0].is_before_known])
        for place, parameter in trained:
            if place.is_before_known and place.before is not None and parameter.grad is not None:
                items.append((parameter, place.site, UPDATE, place.before))
            place.is_before_known = False
            for key, state in states.get(parameter, _NO_STATE).items():
                if key == "step":
                    continue
                for name, tensor in states_in(state, str(key)):
                    site = self._state_site(place, name)
                    if site >= 0:
                        items.append((tensor, site, VALUE))
        self._reducer.observe_many(items, self._sights.update_iteration)

    def without_update(self, optimizer: OptimizerCapture) -> None:
        """An optimizer was to step and did not: its parameters, and what it keeps for them."""
        trained = self._trained(optimizer)
        self._reducer.observe_many(
            [(parameter, place.site, VALUE) for place, parameter in trained if place.site >= 0],
            self._sights.update_iteration,
        )
        self.after_update(optimizer)

    def _state_site(self, place: _Place, key: str) -> int:
        site = place.states.get(key)
        if site is None:
            owned = place.owned
            site = place.states[key] = self._sites.owned(
                "optimizer",
                owned.module,
                owned.module_class,
                f"{owned.place}:{key}",
                step=self._sights.step,
            )
        return site

    def observe_rest(
        self, optimizers: Iterable[OptimizerCapture], *, is_kept: bool
    ) -> Callable[[bool], None] | None:
        """At a step's end: parameters that no optimizer holds, and buffers, if they changed.

        A step that is kept has also those of which no row is written yet. What is returned is to
        be told whether the step was written: what a lost one had is read again.
        """
        # What an optimizer trains as it was when it last stepped, if it did so.
        known = self._by_optimizer
        held = [known[each][0] if each in known else each.held() for each in optimizers]
        if self._held != held or self._generation != self._names.generation:
            self._learn_rest(held)
        rest = _found(self._rest)
        if len(rest) < len(self._rest) or self._names.has_changed():
            # The step itself has put another tensor in the place of one, or a new one.
            self._names.scan()
            self._learn_rest(held)
            rest = _found(self._rest)
        if not rest:
            return None
        items: list[Item] = []
        read: list[tuple[_Place, State | None]] = []
        for (place, tensor), state in zip(rest, _states_of(rest), strict=True):
            if state is None or state != place.last or (is_kept and not place.is_written):
                place.last, place.is_written = state, False
                items.append((tensor, place.site, VALUE))
                read.append((place, state))
        self._reducer.observe_many(items)
        return partial(_learn_fate, read) if read else None

    def _learn_rest(self, held: list[list[int]]) -> None:
        """Find what is in none of these."""
        self._learn_names()
        self._held = held
        every = set().union(*held)
        places = self._places.items()
        self._rest = [p for identity, p in places if identity not in every and p.site >= 0]


def _found(places: list[_Place]) -> list[tuple[_Place, torch.Tensor]]:
    """Those whose tensor is still there, and the tensors."""
    found = find_held(places)
    if found is None:
        every_pair = [(place, place.owned.tensor()) for place in places]
        found = [(place, tensor) for place, tensor in every_pair if tensor is not None]
    return found


def _states_of(rest: list[tuple[_Place, torch.Tensor]]) -> list[State | None]:
    """What tells whether each has changed; of parameters, which are large, only some bytes do."""
    buffers = iter(states_of([each for place, each in rest if place.owned.shelf == "_buffers"]))
    return [
        next(buffers) if place.owned.shelf == "_buffers" else state_of(tensor, is_quick=True)
        for place, tensor in rest
    ]


def _learn_fate(read: list[tuple[_Place, State | None]], is_written: bool) -> None:
    """A step that read these was written or lost; of those read again since, that says nothing."""
    for place, state in read:
        if place.last is state:
            place.is_written = is_written
            place.last = state if is_written else None


def _applied(trained: list[tuple[_Place, torch.Tensor]]) -> list[Item]:
    """The gradients that the optimizer sees, where they are not the ones that autograd made."""
    seen = [
        (place, grad)
        for place, parameter in trained
        if place.site >= 0 and (grad := parameter.grad) is not None
    ]
    # Not by their versions: a clipping that has nothing to clip changes these alone.
    known = iter(fingerprints([grad for place, grad in seen if place.made is not None]))
    return [
        (grad, place.site, GRAD_APPLIED)
        for place, grad in seen
        if place.made is None or place.made != next(known)
    ]
