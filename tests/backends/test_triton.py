"""The Triton printer: hand-built tile programs, run by Triton's interpreter, compared with NumPy and compiled for cards."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from eqsat.backends.triton import compile_report, emit, launch
from eqsat.backends.triton.compiler import capability, triton_ir
from eqsat.backends.triton.report import load_bits, resident_warps
from eqsat.index import Axis, Index
from eqsat.notation import Tensor
from eqsat.scalars import DTYPES, SCALARS
from eqsat.tile import (
    Carry,
    Cast,
    Compute,
    Const,
    Dot,
    Load,
    Loop,
    Position,
    Reduce,
    Statement,
    Store,
    TileAxis,
    TileProgram,
    Value,
    grid_position,
)

interpret = pytest.importorskip("eqsat.backends.triton.interpret", reason="needs triton")

Array = np.ndarray[Any, Any]
Item = Index | Axis | int


# --- building programs --------------------------------------------------------------------------------------------------


class Body:
    """Statements in order; every method appends one and returns its value."""

    def __init__(self, *axes: TileAxis) -> None:
        self.axes = axes
        self.out: list[Statement] = []
        self.serial = [0]

    def inner(self) -> Body:
        body = Body(*self.axes)
        body.serial = self.serial
        return body

    def value(self, name: str, dtype: str, axes: Iterable[Axis]) -> Value:
        self.serial[0] += 1
        wanted = set(axes)
        return Value(f"{name}{self.serial[0]}", dtype, tuple(t.axis for t in self.axes if t.axis in wanted and t.tile > 1))

    def guards(self, index: Iterable[Index]) -> tuple[tuple[Index, int], ...]:
        used = {a for i in index for a in i.axes}
        return tuple((Index.of(t.axis), t.axis.extent) for t in self.axes if t.axis in used and t.ragged)

    def load(self, tensor: Tensor, *items: Item, operands: tuple[Value, ...] = (), other: float = 0, **options: Any) -> Value:
        index = tuple(map(Index.of, items))
        axes = {a for i in index for a in i.axes} | {a for v in operands for a in v.axes}
        order = options.pop("order", None)
        out = self.value(tensor.name, tensor.dtype, axes)
        out = Value(out.name, out.dtype, order or out.axes)
        guards = options.pop("guards", ()) + self.guards([*index, *(Index.of(a) for v in operands for a in v.axes)])
        self.out.append(Load(out, tensor, index, operands, guards, other, options.pop("wide", False)))
        return out

    def const(self, value: float, dtype: str, *axes: Axis) -> Value:
        self.out.append(Const(out := self.value("c", dtype, axes), value))
        return out

    def position(self, index: Item, dtype: str = "int32") -> Value:
        index = Index.of(index)
        self.out.append(Position(out := self.value("at", dtype, index.axes), index))
        return out

    def op(self, name: str, *args: Value) -> Value:
        dtype = "bool" if SCALARS[name].result == "bool" else args[-1].dtype
        self.out.append(Compute(out := self.value(name, dtype, (a for arg in args for a in arg.axes)), name, args))
        return out

    def cast(self, value: Value, dtype: str) -> Value:
        self.out.append(Cast(out := self.value("cast", dtype, value.axes), value))
        return out

    def fold(self, name: str, value: Value, axis: Axis) -> Value:
        self.out.append(Reduce(out := self.value(name, value.dtype, set(value.axes) - {axis}), name, value, axis))
        return out

    def dot(self, a: Value, b: Value, axis: Axis, acc: Value | None = None, dtype: str = "float32") -> Value:
        out = self.value("dot", dtype, (set(a.axes) | set(b.axes)) - {axis})
        self.out.append(Dot(out, a, b, axis, acc))
        return out

    def store(self, tensor: Tensor, value: Value, *items: Item) -> None:
        index = tuple(map(Index.of, items))
        used = {a for i in index for a in i.axes}
        axes = tuple(t.axis for t in self.axes if t.axis in used and t.tile > 1)
        self.out.append(Store(tensor, index, (), value, axes, self.guards(index), False))

    def loop(self, axis: Axis, inits: list[Value], step: Callable[..., list[Value]]) -> list[Value]:
        body = self.inner()
        states = [body.value("state", v.dtype, v.axes) for v in inits]
        results = step(body, *states)
        finals = [body.value("final", v.dtype, v.axes) for v in inits]
        carries = tuple(Carry(*c) for c in zip(states, inits, results, finals, strict=True))
        self.out.append(Loop(axis, carries, tuple(body.out)))
        return finals

    def program(self, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor], **options: Any) -> TileProgram:
        options = dict(num_warps=4, num_stages=2, group=1, header=(name,)) | options
        return TileProgram(name, tuple(inputs), tuple(outputs), self.axes, tuple(self.out), **options)


def run(program: TileProgram, *arrays: Array) -> list[Array]:
    """The interpreter's outputs; the compiler's front end must accept the text too."""
    outputs, report = interpret.run(emit(program), arrays, program.outputs, check=True)
    assert report is not None and report.ok
    triton_ir(emit(program), program, 90)
    return outputs


def normal(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.dtype(dtype))


def close(actual: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(wanted, np.float64), rtol=tolerance, atol=tolerance)


# --- the programs -------------------------------------------------------------------------------------------------------


def pointwise() -> TileProgram:
    i, j = Axis("i", 37), Axis("j", 70)
    x, b, y = Tensor("x", (37, 70), "bfloat16"), Tensor("bias", (70,), "float32"), Tensor("y", (70, 37), "float32")
    body = Body(TileAxis(i, 16, "grid"), TileAxis(j, 32, "grid"))
    wide = body.cast(body.load(x, i, j), "float32")
    total = body.op("add", body.op("tanh", wide), body.load(b, j))
    body.store(y, body.op("mul", total, body.const(0.5, "float32")), j, i)
    return body.program("pointwise", [x, b], [y])


def softmax(columns: int = 100) -> TileProgram:
    r, c = Axis("r", 9), Axis("c", columns)
    x, y = Tensor("x", (9, columns), "float32"), Tensor("y", (9, columns), "float32")
    body = Body(TileAxis(r, 4, "grid"), TileAxis(c, 128, "resident"))
    row = body.load(x, r, c, other=float("-inf"))
    e = body.op("exp", body.op("sub", row, body.fold("max", row, c)))
    body.store(y, body.op("div", e, body.fold("sum", e, c)), r, c)
    return body.program("softmax", [x], [y])


def matmul(dtype: str = "bfloat16", sizes: tuple[int, int, int] = (100, 90, 70), tile: int = 32, **options: Any) -> TileProgram:
    m, n, k = (Axis(name, size) for name, size in zip("mnk", sizes, strict=True))
    a, b = Tensor("a", (m.extent, k.extent), dtype), Tensor("b", (k.extent, n.extent), dtype)
    total = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    c = Tensor("c", (m.extent, n.extent), "int32" if dtype == "int8" else dtype)
    body = Body(TileAxis(m, tile, "grid"), TileAxis(n, tile, "grid"), TileAxis(k, tile, "loop"))

    def step(inner: Body, acc: Value) -> list[Value]:
        return [inner.dot(inner.load(a, m, k), inner.load(b, k, n), k, acc, total)]

    (acc,) = body.loop(k, [body.const(0, total, m, n)], step)
    body.store(c, acc if c.dtype == total else body.cast(acc, c.dtype), m, n)
    return body.program("matmul", [a, b], [c], **options)


def attention(keys: int = 100, width: int = 32, tile: int = 32) -> TileProgram:
    h, m, n, d = Axis("h", 2), Axis("m", 50), Axis("n", keys), Axis("d", width)
    q, k, v = (Tensor(t, (2, s, width), "bfloat16") for t, s in (("q", 50), ("k", keys), ("v", keys)))
    o = Tensor("o", (2, 50, width), "bfloat16")
    body = Body(TileAxis(h, 1, "grid"), TileAxis(m, tile, "grid"), TileAxis(n, tile, "loop"), TileAxis(d, width, "resident"))
    query = body.load(q, h, m, d)

    def step(b: Body, top: Value, weight: Value, acc: Value) -> list[Value]:
        score = b.op("mul", b.dot(query, b.load(k, h, n, d), d), b.const(0.25, "float32"))
        live = b.op("lt", b.position(n), b.const(keys, "int32"))
        score = b.op("where", live, score, b.const(float("-inf"), "float32"))
        top_next = b.op("max", top, b.fold("max", score, n))
        p, rescale = b.op("exp", b.op("sub", score, top_next)), b.op("exp", b.op("sub", top, top_next))
        kept = b.op("mul", acc, rescale)
        acc_next = b.dot(b.cast(p, "bfloat16"), b.load(v, h, n, d), n, kept)
        return [top_next, b.op("add", b.op("mul", weight, rescale), b.fold("sum", p, n)), acc_next]

    start = [body.const(float("-inf"), "float32", m), body.const(0.0, "float32", m), body.const(0.0, "float32", m, d)]
    _, weight, acc = body.loop(n, start, step)
    body.store(o, body.cast(body.op("div", acc, weight), "bfloat16"), h, m, d)
    return body.program("attention", [q, k, v], [o])


# --- right answers ------------------------------------------------------------------------------------------------------


def test_pointwise_broadcasts_transposes_and_masks_ragged_edges(rng: np.random.Generator) -> None:
    x, b = normal(rng, "bfloat16", 37, 70), normal(rng, "float32", 70)
    (y,) = run(pointwise(), x, b)
    close(y, ((np.tanh(x.astype(np.float32)) + b) * 0.5).T)


def test_softmax_of_a_resident_row(rng: np.random.Generator) -> None:
    x = normal(rng, "float32", 9, 100)
    e = np.exp(x - x.max(1, keepdims=True))
    close(run(softmax(), x)[0], e / e.sum(1, keepdims=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_matmul_with_all_sizes_ragged(rng: np.random.Generator, dtype: str) -> None:
    a, b = normal(rng, dtype, 100, 70), normal(rng, dtype, 70, 90)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    close(run(matmul(dtype), a, b)[0], wanted, {"float64": 1e-12, "float32": 1e-4}.get(dtype, 3e-2))


@pytest.mark.parametrize("tile", [16, 32])
def test_matmul_of_int8_accumulates_in_int32(rng: np.random.Generator, tile: int) -> None:
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((100, 70), (70, 90)))
    (c,) = run(matmul("int8", tile=tile), a, b)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


def test_dot_transposes_operands_as_their_axes_require(rng: np.random.Generator) -> None:
    m, n, k = Axis("m", 16), Axis("n", 32), Axis("k", 64)
    for a_shape in ((m, k), (k, m)):
        for b_shape in ((k, n), (n, k)):
            for c_shape in ((m, n), (n, m)):
                a = Tensor("a", tuple(x.extent for x in a_shape), "float32")
                b = Tensor("b", tuple(x.extent for x in b_shape), "float32")
                c = Tensor("c", tuple(x.extent for x in c_shape), "float32")
                body = Body(*(TileAxis(x, x.extent, "resident") for x in (m, n, k)))
                left, right = body.load(a, *a_shape, order=a_shape), body.load(b, *b_shape, order=b_shape)
                out = Value("out", "float32", c_shape)
                body.out.append(Dot(out, left, right, k, None))
                body.store(c, out, *c_shape)
                x, y = normal(rng, "float32", *a.shape), normal(rng, "float32", *b.shape)
                product = (x if a_shape[0] == m else x.T) @ (y if b_shape[0] == k else y.T)
                (z,) = run(body.program("small", [a, b], [c]), x, y)
                close(z, product if c_shape[0] == m else product.T, 1e-4)


def test_attention_in_one_pass_over_keys(rng: np.random.Generator) -> None:
    q, k, v = normal(rng, "bfloat16", 2, 50, 32), normal(rng, "bfloat16", 2, 100, 32), normal(rng, "bfloat16", 2, 100, 32)
    s = np.einsum("hmd,hnd->hmn", q.astype(np.float64), k.astype(np.float64)) * 0.25
    p = np.exp(s - s.max(-1, keepdims=True))
    wanted = np.einsum("hmn,hnd->hmd", p / p.sum(-1, keepdims=True), v.astype(np.float64))
    close(run(attention(), q, k, v)[0], wanted, 2e-2)


def test_nested_loops_with_scalar_and_block_steps(rng: np.random.Generator) -> None:
    """y[i] = sum over r, c of x[i, r, c], c in tiles and r one at a time; the inner state starts as the outer one."""
    i, r, c = Axis("i", 20), Axis("r", 3), Axis("c", 50)
    x, y = Tensor("x", (20, 3, 50), "float32"), Tensor("y", (20,), "float32")
    body = Body(TileAxis(i, 16, "grid"), TileAxis(r, 1, "loop"), TileAxis(c, 16, "loop"))

    def columns(b: Body, acc: Value) -> list[Value]:
        return [b.op("add", acc, b.fold("sum", b.load(x, i, r, c), c))]

    (total,) = body.loop(r, [body.const(0.0, "float32", i)], lambda b, acc: b.loop(c, [acc], columns))
    body.store(y, total, i)
    program = body.program("nested", [x], [y])
    value = normal(rng, "float32", 20, 3, 50)
    close(run(program, value)[0], value.sum((1, 2)), 1e-4)
    assert emit(program).count("state") == emit(program).count("state2"), "one name for the sum, from start to end"


def test_inner_loop_that_starts_anew_each_time(rng: np.random.Generator) -> None:
    """y[i] = sum over r of max over c of x[i, r, c]: the inner start must not be shared with the outer state."""
    i, r, c = Axis("i", 20), Axis("r", 3), Axis("c", 50)
    x, y = Tensor("x", (20, 3, 50), "float32"), Tensor("y", (20,), "float32")
    body = Body(TileAxis(i, 16, "grid"), TileAxis(r, 1, "loop"), TileAxis(c, 16, "loop"))
    lowest = body.const(float("-inf"), "float32", i)

    def rows(b: Body, acc: Value) -> list[Value]:
        step = lambda inner, top: [inner.op("max", top, inner.fold("max", inner.load(x, i, r, c, other=-np.inf), c))]  # noqa: E731
        return [b.op("add", acc, b.loop(c, [lowest], step)[0])]

    (total,) = body.loop(r, [body.const(0.0, "float32", i)], rows)
    body.store(y, total, i)
    value = normal(rng, "float32", 20, 3, 50)
    close(run(body.program("anew", [x], [y]), value)[0], value.max(2).sum(1), 1e-4)


def test_states_that_trade_places() -> None:
    """Fibonacci: (a, b) becomes (b, a + b) at once."""
    t, y = Axis("t", 10), Tensor("y", (2,), "int32")
    body = Body(TileAxis(t, 1, "loop"))
    a, b = body.loop(t, [body.const(0, "int32"), body.const(1, "int32")], lambda i, a, b: [b, i.op("add", a, b)])
    body.store(y, a, 0)
    body.store(y, b, 1)
    np.testing.assert_array_equal(run(body.program("fibonacci", [], [y]))[0], [55, 89])


def test_state_read_after_its_next_value_is_known(rng: np.random.Generator) -> None:
    """y accumulates the old state each pass, so old and new value live together."""
    i, k = Axis("i", 16), Axis("k", 5)
    x, y = Tensor("x", (16, 5), "float32"), Tensor("y", (16,), "float32")
    body = Body(TileAxis(i, 16, "grid"), TileAxis(k, 1, "loop"))

    def step(b: Body, last: Value, total: Value) -> list[Value]:
        following = b.load(x, i, k)
        return [following, b.op("add", total, b.op("mul", last, following))]

    _, total = body.loop(k, [body.const(1.0, "float32", i), body.const(0.0, "float32", i)], step)
    body.store(y, total, i)
    value = normal(rng, "float32", 16, 5)
    wanted = value[:, 0] + (value[:, 1:] * value[:, :-1]).sum(1)
    close(run(body.program("lagged", [x], [y]), value)[0], wanted)


def test_gather_of_rows_by_loaded_numbers(rng: np.random.Generator) -> None:
    i, j = Axis("i", 21), Axis("j", 40)
    table, ids, y = Tensor("table", (50, 40), "float32"), Tensor("ids", (21,), "int32"), Tensor("y", (21, 40), "float32")
    for wide in (False, True):
        body = Body(TileAxis(i, 8, "grid"), TileAxis(j, 64, "resident"))
        row = body.load(ids, i)
        found = body.load(table, Index.dynamic(0, 0, 49), j, operands=(row,), wide=wide)
        body.store(y, found, i, j)
        program = body.program("gather", [table, ids], [y])
        assert ("tl.int64" in emit(program)) == wide
        values, rows = normal(rng, "float32", 50, 40), rng.integers(0, 50, 21, dtype=np.int32)
        np.testing.assert_array_equal(run(program, values, rows)[0], values[rows])


def test_padding_reads_other_outside_both_bounds(rng: np.random.Generator) -> None:
    """y[i] = x[i - 3], and 7 where that is outside."""
    i = Axis("i", 30)
    x, y = Tensor("x", (20,), "float32"), Tensor("y", (30,), "float32")
    body = Body(TileAxis(i, 16, "grid"))
    back = Index.of(i) - 3
    body.store(y, body.load(x, back, other=7.0, guards=((back, 20),)), i)
    value = normal(rng, "float32", 20)
    np.testing.assert_array_equal(run(body.program("pad", [x], [y]), value)[0], np.pad(value, (3, 7), constant_values=7))


def test_views_by_quotients_and_remainders(rng: np.random.Generator) -> None:
    """A reshape of a transpose, and floor division of negative numbers."""
    i = Axis("i", 60)
    x, y, z = Tensor("x", (12, 5), "float32"), Tensor("y", (60,), "float32"), Tensor("z", (60,), "int32")
    body = Body(TileAxis(i, 16, "grid"))
    body.store(y, body.load(x, Index.of(i) % 12, Index.of(i) // 12), i)
    below = Index.of(i) - 31
    hundreds = body.op("mul", body.position(below // 7), body.const(100, "int32"))
    body.store(z, body.op("add", hundreds, body.position(below % 7)), i)
    value = normal(rng, "float32", 12, 5)
    shifted = np.arange(60) - 31
    first, second = run(body.program("views", [x], [y, z]), value)
    np.testing.assert_array_equal(first, value.T.reshape(60))
    np.testing.assert_array_equal(second, shifted // 7 * 100 + shifted % 7)


def test_integers_wrap_and_divide_towards_zero(rng: np.random.Generator) -> None:
    i = Axis("i", 50)
    x, d, y, z = (Tensor(t, (50,), "int32") for t in "xdyz")
    body = Body(TileAxis(i, 32, "grid"))
    a, b = body.load(x, i), body.load(d, i, other=1)
    body.store(y, body.op("mul", a, body.const(48271, "int32")), i)
    body.store(z, body.op("add", body.op("quot", a, b), body.op("rem", a, b)), i)
    left, right = rng.integers(-(2**31), 2**31, 50, dtype=np.int32), rng.integers(1, 100, 50, dtype=np.int32)
    wrapped, divided = run(body.program("integers", [x, d], [y, z]), left, right)
    np.testing.assert_array_equal(wrapped, left * np.int32(48271))
    quotient = np.trunc(left / right).astype(np.int32)
    np.testing.assert_array_equal(divided, quotient + left - quotient * right)


def test_bools_are_loaded_combined_folded_and_stored(rng: np.random.Generator) -> None:
    i, j = Axis("i", 20), Axis("j", 10)
    x, y, z = Tensor("x", (20, 10), "bool"), Tensor("y", (20, 10), "bool"), Tensor("z", (20,), "bool")
    body = Body(TileAxis(i, 8, "grid"), TileAxis(j, 16, "resident"))
    flags = body.load(x, i, j, other=False)
    even = body.op("eq", body.op("and", body.position(j), body.const(1, "int32")), body.const(0, "int32"))
    body.store(y, body.op("and", body.op("not", flags), even), i, j)
    body.store(z, body.fold("or", flags, j), i)
    value = rng.random((20, 10)) < 0.2
    both, some = run(body.program("bools", [x], [y, z]), value)
    np.testing.assert_array_equal(both, ~value & (np.arange(10) % 2 == 0))
    np.testing.assert_array_equal(some, value.any(1))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint8", "int64"])
def test_every_reduction(rng: np.random.Generator, dtype: str) -> None:
    i, j = Axis("i", 8), Axis("j", 16)
    names = ["sum", "prod", "max", "min"] + ([] if dtype == "float32" else ["and", "or"])
    x, outputs = Tensor("x", (8, 16), dtype), [Tensor(f"y_{n}", (8,), dtype) for n in names]
    body = Body(TileAxis(i, 8, "grid"), TileAxis(j, 16, "resident"))
    value = body.load(x, i, j)
    for name, out in zip(names, outputs, strict=True):
        body.store(out, body.fold(name, value, j), i)
    data = normal(rng, dtype, 8, 16) if dtype == "float32" else rng.integers(0, 100, (8, 16)).astype(dtype)
    ufuncs = dict(sum=np.add, prod=np.multiply, max=np.maximum, min=np.minimum)
    ufuncs |= {"and": np.bitwise_and, "or": np.bitwise_or}
    for name, actual in zip(names, run(body.program("folds", [x], outputs), data), strict=True):
        close(actual, ufuncs[name].reduce(data, axis=1, dtype=data.dtype))


@pytest.mark.parametrize("name", [n for n, row in SCALARS.items() if n != "where"])
def test_every_scalar_operation(rng: np.random.Generator, name: str) -> None:
    row, i = SCALARS[name], Axis("i", 40)
    dtype = next(d for k in row.kinds for d, r in DTYPES.items() if r.kind == k and d == r.compute and r.nbytes in (1, 4))
    inputs = [Tensor(f"x{k}", (40,), dtype) for k in range(row.arity)]
    y = Tensor("y", (40,), "bool" if row.result == "bool" else dtype)
    body = Body(TileAxis(i, 32, "grid"))
    body.store(y, body.op(name, *(body.load(x, i, other=1) for x in inputs)), i)
    draw: dict[str, Callable[[], Array]] = {
        "float": lambda: rng.uniform(0.1, 3.0, 40).astype(dtype),
        "bool": lambda: rng.random(40) < 0.5,
    }
    arrays = [draw.get(DTYPES[dtype].kind, lambda: rng.integers(1, 7, 40).astype(dtype))() for _ in inputs]
    (actual,) = run(body.program("one_operation", inputs, [y]), *arrays)
    close(actual, np.asarray(row.reference(*arrays)), 1e-5)


def test_casts_round_truncate_and_test_for_zero() -> None:
    i = Axis("i", 8)
    x = Tensor("x", (8,), "float32")
    targets = ["bfloat16", "float16", "int32", "bool", "float64", "float8_e4m3fn"]
    outputs = [Tensor(f"y_{t}", (8,), t) for t in targets]
    body = Body(TileAxis(i, 8, "grid"))
    value = body.load(x, i)
    for target, out in zip(targets, outputs, strict=True):
        body.store(out, body.cast(value, target), i)
    data = np.array([0.0, -2.7, 1.00390625, 1.01171875, 3.99, 100.3, -0.0, 7.5], np.float32)
    for target, actual in zip(targets, run(body.program("casts", [x], outputs), data), strict=True):
        np.testing.assert_array_equal(actual, data.astype(np.dtype(target)))


@pytest.mark.parametrize("source", ["bool", "uint8", "int32", "int64"])
def test_integers_become_floats_of_every_width(source: str) -> None:
    i = Axis("i", 8)
    x = Tensor("x", (8,), source)
    outputs = [Tensor(f"y_{t}", (8,), t) for t in DTYPES if DTYPES[t].kind == "float"]
    body = Body(TileAxis(i, 8, "grid"))
    value = body.load(x, i)
    for out in outputs:
        body.store(out, body.cast(value, out.dtype), i)
    data = np.array([0, 1, 17, 19, 25, 100, 231, 0]).astype(source)
    for out, actual in zip(outputs, run(body.program("casts", [x], outputs), data), strict=True):
        np.testing.assert_array_equal(actual, data.astype(np.dtype(out.dtype)))


def test_constants_alone_have_their_dtype() -> None:
    i = Axis("i", 8)
    y, z = Tensor("y", (8,), "float64"), Tensor("z", (8,), "uint8")
    body = Body(TileAxis(i, 8, "grid"))
    body.store(y, body.op("add", body.const(0.1, "float64"), body.const(0.2, "float64")), i)
    body.store(z, body.op("add", body.const(200, "uint8"), body.const(100, "uint8")), i)
    first, second = run(body.program("constants", [], [y, z]))
    assert (first == 0.1 + 0.2).all() and (second == 44).all()


def test_store_of_one_tile_among_many_and_constant_guards(rng: np.random.Generator) -> None:
    """A total over rows stored by the program of the first column only; a load that no lane may make."""
    i, j = Axis("i", 8), Axis("j", 40)
    x, y = Tensor("x", (8,), "float32"), Tensor("y", (8,), "float32")
    body = Body(TileAxis(i, 8, "grid"), TileAxis(j, 16, "grid"))
    never = body.load(x, 99, guards=((Index.of(99), 8),), other=2.0)
    value = body.op("mul", body.load(x, i, guards=((Index.of(3), 8),)), never)
    body.out.append(Store(y, (Index.of(i),), (), value, (i, j), ((Index.of(j), 1),), False))
    data = normal(rng, "float32", 8)
    np.testing.assert_array_equal(run(body.program("first_column", [x], [y]), data)[0], data * 2)


# --- order of programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(1, 5, 4), (2, 5, 3), (2, 4, 4), (3, 1, 4), (3, 2, 1)])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_programs_visit_tiles_in_the_order_of_grid_position(counts: tuple[int, int, int], group: int) -> None:
    axes = [Axis(name, 2 * count) for name, count in zip("bmn", counts, strict=True)]
    body = Body(*(TileAxis(a, 2, "grid") for a in axes))
    y = Tensor("y", tuple(a.extent for a in axes), "int32")
    body.store(y, body.const(1, "int32"), *axes)
    program = body.program("order", [], [y], group=group)
    for number in range(program.programs):
        (out,), _ = interpret.run(emit(program), [], [y], programs=[number])
        position = grid_position(program, number)
        wanted = np.zeros(y.shape, bool)
        wanted[tuple(slice(2 * position[a], 2 * position[a] + 2) for a in axes)] = True
        np.testing.assert_array_equal(out == 1, wanted)


@pytest.mark.parametrize(("extents", "persistent"), [((9, 7), 4), ((16, 6), 3), ((8, 0), 2), ((5, 5), 99)])
def test_persistent_programs_take_every_tile_once(extents: tuple[int, int], persistent: int) -> None:
    m, n = (Axis(name, extent) for name, extent in zip("mn", extents, strict=True))
    body = Body(TileAxis(m, 2, "grid"), TileAxis(n, 2, "grid"))
    y = Tensor("y", extents, "int32")
    body.store(y, body.const(1, "int32"), m, n)
    program = body.program("order", [], [y], group=2, persistent=persistent)
    assert program.programs == min(persistent, program.tile_count)
    (out,), report = interpret.run(emit(program), [], [y], check=True)
    assert report and report.ok
    np.testing.assert_array_equal(out, 1)
    for number in range(program.programs):
        (out,), _ = interpret.run(emit(program), [], [y], programs=[number])
        wanted = np.zeros(extents, bool)
        for tile in range(number, program.tile_count, program.programs):
            position = grid_position(program, tile)
            wanted[tuple(slice(2 * position[a], 2 * position[a] + 2) for a in (m, n))] = True
        np.testing.assert_array_equal(out == 1, wanted)


# --- the sanitizer ------------------------------------------------------------------------------------------------------


def copy_program(extent: int, stored: int, tile: int = 16) -> TileProgram:
    """Copies with guards for `extent` numbers between arrays of 20."""
    i = Axis("i", extent)
    x, y = Tensor("x", (20,), "float32"), Tensor("y", (20,), "float32")
    body = Body(TileAxis(i, tile, "grid"))
    value = body.load(x, i)
    body.store(y, value, Index.of(i) % stored if stored < extent else i)
    return body.program("copy", [x], [y])


def test_access_outside_an_array_is_a_fault() -> None:
    with pytest.raises(interpret.KernelFault, match=r"load out of bounds: 12 lanes in program 1, the first at byte 80 of x_ptr"):
        run(copy_program(32, 32), np.zeros(20, np.float32))


def test_races_and_unwritten_bytes_are_reported() -> None:
    program = copy_program(20, 16)
    _, report = interpret.run(emit(program), [np.zeros(20, np.float32)], program.outputs, check=True)
    assert report.races == {"y_ptr": 4} and report.unwritten == {"y_ptr": 16} and not report.ok
    assert report.loaded == {"x_ptr": 80} and report.unique_stored == {"y_ptr": 64}


def test_what_no_program_stores_is_poison() -> None:
    program = copy_program(20, 20)
    (out,), report = interpret.run(emit(program), [np.ones(20, np.float32)], program.outputs, programs=[1])
    assert report is None and np.isnan(out[:16]).all() and (out[16:] == 1).all()


# --- the text -----------------------------------------------------------------------------------------------------------


def test_equal_programs_have_equal_text() -> None:
    assert emit(attention()) == emit(attention())


def test_text_reads_as_a_person_would_write_it() -> None:
    text = emit(matmul(group=8))
    assert ast.parse(text)
    assert max(map(len, text.splitlines())) <= 120
    loop = text[text.index("    for ") : text.index("    tl.store")]
    assert "in_m[:, None] & in_k[None, :]" in loop
    assert "state" in loop and "final" not in text, "the carried sum keeps one name"
    assert "+ 0" not in text and "* 1 " not in text and "((" not in loop


def test_names_that_python_or_triton_keep_are_changed() -> None:
    i = Axis("tl", 16)
    x, y = Tensor("lambda", (16,), "float32"), Tensor("0/out", (16,), "float32")
    body = Body(TileAxis(i, 16, "grid"))
    body.store(y, body.load(x, i), i)
    np.testing.assert_array_equal(run(body.program("odd", [x], [y]), np.arange(16, dtype=np.float32))[0], np.arange(16))


def test_wide_offsets_are_computed_in_64_bits() -> None:
    i, j = Axis("i", 1 << 17), Axis("j", 1 << 16)
    x, y = Tensor("x", (i.extent, j.extent), "int8"), Tensor("y", (i.extent, j.extent), "int8")
    body = Body(TileAxis(i, 1, "grid"), TileAxis(j, 64, "grid"))
    body.store(y, body.load(x, i, j, wide=True), i, j)
    assert "x_ptr + i.to(tl.int64) * 65536 + j" in emit(body.program("wide", [x], [y]))


# --- compiling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cc", [80, 90])
@pytest.mark.parametrize("make", [softmax, attention, pointwise])
def test_kernels_compile_without_spills(make: Callable[[], TileProgram], cc: int) -> None:
    program = make()
    report = compile_report(emit(program), program, cc)
    assert report.spills == 0 and report.stack_nbytes == 0
    assert 0 < report.registers < 256 and report.warps_resident >= 8
    assert (report.matrix_instructions > 0) == (make is attention)


@pytest.mark.parametrize("persistent", [0, 48])
@pytest.mark.parametrize("cc", [80, 90, 100])
def test_matmul_compiles_to_tensor_cores_and_wide_loads(cc: int, persistent: int) -> None:
    program = matmul(sizes=(512, 512, 512), tile=64, num_stages=3, persistent=persistent)
    report = compile_report(emit(program), program, cc)
    assert report.spills == 0 and report.matrix_instructions > 0
    assert report.widest_load_bits == 128
    assert report is compile_report(emit(program), program, f"sm_{cc}"), "kept in memory"


def test_the_hot_loop_is_that_of_the_product_and_its_cycles_are_no_less_than_the_matrix_unit_takes() -> None:
    program = matmul(sizes=(512, 512, 4096), tile=64, num_stages=3)  # a short loop would be unrolled
    for cc, rate in ((80, 1024), (90, 2048)):  # multiply-adds a cycle
        report = compile_report(emit(program), program, cc)
        assert report.hot_loop is not None and 20 < report.hot_loop.instructions < report.instructions
        assert 0 < report.hot_loop.matrix_instructions <= report.matrix_instructions
        resident = report.warps_resident // program.num_warps
        assert report.hot_loop.cycles >= resident * 64**3 / rate


def test_facts_of_the_report() -> None:
    assert load_bits("LDG.E.128") == load_bits("LDGSTS.E.BYPASS.128") == 128
    assert load_bits("LDG.E.U16.CONSTANT") == 16 and load_bits("LDG.E") == 32 and load_bits("LDS.128") == 0
    assert resident_warps(90, 128, 0, 4) == (16, "registers")
    assert resident_warps(90, 32, 100 * 1024, 4) == (8, "shared memory")
    assert capability("sm_90a") == capability("cuda:90") == capability(90) == 90
    with pytest.raises(ValueError, match="expected a compute capability"):
        capability("h100")


# --- from JAX -----------------------------------------------------------------------------------------------------------


def test_call_from_jax_lowers_to_the_custom_call() -> None:
    program = matmul()
    source = emit(program)
    arguments = [jax.ShapeDtypeStruct(t.shape, np.dtype(t.dtype)) for t in program.inputs]
    traced = jax.jit(lambda a, b: launch.call(source, program, a, b, target="sm_90")[0] * 2).trace(*arguments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__gpu$xla.gpu.triton" in text and "tt.dot" in text
    assert "eqsat-triton" not in text, "no path of this machine"
    with pytest.raises(TypeError, match=r"matmul: expected arrays"):
        launch.call(source, program, np.zeros((3, 3), ml_dtypes.bfloat16))


def test_a_comparison_of_numbers_joins_one_of_blocks():
    text = """
import triton
import triton.language as tl

GRID = (1,)


@triton.jit
def either(x_ptr, y_ptr):
    i = tl.arange(0, 4)
    x = tl.load(x_ptr + i)
    zero = tl.full((), 0.0, tl.float32)
    tl.store(y_ptr + i, tl.where((zero == 1.0) | (x == 2.0), 7.0, x))
"""
    x = np.arange(4, dtype=np.float32)
    (y,), _ = interpret.run(text, [x], [x])
    np.testing.assert_array_equal(y, [0, 1, 7, 3])
