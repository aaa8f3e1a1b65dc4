"""StableHLO modules: what `jax.export` writes comes back as the same program, op by op and in launches."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import eqsat
import examples
from eqsat.frontends.stablehlo import StablehloError, Unsupported
from eqsat.graph import Graph
from eqsat.read import read

X = jax.ShapeDtypeStruct((4, 6), "float32")
N = jax.ShapeDtypeStruct((4, 6), "int32")
IMAGE = jax.ShapeDtypeStruct((2, 8, 8, 3), "float32")
POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "digamma", "lgamma", "acosh")


def round_trip(fn: Callable[..., Any], *specs: Any, tolerance: float = 2e-5) -> Graph:
    """The graph read back, after comparing its values with the function's own, op by op."""
    graph = Graph.from_stablehlo(export.export(jax.jit(fn))(*specs))
    flat = [np.asarray(x) for x in examples.draw(tuple(jax.tree.leaves(specs)))]
    wanted = Graph.from_jax(fn, *specs).evaluate(*flat)
    for got, want in zip(graph.evaluate(*flat), wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        got, want = np.asarray(got), np.asarray(want)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            wide = complex if want.dtype.kind == "c" else float
            np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)
    return graph


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.nightly] * (n % 3 > 0)) for n, x in enumerate(examples.tables("RAGGED"))]
)
def test_examples_come_back_with_the_same_reading(name):
    fn, specs = examples.tables("RAGGED")[name]
    graph = round_trip(fn, *specs)
    assert not read(graph).opaque


@pytest.mark.parametrize(
    "name", ["softmax", "lora", *(pytest.param(x, marks=pytest.mark.nightly) for x in ("causal_attention", "layer_norm", "mlp"))]
)
def test_examples_come_back_with_the_same_launches(name):
    fn, specs = examples.tables("RAGGED")[name]
    imported = Graph.from_stablehlo(export.export(jax.jit(fn))(*specs))
    program, own = eqsat.optimize(imported), eqsat.optimize(fn, *specs)
    assert len(program.launches) == len(own.launches)
    program.validate()


