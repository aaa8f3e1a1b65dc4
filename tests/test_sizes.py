"""Every kernel family at awkward sizes and in every dtype: the interpreters agree with two oracles, all is written.

The suite takes a sample; `pytest -m nightly tests/test_sizes.py` runs the whole matrix.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.engines import engine
from eqsat.inputs import draw
from eqsat.lower import lower
from eqsat.validate_kernels import check_outputs

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

from interpreters import INTERPRETERS  # noqa: E402

SIZES = (0, 1, 2, 3, 15, 16, 17, 127, 129, 1000, 1001, 2048)
FLOATS = ("float32", "bfloat16", "float16", "float64")
ALL = (*FLOATS, "int32")


def wide(x):
    """Sums of narrow floats are held in float32, as programs write it."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) if jnp.issubdtype(x.dtype, jnp.floating) else x


def pointwise(x, y):
    return (jnp.maximum(x, 0) * y + x[:, ::-1]) * 2


def row_sum(x):
    return x.sum(1), x.max(1, initial=-9)


def softmax(x):
    return jax.nn.softmax(wide(x), -1).astype(x.dtype)


def layer_norm(x, gain):
    w = wide(x)
    centred = w - w.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def matmul(x, w, bias):
    return jnp.maximum(x @ w + bias, 0)


def int8_dot(x, w, scale):
    product = jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return product.astype(jnp.float32) * scale


def attention(q, k, v, masked=False):
    scores = wide(q @ k.T) * 0.25
    if masked:
        queries, keys = scores.shape  # the last query sees every key
        seen = jnp.arange(queries)[:, None] + (keys - queries) >= jnp.arange(keys)
        scores = jnp.where(seen, scores, -jnp.inf)
    return jax.nn.softmax(scores, -1).astype(q.dtype) @ v


def causal_attention(q, k, v):
    return attention(q, k, v, masked=True)


def convolution(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 2), ((1, 1), (1, 0)), dimension_numbers=("NHWC", "HWIO", "NHWC"))


def depthwise(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=x.shape[-1])


def pooled(x):
    least = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    return jax.lax.reduce_window(x, np.asarray(least, x.dtype), jax.lax.max, (1, 3), (1, 2), "SAME")


def batched(x, w):
    return jnp.einsum("bij,bjk->bik", x, w)


def update(x, row, place):
    return jax.lax.dynamic_update_slice_in_dim(x, row * 2, place, 0), wide(row).sum()


def log_sum_exp(x):
    return jax.nn.logsumexp(wide(x), -1)


def gather(table, places):
    return table[places] * 2


def segment_sum(x, places):
    return jax.ops.segment_sum(x * 2, places, 3000)


def running_sum(x):
    return jnp.cumsum(wide(x) * 2, -1).astype(x.dtype)


def running_maximum(x):
    return jax.lax.cummax(x, 0, reverse=True) + x


def running_log_sum_exp(x):
    return jax.lax.cumlogsumexp(x * 9, 1, reverse=True)


def split_running_sum(x):
    return jnp.cumsum(wide(x)).astype(x.dtype)


def extremes(x):
    return jnp.argmax(x, -1), jnp.argmin(x, 0), jnp.max(x, -1)


def largest(x):
    return jax.lax.top_k(x, 3)


def greedy(x, w):
    product = jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return jnp.argmax(product, -1)


def variance(x):
    return wide(x).var(-1)


def split_sum(x):
    return (wide(x) * 2).sum()


def transposed(x, y):
    return x.T + y


# name -> (function, shapes of its arguments for a size, dtypes); a trailing dtype in a shape is the argument's own
FAMILIES = {
    "pointwise": (pointwise, lambda n: ((3, n), (n,)), ALL),
    "transposed": (transposed, lambda n: ((n, 33), (33, n)), ALL),
    "row_sum": (row_sum, lambda n: ((5, n),), ALL),
    "softmax": (softmax, lambda n: ((5, n),), FLOATS),
    "layer_norm": (layer_norm, lambda n: ((5, n), (n,)), FLOATS),
    "matmul_rows": (matmul, lambda n: ((n, 40), (40, 24), (24,)), ALL),
    "matmul_depth": (matmul, lambda n: ((17, n), (n, 24), (24,)), ALL),
    "int8_dot": (int8_dot, lambda n: ((17, n), (n, 40), (40, "float32")), ("int8",)),
    "attention": (attention, lambda n: ((33, 16), (n, 16), (n, 20)), FLOATS),
    "causal_attention": (causal_attention, lambda n: ((min(n, 40), 16), (n, 16), (n, 16)), FLOATS),
    "convolution": (convolution, lambda n: ((1, 4, n, 16), (3, 2, 16, 24)), FLOATS),
    "depthwise": (depthwise, lambda n: ((1, 5, n, 20), (3, 3, 1, 20)), FLOATS),
    "pooled": (pooled, lambda n: ((5, n),), ALL),
    "batched": (batched, lambda n: ((3, n, 17), (3, 17, 40)), ALL),
    "update": (update, lambda n: ((9, n), (2, n), ("int32",)), ALL),
    "log_sum_exp": (log_sum_exp, lambda n: ((5, n),), FLOATS),
    "gather": (gather, lambda n: ((50, n), (7, "int32")), ALL),
    "segment_sum": (segment_sum, lambda n: ((n, 40), (n, "int32")), ("float32", "float64", "int32")),
    "running_sum": (running_sum, lambda n: ((5, n),), ALL),
    "running_maximum": (running_maximum, lambda n: ((n, 3),), ALL),
    "extremes": (extremes, lambda n: ((5, n + 1),), ALL),
    "largest": (largest, lambda n: ((5, n + 3),), ALL),
    "greedy": (greedy, lambda n: ((17, 40), (40, n + 1)), ("int8",)),
    "variance": (variance, lambda n: ((5, n),), FLOATS),
    "split_sum": (split_sum, lambda n: ((n, 512),), ALL),
    "running_log_sum_exp": (running_log_sum_exp, lambda n: ((1, n),), FLOATS),
    "split_running_sum": (split_running_sum, lambda n: ((n, 512),), ALL),
}

