"""Split reductions: two kernels make what one made, at awkward sizes, in every interpreter; chosen where they pay."""

from __future__ import annotations

from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered import BF16, F32, Array, Meaning, at, axes_of, cumulated, exponentials, f32, op, random, stored

import eqsat
from eqsat.backends import pallas, triton
from eqsat.backends.jax.emit import emit_kernel
from eqsat.backends.triton.interpret import run as run_in_interpreter
from eqsat.cost import price
from eqsat.definitions import computed_inside
from eqsat.devices import device
from eqsat.evaluate import evaluate
from eqsat.index import Axis, Index
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Stored, Tensor, const, load, online, pos, reduce
from eqsat.parts import Parts
from eqsat.schedule import schedules
from eqsat.split import split, splittable
from eqsat.tile import TileProgram
from eqsat.work import Work
from examples import blocks

N = 150  # no multiple of a chunk


def run_tiles(program: TileProgram, arrays: list[Array]) -> list[Array]:
    return interpret(program, arrays)


def run_triton(program: TileProgram, arrays: list[Array]) -> list[Array]:
    outputs, report = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
    assert report.ok, report
    return outputs


def run_pallas(program: TileProgram, arrays: list[Array]) -> list[Array]:
    return pallas.run(pallas.emit(program), arrays, interpret=True)


RUNNERS = {"tiles": run_tiles, "triton": run_triton, "pallas": run_pallas}


def made(kernel: Kernel, arrays: dict[Tensor, Array], run: Any) -> list[Array]:
    _, plan = price(Work(kernel), schedules(Work(kernel)), device("h100"))
    assert plan is not None
    program = lower(kernel, plan)
    return run(program, [arrays[t] for t in program.inputs])


def in_stages(kernel: Kernel, axis: Axis, length: int) -> list[Kernel]:
    """The kernels that splitting makes, until nothing over the axis is left."""
    parts, found = Parts(f"part{n}" for n in count()), []
    while (cut := split(kernel, axis, length, parts)) is not None:
        found.append(Kernel(f"{kernel.name}_parts{len(found)}", cut.parts, kernel.exact))
        outputs = (Stored(o.name, o.shape, o.dtype, t, o.axes) for o, t in zip(kernel.outputs, cut.terms, strict=True))
        kernel = Kernel(kernel.name, tuple(outputs), kernel.exact)
    return [*found, kernel]


def rows(term: Any, dtype: str = F32) -> tuple[Kernel, Axis]:
    """A kernel with one value a row, made by `term` of an element."""
    x0, r = axes_of(5)[0], Axis("r0", N)
    return Kernel("rows", (stored("y", (5,), term(r, at(Tensor("x", (5, N), dtype), x0, r))),)), r


def softmax(one_pass: bool) -> tuple[Kernel, Axis]:
    x0, x1 = axes_of(3, N)
    x, r = Tensor("x", (3, N), F32), Axis("r0", N)
    largest = reduce("max", r, at(x, x0, r))
    total = online(r, at(x, x0, r), const(1, F32), F32)
    if not one_pass:
        total = reduce("sum", r, op("exp", op("sub", at(x, x0, r), largest)))
    return Kernel("softmax", (stored("y", (3, N), op("div", op("exp", op("sub", at(x, x0, x1), largest)), total)),)), r


def product(dtype: str) -> tuple[Kernel, Axis]:
    x0, x1 = axes_of(17, 20)
    a, b, r = Tensor("a", (17, N), dtype), Tensor("b", (N, 20), dtype), Axis("r0", N)
    return Kernel("product", (stored("y", (17, 20), reduce("sum", r, op("mul", f32(at(a, x0, r)), f32(at(b, r, x1))))),)), r


def attention() -> tuple[Kernel, Axis]:
    """Keys beyond the query's own position are masked: whole chunks are, for the first queries."""
    x0, x1 = axes_of(20, 16)
    q, k, v = Tensor("q", (20, 16), F32), Tensor("k", (N, 16), F32), Tensor("v", (N, 16), F32)
    d, r = Axis("r0", 16), Axis("r1", N)
    scores = reduce("sum", d, op("mul", at(q, x0, d), at(k, r, d)))
    seen = op("ge", pos(Index.of(x0) * 7, "int32"), pos(Index.of(r), "int32"))
    s = op("where", seen, scores, float("-inf"))
    weighted = op("div", online(r, s, at(v, r, x1), F32), online(r, s, const(1, F32), F32))
    return Kernel("attention", (stored("y", (20, 16), weighted),)), r


