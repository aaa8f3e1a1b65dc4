"""Lowered kernels, interpreted, agree with a float64 evaluation of their terms at awkward sizes and values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import BF16, F32, Array, at, axes_of, check, f32, generator, op, schedule, statements, stored

from eqsat.demand import demand
from eqsat.forms import as_run
from eqsat.index import Axis, Index
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor, Term, cast, const, load, online, output_axes, pos, reduce, substitute
from eqsat.scalars import DTYPES, REDUCTIONS
from eqsat.schedule import Schedule
from eqsat.tile import Compute, Dot, Load, Loop, Store, TileAxis
from eqsat.work import Work

SIZES = [1, 2, 15, 17, 37, 129]


# --- pointwise ---


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("tile", [1, 16])
def test_views_are_indices_and_broadcasts_are_names(n: int, tile: int) -> None:
    x0, x1 = axes_of(n, 9)
    a, b, c = Tensor("a", (9, n), F32), Tensor("b", (2 * n + 3,), F32), Tensor("c", (n, 12), F32)
    shifted = at(c, x0, Index.of(x1) + 3)
    term = op("add", op("add", at(a, x1, x0), at(b, Index.of(x0) * 2 + 1)), op("mul", shifted, at(b, Index.of(x1) // 3)))
    kernel = Kernel("views", (stored("y", (n, 9), term),))
    check(kernel, schedule(kernel, x0=tile, x1=8))
    check(kernel, schedule(kernel, x0=tile, x1="loop 2"))
    check(kernel, schedule(kernel, x0=16, x1="resident", swizzle=2))


@pytest.mark.parametrize("n", SIZES)
def test_reads_outside_a_tensor_are_zero(n: int) -> None:
    (x0,) = axes_of(n + 4)
    a = Tensor("a", (n,), F32)
    inside = op("lt", op("sub", pos(Index.of(x0), "int32"), 2), n)
    padded = op("where", inside, at(a, Index.of(x0) - 2), 7.0)
    kernel = Kernel("pad", (stored("y", (n + 4,), op("add", padded, at(a, Index.of(x0) * -1 + n))),))
    check(kernel, schedule(kernel, x0=8))


def test_scalar_and_empty_outputs() -> None:
    a = Tensor("a", (1, 3), F32)
    kernel = Kernel("one", (stored("y", (1, 1), op("exp", at(a, 0, 2))),))
    assert check(kernel, schedule(kernel)).programs == 1
    (x0,) = axes_of(0)
    empty = stored("y", (0,), op("exp", at(Tensor("e", (0,), F32), x0)))
    for outputs in ((empty,), (empty, stored("z", (), reduce("sum", Axis("r0", 0), at(a, 0, 2)), []))):
        kernel = Kernel("empty", outputs)
        check(kernel, schedule(kernel))
        check(kernel, schedule(kernel, x0="resident"))


@pytest.mark.parametrize("dtype", [BF16, "float16", "float8_e4m3fn", "int8", "uint32", "int64", "float64"])
def test_every_operation_rounds_to_its_dtype(dtype: str) -> None:
    (x0,) = axes_of(37)
    a, b = Tensor("a", (37,), dtype), Tensor("b", (37,), dtype)
    total = op("add", at(a, x0), at(b, x0))
    kernel = Kernel("rounding", (stored("y", (37,), op("max", op("mul", total, total), op("sub", at(a, x0), 3))),))
    x, y = generator().integers(1, 9, (2, 37)).astype(dtype)
    program = lower(kernel, schedule(kernel))
    wanted = np.maximum((x + y) * (x + y), x - np.asarray(3, dtype))
    np.testing.assert_array_equal(interpret(program, [x, y])[0], wanted)


def test_gather_guards_what_its_operand_may_be() -> None:
    x0, x1 = axes_of(17, 9)
    ids, table = Tensor("ids", (17,), "int32"), Tensor("table", (11, 9), F32)
    clamped = op("max", op("min", at(ids, x0), 10), 0)
    row = load(table, (Index.dynamic(0, 0, 10), Index.of(x1)), (clamped,))
    shifted = load(table, (Index.dynamic(0, -50, 50) + 1, Index.of(x1)), (at(ids, x0),))
    kernel = Kernel("gather", (stored("y", (17, 9), op("add", row, shifted)),))
    for tile in (1, 4, 16):
        check(kernel, schedule(kernel, x0=tile), {ids: generator().integers(-20, 20, 17).astype("int32")})


# --- rows ---

ROWS = {
    "resident": {"x1": "resident", "r0": "resident"},
    "streamed": {"x1": "loop 8", "r0": "loop 16"},
    "mixed": {"x1": 8, "r0": "loop 4"},
}
PLANS = pytest.mark.parametrize("plan", ROWS.values(), ids=ROWS)


def softmax(m: int, n: int, dtype: str = F32, one_pass: bool = False) -> Kernel:
    x0, x1 = axes_of(m, n)
    r, x = Axis("r0", n), Tensor("x", (m, n), dtype)
    largest = reduce("max", r, f32(at(x, x0, r)))

    def p(j: Axis) -> Term:
        return op("exp", op("sub", f32(at(x, x0, j)), largest))

    total = online(r, f32(at(x, x0, r)), const(1, F32), F32) if one_pass else reduce("sum", r, p(r))
    return Kernel("softmax", (stored("y", (m, n), cast(dtype, op("div", p(x1), total))),))


@PLANS
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("one_pass", [False, True])
def test_softmax(n: int, plan: dict[str, Any], one_pass: bool) -> None:
    kernel = softmax(5, n, F32, one_pass)
    program = check(kernel, schedule(kernel, x0=2, **plan))
    if plan is ROWS["resident"]:
        assert len(statements(program, Load)) == 1, "the row is loaded once"
    check(softmax(5, n, BF16, one_pass), schedule(kernel, x0=2, **plan), tolerance=1e-2)


def spoil(x: Array) -> None:
    x[0, 3], x[1, 36], x[2, 5], x[3, :], x[4, 9:], x[5, :20] = np.nan, np.inf, -np.inf, -np.inf, -np.inf, -np.inf


@PLANS
@pytest.mark.parametrize("one_pass", [False, True])
def test_softmax_keeps_nan_and_infinity(plan: dict[str, Any], one_pass: bool) -> None:
    kernel = softmax(7, 37, F32, one_pass)
    x = generator().standard_normal((7, 37)).astype(F32)
    spoil(x)
    check(kernel, schedule(kernel, x0=4, **plan), {kernel.inputs[0]: x})


LOWEST = float(np.finfo(F32).min)
SCORES: dict[str, tuple[float, float | None, bool]] = {  # a factor, what a mask puts in, and whether log2(e) goes into the factor
    "scaled": (0.125, None, True),
    "masked": (0.125, -np.inf, True),
    "masked by a finite number": (0.125, -1e9, True),
    "masked by the lowest number": (0.125, LOWEST, False),
    "not shrunk": (0.75, None, False),
}


@pytest.mark.parametrize("r0", ["loop 1", "loop 16"])
@pytest.mark.parametrize("name", SCORES)
def test_a_factor_of_scores_takes_the_exponent_to_base_two(name: str, r0: str) -> None:
    """One operation less for each score, and no finite score overflows, not even where a row has no other."""
    factor, hidden, folded = SCORES[name]
    (x0,), r, x = axes_of(10), Axis("r0", 37), Tensor("x", (10, 37), F32)
    s = op("mul", at(x, x0, r), factor)
    s = s if hidden is None else op("where", op("lt", pos(Index.of(r), "int32"), pos(Index.of(x0) * 4, "int32")), s, hidden)
    kernel = Kernel("total", (stored("y", (10,), online(r, s, const(1, F32), F32)),))
    values = generator().standard_normal((10, 37)).astype(F32)
    spoil(values)
    values[6], values[7, :9], values[8] = LOWEST, -LOWEST, values[8] * 1e30
    program = check(kernel, schedule(kernel, x0=4, r0=r0), {x: values})
    made = {c.out: c.op for c in statements(program, Compute)}
    assert {made[c.args[0]] for c in statements(program, Compute) if c.op == "exp2"} == {"sub" if folded else "mul"}


@PLANS
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_max_and_min_propagate_nan(plan: dict[str, Any], name: str, dtype: str) -> None:
    (x0,) = axes_of(4)
    r, x = Axis("r0", 37), Tensor("x", (4, 37), dtype)
    kernel = Kernel("largest", (stored("y", (4,), reduce(name, r, at(x, x0, r))),))
    values = generator().standard_normal((4, 37)).astype(dtype)
    values[1, 30], values[2, :], values[3, :] = np.nan, -np.inf, np.inf
    check(kernel, schedule(kernel, x0=2, r0=plan["r0"]), {x: values})


def layer_norm(m: int, n: int) -> tuple[Tensor, Term, Axis]:
    """x, and its normalised element at [x0, r0]."""
    (x0,), r, x = axes_of(m), Axis("r0", n), Tensor("x", (m, n), F32)
    mean = op("div", reduce("sum", r, at(x, x0, r)), float(n))
    centred = op("sub", at(x, x0, r), mean)
    variance = op("div", reduce("sum", r, op("mul", centred, centred)), float(n))
    return x, op("mul", centred, op("rsqrt", op("add", variance, 1e-5))), r


@PLANS
@pytest.mark.parametrize("n", SIZES[1:])
def test_layer_norm(n: int, plan: dict[str, Any]) -> None:
    x, normal, r = layer_norm(5, n)
    x1, scale = axes_of(5, n)[1], Tensor("scale", (n,), F32)
    term = op("mul", substitute(normal, {r: Index.of(x1)}), at(scale, x1))
    kernel = Kernel("norm", (stored("y", (5, n), term),))
    program = check(kernel, schedule(kernel, x0=4, **plan), tolerance=1e-4)
    if plan is ROWS["streamed"] and n > 16:
        assert [s.axis.name for s in program.body if isinstance(s, Loop)] == ["r0", "r0", "x1"]


@PLANS
def test_row_statistic_is_a_second_output(plan: dict[str, Any]) -> None:
    (x0, x1), r, x = axes_of(5, 37), Axis("r0", 37), Tensor("x", (5, 37), BF16)
    squares = op("mul", f32(at(x, x0, r)), f32(at(x, x0, r)))
    rms = op("rsqrt", op("add", op("div", reduce("sum", r, squares), 37.0), 1e-5))
    y = cast(BF16, op("mul", f32(at(x, x0, x1)), rms))
    kernel = Kernel("rms", (stored("y", (5, 37), y), stored("rms", (5, 1), rms, [x0])))
    check(kernel, schedule(kernel, x0=4, **plan), tolerance=1e-2)


@pytest.mark.parametrize("name", list(REDUCTIONS))
@pytest.mark.parametrize("plan", ["resident", "loop 4", "loop 1", "loop 32"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint32", F32, BF16])
def test_all_reductions(name: str, plan: str, dtype: str) -> None:
    if DTYPES[dtype].kind not in REDUCTIONS[name].kinds:
        pytest.skip("not a row of the table")
    (x0,), r, x = axes_of(3), Axis("r0", 13), Tensor("x", (3, 20), dtype)
    kernel = Kernel("fold", (stored("y", (3,), reduce(name, r, at(x, x0, Index.of(r) + 2))),))
    check(kernel, schedule(kernel, x0=2, r0=plan), tolerance=2e-2 if dtype == BF16 else 1e-5)


@pytest.mark.parametrize("plan", ["resident", "loop 4", "loop 1"])
@pytest.mark.parametrize("n", [0, 1, 8, 13])
def test_reductions_over_an_axis_that_the_operand_lacks(plan: str, n: int) -> None:
    (x0,), r, x = axes_of(3), Axis("r0", n), Tensor("x", (3,), F32)
    total, largest = (reduce(name, r, at(x, x0)) for name in ("sum", "max"))
    soft = online(r, at(x, x0), at(x, x0), F32)
    outputs = [stored("a", (3,), total), stored("b", (3,), op("exp", largest)), stored("c", (3,), soft)]
    kernel = Kernel("lacking", tuple(outputs if n else outputs[:1]))
    check(kernel, schedule(kernel, x0=2, r0=plan))


# --- contractions ---


def gelu(x: Term) -> Term:
    return op("mul", x, op("mul", op("add", op("erf", op("mul", x, 0.70710678)), 1.0), 0.5))


@pytest.mark.parametrize("dtype", [F32, BF16, "float16", "float64"])
@pytest.mark.parametrize("size", [(17, 33, 37), (129, 15, 2), (1, 16, 64), (37, 20, 1)])
def test_matmul_with_bias_and_gelu(size: tuple[int, int, int], dtype: str) -> None:
    m, n, k = size
    (x0, x1), r = axes_of(m, n), Axis("r0", k)
    a, b, bias = Tensor("a", (m, k), dtype), Tensor("b", (k, n), dtype), Tensor("bias", (n,), dtype)
    wide = dtype if dtype == "float64" else F32
    product = reduce("sum", r, op("mul", cast(wide, at(a, x0, r)), cast(wide, at(b, r, x1))))
    kernel = Kernel("matmul", (stored("y", (m, n), cast(dtype, gelu(op("add", product, cast(wide, at(bias, x1)))))),))
    narrow = 1e-5 if dtype in (F32, "float64") else 1e-2
    for tiles in (
        {"r0": 16, "x0": 32},
        {"r0": "resident"},
        {"r0": "loop 32", "x1": "loop 16"},
        {"r0": "loop 4"},
        {"x0": 2, "swizzle": 2},
    ):
        program = check(kernel, schedule(kernel, **tiles), tolerance=narrow)
        if min(size) >= 15 and tiles.get("r0") != "loop 4" and tiles.get("x0") != 2:
            (dot,) = statements(program, Dot)
            assert dot.a.dtype == dot.b.dtype == dtype


def test_operands_of_a_dot_are_zero_in_padding_they_could_read() -> None:
    (x0, x1), r = axes_of(20, 20), Axis("r0", 21)
    a, b = Tensor("a", (20, 64), BF16), Tensor("b", (64, 20), BF16)
    product = op("mul", f32(at(a, x0, Index.of(r) + 8)), f32(at(b, Index.of(r) + 3, x1)))
    kernel = Kernel("slices", (stored("y", (20, 20), reduce("sum", r, product)),))
    assert statements(check(kernel, schedule(kernel), tolerance=1e-2), Dot)


@pytest.mark.parametrize("order", [0, 1])
def test_longer_products_are_split_into_two_operands(order: int) -> None:
    (x0, x1), r = axes_of(20, 18), Axis("r0", 21)
    a, b, c = Tensor("a", (20, 21), F32), Tensor("b", (21, 18), F32), Tensor("c", (21,), F32)
    left, right = at(a, x0, r), at(b, r, x1)
    product = op("mul", op("mul", left, right), at(c, r)) if order else op("mul", at(c, r), op("mul", right, left))
    kernel = Kernel("scaled", (stored("y", (20, 18), reduce("sum", r, product)),))
    assert statements(check(kernel, schedule(kernel)), Dot)


def test_int8_dot_accumulates_in_int32() -> None:
    (x0, x1), r = axes_of(20, 18), Axis("r0", 45)
    a, b = Tensor("a", (20, 45), "int8"), Tensor("b", (18, 45), "int8")
    product = op("mul", cast("int32", at(a, x0, r)), cast("int32", at(b, x1, r)))
    kernel = Kernel("int8", (stored("y", (20, 18), reduce("sum", r, product)),))
    (dot,) = statements(check(kernel, schedule(kernel), tolerance=0), Dot)
    assert (dot.a.dtype, dot.out.dtype) == ("int8", "int32")


def test_layer_norm_before_a_matmul_takes_three_loops() -> None:
    x, normal, r = layer_norm(20, 37)
    x1, w = axes_of(20, 18)[1], Tensor("w", (37, 18), F32)
    kernel = Kernel("prologue", (stored("y", (20, 18), reduce("sum", r, op("mul", normal, at(w, r, x1)))),))
    program = check(kernel, schedule(kernel, r0=16), tolerance=1e-4)
    assert [s.axis.name for s in program.body if isinstance(s, Loop)] == ["r0", "r0", "r0"]
    assert statements(program, Dot)
    check(kernel, schedule(kernel, r0="resident", x1="loop 16"), tolerance=1e-4)


def test_independent_reductions_share_a_loop() -> None:
    (x0, x1), r, x = axes_of(20, 18), Axis("r0", 37), Tensor("x", (20, 37), BF16)
    gate, up = (
        reduce("sum", r, op("mul", f32(at(x, x0, r)), f32(at(Tensor(name, (37, 18), BF16), r, x1)))) for name in ("gate", "up")
    )
    kernel = Kernel("gated", (stored("y", (20, 18), op("mul", op("mul", gate, op("logistic", gate)), up)),))
    program = check(kernel, schedule(kernel), tolerance=1e-4)
    (loop,) = statements(program, Loop)
    assert len(loop.carries) == 2 and len(statements(program, Dot)) == 2


@pytest.mark.parametrize("channels", ["resident", "loop 16"])
def test_convolution_is_a_dot_at_every_tap(channels: str) -> None:
    h, w, co = axes_of(5, 19, 18)
    r, s, ci = Axis("r2", 3), Axis("r1", 3), Axis("r0", 20)
    x, taps = Tensor("x", (5, 19, 20), BF16), Tensor("taps", (3, 3, 20, 18), BF16)
    product = op("mul", f32(at(x, Index.of(h) + r - 1, Index.of(w) + s - 1, ci)), f32(at(taps, r, s, ci, co)))
    total = reduce("sum", r, reduce("sum", s, reduce("sum", ci, product)))
    kernel = Kernel("convolution", (stored("y", (5, 19, 18), total),))
    program = check(kernel, schedule(kernel, x0=1, r2="loop 1", r1="loop 1", r0=channels), tolerance=1e-4)
    (dot,) = statements(program, Dot)
    assert dot.a.dtype == BF16 and dot.acc is not None
    assert not any(c.op == "add" and c.out.axes == dot.out.axes for c in statements(program, Compute)), "one accumulator"
    assert len(demand(Work(kernel)).accumulators) == 1, "and the model knows"
    check(kernel, schedule(kernel, x0=2, x1=2, r2="loop 2", r1="resident", r0=channels), tolerance=1e-4)


@pytest.mark.parametrize("same", [True, False])
def test_two_convolutions_of_one_input_go_on_with_an_accumulator_each(same: bool) -> None:
    w, co = axes_of(19, 18)
    x = Tensor("x", (19, 40), BF16)

    def total(name: str, tap: Axis, channel: Axis) -> Term:
        taps = Tensor(name, (tap.extent, 40, 18), BF16)
        product = op("mul", f32(at(x, Index.of(w) + tap - 1, channel)), f32(at(taps, tap, channel, co)))
        return reduce("sum", tap, reduce("sum", channel, product))

    tap, channel = Axis("r1", 3), Axis("r0", 40)
    pair = total("one", tap, channel), total("two", tap if same else Axis("r3", 5), channel)
    kernel = Kernel("pair", (stored("y", (19, 18), op("mul", *pair)),))
    program = check(kernel, schedule(kernel, x0=16, x1=32, r0="loop 16", r1="loop 1", r3="loop 1"), tolerance=1e-4)
    dots = statements(program, Dot)
    assert len(dots) == 2 == len({d.acc for d in dots}) and None not in {d.acc for d in dots}
    assert len(statements(program, Loop)) == (2 if same else 4)
    assert not any(c.op == "add" and c.out.axes == dots[0].out.axes for c in statements(program, Compute)), "and nothing else"


# --- attention and other nests ---


def attention(heads: int, groups: int, n: int, d: int, dtype: str, one_pass: bool, causal: bool = True) -> Kernel:
    """q, out: [n, heads*d]; k, v: [n, groups*d]; the heads of a group share k and v."""
    b, i, x = (Axis(f"x{j}", e) for j, e in enumerate((heads, n, d)))
    k, e = Axis("r1", n), Axis("r0", d)
    q, keys, values = (Tensor(name, (n, h * d), dtype) for name, h in (("q", heads), ("k", groups), ("v", groups)))

    def column(h: int, j: Axis) -> Index:
        return Index.of(b) // (heads // h) * d + j

    s = reduce("sum", e, op("mul", f32(at(q, i, column(heads, e))), f32(at(keys, k, column(groups, e)))))
    s = op("mul", s, d**-0.5)
    if causal:
        s = op("where", op("ge", pos(Index.of(i), "int32"), pos(Index.of(k), "int32")), s, -np.inf)
    v = f32(at(values, k, column(groups, x)))
    if one_pass:
        top, bottom = online(k, s, v, dtype), online(k, s, const(1, F32), F32)
    else:
        p = op("exp", op("sub", s, reduce("max", k, s)))
        top, bottom = reduce("sum", k, op("mul", f32(cast(dtype, p)), v)), reduce("sum", k, p)
    return Kernel("attention", (stored("y", (heads, n, d), cast(dtype, op("div", top, bottom))),))


ATTENTION: list[dict[str, Any]] = [
    {"x0": 1, "x1": 16, "x2": "resident", "r0": "resident", "r1": "loop 16"},
    {"x0": 1, "x1": 16, "x2": "resident", "r0": "resident", "r1": "resident"},
    {"x0": 1, "x1": 1, "x2": "resident", "r0": "resident", "r1": "loop 16"},
    {"x0": 2, "x1": 2, "x2": "loop 16", "r0": "loop 8", "r1": "loop 4"},
]


@pytest.mark.parametrize("tiles", ATTENTION)
@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize(("heads", "groups", "n", "d"), [(4, 2, 37, 20), (2, 2, 16, 16)])
def test_attention(heads: int, groups: int, n: int, d: int, one_pass: bool, tiles: dict[str, Any]) -> None:
    for dtype, tolerance in ((F32, 1e-4), (BF16, 3e-2)):
        kernel = attention(heads, groups, n, d, dtype, one_pass)
        program = check(kernel, schedule(kernel, **tiles), tolerance=tolerance)
        if tiles is ATTENTION[0]:
            dots = [dtype] * (2 if one_pass or n <= 16 else 3)
            assert [s.a.dtype for s in statements(program, Dot)] == dots
            assert len(statements(program, Loop)) == (0 if n <= 16 else 1 if one_pass else 2)


@pytest.mark.parametrize("one_pass", [True, False])
def test_attention_merges_heads_by_its_index(one_pass: bool) -> None:
    heads, n, d = 3, 17, 16
    kernel = attention(heads, heads, n, d, F32, one_pass, causal=False)
    (x0, x1), term = axes_of(n, heads * d), kernel.outputs[0].term
    h, i, x = kernel.axes
    merged = substitute(term, {i: Index.of(x0), h: Index.of(x1) // d, x: Index.of(x1) % d})
    kernel = Kernel("merged", (stored("y", (n, heads * d), merged),))
    check(kernel, schedule(as_run(kernel), x1_16=1, x0=8, x1=16, r1="loop 8", r0="resident"), tolerance=1e-4)


@pytest.mark.parametrize("r1", ["loop 16", "loop 1", "resident"])
@pytest.mark.parametrize("one_pass", [True, False])
def test_cross_entropy_nests_its_loops(one_pass: bool, r1: str) -> None:
    rows, vocabulary, width = 20, 45, 37
    (x0,), v, d = axes_of(rows), Axis("r1", vocabulary), Axis("r0", width)
    h, w, labels = Tensor("h", (rows, width), BF16), Tensor("w", (vocabulary, width), BF16), Tensor("labels", (rows,), "int32")
    s = reduce("sum", d, op("mul", f32(at(h, x0, d)), f32(at(w, v, d))))
    largest = reduce("max", v, s)
    total = online(v, s, const(1, F32), F32) if one_pass else reduce("sum", v, op("exp", op("sub", s, largest)))
    column = load(w, (Index.dynamic(0, 0, vocabulary - 1), Index.of(d)), (at(labels, x0),))
    target = reduce("sum", d, op("mul", f32(at(h, x0, d)), f32(column)))
    kernel = Kernel("loss", (stored("y", (rows,), op("sub", op("add", op("log", total), largest), target)),))
    picked = {labels: generator().integers(0, vocabulary, rows).astype("int32")}
    program = check(kernel, schedule(kernel, x0=16, r1=r1, r0="loop 16"), picked, tolerance=1e-4)
    assert statements(program, Dot) or r1 == "loop 1"
    check(kernel, schedule(kernel, x0=2, r1=r1, r0="resident"), picked, tolerance=1e-4)


@pytest.mark.parametrize("weight", [F32, BF16])
def test_online_sums_at_special_values(weight: str) -> None:
    (x0, x1), k = axes_of(7, 16), Axis("r0", 37)
    s, v = Tensor("s", (7, 37), F32), Tensor("v", (37, 16), BF16)
    top = online(k, at(s, x0, k), f32(at(v, k, x1)), weight)
    kernel = Kernel("soft", (stored("y", (7, 16), top), stored("total", (7,), online(k, at(s, x0, k), const(1, F32), F32), [x0])))
    scores = generator().standard_normal((7, 37)).astype(F32) * 30
    spoil(scores)
    for r0 in ("loop 16", "loop 1", "loop 4", "resident"):
        for x0_tile in (1, 16):
            check(kernel, schedule(kernel, x0=x0_tile, r0=r0), {s: scores}, tolerance=1e-2)


@pytest.mark.parametrize("dtype", [F32, BF16, "int32", "bool"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes_at_special_values(name: str, dtype: str) -> None:
    """Of ties the first, a NaN before all, in a row of the least value too; beside the extreme itself."""
    (x0,), k, s = axes_of(7), Axis("r0", 37), Tensor("s", (7, 37), dtype)
    places = (
        online(k, at(s, x0, k), pos(Index.of(k), "int32"), dtype, name),
        online(k, at(s, x0, k), pos(Index.of(k) * -3 + 7, "int16"), dtype, name),
        reduce(name[3:], k, at(s, x0, k)),
    )
    kernel = Kernel("place", tuple(stored(f"y{n}", (7,), p) for n, p in enumerate(places)))
    scores = generator().integers(0, 2, (7, 37)) if dtype == "bool" else generator().integers(-4, 5, (7, 37))
    scores = scores.astype(dtype)
    if dtype in (F32, BF16):
        spoil(scores)
    for r0 in ("loop 16", "loop 1", "loop 4", "resident"):
        for x0_tile in (1, 16):
            program = check(kernel, schedule(kernel, x0=x0_tile, r0=r0), {s: scores})
            assert len(statements(program, Loop)) == (r0 != "resident")


@pytest.mark.parametrize("dtype", [F32, "float64", BF16])
def test_squared_deviations_from_a_running_mean(dtype: str) -> None:
    """One pass, and no digits lost where the mean is large beside the deviation; what overflows is infinite, not NaN."""
    (x0,), k, s = axes_of(7), Axis("r0", 37), Tensor("s", (7, 37), dtype)
    mean = op("div", reduce("sum", k, cast("float64" if dtype == "float64" else F32, at(s, x0, k))), 37)
    element = cast(mean.dtype, at(s, x0, k))
    kernel = Kernel("moments", (stored("y", (7,), online(k, element, const(1, mean.dtype), mean.dtype, "deviations")),
                                stored("mean", (7,), mean)))  # fmt: skip
    values = generator().standard_normal((7, 37)) + np.array([0, 1, 1e3, 1e6, -1e6, 0, 0])[:, None]
    values[5], values[6, 3] = 3e38 if dtype != BF16 else 1e38, np.inf
    values = values.astype(dtype)
    for r0 in ("loop 16", "loop 1", "loop 4", "resident"):
        for x0_tile in (1, 16):
            plan = schedule(kernel, x0=x0_tile, r0=r0)
            program = lower(kernel, plan)
            assert len(statements(program, Loop)) == (r0 != "resident")
            y, _ = interpret(program, [values])
            wide = values[:5].astype(np.float64)
            centre = wide.mean(1, keepdims=True)
            step = 4 * np.finfo(mean.dtype).eps * np.abs(centre[:, 0])  # rounding of a mean (Chan and Lewis, 1979)
            wanted = ((wide - centre) ** 2).sum(1)
            assert np.all(np.abs(y[:5] - wanted) <= 2e-5 * wanted + step * np.sqrt(37 * wanted) + 37 * step**2)
            assert np.isnan(y[6]) and not np.isnan(y[5])


# --- what programs look like ---


def test_axes_may_share_a_name() -> None:
    (x0,), short, long, x = axes_of(3), Axis("r0", 5), Axis("r0", 13), Tensor("x", (3, 13), F32)
    term = op("div", reduce("sum", short, at(x, x0, short)), reduce("max", long, at(x, x0, long)))
    kernel = Kernel("alike", (stored("y", (3,), term),))
    for r0 in ("resident", "loop 4"):
        check(kernel, schedule(kernel, r0=r0))


def test_long_chains_are_lowered() -> None:
    (x0,) = axes_of(5)
    term = at(Tensor("x", (5,), BF16), x0)
    for _ in range(200):
        term = op("abs", op("neg", term))
    kernel = Kernel("chain", (stored("y", (5,), term),))
    check(kernel, schedule(kernel))


def test_large_tensors_get_wide_offsets() -> None:
    x0, x1 = axes_of(1 << 16, 1 << 15)
    kernel = Kernel("large", (stored("y", (1 << 16, 1 << 15), op("neg", at(Tensor("x", (1 << 16, 1), F32), x0, 0))),))
    program = lower(kernel, schedule(kernel))
    assert [s.wide for s in statements(program, Load)] == [False]
    assert [s.wide for s in statements(program, Store)] == [True]


def test_loads_stay_out_of_padding() -> None:
    (x0,), r, x = axes_of(3), Axis("r0", 20), Tensor("x", (3, 64), F32)
    inside, crossing = (reduce("sum", r, at(x, x0, Index.of(r) + start)) for start in (40, 50))
    kernel = Kernel("padding", (stored("y", (3,), op("add", inside, crossing)),))
    program = check(kernel, schedule(kernel, x0=1, r0=16))
    first, second = statements(program, Load)
    assert first.guards == ((Index.of(r), 20),)
    assert second.guards == ((Index.of(r) + 50, 64),)
    assert not statements(program, Compute)[0].op == "where", "what a load does not read is 0 already"


def test_programs_are_deterministic_and_say_what_they_are() -> None:
    kernel = attention(4, 2, 37, 20, BF16, True)
    plan = schedule(kernel, **ATTENTION[0])
    program = lower(kernel, plan)
    assert repr(program) == repr(lower(kernel, plan))
    assert program.header == (
        *kernel.formula.splitlines(),
        "in  q: bfloat16[37,80]",
        "in  k: bfloat16[37,40]",
        "in  v: bfloat16[37,40]",
        "out y: bfloat16[4,37,20]",
        "tiles x0:4 by 1 (grid), x1:37 by 16 (grid), x2:20 by 32 (resident), r1:37 by 16 (loop)",
    )


# --- schedules that do not fit ---


def test_schedules_that_do_not_fit_are_refused() -> None:
    kernel = softmax(5, 37)
    x0, x1 = kernel.axes
    r = Axis("r0", 37)
    fit = (TileAxis(x0, 1, "grid"), TileAxis(x1, 64, "resident"))
    for last, message in [
        ((), "axis r0 of extent 37: a schedule has a tile for every axis, got none; add one"),
        ((TileAxis(r, 24, "loop"),), "axis r0 of extent 37: a tile is a power of two, got 24; round it up"),
        (
            (TileAxis(r, 32, "resident"),),
            "axis r0 of extent 37: a resident tile covers its axis, got 32; enlarge it or choose loop",
        ),
        ((TileAxis(r, 64, "block"),), "axis r0 of extent 37: a role is grid, loop or resident, got 'block'; choose one"),
        (
            (TileAxis(r, 64, "grid"),),
            "axis r0 of extent 37: a reduction is resident or a loop, got grid; split the reduction into two kernels",
        ),
    ]:
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            lower(kernel, Schedule((*fit, *last)))


# --- anything ---

OPERATORS = ["add", "sub", "mul", "max", "min"]
EXTENTS = st.sampled_from([1, 2, 3, 5, 8, 17])


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A kernel of random depth with up to two nested reductions, at offsets that leave the tensors."""
    x = [Axis(f"x{d}", draw(EXTENTS)) for d in range(2)]
    r = [Axis(f"r{d}", draw(EXTENTS)) for d in range(2)]
    tensors = [Tensor(name, (draw(EXTENTS), draw(EXTENTS)), F32) for name in "ab"]

    def term(depth: int, axes: list[Axis], level: int) -> Term:
        form = draw(st.sampled_from(["load", "op", "op", "reduce", "online", "deviations"])) if depth else "load"
        if form == "load":
            index = [Index.of(draw(st.sampled_from(axes))) + draw(st.integers(-1, 2)) for _ in range(2)]
            return load(draw(st.sampled_from(tensors)), index)
        if form == "op":
            return op(draw(st.sampled_from(OPERATORS)), *(term(depth - 1, axes, level) for _ in range(2)))
        if level < 0:
            return term(depth - 1, axes, level)
        inner = [*axes, r[level]]
        if form == "online":
            return online(r[level], term(depth - 1, inner, level - 1), term(depth - 1, inner, level - 1), F32)
        if form == "deviations":
            return online(r[level], term(depth - 1, inner, level - 1), const(1, F32), F32, form)
        return reduce(draw(st.sampled_from(["sum", "max", "min"])), r[level], term(depth - 1, inner, level - 1))

    shape = (x[0].extent, x[1].extent)
    outputs = [stored("y", shape, term(4, x, 1)), stored("z", (shape[0],), term(3, x[:1], 1), output_axes(shape[:1]))]
    return Kernel("anything", tuple(outputs))


@st.composite
def plans(draw: st.DrawFn, kernel: Kernel) -> Schedule:
    ways = st.sampled_from(["resident", *(way for tile in (1, 2, 4, 16, 32) for way in (f"{tile}", f"loop {tile}"))])
    tiles: dict[str, Any] = {axis: draw(ways) for axis in ("x0", "x1", "r0", "r1")}
    return schedule(kernel, swizzle=draw(st.integers(1, 2)), **tiles)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_kernel_under_any_schedule(data: st.DataObject) -> None:
    kernel = data.draw(kernels())
    check(kernel, data.draw(plans(kernel)), tolerance=1e-3)
