"""Equations that others' rewriters have had and that are false: no rules of ours, in any tier, make their sides equal.

What can be said as a rule is also rejected by the checker (`tests/test_check.py`); here are those about whole programs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reach

import eqsat
from eqsat.egraph import Engine
from eqsat.rules import PACKS

N = 4
SQUARE = jax.ShapeDtypeStruct((N, N), jnp.float32)


def normalised(y):
    """Batch norm with the statistics of the batch."""
    mean = jnp.mean(y, axis=0)
    return (y - mean) / jnp.sqrt(jnp.mean((y - mean) ** 2, axis=0) + 1e-5)


# name: two sides, over square matrices so that shapes tell nothing
FALSE = {
    "transposed product without a swap": (lambda x, y: (x @ y).T, lambda x, y: x.T @ y.T),
    "rows joined as columns": (
        lambda x, y, z: (jnp.concatenate([x, y], 0) @ z)[:N],
        lambda x, y, z: jnp.concatenate([x @ z, y @ z], 1)[:, N:],
    ),
    "sum over the axis before a transpose": (lambda x: jnp.sum(x.T, axis=0), lambda x: jnp.sum(x, axis=0)),
    "product of products": (lambda x, y, z: (x @ y) * (x @ z), lambda x, y, z: x @ (y * z)),
    "quotient of products": (lambda x, y, z: (x @ y) / (x @ z), lambda x, y, z: x @ (y / z)),
    "contraction of the wrong axes": (lambda x, y, z: (x @ y.T) @ z, lambda x, y, z: x @ (y @ z)),
    "scale without the bias": (lambda x, y, b: 3 * (x @ y + b), lambda x, y, b: 3 * (x @ y) + b),
    "relu of a sum": (lambda x, y: jax.nn.relu(x + y), lambda x, y: jax.nn.relu(x) + jax.nn.relu(y)),
    "softmax of a sum": (lambda x, y: jax.nn.softmax(x + y), lambda x, y: jax.nn.softmax(x) + jax.nn.softmax(y)),
    "sum of exponentials": (lambda x, y: jnp.exp(x) + jnp.exp(y), lambda x, y: jnp.exp(x + y)),
    "mean of maxima": (lambda x: jnp.mean(jnp.max(x, 0)), lambda x: jnp.max(jnp.mean(x, 1))),
    "maximum of negatively scaled": (lambda x: jnp.max(-2 * x, 1), lambda x: -2 * jnp.max(x, 1)),
    "exact and approximate gelu": (lambda x: jax.nn.gelu(x, approximate=False), lambda x: jax.nn.gelu(x, approximate=True)),
    "statistics of the product": (lambda x, y: normalised(x @ y), lambda x, y: normalised(x) @ y),
    "swapped factors": (lambda x, y: x @ y, lambda x, y: y @ x),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    return Engine(tuple(rule for pack in PACKS.values() for rule in pack))


def operands(fn):
    return fn.__code__.co_argcount


@pytest.mark.parametrize("name", FALSE)
def test_sides_that_differ_are_not_made_equal(engine, name):
    one, other = FALSE[name]
    region, (left, right) = reach.region_of(lambda *args: (one(*args), other(*args)), *[SQUARE] * operands(one))
    assert not reach.equal(engine.saturate(region), region, left, right)


@pytest.mark.parametrize("name", FALSE)
def test_the_sides_differ(name):
    one, other = FALSE[name]
    arrays = np.random.default_rng(0).normal(size=(operands(one), N, N)).astype(np.float32)
    assert np.abs(one(*arrays) - other(*arrays)).max() > 1e-4


@pytest.mark.parametrize("count", [3, 5])
def test_all_products_that_share_an_input_are_one_launch(count):
    """Horizontal merging of any number: no rule, but one kernel with several outputs."""

    def heads(x, *weights):
        return tuple(x @ w for w in weights)

    x, w = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16), jax.ShapeDtypeStruct((128, 128), jnp.bfloat16)
    program = eqsat.optimize(heads, x, *[w] * count)
    assert program.cost.launches == 1
