"""`eqsat.jit`, and programs under JAX's transformations, against the function run one operation after the other."""

from __future__ import annotations

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqsat

W = jnp.asarray(np.random.default_rng(1).standard_normal((6, 6)), jnp.float32)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def close(got, want, tolerance=3e-5):
    """Equal structure, dtypes and weak types, and close values."""
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype and jax.typeof(a).weak_type == jax.typeof(b).weak_type
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def layer(w, x):
    return (jnp.tanh(x @ w) ** 2).sum(-1)


def total(f):
    return lambda w, x: f(w, x).sum()


@pytest.fixture(scope="module")
def compiled():
    return eqsat.jit(layer)


XS = normal(3, 4, 6)
TRANSFORMATIONS = {
    "call": lambda f: f(W, XS[0]),
    "jit": lambda f: jax.jit(f)(W, XS[0]),
    "grad": lambda f: jax.grad(total(f), (0, 1))(W, XS[0]),
    "jit of grad": lambda f: jax.jit(jax.value_and_grad(total(f)))(W, XS[0]),
    "vmap": lambda f: jax.vmap(f, (None, 0))(W, XS),
    "vmap over another axis": lambda f: jax.vmap(f, (1, None), 1)(jnp.stack([W, W + 1], 1), XS[0]),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f)), (None, 0))(W, XS),
    "grad of vmap": lambda f: jax.grad(lambda w: jax.vmap(total(f), (None, 0))(w, XS).sum())(W),
    "jvp": lambda f: jax.jvp(f, (W, XS[0]), (W, XS[1])),
    "linearize": lambda f: jax.linearize(f, W, XS[0])[1](W, XS[1]),
    "vjp": lambda f: jax.vjp(f, W, XS[0])[1](jnp.ones(4)),
    "forward over reverse": lambda f: jax.jvp(jax.grad(total(f)), (W, XS[0]), (W, XS[1])),
    "reverse over reverse": lambda f: jax.grad(lambda w: (jax.grad(total(f))(w, XS[0]) ** 2).sum())(W),
    "scan": lambda f: lax.scan(lambda c, x: (c + f(W, x + c[:, None]), c), jnp.zeros(4), XS),
    "grad of scan": lambda f: jax.grad(lambda w: lax.scan(lambda c, x: (c + f(w, x).sum(), c), 0.0, XS)[0])(W),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(total(f)))(W, XS[0]),
    "cond": lambda f: lax.cond(W[0, 0] > -9, f, lambda w, x: x[:, 0], W, XS[0]),
}


SLOW = ("forward over reverse", "reverse over reverse", "vmap of grad", "grad of scan", "checkpoint")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in TRANSFORMATIONS])
def test_transformations_of_a_compiled_function(name, compiled):
    close(TRANSFORMATIONS[name](compiled), TRANSFORMATIONS[name](layer), 1e-4)


@pytest.mark.parametrize("name", ["grad", "vmap", "scan"])
def test_transformations_of_a_program(name):
    program = eqsat.optimize(layer, W, XS[0])
    close(TRANSFORMATIONS[name](program), TRANSFORMATIONS[name](layer), 1e-4)


def test_a_gradient_is_made_of_optimised_programs():
    program = eqsat.optimize(layer, W, XS[0])
    jax.grad(total(program))(W, XS[0])
    forward, derivative = program.function.linearized((True, False))
    (backward,) = derivative._derived.values()
    for made in (forward, backward):
        assert made.program.request is not None and made.program.cost.launches < made.program.baseline.launches


def test_custom_derivatives_hold():
    @jax.custom_vjp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))

    def fn(x):
        return (straight_through(x * 3) * x).sum()

    x = normal(5)
    want = jax.grad(fn)(x)
    assert np.abs(want - jnp.round(x * 3)).min() > 0  # another derivative than that of rounding
    for compiled in (eqsat.jit(fn), eqsat.optimize(fn, x), lambda x: eqsat.jit(lambda y: fn(x) + y)(0.0)):
        close(jax.grad(compiled)(x), want)


