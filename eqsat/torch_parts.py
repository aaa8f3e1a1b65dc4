"""A graph of torch cut where an operator has no row: programs of eqsat, and between them what torch runs itself.

Operators stay in the order of the graph where they draw random numbers. What depends on nothing that torch runs comes first, so
that there are as few programs as the operators of torch stand behind each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch

from eqsat.frontends.torch.random import is_random

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Part:
    """Nodes that run together, on values of `inputs`, and make those of `outputs`; `run` takes and gives lists."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    run: Run


@dataclass(frozen=True, eq=False)
class Split:
    """A graph whose nodes in `theirs` are run by torch, the others by what `compiled` makes of a graph of them."""

    graph: Any
    theirs: Collection[Any]
    compiled: Callable[[Any], Run]

    def __call__(self, args: list[Any]) -> list[Any]:
        known = dict(zip(self._placeholders, args, strict=True))
        args.clear()
        for part, unused in zip(self._parts, self._unused, strict=True):
            known.update(zip(part.outputs, part.run([known[n] for n in part.inputs]), strict=True))
            for node in unused:
                del known[node]
        results = torch.fx.node.map_arg(self._output.args[0], known.__getitem__)
        return list(results) if isinstance(results, tuple | list) else [results]

    @cached_property
    def _placeholders(self) -> list[Any]:
        return [n for n in self.graph.graph.nodes if n.op == "placeholder"]

    @cached_property
    def _output(self) -> Any:
        return next(n for n in self.graph.graph.nodes if n.op == "output")

    @cached_property
    def _parts(self) -> list[Part]:
        rounds, parts = self._rounds(), []
        for number in range(1 + max(rounds.values(), default=0)):
            nodes = [n for n, r in rounds.items() if r == number]
            ours = [n for n in nodes if n not in self.theirs]
            if any(n.op == "call_function" for n in ours):
                inputs, outputs = self._edges(ours)
                parts.append(Part(inputs, outputs, self.compiled(extracted(self.graph, ours, inputs, outputs))))
            parts += [self._single(n) for n in nodes if n in self.theirs]
        return parts

    def _rounds(self) -> dict[Any, int]:
        """For each node that computes, the round in which it runs: in each, first a program, then operators of torch."""
        found: dict[Any, int] = {}
        drawn = 0  # the first round in which random numbers come behind all earlier ones
        for node in self.graph.graph.nodes:
            if node.op not in ("call_function", "get_attr"):
                continue
            after = [found[n] + (n in self.theirs and node not in self.theirs) for n in node.all_input_nodes if n in found]
            found[node] = max(after, default=0)
            if is_random(node.target):
                found[node] = max(found[node], drawn)
                drawn = found[node] + (node in self.theirs)
        return found

    def _edges(self, nodes: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        own = set(nodes)
        inputs = {i: None for n in nodes for i in n.all_input_nodes if i not in own}
        outputs = [n for n in nodes if n.op == "call_function" and any(u not in own for u in n.users)]
        return tuple(inputs), tuple(outputs)

    def _single(self, node: Any) -> Part:
        inputs = tuple(n for n in node.all_input_nodes if n.op != "get_attr")

        def run(values: list[Any]) -> list[Any]:
            known = dict(zip(inputs, values, strict=True))
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: self._value(n, known))
            with torch.no_grad():
                return [node.target(*args, **kwargs)]

        return Part(inputs, (node,), run)

    def _value(self, node: Any, known: Mapping[Any, Any]) -> Any:
        if node.op != "get_attr":
            return known[node]
        return attrgetter(node.target)(self.graph)

    @cached_property
    def _unused(self) -> list[list[Any]]:
        """For each part, what no later one needs."""
        last: dict[Any, int] = {}
        for number, part in enumerate(self._parts):
            last |= dict.fromkeys((*part.inputs, *part.outputs), number)
        kept = set(self._output.all_input_nodes)
        return [[n for n, m in last.items() if m == number and n not in kept] for number in range(len(self._parts))]


def theirs(graph: Any, nodes: Collection[Any]) -> set[Any]:
    """The nodes of a graph that torch runs where it runs some, also those inside of bodies: with the parts of their results."""
    inside = {n.graph for n in nodes}
    found: set[Any] = set()
    for node in graph.graph.nodes:
        bodies = [a for a in node.all_input_nodes if a.op == "get_attr" and _holds(graph, a.target, inside)]
        if node in nodes or bodies or (node.target is operator.getitem and node.args[0] in found):
            found.add(node)
    return found


def _holds(graph: Any, name: str, inside: Collection[Any]) -> bool:
    """A body (or a body in it) is one of some graphs."""
    body = attrgetter(name)(graph)
    return isinstance(body, torch.nn.Module) and any(getattr(m, "graph", None) in inside for m in body.modules())


def extracted(graph: Any, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """A graph of its own for some nodes of a graph, with their meanings."""
    made, copies = torch.fx.Graph(), {}
    for node in inputs:
        copies[node] = made.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[n] for n in outputs))
    return torch.fx.GraphModule(graph, made)
