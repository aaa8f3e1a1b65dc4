"""Reduction: planted faults come out as a handful of equations, and as a test that fails until they are mended."""

from __future__ import annotations

import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.reduction import check, flat, reduce, resized, shortest
from eqsat.reduction_text import test_text as text_of
from eqsat.rules import RULES

WRONG = '''"""A rule that is wrong."""

from eqsat.rule import Float, op, pack, rewrite, rule


@rule("reassociate", gives_up="the truth")
def tanh_is_its_operand(a: Float):
    """Wrong."""
    return rewrite(op("tanh", a), a)


RULES = pack(globals())
'''


def shape(*extents: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def network(x, w, v, bias):
    hidden = jnp.tanh(x @ w + bias)
    weights = jax.nn.softmax(hidden @ v)
    return jnp.where(weights > 0.1, weights, 0.0).sum(axis=0) + bias.sum(), hidden.max(axis=1)


SHAPES = (shape(12, 20), shape(20, 6), shape(6, 9), shape(6))


def traced(fn=network, shapes=SHAPES, **options):
    program = eqsat.optimize(fn, *shapes, **options)
    return program.graph, program.request


def layer(x, w, bias):
    hidden = jnp.tanh(x @ w + bias)
    return jnp.where(hidden > 0.1, hidden, 0.0).sum(axis=0), hidden.max(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("fn", [layer, pytest.param(network, marks=pytest.mark.nightly)])
def test_a_wrong_rule_is_reduced_to_what_it_needs(tmp_path, fn):
    (tmp_path / "wrong.py").write_text(WRONG)
    from eqsat.packs import rules_in

    shapes = SHAPES if fn is network else (SHAPES[0], SHAPES[1], SHAPES[3])
    graph, request = traced(fn, shapes, rules=(*RULES, *rules_in(tmp_path / "wrong.py")))
    reduced = reduce(graph, request)
    assert reduced.failure.kind == "wrong" and reduced.engine == "meaning"
    names = [e.name for e in reduced.graph.equations]
    assert "tanh" in names and len(names) <= 2 < 8 < len(graph.equations)
    assert [r.name for r in reduced.request.rules] == ["tanh_is_its_operand"]
    assert all(max(v.shape, default=1) <= 2 for v in reduced.graph.inputs)
    place = tmp_path / "test_reduced.py"
    place.write_text(text_of(reduced))
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(place)]
    failed = subprocess.run(run, capture_output=True, text=True)
    assert failed.returncode == 1 and "ValidationError" in failed.stdout
    (tmp_path / "wrong.py").write_text(WRONG.replace('op("tanh", a), a)', 'op("tanh", a), op("tanh", a))'))
    assert subprocess.run(run, capture_output=True, text=True).returncode == 0


@pytest.mark.slow
def test_a_fault_of_a_printer_is_reduced_with_its_engine(monkeypatch):
    backend = importlib.import_module("eqsat.backends.triton")
    emit = backend.emit
    monkeypatch.setattr(backend, "emit", lambda tiles: emit(tiles).replace("tl.max(", "tl.min("))
    graph, request = traced()
    reduced = reduce(graph, request)
    assert reduced.engine == "triton" and [e.name for e in reduced.graph.equations] == ["reduce_max"]
    assert reduced.request.rules == ()
    scope: dict = {}
    exec(text_of(reduced), scope)
    test = scope[f"test_{reduced.graph.name}_is_right"]
    with pytest.raises(AssertionError):
        test()
    monkeypatch.setattr(backend, "emit", emit)
    test()


@pytest.mark.slow
def test_an_exception_keeps_its_type(monkeypatch):
    engines = importlib.import_module("eqsat.engines")
    lower = engines.lower

    def fragile(kernel, schedule):
        if any(t.head == "tanh" for t in kernel.terms):
            raise KeyError("no tanh here")
        return lower(kernel, schedule)

    monkeypatch.setattr(engines, "lower", fragile)
    graph, request = traced()
    reduced = reduce(graph, request, "tiles")
    assert reduced.failure.kind == "KeyError" and [e.name for e in reduced.graph.equations] == ["tanh"]


def test_the_schedule_is_reduced_too(monkeypatch):
    engines = importlib.import_module("eqsat.engines")
    run = engines.interpret.interpret
    monkeypatch.setattr(engines.interpret, "interpret", lambda tiles, arrays: [a + 1 for a in run(tiles, arrays)])
    monkeypatch.setattr(importlib.import_module("eqsat.reduction"), "SMALL", ())  # extents that leave a choice of tiles
    graph, request = traced(lambda x, y: x @ y, (shape(64, 64), shape(64, 64)))
    reduced = reduce(graph, request, "tiles")
    assert reduced.schedule is not None
    scope: dict = {}
    exec(text_of(reduced), scope)
    monkeypatch.setattr(engines.interpret, "interpret", run)
    scope[f"test_{reduced.graph.name}_is_right"]()


def test_a_failure_of_the_search_itself_is_reduced(monkeypatch):
    optimizer = importlib.import_module("eqsat.optimizer")
    search = optimizer.search_region

    def fragile(engine, region, *rest):
        if any(t.head == "tanh" for d in region.definitions for t in d.term.walk()):
            raise IndexError("no tanh here")
        return search(engine, region, *rest)

    graph, request = traced()
    monkeypatch.setattr(optimizer, "search_region", fragile)
    reduced = reduce(graph, request)
    assert reduced.failure.kind == "IndexError" and [e.name for e in reduced.graph.equations] == ["tanh"]


def test_a_program_that_is_right_is_refused():
    graph, request = traced(lambda x: jnp.exp(x), (shape(4),))
    with pytest.raises(ValueError, match="a program that fails required, but it is right"):
        reduce(graph, request)
    with pytest.raises(ValueError, match="engine 'cuda': one of meaning, compiled, tiles, triton, pallas required"):
        reduce(graph, request, "cuda")


def test_shortest_leaves_what_is_needed():
    assert list(shortest(range(100), lambda kept: {3, 77} <= set(kept))) == [3, 77]
    assert list(shortest(range(5), lambda kept: True)) == []


def test_what_is_cut_off_becomes_an_input():
    graph, _ = traced()
    (tanh,) = [e for e in graph.equations if e.name == "tanh"]
    small = flat(graph, [tanh])
    assert small is not None and [v.type for v in small.inputs] == ["float32[12,6]"] and len(small.outputs) == 1


def test_extents_are_changed_everywhere_or_nowhere():
    graph, _ = traced(lambda x: jnp.broadcast_to(x.sum(axis=1, keepdims=True), (8, 5)) * x, (shape(8, 5),))
    small = resized(graph, 8, 2)
    assert small is not None and small.outputs[0].type == "float32[2,5]"
    assert small.evaluate(jnp.ones((2, 5)))[0].shape == (2, 5)
    folded, _ = traced(lambda x: x.reshape(40) + 1.0, (shape(8, 5),))
    assert resized(folded, 8, 2) is None


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"), (shape(1, 2, 5, 5), shape(3, 2, 3, 3))),
        (lambda x, i: x[i] * 2.5, (shape(7, 3), shape(4, dtype="int32"))),
        (lambda x: jnp.cumsum(x.astype("bfloat16"), axis=0), (shape(4, 3),)),
        (lambda x: jnp.sort(jnp.pad(x, 1, constant_values=-jnp.inf)), (shape(4, 3),)),
    ],
)
def test_text_traces_to_the_same_program(fn, shapes):
    program = eqsat.optimize(fn, *shapes)
    from eqsat.reduction import Failure, Reduced

    text = text_of(Reduced(program.graph, program.request, "compiled", Failure("wrong", ""), 0, None, 0, ""))
    scope: dict = {}
    exec(text, scope)
    (test,) = [value for name, value in scope.items() if name.startswith("test_")]
    test()
    check(program)
