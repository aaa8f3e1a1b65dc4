"""Ragged products: each row meets the weights of its group, whatever the groups' sizes, and a tile those of its groups alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.lower import lower
from eqsat.tile import Loop

pytest.importorskip("triton")

from interpreters import INTERPRETERS  # noqa: E402

from eqsat.backends import triton  # noqa: E402
from eqsat.backends.triton.interpret import run as run_in_interpreter  # noqa: E402

ROWS, DEPTH, WIDTH, GROUPS = 67, 40, 33, 5
RNG = np.random.default_rng(0)
SIZES = {
    "equal": (13, 13, 13, 14, 14),
    "empty": (0, 30, 0, 37, 0),
    "first": (67, 0, 0, 0, 0),
    "last": (0, 0, 0, 0, 67),
    "fewer": (3, 1, 16, 17, 0),
    "none": (0, 0, 0, 0, 0),
    "more": (40, 40, 40, 1, 1),
}


OFTEN = ("empty", "fewer")


def nightly(values, often):
    return [v if v in often else pytest.param(v, marks=pytest.mark.nightly) for v in values]


def draw(*shape, dtype="float32"):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def sized(sizes):
    return jnp.asarray(sizes, "int32")


def by_rows(x, w, sizes):
    """What is meant, group by group, in float64; rows behind the last group are 0."""
    out, start = np.zeros((x.shape[0], w.shape[2])), 0
    for g, size in enumerate(sizes):
        rows = slice(start, min(start + size, x.shape[0]))
        out[rows], start = np.asarray(x, "float64")[rows] @ np.asarray(w[g], "float64"), start + size
    return out


def flat(program, way, *arrays):
    def run(planned, given):
        return [*map(jnp.asarray, INTERPRETERS[way](lower(planned.kernel, planned.schedule), [np.asarray(a) for a in given]))]

    return program.inline(*arrays, launch=run)


@pytest.fixture(scope="module", params=nightly(["float32", "bfloat16"], ["float32"]))
def product(request):
    dtype = request.param
    specs = [jax.ShapeDtypeStruct(s, dtype) for s in ((ROWS, DEPTH), (GROUPS, DEPTH, WIDTH))]
    return dtype, eqsat.optimize(jax.lax.ragged_dot, *specs, sized(SIZES["none"]))


@pytest.mark.parametrize("way", INTERPRETERS)
@pytest.mark.parametrize("sizes", nightly(SIZES, OFTEN))
def test_each_row_meets_the_weights_of_its_group(product, sizes, way):
    dtype, program = product
    x, w = draw(ROWS, DEPTH, dtype=dtype), draw(GROUPS, DEPTH, WIDTH, dtype=dtype)
    assert len(program.kernels) == program.cost.launches == 1 and not program.calls
    (got,) = flat(program, way, x, w, sized(SIZES[sizes]))
    wanted = by_rows(x, w, SIZES[sizes])
    np.testing.assert_allclose(np.asarray(got, "float64"), wanted, atol=1e-5 if dtype == "float32" else 0.1, rtol=1e-2)
    np.testing.assert_allclose(np.asarray(program(x, w, sized(SIZES[sizes])), "float64"), wanted, atol=0.1, rtol=1e-2)


@pytest.mark.parametrize("extents", nightly([(1, 40), (16, 16), (16, 64), (80, 80)], [(1, 40), (80, 80)]))
def test_few_and_many_groups(extents):
    groups, depth = extents
    x, w, sizes = draw(70, depth), draw(groups, depth, WIDTH), RNG.multinomial(60, [1 / groups] * groups)
    program = eqsat.optimize(jax.lax.ragged_dot, x, w, sized(sizes))
    (got,) = flat(program, "tiles", x, w, sized(sizes))
    np.testing.assert_allclose(got, by_rows(x, w, sizes), atol=1e-4)


@pytest.mark.parametrize("numerics", ["exact", "reassociate"])
@pytest.mark.parametrize("way", nightly(INTERPRETERS, ["tiles"]))
def test_weights_of_a_group_that_a_tile_does_not_meet_are_read_only_if_exact(numerics, way):
    """Op by op a NaN in them reaches every row, as 0 * NaN."""
    x, w, sizes = draw(ROWS, DEPTH), draw(GROUPS, DEPTH, WIDTH).at[2].set(jnp.nan), sized(SIZES["empty"])
    program = eqsat.optimize(jax.lax.ragged_dot, x, w, sizes, numerics=numerics)
    (got,) = flat(program, way, x, w, sizes)
    assert np.isnan(np.asarray(got)).all() == (numerics == "exact") == np.isnan(np.asarray(got)).any()


SUMMED = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def in_groups(x, y, sizes):
    """x[m, k] and y[m, n]: for each group the product over its rows, as the gradient of the weights has it."""
    return jax.lax.ragged_dot_general(x, y, sizes, SUMMED)


def over_rows(x, y, sizes):
    """The same, group by group, in float64."""
    ends = np.minimum(np.cumsum(sizes), x.shape[0])
    x, y = (np.asarray(a, "float64") for a in (x, y))
    return np.stack([x[start:end].T @ y[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)])


@pytest.mark.parametrize("numerics", nightly(["exact", "reassociate"], ["exact"]))
@pytest.mark.parametrize("way", nightly(INTERPRETERS, ["tiles"]))
def test_each_group_sums_over_its_rows(numerics, way):
    """What is not a number in the rows of one group, or behind all groups, is nothing to the others, as op by op."""
    x, y = draw(ROWS, DEPTH), draw(ROWS, WIDTH)
    program = eqsat.optimize(in_groups, x, y, sized(SIZES["none"]), numerics=numerics)
    assert len(program.kernels) == program.cost.launches == 1 and not program.calls
    for sizes in SIZES.values():
        (got,) = flat(program, way, x, y, sized(sizes))
        np.testing.assert_allclose(got, over_rows(x, y, sizes), atol=1e-4)
    x, y = x.at[3].set(jnp.nan), y.at[40:].set(jnp.inf)
    (got,) = flat(program, way, x, y, sized(SIZES["fewer"]))
    assert np.isnan(np.asarray(got)).any((1, 2)).tolist() == [False, True, False, False, False] and not np.isinf(got).any()


def test_tiles_of_rows_of_other_groups_are_not_read():
    specs = [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((4096, 64), (4096, 64))]
    (planned,) = eqsat.optimize(in_groups, *specs, sized([0] * 8)).kernels
    program = lower(planned.kernel, planned.schedule)
    (loop,) = (s for s in program.statements() if isinstance(s, Loop) and s.ends)
    assert None not in (loop.start, loop.end) and program.tile_of(loop.axis).tile <= 128
    x, y = (np.zeros((4096, 64), "bfloat16") for _ in range(2))
    sizes = np.array([100, 0, 200, 0, 0, 300, 0, 50], "int32")
    _, report = run_in_interpreter(triton.emit(program), [sizes, x, y], program.outputs, check=True)
    rows = sum(n for name, n in report.loaded.items() if name.startswith("x")) // (64 * 2)
    again = program.tile_count // 8 // -(-64 // program.tile_of(next(a for a in planned.kernel.axes if a.name == "x1")).tile)
    assert rows <= again * (650 + 8 * 2 * program.tile_of(loop.axis).tile)


def between_offsets(x, y, offsets):
    """What `in_groups` sums, where the group g has the rows from offsets[g] to offsets[g + 1]."""
    at = jnp.arange(x.shape[0])
    own = (at >= offsets[:-1, None]) & (at < offsets[1:, None])
    return jnp.einsum("gnk,gnm->gkm", jnp.where(own[:, :, None], x, 0), jnp.where(own[:, :, None], y, 0))


def test_work_does_not_grow_with_the_number_of_groups():
    specs = lambda groups: [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((4096, 1024), (groups, 1024, 2048))]  # noqa: E731
    few, many = (eqsat.optimize(jax.lax.ragged_dot, *specs(g), sized([0] * g)).cost for g in (2, 16))
    assert few.flops == pytest.approx(2 * 4096 * 1024 * 2048, rel=0.01) == pytest.approx(many.flops, rel=0.01)
    assert many.seconds < 2 * few.seconds  # 16 matrices of weights are 67 MB
    rows = [jax.ShapeDtypeStruct((4096, n), "bfloat16") for n in (1024, 2048)]
    for fn, ends in ((in_groups, 0), (between_offsets, 1)):
        few, many = (eqsat.optimize(fn, *rows, sized([0] * (g + ends))).cost for g in (2, 16))
        assert few.flops == pytest.approx(2 * 4096 * 1024 * 2048, rel=0.01) == pytest.approx(many.flops, rel=0.01)
        assert many.seconds < 2 * few.seconds


def test_gradients():
    def gradients(x, w, sizes, g):
        return jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, sizes), x, w)[1](g)

    x, w, sizes, g = draw(ROWS, DEPTH), draw(GROUPS, DEPTH, WIDTH), SIZES["fewer"], draw(ROWS, WIDTH)
    program = eqsat.optimize(gradients, x, w, sized(sizes), g)
    assert len(program.kernels) == program.cost.launches == 2 and not program.calls
    dx, dw = program(x, w, sized(sizes), g)
    np.testing.assert_allclose(dx, by_rows(g, np.swapaxes(w, 1, 2), sizes), atol=1e-4)
    np.testing.assert_allclose(dw, over_rows(x, g, sizes), atol=1e-4)


BASIC = (((1,), (1,)), ((), ()))
BATCHED = (((2,), (2,)), ((0,), (0,)))
MODES = {
    "rows": (BASIC, 0, (0,), (20, 8), (3, 8, 6), (3,)),
    "rows of each batch": (BATCHED, 1, (1,), (2, 20, 8), (2, 3, 8, 6), (2, 3)),
    "rows, one for all batches": (BATCHED, 1, (1,), (2, 20, 8), (2, 3, 8, 6), (3,)),
    "columns": ((((0,), (2,)), ((), ())), 1, (0,), (8, 20), (3, 6, 8), (3,)),
    "batch": ((((2,), (1,)), ((0,), (0,))), 0, (), (20, 7, 8), (20, 8, 6), (3,)),
    "summed": ((((0,), (0,)), ((), ())), 0, (), (20, 8), (20, 6), (3,)),
    "summed in each batch": ((((1,), (1,)), ((0,), (0,))), 1, (), (2, 20, 8), (2, 20, 6), (2, 3)),
    "summed beside another": ((((0, 1), (0, 1)), ((), ())), 1, (), (2, 20, 8), (2, 20, 6), (2, 3)),
}


@pytest.mark.parametrize("mode", nightly(MODES, ["rows of each batch", "columns", "batch", "summed in each batch"]))
def test_modes(mode):
    dimensions, ragged, group, *shapes, sizes = MODES[mode]
    numbers = jax.lax.RaggedDotDimensionNumbers(dimensions, (ragged,), group)
    fn = lambda x, y, sizes: jax.lax.ragged_dot_general(x, y, sizes, numbers)  # noqa: E731
    x, y = (draw(*s) for s in shapes)
    sizes = jnp.broadcast_to(sized((7, 0, 9)), sizes)
    program = eqsat.optimize(fn, x, y, sizes)
    assert not program.calls
    np.testing.assert_allclose(program(x, y, sizes), fn(x, y, sizes), atol=1e-4)


def experts(x, router, gate, up, down):
    """A layer of experts, one to a token."""
    expert = jnp.argmax(x @ router, axis=-1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=router.shape[1]).astype("int32")
    rows = x[order]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
    return jnp.zeros_like(x).at[order].set(jax.lax.ragged_dot(hidden, down, sizes))


@pytest.mark.parametrize("way", nightly(INTERPRETERS, ["triton"]))
def test_a_layer_of_experts_is_few_launches(way):
    x, router, down = draw(ROWS, DEPTH), draw(DEPTH, GROUPS), draw(GROUPS, 56, DEPTH)
    gate, up = draw(GROUPS, DEPTH, 56), draw(GROUPS, DEPTH, 56)
    program = eqsat.optimize(experts, x, router, gate, up, down)
    assert program.cost.launches <= 4 and len(program.calls) == 2  # the sort, and the scatter of its order
    (got,) = flat(program, way, x, router, gate, up, down)
    chosen = np.argmax(np.asarray(x @ router), axis=-1)
    for row, expert in enumerate(chosen):
        hidden = jax.nn.silu(x[row] @ gate[expert]) * (x[row] @ up[expert])
        np.testing.assert_allclose(got[row], hidden @ down[expert], atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("way", INTERPRETERS)
def test_a_product_of_depth_1_sums_over_groups_alone(way):
    """The ends of groups, a running sum of their sizes, are needed along the axis that the product sums."""
    x, w = draw(19, 1), draw(GROUPS, 1, WIDTH)
    program = eqsat.optimize(jax.lax.ragged_dot, x, w, sized(SIZES["none"]))
    assert not program.calls
    for sizes in ((3, 0, 9, 7, 0), (4, 1, 2, 0, 3)):
        (got,) = flat(program, way, x, w, sized(sizes))
        np.testing.assert_allclose(got, by_rows(x, w, sizes), atol=1e-5)
