"""Gradients of programs as people write them: what their plans store, and their numbers against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_optimize import run_tiles

import eqsat
import examples
from examples import attention


def with_gradient(fn):
    """The function's value and the gradient of its inputs, from that of its output."""

    def both(cotangent, *args):
        value, pull = jax.vjp(fn, *args)
        return value, *pull(cotangent)

    return both


@pytest.mark.parametrize("fn", [attention.attention, attention.causal_attention])
def test_no_score_matrix_is_stored_by_the_gradient_of_attention(fn):
    heads = jax.ShapeDtypeStruct((4, 16, 2048, 64), jnp.bfloat16)
    program = eqsat.optimize(with_gradient(fn), *[heads] * 4)
    largest = max(o.nbytes for launch in program.launches for o in launch.kernel.outputs)
    assert largest <= 2 * 2 * heads.size  # of a tensor as large as q, in float32
    assert len(program.launches) <= 6 and program.cost.nbytes < 500e6 < program.baseline.nbytes / 50


@pytest.mark.parametrize("objective", ["time", "traffic"])
def test_gradient_of_attention_agrees_with_float64(objective):
    specs = examples.tables("RAGGED")["causal_attention"][1]
    q, k, v, cotangent = examples.draw((*specs, specs[0]))
    program = eqsat.optimize(with_gradient(attention.causal_attention), cotangent, q, k, v, objective=objective)
    with jax.enable_x64():
        wide = [jnp.asarray(x, jnp.float64) for x in (cotangent, q, k, v)]
        wanted = [np.asarray(x) for x in with_gradient(attention.causal_attention)(*wide)]
    for found, other, right in zip(program(cotangent, q, k, v), run_tiles(program, [cotangent, q, k, v]), wanted, strict=True):
        for result in (found, other):
            np.testing.assert_allclose(result, right, atol=2e-5 * np.abs(right).max())
