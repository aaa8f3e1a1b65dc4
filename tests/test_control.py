"""Loops, branches and sharded parts: JAX runs them over bodies that are optimised like any program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqsat
from eqsat.graph import Graph
from eqsat.hoisting import hoisted
from eqsat.oracle import evaluate_graph
from eqsat.program import Uses


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def cell(carry, x, weights):
    """An LSTM's step: one kernel for the gates, one for what they do."""
    h, c = carry
    i, f, g, o = jnp.split(jnp.concatenate([x, h]) @ weights, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm(weights, xs):
    start = jnp.zeros(xs.shape[1])
    return lax.scan(lambda carry, x: cell(carry, x, weights), (start, start), xs)


def nested(c, xs):
    def inner(c, x):
        return jnp.tanh(c @ x), c.sum()

    def outer(c, x):
        c, ys = lax.scan(inner, c * 0.5, jnp.stack([x, x + 1]))
        c = lax.cond(c[0, 0] > 0, lambda c: c * 2 + jnp.sin(c), lambda c: c, c)
        return c, (ys, jnp.sort(c, axis=0))

    c, ys = lax.scan(outer, c, xs, reverse=True)
    return lax.while_loop(lambda c: jnp.sum(c) < 40, lambda c: jnp.abs(c) * 0.3 + c + 1, c), ys


def agrees(program, args, tolerance=2e-6):
    wanted = [np.asarray(x) for x in evaluate_graph(program.graph, jax.tree_util.tree_leaves(args))]
    for got, want in zip(jax.tree_util.tree_leaves(program(*args)), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max(initial=0))))


@pytest.fixture(scope="module")
def looped():
    args = (normal(4, 4), normal(3, 4, 4, seed=1))
    return eqsat.optimize(nested, *args), args


def test_nested_loops_compute_what_they_did(looped):
    program, args = looped
    agrees(program, args, 1e-5)
    assert program.validate(level="kernels").kernels


def test_launches_count_trips_and_say_where_they_are_not_known(looped):
    program, _ = looped
    outer, ended_by_values = program.loops
    assert outer.eqn.trips == 3 and ended_by_values.eqn.trips is None
    (inner, branch) = outer.programs[0].loops
    assert inner.eqn.trips == 2 and inner.programs[0].launches
    for kernel in inner.programs[0].launches:
        assert program.uses[kernel.kernel] == Uses(6)
    for kernel in branch.programs[1].launches:
        assert program.uses[kernel.kernel] == Uses(3, at_most=True)
    for part in ended_by_values.programs:
        assert all(program.uses[k.kernel] == Uses(1, per_iteration=True) for k in part.launches)
    assert program.cost.launches == sum(u.count for u in program.uses.values())
    assert {k.kernel for k in program.kernels} == set(program.uses)


def test_the_report_and_the_page_show_the_kernels_of_loops(looped):
    program, _ = looped
    text, page = program.report(), program.view()
    assert "outer, 3 iterations: body of" in text and "counted for one iteration" in text and "1/iter" in text and "<=3" in text
    assert all(f"{k.name}\n---" in text or f"{k.name}\n-" in text for k in program.kernels)
    assert all(f'id="kernel-{n}"' in page for n in range(1, len(program.kernels) + 1))


