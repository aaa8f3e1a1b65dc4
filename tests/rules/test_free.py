"""What needs no rule, or one law of the base: consequences of index notation and association."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
import reach

import eqsat
from eqsat.egraph import Budget, Engine
from eqsat.rule import select
from eqsat.rule_trial import regions_of
from eqsat.rules import RULES
from examples import gpt2

pytestmark = pytest.mark.slow
F32 = jnp.float32


def arrays(*shapes):
    return [jax.ShapeDtypeStruct(s, F32) for s in shapes]


N = 512
SQUARE = arrays((N, N), (N, N))
# function, shapes, most arithmetic in units of n*n
SMALL_WORK = {
    "trace of a product": (lambda a, b: jnp.trace(a @ b), SQUARE, 4),
    "diagonal of a product": (lambda a, b: jnp.diagonal(a @ b), SQUARE, 4),
    "row of a product": (lambda a, b: (a @ b)[3], SQUARE, 4),
    "element of a product": (lambda a, b: (a @ b)[3, 5], SQUARE, 1),
    "sum of a product": (lambda a, b: jnp.sum(a @ b), SQUARE, 5),
    "product with a vector last": (lambda a, b, v: (a @ b) @ v, arrays((N, N), (N, N), (N,)), 5),
    "low rank": (lambda x, u, v: x @ (u @ v), arrays((N, N), (N, 4), (4, N)), 20),
    "diagonal matrix": (lambda a, d: a @ jnp.diag(d), arrays((N, N), (N,)), 3),
    "outer product applied": (lambda u, v, x: (u[:, None] * v[None, :]) @ x, arrays((N,), (N,), (N,)), 5),
}

FAST = ("diagonal matrix",)  # 0*a is NaN where a is infinite


@pytest.mark.parametrize("name", SMALL_WORK)
def test_the_cheap_form_is_found(name):
    fn, shapes, most = SMALL_WORK[name]
    program = eqsat.optimize(fn, *shapes, numerics="fast" if name in FAST else "reassociate")
    assert program.cost.flops <= most * N * N


def test_a_length_one_reduction_reads_as_nothing():
    fn = lambda x: jnp.sum(x, axis=1) + jnp.max(x, axis=1) + jnp.mean(x, axis=1)  # noqa: E731
    (region,) = regions_of(fn, *arrays((8, 1)))
    assert not any(t.head == "reduce" for d in region.definitions for t in d.term.walk())


def test_views_of_transposed_products_are_one_term():
    region, (one, other) = reach.region_of(lambda a, b: ((a @ b).T, b.T @ a.T), *arrays((3, 4), (4, 5)))
    done = Engine(select(RULES, "exact")).saturate(region)
    assert reach.equal(done, region, one, other)


def test_a_gpt2_block_comes_to_rest():
    config = gpt2.SMALL._replace(layers=1)
    layer = jax.eval_shape(lambda: gpt2.init(config, jax.random.key(0)))["layers"][0]
    x = jax.ShapeDtypeStruct((1, config.sequence, config.width), config.dtype)
    engine = Engine(select(RULES, "reassociate"))
    for region in regions_of(partial(gpt2.block, heads=config.heads), x, layer):
        done = engine.saturate(region)
        made = ", ".join(f"{name} {rows}" for name, rows in done.rows_of_rule.most_common())
        print(f"{len(region.definitions)} tensors: {done.rows} rows, {done.seconds:.2f} s, by rule: {made}")
        assert done.stopped == "saturated" and done.rows < 1000


@pytest.mark.parametrize("terms", [8, 40])
def test_long_sums_stay_within_the_budget(terms):
    fn = lambda *xs: sum(xs[1:], xs[0])  # noqa: E731
    (region,) = regions_of(fn, *arrays(*[(64, 64)] * terms))
    done = Engine(select(RULES, "reassociate")).saturate(region, Budget())
    assert done.stopped == "saturated" and done.rows < 10 * terms