def running(name: str, dtype: str = F32, reverse: bool = False, columns: bool = False) -> tuple[Kernel, Axis]:
    """A running fold of negated elements, beside the element itself; along rows or columns."""
    x0, x1 = axes_of(N, 3) if columns else axes_of(3, N)
    x, r = Tensor("x", (x0.extent, x1.extent), dtype), Axis("r0", N)
    along, element = (x0, at(x, r, x1)) if columns else (x1, at(x, x0, r))
    term = op("max" if dtype == BF16 else "sub", cumulated(name, along, op("neg", element), reverse), at(x, x0, x1))
    return Kernel("running", (stored("y", x.shape, term),)), r


KERNELS = {
    "sum of squares": rows(lambda r, x: reduce("sum", r, op("mul", x, x))),
    "sum of what a mask hides": rows(lambda r, x: reduce("sum", r, op("exp", x))),
    "integers": rows(lambda r, x: op("add", reduce("sum", r, x), reduce("min", r, x)), "int32"),
    "bits": rows(lambda r, x: reduce("and", r, x), "uint32"),
    "narrow maximum": rows(lambda r, x: op("max", op("neg", reduce("max", r, x)), reduce("min", r, x)), BF16),
    "variance": rows(
        lambda r, x: reduce("sum", r, op("mul", *2 * [op("sub", x, op("mul", reduce("sum", r, x), 1 / N))])),
    ),
    "softmax in two passes": softmax(False),
    "softmax in one pass": softmax(True),
    "product": product(F32),
    "narrow product": product(BF16),
    "masked attention": attention(),
    "places of maxima": rows(lambda r, x: online(r, x, pos(Index.of(r), "int32"), F32, "argmax")),
    "places of minima": rows(lambda r, x: online(r, x, pos(Index.of(r), "int32"), "int32", "argmin"), "int32"),
    "running sums": running("sum"),
    "running sums, backwards": running("sum", reverse=True),
    "running sums of columns": running("sum", columns=True),
    "running products of columns, backwards": running("prod", "int32", reverse=True, columns=True),
    "running maxima": running("max"),
    "narrow running minima": running("min", BF16, reverse=True),
    "running log-sum-exps": (exponentials(N, reverse=False, weighted=False), Axis("r0", N)),
    "running means with weights, backwards": (exponentials(N, reverse=True, weighted=True), Axis("r0", N)),
}


@pytest.mark.parametrize("length", [16, 64, 149])
@pytest.mark.parametrize("name", KERNELS)
def test_two_kernels_make_what_one_made(name: str, length: int) -> None:
    kernel, axis = KERNELS[name]
    arrays = {t: random(t) for t in kernel.inputs}
    runner = RUNNERS["tiles" if length != 64 else "triton"]
    wanted = Meaning(kernel, arrays).output(kernel.outputs[0])
    for stage in (stages := in_stages(kernel, axis, length)):
        arrays |= dict(zip(stage.outputs, made(stage, arrays, runner), strict=True))
    assert len(stages) >= 2 and not splittable(stages[-1]).keys() & {axis}
    result = arrays[stages[-1].outputs[0]].astype(np.float64)
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["softmax in one pass", "masked attention", "running sums, backwards", "running maxima"])
def test_pallas_runs_them_too(name: str) -> None:
    kernel, axis = KERNELS[name]
    arrays = {t: random(t) for t in kernel.inputs}
    wanted = Meaning(kernel, arrays).output(kernel.outputs[0])
    for stage in in_stages(kernel, axis, 48):
        arrays |= dict(zip(stage.outputs, map(np.asarray, made(stage, arrays, run_pallas)), strict=True))
    result = arrays[stage.outputs[0]].astype(np.float64)
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


def test_squared_deviations_are_split_where_chunks_are_equal() -> None:
    kernel, axis = rows(lambda r, x: online(r, x, const(1, F32), F32, "deviations"))
    assert split(kernel, axis, 64, Parts(iter(()))) is None
    arrays = {t: random(t) + 1e3 for t in kernel.inputs}
    wanted = Meaning(kernel, arrays).output(kernel.outputs[0])
    for stage in (stages := in_stages(kernel, axis, 50)):
        arrays |= dict(zip(stage.outputs, made(stage, arrays, run_tiles), strict=True))
    assert len(stages) >= 2
    np.testing.assert_allclose(arrays[stages[-1].outputs[0]], wanted, rtol=2e-5)