def test_a_saved_program_runs_its_loops_without_eqsat(looped, tmp_path):
    program, args = looped
    program.save(tmp_path / "saved")
    assert all((tmp_path / "saved" / f"{k.name}_triton.py").exists() for k in program.kernels)
    plan = json.loads((tmp_path / "saved" / "plan.json").read_text())
    assert plan["steps"][0]["loop"] == "scan" and plan["steps"][0]["trips"] == 3
    spec = importlib.util.spec_from_file_location("saved_loops", tmp_path / "saved" / "program.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for got, want in zip(module.run(*args), jax.tree_util.tree_leaves(program(*args)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_lstm_runs_two_kernels_a_step():
    args = (normal(16, 32) / 4, normal(7, 8, seed=1))
    program = eqsat.optimize(lstm, *args)
    agrees(program, args)
    (scan,) = program.loops
    assert scan.programs[0].cost.launches <= 3 < scan.programs[0].baseline.launches
    assert program.cost.launches < program.baseline.launches / 3


def test_equal_bodies_are_optimised_once():
    def twice(x):
        def step(c, x):
            return jnp.tanh(c) * x, ()

        x, _ = lax.scan(step, x, jnp.ones((3, 8)))
        return lax.scan(step, x + 1, jnp.ones((5, 8)))[0]

    program = eqsat.optimize(twice, normal(8))
    first, second = program.loops
    assert [k.kernel for k in first.programs[0].launches] == [k.kernel for k in second.programs[0].launches]
    assert program.uses[first.programs[0].launches[0].kernel].count == 8


def test_gradients_of_loops_are_loops():
    args = (normal(16, 32) / 4, normal(7, 8, seed=1))
    program = eqsat.optimize(jax.grad(lambda w, xs: (lstm(w, xs)[1] ** 2).sum()), *args)
    agrees(program, args, 1e-5)
    assert [loop.name for loop in program.loops] == ["scan", "scan"] and not program.calls


def test_the_oracle_evaluates_loops_in_float64():
    def compounded(x):
        return lax.fori_loop(0, 200, lambda n, x: x * 1.01 + 0.1, x)

    x = np.float32(1.0)
    (wide,) = evaluate_graph(Graph.from_jax(compounded, x), [x], wide=True)
    exact = 1.0
    for _ in range(200):
        exact = exact * float(np.float32(1.01)) + float(np.float32(0.1))
    assert abs(float(wide) - exact) < 1e-9 * exact


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 9])
def test_branches_by_number(index):
    def fn(n, x):
        return lax.switch(n, [lambda x: x + 1, lambda x: jnp.exp(x), lambda x: x * x], x)

    args = (jnp.int32(index), normal(5))
    agrees(eqsat.optimize(fn, jax.ShapeDtypeStruct((), "int32"), args[1]), args)


def test_zero_trips_and_no_elements():
    def fn(x, xs):
        return lax.scan(lambda c, x: (c * 2 + x, c), x, xs), lax.while_loop(lambda c: c.sum() < -1e9, jnp.exp, x)

    args = (normal(3), jnp.zeros((0, 3)))
    program = eqsat.optimize(fn, *args)
    agrees(program, args)
    assert program.loops[0].eqn.trips == 0 and program.cost.launches == program.loops[1].programs[1].cost.launches + 1


def test_effects_in_a_loop_happen_in_order(capfd):
    def fn(x):
        def body(n, x):
            jax.debug.print("trip {} {}", n, x[0], ordered=True)
            return x * 2 + 1

        jax.debug.print("start {}", x[0], ordered=True)
        x = lax.fori_loop(0, 3, body, x)
        jax.debug.print("end {}", x[0], ordered=True)
        return x

    x = jnp.ones(2)
    program = eqsat.optimize(fn, x)
    np.testing.assert_array_equal(program(x), [15.0, 15.0])
    jax.effects_barrier()
    words = [line.split()[:2] for line in capfd.readouterr().out.splitlines()]
    assert words == [["start", "1.0"], ["trip", "0"], ["trip", "1"], ["trip", "2"], ["end", "15.0"]]


DATA_PARALLEL = """
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import eqsat


def loss(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    start = jax.lax.pcast(jnp.zeros(h.shape), "data", to="varying")
    h, _ = jax.lax.scan(lambda c, n: (jnp.sin(c + h) * n, None), start, jnp.ones(2))
    return ((h @ params["w2"] - y) ** 2).mean()


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * jax.lax.pmean(g, "data"), params, grads), jax.lax.pmean(value, "data")


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.sharding == b.sharding
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


assert jax.device_count() == 8
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
params = {"w1": normal(16, 32) / 4, "b1": normal(32), "w2": normal(32, 4) / 6}
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
spread = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()))
x, y = (jax.device_put(a, NamedSharding(mesh, P("data"))) for a in (normal(64, 16), normal(64, 4)))
params = jax.device_put(params, NamedSharding(mesh, P()))
want = jax.jit(spread)(params, x, y)
program = eqsat.optimize(spread, params, x, y)
close(program(params, x, y), want)
close(eqsat.jit(spread)(params, x, y), want)
(part,) = program.loops
assert part.name == "shard_map" and part.programs[0].cost.launches < part.programs[0].baseline.launches / 2
assert {c.name for c in program.calls} <= {"psum_invariant", "psum"}, program.calls
whole = lambda params, x, y: jax.value_and_grad(lambda p: ((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2).mean())(params)
close(eqsat.jit(whole)(params, x, y), jax.jit(whole)(params, x, y))  # JAX partitions what the program is made of
print("agrees")
"""


