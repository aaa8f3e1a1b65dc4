"""The Pallas printer: hand-built tile programs, run by the interpreter and compared with NumPy."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqsat import notation
from eqsat.backends.pallas import emit, load, run
from eqsat.index import Axis, Index
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Stored, Tensor, Term
from eqsat.schedule import Schedule
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
)

RNG = np.random.default_rng(0)


def indices(items: Iterable[Index | Axis | int]) -> tuple[Index, ...]:
    return tuple(Index.of(i) for i in items)


class Build:
    """Statements of a program under construction; guards of ragged axes are put in, as lowering does."""

    def __init__(self, *axes: TileAxis) -> None:
        self.axes = axes
        self.body: list[Statement] = []
        self.number = 0

    def value(self, name: str, dtype: str, axes: Iterable[Axis]) -> Value:
        self.number += 1
        tiles = {t.axis: t.tile for t in self.axes}
        return Value(name or f"v{self.number}", dtype, tuple(a for a in axes if tiles[a] > 1))

    def guards(self, index: Iterable[Index], extra: Iterable[tuple[Index, int]] = ()) -> tuple[tuple[Index, int], ...]:
        used = {axis for i in index for axis in i.axes}
        return (*((Index.of(t.axis), t.axis.extent) for t in self.axes if t.ragged and t.axis in used), *extra)

    def load(self, tensor: Tensor, *index: Any, axes=None, operands=(), other: Any = 0, guards=(), name: str = "") -> Value:
        index = indices(index)
        free = [t.axis for t in self.axes if any(t.axis in i.axes for i in index)]
        out = self.value(name or tensor.name, tensor.dtype, free if axes is None else axes)
        self.body.append(Load(out, tensor, index, operands, self.guards(index, guards), other, False))
        return out

    def const(self, value: float, dtype: str, *axes: Axis, name: str = "") -> Value:
        out = self.value(name, dtype, axes)
        self.body.append(Const(out, value))
        return out

    def pos(self, index: Index | Axis, *axes: Axis, dtype: str = "int32", name: str = "") -> Value:
        out = self.value(name, dtype, axes)
        self.body.append(Position(out, Index.of(index)))
        return out

    def do(self, op: str, *args: Value, name: str = "", order=None) -> Value:
        free = [t.axis for t in self.axes if any(t.axis in a.axes for a in args)]
        bool_ = op in ("eq", "ne", "lt", "le", "gt", "ge")
        out = self.value(name, "bool" if bool_ else args[-1].dtype, order or free)
        self.body.append(Compute(out, op, args))
        return out

    def cast(self, dtype: str, arg: Value, name: str = "") -> Value:
        out = self.value(name, dtype, arg.axes)
        self.body.append(Cast(out, arg))
        return out

    def reduce(self, op: str, arg: Value, axis: Axis, name: str = "") -> Value:
        out = self.value(name, arg.dtype, [a for a in arg.axes if a != axis])
        self.body.append(Reduce(out, op, arg, axis))
        return out

    def dot(self, a: Value, b: Value, axis: Axis, out: Iterable[Axis], dtype: str = "float32", acc=None, name: str = "") -> Value:
        result = self.value(name, dtype, out)
        self.body.append(Dot(result, a, b, axis, acc))
        return result

    def loop(self, axis: Axis, states: dict[str, Value], step: Any) -> list[Value]:
        """`step(*states)` appends the body and gives the results."""
        outer, self.body = self.body, []
        inner = [self.value(name, v.dtype, v.axes) for name, v in states.items()]
        results = step(*inner)
        finals = [self.value(f"{name}_end", v.dtype, v.axes) for name, v in states.items()]
        carries = tuple(Carry(*c) for c in zip(inner, states.values(), results, finals, strict=True))
        self.body = [*outer, Loop(axis, carries, tuple(self.body))]
        return finals

    def store(self, tensor: Tensor, value: Value, *index: Any, axes: Iterable[Axis], guards=()) -> None:
        index = indices(index)
        tiles = {t.axis: t.tile for t in self.axes}
        axes = tuple(a for a in axes if tiles[a] > 1)
        self.body.append(Store(tensor, index, (), value, axes, self.guards(index, guards), False))

    def program(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor], header=("A kernel.",)) -> TileProgram:
        return TileProgram("k", tuple(inputs), tuple(outputs), self.axes, tuple(self.body), 4, 2, 1, header)


def check(program: TileProgram, arrays: list[Any], expected: list[Any], tolerance: float = 1e-5) -> str:
    source = emit(program)
    assert source == emit(program)
    ast.parse(source)
    assert "pl.load" not in source and "pl.store" not in source
    assert all(len(line) <= 130 for line in source.splitlines()), source
    results = run(source, arrays)
    assert isinstance(results, tuple) and len(results) == len(expected)
    for result, want, tensor in zip(results, expected, program.outputs, strict=True):
        assert result.shape == tensor.shape and result.dtype == jnp.dtype(tensor.dtype)
        got, want = (np.asarray(a).astype(np.float64) for a in (result, want))
        np.testing.assert_allclose(got, want, tolerance, tolerance)
    return source


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def bf16(*shape: int) -> np.ndarray:
    return normal(*shape).astype(jnp.bfloat16)


def tiled_axis(name: str, extent: int, tile: int, role: str = "grid") -> tuple[Axis, TileAxis]:
    axis = Axis(name, extent)
    return axis, TileAxis(axis, tile, role)


def pointwise() -> TileProgram:
    (m, tm), (n, tn) = tiled_axis("m", 100, 32), tiled_axis("n", 70, 64)
    x, b, y = Tensor("x", (100, 70), "float32"), Tensor("b", (70,), "float32"), Tensor("y", (100, 70), "float32")
    k = Build(tm, tn)
    t = k.do("add", k.load(x, m, n), k.load(b, n))
    k.store(y, k.do("mul", t, k.const(2.0, "float32")), m, n, axes=(m, n))
    return k.program((x, b), (y,))


def test_pointwise_ragged_with_broadcast():
    x, b = normal(100, 70), normal(70)
    source = check(pointwise(), [x, b], [(x + b) * 2])
    assert "* 2.0" in source and "portable" not in source


def test_broadcast_over_rows_and_operand_order():
    (m, tm), (n, tn) = tiled_axis("m", 40, 16), tiled_axis("n", 48, 16)
    x, c, y = Tensor("x", (48, 40), "float32"), Tensor("c", (40,), "float32"), Tensor("y", (48, 40), "float32")
    k = Build(tm, tn)
    xt = k.load(x, n, m, axes=(m, n))
    k.store(y, k.do("sub", xt, k.load(c, m)), n, m, axes=(n, m))
    xs, cs = normal(48, 40), normal(40)
    assert ".T" not in check(k.program((x, c), (y,)), [xs, cs], [xs - cs])


def test_transposed_store_ragged():
    (m, tm), (n, tn) = tiled_axis("m", 33, 16), tiled_axis("n", 50, 32)
    x, y = Tensor("x", (33, 50), "float32"), Tensor("y", (50, 33), "float32")
    k = Build(tm, tn)
    k.store(y, k.do("exp", k.load(x, m, n)), n, m, axes=(n, m))
    xs = normal(33, 50)
    check(k.program((x,), (y,)), [xs], [np.exp(xs).T])


def softmax() -> TileProgram:
    (m, tm), (n, tn) = tiled_axis("m", 20, 8), tiled_axis("n", 100, 128, "resident")
    x, y = Tensor("x", (20, 100), "float32"), Tensor("y", (20, 100), "float32")
    k = Build(tm, tn)
    xs = k.load(x, m, n, other=float("-inf"))
    e = k.do("exp", k.do("sub", xs, k.reduce("max", xs, n, name="top")), name="weight")
    k.store(y, k.do("div", e, k.reduce("sum", e, n, name="norm")), m, n, axes=(m, n))
    return k.program((x,), (y,))


def test_row_softmax_resident_ragged_columns():
    x = normal(20, 100)
    e = np.exp(x - x.max(1, keepdims=True))
    assert "-jnp.inf" in check(softmax(), [x], [e / e.sum(1, keepdims=True)])


def matmul(dtype: str = "bfloat16", swap: bool = False) -> TileProgram:
    (m, tm), (n, tn), (k, tk) = tiled_axis("m", 50, 32), tiled_axis("n", 70, 32), tiled_axis("k", 90, 32, "loop")
    a, b, c = Tensor("a", (50, 90), dtype), Tensor("b", (90, 70), dtype), Tensor("c", (50, 70), "float32")
    out = (n, m) if swap else (m, n)
    p = Build(tm, tn, tk)
    zero = p.const(0.0, "float32", *out, name="zero")
    (acc,) = p.loop(k, {"acc": zero}, lambda acc: [p.dot(p.load(a, m, k), p.load(b, k, n), k, out, acc=acc, name="acc_next")])
    p.store(c, acc, m, n, axes=(m, n))
    return p.program((a, b), (c,))


@pytest.mark.parametrize("swap", [False, True])
def test_matmul_bfloat16_ragged_everywhere(swap):
    a, b = bf16(50, 90), bf16(90, 70)
    source = check(matmul(swap=swap), [a, b], [a.astype(np.float32) @ b.astype(np.float32)], 1e-4)
    assert "preferred_element_type=jnp.float32" in source and "lax.fori_loop(0, 3, over_k, zero)" in source


def test_matmul_float32_is_full_precision():
    a, b = normal(50, 90), normal(90, 70)
    assert "lax.Precision.HIGHEST" in check(matmul("float32"), [a, b], [a @ b], 1e-4)


def test_nested_loops():
    (m, tm), (i, ti), (j, tj) = tiled_axis("m", 5, 1), tiled_axis("i", 10, 4, "loop"), tiled_axis("j", 6, 1, "loop")
    x, y = Tensor("x", (5, 6, 10), "float32"), Tensor("y", (5,), "float32")
    k = Build(tm, ti, tj)

    def outer(total):
        start = k.const(1.0, "float32", name="one")
        (p,) = k.loop(j, {"p": start}, lambda p: [k.do("mul", p, k.reduce("sum", k.load(x, m, j, i), i))])
        return [k.do("add", total, p)]

    (total,) = k.loop(i, {"total": k.const(0.0, "float32")}, outer)
    k.store(y, total, m, axes=())
    xs = normal(5, 6, 10)
    want = sum(np.prod(xs[:, :, s : s + 4].sum(-1), axis=1) for s in range(0, 10, 4))
    check(k.program((x,), (y,)), [xs], [want])


def attention() -> TileProgram:
    (h, th), (m, tm) = tiled_axis("h", 2, 1), tiled_axis("m", 40, 16)
    (d, td), (e, te) = tiled_axis("d", 16, 16, "resident"), tiled_axis("e", 16, 16, "resident")
    (n, tn) = tiled_axis("n", 50, 16, "loop")
    q, key = Tensor("q", (40, 32), "bfloat16"), Tensor("key", (2, 50, 16), "bfloat16")
    v, o = Tensor("v", (2, 50, 16), "bfloat16"), Tensor("o", (40, 32), "float32")
    k = Build(th, tm, tn, td, te)
    queries = k.load(q, m, Index.of(h) * 16 + d)

    def step(top, norm, acc):
        s = k.dot(queries, k.load(key, h, n, d), d, (m, n), name="scores")
        live = k.do("lt", k.pos(n, n), k.const(50, "int32"))
        s = k.do("where", live, s, k.const(float("-inf"), "float32"))
        new = k.do("max", top, k.reduce("max", s, n))
        p = k.do("exp", k.do("sub", s, new), name="p")
        alpha = k.do("exp", k.do("sub", top, new), name="alpha")
        norm = k.do("add", k.do("mul", norm, alpha), k.reduce("sum", p, n))
        scaled = k.do("mul", acc, alpha)
        return [new, norm, k.dot(k.cast("bfloat16", p), k.load(v, h, n, e), n, (m, e), acc=scaled)]

    start = {
        "top": k.const(float("-inf"), "float32", m),
        "norm": k.const(0.0, "float32", m),
        "acc": k.const(0.0, "float32", m, e),
    }
    _, norm, acc = k.loop(n, start, step)
    k.store(o, k.do("div", acc, norm), m, Index.of(h) * 16 + e, axes=(m, e))
    return k.program((q, key, v), (o,))


def test_attention_online_with_carries():
    q, key, v = bf16(40, 32), bf16(2, 50, 16), bf16(2, 50, 16)
    want = np.zeros((40, 32))
    for h in range(2):
        s = q[:, h * 16 : h * 16 + 16].astype(np.float64) @ key[h].astype(np.float64).T
        p = np.exp(s - s.max(1, keepdims=True))
        want[:, h * 16 : h * 16 + 16] = p @ v[h].astype(np.float64) / p.sum(1, keepdims=True)
    source = check(attention(), [q, key, v], [want], 2e-2)
    assert "portable" not in source


def test_gather_by_loaded_rows_is_marked():
    (m, tm), (d, td) = tiled_axis("m", 13, 8), tiled_axis("d", 20, 32, "resident")
    t, r, y = Tensor("table", (50, 20), "float32"), Tensor("rows", (13,), "int32"), Tensor("y", (13, 20), "float32")
    k = Build(tm, td)
    rows = k.load(r, m)
    got = k.load(t, Index.dynamic(0, 0, 49), d, axes=(m, d), operands=(rows,), guards=[(Index.of(m), 13)])
    k.store(y, got, m, d, axes=(m, d))
    table, rs = normal(50, 20), RNG.integers(0, 50, 13).astype(np.int32)
    assert "Not in the portable box form" in check(k.program((t, r), (y,)), [table, rs], [table[rs]])


def test_gather_by_a_scalar_row_is_a_slice():
    (m, tm), (d, td) = tiled_axis("m", 13, 1), tiled_axis("d", 20, 32, "resident")
    t, r, y = Tensor("table", (50, 20), "float32"), Tensor("rows", (13,), "uint8"), Tensor("y", (13, 20), "float32")
    k = Build(tm, td)
    got = k.load(t, Index.dynamic(0, 0, 49), d, axes=(d,), operands=(k.load(r, m),))
    k.store(y, got, m, d, axes=(d,))
    table, rs = normal(50, 20), RNG.integers(0, 50, 13).astype(np.uint8)
    assert "portable" not in check(k.program((t, r), (y,)), [table, rs], [table[rs]])


def test_integers_and_bool_outputs():
    (m, tm), (n, tn) = tiled_axis("m", 9, 8), tiled_axis("n", 30, 32, "resident")
    x, y = Tensor("x", (9, 30), "int32"), Tensor("y", (9, 30), "int32")
    z, s = Tensor("z", (9, 30), "bool"), Tensor("s", (9,), "int8")
    k = Build(tm, tn)
    xs = k.load(x, m, n)
    shifted = k.do("shift_left", k.do("xor", xs, k.const(-7, "int32")), k.const(2, "int32"))
    k.store(y, k.do("rem", shifted, k.const(5, "int32")), m, n, axes=(m, n))
    k.store(z, k.do("gt", xs, k.const(3, "int32")), m, n, axes=(m, n))
    k.store(s, k.reduce("sum", k.cast("int8", xs), n), m, axes=(m,))
    a = RNG.integers(-100, 100, (9, 30)).astype(np.int32)
    want = np.fmod((a ^ -7) << 2, 5)
    check(k.program((x,), (y, z, s)), [a], [want, a > 3, a.astype(np.int8).sum(1, dtype=np.int8)])


@pytest.mark.parametrize("dtype", ["bool", "uint32", "int8", "float16", "bfloat16"])
def test_reductions_keep_their_dtype(dtype):
    (n, tn), (r, tr) = tiled_axis("n", 16, 16), tiled_axis("r", 16, 16, "resident")
    ops = {"bool": ("and", "or", "max", "min"), "float16": ("sum", "max"), "bfloat16": ("sum", "min")}
    ops = ops.get(dtype, ("and", "or", "sum", "prod", "max", "min"))
    x = Tensor("x", (16, 16), dtype)
    outputs = [Tensor(op, (16,), dtype) for op in ops]
    k = Build(tn, tr)
    xs = k.load(x, n, r)
    for op, out in zip(ops, outputs, strict=True):
        k.store(out, k.reduce(op, xs, r), n, axes=(n,))
    a = np.asarray(jnp.asarray(RNG.integers(0, 100, (16, 16)) % (2 if dtype == "bool" else 100)).astype(dtype))
    names = {"and": "bitwise_and", "or": "bitwise_or", "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
    wide = a.astype(np.float32) if "float" in dtype else a
    want = [getattr(np, names[op]).reduce(wide, axis=1, dtype=wide.dtype if op in ("sum", "prod") else None) for op in ops]
    check(k.program((x,), outputs), [a], want, 1e-2 if "float" in dtype else 0)


def test_second_output_stored_by_the_first_program_only():
    (m, tm), (n, tn) = tiled_axis("m", 20, 8), tiled_axis("n", 64, 32)
    x, y, s = Tensor("x", (20, 64), "float32"), Tensor("y", (20, 64), "float32"), Tensor("s", (20,), "float32")
    w = Tensor("w", (20,), "float32")
    k = Build(tm, tn)
    scale = k.do("exp", k.load(w, m), name="scale")
    k.store(y, k.do("mul", k.load(x, m, n), scale), m, n, axes=(m, n))
    k.store(s, scale, m, axes=(m,), guards=[(Index.of(n), 1)])
    xs, ws = normal(20, 64), normal(20)
    source = check(k.program((x, w), (y, s)), [xs, ws], [xs * np.exp(ws)[:, None], np.exp(ws)])
    assert "@pl.when(n_start < 1)" in source


def test_scalar_output_and_no_grid():
    (n, tn) = tiled_axis("n", 100, 128, "resident")
    x, y = Tensor("x", (100,), "float32"), Tensor("y", (), "float32")
    k = Build(tn)
    k.store(y, k.reduce("sum", k.load(x, n), n), axes=())
    xs = normal(100)
    check(k.program((x,), (y,)), [xs], [xs.sum()])


def test_no_inputs_and_constants_of_every_kind():
    (n, tn) = tiled_axis("n", 100, 32)
    y, z = Tensor("y", (100,), "float32"), Tensor("z", (100,), "uint32")
    k = Build(tn)
    value = k.do("where", k.do("lt", k.pos(n, n), k.const(5, "int32")), k.const(1.5, "float32"), k.const(float("nan"), "float32"))
    k.store(y, value, n, axes=(n,))
    k.store(z, k.do("xor", k.cast("uint32", k.pos(Index.of(n) * 3 - 1, n)), k.const(2**32 - 1, "uint32")), n, axes=(n,))
    i = np.arange(100)
    check(k.program((), (y, z)), [], [np.where(i < 5, 1.5, np.nan), (i * 3 - 1).astype(np.uint32) ^ np.uint32(2**32 - 1)])


def test_concatenation_by_guarded_loads():
    (n, tn) = tiled_axis("n", 100, 32)
    a, b, y = Tensor("a", (30,), "float32"), Tensor("b", (70,), "float32"), Tensor("y", (100,), "float32")
    k = Build(tn)
    left = k.load(a, n, guards=[(Index.of(n), 30)])
    right = k.load(b, Index.of(n) - 30, guards=[(Index.of(n) - 30, 70)])
    k.store(y, k.do("add", left, right), n, axes=(n,))
    p, q = normal(30), normal(70)
    check(k.program((a, b), (y,)), [p, q], [np.concatenate([p, q])])


def test_flattened_index_becomes_a_flat_view():
    (n, tn) = tiled_axis("n", 21 * 10, 64)
    x, y = Tensor("x", (2, 105), "float32"), Tensor("y", (21, 10), "float32")
    k = Build(tn)
    i = Index.of(n)
    k.store(y, k.do("exp", k.load(x, i // 105, i % 105)), i // 10, i % 10, axes=(n,))
    a = normal(2, 105)
    source = check(k.program((x,), (y,)), [a], [np.exp(a).reshape(21, 10)])
    assert "portable" not in source


def test_scatter_of_an_index_that_is_no_box():
    (n, tn) = tiled_axis("n", 42, 16)
    x, y = Tensor("x", (42,), "float32"), Tensor("y", (6, 7), "float32")
    k = Build(tn)
    i = Index.of(n)
    k.store(y, k.load(x, i), i % 6, i // 6, axes=(n,))
    a = normal(42)
    assert "scattered" in check(k.program((x,), (y,)), [a], [a.reshape(7, 6).T])


def test_strides_reversal_and_packed_axes():
    (m, tm), (n, tn), (d, td) = tiled_axis("m", 6, 2), tiled_axis("n", 10, 4), tiled_axis("d", 4, 4, "resident")
    x, r, y = Tensor("x", (20, 24), "float32"), Tensor("r", (10,), "float32"), Tensor("y", (6, 10, 4), "float32")
    k = Build(tm, tn, td)
    xs = k.load(x, Index.of(n) * 2 + 1, Index.of(m) * 4 + d, axes=(m, n, d))
    rs = k.load(r, Index.of(n) * -1 + 9)
    k.store(y, k.do("add", xs, rs, order=(m, n, d)), m, n, d, axes=(m, n, d))
    a, b = normal(20, 24), normal(10)
    want = a[1::2].reshape(10, 6, 4).transpose(1, 0, 2) + b[::-1][None, :, None]
    check(k.program((x, r), (y,)), [a, b], [want])


def test_packed_store_and_masked_fallbacks():
    (m, tm), (d, td) = tiled_axis("m", 6, 4), tiled_axis("d", 3, 4, "resident")
    x, y, z = Tensor("x", (6, 3), "float32"), Tensor("y", (18,), "float32"), Tensor("z", (8,), "float32")
    k = Build(tm, td)
    xs = k.load(x, m, d, other=float("-inf"))
    k.store(y, xs, Index.of(m) * 3 + d, axes=(m, d))
    top = k.reduce("max", xs, d)
    k.store(z, top, Index.of(m) + 2, axes=(m,))
    k.store(z, k.do("neg", top), m, axes=(m,), guards=[(Index.of(m), 2)])
    a = normal(6, 3)
    want = np.concatenate([-a.max(1)[:2], a.max(1)])
    assert "one after another" in check(k.program((x,), (y, z)), [a], [a.ravel(), want])


def test_names_that_python_or_jax_use():
    n, tn = tiled_axis("lambda", 16, 16)
    x, y = Tensor("interpret", (16,), "float32"), Tensor("x-y", (16,), "float32")
    k = Build(tn)
    k.store(y, k.do("neg", k.load(x, n, name="jnp"), name="pl"), n, axes=(n,))
    a = normal(16)
    check(k.program((x,), (y,), ('A "quoted" head \\ with """', 'last"')), [a], [-a])


