"""Cumulative operations: masked folds that lowering and evaluation see as scans."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreters import INTERPRETERS
from lowered import BF16, F32, at, axes_of, check, cumulated, exponentials, op, random, schedule, statements, stored

import eqsat
from eqsat.backends.jax.emit import emit_kernel
from eqsat.evaluate import evaluate
from eqsat.index import Axis, Index
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor, Term, cast, const, pos, reduce, scalar
from eqsat.scans import SCANS, running, scanned
from eqsat.tile import Loop, Reduce, Scan
from eqsat.work import Work

SIZES = [1, 2, 15, 16, 17, 40]
CUMULATIVE = {"sum": jax.lax.cumsum, "prod": jax.lax.cumprod, "max": jax.lax.cummax, "min": jax.lax.cummin}


def rows(name: str, n: int, dtype: str = F32, reverse: bool = False) -> Kernel:
    x, (i, j) = Tensor("x", (3, n), dtype), axes_of(3, n)
    term = cumulated(name, j, at(x, i, Axis("r0", n)), reverse) if n > 1 else at(x, i, 0)
    return Kernel("rows", (stored("y", (3, n), term),))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("plan", ["resident", "loop 16", "loop 4", "loop 1"])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_in_one_tile_and_from_tile_to_tile(n: int, plan: str, reverse: bool) -> None:
    for name, dtype in zip(SCANS, [F32, "int32", BF16, "int8"], strict=True):
        kernel = rows(name, n, dtype, reverse)
        program = check(kernel, schedule(kernel, x0=2, x1=plan))
        assert n == 1 or plan == "loop 1" or statements(program, Scan)
        assert all(loop.backward == reverse for loop in statements(program, Loop))


def test_nan_stays_in_running_maxima() -> None:
    kernel = rows("max", 20)
    x = np.arange(60, dtype=F32).reshape(3, 20)
    x[1, 7] = np.nan
    for plan in ("resident", "loop 4"):
        check(kernel, schedule(kernel, x0=1, x1=plan), {kernel.inputs[0]: x})


def test_what_is_a_running_fold() -> None:
    x, (i, j), r = Tensor("x", (8, 8), F32), axes_of(8, 8), Axis("r0", 8)
    here, there, element = pos(Index.of(r), "int32"), pos(Index.of(j), "int32"), at(x, i, r)

    def folded(mask: Term, then: Term, otherwise: float = 0.0) -> Term:
        return reduce("sum", r, scalar("where", mask, then, const(otherwise, F32)))

    after = op("add", there, 1)
    for mask in (op("le", here, there), op("ge", there, here), op("lt", here, after), op("gt", after, here)):
        found = running(folded(mask, element))
        assert found is not None and (found.axis, found.reverse, found.arg) == (j, False, element)
    backward = running(folded(op("le", there, here), element))
    assert backward is not None and backward.reverse
    assert running(folded(op("lt", here, there), element)) is None  # without one's own position
    assert running(folded(op("le", here, there), element, 1.0)) is None  # another value than 0 beyond the mask
    assert running(folded(op("le", here, there), op("mul", element, at(x, i, j)))) is None  # depends on the position
    assert running(folded(op("le", here, pos(Index.of(j) + 1, "int32")), element)) is None
    assert running(folded(op("le", here, pos(Index.of(Axis("x1", 9)), "int32")), element)) is None  # other positions


def test_a_scan_is_work_of_one_pass() -> None:
    work = Work(rows("sum", 4096))
    assert work.bound_axes == () and work.scans == {Axis("x1", 4096): False}
    assert work.flops < 20 * 3 * 4096


def test_reductions_of_scans_and_scans_of_reductions() -> None:
    x, (i, j) = Tensor("x", (3, 37), F32), axes_of(3, 37)
    r, s = Axis("r0", 37), Axis("r1", 37)
    shifted = op("sub", at(x, i, r), reduce("max", s, at(x, i, s)))
    both = cumulated("sum", j, op("exp", shifted))
    kernel = Kernel("both", (stored("y", (3, 37), both),))
    for plan in ("resident", "loop 16"):
        check(kernel, schedule(kernel, x0=2, x1=plan, r1=plan))
    of_scan = reduce("sum", s, op("mul", cumulated("sum", s, at(x, i, r)), at(x, i, s)))
    kernel = Kernel("of_scan", (stored("y", (3,), of_scan),))
    for plan in ("resident", "loop 16"):
        program = check(kernel, schedule(kernel, x0=2, r1=plan))
        assert statements(program, Scan) and statements(program, Reduce)


def test_two_directions_need_a_whole_row() -> None:
    x, (i, j) = Tensor("x", (3, 37), F32), axes_of(3, 37)
    element = at(x, i, Axis("r0", 37))
    term = op("add", cumulated("sum", j, element), cumulated("sum", j, element, reverse=True))
    kernel = Kernel("both", (stored("y", (3, 37), term),))
    check(kernel, schedule(kernel, x0=2, x1="resident"))
    with pytest.raises(ValueError, match="one loop scans in one direction"):
        lower(kernel, schedule(kernel, x0=2, x1="loop 16"))
    with pytest.raises(ValueError, match="a scan is resident or a loop, got grid"):
        lower(kernel, schedule(kernel, x0=2, x1=16))


def test_narrow_sums_are_held_in_float32() -> None:
    x, (i, j) = Tensor("x", (2, 600), BF16), axes_of(2, 600)
    term = cast(BF16, cumulated("sum", j, cast(F32, at(x, i, Axis("r0", 600)))))
    kernel = Kernel("narrow", (stored("y", (2, 600), term),))
    check(kernel, schedule(kernel, x1="loop 64"), {x: np.ones((2, 600), BF16)}, tolerance=4e-3)


# --- running sums of exponentials ---


@pytest.mark.parametrize("plan", ["resident", "loop 16", "loop 4", "loop 1"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_of_exponentials(plan: str, weighted: bool, reverse: bool) -> None:
    for n in (2, 17, 40):
        kernel = exponentials(n, reverse, weighted)
        program = lower(kernel, schedule(kernel, x0=2, x1=plan))
        assert not statements(program, Reduce) or plan != "resident"
        assert plan == "loop 1" or sum(s.scores is not None for s in statements(program, Scan)) == 1 + weighted
        arrays = {t: random(t) for t in program.inputs}
        x = arrays[next(t for t in program.inputs if t.name == "x")]
        x *= 100  # exponentials would overflow
        x[0, : n // 2] = -np.inf
        x[1, n // 2], x[2, n // 3] = np.inf, np.nan
        wanted = evaluate(kernel.outputs[0].term, kernel.outputs[0].axes, arrays, widen=True)
        for name, run in INTERPRETERS.items() if (plan, n, reverse) == ("loop 4", 17, True) else [("tiles", interpret)]:
            (got,) = run(program, [arrays[t] for t in program.inputs])
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-5, err_msg=name)


# --- whole programs ---

X = jax.ShapeDtypeStruct((5, 37), jnp.float32)


def optimized(fn: Any, *args: Any) -> eqsat.Program:
    program = eqsat.optimize(fn, *args)
    program.validate(level="kernels")
    return program


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize(("axis", "reverse"), [(1, False), (0, True)])
def test_cumulative_operations_are_kernels(name: str, axis: int, reverse: bool) -> None:
    program = optimized(lambda x: 2 * CUMULATIVE[name](jnp.sin(x), axis, reverse=reverse) + x, X)
    (planned,) = program.kernels
    assert scanned(planned.kernel) is not planned.kernel


def test_a_scan_of_a_softmax_is_one_kernel() -> None:
    assert len(optimized(lambda x: jnp.cumsum(jax.nn.softmax(x, -1), -1), X).kernels) == 1


def test_the_gradient_of_a_cumulative_sum_is_one_too() -> None:
    program = optimized(jax.grad(lambda x: (jnp.cumsum(x, 1) ** 2).sum()), X)
    assert not any(step for step in program.steps if getattr(step, "opaque", False)) and len(program.kernels) <= 2


@pytest.mark.parametrize(("axis", "reverse"), [(1, False), (0, True)])
def test_a_running_log_sum_exp_is_one_kernel(axis: int, reverse: bool) -> None:
    def function(x: jax.Array) -> jax.Array:
        return 2 * jax.lax.cumlogsumexp(x, axis, reverse=reverse) + x

    program = optimized(function, X)
    (planned,) = program.kernels
    assert scanned(planned.kernel) is not planned.kernel
    x = np.random.default_rng(0).standard_normal(X.shape).astype(F32) * 1e4
    x[0], x[1, 3], x[2, :3], x[3, 1] = -np.inf, np.inf, -np.inf, np.nan
    (got,) = program.run(jnp.asarray(x))
    np.testing.assert_allclose(got, function(jnp.asarray(x)), rtol=1e-6)


def test_arrays_run_a_running_log_sum_exp_as_a_scan() -> None:
    (planned,) = eqsat.optimize(lambda x: jax.lax.cumlogsumexp(x, 1), jax.ShapeDtypeStruct((300, 4096), jnp.float32)).kernels
    assert "lax.associative_scan" in emit_kernel(planned.kernel)


def test_a_running_softmax_takes_each_key_once() -> None:
    def weighted(k: jax.Array, v: jax.Array) -> jax.Array:  # as RWKV's channels are mixed over time
        seen = jnp.tril(jnp.ones((len(k), len(k)), bool))[:, :, None]
        return (jax.nn.softmax(jnp.where(seen, k, -jnp.inf), 1) * v).sum(1)

    (planned,) = eqsat.optimize(weighted, *2 * [jax.ShapeDtypeStruct((50, 6), jnp.float32)]).kernels
    assert sum(s.scores is not None for s in statements(lower(planned.kernel, planned.schedule), Scan)) == 2


def test_a_causal_mean_is_a_scan() -> None:
    def causal_mean(x: jax.Array) -> jax.Array:
        weights = jnp.tril(jnp.ones((37, 37), x.dtype))
        return jnp.where(weights[:, :, None] > 0, x[None], 0).sum(1) / weights.sum(1)[:, None]

    program = optimized(causal_mean, jax.ShapeDtypeStruct((37, 16), jnp.float32))
    assert any(Work(p.kernel).scans for p in program.kernels)


def test_long_rows_are_read_and_written_once() -> None:
    x = jax.ShapeDtypeStruct((1024, 8192), jnp.float32)
    (planned,) = eqsat.optimize(lambda x: jnp.cumsum(x * 2, -1) + 1, x).kernels
    assert planned.cost.nbytes == 2 * 1024 * 8192 * 4
    program = lower(planned.kernel, planned.schedule)
    assert len(statements(program, Scan)) == 1
    (longer,) = eqsat.optimize(lambda x: jnp.cumsum(x, -1), jax.ShapeDtypeStruct((200, 100_000), jnp.float32)).kernels
    assert longer.cost.nbytes == 2 * 200 * 100_000 * 4 and [t.role for t in longer.schedule.axes] == ["grid", "loop"]


def test_a_place_is_found_in_a_running_fold_of_what_loads_nothing() -> None:
    """The fold is put in under the binder of the place, whose level was chosen when the fold was a load."""
    late = jax.lax.broadcasted_iota(jnp.int32, (5, 4), 0) > 2

    def first(x: jax.Array) -> jax.Array:
        return jnp.argmax(jax.lax.cummax(jnp.where(late, 1.0, 0.0), 0), 0) + x

    program = optimized(first, jax.ShapeDtypeStruct((4,), jnp.float32))
    np.testing.assert_array_equal(program.run(jnp.ones(4, jnp.float32))[0], 4)
