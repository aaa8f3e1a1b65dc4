"""Putting a model's own names and lines on a traced graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from eqsat import names
from eqsat.graph import Graph, Literal, Source, Variable, pruned


class Mark(NamedTuple):
    """A value of the model that the trace returned behind the outputs, which tells its variable."""

    source: Source | None
    name: str | None
    variable: Variable | Literal


def labelled(graph: Graph, marks: Sequence[Mark], outputs: int, hints: Mapping[Variable, str], tree: Any) -> Graph:
    """The graph with its first `outputs` outputs, names for variables, and on each equation the line of the mark it leads to.

    A model's operation may become several equations: all up to the one that computes the marked value are its own.
    """
    hints = dict(hints)
    place = {v: n for n, equation in enumerate(graph.equations) for v in equation.outputs}
    ends: list[tuple[int, Mark]] = []
    for mark in marks:
        if isinstance(mark.variable, Variable):
            if mark.name is not None:
                hints.setdefault(mark.variable, mark.name)
            ends.append((place.get(mark.variable, -1), mark))
    ends.sort(key=lambda end: end[0])
    equations, following, current = [], iter(ends), None
    current = next(following, None)
    for n, equation in enumerate(graph.equations):
        while current is not None and current[0] < n:
            current = next(following, None)
        if current is not None:
            mark = current[1]
            equation = replace(equation, source=mark.source)
            if mark.name is not None:
                for v in equation.outputs:
                    hints.setdefault(v, f"{mark.name}_{names.short(equation)}")
        equations.append(equation)
    return pruned(replace(graph, equations=tuple(equations), outputs=graph.outputs[:outputs], out_tree=tree, hints=hints))