UNARY = (
    "abs neg exp exp2 expm1 log log1p logistic tanh sin cos tan sqrt rsqrt cbrt floor ceil sign is_finite erf erfc erf_inv "
    "lgamma digamma asin acosh asinh atan atanh cosh sinh square bessel_i1e round"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name):
    fn = getattr(lax, name)
    bounded = (lambda x: fn(jnp.abs(x) + 1.1)) if name in POSITIVE else (lambda x: fn(jnp.tanh(x) * 0.9))
    round_trip(bounded, X, tolerance=2e-4)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "integers": (lambda n: (n // 3, n % 3, n << 2, n >> 1, ~n, n & 5, n | 8, n ^ 3, lax.clz(n), lax.population_count(n)), (N,)),
    "booleans": (lambda x: (jnp.all(x > 0, 1), jnp.any(x > 1, 0), ~(x > 0) ^ (x < 1)), (X,)),
    "casts": (lambda x: (x.astype("bfloat16"), x.astype("int8"), x > 0, x.astype("float8_e4m3fn")), (X,)),
    "bits": (lambda x: lax.bitcast_convert_type(x, "int32"), (X,)),
    "narrow floats": (lambda x: lax.reduce_precision(x, 5, 10), (X,)),
    "complex": (lambda x: (jnp.abs(lax.complex(x, x * 2)), jnp.real(jnp.exp(1j * x)) + jnp.conj(1j * x).imag), (X,)),
    "pads": (lambda x: (lax.pad(x, 9.0, [(1, -1, 1), (-1, -1, 0)]), jnp.pad(x, 2, mode="reflect")), (X,)),
    "slices": (lambda x: (x[1:3, ::2], x[:, ::-1], x[-1], jnp.roll(x, 2, 1)), (X,)),
    "dynamic slices": (lambda x, n: (lax.dynamic_slice(x, (n[0, 0], 1), (2, 3)), x.at[n[1, 1], 2].set(7.0)), (X, N)),
    "concatenation": (lambda x: jnp.concatenate([x, x * 2, jnp.arange(6.0)[None]]), (X,)),
    "gathers": (lambda x, n: (x[n[:, 0]], jnp.take(x, n, axis=1), jnp.take_along_axis(x, n % 6, 1), x[n[0], n[1]]), (X, N)),
    "scatters": (lambda x, n: (x.at[n[:, 0] % 4].add(x), x.at[:, 1].mul(2.0), x.at[n[0] % 4, 2].max(0.5)), (X, N)),
    "reductions": (lambda x: (x.sum(), x.max(0), x.min(1), x.prod(1), jnp.mean(x), jnp.var(x, 0)), (X,)),
    "a reduction from another start": (lambda x: lax.reduce(x, np.float32(3), lax.max, (1,)), (X,)),
    "a reduction of its own": (lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.hypot(a, b), (1,)), (X,)),
    "positions": (lambda x, n: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(n)), (X, N)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1, reverse=True), lax.cummin(x, 0)), (X,)),
    "pooling": (
        lambda x: (
            lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "VALID"),
            lax.reduce_window(x, 1.0, lax.mul, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ),
        (IMAGE,),
    ),
    "gradient of pooling": (
        jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()),
        (IMAGE,),
    ),
    "sorts": (
        lambda x, n: (jnp.sort(x), jnp.argsort(-x, 0), lax.sort((n, x), num_keys=2), jnp.sort(n, descending=True)),
        (X, N),
    ),
    "largest": (lambda x: lax.top_k(x, 2), (X,)),
    "products": (
        lambda x: (jnp.einsum("ij,kj->ik", x, x), x.astype("bfloat16") @ x.T.astype("bfloat16"), jnp.dot(x[0], x[1])),
        (X,),
    ),
    "precise products": (lambda x: jnp.dot(x, x.T, precision="highest", preferred_element_type="float32"), (X,)),
    "loops": (lambda x: (lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x), lax.scan(lambda c, v: (c + v, c), x[0], x)), (X,)),
    "a loop that ends by itself": (lambda x: lax.while_loop(lambda c: c.sum() < 50, lambda c: c * 1.5 + 1, jnp.abs(x)), (X,)),
    "branches": (
        lambda x, n: (lax.cond(n[0, 0] > 3, jnp.sin, jnp.cos, x), lax.switch(n[1, 1] - 2, [jnp.sin, jnp.cos, jnp.exp], x)),
        (X, N),
    ),
    "transforms": (lambda x: (jnp.abs(jnp.fft.fft(x)), jnp.fft.irfft(jnp.fft.rfft(x))), (X,)),
    "constants": (lambda x: x + np.arange(24, dtype="float32").reshape(4, 6) + np.asarray(TABLE_OF_BFLOAT16, "float32"), (X,)),
    "narrow constants": (lambda x: x * TABLE_OF_BFLOAT16 + jnp.asarray(EIGHTHS).astype("f4"), (X,)),
    "wide narrow constants": (lambda x: x[:, :1] + jnp.asarray(np.arange(600).reshape(4, 150) / 8, "bfloat16"), (X,)),
    "complex constants": (lambda x: jnp.abs(x * np.array([1 + 2j, 3, -1j, np.inf, 0, 1], "complex64")), (X,)),
    "no elements": (lambda x: (x[:0], x[:0].sum(0)), (X,)),
}  # fmt: skip
EIGHTHS = (np.arange(6) / 8).astype(jnp.float8_e4m3fn)
TABLE_OF_BFLOAT16 = np.linspace(-3, 3, 24).reshape(4, 6).astype(jnp.bfloat16)


@pytest.mark.parametrize("name", CASES)
def test_operations(name):
    fn, specs = CASES[name]
    round_trip(fn, *specs)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"window_strides": (1, 1), "padding": "SAME"},
    "strided": {"window_strides": (2, 3), "padding": [(1, 0), (2, 1)]},
    "dilated": {"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (2, 2)},
    "transposed": {"window_strides": (1, 1), "padding": [(1, 2), (2, 1)], "lhs_dilation": (2, 2)},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    options = CONVOLUTIONS[name] | {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    kernel = jax.ShapeDtypeStruct((3, 3, 3, 4), "float32")
    round_trip(lambda x, k: lax.conv_general_dilated(x, k, **options), IMAGE, kernel)
    grads = jax.grad(lambda x, k: lax.conv_general_dilated(x, k, **options).sum(), argnums=(0, 1))
    round_trip(grads, IMAGE, kernel, tolerance=2e-4)


def test_a_pool_is_no_call():
    graph = Graph.from_stablehlo(export.export(jax.jit(CASES["pooling"][0]))(IMAGE))
    assert not [c for c in read(graph).calls if c.name != "reduce_window"] and read(graph).opaque <= 1  # the window of products


def test_random_bits_come_back_under_64_bits():
    def draw(key, x):
        return jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, x.shape), x, 0)

    key = jax.ShapeDtypeStruct((2,), "uint32")
    exported = export.export(jax.jit(draw))(key, X)
    with pytest.raises(Unsupported, match="uint64 needs 64-bit JAX"):
        Graph.from_stablehlo(exported)
    with jax.enable_x64(True):
        graph = Graph.from_stablehlo(exported)
        (got,) = graph.evaluate(np.array([1, 2], "uint32"), np.ones((4, 6), "float32"))
    np.testing.assert_array_equal(got, draw(np.array([1, 2], "uint32"), np.ones((4, 6), "float32")))


