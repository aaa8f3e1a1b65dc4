"""What users of kernel compilers complained about (the number of each case beside its test): right values and bytes read once."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import eqsat
from eqsat.lower import lower

pytest.importorskip("triton")

from interpreters import INTERPRETERS  # noqa: E402

from eqsat.backends import triton  # noqa: E402
from eqsat.backends.triton import interpret as checked  # noqa: E402
from eqsat.backends.triton.compiler import machine_code  # noqa: E402
from eqsat.backends.triton.report import resident_warps  # noqa: E402

RNG = np.random.default_rng(0)


def spec(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


each_way = pytest.mark.parametrize("way", ["triton", *(pytest.param(w, marks=pytest.mark.nightly) for w in ("tiles", "pallas"))])


def launch_in(way):
    def launch(planned, arrays):
        tiles = lower(planned.kernel, planned.schedule)
        return [jnp.asarray(a) for a in INTERPRETERS[way](tiles, [np.asarray(a) for a in arrays])]

    return launch


def through(way, fn, *arrays, **options):
    """The flat results of `fn`, every kernel of its program run by an interpreter."""
    program = eqsat.optimize(fn, *arrays, **options)
    return [np.asarray(a) for a in program.inline(*map(jnp.asarray, arrays), launch=launch_in(way))]


# --- values that processors leave open -----------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_whole_numbers_divide_by_zero_as_in_jax(dtype, way):
    info = np.iinfo(dtype)
    a = np.array([info.min, 0, 7, info.max, info.min, 7, 9, 100, info.max], dtype)
    b = np.array([0, 0, 0, 0, info.max if info.min == 0 else -1, 1, 2, 7, info.min], dtype)
    for f in (jax.lax.div, jax.lax.rem):
        np.testing.assert_array_equal(through(way, f, a, b)[0], f(a, b))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
@pytest.mark.parametrize("way", INTERPRETERS)
def test_shifts_by_any_number_are_those_of_jax(dtype, way):
    """Processors that take the number modulo the width, and compilers that may assume it smaller, give something else."""
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 7, 99, info.max, 1, info.min, 5], dtype)
    b = np.array([0, 1, info.bits - 1, info.bits, info.bits + 1, info.max, 3, info.max if info.min == 0 else -1], dtype)
    for f in (jax.lax.shift_left, jax.lax.shift_right_logical, jax.lax.shift_right_arithmetic):
        np.testing.assert_array_equal(through(way, f, a, b)[0], f(a, b))
        given = [jax.ShapeDtypeStruct((9,), dtype)] * 2
        assert f"< {info.bits}" in eqsat.optimize(f, *given).kernels[0].source("triton")
        assert "where" not in eqsat.optimize(lambda x, f=f: f(x, x.dtype.type(3)), given[0]).kernels[0].source("triton")


@pytest.mark.parametrize("way", INTERPRETERS)
def test_the_least_number_of_a_dtype_without_infinities_is_finite(way):
    x = np.array([[-3, -448, -2, -7, -5], [-448] * 5, [1, -2, 7, 0, -1]]).astype(ml_dtypes.float8_e4m3fn)
    for f in (jnp.max, jnp.argmax):
        np.testing.assert_array_equal(through(way, lambda x, f=f: f(x, 1), x)[0], f(jnp.asarray(x), 1))


@pytest.mark.parametrize("way", INTERPRETERS)
def test_numbers_have_the_dtype_of_what_they_meet(way):
    x = np.array([1, 3, 200, 255], np.uint8)
    for f in (lambda x: x // 3, lambda x: x % 3, lambda x: x << 3, lambda x: x >> 3):
        np.testing.assert_array_equal(through(way, f, x)[0], f(jnp.asarray(x)))


# --- sizes that are no tile -----------------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("m, k, n", [pytest.param(17, 33, 65, marks=pytest.mark.nightly), (5, 1, 3)])
def test_a_product_of_any_depth(m, k, n, way):  # P4-01
    a, b = normal(m, k), normal(k, n)
    np.testing.assert_allclose(through(way, jnp.matmul, a, b)[0], a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


@each_way
@pytest.mark.parametrize("shapes", [((1, 64), (64, 8)), ((4, 4), (4, 4)), ((2, 3, 15), (2, 15, 2)), ((16, 8), (8, 17))], ids=str)
def test_products_below_the_least_of_matrix_instructions(shapes, way):  # P4-05
    a, b = (normal(*s).astype(ml_dtypes.bfloat16) for s in shapes)
    got = through(way, lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32), a, b)[0]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@each_way
@pytest.mark.parametrize("n, variance", [(3, 2 / 3), (17, 24.0), (127, 1344.0)])
def test_padding_stays_out_of_a_variance(n, variance, way):  # P4-02
    x = (np.arange(n) + 10).astype(np.float32)[None]
    np.testing.assert_allclose(through(way, lambda x: ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1), x)[0], variance, rtol=1e-6)


@each_way
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "shape", [(33, 64), *(pytest.param(s, marks=pytest.mark.nightly) for s in ((257, 257), (8193, 64)))], ids=str
)
def test_sums_of_whole_numbers_are_exact(shape, axis, way):  # P4-03
    x = RNG.integers(-9, 9, shape)
    for dtype in (np.float32, np.int32):
        assert (through(way, lambda x: x.sum(axis), x.astype(dtype))[0] == x.sum(axis)).all()


def test_no_block_holds_a_row_of_a_vocabulary():  # P4-04
    program = eqsat.optimize(lambda x: jax.nn.softmax(x, -1), spec(2, 151936))
    assert max(t.tile for p in program.kernels for t in lower(p.kernel, p.schedule).axes) <= 65536


@pytest.mark.nightly
@pytest.mark.parametrize("way", INTERPRETERS)
def test_a_row_longer_than_a_block_may_be(way):  # P4-04
    x = normal(2, 151936)
    program = eqsat.optimize(lambda x: jax.nn.softmax(x, -1), spec(2, 151936))
    (got,) = program.inline(jnp.asarray(x), launch=launch_in(way))
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(got, wide / wide.sum(-1, keepdims=True), rtol=1e-5)


@each_way
@pytest.mark.parametrize("rows", [19, pytest.param(100, marks=pytest.mark.nightly)])
def test_softmax_of_columns(rows, way):  # P2-12
    x = normal(rows, 70)
    wide = np.exp(x.astype(np.float64) - x.max(0))
    np.testing.assert_allclose(through(way, lambda x: jax.nn.softmax(x, 0), x)[0], wide / wide.sum(0), rtol=1e-5)


@each_way
def test_rows_in_many_blocks_leave_none_unwritten(way):  # P4-06
    q, k = normal(24, 16), normal(32, 16)
    wide = q.astype(np.float64) @ k.T
    np.testing.assert_allclose(through(way, lambda q, k: jnp.maximum(q @ k.T, -99), q, k)[0], wide, atol=1e-5)


@each_way
def test_nothing_times_nothing_is_the_bias(way):  # P2-10
    got = through(way, lambda x, w, b: x @ w + b, normal(4, 0), normal(0, 3), np.arange(3, dtype=np.float32))[0]
    assert got.tolist() == [[0, 1, 2]] * 4


# --- ties, NaN, division by zero, places --------------------------------------------------------------------------------


@each_way
def test_argmax_takes_the_first_of_ties_and_nan_first(way):  # P4-15
    last = np.zeros(1001, np.float32)
    last[-1] = 1
    for row, place in (([1, 5, 5, 3], 1), (np.ones(1000), 0), ([1, np.nan, 3], 1), (last, 1000)):
        assert through(way, lambda x: jnp.argmax(x, -1), np.asarray([row], np.float32))[0].tolist() == [place]
    assert through(way, lambda x: jnp.argmin(x, -1), np.asarray([[1, np.nan, 3]], np.float32))[0].tolist() == [1]


@each_way
def test_whole_numbers_divide_by_zero_without_a_fault(way):  # P2-17
    x, y = np.asarray([5, -7, 8, -(2**31)], np.int32), np.asarray([0, 0, 3, -1], np.int32)
    got = through(way, lambda x, y: (x // y, jax.lax.rem(x, y)), x, y)
    with jax.disable_jit():
        wanted = (jnp.asarray(x) // y, jax.lax.rem(jnp.asarray(x), jnp.asarray(y)))
    for a, b in zip(got, wanted, strict=True):
        assert a.tolist()[2:] == b.tolist()[2:]  # what a division by zero gives is the device's
    assert eqsat.optimize(lambda x: x + jax.lax.rem(jnp.int32(5), jnp.int32(0)), x)(x).dtype == np.int32


@each_way
def test_slices_and_scatters_at_computed_places(way):  # P4-08
    def fn(x, i, u):
        taken = jax.lax.dynamic_slice(x, (i, 1), (3, 5))
        return taken * 2, x.at[i].set(u), x.at[i, 2:].add(u[2:])

    x, u = normal(7, 6), normal(6)
    for i in (0, 4, 6):
        taken = x[min(i, 4) : min(i, 4) + 3, 1:] * 2
        put, added = x.copy(), x.copy()
        put[i], added[i, 2:] = u, x[i, 2:] + u[2:]
        for got, wanted in zip(through(way, fn, x, np.int32(i), u), (taken, put, added), strict=True):
            np.testing.assert_array_equal(got, wanted)


# --- precision ------------------------------------------------------------------------------------------------------------


def test_products_of_float32_ask_for_full_precision():  # P4-07
    for p in eqsat.optimize(jnp.matmul, spec(512, 512), spec(512, 512)).kernels:
        assert 'input_precision="ieee"' in p.source("triton")


@pytest.mark.nightly
def test_products_of_float32_are_no_tf32():  # P4-07
    for p in eqsat.optimize(jnp.matmul, spec(512, 512), spec(512, 512)).kernels:
        tiles = lower(p.kernel, p.schedule)
        assert "tf32" not in machine_code(triton.emit(tiles), tiles, 80).asm["ptx"]


def test_the_two_forms_of_gelu_are_never_exchanged():  # P2-13
    x, w = np.asarray([[-4.0, 1.0, 3.0, 50.0, -3e38, np.nan]], np.float32).T, np.ones((1, 1), np.float32)
    for approximate in (True, False):
        got = through("triton", lambda x, w: jax.nn.gelu(x @ w, approximate=approximate), x, w, numerics="exact")[0]  # noqa: B023
        with jax.disable_jit():
            wanted = jax.nn.gelu(jnp.asarray(x), approximate=approximate)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


# --- bytes, launches and seconds that a plan may take -------------------------------------------------------------------


def bfloat16(*shape):
    return spec(*shape, dtype="bfloat16")


ONCE = {  # function, arguments, launches
    "softmax of long rows": (lambda x: jax.nn.softmax(x, -1), (bfloat16(32768, 8192),), 1),
    "a sum of two softmaxes": (lambda a, b: jax.nn.softmax(a, -1) + jax.nn.softmax(b, -1), (bfloat16(4096, 2560),) * 2, 1),
    "softmax of columns": (lambda x: jax.nn.softmax(x, 0), (spec(32, 1 << 21),), 1),
    "mean of a transposed view": (lambda x: x.T.mean(1), (spec(256, 640),), 1),
    "exact GELU behind a product": (
        lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False),
        (bfloat16(4096, 4096),) * 2 + (bfloat16(4096),),
        1,
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_is_read_is_read_once(name):  # P2-12, P2-13, P2-18
    fn, args, launches = ONCE[name]
    program = eqsat.optimize(fn, *args)
    assert len(program.launches) == launches
    given = sum(a.size * a.dtype.itemsize for a in args)
    assert program.cost.nbytes <= 1.01 * (given + sum(t.nbytes for t in program.outputs))


@pytest.mark.parametrize("width", [512, pytest.param(4096, marks=pytest.mark.nightly)])
def test_a_plan_is_never_slower_than_what_was_written(width):  # P2-11
    def mlp(x, w, gain, v):
        h = (x @ w).astype(jnp.float32)
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * gain
        return jax.nn.gelu(h).astype(x.dtype) @ v

    program = eqsat.optimize(mlp, *[bfloat16(width, width)] * 2, spec(width), bfloat16(width, width))
    assert program.cost.seconds <= program.baseline.seconds


def test_small_products_are_not_promised_the_speed_of_large_ones():  # P4-13
    rates = []
    for n in (256, 1024, 8192):
        cost = eqsat.optimize(jnp.matmul, bfloat16(n, n), bfloat16(n, n)).cost
        rates.append(cost.flops / cost.seconds)
    assert rates == sorted(rates) and rates[-1] > 5 * rates[0]


def test_shapes_make_programs_and_numbers_do_not():  # P2-14
    @eqsat.jit
    def fn(x, scale):
        return x * scale + 1

    for n in (3, 4, 5, 3, 4):
        for scale in (0.5, 2.0):
            np.testing.assert_array_equal(fn(jnp.ones(n), scale), np.full(n, scale + 1, np.float32))
    assert len(fn.programs) == 3


@pytest.mark.parametrize("scale", [1, 0.125])
def test_a_softmax_takes_each_exponential_once(scale):
    def softmax(x):
        return jax.nn.softmax(x.astype(jnp.float32) * scale, -1).astype(x.dtype)

    (planned,) = eqsat.optimize(softmax, spec(512, 1000, dtype="bfloat16")).kernels
    assert planned.source("triton").count("tl.exp") == 1
    x = np.stack([normal(1000), np.full(1000, -np.inf), np.full(1000, -1e30), np.where(np.arange(1000) == 7, np.nan, 1)])
    x = np.concatenate([x, np.where(np.arange(1000) < 990, -np.inf, x[:1])]).astype(ml_dtypes.bfloat16)
    with jax.disable_jit():
        wanted = softmax(jnp.asarray(x))
    for way in INTERPRETERS:
        np.testing.assert_allclose(through(way, softmax, x)[0].astype("f"), wanted.astype("f"), rtol=1e-2, atol=1e-6)


# --- more elements than 32 bits count ----------------------------------------------------------------------------------


def every_4096th(x):
    return x[::4096] + 1


def row_sums(x):
    return x.astype(jnp.float32).sum(1)


def looked_up(x, i):
    return x[i] * 2


LARGE = {  # function, shape, what it is at the last element of the result
    "a vector": (every_4096th, ((1 << 31) + 4097,), 8),
    "a square": (row_sums, (46341, 46341), 7),
    "rows at computed places": (looked_up, ((1 << 16) + 1, 1 << 15), 14),
}


@pytest.mark.parametrize("name", LARGE)
def test_places_beyond_two_to_the_31_are_right(name):  # P4-14
    """The last program of each kernel, on an array of which only the pages that are touched exist."""
    fn, shape, wanted = LARGE[name]
    places = (np.asarray([0, shape[0] - 1], np.int32),) if fn is looked_up else ()
    (planned,) = eqsat.optimize(fn, spec(*shape, dtype="int8"), *places).kernels
    tiles = lower(planned.kernel, planned.schedule)
    assert ".to(tl.int64)" in (source := planned.source("triton"))
    x = np.zeros(shape, np.int8)
    x.reshape(-1)[-1] = 7
    given = [x if t.shape == shape else places[0] for t in tiles.inputs]
    (got,), report = checked.run(source, given, tiles.outputs, programs=[tiles.programs - 1], check=True)
    assert got.reshape(-1)[-1] == wanted and not report.races
    small = eqsat.optimize(fn, spec(*(min(n, 1 << 12) for n in shape), dtype="int8"), *places)
    assert not any(".to(tl.int64)" in p.source("triton") for p in small.kernels if fn is not looked_up)


# --- shared memory --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("target, limit", [("a100", 163), ("h100", 227)])
def test_what_does_not_fit_is_not_chosen(target, limit):  # P4-09
    def attention(q, k, v):
        return jax.nn.softmax(q @ k.T / 16, -1) @ v

    program = eqsat.optimize(attention, *[spec(2048, 256)] * 3, target=target, objective="launches")
    for p in program.kernels:
        tiles = lower(p.kernel, p.schedule)
        report = triton.compile_report(triton.emit(tiles), tiles, {"a100": 80, "h100": 90}[target])
        assert report.shared_nbytes <= limit * 1024 and report.warps_resident > 0


def test_a_kernel_over_the_limit_is_resident_nowhere():  # P4-12
    assert resident_warps(80, 32, 164 * 1024, 4) == (0, "shared memory")
