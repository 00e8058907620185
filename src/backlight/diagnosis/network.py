"""The network as the rules see it: modules, layers with weights, activations, in forward order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from backlight.schema import Site

WEIGHT_LAYERS: Final = re.compile(r"(Lazy)?(Linear|Bilinear|Conv(Transpose)?[123]d|Conv1D)$")
NORMS: Final = re.compile(r"Norm")
RECURRENT: Final = re.compile(r"^(RNN|LSTM|GRU)(Cell)?$")
RELUS: Final = frozenset({"ReLU", "ReLU6"})
BOUNDED: Final = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Hardsigmoid": (0.0, 1.0)}
ACTIVATIONS: Final = frozenset(
    {*RELUS, *BOUNDED}
    | {"LeakyReLU", "PReLU", "RReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus"}
    | {"Hardtanh", "Hardswish", "Softsign", "Tanhshrink", "LogSigmoid", "GLU", "Softmax"}
    | {"LogSoftmax", "Threshold", "QuickGELU", "NewGELUActivation", "GELUActivation"}
)


@dataclass
class Module:
    """A module, and the sites that belong to it."""

    name: str
    module_class: str
    extra: str = ""
    told: dict[str, Any] = field(default_factory=dict)
    inputs: list[Site] = field(default_factory=list)
    outputs: list[Site] = field(default_factory=list)
    parameters: list[Site] = field(default_factory=list)
    buffers: list[Site] = field(default_factory=list)
    order: int = 1 << 60  # of its first output in a step
    is_leaf: bool = True

    def setting(self, name: str) -> str | None:
        """A setting out of the module's `extra_repr`.

        >>> Module("fc", "Linear", "in_features=8, out_features=16, bias=True").setting("bias")
        'True'
        """
        found = re.search(rf"(?:^|[ ,(]){name}=([^,)]+)", self.extra)
        return found[1].strip() if found else None

    def number(self, name: str) -> float | None:
        """A setting as a number."""
        told = self.setting(name)
        try:
            return None if told is None else float(told)
        except ValueError:
            return None

    @property
    def is_called(self) -> bool:
        """Whether it was ever seen to run."""
        return bool(self.outputs or self.inputs)

    @property
    def weight(self) -> Site | None:
        """The parameter called weight, if there is one."""
        return next((p for p in self.parameters if p.place == "weight"), None)

    @property
    def bias(self) -> Site | None:
        """The parameter called bias, if there is one."""
        return next((p for p in self.parameters if p.place == "bias"), None)


@dataclass
class Network:
    """All modules, by name."""

    modules: dict[str, Module]

    @cached_property
    def called(self) -> list[Module]:
        """The modules that ran, in the order in which they ended."""
        return sorted((m for m in self.modules.values() if m.outputs), key=lambda m: m.order)

    @cached_property
    def layers(self) -> list[Module]:
        """Linear and convolutional layers that ran, in forward order."""
        return [m for m in self.called if WEIGHT_LAYERS.search(m.module_class) and m.weight]

    @cached_property
    def activations(self) -> list[Module]:
        """Activations that are modules, in forward order."""
        return [m for m in self.called if m.module_class in ACTIVATIONS]

    @cached_property
    def leaves(self) -> list[Module]:
        """The modules that ran and have none inside, in forward order."""
        return [m for m in self.called if m.is_leaf]

    def of_class(self, pattern: str) -> list[Module]:
        """The modules whose class matches a regular expression."""
        return [m for m in self.modules.values() if re.search(pattern, m.module_class)]

    def with_parameters(self) -> list[Module]:
        """The modules that have parameters of their own."""
        return [m for m in self.modules.values() if m.parameters]

    def common_name(self, names: list[str]) -> str:
        """The innermost module around all of these, where all its parameters are theirs.

        Otherwise the first of them.
        """
        if not names:
            return ""
        chosen, best = set(names), names[0]
        parts = names[0].split(".")
        for length in range(len(parts), 0, -1):
            around = ".".join(parts[:length])
            inside = {
                m.name
                for m in self.with_parameters()
                if m.name == around or m.name.startswith(f"{around}.")
            }
            if inside and inside <= chosen:
                best = around
        return best


def make_network(
    described: list[dict[str, Any]], sites: list[Site], orders: dict[int, int]
) -> Network:
    """The network of a run, out of `run.json`, its sites and the order in which they were seen."""
    modules = {
        str(told.get("name", "")): Module(
            str(told.get("name", "")),
            str(told.get("class", "")),
            str(told.get("extra", "")),
            told,
        )
        for told in described
    }
    shelves = {
        "input": "inputs",
        "output": "outputs",
        "parameter": "parameters",
        "buffer": "buffers",
    }
    for site in sites:
        shelf = shelves.get(site.tensor_class)
        if shelf is None:
            continue
        module = modules.get(site.module)
        if module is None:
            module = modules[site.module] = Module(site.module, site.module_class)
        getattr(module, shelf).append(site)
        if shelf == "outputs":
            module.order = min(module.order, orders.get(site.site, 1 << 60))
    for name in list(modules):
        around = name.rpartition(".")[0]
        while name and around in modules:
            modules[around].is_leaf = False
            if not around:
                break
            around = around.rpartition(".")[0]
    return Network(modules)
