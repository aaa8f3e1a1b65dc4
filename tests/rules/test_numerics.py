"""Programs whose values rewriters have been caught changing: each tier keeps them, or names the rule that made the difference.

The chosen kernels are evaluated operation by operation, so that what differs is what a rule changed.
"""

from __future__ import annotations

import itertools

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import eqsat
from eqsat.arrays import NUMPY
from eqsat.egraph import Engine
from eqsat.evaluate import evaluate_all
from eqsat.program import PlannedKernel
from eqsat.rule import select
from eqsat.rule_trial import regions_of
from eqsat.rules import RULES

pytestmark = pytest.mark.slow

INF, NAN = float("inf"), float("nan")
BYTES, UNSIGNED = np.arange(-128, 128).astype(np.int8), np.arange(256).astype(np.uint8)


def values(fn, *args, numerics):
    """The outputs of the optimised program."""
    return run(eqsat.optimize(fn, *map(jnp.asarray, args), numerics=numerics), *args)


def run(program, *args):
    """The outputs of a program for some arguments, its kernels evaluated operation by operation."""
    arrays = dict(zip(program.inputs, map(np.asarray, args), strict=True))
    arrays |= {t: np.asarray(c) for t, c in program.constants.items()}
    for step in program.steps:
        if not isinstance(step, PlannedKernel):
            results = step.eqn.bind(*(jnp.asarray(arrays.get(x, x)) for x in step.inputs))
            arrays.update(zip(step.outputs, map(np.asarray, results), strict=True))
            continue
        given = {mine: arrays[theirs] for mine, theirs in zip(step.kernel.inputs, step.inputs, strict=True)}
        results = evaluate_all([(o.term, o.axes) for o in step.kernel.outputs], given, NUMPY)
        for theirs, array in zip(step.outputs, results, strict=True):
            arrays[theirs] = np.asarray(array).reshape(theirs.shape)
    return [arrays[t] for t in program.outputs]


def f32(*numbers):
    return np.array(numbers, np.float32)


def i32(*numbers):
    return np.array(numbers, np.int32)


def same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind not in "biu":
        got, want = got.astype(np.float64), want.astype(np.float64)
        return bool(np.all(((got == want) & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))))
    return bool(np.array_equal(got, want))


