"""Loops leave out the tiles that a mask hides, in every interpreter; a mask that may hide nothing leaves out nothing."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered import F32, at, axes_of, check, op, random, schedule, statements, stored

import eqsat
from eqsat.backends import pallas, triton
from eqsat.backends.triton.interpret import run as run_in_interpreter
from eqsat.index import Axis, Index
from eqsat.interpret import interpret
from eqsat.limits import limits_of
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor, Term, cast, const, online, pos, reduce
from eqsat.tile import Compute, Loop
from eqsat.work import Work

M, N = 45, 150
R, X0, X1 = Axis("r0", N), *axes_of(M, 16)


def i32(index: Index | Axis) -> Term:
    return pos(Index.of(index), "int32")


MASKS: dict[str, tuple[Term, str | None, str | None]] = {  # and the limits of r
    "causal": (op("ge", i32(X0), i32(R)), None, "x0+1"),
    "causal with keys before": (op("le", i32(R), op("add", i32(X0), 105)), None, "x0+106"),
    "strict": (op("lt", i32(R), i32(X0)), None, "x0"),
    "anti-causal": (op("not", op("gt", i32(X0), i32(R))), "x0", None),
    "window": (op("and", op("ge", i32(X0), i32(R)), op("lt", op("sub", i32(X0), i32(R)), 20)), "x0-19", "x0+1"),
    "one place": (op("eq", i32(Index.of(X0) * 3), i32(R)), "3*x0", "3*x0+1"),
    "one of two": (op("or", op("ge", i32(X0), i32(R)), op("gt", i32(R), const(100, "int32"))), None, None),
    "every other": (op("ge", i32(X0), i32(Index.of(R) * 2)), None, None),
}


def attention(mask: Term, hidden: float = -inf) -> Kernel:
    s, v = Tensor("s", (M, N), F32), Tensor("v", (N, 16), F32)
    scores = op("where", mask, at(s, X0, R), hidden)
    weighted = op("div", online(R, scores, at(v, R, X1), F32), online(R, scores, const(1, F32), F32))
    return Kernel("attention", (stored("y", (M, 16), weighted),))


@pytest.mark.parametrize("name", MASKS)
def test_limits_follow_from_the_comparison(name: str) -> None:
    mask, low, high = MASKS[name]
    found = limits_of([reduce("sum", R, op("where", mask, at(Tensor("s", (M, N), F32), X0, R), 0.0))])
    assert (list(map(str, found.low)), list(map(str, found.high))) == ([low] if low else [], [high] if high else [])


@pytest.mark.parametrize("name", MASKS)
def test_masked_loops_agree_everywhere(name: str) -> None:
    mask, low, high = MASKS[name]
    kernel = attention(mask)
    program = check(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16"))
    loops = statements(program, Loop)
    assert (loops[0].low is not None, loops[-1].high is not None) == (low is not None, high is not None)
    agree_with_one_tile(kernel, program, atol=1e-6)


def agree_with_one_tile(kernel: Kernel, program: Any, atol: float) -> None:
    """What both printers wrote, in the checked interpreters, against the kernel without any loop."""
    arrays = [random(t) for t in program.inputs]
    wanted = run_tiles_of(kernel, arrays)
    outputs, report = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
    assert report is not None and report.ok
    for result in (outputs[0], pallas.run(pallas.emit(program), arrays, interpret=True)[0]):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=atol)


def run_tiles_of(kernel: Kernel, arrays: list[Any]) -> Any:
    """Without any loop: one tile of all keys."""
    return interpret(lower(kernel, schedule(kernel, x0=1, x1=16, r0="resident")), arrays)[0]


LENGTHS: dict[str, tuple[str, str]] = {  # comparisons of r with a loaded number, and of that number with r
    "first": ("lt", "gt"), "up to": ("le", "ge"), "last": ("ge", "le"), "behind": ("gt", "lt"),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_loops_begin_and_end_where_loaded_numbers_say(name: str, turned: bool) -> None:
    """Of two rows to a program the one with more to add says."""
    batch, x, n = Axis("x0", 6), Tensor("x", (6, N), F32), Tensor("n", (6,), "int32")
    sides = (i32(R), at(n, batch))
    mask = op(LENGTHS[name][turned], *(sides[::-1] if turned else sides))
    kernel = Kernel("sums", (stored("y", (6,), reduce("sum", R, op("where", mask, at(x, batch, R), 0.0))),))
    lengths = {n: np.array([-9, 0, 17, 64, N, 2**31 - 1], "int32")}
    for rows in (1, 2):
        program = check(kernel, schedule(kernel, x0=rows, r0="loop 16"), lengths)
        (loop,) = statements(program, Loop)
        assert (loop.start is None, loop.end is None) == ((True, False) if name in ("first", "up to") else (False, True))
        arrays = [lengths.get(t, random(t)) for t in program.inputs]
        outputs, report = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
        assert report is not None and report.ok
        for result in (outputs[0], pallas.run(pallas.emit(program), arrays, interpret=True)[0]):
            np.testing.assert_allclose(result, interpret(program, arrays)[0], rtol=1e-5, atol=1e-5)


def test_attention_reads_no_keys_behind_a_sequence() -> None:
    causal, lengths = MASKS["causal"][0], np.array([40, 0, 3], "int32")
    b, n = Axis("x2", 3), Tensor("n", (3,), "int32")
    s, v = Tensor("s", (3, M, N), F32), Tensor("v", (3, N, 16), F32)
    scores = op("where", op("and", causal, op("lt", i32(R), at(n, b))), at(s, b, X0, R), -inf)
    term = op("div", online(R, scores, at(v, b, R, X1), F32), online(R, scores, const(1, F32), F32))
    kernel = Kernel("attention", (stored("y", (3, M, 16), term, [b, X0, X1]),))
    plan = schedule(kernel, x0=16, x1=16, x2=1, r0="loop 16")
    program = check(kernel, plan, {n: lengths})
    arrays = [lengths if t is n else random(t) for t in program.inputs]
    _, report = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
    assert report is not None
    (keys,) = (loaded for name, loaded in report.loaded.items() if name.startswith("v"))
    assert keys <= 4 * 16 * 16 * (1 + 2 + 3 + 3)  # of the first sequence and of the last; none of the second


def test_positions_in_few_bits_begin_anew() -> None:
    x0, r = axes_of(300)[0], Axis("r0", 300)
    narrow = [cast("int8", i32(a)) for a in (x0, r)]
    kernel = Kernel(
        "wrapped",
        (stored("y", (300,), reduce("sum", r, op("where", op("ge", *narrow), at(Tensor("x", (300, 300), F32), x0, r), 0.0))),),
    )
    program = lower(kernel, schedule(kernel, x0=16, r0="loop 16"))
    positions = np.arange(300).astype("int8")
    (x,) = (random(t) for t in program.inputs)
    np.testing.assert_allclose(
        interpret(program, [x])[0], np.where(positions[:, None] >= positions, x, 0).sum(1), rtol=1e-4, atol=1e-4
    )


def test_what_a_cast_makes_of_an_identity_need_not_be_one() -> None:
    """The least int8 is not the least int32."""
    x = Tensor("x", (M, N), "int8")
    masked = op("where", MASKS["strict"][0], at(x, X0, R), -128)
    kernel = Kernel("largest", (stored("y", (M,), reduce("max", R, cast("int32", masked))),))
    check(kernel, schedule(kernel, x0=1, r0="loop 16"))


def test_tiles_that_a_mask_shows_whole_compare_no_positions() -> None:
    for name, masked in (("causal", 1), ("anti-causal", 0), ("window", 1), ("every other", None)):
        kernel = attention(MASKS[name][0])
        loops = statements(lower(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16")), Loop)
        compares = [any(isinstance(s, Compute) and s.op in ("ge", "gt") for s in loop.body) for loop in loops]
        assert compares == ([n == masked for n in range(2)] if masked is not None else [True] * len(loops)), name


@pytest.mark.parametrize("name", ["causal", "anti-causal", "window"])
def test_a_sum_that_goes_on_with_an_accumulator_does_so_in_both_parts(name: str) -> None:
    taps = Axis("r1", 3)
    product = op(
        "mul", op("where", MASKS[name][0], at(Tensor("s", (M, N), F32), X0, R), 0.0), at(Tensor("v", (3, N), F32), taps, R)
    )
    kernel = Kernel("taps", (stored("y", (M,), reduce("sum", taps, reduce("sum", R, product))),))
    program = check(kernel, schedule(kernel, x0=16, r0="loop 16", r1="loop 1"))
    outer, *inner = statements(program, Loop)
    assert len(outer.carries) == 1 and len(inner) == 2 and inner[0].carries[0].init is outer.carries[0].state


def test_only_tiles_within_the_limits_are_read() -> None:
    kernel = attention(MASKS["window"][0])
    program = lower(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16"))
    arrays = [random(t) for t in program.inputs]
    _, report = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
    assert report is not None
    (keys,) = (n for name, n in report.loaded.items() if name.startswith("v"))
    assert keys <= 4 * 16 * 16 * (3 + 4 + 4)  # tiles of keys for each of three tiles of queries
    assert Work(kernel).visited[R] < 0.3


def weighted(mask: Term, exact: bool) -> Kernel:
    """A sum whose masked weights, of a softmax with its maximum and sum at hand, lie on the axis of the rows."""
    s, v, m, total = Tensor("s", (N, M), F32), Tensor("v", (N, 16), F32), Tensor("m", (N,), F32), Tensor("total", (N,), F32)
    scores = op("where", mask, at(s, R, X0), -inf)
    weight = op("div", op("exp", op("sub", scores, at(m, R))), at(total, R))
    return replace(Kernel("weighted", (stored("y", (M, 16), reduce("sum", R, op("mul", at(v, R, X1), weight))),)), exact=exact)


@pytest.mark.parametrize("name", MASKS)
def test_weights_of_zero_bound_a_loop_where_they_may_hide_what_they_weigh(name: str) -> None:
    mask, low, high = MASKS[name]
    kernel = weighted(mask, exact=False)
    program = check(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16"))
    loops = statements(program, Loop)
    assert (loops[0].low is not None, loops[-1].high is not None) == (low is not None, high is not None)
    agree_with_one_tile(kernel, program, atol=1e-3)  # of sums in the hundreds


def test_weights_of_zero_bound_nothing_in_the_exact_tier() -> None:
    kernel = weighted(MASKS["causal"][0], exact=True)
    loops = statements(check(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16")), Loop)
    assert loops[0].low is loops[-1].high is None and not Work(kernel).visited
    product = jax.ShapeDtypeStruct((512, 512), "float32")
    for numerics in ("exact", "reassociate"):
        program = eqsat.optimize(lambda a, b: jnp.tril(a) @ b, product, product, numerics=numerics)
        (launch,) = program.launches
        loops = statements(lower(launch.kernel, launch.schedule), Loop)
        assert (loops[-1].high is None) == (numerics == "exact")


def test_finite_masks_and_other_reductions_bound_nothing() -> None:
    mask = MASKS["causal"][0]
    x = at(Tensor("s", (M, N), F32), X0, R)
    assert not limits_of([reduce("max", R, op("where", mask, x, -1e9))]).high
    assert not limits_of([reduce("sum", R, op("where", mask, x, -inf))]).high
    assert not limits_of([reduce("max", R, op("where", mask, x, -inf)), reduce("sum", R, x)]).high
    kernel = attention(mask, -1e9)
    loops = statements(check(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16")), Loop)
    assert loops[0].low is loops[-1].high is None


@pytest.mark.parametrize("hidden", ["upper", "lower"])
def test_a_mask_that_is_added_is_seen_in_the_fast_tier(hidden: str) -> None:
    triangle = {"upper": lambda m: jnp.triu(m, 1), "lower": lambda m: jnp.tril(m, -1)}[hidden]
    shape = jax.ShapeDtypeStruct((256, 64), "float32")

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T + triangle(jnp.full((256, 256), -jnp.inf))) @ v

    for numerics in ("reassociate", "fast"):
        program = eqsat.optimize(attend, shape, shape, shape, numerics=numerics)
        loops = [x for p in program.launches for x in statements(lower(p.kernel, p.schedule), Loop)]
        cut = any(x.low is not None or x.high is not None for x in loops)
        assert cut == (numerics == "fast")
        arrays = [jnp.asarray(np.random.default_rng(n).standard_normal((256, 64)), "float32") for n in range(3)]
        np.testing.assert_allclose(program(*arrays), attend(*arrays), rtol=2e-5, atol=2e-5)


def test_rows_that_are_hidden_altogether_are_not_numbers() -> None:
    kernel = attention(MASKS["strict"][0])  # the first row sees nothing
    program = lower(kernel, schedule(kernel, x0=16, x1=16, r0="loop 16"))
    arrays = [random(t) for t in program.inputs]
    outputs, _ = run_in_interpreter(triton.emit(program), arrays, program.outputs, check=True)
    assert np.isnan(outputs[0][0]).all() and np.isfinite(outputs[0][1:]).all()
