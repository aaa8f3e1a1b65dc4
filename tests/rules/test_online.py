"""What depends on another reduction over its axis is found to share its pass."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.engines import engine
from eqsat.lower import lower
from eqsat.work import Work

LONG = jax.ShapeDtypeStruct((4096, 50304), "float32")


def kernels(fn, *args, **options):
    return eqsat.optimize(fn, *args, **options).kernels


def reads(fn, x, **options):
    """How often all of `x` is read."""
    every = (r for k in kernels(fn, x, **options) for r in Work(k.kernel).reads)
    return sum(prod(a.extent for a in r.scope) * r.passes for r in every) / x.size


@pytest.mark.parametrize("numerics", ["exact", "reassociate"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.argmax(x, -1),
        lambda x: (jnp.max(x, -1), jnp.argmax(x, -1)),
        lambda x: jnp.argmin(jnp.abs(x - 1), -1),
        lambda x: jnp.where(x == x.max(-1, keepdims=True), jnp.arange(x.shape[1]), x.shape[1]).min(-1),
    ],
    ids=["argmax", "top 1", "nearest", "by hand, NaN left out"],
)
def test_a_place_is_found_in_the_pass_that_finds_the_extreme(fn, numerics, request):
    by_hand = "by hand" in request.node.callspec.id  # a row with a NaN has no place there
    assert reads(fn, LONG, numerics=numerics) == (2 if by_hand else 1)


def test_greedy_decoding_stores_no_logits():
    x, w = jax.ShapeDtypeStruct((4096, 768), "bfloat16"), jax.ShapeDtypeStruct((768, 50304), "bfloat16")
    program = eqsat.optimize(lambda x, w: jnp.argmax(x @ w, -1), x, w)
    assert program.cost.nbytes < 1.1 * (x.size + w.size) * 2


def test_the_product_of_greedy_decoding_fits_the_registers():
    triton = pytest.importorskip("eqsat.backends.triton")
    x, w = jax.ShapeDtypeStruct((1024, 256), "bfloat16"), jax.ShapeDtypeStruct((256, 50304), "bfloat16")
    planned = kernels(lambda x, w: jnp.argmax(x @ w, -1), x, w)[0]
    tiles = lower(planned.kernel, planned.schedule)
    report = triton.compile_report(triton.emit(tiles), tiles, 90)
    assert report.spills == 0 and report.matrix_instructions > 0


def test_what_lies_between_two_kernels_is_explained():
    """Kernels are joined there whose bound axes need new names."""
    program = eqsat.optimize(lambda x: jnp.argmax(x, -1), jax.ShapeDtypeStruct((4, 50304), "float32"))
    explanation = program.explain(30.0)
    assert len(program.launches) == 2 and len(explanation.boundaries) == 2
    assert explanation.needed == ("argmax_in_one_pass_float",)


def test_the_next_token_and_its_probability_take_one_pass():
    assert reads(lambda x: (jnp.argmax(x, -1), jnp.max(jax.nn.log_softmax(x), -1)), LONG) < 1.01


def test_statistics_of_a_long_row_take_one_pass_and_no_digits():
    """The variance, the mean and what is made of them: a row that registers do not hold is read once for both."""
    (statistics,) = kernels(lambda x: (x.mean(-1), x.var(-1)), LONG)
    assert [r.passes for r in Work(statistics.kernel).reads] == [1]
    (normed,) = kernels(lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), LONG)
    assert [r.passes for r in Work(normed.kernel).reads] == [2]  # once for the statistics, once for what is written
    x = (np.random.default_rng(0).standard_normal((2, 20000)) + 1e3).astype(np.float32)
    program = eqsat.optimize(lambda x: x.var(-1), jax.ShapeDtypeStruct(x.shape, x.dtype), objective="launches")
    (got,) = program.inline(x, launch=engine("triton"))
    np.testing.assert_allclose(got, x.astype(np.float64).var(-1), rtol=2e-5)


def test_the_log_sum_exp_of_a_long_row_takes_one_pass():
    assert reads(lambda x: jax.nn.logsumexp(x, -1), LONG) < 1.01
    x = (np.random.default_rng(0).standard_normal((5, 20000)) * 100).astype(np.float32)
    x[0], x[1, :2], x[2, 3], x[3, 5] = -np.inf, -np.inf, np.inf, np.nan
    program = eqsat.optimize(lambda x: jax.nn.logsumexp(x, -1), jax.ShapeDtypeStruct(x.shape, x.dtype), objective="launches")
    for (got,) in (program.run(x), program.inline(x, launch=engine("triton"))):
        np.testing.assert_allclose(got, jax.nn.logsumexp(x, -1), rtol=1e-6)


def test_places_of_ties_infinities_and_nan_in_a_long_row():
    x = np.full((6, 20000), -np.inf, np.float32)
    x[1, 19999], x[2, [7, 15000]], x[3, [3, 9000]], x[4, [5, 16500]], x[5] = 1, 2, (np.inf, np.nan), np.nan, 3
    program = eqsat.optimize(lambda x: (jnp.argmax(x, -1), jnp.argmin(-x, -1)), jax.ShapeDtypeStruct(x.shape, x.dtype))
    for run in ("triton", "pallas"):
        for got in program.inline(x, launch=engine(run)):
            assert np.asarray(got).tolist() == [0, 19999, 7, 9000, 5, 0]