def test_int64_positions_with_x64():
    (n, tn) = tiled_axis("n", 40, 16)
    x, y = Tensor("x", (40,), "float64"), Tensor("y", (40,), "int64")
    z = Tensor("z", (), "float64")
    (r, tr) = tiled_axis("r", 40, 16, "loop")
    k = Build(tn, tr)
    k.store(y, k.pos(Index.of(n) * 2**33, n, dtype="int64"), n, axes=(n,))
    start = k.const(0.0, "float64")
    (s,) = k.loop(r, {"s": start}, lambda s: [k.do("add", s, k.reduce("sum", k.load(x, r), r))])
    k.store(z, s, axes=(), guards=[(Index.of(n), 1)])
    with jax.enable_x64(True):
        a = RNG.standard_normal(40)
        check(k.program((x,), (y, z)), [a], [np.arange(40) * 2**33, a.sum()])


def test_load_gives_one_object_for_one_text():
    source = emit(pointwise())
    assert load(source) is load(source)
    x, b = normal(100, 70), normal(70)
    np.testing.assert_allclose(load(source)(x, b)[0], (x + b) * 2, 1e-6)


def big_matmul() -> TileProgram:
    (m, tm), (n, tn), (k, tk) = tiled_axis("m", 200, 128), tiled_axis("n", 256, 128), tiled_axis("k", 250, 128, "loop")
    a, b, c = Tensor("a", (200, 250), "bfloat16"), Tensor("b", (250, 256), "bfloat16"), Tensor("c", (200, 256), "float32")
    p = Build(tm, tn, tk)
    zero = p.const(0.0, "float32", m, n, name="zero")
    (acc,) = p.loop(k, {"acc": zero}, lambda acc: [p.dot(p.load(a, m, k), p.load(b, k, n), k, (m, n), acc=acc)])
    p.store(c, acc, m, n, axes=(m, n))
    return p.program((a, b), (c,))


