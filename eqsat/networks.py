"""Programs as networkx graphs, in both directions; `eqsat.graph` documents the attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import networkx as nx
from jax import lax

from eqsat.graph import Graph, Literal, Variable, pruned, trace
from eqsat.names import Namer, identifier


def written(graph: Graph) -> nx.DiGraph:
    """A program as a directed graph."""
    result = nx.DiGraph(name=graph.name, in_tree=graph.in_tree, out_tree=graph.out_tree)
    result.graph |= {"argument_leaves": graph.argument_leaves, "keyword_leaves": graph.keyword_leaves}
    node_of: dict[Any, str] = {}
    fresh = Namer(graph.name_of.values())

    def add(name: str, op: str, params: Mapping[str, Any], aval: Any = None, source: Any = None, **rest: Any) -> str:
        typed = {} if aval is None else {"shape": tuple(aval.shape), "dtype": str(aval.dtype)}
        result.add_node(name, op=op, params=dict(params), source=str(source or ""), **typed, **rest)
        return name

    def connect(operands: tuple[Variable | Literal, ...], user: str) -> None:
        for position, atom in enumerate(operands):
            if atom not in node_of:
                node_of[atom] = add(fresh("literal"), "constant", {"value": atom.value}, atom.aval)  # type: ignore[union-attr]
            if not result.has_edge(node_of[atom], user):
                result.add_edge(node_of[atom], user, positions=())
            result.edges[node_of[atom], user]["positions"] += (position,)

    for index, variable in enumerate(graph.inputs):
        node_of[variable] = add(graph.name_of[variable], "input", {"index": index}, variable.aval)
    for variable, value in graph.constants.items():
        node_of[variable] = add(graph.name_of[variable], "constant", {"value": value}, variable.aval)
    for equation in graph.equations:
        single = len(equation.outputs) == 1
        name = graph.name_of[equation.outputs[0]] if single else fresh(equation.name)
        aval = equation.outputs[0].aval if single else None
        params = equation.origin.params if equation.bodies else equation.params  # a loop's are those of JAX, to be bound again
        add(name, equation.name, params, aval, equation.source, primitive=equation.primitive)
        connect(equation.inputs, name)
        for index, variable in enumerate(equation.outputs):
            node_of[variable] = name if single else add(graph.name_of[variable], "result", {"index": index}, variable.aval)
            if not single:
                result.add_edge(name, node_of[variable], positions=(0,))
    for index, atom in enumerate(graph.outputs):
        connect((atom,), add(fresh("output"), "output", {"index": index}, atom.aval))
    return result


def read(graph: nx.DiGraph) -> Graph:
    """A program from a directed graph, by tracing a function that applies its operations in topological order."""
    order = _ordered(graph)
    ops = {node: _attribute(graph, node, "op") for node in order}
    arguments, results = ([n for n in _numbered(graph, order) if ops[n] == op] for op in ("input", "output"))
    if not results:
        results = [n for n in order if graph.out_degree(n) == 0 and ops[n] != "input"]
    if not results:
        raise ValueError("networkx graph: at least one node of op 'output' or with no successor is required, got none; add one")
    inner = [n for n in order if ops[n] not in ("input", "output") and not _several(graph, n)]
    structures = [_structure(graph, n) for n in arguments]

    def apply(*flat: Any) -> tuple[list[Any], list[Any]]:
        values: dict[Any, Any] = dict(zip(arguments, flat, strict=True))
        for node in order:
            if node not in values:
                values[node] = _applied(graph, node, ops[node], values)
        return [values[n] for n in results], [values[n] for n in inner]

    traced = trace(_named(apply, graph.graph.get("name") or "graph"), structures, {})
    shown = dict(zip(traced.outputs[len(results) :], inner, strict=True))
    hints = {v: str(n) for v, n in shown.items() if isinstance(v, Variable)} | dict(
        zip(traced.inputs, map(str, arguments), strict=True)
    )
    return _with_outputs(traced, len(results), hints, graph.graph)


def _with_outputs(traced: Graph, count: int, hints: Mapping[Variable, str], facts: Mapping[str, Any]) -> Graph:
    """The traced program without the outputs that were there to name variables."""
    in_tree, out_tree = facts.get("in_tree"), facts.get("out_tree")
    if in_tree is None or in_tree.num_leaves != len(traced.inputs):
        in_tree, leaves, keywords = traced.in_tree, traced.argument_leaves, traced.keyword_leaves
    else:
        leaves, keywords = facts.get("argument_leaves", ()), facts.get("keyword_leaves", {})
    if out_tree is None or out_tree.num_leaves != count:
        out_tree = jax.tree_util.tree_structure(0 if count == 1 else (0,) * count)
    return pruned(
        dataclasses.replace(
            traced,
            outputs=traced.outputs[:count],
            hints=hints,
            in_tree=in_tree,
            out_tree=out_tree,
            argument_leaves=leaves,
            keyword_leaves=keywords,
        )  # fmt: skip
    )


def _named(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    fn.__name__ = identifier(name)
    return fn


def _ordered(graph: nx.DiGraph) -> list[Any]:
    if not isinstance(graph, nx.DiGraph):
        raise TypeError(
            f"Graph.from_networkx: a networkx.DiGraph is required, got {type(graph).__name__}; edges need a direction"
        )
    try:
        place = {node: n for n, node in enumerate(graph.nodes)}
        return list(nx.lexicographical_topological_sort(graph, key=place.__getitem__))  # keeps the order of an exported program
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(str(edge[0]) for edge in nx.find_cycle(graph))
        raise ValueError(f"networkx graph: no cycles are required, got {cycle}; remove an edge") from None


def _numbered(graph: nx.DiGraph, order: list[Any]) -> list[Any]:
    """Nodes by their parameter `index`, those without one as they were added."""
    place = {node: n for n, node in enumerate(graph.nodes)}
    return sorted(order, key=lambda n: (graph.nodes[n].get("params", {}).get("index", place[n]), place[n]))


def _attribute(graph: nx.DiGraph, node: Any, name: str) -> Any:
    if name not in graph.nodes[node]:
        raise ValueError(f"node {node!r}: attribute {name!r} is required, got {sorted(graph.nodes[node])}; set it on the node")
    return graph.nodes[node][name]


def _structure(graph: nx.DiGraph, node: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(_attribute(graph, node, "shape")), jax.numpy.dtype(_attribute(graph, node, "dtype")))


def _several(graph: nx.DiGraph, node: Any) -> bool:
    return any(graph.nodes[user].get("op") == "result" for user in graph.successors(node))


def _operands(graph: nx.DiGraph, node: Any) -> list[Any]:
    """Operand nodes in order, from the positions on the edges."""
    placed: dict[int, Any] = {}
    edges = list(graph.in_edges(node, data=True))
    for source, _, data in edges:
        positions = data.get("positions", (data["position"],) if "position" in data else (0,) if len(edges) == 1 else None)
        if positions is None:
            raise ValueError(f"edge {source!r} -> {node!r}: an operand position is required, got none; set position=0, 1, ...")
        for position in positions:
            if position in placed:
                raise ValueError(
                    f"node {node!r}: one operand per position is required, got two at {position}; renumber its edges"
                )
            placed[position] = source
    if sorted(placed) != list(range(len(placed))):
        raise ValueError(
            f"node {node!r}: operand positions 0 .. {len(placed) - 1} are required, got {sorted(placed)}; add the missing edge"
        )
    return [placed[p] for p in range(len(placed))]


def _applied(graph: nx.DiGraph, node: Any, op: str, values: Mapping[Any, Any]) -> Any:
    """The value of a node, checked against the shape and dtype that it states."""
    params = dict(graph.nodes[node].get("params") or {})
    operands = [values[n] for n in _operands(graph, node)]
    if op == "constant":
        result = jax.numpy.asarray(params["value"], dtype=graph.nodes[node].get("dtype"))
    elif op == "output":
        (result,) = operands
    elif op == "result":
        result = operands[0][params.get("index", 0)]
    else:
        try:
            result = _function(graph, node, op)(*operands, **params)
        except (TypeError, ValueError) as error:
            given = ", ".join(_type(v) for v in operands)
            raise type(error)(f"node {node!r}: op {op!r} does not apply to ({given}): {str(error).splitlines()[0]}") from error
    if isinstance(result, list | tuple) and len(result) == 1 and not _several(graph, node):
        (result,) = result
    return _checked(graph, node, result)


def _function(graph: nx.DiGraph, node: Any, op: str) -> Callable[..., Any]:
    """The primitive that an exported node carries, else the function of `jax.lax` that a hand-made node names."""
    primitive = graph.nodes[node].get("primitive")
    if isinstance(primitive, jex.Primitive):
        return lambda *operands, **params: _bind(primitive, operands, params)
    found = getattr(lax, str(op), None)
    if not callable(found) or str(op).startswith("_"):
        raise ValueError(
            f"node {node!r}: op must name a function of jax.lax or be input, constant or output, got {op!r}; see dir(jax.lax)"
        )
    return found


def _bind(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
    bound = primitive.get_bind_params(params)
    if isinstance(bound, tuple):
        functions, bound = bound
        operands = (*functions, *operands)
    return primitive.bind(*operands, **bound)


def _checked(graph: nx.DiGraph, node: Any, result: Any) -> Any:
    facts = graph.nodes[node]
    stated = (facts.get("shape"), facts.get("dtype"))
    if hasattr(result, "shape"):
        wrong_shape = stated[0] is not None and tuple(stated[0]) != tuple(result.shape)
        if wrong_shape or (stated[1] is not None and str(stated[1]) != str(result.dtype)):
            wanted = f"{stated[1] or result.dtype}[{','.join(map(str, result.shape if stated[0] is None else stated[0]))}]"
            raise ValueError(
                f"node {node!r}: states {wanted}, got {_type(result)} from its operands; correct the node or an operand"
            )
    return result


def _type(value: Any) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]" if hasattr(value, "shape") else type(value).__name__