# --- names, forms, shapes ---------------------------------------------------------------------------------------


def layer(x, parameters):
    hidden = jnp.tanh(x @ parameters["w"])
    return {"hidden": hidden, "total": hidden.sum(1)}


LAYER = (X, {"w": jax.ShapeDtypeStruct((6, 3), "float32")})


def test_arguments_results_and_lines_keep_their_names():
    graph = Graph.from_stablehlo(export.export(jax.jit(layer))(*LAYER))
    assert graph.name == "layer"
    assert [graph.name_of[v] for v in graph.inputs] == ["x", "parameters_w"]
    assert [graph.name_of[v] for v in graph.outputs] == ["hidden", "total"]
    assert {str(e.source) for e in graph.equations} >= {f"<test_stablehlo.py>:{layer.__code__.co_firstlineno + 1}"}


@pytest.mark.parametrize("form", ["text", "artifact", "path of text", "path of an artifact", "exported"])
def test_every_form_reads_as_the_same_graph(form, tmp_path):
    exported = export.export(jax.jit(layer))(*LAYER)
    text, artifact = exported.mlir_module(), exported.mlir_module_serialized
    path = tmp_path / ("layer.mlir" if "text" in form else "layer.mlirbc")
    path.write_bytes(text.encode() if "text" in form else artifact)
    source = {"text": text, "artifact": artifact, "exported": exported}.get(form, path)
    wanted = Graph.from_stablehlo(exported)
    assert str(Graph.from_stablehlo(source)) == str(wanted)


def test_open_dimensions_are_bound_by_the_caller():
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(lambda x: (x @ x.T) / x.shape[0]))(jax.ShapeDtypeStruct((b, 6), "float32"))
    with pytest.raises(StablehloError, match=r"sizes of all dimensions required, got 'x' has tensor<\?x6xf32>"):
        Graph.from_stablehlo(exported)
    graph = Graph.from_stablehlo(exported, shapes={"x": (4, 6)})
    x = np.asarray(examples.draw((X,))[0])
    np.testing.assert_allclose(graph(x), x @ x.T / 4, rtol=1e-5)
    with pytest.raises(StablehloError, match=r"a shape that fits tensor<\?x6xf32> required, got \[4, 5\]"):
        Graph.from_stablehlo(exported, shapes={"x": (4, 5)})
    with pytest.raises(StablehloError, match=r"arguments among \['x'\] required in shapes, got 'y'"):
        Graph.from_stablehlo(exported, shapes={"y": (4, 6)})