@pytest.mark.parametrize("make", [softmax, big_matmul])
def test_lowers_for_tpu(make):
    program = make()
    arguments = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs]
    exported = jax.export.export(jax.jit(load(emit(program)).module.run), platforms=["tpu"])(*arguments)
    assert "tpu_custom_call" in exported.mlir_module()


@pytest.mark.parametrize("make", [softmax, big_matmul, attention])
def test_lowers_for_cuda_by_triton(make):
    triton = pytest.importorskip("jax.experimental.pallas.triton")
    program = make()
    arguments = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs]
    module = load(emit(program)).module
    traced = jax.jit(lambda *a: module.run(*a, compiler_params=triton.CompilerParams())).trace(*arguments)
    try:
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    except (ValueError, RuntimeError) as error:  # jax 0.12 asks a device for its architecture
        if "install jaxlib GPU" in str(error) or "No supported GPU devices" in str(error):
            pytest.skip("this jaxlib cannot lower Pallas for a GPU")
        raise
    assert "triton" in text


def test_empty_output():
    n, tn = tiled_axis("n", 0, 16)
    x, y = Tensor("x", (0,), "float32"), Tensor("y", (0,), "float32")
    k = Build(tn)
    k.store(y, k.do("exp", k.load(x, n)), n, axes=(n,))
    check(k.program((x,), (y,)), [normal(0)], [normal(0)])


