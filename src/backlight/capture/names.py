"""The names of what is watched: modules, parameters and buffers of one or several models."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import nn

from backlight.capture.plain import size_of
from backlight.capture.sights import has_strangers, sizes_differ

_HAS_MODES: Final = re.compile(r"Dropout|DropPath|BatchNorm|StochasticDepth")
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


_Shelf = Literal["_parameters", "_buffers"]


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside what runs it on several devices or compiles it.

    >>> layer = nn.Linear(1, 1)
    >>> unwrap(nn.DataParallel(layer)) is layer
    True
    """
    while (inside := _WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, inside)
    return model


def is_compiled(model: nn.Module) -> bool:
    """Whether a model runs through `torch.compile`."""
    wrapped = type(model).__name__ == "OptimizedModule"
    return wrapped or getattr(model, "_compiled_call_impl", None) is not None


@dataclass(frozen=True, slots=True)
class OwnedTensor:
    """A parameter or a buffer under its first name; where it is tied, `aliases` are the others.

    It is looked up in its module each time: some of torch's ways to replace a parameter refuse one
    that has a weak reference.
    """

    module: str
    module_class: str
    place: str
    aliases: tuple[str, ...]
    owner: weakref.ref[nn.Module]
    shelf: _Shelf
    identity: int

    def tensor(self) -> torch.Tensor | None:
        """The tensor, or None if its module has another one by now, or none."""
        found = _tensor_at(self.owner, self.shelf, self.place)
        return found if id(found) == self.identity else None

    def is_replaced(self) -> bool:
        """Whether the model has another tensor there for good, or none.

        What is no parameter only stands in for one: `torch.func.functional_call` puts it there.
        """
        found = _tensor_at(self.owner, self.shelf, self.place)
        if id(found) == self.identity:
            return False
        return found is None or self.shelf == "_buffers" or isinstance(found, nn.Parameter)


class ModelNames:
    """The qualified names of modules and their tensors, by identity, without keeping any alive.

    >>> layer = nn.Linear(2, 2)
    >>> names = ModelNames({"": nn.Sequential(layer, layer)})
    >>> [(p.module, p.place, p.aliases) for p in names.parameters()]
    [('0', 'weight', ('1.weight',)), ('0', 'bias', ('1.bias',))]
    >>> names.find(layer), names.find(nn.ReLU())
    (('0', 'Linear'), None)
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = {name: weakref.ref(unwrap(model)) for name, model in models.items()}
        self._found: dict[int, tuple[weakref.ref[nn.Module], tuple[str, str]]] = {}
        self.is_fresh = False  # nothing new is looked for before the next step
        self.generation = 0  # how often the names were read
        self._parameters: list[OwnedTensor] = []
        self._buffers: list[OwnedTensor] = []
        self.sizes: list[tuple[Callable[[], nn.Module | None], int]] = []  # of each module
        self.scan()

    def scan(self) -> None:
        """Read the names again: modules and tensors may have been added or replaced."""
        self._found = {
            id(module): (weakref.ref(module), (name, type(module).__name__))
            for name, module in self._named_modules()
        }
        self.sizes = [(module, size_of(module())) for module, _ in self._found.values()]
        self._parameters = self._owned("_parameters")
        self._buffers = self._owned("_buffers")
        self.is_fresh = True
        self.generation += 1

    def refresh(self, *, are_there: bool = False) -> None:
        """At the start of a step: read the names again if a tensor is gone that was known, or new.

        Where it is known that all `are_there` that were, these are not looked up.
        """
        self.is_fresh = False
        is_other = not are_there and any(
            owned.is_replaced() for owned in (*self._parameters, *self._buffers)
        )
        if is_other or self.has_changed():
            self.scan()

    def has_changed(self) -> bool:
        """Whether modules have parts, parameters or buffers that they had not when last scanned."""
        return sizes_differ(self.sizes)

    def find(self, module: nn.Module) -> tuple[str, str] | None:
        """A module's name and class, or None if it is no part of the models."""
        entry = self._found.get(id(module))
        if entry is None or entry[0]() is not module:
            # It may have been added; but once in a step is enough to look. Most are not part of
            # the models, such as that of the loss.
            if self.is_fresh or not has_strangers(self._found):
                self.is_fresh = True
                return None
            self.scan()
            entry = self._found.get(id(module))
            if entry is None or entry[0]() is not module:
                return None
        return entry[1]

    def has(self, module: nn.Module) -> bool:
        """Whether a module is part of the models, as far as is known."""
        entry = self._found.get(id(module))
        return entry is not None and entry[0]() is module

    def references(self) -> tuple[weakref.ref[nn.Module], ...]:
        """The models themselves, without keeping any alive."""
        return tuple(self._models.values())

    def modules(self) -> list[nn.Module]:
        """Every module that is alive."""
        return [module for entry in self._found.values() if (module := entry[0]()) is not None]

    def is_compiled(self, *, in_parts: bool = False) -> bool:
        """Whether one of the models, or of its parts, compiles itself when it is called."""
        for reference in self._models.values():
            model = reference()
            if model is None:
                continue
            if is_compiled(model) or (in_parts and any(map(is_compiled, model.modules()))):
                return True
        return False

    def that_have_modes(self) -> list[tuple[str, weakref.ref[nn.Module]]]:
        """The modules whose class computes otherwise in evaluation: dropout and batch norm."""
        return [
            (name, module)
            for module, (name, module_class) in self._found.values()
            if _HAS_MODES.search(module_class)
        ]

    def parameters(self) -> list[OwnedTensor]:
        """Every parameter once, in the models' order, with all its names."""
        return self._parameters

    def buffers(self) -> list[OwnedTensor]:
        """Every buffer once, in the models' order."""
        return self._buffers

    def describe(self, trained: Collection[int] | None = None) -> list[dict[str, Any]]:
        """The module tree, each module with the size of its own parameters and its `extra_repr`.

        `trained` are the identities of the parameters that optimizers hold; by default all.
        """
        return [_description(name, module, trained) for name, module in self._named_modules()]

    def modes(self) -> Modes:
        """Watches which modules are in evaluation mode."""
        return Modes(self)

    def _named_modules(self, *, has_duplicates: bool = False) -> Iterator[tuple[str, nn.Module]]:
        for prefix, reference in self._models.items():
            model = reference()
            if model is not None:
                yield from _tree(model, prefix, None if has_duplicates else set())

    def _owned(self, shelf: _Shelf) -> list[OwnedTensor]:
        """Every tensor on the shelves of the modules, once, by its first name."""
        found: dict[int, OwnedTensor] = {}
        for module_name, module in self._named_modules(has_duplicates=True):
            for place, tensor in getattr(module, shelf).items():
                if tensor is None:
                    continue
                known = found.get(id(tensor))
                if known is not None:
                    name = f"{module_name}.{place}" if module_name else place
                    found[id(tensor)] = replace(known, aliases=(*known.aliases, name))
                    continue
                found[id(tensor)] = OwnedTensor(
                    module_name,
                    type(module).__name__,
                    place,
                    (),
                    weakref.ref(module),
                    shelf,
                    id(tensor),
                )
        return list(found.values())


