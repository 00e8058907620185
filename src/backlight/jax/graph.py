"""The dependency graph of a step, read off its program: what was made from what between two taps.

Only the forward part makes edges: a gradient's tap ends what led to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from backlight.capture.structure import AUTOGRAD, DATA, Call, Edge, Graph
from backlight.jax.taps import Label, tap_p

Sources = frozenset[Any]
"""The labels of taps, and numbers of the step's arguments, that a value was made from."""

NONE: Sources = frozenset()


class Flow:
    """Follows which taps a value was made from, through programs inside of programs."""

    def __init__(self) -> None:
        self.edges: set[tuple[Any, Label]] = set()

    def run(self, program: Jaxpr, given: Sequence[Sources]) -> list[Sources]:
        """What the results were made from, if the arguments were made from `given`."""
        known: dict[Any, Sources] = dict(zip(program.invars, given, strict=True))
        for equation in program.eqns:
            sources = [_sources(known, atom) for atom in equation.invars]
            known.update(zip(equation.outvars, self._follow(equation, sources), strict=True))
        return [_sources(known, atom) for atom in program.outvars]

    def _follow(self, equation: JaxprEqn, given: list[Sources]) -> list[Sources]:
        if equation.primitive is tap_p:
            return [self._pass(equation.params["label"], equation.params["quantity"], given[0])]
        results = len(equation.outvars)
        inner = _INSIDE.get(equation.primitive.name)
        if inner == "plain":
            program = _program(equation)
            if len(program.invars) == len(given) and len(program.outvars) == results:
                return self.run(program, given)
        elif inner == "scan" and not equation.params["reverse"]:
            return self._scan(equation, given)
        elif inner == "cond":
            branches = [self.run(each.jaxpr, given[1:]) for each in equation.params["branches"]]
            return [_union(ways) for ways in zip(*branches, strict=True)]
        return [_union(given)] * results

    def _pass(self, label: Label, quantity: str, sources: Sources) -> Sources:
        if quantity == "grad":
            return NONE
        self.edges |= {(source, label) for source in sources if source != label}
        return frozenset({label})

    def _scan(self, equation: JaxprEqn, given: list[Sources]) -> list[Sources]:
        """Twice: what one iteration leaves, the next one begins with."""
        first = equation.params["num_consts"]
        second = first + equation.params["num_carry"]
        program = equation.params["jaxpr"].jaxpr
        results = self.run(program, given)
        pairs = zip(given[first:second], results, strict=False)
        again = [a | b for a, b in pairs]
        return self.run(program, [*given[:first], *again, *given[second:]])


def _sources(known: dict[Any, Sources], atom: Any) -> Sources:
    return NONE if isinstance(atom, Literal) else known.get(atom, NONE)


def _union(ways: Iterable[Sources]) -> Sources:
    return frozenset().union(*ways)


def _program(equation: JaxprEqn) -> Jaxpr:
    parameters = equation.params
    program = parameters.get("jaxpr") or parameters.get("call_jaxpr") or parameters["fun_jaxpr"]
    found: Jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return found


_PLAIN = "jit pjit closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr"
_INSIDE = {
    **dict.fromkeys([*_PLAIN.split(), "checkpoint", "remat", "remat2", "shard_map"], "plain"),
    "scan": "scan",
    "cond": "cond",
}


def make_graph(
    program: Jaxpr,
    *,
    labels: dict[Label, int],
    arguments: dict[int, int],
    differentiable: set[int],
    loss: tuple[int, int] | None,
) -> Graph:
    """The graph of a program.

    Args:
        program: the step as it was traced.
        labels: the site of each tap, in order of sight.
        arguments: the sites of parameters and buffers, by their number among the arguments.
        differentiable: the sites that a gradient was seen at.
        loss: its number among the results, and its site.
    """
    flow = Flow()
    given = [frozenset({number}) for number in range(len(program.invars))]
    results = flow.run(program, given)
    sites: dict[Any, int] = {**labels, **arguments}
    pairs = {(sites.get(a, -1), sites.get(b, -1)) for a, b in flow.edges}
    if loss is not None:
        pairs |= {(sites.get(source, -1), loss[1]) for source in results[loss[0]]}
        differentiable = differentiable | {loss[1]}
    edges = {
        Edge(a, b, AUTOGRAD if {a, b} <= differentiable else DATA)
        for a, b in pairs
        if a >= 0 and b >= 0 and a != b
    }
    roles = {site: label.tensor_class for label, site in labels.items()}
    roles.update(dict.fromkeys(arguments.values(), "parameter"))
    if loss is not None:
        roles[loss[1]] = "loss"
    roles.pop(-1, None)
    return Graph(tuple(sorted(roles)), tuple(sorted(edges)), _nesting(labels), roles)


def _nesting(labels: dict[Label, int]) -> dict[Call, Call | None]:
    """The module calls in order, each inside of the nearest module around it."""
    modules = dict.fromkeys(
        label.module for label in labels if label.tensor_class in ("input", "output")
    )
    nesting: dict[Call, Call | None] = {}
    for module in modules:
        around = _around(module, set(modules))
        nesting[module, 1] = None if around is None else (around, 1)
    return nesting


def _around(module: str, modules: set[str]) -> str | None:
    parts = module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if ".".join(parts[:length]) in modules:
            return ".".join(parts[:length])
    return "" if module and "" in modules else None