def test_operations_of_open_sizes_become_those_of_bound_ones():
    def program(x):
        rows, columns = x.shape
        y = jnp.cumsum(x.reshape(-1).reshape(rows, columns) + jnp.arange(rows, dtype=x.dtype)[:, None], 1)
        picked = jnp.take(y[:, ::-1] / columns, jnp.arange(columns) % columns, axis=1)
        return jnp.concatenate([jnp.pad(picked, ((0, 0), (1, 1))), jnp.ones((rows, columns + 2))])[:, 1:-1]

    rows, columns = export.symbolic_shape("r, c")
    exported = export.export(jax.jit(program))(jax.ShapeDtypeStruct((rows, columns), "float32"))
    used = set(re.findall(r"stablehlo\.(\w*dynamic\w*)", exported.mlir_module()))
    assert used >= {"dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_iota", "dynamic_reduce_window", "dynamic_reshape"}, (
        used
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(Graph.from_stablehlo(exported, shapes={"x": (3, 4)})(x), program(x), rtol=1e-6)


def test_padding_by_open_sizes():
    text = """module { func.func @main(%a: tensor<?x2xf32> {jax.arg_info = "a"}) -> tensor<?x?xf32> {
      %size = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
      %rows = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
      %none = stablehlo.constant dense<0> : tensor<1xi32>
      %low = stablehlo.concatenate %rows, %none, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %zeros = stablehlo.constant dense<0> : tensor<2xi32>
      %fill = stablehlo.constant dense<7.0> : tensor<f32>
      %padded = stablehlo.dynamic_pad %a, %fill, %low, %zeros, %zeros
        : (tensor<?x2xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
      return %padded : tensor<?x?xf32> } }"""
    a = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(Graph.from_stablehlo(text, shapes={"a": a})(a), np.pad(a, ((3, 0), (0, 0)), constant_values=7))


# --- written by hand: what `jax.export` does not write --------------------------------------------------------------


def module(body: str, arguments: str, results: str) -> str:
    return f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n"


def run(text: str, *values: Any) -> Any:
    return Graph.from_stablehlo(text)(*values)


def test_negative_and_interior_padding():  # P6-07
    text = module(
        "%v = stablehlo.constant dense<9> : tensor<i32>\n"
        "%0 = stablehlo.pad %a, %v, low = [0, -1], high = [0, -1], interior = [0, 0]"
        " : (tensor<1x3xi32>, tensor<i32>) -> tensor<1x1xi32>\n"
        "%1 = stablehlo.pad %b, %v, low = [1], high = [-1], interior = [1] : (tensor<3xi32>, tensor<i32>) -> tensor<5xi32>\n"
        "return %0, %1 : tensor<1x1xi32>, tensor<5xi32>",
        "%a: tensor<1x3xi32>, %b: tensor<3xi32>",
        "tensor<1x1xi32>, tensor<5xi32>",
    )
    first, second = run(text, np.array([[1, 2, 3]], "int32"), np.array([1, 2, 3], "int32"))
    np.testing.assert_array_equal(first, [[2]])
    np.testing.assert_array_equal(second, [9, 1, 9, 2, 9])


def test_a_negative_start_is_clamped():
    text = module(
        "%0 = stablehlo.dynamic_slice %a, %i, sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>\n"
        "return %0 : tensor<2xi32>",
        "%a: tensor<4xi32>, %i: tensor<i32>",
        "tensor<2xi32>",
    )
    np.testing.assert_array_equal(run(text, np.arange(4, dtype="i4"), np.int32(-1)), [0, 1])


def test_a_case_out_of_range_takes_the_last_branch():
    branch = "{{ %c = stablehlo.constant dense<{0}.0> : tensor<f32>\n stablehlo.return %c : tensor<f32> }}"
    branches = ", ".join(branch.format(n) for n in (1, 2, 3))
    text = module(
        f'%0 = "stablehlo.case"(%i) ({branches}) : (tensor<i32>) -> tensor<f32>\nreturn %0 : tensor<f32>',
        "%i: tensor<i32>",
        "tensor<f32>",
    )
    assert [float(run(text, np.int32(i))) for i in (-1, 0, 1, 2, 3)] == [3, 1, 2, 3, 3]


def test_the_total_order_tells_zeros_and_nan_apart():
    text = module(
        "%0 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>\n"
        "return %0 : tensor<4xi1>",
        "%a: tensor<4xf32>, %b: tensor<4xf32>",
        "tensor<4xi1>",
    )
    a, b = np.array([-0.0, 0.0, np.inf, np.nan], "f4"), np.array([0.0, -0.0, np.nan, np.inf], "f4")
    np.testing.assert_array_equal(run(text, a, b), [True, False, True, False])


def test_a_descending_sort_is_stable():
    text = module(
        '%0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({\n'
        "^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):\n"
        "%p = stablehlo.compare GT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "stablehlo.return %p : tensor<i1> }) : (tensor<4xi32>, tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>)\n"
        "return %0#0, %0#1 : tensor<4xi32>, tensor<4xi32>",
        "%k: tensor<4xi32>, %v: tensor<4xi32>",
        "tensor<4xi32>, tensor<4xi32>",
    )
    keys, values = run(text, np.array([1, 3, 1, 3], "i4"), np.arange(4, dtype="i4"))
    np.testing.assert_array_equal(keys, [3, 3, 1, 1])
    np.testing.assert_array_equal(values, [1, 3, 0, 2])


def test_everything_that_is_missing_is_named_at_once():
    text = module(
        "%0 = stablehlo.custom_call @mine(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
        '%1 = "stablehlo.collective_broadcast"(%0) <{replica_groups = dense<[[0]]> : tensor<1x1xi64>}> '
        ": (tensor<2xf32>) -> tensor<2xf32>\n"
        "return %1 : tensor<2xf32>",
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
    )
    with pytest.raises(
        Unsupported, match="custom_call @mine, which only its own runtime can run; stablehlo.collective_broadcast"
    ):
        Graph.from_stablehlo(text)


def test_quantised_types_are_refused():
    kind = "tensor<2x!quant.uniform<i8:f32, 0.1>>"
    text = module(f"return %a : {kind}", f"%a: {kind}", kind)
    with pytest.raises(StablehloError, match="element type|does not parse"):
        Graph.from_stablehlo(text)