class Modes:
    """Which modules that behave otherwise in evaluation are in that mode."""

    def __init__(self, names: ModelNames) -> None:
        self._names = names
        self._generation = -1
        self._modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._last: list[str] = []

    def known(self) -> list[tuple[weakref.ref[nn.Module], bool]]:
        """Each such module, and whether it trained when that was last looked at."""
        last = set(self._last)
        return [(module, name not in last) for name, module in self._modules]

    def changed(self) -> str | None:
        """The names of those that are, if they are others than last time; else None."""
        if self._generation != self._names.generation:
            self._generation = self._names.generation
            self._modules = self._names.that_have_modes()
        now = [name for name, module in self._modules if (m := module()) and not m.training]
        if now == self._last:
            return None
        self._last = now
        return f"in evaluation mode: {', '.join(now) or 'none'}"


def _tree(
    module: nn.Module, name: str, seen: set[nn.Module] | None
) -> Iterator[tuple[str, nn.Module]]:
    """`module.named_modules()` without what is wrapped around a module; each once, if `seen`."""
    module = unwrap(module)
    if seen is not None:
        if module in seen:
            return
        seen.add(module)
    yield name, module
    for place, child in module._modules.items():
        if child is not None:
            yield from _tree(child, f"{name}.{place}" if name else place, seen)


def _tensor_at(
    owner: weakref.ref[nn.Module], shelf_name: _Shelf, place: str
) -> torch.Tensor | None:
    module = owner()
    shelf = None if module is None else getattr(module, shelf_name)
    # A scripted module's shelf has no get().
    return shelf[place] if shelf is not None and place in shelf else None


def _description(name: str, module: nn.Module, trained: Collection[int] | None) -> dict[str, Any]:
    own = {
        place: parameter
        for place, parameter in module._parameters.items()
        if parameter is not None and not nn.parameter.is_lazy(parameter)
    }
    told = {
        "name": name,
        "class": type(module).__name__,
        "parameters": sum(parameter.numel() for parameter in own.values()),
        "extra": _extra_repr(module),
    }
    frozen = [place for place, parameter in own.items() if not parameter.requires_grad]
    if frozen:
        told["frozen"] = frozen
    untrained = [p for p, each in own.items() if trained is not None and id(each) not in trained]
    if untrained:
        told["untrained"] = untrained
    loose = [place for place, value in vars(module).items() if _is_loose(value, trained)]
    if loose:
        told["loose"] = loose
    batch_first = getattr(module, "batch_first", None)
    if isinstance(batch_first, bool):
        told["batch_first"] = batch_first
    return told


def _is_loose(value: Any, trained: Collection[int] | None) -> bool:
    """Whether an attribute asks for gradients and is no parameter, and no optimizer holds it."""
    is_leaf = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    return is_leaf and (trained is None or id(value) not in trained)


def _extra_repr(module: nn.Module) -> str:
    try:
        return str(module.extra_repr())
    except Exception:
        # It is the user's code, and only words: a module whose description fails is still watched.
        return ""
