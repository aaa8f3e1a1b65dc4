"""The way out: a program as StableHLO or ONNX, run by others, computes what the program computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqsat
import examples
from eqsat.graph import Graph

X = jax.ShapeDtypeStruct((4, 6), "float32")
N = jax.ShapeDtypeStruct((4, 6), "int32")
IMAGE = jax.ShapeDtypeStruct((2, 3, 8, 7), "float32")
NAMES = ["causal_attention", "grouped_attention", "layer_norm", "residual_rms_norm", "log_softmax", "lora", "swiglu"]


def drawn(program: eqsat.Program) -> list[np.ndarray]:
    specs = tuple(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in program.graph.inputs)
    return [np.asarray(x) for x in examples.draw(specs)]


def assert_close(got: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(got, wanted, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            scale = max(float(np.nanmax(np.abs(b.astype(float)), initial=0)), 1.0)
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=tolerance, atol=tolerance * scale)


def run_onnx(program: eqsat.Program, flat: list[np.ndarray]) -> list[np.ndarray]:
    pytest.importorskip("onnx")
    return run_model(program.to_onnx(), flat)


def run_model(model: Any, flat: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs by ONNX Runtime, or by ONNX's reference where that lacks a dtype."""
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(model, full_check=True)
    feeds = {v.name: x for v, x in zip(model.graph.input, flat, strict=True)}
    if any(x.dtype == jnp.bfloat16 for x in flat):
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model).run(None, feeds)
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(model.SerializeToString()).run(None, feeds)


@pytest.mark.parametrize("name", NAMES)
def test_examples_leave_as_stablehlo_and_as_onnx(name):
    fn, specs = examples.tables("RAGGED")[name]
    specs = tuple(jax.ShapeDtypeStruct(s.shape, "float32" if s.dtype == jnp.bfloat16 else s.dtype) for s in specs)
    program = eqsat.optimize(fn, *specs)
    flat = drawn(program)
    wanted = program.run(*map(jnp.asarray, flat))
    assert_close(Graph.from_stablehlo(program.to_stablehlo()).evaluate(*flat), wanted)
    assert_close(run_onnx(program, flat), wanted)


def test_arguments_that_nothing_needs_stay_arguments():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    program = eqsat.optimize(lambda x, unused: -x, x, x)
    assert_close(Graph.from_stablehlo(program.to_stablehlo()).evaluate(x, x), [-x])
    assert [v.name for v in program.to_onnx().graph.input] == ["x", "unused"]


def test_bfloat16_leaves_as_onnx():
    fn, specs = examples.tables("RAGGED")["softmax_wide"]
    program = eqsat.optimize(fn, *specs)
    flat = drawn(program)
    assert_close(run_onnx(program, flat), program.run(*map(jnp.asarray, flat)), 1e-2)


def test_xla_runs_the_artifact():
    program = eqsat.optimize(*_named("layer_norm"))
    flat = drawn(program)
    graph = Graph.from_stablehlo(program.to_stablehlo(binary=True))
    assert_close(jax.jit(graph.evaluate)(*flat), program.run(*map(jnp.asarray, flat)))


def _named(name: str) -> tuple[Any, ...]:
    fn, specs = examples.tables("RAGGED")[name]
    return fn, *specs


def test_iree_compiles_and_runs_the_module():
    compiler, runtime = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    program = eqsat.optimize(*_named("causal_attention"))
    flat = drawn(program)
    compiled = compiler.compile_str(program.to_stablehlo(), target_backends=["llvm-cpu"], input_type="stablehlo")
    loaded = runtime.load_vm_flatbuffer(compiled, driver="local-task")
    got = loaded.main(*flat)
    assert_close([got.to_host()], program.run(*map(jnp.asarray, flat)), 1e-4)


def test_a_loop_leaves_with_what_was_moved_out_of_it():
    def f(x, a, b):
        return lax.scan(lambda c, e: (jnp.tanh(c + e) @ (a @ b), c.sum()), x[0], x)

    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((5, 4, 4), (4, 4), (4, 4))]
    program = eqsat.optimize(f, *specs)
    flat = drawn(program)
    assert_close(Graph.from_stablehlo(program.to_stablehlo()).evaluate(*flat), program.run(*map(jnp.asarray, flat)))


