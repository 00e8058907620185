"""Walks a traced program and brings the statistics of every tap out of it, however deep it lies.

Programs inside of programs get the rows as further results: a scan stacks them, one row for each of
its iterations; a branch that does not run leaves a row of zeros; a loop without a known end keeps
that of its last pass. What is recomputed for the backward pass is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from backlight.jax.shards import Sharding
from backlight.jax.taps import Label, tap_p

Observe = Callable[..., Any]
"""Makes the row of an array, and tells of its sharding; `label` says what it is."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A tensor that was seen, and its row; one with more dimensions where it was in a loop."""

    label: Label
    quantity: str
    dtype: str
    shape: tuple[int, ...]
    words: Any
    sharding: Any = None  # where the row has a part for each device


@dataclass(slots=True)
class Hoist:
    """Evaluates a program inside of the trace that is under way, and collects what is seen."""

    observe: Observe
    local: Observe  # of an array that is on one device
    asked: Callable[[Label, str], Any]  # what more is observed: rows that differ in it differ
    sees_values: bool = True
    sights: list[Sight] = field(default_factory=list)
    _rows: dict[tuple[int, str, Any], tuple[Any, Any, Any]] = field(default_factory=dict)

    def run(self, program: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The program's results."""
        known: dict[Any, Any] = {}
        known.update(zip(program.constvars, constants, strict=True))
        known.update(zip(program.invars, arguments, strict=True))
        for equation in program.eqns:
            given = [_value(known, atom) for atom in equation.invars]
            with equation.ctx.manager:
                results = self._evaluate(equation, given)
            known.update(zip(equation.outvars, results, strict=True))
        return [_value(known, atom) for atom in program.outvars]

    def _evaluate(self, equation: JaxprEqn, given: list[Any]) -> list[Any]:
        if equation.primitive is tap_p:
            self._see(given[0], **equation.params)
            return given
        inside = _INSIDE.get(equation.primitive.name) if has_taps(equation) else None
        if inside is not None:
            return list(inside(self, equation, given))
        parameters = equation.primitive.get_bind_params(equation.params)
        functions: Any = ()
        if isinstance(parameters, tuple):  # before JAX 0.9
            functions, parameters = parameters
        results = equation.primitive.bind(*functions, *given, **parameters)
        return list(results) if equation.primitive.multiple_results else [results]

    def _see(self, array: Any, label: Label, quantity: str) -> None:
        if quantity == "value" and not self.sees_values:
            return
        # The same array is seen at many places: one module returns it, the next is given it.
        key = id(array), quantity, self.asked(label, quantity)
        if key not in self._rows:
            self._rows[key] = array, *self.observe(array, label=label, quantity=quantity)
        shape, dtype = tuple(array.shape), str(array.dtype)
        self.sights.append(Sight(label, quantity, dtype, shape, *self._rows[key][1:]))

    def inside(self, *, sees_values: bool | None = None) -> Hoist:
        """A hoist for a program inside of this one."""
        sees_values = self.sees_values if sees_values is None else sees_values
        return Hoist(self.observe, self.local, self.asked, sees_values)

    def take(self, sights: list[Sight], places: list[int], rows: Sequence[Any]) -> None:
        """Take over what was seen inside, with its rows as they came out."""
        for sight, place in zip(sights, places, strict=True):
            self.sights.append(replace(sight, words=rows[place]))

    def told(self) -> tuple[list[Sight], list[int], list[Any]]:
        """What was seen, the place of each one's row, and the rows, each once."""
        rows: dict[int, Any] = {id(sight.words): sight.words for sight in self.sights}
        places = {identity: place for place, identity in enumerate(rows)}
        return self.sights, [places[id(sight.words)] for sight in self.sights], list(rows.values())


def _value(known: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]


def programs_in(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs that an equation has in its parameters."""
    found: list[Jaxpr] = []
    for value in equation.params.values():
        for each in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(each, ClosedJaxpr):
                found.append(each.jaxpr)
            elif isinstance(each, Jaxpr):
                found.append(each)
    return found


def has_taps(equation: JaxprEqn) -> bool:
    """Whether there is a tap in an equation, or in a program of it."""
    if equation.primitive is tap_p:
        return True
    return any(has_taps(each) for program in programs_in(equation) for each in program.eqns)


# -- programs inside of programs


def _in_jit(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    """Its equations become part of the program; where it says how arrays are sharded, they are."""
    program = equation.params["jaxpr"]
    given = _sharded(given, equation.params.get("in_shardings"))
    results = hoist.run(program.jaxpr, program.consts, given)
    return _sharded(results, equation.params.get("out_shardings"))


def _sharded(arrays: list[Any], shardings: Any) -> list[Any]:
    if not shardings:
        return arrays
    return [
        jax.lax.with_sharding_constraint(array, sharding)
        if isinstance(sharding, jax.sharding.Sharding) and len(sharding.device_set) > 1
        else array
        for array, sharding in zip(arrays, shardings, strict=True)
    ]


def _in_custom(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    program = equation.params.get("call_jaxpr") or equation.params["fun_jaxpr"]
    return hoist.run(program.jaxpr, program.consts, given)


def _in_call(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    program = equation.params["call_jaxpr"]
    if isinstance(program, ClosedJaxpr):
        return hoist.run(program.jaxpr, program.consts, given)
    return hoist.run(program, [], given)


def _in_scan(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    parameters = equation.params
    program = parameters["jaxpr"]
    first, second = parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]
    constants, start, items = given[:first], given[first:second], given[second:]
    seen: list[Any] = []

    def body(carry: Any, item: Any) -> Any:
        inner = hoist.inside()
        results = inner.run(program.jaxpr, program.consts, [*constants, *carry, *item])
        sights, places, rows = inner.told()
        seen[:] = [sights, places]
        split = len(carry)
        return tuple(results[:split]), (tuple(results[split:]), tuple(rows))

    options = {name: parameters[name] for name in ("length", "reverse", "unroll")}
    carry, (results, rows) = jax.lax.scan(body, tuple(start), tuple(items), **options)
    hoist.take(seen[0], seen[1], rows)
    return [*carry, *results]


def _in_while(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    parameters = equation.params
    test, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    first = parameters["cond_nconsts"]
    second = first + parameters["body_nconsts"]
    seen: list[Any] = []

    def step(carry: Any) -> Any:
        inner = hoist.inside()
        results = inner.run(body.jaxpr, body.consts, [*given[first:second], *carry])
        sights, places, rows = inner.told()
        seen[:] = [sights, places]
        return tuple(results), tuple(rows)

    def goes_on(carry: Any) -> Any:
        plain = hoist.inside(sees_values=False)
        return plain.run(test.jaxpr, test.consts, [*given[:first], *carry[0]])[0]

    _, shapes = jax.eval_shape(step, tuple(given[second:]))
    empty = tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes)
    start = (tuple(given[second:]), empty)
    results, rows = jax.lax.while_loop(goes_on, lambda carry: step(carry[0]), start)
    hoist.take(seen[0], seen[1], rows)
    return list(results)


def _in_cond(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    branches = equation.params["branches"]
    index, operands = given[0], tuple(given[1:])
    seen: dict[int, Any] = {}

    def trace(number: int, arguments: Any) -> Any:
        inner = hoist.inside()
        program = branches[number]
        results = inner.run(program.jaxpr, program.consts, arguments)
        *seen[number], rows = inner.told()
        return results, rows

    shapes = [
        jax.eval_shape(lambda *a, n=n: trace(n, a)[1], *operands) for n in range(len(branches))
    ]

    def branch(number: int) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            results, rows = trace(number, arguments)
            every = [[jnp.zeros(s.shape, s.dtype) for s in each] for each in shapes]
            every[number] = rows
            return results, every

        return run

    results, rows = jax.lax.switch(index, [branch(n) for n in range(len(branches))], *operands)
    for number in range(len(branches)):
        sights, places = seen[number]
        hoist.take(sights, places, rows[number])
    return list(results)


def _in_remat(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    """It stays what it is, to keep its memory; what it computes again is not read again."""
    program = equation.params["jaxpr"]
    seen: list[Any] = []
    is_again = equation.params.get("differentiated", False)

    def run(*arguments: Any) -> Any:
        inner = hoist.inside(sees_values=hoist.sees_values and not is_again)
        results = inner.run(program, [], arguments)
        sights, places, rows = inner.told()
        seen[:] = [sights, places]
        return results, rows

    closed, shape = jax.make_jaxpr(run, return_shape=True)(*given)
    if closed.consts:
        results, rows = run(*given)
    else:
        parameters = {**equation.params, "jaxpr": closed.jaxpr}
        flat = equation.primitive.bind(*given, **parameters)
        results, rows = jax.tree.unflatten(jax.tree.structure(shape), flat)
    hoist.take(seen[0], seen[1], rows)
    return list(results)


def _in_shard_map(hoist: Hoist, equation: JaxprEqn, given: list[Any]) -> list[Any]:
    """Each device sees its own shard; the rows of all come out side by side."""
    parameters = equation.params
    program, mesh = parameters["jaxpr"], parameters["mesh"]
    seen: list[Any] = []

    every = Sharding.of_mesh(mesh)

    def run(*arguments: Any) -> Any:
        inner = Hoist(hoist.local, hoist.local, hoist.asked, hoist.sees_values)
        results = inner.run(program, [], arguments)
        sights, places, rows = inner.told()
        seen[:] = [[replace(sight, sharding=every) for sight in sights], places]
        return tuple(results), tuple(row[None] for row in rows)

    spread = jax.sharding.PartitionSpec(tuple(mesh.axis_names))
    mapped = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=tuple(parameters["in_specs"]),
        out_specs=(tuple(parameters["out_specs"]), spread),
        check_vma=False,
    )
    results, rows = mapped(*given)
    hoist.take(seen[0], seen[1], rows)
    return list(results)


_INSIDE: Final[dict[str, Callable[[Hoist, JaxprEqn, list[Any]], list[Any]]]] = {
    "jit": _in_jit,
    "pjit": _in_jit,
    "closed_call": _in_call,
    "core_call": _in_call,
    "custom_jvp_call": _in_custom,
    "custom_vjp_call": _in_custom,
    "custom_vjp_call_jaxpr": _in_custom,
    "scan": _in_scan,
    "while": _in_while,
    "cond": _in_cond,
    "checkpoint": _in_remat,
    "remat": _in_remat,
    "remat2": _in_remat,
    "shard_map": _in_shard_map,
}
"""How programs inside of programs are walked; one that is not here keeps its taps to itself."""