# --- lowered kernels, against the interpreter of tile programs ---


def stored(name: str, shape: tuple[int, ...], term: Term, axes: tuple[Axis, ...]) -> Stored:
    return Stored(name, shape, term.dtype, term, axes)


def at(tensor: Tensor, *index: Any) -> Term:
    return notation.cast("float32", notation.load(tensor, indices(index)))


def gelu_matmul() -> tuple[Kernel, Schedule]:
    (m, tm), (n, tn), (r, tr) = tiled_axis("x0", 45, 32), tiled_axis("x1", 37, 16), tiled_axis("r0", 70, 32, "loop")
    a, b, bias = Tensor("a", (45, 70), "bfloat16"), Tensor("b", (37, 70), "bfloat16"), Tensor("bias", (37,), "float32")
    product = notation.reduce("sum", r, notation.scalar("mul", at(a, m, r), at(b, n, r)))
    y = notation.scalar("tanh", notation.scalar("add", product, at(bias, n)))
    return Kernel("gelu_matmul", (stored("y", (45, 37), y, (m, n)),)), Schedule((tm, tn, tr))


def rms_norm() -> tuple[Kernel, Schedule]:
    (m, tm), (n, tn), (r, tr) = tiled_axis("x0", 13, 4), tiled_axis("x1", 90, 32, "loop"), tiled_axis("r0", 90, 64, "loop")
    x, w = Tensor("x", (13, 90), "bfloat16"), Tensor("w", (90,), "float32")
    squares = notation.scalar("mul", at(x, m, r), at(x, m, r))
    scale = notation.scalar("rsqrt", notation.scalar("add", notation.reduce("sum", r, squares), notation.const(1e-5, "float32")))
    y = notation.scalar("mul", notation.scalar("mul", at(x, m, n), scale), at(w, n))
    outputs = stored("y", (13, 90), notation.cast("bfloat16", y), (m, n)), stored("scale", (13, 1), scale, (m,))
    return Kernel("rms_norm", outputs), Schedule((tm, tn, tr))