def test_rows_that_are_masked_altogether_stay_undefined() -> None:
    kernel, axis = attention()
    arrays = {t: random(t) for t in kernel.inputs}
    next(a for t, a in arrays.items() if t.name == "k")[:] = -np.inf  # scores of every sign of infinity, and NaN
    (whole,) = made(kernel, arrays, run_tiles)
    for stage in in_stages(kernel, axis, 16):
        arrays |= dict(zip(stage.outputs, made(stage, arrays, run_tiles), strict=True))
    np.testing.assert_array_equal(np.isnan(arrays[stage.outputs[0]]), np.isnan(whole))


def test_positions_beyond_32_bits_are_split_exactly_or_not_at_all() -> None:
    r = Axis("r0", (1 << 31) + (1 << 20))
    kernel = Kernel("long", (stored("y", (), reduce("max", r, at(Tensor("x", (r.extent,), F32), r)), []),))
    assert split(kernel, r, 5 << 19, Parts(iter("ab"))) is None
    cut = split(kernel, r, 1 << 20, Parts(iter("ab")))
    assert cut is not None
    stage = Kernel("parts", cut.parts)
    _, plan = price(Work(stage), schedules(Work(stage)), device("h100"))
    assert plan is not None and "tl.int64" in triton.emit(lower(stage, plan))