def test_names_go_out():
    def layer(x, parameters):
        hidden = jnp.tanh(x @ parameters["w"])
        return {"hidden": hidden, "total": hidden.sum(1)}

    program = eqsat.optimize(layer, X, {"w": jax.ShapeDtypeStruct((6, 3), "float32")})
    model = program.to_onnx()
    inputs, outputs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
    graph = Graph.from_stablehlo(program.to_stablehlo())
    assert inputs == [graph.name_of[v] for v in graph.inputs] == ["x", "parameters_w"]
    assert [graph.name_of[v] for v in graph.outputs] == outputs


# --- primitives that leave as ONNX ------------------------------------------------------------------------------

WRITTEN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "numbers": (
        lambda x: (
            jnp.sin(x), jnp.cos(x), jnp.tanh(x), lax.erf(x), lax.logistic(x), lax.rsqrt(jnp.abs(x) + 1), x**3, x**-2,
            jnp.floor(x), jnp.ceil(x), jnp.round(x), lax.round(x), jnp.sign(x), jnp.maximum(x, 0.5), jnp.clip(x, -1, 1),
            jnp.isfinite(x), jnp.where(x > 0, x, -x), x != 0, (x > 0) & ~(x > 1), lax.rem(x, np.float32(0.7)),
            jnp.power(jnp.abs(x), 0.3), jnp.arctan(x), x.astype("int32"),
        ),
        (X,),
    ),
    "numbers near zero": (lambda x: (jnp.log1p(x * 1e-6), jnp.expm1(x * 1e-6), jnp.log1p(jnp.abs(x)), jnp.expm1(x)), (X,)),
    "integers": (lambda n: (n // 3, lax.div(n, np.int32(3)), n % 3, n & 5, n | 8, n ^ 3, ~n, n.astype("uint32") << 2), (N,)),
    "views": (
        lambda x: (x.T, x[1:3, ::2], x[:, ::-1], x.reshape(3, 8), jnp.pad(x, 1), jnp.concatenate([x, x * 2]),
            x[None] + jnp.zeros((2, 1, 6))),
        (X,),
    ),
    "holes": (lambda x: lax.pad(x, np.float32(9), [(1, -1, 1), (-1, -1, 2)]), (X,)),
    "positions": (lambda x, n: (jnp.arange(6) + n, jnp.argmax(x, 1), jnp.argmin(n, 0), jnp.tril(x)), (X, N)),
    "rows": (lambda x, n: (x[n[:, 0] % 4], jnp.take(x, n[0] % 6, axis=1), x[n[0], n[1]], jnp.take(x, n, axis=0)), (X, N)),
    "scatters": (lambda x, n: (x.at[n[:, 0]].add(x), x.at[:, n[0, 0] % 6].set(1.0), x.at[n[0] % 4].max(0.5)), (X, N)),
    "slices": (lambda x, n: lax.dynamic_slice(x, (n[0, 0], 2), (2, 3)), (X, N)),
    "updates": (lambda x, n: lax.dynamic_update_slice(x, x[:2, :2], (n[1, 1], 9)), (X, N)),
    "sums": (lambda x: (x.sum(), x.max(0), x.min(1), x.prod(1), jnp.all(x > 0, 1), jnp.any(x > 1), jnp.cumsum(x, 1)), (X,)),
    "orders": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), *lax.top_k(x, 2)), (X,)),
    "products": (
        lambda x: (jnp.einsum("ij,kj->ki", x, x), x[0] @ x[1], jnp.outer(x[0], x[1]), jnp.einsum("ij,ik->ijk", x, x)),
        (X,),
    ),
    "int8 products": (lambda n: lax.dot(n.astype("int8"), n.astype("int8").T, preferred_element_type=jnp.int32), (N,)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_primitives_leave_as_onnx(name):
    fn, specs = WRITTEN[name]
    program = eqsat.optimize(fn, *specs, numerics="exact", time_limit=5)
    flat = drawn(program)
    assert_close(run_onnx(program, flat), program.run(*map(jnp.asarray, flat)))


def test_what_is_written_keeps_the_bits_of_the_exact_tier():
    """Done one by one, as NumPy does: no product fused with a sum, nothing cancelled, NaN in the maximum of its row."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 48)).astype(np.float32) for _ in range(2))
    x[3, 5], y[7, 1], x[9, 0] = np.nan, np.nan, np.inf
    program = eqsat.optimize(
        lambda x, y: (x * y + x, (x + 1e8) - 1e8, jnp.maximum(x, y), x.max(1), x / y * y), x, y, numerics="exact", time_limit=2
    )
    with np.errstate(invalid="ignore"):
        wanted = (x * y + x, (x + np.float32(1e8)) - np.float32(1e8), np.maximum(x, y), x.max(1), x / y * y)
    written = [program.run(x, y), Graph.from_stablehlo(program.to_stablehlo())(x, y)]
    reference = pytest.importorskip("onnx.reference")
    model = program.to_onnx()
    written.append(
        reference.ReferenceEvaluator(model).run(None, dict(zip([i.name for i in model.graph.input], (x, y), strict=True)))
    )
    for got in written:
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "strided": {"window_strides": (2, 1), "padding": "SAME"},
    "dilated": {"window_strides": (1, 1), "padding": [(1, 0), (0, 2)], "rhs_dilation": (2, 1)},
    "transposed": {"window_strides": (1, 1), "padding": [(-1, 2), (1, 1)], "lhs_dilation": (2, 2)},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_leave_as_onnx(options):
    kernel = jax.ShapeDtypeStruct((5, 3, 3, 2), "float32")
    program = eqsat.optimize(lambda x, k: jax.nn.relu(lax.conv_general_dilated(x, k, **options)), IMAGE, kernel)
    flat = drawn(program)
    assert_close(run_onnx(program, flat), program.run(*map(jnp.asarray, flat)))


def pools(x):
    pool = lambda *options: lax.reduce_window(x, *options)  # noqa: E731
    return (
        pool(-jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 1), "SAME"),
        pool(0.0, lax.add, (1, 1, 3, 2), (1, 1, 1, 2), [(0, 0), (0, 0), (1, 1), (0, 1)]),
        pool(-jnp.inf, lax.max, (1, 2, 1, 1), (1, 1, 1, 1), "VALID"),
        pool(0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", None, (1, 1, 2, 1)),
    )


AS_WRITTEN = {"pools": (pools, (IMAGE,)), "parts": (lambda x: jnp.split(x, [1, 4], axis=1), (X,)), **WRITTEN}


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_graphs_leave_as_they_were_written(name):
    pytest.importorskip("onnx")
    from eqsat.writers.onnx import model_of_graph

    fn, specs = AS_WRITTEN[name]
    graph = Graph.from_jax(fn, *specs)
    flat = [np.asarray(x) for x in examples.draw(specs)]
    model = model_of_graph(graph)
    assert [v.name for v in model.graph.input] == [graph.name_of[v] for v in graph.inputs]
    assert_close(run_model(model, flat), graph.evaluate(*flat))


def test_everything_that_onnx_lacks_is_named_at_once():
    def fn(x):
        return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * 2, x), lax.lgamma(x)

    program = eqsat.optimize(fn, X)
    with pytest.raises(
        ValueError, match=r"a program that ONNX can hold required, got the operation (scan|while|lgamma).*; the operation"
    ):
        program.to_onnx()


def test_a_large_fill_is_no_large_file():  # P3-17
    program = eqsat.optimize(lambda x: x + jnp.zeros((1024, 1024)) + jnp.arange(1024.0), jax.ShapeDtypeStruct((), "float32"))
    assert program.to_onnx().ByteSize() < 10_000
    assert len(program.to_stablehlo(binary=True)) < 10_000


def test_a_large_model_is_returned_with_the_constants_that_its_file_has_beside_it(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    from eqsat.writers import onnx

    monkeypatch.setattr(onnx, "LARGE_BYTES", 0)
    w = np.arange(1024, dtype=np.float32).reshape(32, 32)
    program = eqsat.optimize(lambda x: x @ w, jax.ShapeDtypeStruct((2, 32), "float32"))
    assert program.to_onnx(tmp_path / "model.onnx") == program.to_onnx()
    assert (tmp_path / "model.onnx.data").stat().st_size >= w.nbytes
    x = jnp.ones((2, 32))
    (read,) = Graph.from_onnx(tmp_path / "model.onnx")(x).values()
    np.testing.assert_array_equal(read, program(x))