SQUARES, TALL = jax.ShapeDtypeStruct((2, 3, 3), "float32"), jax.ShapeDtypeStruct((2, 4, 3), "float32")
FACTORISATIONS = {
    "cholesky": (lambda a: jnp.linalg.cholesky(a @ a.mT + jnp.eye(3)), SQUARES),
    "cholesky that fails": (jnp.linalg.cholesky, SQUARES),
    "upper cholesky": (lambda a: jnp.linalg.cholesky(a @ a.mT + jnp.eye(3), upper=True), SQUARES),
    "qr": (jnp.linalg.qr, TALL),
    "complete qr": (lambda a: jnp.linalg.qr(a, mode="complete"), TALL),
    "lu": (lax.linalg.lu, TALL),
    "singular lu": (lambda a: lax.linalg.lu(a * 0), SQUARES),
    "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), TALL),
    "full svd": (jnp.linalg.svd, TALL),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), TALL),
    "eigh": (lambda a: jnp.linalg.eigh(a + a.mT), SQUARES),
    "eig": (jnp.linalg.eig, SQUARES),
    "hessenberg": (lax.linalg.hessenberg, SQUARES),
    "solve": (lambda a: jnp.linalg.solve(a, a[..., :2]), SQUARES),
    "solve from the right": (lambda a: lax.linalg.triangular_solve(a, a, lower=True, transpose_a=True), SQUARES),
    "tridiagonal": (lambda a: lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1] + 4, a[:, 2], a), SQUARES),
}


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_calls_of_lapack_are_jaxs_own(name):
    fn, spec = FACTORISATIONS[name]
    round_trip(fn, spec)


# --- several devices --------------------------------------------------------------------------------------------


def reduced(groups: str = "[[0]]", partitions: int = 1) -> str:
    text = module(
        f'%1 = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<{groups}> : tensor<1x{groups.count(",") + 1}xi64>}}> ({{\n'
        "^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.add %x, %y : tensor<f32>\n"
        "stablehlo.return %s : tensor<f32> }) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "return %1 : tensor<2xf32>",
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
    )
    return f"module attributes {{mhlo.num_partitions = {partitions} : i32}} {{\n{text}\n}}"


def test_a_collective_of_one_device_changes_nothing():
    np.testing.assert_array_equal(run(reduced(), np.asarray([1, 2], "f4")), [1, 2])


def test_a_collective_of_devices_that_nothing_describes_is_refused():
    with pytest.raises(Unsupported, match="a manual computation around it required"):
        Graph.from_stablehlo(reduced("[[0, 1]]", 2))


DEVICES = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import eqsat

X = np.arange(32, dtype=np.float32).reshape(8, 4)
line, square = (Mesh(np.asarray(jax.devices()).reshape(s), tuple("ab"[: len(s)])) for s in ((4,), (2, 2)))

def one(x):
    twice = jnp.concatenate([x, x])
    ring = [(n, (n + 1) % 4) for n in range(4)]
    return (lax.psum(x, "a"), lax.pmax(x, "a"), lax.all_gather(x, "a"), lax.ppermute(x, "a", ring[:3]),
            x + lax.axis_index("a"), lax.all_to_all(twice, "a", 0, 1, tiled=True), lax.psum_scatter(twice, "a", tiled=True))

def two(x):
    whole = lax.psum(x, ("a", "b"))
    return lax.psum(x, "a"), lax.pmin(x, "b"), lax.all_gather(x, "a", tiled=True), x - lax.axis_index("b"), whole

ONE = (P(), P(), *[P("a")] * 5)
TWO = (P(None, "b"), P("a"), P(None, "b"), P("a", "b"), P())
part, mesh, given, made = {"line": (one, line, P("a"), ONE), "square": (two, square, P("a", "b"), TWO)}[sys.argv[1]]
whole = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=given, out_specs=made, check_vma=False))
graph = eqsat.Graph.from_stablehlo(jax.export.export(whole)(X))
run = eqsat.optimize(graph, numerics="exact") if part is one else jax.jit(lambda x: graph(x))
for got, want in zip(run(X), whole(X), strict=True):
    np.testing.assert_array_equal(got, want)
print("agree")
"""


@pytest.mark.parametrize("mesh", [pytest.param("line", marks=pytest.mark.nightly), "square"])
def test_manual_computations_run_on_the_devices_of_their_mesh(mesh):
    done = subprocess.run([sys.executable, "-c", DEVICES, mesh], capture_output=True, text=True)
    assert done.stdout.strip() == "agree", done.stderr
