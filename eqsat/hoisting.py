"""Loop-invariant code: what every trip of a loop would compute anew from the same values is computed before it.

Moved are contractions, reductions, loops and opaque calls, with what they need, if their results are no larger than what they are
made from. Anything else costs a trip nothing worth a launch: views vanish, and pointwise work is done where its result is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from eqsat.control import invariants
from eqsat.graph import Equation, Graph, Variable, pruned
from eqsat.primitives import TABLE


def hoisted(graph: Graph) -> Graph:
    """The graph with loop-invariant code before its loops, inner loops first; the same graph where there is none."""
    equations: list[Equation] = []
    hints = dict(graph.hints)
    for equation in graph.equations:
        if equation.bodies:
            equation = replace(equation, bodies=tuple(map(hoisted, equation.bodies)))
            for number, place in enumerate(invariants(equation.name)):
                moved, equation = _emptied(equation, number, *place, hints)
                equations += moved
        equations.append(equation)
    if len(equations) == len(graph.equations) and all(map(_same, equations, graph.equations)):
        return graph
    return replace(graph, equations=tuple(equations), hints=hints, closed=None)


def _same(new: Equation, old: Equation) -> bool:
    return all(a is b for a, b in zip(new.bodies, old.bodies, strict=True)) and new.inputs == old.inputs


def _emptied(
    equation: Equation, number: int, before: tuple[str, ...], count: str, hints: dict[Variable, str]
) -> tuple[list[Equation], Equation]:
    """What moves out of one body, and the loop over what is left.

    The body's first inputs, as many as the parameter `count` says, do not change; the loop's operands for them stand behind those
    that the parameters `before` count.
    """
    body, start = equation.bodies[number], sum(equation.params[p] for p in before)
    fixed = body.inputs[: equation.params[count]]
    chosen = list(_worth_moving(body, fixed))
    if not chosen:
        return [], equation
    outer: dict[Any, Any] = dict(zip(fixed, equation.inputs[start:], strict=False))
    moved = []
    for inner in _needed(body.equations, chosen):
        outputs = tuple(Variable(v.aval) for v in inner.outputs)
        moved.append(replace(inner, inputs=tuple(outer.get(x, x) for x in inner.inputs), outputs=outputs))
        outer.update(zip(inner.outputs, outputs, strict=True))
    hints.update((outer[v], body.name_of[v]) for v in chosen)
    end = start + len(fixed)
    operands = (*equation.inputs[:end], *(outer[v] for v in chosen), *equation.inputs[end:])
    params = {**equation.params, count: len(fixed) + len(chosen)}
    left = _without(body, len(fixed), chosen)
    bodies = tuple(left if n == number else b for n, b in enumerate(equation.bodies))
    return moved, replace(equation, inputs=operands, params=params, bodies=bodies)


def _without(body: Graph, place: int, chosen: Sequence[Variable]) -> Graph:
    """The body with the chosen values as inputs from `place` on."""
    given: dict[Any, Variable] = {v: Variable(v.aval) for v in chosen}
    names = {given[v]: body.name_of[v] for v in chosen}
    equations = tuple(replace(e, inputs=tuple(given.get(x, x) for x in e.inputs)) for e in body.equations)
    inputs = (*body.inputs[:place], *given.values(), *body.inputs[place:])
    outputs = tuple(given.get(x, x) for x in body.outputs)
    leaves = tuple((n,) for n in range(len(inputs)))
    return pruned(
        replace(
            body, inputs=inputs, equations=equations, outputs=outputs, argument_leaves=leaves,
            hints={**body.hints, **names}, closed=None,
        )
    )  # fmt: skip


def _worth_moving(body: Graph, fixed: Iterable[Variable]) -> Iterator[Variable]:
    """Results of costly equations that depend on fixed inputs alone, are no larger than these, and are used by what stays."""
    sources: dict[Any, frozenset[Variable]] = {v: frozenset([v]) for v in fixed}
    costly: list[Variable] = []
    for equation in body.equations:
        variables = [x for x in equation.inputs if isinstance(x, Variable)]
        if equation.origin.effects or not all(v in sources for v in variables):
            continue
        made_from = frozenset().union(*(sources[v] for v in variables))
        sources.update(dict.fromkeys(equation.outputs, made_from))
        if _is_costly(equation):
            costly += [v for v in equation.outputs if _nbytes([v]) <= _nbytes(made_from)]
    moved = {id(e) for e in _needed(body.equations, costly)}
    used = {x for e in body.equations if id(e) not in moved for x in e.inputs} | set(body.outputs)
    yield from (v for v in costly if v in used)


def _is_costly(equation: Equation) -> bool:
    """True for what is worth a launch of its own: it sums over something, or JAX runs it."""
    return bool(equation.bodies) or equation.name not in TABLE or equation.name.startswith(("dot", "conv_", "reduce_", "arg"))


def _nbytes(variables: Iterable[Variable]) -> int:
    return sum(prod(v.shape) * getattr(v.aval.dtype, "itemsize", 4) for v in variables)


def _needed(equations: Sequence[Equation], values: Iterable[Any]) -> list[Equation]:
    """The equations that make the values, in order."""
    wanted, found = set(values), []
    for equation in reversed(equations):
        if not wanted.isdisjoint(equation.outputs):
            found.append(equation)
            wanted.update(equation.inputs)
    return found[::-1]