# number of the report that it comes from, and name: (function, operands, what it must give)
CASES = {
    "P1-16 log of exp": (lambda x: jnp.log(jnp.exp(x)), [f32(89, -104)], f32(INF, -INF)),
    "P1-17 times zero": (lambda x: x * 0, [f32(1, INF, NAN, -1)], f32(0, NAN, NAN, -0.0)),
    "P1-17 less itself": (lambda x: x - x, [f32(1, INF, NAN, -1)], f32(0, NAN, NAN, 0)),
    "P1-17 zero times NaN in a loss": (lambda x, a: x + 0 * a, [f32(1), f32(NAN)], f32(NAN)),
    "P1-18 mean over itself": (lambda x: jnp.mean(x) / jnp.mean(x), [f32(0, 0, 0)], np.float32(NAN)),
    "P1-19 times 3 over 3": (lambda x: (x * 3) / 3, [f32(2e38)], f32(INF)),
    "P1-19 over 3 times 3": (lambda x: (x / 3) * 3, [f32(1e-45)], f32(0)),
    "P1-19 divided twice": (lambda x: (x / 1e30) / 1e30, [f32(1e38)], f32(1e38) / f32(1e30) / f32(1e30)),
    "P1-19 up and down": (lambda x: (x * 1e30) * 1e-30, [f32(1e20)], f32(INF)),
    "P1-20 zero is added": (lambda x: 1 / (x + 0.0), [f32(-0.0)], f32(INF)),
    "P1-20 root of minus zero": (jnp.sqrt, [f32(-0.0)], f32(-0.0)),
    "P1-20 zero less": (lambda x: 0 - x, [f32(0)], f32(0)),
    "P1-21 squares of int8": (
        lambda b: jnp.where(b * b < 0, jnp.abs(b * b), b * b),
        [np.array([12, 7, 20, 15, 11], np.int8)],
        np.array([112, 49, 112, 31, 121], np.int8),
    ),
    "P1-19 doubled and halved": (lambda x: lax.div(x * 2, jnp.int32(2)), [i32(2**30)], i32(-(2**30))),
    "P1-23 floor division": (lambda a, b: a // b, [i32(-7, 7), i32(2, -2)], i32(-4, -4)),
    "P1-23 remainder of zero": (lambda x, y: lax.rem(x, y), [i32(5), i32(0)], i32(5)),
    "P1-24 narrowed and widened": (
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
        [f32(np.pi)],
        f32(3.140625),
    ),
    "P1-24 error of a sum": (
        lambda a, b: b - ((a + b).astype(jnp.bfloat16).astype(jnp.float32) - a),
        [f32(4, 5, 6), f32(0, 0.001, 0.002)],
        f32(0, 0.001, 0.002),
    ),
    "P1-16 log2 of exp2": (lambda x: jnp.log2(jnp.exp2(x)), [f32(129, -150)], f32(INF, -INF)),
    "P1-16 square of a root": (lambda x: jnp.sqrt(x) * jnp.sqrt(x), [f32(-1, 4, 0)], f32(NAN, 4, 0)),
    "P1-16 root of a square": (lambda x: jnp.sqrt(x * x), [f32(1e30, -2)], f32(INF, 2)),
    "P1-20 half power of minus zero": (lambda x: jnp.power(x, jnp.float32(0.5)), [f32(-0.0)], f32(0.0)),
    "P1-20 negation of zero": (lambda x: -x, [f32(0)], f32(-0.0)),
    "P1-23 least integer by minus one": (lambda a, b: (a // b, a % b), [i32(-(2**31)), i32(-1)], (i32(-(2**31)), i32(0))),
    "P1-23 integer by zero": (lambda a, b: (a // b, lax.div(a, b), a % b), [i32(5), i32(0)], (i32(-2), i32(-1), i32(0))),
    "P2-17 literal by zero": (lambda x: x + jnp.int32(5) % jnp.int32(0) + jnp.int32(5) // jnp.int32(0), [i32(1)], i32(-1)),
    "P2-17 literal remainder of zero": (lambda x: x + lax.rem(jnp.int32(5), jnp.int32(0)), [i32(1)], i32(6)),
    "P1-23 remainders": (lambda a, b: a % b, [i32(-7, 7), i32(2, -2)], i32(1, -1)),
    "P1-23 truncated": (lambda a, b: lax.div(a, b), [i32(-7, 7), i32(2, -2)], i32(-3, -3)),
    "P1-23 least absolute value": (jnp.abs, [i32(-(2**31))], i32(-(2**31))),
    "P1-23 unsigned difference": (lambda a, b: a - b, [np.uint8([3]), np.uint8([5])], np.uint8([254])),
    "P1-21 squares of every int8": (
        lambda b: jnp.where(b * b < 0, jnp.abs(b * b), b * b),
        [BYTES],
        (lambda square: np.where(square < 0, np.abs(square), square))(BYTES * BYTES),
    ),
    "P1-23 every int8 by minus one": (lambda b, c: (b // c, b % c), [BYTES, np.int8([-1])], (-BYTES, 0 * BYTES)),
    "P6-03 parity of every int8": (lambda b, c: c - b % 2, [BYTES, 0 * BYTES], -(BYTES & 1)),
    "P6-03 plus the next parity of every int8": (lambda b, c: c + (b + 1) % 2 - 1, [BYTES, 0 * BYTES], -(BYTES & 1)),
    "P6-03 (4b + 3) // 4 of every int8": (lambda b: (b * 4 + 3) // 4, [BYTES], (BYTES * np.int8(4) + np.int8(3)) // np.int8(4)),
    "P6-01 and, or with one of every uint8": (lambda b: (b & 1, b | 1), [UNSIGNED], (UNSIGNED % 2, UNSIGNED // 2 * 2 + 1)),
    "P6-01 and, or with all ones of every uint8": (lambda b: (b & 255, b | 255), [UNSIGNED], (UNSIGNED, 0 * UNSIGNED + 255)),
    "P1-25 sum of int8": (jnp.sum, [np.array([100, 100], np.int8)], np.int32(200)),
    "P6-03 (4x + 3) // 4": (lambda x: (x * 4 + 3) // 4, [i32(-1, 0, 2**29)], i32(-1, 0, -(2**29))),
    "P6-03 less its parity": (lambda x, y: y - x % 2, [i32(*range(-3, 4)), i32(*[0] * 7)], i32(-1, 0, -1, 0, -1, 0, -1)),
    "P6-03 plus the next parity": (
        lambda x, y: y + (x + 1) % 2 - 1,
        [i32(*range(-3, 4)), i32(*[0] * 7)],
        i32(-1, 0, -1, 0, -1, 0, -1),
    ),
    "P6-06 doubled over two": (lambda x: x * 2 / 2, [f32(3e38, 1.5)], f32(INF, 1.5)),
    "P1-32 indexed from the end": (lambda x: x[jnp.array([-2, 13, -13])], [np.arange(10, dtype=np.float32)], f32(8, 9, 0)),
    "P1-26 greatest of literals": (lambda x: x + jnp.max(jnp.array([1, NAN, 3])), [f32(1)], f32(NAN)),
    "P2-03 scaled by literal zero": (
        lambda a, b: jnp.float32(0) * (a @ b),
        [f32(NAN).reshape(1, 1), f32(1).reshape(1, 1)],
        np.full((1, 1), NAN, np.float32),
    ),
    "P2-06 narrow with a wide number": (
        lambda x, y: (x.astype(jnp.float32) + y).astype(jnp.bfloat16),
        [np.array([0.1], ml_dtypes.bfloat16), np.float32(-0.1)],
        np.array([9.7656e-05], ml_dtypes.bfloat16),
    ),
    "P2-06 narrow with a narrowed number": (
        lambda x, y: x + y.astype(jnp.bfloat16),
        [np.array([0.1], ml_dtypes.bfloat16), np.float32(-0.1)],
        np.array([0.0], ml_dtypes.bfloat16),
    ),
    "P1-26 greatest with NaN": (jnp.max, [f32(1, NAN, 3)], np.float32(NAN)),
    "P1-26 greater than minus infinity": (lambda x: jnp.maximum(x, -jnp.inf), [f32(NAN, 1)], f32(NAN, 1)),
    "P1-26 greater or lesser of numbers": (
        lambda x, y: (jnp.fmax(x, -jnp.inf), jnp.fmin(x, jnp.inf), jnp.fmax(x, y)),
        [f32(NAN, 1), f32(2, NAN)],
        (f32(-INF, 1), f32(INF, 1), f32(2, 1)),
    ),
    "P1-26 clipped NaN": (lambda x: jnp.clip(x, 0, 1), [f32(NAN)], f32(NAN)),
    "P1-26 relu of NaN": (lambda x: jnp.maximum(x, 0), [f32(NAN)], f32(NAN)),
    "P1-32 written out of range": (lambda x: x.at[jnp.array([13, 2])].set(5.0), [f32(0, 1, 2, 3)], f32(0, 1, 5, 3)),
    "P1-32 out of range": (lambda x: jnp.take(x, jnp.array([13, 2])), [np.arange(10, dtype=np.float32)], f32(NAN, 2)),
    "P2-03 literal zero times C": (
        lambda c, a, b: 0 * c + a @ b,
        [f32(NAN), np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)],
        np.full((1, 1), NAN, np.float32),
    ),
    "P6-01 and, or with one": (lambda x: (x & 1, x | 1), [i32(6, 7)], (i32(0, 1), i32(7, 7))),
    "P6-03 parity": (lambda x, y: y - lax.rem(x, jnp.int32(2)), [i32(-3, -1, 1), i32(0, 0, 0)], i32(1, 1, -1)),
    "P6-06 there and back": (lambda a, b: (a - b) + b, [f32(1e-8), f32(1)], f32(0)),
    "P6-06 halved": (lambda x: x / 2, [f32(3e-45, 3.3)], f32(1e-45, np.float32(3.3) / np.float32(2))),
    "P6-06 a third": (lambda x: x / 3, [f32(5.1)], f32(np.float32(5.1) / np.float32(3))),
}  # fmt: skip


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_slices_of_slices_are_clamped_twice(numerics):
    """P1-22: buf[i:i+4][j:j+1] for all i and j from -3 to 12."""

    def nested(x, i, j):
        return lax.dynamic_slice(lax.dynamic_slice(x, (i,), (4,)), (j,), (1,))

    x = np.arange(10, dtype=np.float32)
    program = eqsat.optimize(nested, x, np.int32(0), np.int32(0), numerics=numerics)
    for i, j in itertools.product(range(-3, 13), repeat=2):
        first, second = (at + size * (at < 0) for at, size in ((i, 10), (j, 4)))  # JAX counts from the end
        want = min(max(first, 0), 6) + min(max(second, 0), 3)
        assert run(program, x, np.int32(i), np.int32(j))[0].tolist() == [want], (i, j)


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_reciprocal_roots_of_float64(numerics):
    """P1-31: 1/sqrt(3) keeps its bits in the exact tier, and 1 ulp in the others."""
    with jax.enable_x64(True):
        got = values(lambda x: 1 / jnp.sqrt(x), np.array([3.0]), numerics=numerics)
    assert got[0].dtype == np.float64
    assert got[0][0] == pytest.approx(0.5773502691896258, rel=0 if numerics == "exact" else 4e-16, abs=0)


def test_a_program_of_zeros_over_themselves():
    """P1-18: cross(x, x) is zero or a residue of contraction; either way its quotient is not replaced by 1 in the exact tier."""
    fn = lambda x: jnp.cross(x, x) / jnp.cross(x, x)  # noqa: E731
    (got,) = values(fn, f32(0.1, 0.9, 0.3), numerics="exact")
    assert np.isnan(got).all()


LARGE_SUMS = {
    "bfloat16": (ml_dtypes.bfloat16, 70000, 70144.0),
    "float16": (np.float16, 20000, 20000.0),
}


def outputs_of(case):
    return case[2] if isinstance(case[2], tuple) else (case[2],)


@pytest.mark.parametrize("name", CASES)
def test_exact_keeps_every_bit(name):
    fn, args, _ = CASES[name]
    got = values(fn, *args, numerics="exact")
    for g, w in zip(got, outputs_of(CASES[name]), strict=True):
        assert same_bits(g, w), f"{g} instead of {w}"


@pytest.mark.parametrize("numerics", ["reassociate", "fast"])
@pytest.mark.parametrize("name", CASES)
def test_other_tiers_are_right_or_name_the_rule(name, numerics):
    fn, args, _ = CASES[name]
    got = values(fn, *args, numerics=numerics)
    for g, w in zip(got, outputs_of(CASES[name]), strict=True):
        if same_bits(g, w):
            continue
        blamed = inexact_rules(fn, args, numerics)
        assert blamed, f"{g} instead of {w}, and no rule to blame"
        if numerics == "reassociate":
            finite = np.isfinite(w)  # what a literal makes overflow or vanish on the way may come out right instead
            assert np.array_equal(np.isnan(g), np.isnan(w)) and np.isfinite(g[finite]).all(), f"{g} instead of {w} by {blamed}"
            smallest = 0 if w.dtype.kind in "biu" else ml_dtypes.finfo(w.dtype).tiny
            np.testing.assert_allclose(g[finite], w[finite], rtol=1e-6, atol=float(smallest), err_msg=str(blamed))


def inexact_rules(fn, args, numerics):
    """The rules that fire in a program and may change its values."""
    engine = Engine(select(RULES, numerics))
    fired = {name for region in regions_of(fn, *args) for name in engine.saturate(region).growth}
    return {r.name for r in engine.rules if r.name in fired and r.tier != "exact"}


@pytest.mark.parametrize("dtype", LARGE_SUMS)
@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_narrow_sums_are_held_in_a_wide_accumulator(dtype, numerics):
    """P1-25: 70000 ones of bfloat16, 20000 of float16."""
    kind, count, want = LARGE_SUMS[dtype]
    got = values(jnp.sum, np.ones(count, kind), numerics=numerics)
    assert float(got[0]) == want


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
@pytest.mark.parametrize("scale", [1e3, 1e10, 1e14, 1e30])
def test_the_scale_of_a_softmax_is_rounded_once(scale, numerics):
    """P2-07: the scale and the difference with the maximum use one rounded product."""
    fn, x = lambda x: softmax_of(x * scale), f32(0.3, -0.2, 0.7)
    right_or_named(fn, [x], values(fn, x, numerics=numerics)[0], [0, 0, 1], numerics)


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_a_softmax_of_a_sum_of_quotients_by_little(numerics):
    """P2-07: softmax(x/1e-6 + y/1e-6)."""
    fn, x, y = lambda x, y: softmax_of(x / 1e-6 + y / 1e-6), f32(0.3, -0.2, 0.7), f32(0.1, 0.2, -0.1)
    right_or_named(fn, [x, y], values(fn, x, y, numerics=numerics)[0], [0, 0, 1], numerics)


def softmax_of(y):
    weights = jnp.exp(y - jnp.max(y))
    return weights / jnp.sum(weights)


def right_or_named(fn, args, got, want, numerics):
    """Only the fast tier may be wrong, and there a rule of that tier made the difference: without it the value is right."""
    if numerics == "fast" and not np.allclose(got, want, atol=1e-6):
        fast = {r.name for r in RULES if r.tier == "fast"} & inexact_rules(fn, args, numerics)
        assert fast, f"{got} instead of {want}, and no rule to blame"
        return
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_a_narrow_rounding_inside_a_kernel_is_kept(numerics):
    """P2-05: float16 between float32 within one kernel."""

    def total(x, c):
        h = jnp.where(c, jnp.float16(0.5), jnp.float16(-0.5)) + x.astype(jnp.float16)
        return jnp.sum(h.astype(jnp.float32))

    x = (np.arange(24) / 10).astype(np.float32)
    got = values(total, x, np.arange(24) % 5 == 0, numerics=numerics)
    assert abs(float(got[0]) - 20.5996) < 1e-4
