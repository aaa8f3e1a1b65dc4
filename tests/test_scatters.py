"""Sums by places: one pass over the terms, right for places that meet or lie outside, in every interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.lower import lower

pytest.importorskip("triton")

from interpreters import INTERPRETERS  # noqa: E402

from eqsat.backends import triton  # noqa: E402
from eqsat.backends.triton import launch  # noqa: E402

ROWS, WIDTH = 1000, 33
RNG = np.random.default_rng(0)


def places(*shape):
    """Some meet, some count from the end, some lie outside."""
    return RNG.integers(-ROWS - 40, ROWS + 40, shape).astype(np.int32) // 7 * 7


def updates(*shape, dtype=np.float32):
    return (RNG.standard_normal(shape) * 9).astype(dtype)


def embedding(i, g):
    return jax.vjp(lambda table: table[i], jnp.zeros((ROWS, WIDTH), g.dtype))[1](g)[0]


def segments(i, g):
    return jax.ops.segment_sum(g, i, ROWS)


def pairs(i, g):
    return jnp.zeros((ROWS, 5, WIDTH), g.dtype).at[i, i % 5].add(g * 2)


def batched(i, g):
    added = lambda i, g: jnp.zeros((ROWS, WIDTH), g.dtype).at[i].add(g, mode="clip")  # noqa: E731
    return jax.vmap(added)(i.reshape(2, -1), g.reshape(2, -1, WIDTH))


def histogram(i, g):
    return jnp.zeros((ROWS,), "int32").at[i].add(1)


def bytes_(i, g):
    return jnp.zeros((ROWS, WIDTH), "int8").at[i].add(g.astype("int8"))


def one_hot(i, g):
    """Written as a choice, which is the same to the kernels."""
    return jnp.where(i[:, None, None] == jnp.arange(ROWS)[:, None], g[:, None], 0).sum(0)


SCATTERS = {f.__name__: f for f in (embedding, segments, pairs, batched, histogram, bytes_, one_hot)}
OFTEN = ("pairs", "histogram", "bytes_")


def flat(program, way, *arrays):
    def run(planned, given):
        return [*map(jnp.asarray, INTERPRETERS[way](lower(planned.kernel, planned.schedule), [np.asarray(a) for a in given]))]

    return program.inline(*map(jnp.asarray, arrays), launch=run)


def zeroed(program):
    return [p for p in program.kernels if lower(p.kernel, p.schedule).zeroed]


@pytest.mark.parametrize("way", INTERPRETERS)
@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.nightly) for n in SCATTERS])
def test_every_term_is_added_to_its_element(name, way):
    fn, i, g = SCATTERS[name], places(520), updates(520, WIDTH)
    program = eqsat.optimize(fn, i, g)
    assert zeroed(program) and not program.calls
    np.testing.assert_allclose(flat(program, way, i, g)[0], fn(jnp.asarray(i), jnp.asarray(g)), rtol=1e-5, atol=1e-4)


def test_what_is_not_finite_stays_where_it_belongs():
    i, g = np.array([3, 5, 5, 7, 2000], np.int32), np.ones((5, WIDTH), np.float32)
    g[0], g[1], g[2], g[4] = np.nan, np.inf, -np.inf, np.nan
    program = eqsat.optimize(segments, i, g)
    for got in (flat(program, "triton", i, g)[0], program(i, g)):
        assert np.isnan(got[3]).all() and np.isnan(got[5]).all() and (got[7] == 1).all()
        assert np.isfinite(np.delete(np.asarray(got), [3, 5], 0)).all()


def test_a_program_as_plain_jax_scatters_too():
    i, g = places(520), updates(520, WIDTH)
    program = eqsat.optimize(embedding, i, g)
    text = program.kernels[0].source("jax")
    assert ".add(" in text and "mode='drop'" in text
    space: dict = {}
    exec(text, space)
    (got,) = space[program.kernels[0].name](i, g)
    np.testing.assert_allclose(got, embedding(jnp.asarray(i), jnp.asarray(g)), rtol=1e-5, atol=1e-4)


def test_few_terms_are_summed_in_one_launch():
    program = eqsat.optimize(lambda i, g: jax.ops.segment_sum(g, i, 4), places(30), updates(30, 8))
    assert not zeroed(program) and len(program.launches) == program.cost.launches == 1


def test_an_embedding_s_gradient_writes_zeros_and_adds_to_them():
    i, g = jax.ShapeDtypeStruct((8, 512), "int32"), jax.ShapeDtypeStruct((8, 512, WIDTH), "float32")
    program = eqsat.optimize(embedding, i, g)
    (planned,) = program.kernels
    assert program.cost.launches == 2
    assert program.cost.nbytes == 4 * (i.size + g.size + 2 * g.size + ROWS * WIDTH)
    tiles = lower(planned.kernel, planned.schedule)
    assert triton.compile_report(triton.emit(tiles), tiles, 90).spills == 0
    given = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tiles.inputs]
    traced = jax.jit(lambda *a: launch.call(planned.source("triton"), tiles, *a)).trace(*given)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "output_operand_alias" in text and "operand_index = 2" in text and "%unused_0: !tt.ptr" in text


def test_rows_of_a_donated_table_change_where_they_lie():
    def step(table, i, g):
        return table.at[i].add(g * -0.1)

    table, i, g = updates(ROWS, WIDTH), places(520), updates(520, WIDTH)
    program = eqsat.optimize(step, table, i, g, donate=(0,))
    (planned,) = program.kernels
    assert planned.kernel.donated and program.cost.launches == 1
    assert program.cost.nbytes <= 4 * (i.size + 3 * g.size)
    for way in INTERPRETERS:
        got = flat(program, way, table, i, g)[0]
        np.testing.assert_allclose(got, step(jnp.asarray(table), i, g), rtol=1e-5, atol=1e-5)


def test_narrow_floats_and_windows_that_meet_stay_calls():
    assert eqsat.optimize(segments, places(130), updates(130, WIDTH, dtype=jnp.bfloat16)).calls

    grad = lambda x, i, g: jax.vjp(lambda x: jax.vmap(lambda i: jax.lax.dynamic_slice(x, (i,), (3,)))(i), x)[1](g)[0]  # noqa: E731
    assert eqsat.optimize(grad, np.zeros(ROWS, np.float32), places(130), updates(130, 3)).calls


def test_a_scatter_is_priced_by_its_terms():
    for rows in (ROWS, 8 * ROWS):
        (p,) = eqsat.optimize(lambda i, g: jax.ops.segment_sum(g, i, rows), places(4096), updates(4096, 128)).kernels  # noqa: B023
        assert p.cost.flops < 10 * 4096 * 128


def test_the_exact_tier_adds_floats_in_a_fixed_order():
    """Whole numbers add up to the same in any order; of floats, a product with one-hot rows is one, and a scatter is JAX's."""
    i, g = jax.ShapeDtypeStruct((520,), "int32"), jax.ShapeDtypeStruct((520, WIDTH), "float32")
    for fn, calls, zeros in ((histogram, 0, 1), (one_hot, 0, 0), (embedding, 1, 0)):
        program = eqsat.optimize(fn, i, g, numerics="exact")
        assert (len(program.calls), len(zeroed(program))) == (calls, zeros), fn.__name__
        assert "no fixed order" not in program.report()
    assert "the exact tier adds floats in a fixed order" in program.report()
    assert "no fixed order  floats are added as they come" in eqsat.optimize(embedding, i, g).report()