def online_attention() -> tuple[Kernel, Schedule]:
    (h, th), (m, tm), (d, td) = tiled_axis("x0", 3, 1), tiled_axis("x1", 40, 16), tiled_axis("x2", 16, 16, "resident")
    (e, te), (n, tn) = tiled_axis("r0", 16, 16, "resident"), tiled_axis("r1", 40, 16, "loop")
    q, k, v = (Tensor(name, (40, 48), "bfloat16") for name in "qkv")
    head = Index.of(h) * 16
    s = notation.reduce("sum", e, notation.scalar("mul", at(q, m, head + e), at(k, n, head + e)))
    causal = notation.scalar("ge", notation.pos(Index.of(m), "int32"), notation.pos(Index.of(n), "int32"))
    s = notation.scalar("where", causal, s, notation.const(float("-inf"), "float32"))
    total = notation.online(n, s, notation.const(1.0, "float32"), "float32")
    y = notation.scalar("div", notation.online(n, s, at(v, n, head + d), "bfloat16"), total)
    return Kernel("attention", (stored("o", (3, 40, 16), y, (h, m, d)),)), Schedule((th, tm, td, te, tn))


@pytest.mark.parametrize("make", [gelu_matmul, rms_norm, online_attention])
def test_lowered_kernels_agree_with_the_tile_interpreter(make):
    program = lower(*make())
    arrays = [normal(*t.shape).astype(t.dtype) for t in program.inputs]
    source = check(program, arrays, interpret(program, arrays), 2e-2)
    assert "portable" not in source
