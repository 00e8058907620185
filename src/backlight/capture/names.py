"""The names of what is watched: modules, parameters and buffers of one or several models."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


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
    """A parameter or a buffer under its first name; where it is tied, `aliases` are the others."""

    module: str
    module_class: str
    place: str
    aliases: tuple[str, ...]
    tensor: weakref.ref[torch.Tensor]


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
        self._found: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self._is_fresh = False
        self._parameters: list[OwnedTensor] = []
        self._buffers: list[OwnedTensor] = []
        self.scan()

    def scan(self) -> None:
        """Read the names again: modules and tensors may have been added or replaced."""
        self._found = {
            id(module): (weakref.ref(module), name, type(module).__name__)
            for name, module in self._named_modules()
        }
        self._parameters = self._owned("named_parameters")
        self._buffers = self._owned("named_buffers")
        self._is_fresh = True

    def refresh(self) -> None:
        """At the start of a step: read the names again if a tensor that was known is gone."""
        self._is_fresh = False
        if any(owned.tensor() is None for owned in (*self._parameters, *self._buffers)):
            self.scan()

    def find(self, module: nn.Module) -> tuple[str, str] | None:
        """A module's name and class, or None if it is no part of the models."""
        if not self.has(module):
            # It may have been added; but once in a step is enough to look.
            if self._is_fresh:
                return None
            self.scan()
            if not self.has(module):
                return None
        _, name, module_class = self._found[id(module)]
        return name, module_class

    def has(self, module: nn.Module) -> bool:
        """Whether a module is part of the models, as far as is known."""
        entry = self._found.get(id(module))
        return entry is not None and entry[0]() is module

    def modules(self) -> list[nn.Module]:
        """Every module that is alive."""
        return [module for entry in self._found.values() if (module := entry[0]()) is not None]

    def is_compiled(self) -> bool:
        """Whether one of the models compiles itself when it is called."""
        models = (reference() for reference in self._models.values())
        return any(is_compiled(model) for model in models if model is not None)

    def parameters(self) -> list[OwnedTensor]:
        """Every parameter once, in the models' order, with all its names."""
        return self._parameters

    def buffers(self) -> list[OwnedTensor]:
        """Every buffer once, in the models' order."""
        return self._buffers

    def describe(self) -> list[dict[str, Any]]:
        """The module tree, each module with the size of its own parameters and its `extra_repr`."""
        return [_description(name, module) for name, module in self._named_modules()]

    def _named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for prefix, reference in self._models.items():
            model = reference()
            if model is not None:
                yield from model.named_modules(prefix=prefix)

    def _owned(self, method: str) -> list[OwnedTensor]:
        names: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        classes: dict[str, str] = {}
        for prefix, reference in self._models.items():
            model = reference()
            if model is None:
                continue
            for name, tensor in getattr(model, method)(prefix=prefix, remove_duplicate=False):
                names.setdefault(id(tensor), []).append(name)
                tensors[id(tensor)] = tensor
        classes = {name: module_class for _, name, module_class in self._found.values()}
        return [_named(names[key], tensors[key], classes) for key in names]


def _named(names: list[str], tensor: torch.Tensor, classes: Mapping[str, str]) -> OwnedTensor:
    module, _, place = names[0].rpartition(".")
    return OwnedTensor(
        module, classes.get(module, ""), place, tuple(names[1:]), weakref.ref(tensor)
    )


def _description(name: str, module: nn.Module) -> dict[str, Any]:
    own = [p for p in module.parameters(recurse=False) if not nn.parameter.is_lazy(p)]
    return {
        "name": name,
        "class": type(module).__name__,
        "parameters": sum(parameter.numel() for parameter in own),
        "extra": _extra_repr(module),
    }


def _extra_repr(module: nn.Module) -> str:
    try:
        return str(module.extra_repr())
    except Exception:
        # It is the user's code, and only words: a module whose description fails is still watched.
        return ""