def test_static_arguments_pytrees_and_weak_types():
    def fn(tree, power, *, scale, mode="tanh"):
        h = tree["x"] @ W * scale
        h = jnp.tanh(h) if mode == "tanh" else jax.nn.relu(h)
        return {"y": (h**power).sum(-1), "h": [h]}, 1.5, power

    options = {"static_argnums": 1, "static_argnames": "mode"}
    compiled, plain = eqsat.jit(fn, **options), jax.jit(fn, **options)
    tree = {"x": XS[0]}
    for power in (2, 3):
        for mode in ("tanh", "relu"):
            close(compiled(tree, power, scale=2.0, mode=mode), plain(tree, power, scale=2.0, mode=mode))
    assert len(compiled.programs) == 4
    compiled(tree, 2, scale=3.0, mode="tanh")  # another value of a traced argument
    assert len(compiled.programs) == 4
    compiled(tree, 2, scale=jnp.float32(3.0))  # a strong type
    compiled({"x": XS[0].astype(jnp.bfloat16)}, 2, scale=2.0)
    assert len(compiled.programs) == 6
    described = compiled.program({"x": jax.ShapeDtypeStruct((4, 6), "float32")}, 2, scale=2.0)
    assert described in compiled.programs and len(compiled.programs) == 6
    with pytest.raises(ValueError, match="static"):
        compiled(tree, [1, 2], scale=2.0)


def test_x64_makes_another_program():
    compiled = eqsat.jit(lambda x: jnp.exp(x) * 2)
    close(compiled(1.0), jax.jit(lambda x: jnp.exp(x) * 2)(1.0))
    with jax.enable_x64(True):
        x = jnp.asarray(np.linspace(0, 1, 5))
        assert x.dtype == "float64"
        np.testing.assert_allclose(compiled(x), np.exp(np.linspace(0, 1, 5)) * 2, rtol=1e-15)
        assert compiled(1.0).dtype == "float64"
    assert compiled(1.0).dtype == "float32"


def test_the_decorator_with_and_without_options():
    @eqsat.jit
    def one(x):
        """Adds one."""
        return x + 1

    class Model:
        scale = 3.0

        @eqsat.jit(numerics="exact", static_argnums=0)
        def __call__(self, x):
            return x * self.scale

    assert one.__name__ == "one" and one.__doc__ == "Adds one."
    np.testing.assert_array_equal(one(jnp.ones(3)), 2 * np.ones(3))
    np.testing.assert_array_equal(Model()(jnp.ones(3)), 3 * np.ones(3))
    for options, message in (({"target": "h1000"}, "target 'h1000'"), ({"numerics": "quick"}, "numerics 'quick'")):
        with pytest.raises(ValueError, match=message):
            eqsat.jit(layer, **options)
    with pytest.raises(TypeError, match="eqsat.jit: a function required, got int"):
        eqsat.jit(3)


def test_values_of_an_outer_trace_may_be_closed_over():
    def outer(compile_):
        return lambda y: compile_(lambda x: jnp.sin(x * y) * W + y)(XS[0, 0]).sum()

    for transform in (jax.grad, jax.jit, lambda f: jax.vmap(f, axis_size=2, in_axes=None)):
        close(transform(outer(eqsat.jit))(2.0), transform(outer(jax.jit))(2.0), 1e-4)


def test_closed_over_arrays_are_constants_computed_once():
    compiled = eqsat.jit(lambda x: jnp.tanh(x @ (W @ W)))
    close(compiled(XS[0]), jnp.tanh(XS[0] @ (W @ W)), 1e-4)
    (program,) = compiled.programs
    assert len(program.launches) == 1 and program._prepared is not None
    close(jax.grad(lambda x: compiled(x).sum())(XS[0]), jax.grad(lambda x: jnp.tanh(x @ (W @ W)).sum())(XS[0]), 1e-4)


