"""Products of 8-bit operands with scales: one kernel with the scales around its matrix instructions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqsat
from eqsat.engines import engine
from eqsat.lower import lower
from eqsat.tile import Dot

pytest.importorskip("triton")

from eqsat.backends import triton  # noqa: E402


def product(x, w, dtype):
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=dtype)


def scaled_weights(x, w, s):
    """int8 weights with a scale for each channel; the product is rounded as one of bfloat16."""
    return x @ (w.astype("bfloat16") * s.astype("bfloat16"))


def scaled_result(x, w, s):
    return (product(x, w.astype("bfloat16"), "float32") * s).astype("bfloat16")


def int8(x, w, rows, columns):
    return (product(x, w, "int32").astype("float32") * rows[:, None] * columns).astype("bfloat16")


def float8(x, w, a, b):
    return (product(x, w, "float32") * a * b).astype("bfloat16")


def rounded_on_the_way(x, w, s):
    """Activations are made int8 with a scale for each row, the largest magnitude's."""
    scale = jnp.max(jnp.abs(x), -1, keepdims=True).astype("float32") / 127
    q = jnp.clip(jnp.round(x.astype("float32") / scale), -127, 127).astype("int8")
    return (product(q, w, "int32").astype("float32") * scale * s).astype("bfloat16")


HALF = lambda m, k, n: (("bfloat16", m, k), ("int8", k, n), ("float32", n))  # noqa: E731
INT8 = lambda m, k, n: (("int8", m, k), ("int8", k, n), ("float32", m), ("float32", n))  # noqa: E731
FLOAT8 = lambda m, k, n: (("float8_e4m3fn", m, k), ("float8_e4m3fn", k, n), ("float32",), ("float32",))  # noqa: E731

# name -> (function, dtypes and shapes of its arguments for sizes m, k, n, kernels, the dtype that matrix instructions take)
PROGRAMS = {
    "scales on the weights": (scaled_weights, HALF, 1, "bfloat16"),
    "scales on the result": (scaled_result, HALF, 1, "bfloat16"),
    "int8": (int8, INT8, 1, "int8"),
    "float8": (float8, FLOAT8, 1, "float8_e4m3fn"),
    "activations rounded": (rounded_on_the_way, HALF, 2, "int8"),
}


def specs(name, *sizes):
    return [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, *shape in PROGRAMS[name][1](*sizes)]


LONG = {"scales on the weights", "scales on the result", "activations rounded"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] if n in LONG else []) for n in PROGRAMS])
def test_a_product_with_scales_is_one_kernel_on_matrix_instructions(name):
    fn, _, launches, dtype = PROGRAMS[name]
    program = eqsat.optimize(fn, *specs(name, 512, 1024, 4096))
    assert len(program.launches) == launches and not program.calls
    planned = program.launches[-1]
    tiles = lower(planned.kernel, planned.schedule)
    assert {(s.a.dtype, s.b.dtype) for s in tiles.statements() if isinstance(s, Dot)} == {(dtype, dtype)}
    report = triton.compile_report(triton.emit(tiles), tiles, 90)
    assert report.spills == 0 and report.matrix_instructions > 0 and report.widest_load_bits == 128


@pytest.mark.parametrize("run", ["tiles", pytest.param("triton", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_with_scales_are_right_at_awkward_sizes(name, run):
    """Against JAX op by op, whose last operation rounds to bfloat16 as well."""
    fn, generator, arguments = PROGRAMS[name][0], np.random.default_rng(0), specs(name, 17, 33, 40)
    arrays = [
        generator.integers(-127, 128, s.shape, np.int8)
        if s.dtype == jnp.int8
        else np.asarray(generator.standard_normal(s.shape) if s.shape else 0.5).astype(s.dtype)
        for s in arguments
    ]
    wanted = np.asarray(fn(*map(jnp.asarray, arrays)), np.float64)
    (got,) = eqsat.optimize(fn, *arguments).inline(*map(jnp.asarray, arrays), launch=engine(run))
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=2e-2, atol=2e-3 * np.abs(wanted).max())