def test_a_data_parallel_step_on_eight_devices(tmp_path):
    (tmp_path / "step.py").write_text(DATA_PARALLEL)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(eqsat.__file__).parent.parent)}
    run = subprocess.run([sys.executable, tmp_path / "step.py"], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == "agrees", run.stderr


def test_loop_invariant_code_is_computed_once():
    def fn(a, b, x, xs):
        def outer(c, x):
            def step(c, y):
                return jnp.tanh(c @ (a @ b) + y * jnp.exp(b[0])), None

            return lax.scan(step, c, jnp.stack([x, x + 1]))[0], jnp.sort(b[0])[0] + c.sum()

        c, ys = lax.scan(outer, x, xs)
        return lax.while_loop(lambda c: c.sum() < (a @ b).sum(), lambda c: c + jnp.abs(b.sum()) + 1, c), ys

    args = (normal(8, 8) / 3, normal(8, 8, seed=1) / 3, normal(4, 8, seed=2), normal(3, 4, 8, seed=3))
    graph = hoisted(Graph.from_jax(fn, *args))
    assert [e.name for e in graph.equations if not e.bodies].count("dot_general") == 2  # for both loops
    bodies = [b for e in graph.equations for b in e.bodies] + [b for e in graph.equations[-2].bodies for b in e.bodies]
    assert not any(e.name == "sort" for body in bodies for e in body.equations)
    (step,) = [b for e in graph.equations for b in e.bodies for inner in b.equations for b in inner.bodies]
    assert [e.name for e in step.equations].count("dot_general") == 1  # pointwise work stays where it is used
    assert "exp" in [e.name for e in step.equations]
    program = eqsat.optimize(fn, *args)
    agrees(program, args, 1e-5)
    assert program.cost.flops < program.baseline.flops * 0.7


def test_nothing_is_hoisted_that_would_be_larger_or_has_effects():
    def fn(a, x, xs):
        def step(c, y):
            jax.debug.print("{}", a.sum())
            return c * jnp.tanh(a @ a.T).sum() + y, None  # [64, 64] from [64, 2]

        return lax.scan(step, x, xs)[0]

    graph = hoisted(Graph.from_jax(fn, normal(64, 2), normal(3), normal(5, 3)))
    moved = [e.name for e in graph.equations if not e.bodies]
    assert "debug_callback" not in moved and "debug_print" not in moved
    assert moved.count("reduce_sum") == 2 and moved[-1] == "reduce_sum"  # sums are small, with all that they need
    plain = Graph.from_jax(lambda x, xs: lax.scan(lambda c, y: (c * 2 + y, None), x, xs)[0], normal(3), normal(5, 3))
    assert hoisted(plain) is plain


def selective_scan(x, dt, a, b, c):
    """Mamba's recurrence: the state [channels, states] decays by exp(dt * a), and is fed by dt * b * x."""

    def step(h, inputs):
        x, dt, b, c = inputs
        h = jnp.exp(dt[:, None] * a) * h + (dt * x)[:, None] * b[None, :]
        return h, (h * c[None, :]).sum(-1)

    return lax.scan(step, jnp.zeros(a.shape), (x, jax.nn.softplus(dt), b, c))[1]


def test_a_selective_scan_is_one_kernel_a_step():
    args = (normal(6, 16), normal(6, 16, seed=1), -jnp.abs(normal(16, 4, seed=2)), normal(6, 4, seed=3), normal(6, 4, seed=4))
    program = eqsat.optimize(selective_scan, *args)
    agrees(program, args, 1e-5)
    assert program.loops[0].programs[0].cost.launches <= 2 and not program.calls


def test_an_adam_loop():
    def fit(w, x, y):
        def step(state, n):
            w, m, v = state
            g = jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            t = n + 1.0
            return (w - 0.1 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.99**t)) + 1e-6), m, v), None

        return lax.scan(step, (w, jnp.zeros_like(w), jnp.zeros_like(w)), jnp.arange(8.0))[0][0]

    args = (normal(6, 3), normal(32, 6, seed=1), normal(32, 3, seed=2))
    program = eqsat.optimize(fit, *args)
    agrees(program, args, 1e-4)
    assert program.loops[0].programs[0].cost.launches <= 4 and program.loops[0].eqn.trips == 8