def test_a_donated_cache_is_written_in_place():
    """As the outermost call; what another function traces may need the cache afterwards."""

    def step(cache, row, place):
        return jax.lax.dynamic_update_slice(cache, row, (place, 0))

    compiled = eqsat.jit(step, donate_argnums=0)
    cache, row = jnp.arange(64.0 * 8).reshape(64, 8), jnp.zeros((1, 8))
    expected = step(cache, row, jnp.int32(3))
    inner = jax.jit(lambda c: compiled(c, row, jnp.int32(3)) + c)(cache)
    assert (compiled(cache, row, jnp.int32(3)) == expected).all() and cache.is_deleted()
    assert (inner[:3] == 2 * expected[:3]).all() and [p.donated for p in compiled.programs] == [(), (0,)]


def test_donated_arguments_are_gone():
    compiled = eqsat.jit(lambda x, y: x * 2 + y, donate_argnums=0)
    x, y = normal(64), normal(64, seed=1)
    want = x * 2 + y
    close(compiled(x, y), want)
    assert x.is_deleted() and not y.is_deleted()


def test_threads_share_one_search():
    compiled = eqsat.jit(layer)
    results: list = []
    threads = [threading.Thread(target=lambda n=n: results.append((n, compiled(W + n, XS[0])))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(compiled.programs) == 1
    for n, result in results:
        close(result, layer(W + n, XS[0]), 1e-4)


def test_integers_and_booleans_have_no_derivative():
    def fn(x, n, flag):
        return jnp.where(flag, x * n, x).sum(), n + 1, x > 0

    args = (XS[0], jnp.int32(3), jnp.asarray(True))
    compiled = eqsat.jit(fn)
    close(compiled(*args), fn(*args))
    close(jax.grad(lambda x: compiled(x, *args[1:])[0])(args[0]), 3 + 0 * XS[0])
    close(jax.vjp(lambda x: compiled(x, *args[1:]), args[0])[0], fn(*args))


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_are_kept_under_transformations(ordered, capfd):
    @eqsat.jit
    def fn(x):
        jax.debug.print("seen {}", x.sum(), ordered=ordered)
        return jnp.tanh(x) * 2

    close(fn(XS[0]), jnp.tanh(XS[0]) * 2)
    close(jax.jit(lambda x: fn(x) + 1)(XS[0]), jnp.tanh(XS[0]) * 2 + 1)
    close(jax.grad(lambda x: fn(x).sum())(XS[0]), jax.grad(lambda x: (jnp.tanh(x) * 2).sum())(XS[0]))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen") == 3
    if not ordered:
        close(jax.vmap(fn)(XS), jnp.tanh(XS) * 2)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_no_elements(shape):
    def fn(x):
        return x * 2, x.sum(0), jnp.concatenate([x, x])

    close(eqsat.jit(fn)(jnp.zeros(shape)), fn(jnp.zeros(shape)))
    close(jax.grad(lambda x: eqsat.jit(fn)(x)[1].sum())(jnp.zeros(shape)), jnp.zeros(shape))


def test_nothing_compiled():
    compiled, program = eqsat.jit(layer), eqsat.optimize(layer, W, XS[0])
    with jax.disable_jit():
        close(compiled(W, XS[0]), layer(W, XS[0]))
        close(program(W, XS[0]), layer(W, XS[0]))
        close(jax.grad(total(program))(W, XS[0]), jax.grad(total(layer))(W, XS[0]), 1e-4)


def test_imported_while_jax_traces():
    code = """
import jax, jax.numpy as jnp

@jax.jit
def first(x):
    import eqsat
    return eqsat.jit(lambda x: x * 2)(x)

first(jnp.ones(3))
import eqsat
from eqsat.transform import traced
seen = []
jax.jit(lambda x: seen.append(traced()) or x)(0)
assert seen == [True] and not traced() and eqsat.jit(lambda x: x + 1)(jnp.ones(2))[0] == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)
