"""Graphs: tracing, inlining, names, printing, evaluation, and networkx in both directions."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

import eqsat
from eqsat.graph import Graph


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def attention(q: Any, params: Any, *, scale: float) -> Any:
    scores = q @ params["wk"] * scale
    weights = jax.nn.softmax(scores)
    return {"out": weights @ params["wv"], "best": jnp.argmax(weights, -1)}


ARGUMENTS = (f32(3, 4), {"wk": f32(4, 5), "wv": f32(5, 2)})


def attention_graph() -> Graph:
    return Graph.from_jax(partial(attention, scale=0.5), *ARGUMENTS)


def close(found: Any, wanted: Any) -> None:
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), found, wanted)


# --- tracing --------------------------------------------------------------------------------------------------------


def test_graph_is_the_function() -> None:
    close(attention_graph()(*ARGUMENTS), attention(*ARGUMENTS, scale=0.5))


def test_shapes_suffice() -> None:
    structures = jax.tree_util.tree_map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), ARGUMENTS)
    assert str(Graph.from_jax(partial(attention, scale=0.5), *structures)) == str(attention_graph())


def test_calls_are_inlined_and_dead_equations_removed() -> None:
    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    @jax.jit
    def inner(x: Any) -> Any:
        unused = jnp.sin(x)  # noqa: F841
        return jax.nn.relu(x) + jax.checkpoint(jnp.cos)(x) + doubled(x)

    def twice(x: Any) -> Any:
        return inner(x) * inner(x + 1)

    graph = Graph.from_jax(twice, f32(3))
    ops = [e.name for e in graph.equations]
    assert "sin" not in ops and not {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint"} & set(ops)
    assert ops.count("cos") == 2
    close(graph(f32(3)), twice(f32(3)))


def test_effects_are_kept() -> None:
    def shows(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x * 2)
        return x + 1

    assert len(Graph.from_jax(shows, f32(3)).equations) == 3


def test_gradient_and_tracing_through_evaluation() -> None:
    graph = Graph.from_jax(lambda x: jnp.tanh(x).sum(), f32(4))
    close(jax.grad(graph)(f32(4)), jax.grad(lambda x: jnp.tanh(x).sum())(f32(4)))
    close(jax.jit(graph)(f32(4)), graph(f32(4)))


def test_argument_leaves() -> None:
    graph = Graph.from_jax(lambda a, b, *, c: a + b["u"] + b["v"] + c, f32(2), {"u": f32(2), "v": f32(2)}, c=f32(2))
    assert graph.argument_leaves == ((0,), (1, 2)) and graph.keyword_leaves == {"c": (3,)}


def test_closed_over_arrays_are_constants_once() -> None:
    table = jnp.asarray(f32(3, 4))
    graph = Graph.from_jax(lambda x: jax.jit(lambda y: y @ table)(x) + (x @ table), f32(2, 3))
    assert [graph.name_of[v] for v in graph.constants] == ["table"]
    close(graph(f32(2, 3)), 2 * f32(2, 3) @ table)


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    "fn, args, kind, message",
    [
        (
            branches,
            (f32(3),),
            TypeError,
            r"branches: a function that JAX can trace is required, got TracerBoolConversionError: .* \(.*test_graph.py:\d+\); "
            "choose by value with jnp.where or jax.lax.cond",
        ),
        (lambda x, mode: x, (f32(3), "fast"), TypeError, r"function: .* bind other arguments with functools.partial"),
        (
            lambda x, y: x @ y,
            (f32(3, 4), f32(3, 4)),
            TypeError,
            r"function: .*dot_general.*; mend that line, or the shapes and dtypes .*",
        ),
        (lambda x: x[x > 0], (f32(3),), ValueError, r"function: .*; keep the shape, with jnp.where\(mask, x, other\)"),
        (lambda x: x * float(x[0]), (f32(3),), TypeError, r"function: .*; compute with jnp in place of numpy, float or int; .*"),
        (lambda x: "no", (f32(3),), TypeError, r"function: .* got TypeError: a result of type str, which is no array; .*"),
        (3, (), TypeError, r"Graph.from_jax: a function is required, got int; pass the function, not its result"),
        (lambda x: x["a"], ((f32(3),),), TypeError, r"function: a function that JAX can trace is required, got TypeError: .*"),
        (lambda x: {}[x.ndim], (f32(3),), ValueError, r"function: a function that JAX can trace is required, got KeyError: .*"),
    ],
)
def test_errors_of_tracing(fn: Any, args: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Graph.from_jax(fn, *args)


def test_errors_of_calling() -> None:
    with pytest.raises(TypeError, match="trace it again for these"):
        attention_graph()(f32(3, 4))
    with pytest.raises(TypeError, match="takes 3 flat arguments, got 1"):
        attention_graph().evaluate(f32(3, 4))


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_come_from_the_source() -> None:
    names = list(attention_graph().name_of.values())
    assert names[:3] == ["q", "params_wk", "params_wv"]
    assert {"scores", "weights", "weights_exp", "attention"} <= set(names)
    assert len(set(names)) == len(names) and all(n.isidentifier() for n in names)


def test_names_of_backward_passes() -> None:
    def energy(x: Any) -> Any:
        h = jnp.tanh(x)
        return (h * h).sum()

    names = set(Graph.from_jax(jax.grad(energy), f32(3)).name_of.values())
    assert {"h", "grad_h"} <= names


def test_names_avoid_axes_and_keywords() -> None:
    graph = Graph.from_jax(
        lambda x0, r1, params: x0 + r1 + params["class"] + params["2"], *(f32(2),) * 2, {"class": f32(2), "2": f32(2)}
    )
    assert [graph.name_of[v] for v in graph.inputs] == ["x0_", "r1_", "params_2", "params_class"]


def test_text_of_equations() -> None:
    def scaled(x: Any, y: Any) -> Any:
        z = x * y
        return z + 1.5

    lines = str(Graph.from_jax(scaled, f32(4, 8), f32(4, 8))).splitlines()
    assert lines[0] == "scaled(x: float32[4,8], y: float32[4,8])"
    assert re.fullmatch(r"  z: float32\[4,8\] = mul\(x, y\)   # test_graph.py:\d+", lines[1])
    assert re.fullmatch(r"  scaled: float32\[4,8\] = add\(z, 1.5\)   # test_graph.py:\d+", lines[2])
    assert lines[3] == "  return scaled"


# --- networkx -------------------------------------------------------------------------------------------------------


def test_networkx_round_trip() -> None:
    graph = attention_graph()
    again = Graph.from_networkx(graph.to_networkx())
    close(again(*ARGUMENTS), graph(*ARGUMENTS))
    assert [e.name for e in again.equations] == [e.name for e in graph.equations]
    assert list(again.name_of.values()) == list(graph.name_of.values())
    assert again.argument_leaves == graph.argument_leaves


@pytest.mark.parametrize(
    "fn, args",
    [
        (lambda x: [a * 2 for a in jnp.split(x, 3)], (f32(6),)),
        (lambda x: x - x, (f32(6),)),
        (lambda x: (x, 2.0), (f32(6),)),
        (lambda x: lax.scan(lambda c, v: (c + v, c * v), 0.0, x), (f32(6),)),
        (lambda x: jnp.sort(x) @ jnp.ones((6, 2)), (f32(6),)),
        (lambda x: x[jnp.array([2, 0])].astype(jnp.bfloat16), (f32(6),)),
    ],
)
def test_networkx_round_trip_of(fn: Any, args: Any) -> None:
    again = Graph.from_networkx(Graph.from_jax(fn, *args).to_networkx())
    close(again(*args), fn(*args))


def test_networkx_attributes() -> None:
    made = Graph.from_jax(lambda x: x * x - 2.0, jax.ShapeDtypeStruct((3,), jnp.float32)).to_networkx()
    assert made.nodes["x"] == {"op": "input", "params": {"index": 0}, "source": "", "shape": (3,), "dtype": "float32"}
    assert made.nodes["mul"]["op"] == "mul" and made.nodes["mul"]["shape"] == (3,)
    assert made.edges["x", "mul"]["positions"] == (0, 1)
    assert made.nodes["literal"]["params"]["value"] == 2.0 and made.edges["literal", "sub"]["positions"] == (1,)


def by_hand() -> nx.DiGraph:
    made = nx.DiGraph(name="projection")
    made.add_node("x", op="input", shape=(3, 4), dtype="float32")
    made.add_node("w", op="input", shape=(4, 2), dtype="float32")
    made.add_node("h", op="dot", params={})
    made.add_node("y", op="tanh")
    made.add_node("mean", op="reduce_sum", params={"axes": (1,)})
    made.add_edge("w", "h", position=1)
    made.add_edge("x", "h", position=0)
    made.add_edge("h", "y")
    made.add_edge("y", "mean")
    return made


def test_networkx_by_hand() -> None:
    graph = Graph.from_networkx(by_hand())
    x, w = f32(3, 4), f32(4, 2)
    close(graph(x, w), jnp.tanh(x @ w).sum(1))
    assert graph.name == "projection" and list(graph.name_of.values()) == ["x", "w", "h", "y", "mean"]


def test_networkx_by_hand_optimises() -> None:
    program = eqsat.optimize(Graph.from_networkx(by_hand()))
    x, w = f32(3, 4), f32(4, 2)
    close(program(x, w), jnp.tanh(x @ w).sum(1))
    assert len(program.launches) == 1


def test_the_summary_counts_operations_calls_and_constants() -> None:
    table = np.ones((3, 5), "float32")
    graph = Graph.from_jax(lambda x: lax.sort(x @ table) + 1, f32(4, 3))
    summary = graph.summary()
    assert summary.operations == {"dot_general": 1, "sort": 1, "add": 1}
    assert [(name, n) for name, _, n in summary.calls] == [("sort", 1)]
    assert summary.constant_bytes == 60 and "calls of JAX" in str(summary)


def change(made: nx.DiGraph, what: str) -> nx.DiGraph:
    match what:
        case "cycle":
            made.add_edge("mean", "h", position=2)
        case "op":
            made.nodes["y"]["op"] = "tanhh"
        case "no op":
            del made.nodes["y"]["op"]
        case "position":
            del made.edges["x", "h"]["position"]
        case "twice":
            made.edges["x", "h"]["position"] = 1
        case "gap":
            made.edges["w", "h"]["position"] = 2
        case "shape":
            made.nodes["w"]["shape"] = (5, 2)
        case "states":
            made.nodes["y"]["shape"] = (3, 3)
        case "input":
            del made.nodes["x"]["shape"]
        case "params":
            made.nodes["mean"]["params"] = {"axis": 1}
        case "empty":
            made = nx.DiGraph()
        case "undirected":
            made = nx.Graph(made)
    return made


@pytest.mark.parametrize(
    "what, message",
    [
        ("cycle", r"networkx graph: no cycles are required, got .*h -> y -> mean.*; remove an edge"),
        ("op", r"node 'y': op must name a function of jax.lax or be input, constant or output, got 'tanhh'; see dir\(jax.lax\)"),
        ("no op", r"node 'y': attribute 'op' is required, got \[\]; set it on the node"),
        ("position", r"edge 'x' -> 'h': an operand position is required, got none; set position=0, 1, ..."),
        ("twice", r"node 'h': one operand per position is required, got two at 1; renumber its edges"),
        ("gap", r"node 'h': operand positions 0 .. 1 are required, got \[0, 2\]; add the missing edge"),
        ("shape", r"node 'h': op 'dot' does not apply to \(float32\[3,4\], float32\[5,2\]\): "),
        ("states", r"node 'y': states float32\[3,3\], got float32\[3,2\] from its operands; correct the node or an operand"),
        ("input", r"node 'x': attribute 'shape' is required, got \['dtype', 'op'\]; set it on the node"),
        ("params", r"node 'mean': op 'reduce_sum' does not apply to \(float32\[3,2\]\): "),
        ("empty", r"networkx graph: at least one node of op 'output' or with no successor is required, got none; add one"),
        ("undirected", r"Graph.from_networkx: a networkx.DiGraph is required, got Graph; edges need a direction"),
    ],
)
def test_errors_of_networkx(what: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Graph.from_networkx(change(by_hand(), what))
