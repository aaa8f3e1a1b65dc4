"""Primitives that are traced as programs over others give what the primitives give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqsat
from eqsat.graph import Graph
from eqsat.read import read


@pytest.mark.parametrize(("shape", "width"), [((), 32), ((4, 5), 32), ((7,), 8), ((2, 1, 3), 16), ((3, 2), 64)], ids=str)
def test_random_bits_are_those_of_jax(shape, width):
    with jax.enable_x64(width == 64):
        key = jax.random.key(3)
        graph = Graph.from_jax(lambda key: jax.random.bits(key, shape, f"uint{width}"), key)
        assert "random_bits" not in {e.name for e in graph.equations}
        np.testing.assert_array_equal(graph.evaluate(key)[0], jax.random.bits(key, shape, f"uint{width}"))


def test_dropout_is_one_kernel_with_the_bits_of_jax():
    def dropout(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x) / 0.9, 0.0)

    key, x = jax.random.key(5), jnp.linspace(-2, 2, 33 * 20).reshape(33, 20)
    program = eqsat.optimize(dropout, key, x, numerics="exact")
    assert [call.name for call in program.calls] == ["random_unwrap"] and program.cost.launches == 1
    np.testing.assert_array_equal(program(key, x) == 0, dropout(key, x) == 0)
    assert program.validate()


def test_many_keys_and_other_generators_stay_calls():
    for key in (jax.random.split(jax.random.key(0), 3), jax.random.key(0, impl="rbg")):
        draw = jax.vmap(lambda k: jax.random.bits(k, (4,))) if key.shape else lambda k: jax.random.bits(k, (4,))
        graph = Graph.from_jax(draw, key)
        assert "random_bits" in {e.name for e in graph.equations}
        np.testing.assert_array_equal(graph.evaluate(key)[0], draw(key))


TIES = np.array([[1, 1, 0, np.nan, 2], [1, 3, 3, 0, -np.inf], [-np.inf, -np.inf, np.nan, 5, 5], [2, 2, 2, 2, 2]], np.float32)


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 0), (0, 1))], ids=str)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("fill", [-np.inf, np.inf], ids=["max", "min"])
def test_gradient_of_pooling_selects_as_xla_does(padding, strides, fill):
    """Ties, NaN and windows that hang over the edge; the sources are powers of two, so that sums are exact."""
    combine = lax.max if fill < 0 else lax.min

    def pooled(x):
        return lax.reduce_window(x, np.float32(fill), combine, (3, 2), strides, padding)

    source = np.exp2(np.arange(np.size(jax.eval_shape(pooled, TIES)), dtype=np.float32)).reshape(
        jax.eval_shape(pooled, TIES).shape
    )
    backward = lambda x, s: jax.vjp(pooled, x)[1](s)[0]  # noqa: E731
    graph = Graph.from_jax(backward, TIES, source)
    assert "select_and_scatter_add" not in {e.name for e in graph.equations} and not read(graph).opaque
    np.testing.assert_array_equal(graph.evaluate(TIES, source)[0], backward(TIES, source))


def rows_to_rank(dtype):
    if dtype == "int8":
        return np.array([[3, 3, -128, 127, -128, 0, 127, 5, 5]] * 2, dtype)
    return jnp.array([[3, 1, np.nan, -np.inf, 3, np.inf, np.nan, 0, 5], [*[-np.inf] * 8, np.nan], [7] * 9, np.arange(9)], dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_largest_of_a_row_come_in_order_with_the_first_of_ties(k, dtype):
    x = rows_to_rank(dtype)
    graph = Graph.from_jax(lambda x: lax.top_k(x, k), x)
    assert "top_k" not in {e.name for e in graph.equations}
    for got, wanted in zip(graph.evaluate(x), lax.top_k(x, k), strict=True):
        assert got.dtype == wanted.dtype
        wide = "float32" if jnp.issubdtype(got.dtype, jnp.floating) else got.dtype  # NumPy 2.0 knows no NaN of bfloat16
        np.testing.assert_array_equal(np.asarray(got, wide), np.asarray(wanted, wide))


def test_many_of_a_row_and_long_rows_stay_calls():
    for size, k in ((40, 9), (5000, 2), (40, 0)):
        graph = Graph.from_jax(lambda x: lax.top_k(x, k), jnp.ones((2, size)))  # noqa: B023
        assert "top_k" in {e.name for e in graph.equations}


def test_a_router_is_one_kernel():
    def router(x):
        weights, experts = lax.top_k(jax.nn.softmax(x, -1), 2)
        return weights / weights.sum(-1, keepdims=True), experts

    program = eqsat.optimize(router, jax.ShapeDtypeStruct((4096, 8), "float32"))
    assert len(program.launches) == 1 and not program.calls
    assert program.validate()


def test_random_keys_and_complex_numbers_have_a_size():
    """Calls of JAX on them stand beside kernels."""
    key, x = jax.random.key(1), jnp.linspace(0, 1, 24).reshape(4, 6)
    program = eqsat.optimize(lambda key, x: jax.random.split(key), key, x)
    assert (jax.random.key_data(program(key, x)) == jax.random.key_data(jax.random.split(key))).all()
    program = eqsat.optimize(lambda x: jnp.abs(jnp.fft.rfft(x * 2)) + 1, x)
    np.testing.assert_allclose(program(x), jnp.abs(jnp.fft.rfft(x * 2)) + 1, rtol=1e-6)


def test_empty_parts_are_no_calls():
    """A roll of a row of one element, an empty cache and their likes leave concatenations with what is empty."""

    def fn(cache, x):
        return jnp.concatenate([cache, x, cache], 1) * 2, jnp.roll(x[:, :1], 1, 1) + 1, jnp.concatenate([cache, cache], 1)

    cache, x = jnp.zeros((3, 0), jnp.float32), jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    program = eqsat.optimize(fn, cache, x)
    assert not program.opaque_share
    for got, wanted in zip(program(cache, x), fn(cache, x), strict=True):
        np.testing.assert_array_equal(got, wanted)
