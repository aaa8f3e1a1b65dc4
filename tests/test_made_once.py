"""Tables: tensors of positions and literals alone, which a program makes once where each kernel making them anew is dearer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.index import Axis, Index
from eqsat.notation import Tensor
from eqsat.program import PlannedKernel
from eqsat.work import element_nbytes


def rotary(x):
    length, depth = x.shape[-2:]
    angles = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(0, depth, 2) / depth)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def attention(q, k, v):
    return jax.nn.softmax(rotary(q) @ rotary(k).swapaxes(-1, -2) / 64) @ v


def layers(x, w1, w2):
    for w in (w1, w2):
        x = attention(x @ w, x, x)
    return x


def once(program):
    return [s for s in program.steps if isinstance(s, PlannedKernel) and s.constant]


@pytest.mark.parametrize("numerics", ["exact", "reassociate"])
def test_the_angles_of_all_layers_are_one_pair_of_tables(numerics):
    rng = np.random.default_rng(0)
    x, w1, w2 = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((32, 512, 64), (64, 64), (64, 64)))
    program = eqsat.optimize(layers, x, w1, w2, numerics=numerics)
    assert sorted(t.name for step in once(program) for t in step.outputs) == ["cos", "sin"]
    assert any("cos[" in kernel.formula and "sin[" in kernel.formula for kernel in program.kernels)
    np.testing.assert_allclose(program(x, w1, w2), layers(x, w1, w2), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(jax.jit(program)(x, w1, w2), layers(x, w1, w2), rtol=2e-5, atol=2e-5)


def test_a_table_that_is_an_output_is_made_anew_for_each_caller():
    """A caller may give its buffer away."""

    def fn(x):
        decay = jnp.exp(-jnp.arange(x.shape[-1]) / 7.0)
        return x * decay, decay

    x = jnp.ones((8, 40))
    program = eqsat.optimize(fn, x)
    assert not once(program)
    program(x)[1].delete()
    np.testing.assert_allclose(program(x)[1], fn(x)[1], rtol=1e-6)


def test_masks_are_no_tables():
    program = eqsat.optimize(lambda x: jnp.where(jnp.tril(jnp.ones(x.shape, bool)), x, 0.0), jnp.ones((64, 64)))
    assert not once(program)


def test_nothing_is_made_once_in_the_body_of_a_loop():
    def fn(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: rotary(c), x)

    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 64, 32)), jnp.float32)
    program = eqsat.optimize(fn, x)
    (loop,) = program.loops
    assert not any(once(body) for body in loop.programs)
    np.testing.assert_allclose(program(x), fn(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("step", [1, -1, 2, -3])
@pytest.mark.parametrize("start", [-130, -64, -1, 0, 10, 63, 64, 127, 200])
def test_what_lies_outside_of_a_tensor_is_not_loaded(step, start):
    x, tensor = Axis("x", 128), Tensor("t", (64,), "float32")
    index = Index.of(x) * step + start
    inside = sum(0 <= index.substitute({x: Index.of(n)}).constant < 64 for n in range(128))
    assert element_nbytes(tensor, (index,)) == pytest.approx(4 * abs(step) * inside / 128)