MARGINAL = {("matmul_depth", 2048, "float64")}  # as far as it may be from what NumPy's sum gives


def matrix():
    """Each family once for the suite, at another size and dtype than its neighbours; the rest is nightly."""
    for number, (name, (_, _, dtypes)) in enumerate(FAMILIES.items()):
        sampled = (SIZES[(7 * number + 3) % len(SIZES)], dtypes[number % len(dtypes)])
        for size in SIZES:
            for dtype in dtypes:
                marks = [] if (size, dtype) == sampled or (name, size, dtype) in MARGINAL else pytest.mark.nightly
                yield pytest.param(name, size, dtype, marks=marks, id=f"{name}-{size}-{dtype}")


def specs(shapes, dtype):
    for shape in shapes:
        own = shape[-1] if isinstance(shape[-1], str) else dtype
        yield jax.ShapeDtypeStruct(tuple(d for d in shape if d is not own), own)


@pytest.mark.parametrize(("name", "size", "dtype"), list(matrix()))
def test_kernels_are_right_at_every_size(name, size, dtype):
    fn, shapes, _ = FAMILIES[name]
    with jax.enable_x64(dtype == "float64"):
        program = eqsat.optimize(fn, *specs(shapes(size), dtype))
        if size == 0:
            arguments = draw(program.graph.inputs, 0, None)
            for got, wanted in zip(program.run(*arguments), jax.tree.leaves(fn(*arguments)), strict=True):
                np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
        assert program.kernels or size == 0
        for seed, planned in enumerate(program.kernels):
            tiles = lower(planned.kernel, planned.schedule)
            inputs = draw(tiles.inputs, seed, None)
            given = dict(zip(tiles.inputs, inputs, strict=True))
            for run in INTERPRETERS.values():
                check_outputs(planned, given, run(tiles, inputs))


# Families whose programs add to, write into or combine what others made, and products.
MANY_TILES = {"segment_sum": 129, "update": 129, "split_sum": 129, "split_running_sum": 129, "transposed": 129, "batched": 40}


@pytest.mark.parametrize(
    "name",
    [n if n in ("segment_sum", "split_sum", "batched") else pytest.param(n, marks=pytest.mark.nightly) for n in MANY_TILES],
)
def test_persistent_programs_are_right(name):
    fn, shapes, _ = FAMILIES[name]
    kernels = eqsat.optimize(fn, *specs(shapes(MANY_TILES[name]), "float32")).kernels
    looping = 0
    for seed, planned in enumerate(kernels):
        tiles = lower(planned.kernel, replace(planned.schedule, persistent=2))
        looping += tiles.programs < tiles.tile_count
        inputs = draw(tiles.inputs, seed, None)
        for run in INTERPRETERS.values():
            check_outputs(planned, dict(zip(tiles.inputs, inputs, strict=True)), run(tiles, inputs))
    assert looping


def test_columns_summed_over_several_long_axes_fit_the_device():
    """As the statistics of a batch norm: a block of all reduced axes would be larger than the registers."""
    assert eqsat.optimize(lambda x: x.sum((0, 1, 2)), jax.ShapeDtypeStruct((8, 56, 56, 256), "float32")).cost.launches <= 2
    small = eqsat.optimize(lambda x: x.sum((0, 1, 2)), jax.ShapeDtypeStruct((3, 20, 40, 40), "float32"), objective="launches")
    small.validate(level="kernels")
    x = np.random.default_rng(0).standard_normal((3, 20, 40, 40)).astype(np.float32)
    (got,) = small.inline(x, launch=engine("triton"))
    np.testing.assert_allclose(got, x.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)