def shape(*extents: int, dtype: str = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def decode(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hgd,hsd->hgs", q, k, preferred_element_type=jnp.float32) * 0.125
    return jnp.einsum("hgs,hsd->hgd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def norm(x: Any, w: Any) -> Any:
    y = x @ w
    return y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)


def test_infinities_stay_in_their_chunks_and_those_behind() -> None:
    kernel, axis = KERNELS["running log-sum-exps"]
    arrays = {t: random(t) * 100 for t in kernel.inputs}
    (x,) = arrays.values()
    x[0, :70], x[1, 75], x[2, 80] = -np.inf, np.inf, np.nan
    wanted = evaluate(kernel.outputs[0].term, kernel.outputs[0].axes, arrays, np, widen=True)
    for stage in in_stages(kernel, axis, 64):
        arrays |= dict(zip(stage.outputs, made(stage, arrays, run_tiles), strict=True))
    np.testing.assert_allclose(arrays[stage.outputs[0]], wanted, rtol=2e-5)


def test_arrays_run_a_split_scan_as_chunks_of_scans() -> None:
    for name in (n for n in KERNELS if "running" in n and "weights" not in n):
        kernel, axis = KERNELS[name]
        arrays = {t: random(t) for t in kernel.inputs}
        wanted = Meaning(kernel, arrays).output(kernel.outputs[0])
        for length in (50, 64):
            for stage in (stages := in_stages(kernel, axis, length)):
                arrays |= {o: evaluate(o.term, o.axes, arrays, np).reshape(o.shape) for o in stage.outputs}
            result = np.asarray(arrays[stage.outputs[0]]).astype(np.float64)
            np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())
            assert len(stages) == 2 and ("lax.cum" in emit_kernel(stage) or "lax.associative_scan" in emit_kernel(stage))


def test_no_axis_is_cut_in_two_ways() -> None:
    """Rows of 37 and chunks of 64 have no digits in common: evaluated element by element it would be quadratic."""
    (x0,) = axes_of(37 * 37)
    x, r = Tensor("x", (37, 37), F32), Axis("r0", 37 * 37)
    term = cumulated("sum", x0, at(x, Index.of(r) // 37, Index.of(r) % 37))
    kernel = Kernel("flat", (stored("y", (37 * 37,), term),))
    assert split(kernel, r, 64, Parts(iter("ab"))) is not None
    beside = op("add", term, at(x, Index.of(x0) // 37, Index.of(x0) % 37))
    assert split(Kernel("beside", (stored("y", (37 * 37,), beside),)), r, 64, Parts(iter("ab"))) is None


LONG = {  # function, arguments, launches, bytes beyond inputs, outputs and further passes over the input
    "sum": (lambda x: jnp.sum(x * x), (shape(1 << 22),), 2, 1),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), (shape(8, 262144),), 2, 2),
    "running sum": (lambda x: jnp.cumsum(x * 2) + 1, (shape(2048, 4096),), 2, 2),
    "running maximum": (lambda x: jax.lax.cummax(x, 0, reverse=True), (shape(1000003, 2),), 2, 2),
    "running log-sum-exp": (lambda x: jax.lax.cumlogsumexp(x, 0), (shape(1 << 22),), 2, 2),
    "running sum of softmax": (lambda x: jnp.cumsum(jax.nn.softmax(x, -1), -1), (shape(2, 1 << 20),), 3, 3),
    "gradient of running sums": (jax.grad(lambda x: (jnp.cumsum(x) ** 2).sum()), (shape(1 << 22),), 3, 3),
    "product": (lambda x, w: jax.nn.relu(x @ w), (shape(16, 16384, dtype=BF16), shape(16384, 256, dtype=BF16)), 2, 1),
    "norm of a product": (norm, (shape(16, 16384), shape(16384, 256)), 2, 1),
    "products of one input": (lambda x, *ws: [x @ w for w in ws], (shape(16, 4096), *3 * [shape(4096, 128)]), 2, 1),
    "decoding": (decode, (shape(8, 4, 128, dtype=BF16), *2 * [shape(8, 32768, 128, dtype=BF16)]), 2, 1),
}


@pytest.mark.parametrize("name", LONG)
def test_few_rows_are_split_over_the_device(name: str) -> None:
    fn, args, launches, passes = LONG[name]
    program = eqsat.optimize(fn, *args)
    assert len(program.launches) == launches
    assert any("chunk" in {a.name for a in p.kernel.axes} for p in program.launches)
    given = sum(a.size * a.dtype.itemsize for a in args)
    made = sum(t.nbytes for t in program.outputs)
    assert program.cost.nbytes <= 1.15 * (passes * given + made)


def test_what_combines_parts_inside_another_kernel_is_right() -> None:
    program = eqsat.optimize(norm, shape(5, 1024), shape(1024, 50), numerics="exact", cache=False)
    assert len(program.launches) == 2
    combining = program.launches[1]
    arrays = {t: random(t) for t in combining.kernel.inputs}
    wanted = Meaning(combining.kernel, arrays).output(combining.kernel.outputs[0])
    for run in (run_tiles, run_triton):
        np.testing.assert_allclose(made(combining.kernel, arrays, run)[0], wanted, rtol=1e-5, atol=1e-6)


def test_what_is_small_does_not_decide_along_which_axis_a_matrix_is_read() -> None:
    (x0,), r = axes_of(64), Axis("r0", 512)
    x, v = Tensor("x", (512, 64), F32), Tensor("v", (512,), F32)
    columns = Kernel("columns", (stored("y", (64,), reduce("sum", r, op("mul", at(x, r, x0), at(v, r)))),))
    assert Work(columns).contiguous == x0
    across = Tensor("across", (64, 512), F32)
    rows = Kernel("rows", (stored("y", (64,), reduce("sum", r, op("mul", at(across, x0, r), at(v, r)))),))
    assert Work(rows).contiguous == r


def test_many_rows_are_not() -> None:
    program = eqsat.optimize(lambda x: jax.nn.softmax(x, axis=-1), shape(8192, 4096))
    assert len(program.launches) == 1


# --- labels --------------------------------------------------------------------------------------------------------------


def test_a_gathered_element_is_computed_where_its_dimension_is_traversed() -> None:
    x0, x1 = axes_of(9, 37)
    k, r = Axis("r0", 8), Axis("r1", 37)
    x, w, labels = Tensor("x", (9, 8), F32), Tensor("w", (8, 37), F32), Tensor("labels", (9,), "int32")
    logits = stored("logits", (9, 37), reduce("sum", k, op("mul", at(x, x0, k), at(w, k, x1))))
    label = op("max", op("min", at(labels, x0), 36), 0)
    taken = load(logits, (Index.of(x0), Index.dynamic(0, 0, 36)), (label,))
    loss = op("sub", taken, reduce("max", r, at(logits, x0, r)))
    inside = computed_inside(loss, logits, {})
    assert inside is not None and all(t.tensor is not logits for t in inside.walk() if t.head == "load")
    arrays = {t: random(t) for t in (x, w, labels)}
    wanted, got = (evaluate(t, (x0,), arrays, np, widen=True) for t in (loss, inside))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    kernel = Kernel("loss", (stored("y", (9,), inside),))
    np.testing.assert_allclose(made(kernel, arrays, run_tiles)[0], wanted, rtol=1e-5)
    shifted = load(logits, (Index.of(x0), Index.dynamic(0, 0, 35) + 1), (label,))
    assert computed_inside(shifted, logits, {}) is None


def test_cross_entropy_stores_no_logits() -> None:
    fn, args = blocks.PROGRAMS["cross entropy 4096x4096x32000"]
    program = eqsat.optimize(fn, *args)
    assert len(program.launches) <= 3 and program.cost.nbytes <= 330e6
    assert max(t.nbytes for p in program.launches for t in p.outputs) < 1e6
