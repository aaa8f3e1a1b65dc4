"""Every row of the primitive table, and whole programs: the reading means what JAX computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqsat.evaluate import NUMPY, evaluate
from eqsat.graph import Graph
from eqsat.index import Axis, Dynamic, Index, Quotient, Remainder
from eqsat.notation import Stored, Tensor, Term, const_value
from eqsat.primitives import TABLE, Out, View
from eqsat.read import Call, Reading, read
from eqsat.scalars import REDUCTIONS, SCALARS

ONLY_JAX = ("erfc", "rint")  # operations that are not evaluated with NumPy
Example = tuple[Callable[..., Any], tuple[Any, ...]]

# --- the meaning of a term, as plainly as it can be said: every value is an array over all axes, free and bound ------


def naive(term: Term, axes: tuple[Axis, ...], arrays: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    shape = tuple(a.extent for a in axes)
    grid = dict(zip(axes, np.meshgrid(*map(np.arange, shape), indexing="ij"), strict=True))
    value = _naive(term, grid, arrays)
    return np.broadcast_to(value, shape)


def _naive(term: Term, grid: dict[Axis, np.ndarray], arrays: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    if term.head == "const":
        return np.asarray(const_value(term), jnp.dtype(term.dtype))
    if term.head == "pos":
        return np.asarray(_place(term.data, grid, ())).astype(jnp.dtype(term.dtype))
    if term.head == "reduce":
        name, axis = term.data
        size = {a: g[..., None] for a, g in grid.items()}
        inner = _naive(term.args[0], size | {axis: np.arange(axis.extent)}, arrays)
        inner = np.broadcast_to(inner, (*inner.shape[:-1], axis.extent) if inner.ndim else (axis.extent,))
        return getattr(np, REDUCTIONS[name].numpy).reduce(inner, axis=-1, dtype=inner.dtype)
    args = [_naive(a, grid, arrays) for a in term.args]
    if term.head == "load":
        array = np.asarray(arrays[term.tensor])
        places = [np.asarray(_place(i, grid, args)) for i in term.indices]
        inside = np.asarray(True)
        for place, n in zip(places, array.shape, strict=True):
            inside = inside & (place >= 0) & (place < n)
        safe = tuple(np.clip(p, 0, n - 1) for p, n in zip(places, array.shape, strict=True))
        return np.where(inside, array[safe], np.zeros((), array.dtype))
    if term.head == "cast":
        return NUMPY.apply("cast", args[0], jnp.dtype(term.dtype))
    if term.head in ONLY_JAX:
        return np.asarray(SCALARS[term.head].reference(*args))
    return np.asarray(NUMPY.apply(term.head, *args))


def _place(index: Index, grid: dict[Axis, np.ndarray], slots: Any) -> Any:
    total: Any = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            value = grid[atom]
        elif isinstance(atom, Dynamic):
            value = slots[atom.slot].astype(np.int64)
            assert value.min() >= atom.low and value.max() <= atom.high, "an operand leaves the range that its index states"
        else:
            inner = np.asarray(_place(atom.index, grid, slots))
            value = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
            assert isinstance(atom, Quotient | Remainder)
        total = total + coefficient * value
    return total


def run(reading: Reading, flat: list[Any], meaning: Callable[..., Any]) -> list[np.ndarray]:
    """The reading's outputs, one step after the other."""
    arrays: dict[Tensor, Any] = dict(zip(reading.inputs, map(np.asarray, flat), strict=True))
    arrays |= {t: np.asarray(c) for t, c in reading.constants.items()}
    for step in reading.steps:
        if isinstance(step, Call):
            results = step.eqn.bind(*(jnp.asarray(arrays[x]) if isinstance(x, Tensor) else x for x in step.inputs))
            arrays.update(zip(step.outputs, results, strict=True))
        else:
            arrays[step] = np.asarray(meaning(step.term, step.axes, arrays)).reshape(step.shape)
            assert arrays[step].dtype == jnp.dtype(step.dtype)
    return [arrays[t] for t in reading.outputs]


def by_evaluate(term: Term, axes: tuple[Axis, ...], arrays: Mapping[Tensor, Any]) -> Any:
    return evaluate(term, axes, arrays, jnp if any(t.head in ONLY_JAX for t in term.walk()) else np)


def check(fn: Callable[..., Any], args: tuple[Any, ...], *meanings: Callable[..., Any], tolerance: float = 2e-6) -> Reading:
    """The reading of `fn` gives what its equations give one by one."""
    graph = Graph.from_jax(fn, *args)
    reading = read(graph)
    flat = jax.tree_util.tree_leaves(args)
    wanted = [np.asarray(x) for x in graph.evaluate(*flat)]
    for meaning in meanings or (naive, by_evaluate):
        with np.errstate(all="ignore"):
            found = run(reading, flat, meaning)
        for got, want in zip(found, wanted, strict=True):
            same(got, want, tolerance)
    well_formed(reading)
    return reading


def same(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype == bool or np.issubdtype(want.dtype, np.integer):
        np.testing.assert_array_equal(got, want)
        return
    narrow = {"bfloat16": 2**-7, "float16": 2**-9}.get(str(want.dtype), tolerance)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    scale = finite.max() if finite.size else 1.0
    np.testing.assert_allclose(got, want, rtol=4 * narrow, atol=narrow * max(scale, 1e-3))


def well_formed(reading: Reading) -> None:
    """Names are unique identifiers, and every step reads only what stands before it."""
    known = {*reading.inputs, *reading.constants}
    for step in reading.steps:
        loaded = step.inputs if isinstance(step, Call) else [t.tensor for t in step.term.walk() if t.head == "load"]
        assert all(t in known for t in loaded if isinstance(t, Tensor))
        if isinstance(step, Stored):
            assert step.term.axes <= set(step.axes)
        known |= set(step.outputs) if isinstance(step, Call) else {step}
    tensors = [
        *reading.inputs,
        *reading.constants,
        *(t for s in reading.steps for t in (s.outputs if isinstance(s, Call) else (s,))),
    ]
    names = [t.name for t in tensors]
    assert len(set(names)) == len(names) and all(n.isidentifier() for n in names)
    assert str(reading)


# --- examples of every row ------------------------------------------------------------------------------------------


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 7).integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return ints(*shape) > 0


def bf16(*shape: int) -> Any:
    return jnp.asarray(f32(*shape), jnp.bfloat16)


def unary(fn: Callable[..., Any], low: float = -2.0, high: float = 2.0) -> list[Example]:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    return [(fn, (f32(3, 1, 5, low=low, high=high),)), (fn, (special,))]


def binary(fn: Callable[..., Any]) -> list[Example]:
    return [(fn, (f32(3, 5), f32(3, 5)[::-1])), (fn, (ints(3, 5), ints(3, 5)[::-1])), (fn, (bf16(3, 5), jnp.bfloat16(0.3)))]


def compare(fn: Callable[..., Any]) -> list[Example]:
    return [
        (fn, (ints(4, 5, low=0, high=3), ints(4, 5, low=0, high=3)[::-1])),
        (fn, (f32(3), np.array([np.nan, 0, 1], np.float32))),
    ]


def bits(fn: Callable[..., Any]) -> list[Example]:
    return [(fn, (ints(7), ints(7)[::-1])), (fn, (bools(7), bools(7)[::-1]))]


def reduction(fn: Callable[..., Any]) -> list[Example]:
    return [
        (lambda x: fn(x, (1,)), (f32(3, 7),)),
        (lambda x: fn(x, (0, 2)), (f32(3, 1, 5),)),
        (lambda x: fn(x, (0, 1, 2)), (ints(3, 2, 4, low=1, high=3),)),
        (lambda x: fn(x, (0,)), (f32(1, 4),)),
        (lambda x: fn(x, (1,)), (bf16(3, 40),)),
    ]


def bit_reduction(fn: Callable[..., Any]) -> list[Example]:
    return [(lambda x: fn(x, (1,)), (bools(3, 4),)), (lambda x: fn(x, (0, 1)), (ints(3, 4),))]


def conv(x: tuple[int, ...], w: tuple[int, ...], **params: Any) -> Example:
    return lambda a, b: lax.conv_general_dilated(a, b, **{"window_strides": (1,), "padding": "SAME", **params}), (
        f32(*x),
        f32(*w),
    )


BYTES = ints(3, 9, low=-127, high=127, dtype=np.int8)
NHWC = ("NHWC", "HWIO", "NHWC")
REVERSED_NAN = np.array([[1, np.nan, 3], [3, 3, 1], [-np.inf, -np.inf, -np.inf]], np.float32)

EXAMPLES: dict[str, list[Example]] = {
    **{name: binary(getattr(lax, name)) for name in ("add", "sub", "mul", "max", "min")},
    **{name: compare(getattr(lax, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: bits(getattr(lax, f"bitwise_{name}")) for name in ("and", "or", "xor")},
    "not": [(lax.bitwise_not, (bools(5),)), (lax.bitwise_not, (ints(5),))],
    **{name: unary(getattr(lax, name)) for name in ("exp", "exp2", "expm1", "tanh", "logistic", "sin", "cos", "erf", "erfc", "floor", "ceil")},
    **{name: unary(getattr(lax, name), 0.1) for name in ("log", "log1p", "sqrt", "rsqrt")},
    **{name: [*unary(getattr(lax, name)), (getattr(lax, name), (ints(9),))] for name in ("neg", "abs", "square")},
    "sign": [*unary(lax.sign), (lax.sign, (ints(9),)), (lax.sign, (ints(9, low=0, dtype=np.uint8),))],
    "is_finite": unary(lax.is_finite),
    "round": [(jnp.round, (np.array([0.5, 1.5, -0.5, 2.4, np.nan], np.float32),))],
    "add_any": [(jax.grad(lambda x: (jnp.sin(x) * jnp.cos(x)).sum()), (f32(5),))],
    "div": [(lax.div, (f32(3, 5), f32(3, 5)[::-1])), (lax.div, (ints(9), ints(9, low=1))), (lambda x, y: x / y, (f32(2, 3), f32()))],
    "rem": [(lax.rem, (ints(9), ints(9, low=1)))],
    "pow": [(lax.pow, (f32(5, low=0.1), f32(5))), (lax.pow, (f32(5), ints(5)))],
    "integer_pow": [(lambda x, y=y: lax.integer_pow(x, y), (f32(3, 4),)) for y in (-3, -1, 2, 3, 7)] + [(lambda x: lax.integer_pow(x, 5), (ints(4),))],
    "shift_left": [(lax.shift_left, (ints(7), ints(7, low=0)))],
    "shift_right_logical": [
        (lax.shift_right_logical, (ints(7), ints(7, low=0))),
        (lax.shift_right_logical, (ints(7, low=0, dtype=np.uint32), ints(7, low=0, dtype=np.uint32))),
    ],
    "select_n": [
        (lax.select_n, (bools(3, 4), f32(3, 4), f32(3, 4)[::-1])),
        (lax.select_n, (np.True_, f32(3, 4), f32(3, 4)[::-1])),
        (lax.select_n, (ints(5, low=0, high=3), ints(5), ints(5)[::-1], ints(5) * 2)),
    ],
    "clamp": [(lax.clamp, (np.float32(-0.5), f32(3, 4), np.float32(0.5))), (lax.clamp, (f32(4) - 1, f32(4), f32(4) + 0.5))],
    "convert_element_type": [
        (lambda x: x.astype(jnp.bfloat16), (f32(3, 5),)),
        (lambda x: x.astype(jnp.int32), (f32(3, 5),)),
        (lambda x: x.astype(bool), (np.array([0.0, -0.0, 0.3, np.nan], np.float32),)),
        (lambda x: x.astype(jnp.float32), (bools(4),)),
        (lambda x: x.astype(jnp.int8), (ints(5, low=-300, high=300),)),
        (lambda x: x + jnp.arange(5).astype(jnp.float32), (f32(3, 5),)),
    ],
    "broadcast_in_dim": [
        (lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1,)) + 1, (f32(3),)),
        (lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)) + 1, (f32(1, 4),)),
    ],
    "reshape": [
        (lambda x: x.reshape(3, 8) * 2, (f32(4, 6),)),
        (lambda x: x.reshape(2, 1, 3, 4).reshape(6, 4) * 2, (f32(4, 6),)),
        (lambda x: lax.reshape(x, (8, 3), (1, 0)) * 2, (f32(4, 6),)),
        (lambda x: x.T.reshape(-1)[::-1].reshape(6, 4) * 2, (f32(4, 6),)),
    ],
    "transpose": [(lambda x: x.transpose(2, 0, 1) * 2, (f32(2, 3, 4),)), (lambda x: x.T, (f32(1, 3),))],
    "squeeze": [(lambda x: lax.squeeze(x, (0, 2)) * 2, (f32(1, 3, 1, 4),))],
    "slice": [(lambda x: lax.slice(x, (1, 0), (4, 6), (1, 2)) * 2, (f32(5, 7),)), (lambda x: x[2:3] * 2, (f32(5, 7),))],
    "rev": [(lambda x: lax.rev(x, (0,)) * 2, (f32(5, 3),)), (lambda x: x[::-2, ::-1], (f32(5, 3),))],
    "tile": [(lambda x: jnp.tile(x, (2, 3)) + 1, (f32(3, 4),)), (lambda x: jnp.tile(x, (1, 3)), (f32(3, 1),))],
    "split": [(lambda x: [a * 2 for a in jnp.split(x, (2, 3), axis=1)], (f32(3, 7),)), (lambda x: jnp.split(x, 7, axis=1), (f32(3, 7),))],
    "iota": [(lambda x: x + lax.broadcasted_iota(jnp.int32, (3, 4), 1), (ints(3, 4),)), (lambda: lax.broadcasted_iota(jnp.float32, (3, 1), 1), ())],
    "copy": [(lambda x: jnp.copy(x) * 2, (f32(3),))],
    "stop_gradient": [(lambda x: lax.stop_gradient(x) * 2, (f32(3),))],
    "optimization_barrier": [(lambda x, y: lax.optimization_barrier((x * 2, y)), (f32(3), f32(4)))],
    "concatenate": [
        (lambda x, y, z: jnp.concatenate([x, y, z], 1), (f32(3, 2), f32(3, 1), f32(3, 4))),
        (lambda x: jnp.concatenate([x[1:3], x[:1]], 0), (f32(5, 2),)),
        (lambda x: jnp.concatenate([x, x]), (f32(1),)),
    ],
    "stack": [(lambda x, y: jnp.stack([x, y, x], 1), (f32(3, 2), f32(3, 2)[::-1])), (lambda x: jnp.stack([x], 0), (f32(3),))],
    "pad": [
        (lambda x: lax.pad(x, np.float32(0), ((1, 2, 0), (0, 0, 0))), (f32(3, 4),)),
        (lambda x: lax.pad(x, np.float32(7), ((-1, 2, 1), (0, 3, 2))), (f32(3, 4),)),
        (lambda x: lax.pad(x[1:3, ::2], np.float32(0), ((1, -1, 0), (2, 1, 2))), (f32(4, 4),)),
        (lambda x: lax.pad(x.reshape(6, 2), np.float32(0), ((1, 1, 0), (1, 1, 0))) * 2, (f32(3, 4),)),
        (lambda x: lax.pad(x[:, 1:], np.float32(-0.0), ((1, 1, 0), (2, 2, 0))), (f32(1, 2),)),
        (lambda x: lax.pad(x.T[::-1], np.int32(0), ((1, 1, 0), (2, 2, 1))), (ints(3, 2),)),
    ],
    **{f"reduce_{name}": reduction(getattr(lax, f"reduce_{name}")) for name in ("sum", "prod", "max", "min")},
    **{f"reduce_{name}": bit_reduction(getattr(lax, f"reduce_{name}")) for name in ("and", "or")},
    **{
        name: [
            (lambda x, f=f: f(x, 1, jnp.int32), (ints(4, 5, low=0, high=3),)),
            (lambda x, f=f: f(x, 1, jnp.int32), (REVERSED_NAN,)),
            (lambda x, f=f: f(x, 0, jnp.int32), (f32(1, 5),)),
        ]
        for name, f in (("argmax", lax.argmax), ("argmin", lax.argmin))
    },
    "reduce_window_sum": [(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "SAME"), (f32(2, 7),))],
    "reduce_window_max": [
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3, 2), (1, 2, 2), "SAME"), (f32(2, 7, 5) - 9,)),
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), ((1, 0),), (2,), (2,)), (f32(5),)),
    ],
    "reduce_window_min": [(lambda x: lax.reduce_window(x, np.inf, lax.min, (3,), (1,), "VALID"), (f32(7),))],
    "dot_general": [
        (lambda x, y: x @ y, (f32(3, 5), f32(5, 4))),
        (lambda x, y: lax.dot_general(x, y, (((0, 3), (2, 1)), ((1,), (0,)))), (f32(3, 2, 5, 4), f32(2, 4, 3, 6))),
        (lambda x, y: x @ y, (bf16(3, 40), bf16(40, 2))),
        (lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32), (bf16(3, 40), bf16(40, 2))),
        (lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32), (BYTES, BYTES.T)),
        (lambda x, y: lax.dot(x, y), (bools(3, 4), bools(4, 2))),
        (lambda x, y: jnp.outer(x, y), (f32(3), f32(1))),
        (lambda x, y: x @ y, (f32(3, 1), f32(1, 2))),
    ],
    "conv_general_dilated": [
        conv((2, 3, 7), (4, 3, 3)),
        conv((2, 3, 7), (4, 3, 4), window_strides=(2,), padding=((3, -1),), rhs_dilation=(2,)),
        conv((2, 3, 7), (4, 3, 3), lhs_dilation=(3,), padding=((2, 1),)),
        conv((1, 6, 5), (4, 3, 3), feature_group_count=2),
        conv((1, 4, 5), (8, 1, 3), feature_group_count=4),
        conv((4, 3, 5), (6, 3, 3), batch_group_count=2),
        conv((2, 5, 6, 3), (3, 3, 3, 4), window_strides=(2, 1), dimension_numbers=NHWC),
        conv((2, 1, 6, 3), (3, 1, 3, 4), window_strides=(1, 1), dimension_numbers=NHWC),
        (lambda x, w: lax.conv_general_dilated(x.transpose(0, 2, 1)[:, :, 1:], w, (1,), "SAME"), (f32(2, 7, 3), f32(4, 3, 3))),
        (lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"), (bf16(1, 8, 5), bf16(2, 8, 3))),
    ],
    "gather": [
        (lambda x, i: x[i], (f32(5, 3), ints(4, low=-7, high=7))),
        *((lambda x, i, m=m: jnp.take(x, i, axis=1, mode=m), (f32(2, 5, 3), ints(2, 2, low=-3, high=8))) for m in ("clip", "fill", "wrap")),
        (lambda x, i: jnp.take(x, i, axis=0), (ints(5, 3), ints(4, low=-7, high=7))),
        (lambda x, i: x.at[i].get(mode="promise_in_bounds"), (f32(5, 3), ints(4, low=0, high=5))),
        (lambda x, i: x.at[i].get(mode="fill", fill_value=3), (ints(5), ints(4, low=-3, high=9, dtype=np.int8))),
        (lambda x, i: jnp.take_along_axis(x, i, -1), (f32(4, 5), ints(4, 1, low=0, high=5))),
        (lambda x, i, j: x[i, :, j], (f32(4, 5, 3), ints(2, low=0, high=4), ints(2, low=-3, high=3))),
        (lambda x: x[jnp.arange(3), jnp.arange(3) * 2], (f32(3, 6),)),
        (lambda x, i: x.T.reshape(2, 10)[:, i] * 2, (f32(4, 5), ints(3, low=0, high=10))),
        (lambda i: (jnp.arange(7) * 2.5)[i], (ints(3, low=0, high=7),)),
        (lambda i: jnp.zeros(7)[i], (ints(3, low=0, high=7),)),
        (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,))), (f32(4, 7), ints(4, low=-3, high=8))),
    ],
    "dynamic_slice": [
        (lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 7)), (f32(5, 7), np.int32(9), np.int32(2))),
        (lambda x, i: lax.dynamic_slice(x.T, (i, 0), (2, 3)), (f32(5, 7), np.int32(-2))),
    ],
    "dynamic_update_slice": [
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 1)), (f32(5, 7), f32(2, 3), np.int32(i))) for i in (-3, 1, 9)
    ] + [(lambda x, u, i: lax.dynamic_update_slice(x, u * 2, (np.int8(0), i)), (f32(5, 7), f32(5, 1), np.int8(3)))],
}  # fmt: skip

# Rows for primitives of other JAX releases: their operands, parameters and result.
X = f32(3, 4)
ELSEWHERE: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any], tuple[np.ndarray, ...]]] = {
    "copy_p": ((X,), {}, (X,)),
    "empty": ((), {"shape": (3, 4), "dtype": "float32"}, (np.zeros((3, 4), np.float32),)),
    "one_minus_square": ((X,), {"accuracy": None}, (1 - X * X,)),
    "unstack": ((X,), {"axis": 1}, tuple(X.T)),
}


def test_every_row_has_examples() -> None:
    assert set(TABLE) == set(EXAMPLES) | set(ELSEWHERE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_row_means_what_jax_computes(name: str) -> None:
    for fn, args in EXAMPLES[name]:
        reading = check(fn, args)
        assert reading.opaque == 0, reading.calls[0].reason
    assert any(e.name == name for fn, args in EXAMPLES[name] for e in Graph.from_jax(fn, *args).equations)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_row_of_other_release(name: str) -> None:
    arrays, params, results = ELSEWHERE[name]
    tensors = [Tensor(f"t{n}", a.shape, str(a.dtype)) for n, a in enumerate(arrays)]
    outs = tuple(Out(r.shape, str(r.dtype)) for r in results)
    row = TABLE[name]
    found = row.read(outs if row.results else outs[0], *map(View.of, tensors), **params)
    for term, want in zip(found if row.results else (found,), results, strict=True):
        axes = tuple(Axis(f"x{d}", n) for d, n in enumerate(want.shape))
        same(naive(term, axes, dict(zip(tensors, arrays, strict=True))), want, 1e-6)


# --- whole programs -------------------------------------------------------------------------------------------------


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def gpt2(params: Any, tokens: Any) -> Any:
    h = params["wte"][tokens] + params["wpe"][: tokens.shape[1]]
    for layer in params["layers"]:
        a = layer_norm(h, *layer["ln1"])
        q, k, v = jnp.split(a @ layer["qkv"], 3, -1)
        q, k, v = (t.reshape(*t.shape[:2], 2, 8).transpose(0, 2, 1, 3) for t in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(8.0)
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        h = h + (weights @ v).transpose(0, 2, 1, 3).reshape(h.shape) @ layer["out"]
        m = layer_norm(h, *layer["ln2"])
        h = h + jax.nn.gelu(m @ layer["up"]) @ layer["down"]
    return layer_norm(h, *params["lnf"]) @ params["wte"].T


def loss(params: Any, tokens: Any) -> Any:
    scores = jax.nn.log_softmax(gpt2(params, tokens)[:, :-1])
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


def gpt2_arguments() -> tuple[Any, ...]:
    norm = (1 + 0.1 * f32(16), 0.1 * f32(16))
    layer = {
        "ln1": norm,
        "ln2": norm,
        "qkv": f32(16, 48) / 4,
        "out": f32(16, 16) / 4,
        "up": f32(16, 64) / 4,
        "down": f32(64, 16) / 8,
    }
    return {"wte": f32(11, 16), "wpe": f32(8, 16), "lnf": norm, "layers": [layer, layer]}, ints(2, 8, low=0, high=11)


def llama_block(x: Any, params: Any) -> Any:
    h = x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6).astype(x.dtype) * params["norm"]
    q, k, v = (jnp.einsum("bsd,dhe->bshe", h, params[n]) for n in "qkv")
    angle = jnp.arange(x.shape[1])[:, None] / 100.0 ** (jnp.arange(4) / 4)
    cos, sin = (t[:, None].astype(x.dtype) for t in (jnp.cos(angle), jnp.sin(angle)))

    def rotated(t: Any) -> Any:
        a, b = jnp.split(t, 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    q, k = rotated(q), rotated(k)
    k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) / 8**0.5
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)).astype(x.dtype)
    x = x + jnp.einsum("bhqk,bkhe,hed->bqd", weights, v, params["o"])
    return x + (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def llama_arguments(dtype: Any) -> tuple[Any, ...]:
    shapes = {
        "norm": (16,),
        "q": (16, 4, 8),
        "k": (16, 2, 8),
        "v": (16, 2, 8),
        "o": (4, 8, 16),
        "gate": (16, 24),
        "up": (16, 24),
        "down": (24, 16),
    }
    return jnp.asarray(f32(2, 6, 16), dtype), {n: jnp.asarray(f32(*s) / 4, dtype) for n, s in shapes.items()}


def conv_block(x: Any, w: Any, scale: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
    y = jax.nn.relu((y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5) * scale)
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").mean((1, 2))


PROGRAMS: dict[str, Example] = {
    "gpt2 forward": (gpt2, gpt2_arguments()),
    "gpt2 loss": (loss, gpt2_arguments()),
    "llama block": (llama_block, llama_arguments(jnp.float32)),
    "llama block in bfloat16": (llama_block, llama_arguments(jnp.bfloat16)),
    "conv block": (conv_block, (f32(2, 7, 6, 3), f32(3, 3, 3, 4), f32(4))),
    "layer norm": (layer_norm, (f32(3, 7), f32(7), f32(7))),
    "layer norm gradient": (jax.grad(lambda x, s, b: (layer_norm(x, s, b) ** 2).sum(), (0, 1, 2)), (f32(3, 7), f32(7), f32(7))),
    **{f"{fn.__name__}": (fn, (f32(3, 7),)) for fn in (jax.nn.softmax, jax.nn.log_softmax, jax.nn.gelu, jax.nn.silu, jax.nn.softplus)},
    "exact gelu": (lambda x: jax.nn.gelu(x, approximate=False), (f32(3, 7),)),
    "masked softmax": (lambda x, m: jax.nn.softmax(x, where=m, axis=0), (f32(3, 7), bools(3, 7) | True)),
    "one hot": (lambda i, w: jax.nn.one_hot(i, 5) @ w, (ints(6, low=-1, high=7), f32(5, 2))),
    "embedding": (lambda w, i: w[i].sum(1), (f32(9, 4), ints(2, 3, low=0, high=9))),
    "attention": (jax.nn.dot_product_attention, (f32(1, 5, 2, 4), f32(1, 5, 2, 4), f32(1, 5, 2, 4))),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), (f32(3, 7),)),
    "roll and flip": (lambda x: jnp.roll(x, 2, 0)[::-1] + jnp.flip(x, 1), (f32(5, 4),)),
    "interleaved": (lambda x, y: jnp.stack([x, y], -1).reshape(3, -1), (f32(3, 4), f32(3, 4) + 1)),
    "cache update": (
        lambda cache, new, n: lax.dynamic_update_slice(cache, new, (0, n, 0)).sum(1), (f32(2, 8, 3), f32(2, 1, 3), np.int32(5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_reads_without_calls(name: str) -> None:
    fn, args = PROGRAMS[name]
    reading = check(fn, args, by_evaluate, tolerance=1e-5)
    assert [call.name for call in reading.calls] == []


def test_gradient_of_gpt2_calls_only_scatters() -> None:
    reading = check(jax.grad(loss), gpt2_arguments(), by_evaluate, tolerance=2e-5)
    assert {call.name for call in reading.calls} == {"scatter-add"}
    assert reading.opaque == 2


def test_gradient_of_convolution() -> None:
    args = (f32(2, 6, 5, 3), f32(3, 3, 3, 4))

    def energy(x: Any, w: Any) -> Any:
        return (lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=NHWC) ** 2).sum()

    assert check(jax.grad(energy, (0, 1)), args, by_evaluate, tolerance=1e-5).opaque == 0


# --- what is not a term ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn, args, names",
    [
        (lambda x: jnp.sort(x * 2) + 1, (f32(5),), ["sort"]),
        (lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x), (f32(5),), ["scan"]),
        (lambda x: jnp.cumsum(x, 0), (f32(5, 2),), ["cumsum"]),
        (lambda x: jnp.fft.fft(x).real + 1, (f32(8),), None),
        (lambda x: x[:0] * 2, (f32(8),), None),
        (lambda x: jax.random.normal(jax.random.key(x), (3,)), (np.uint32(3),), None),
        (lambda x, i: x.at[i].add(1.0), (f32(8), ints(3, low=0, high=8)), ["scatter-add"]),
        (lambda x: x % 0.7, (f32(8),), None),
        (lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), (f32(8),), ["cond"]),
    ],
)
def test_calls_where_there_is_no_reading(fn: Callable[..., Any], args: tuple[Any, ...], names: list[str] | None) -> None:
    reading = check(fn, args)
    assert reading.opaque > 0 and all(call.reason for call in reading.calls)
    assert names is None or [call.name for call in reading.calls] == names


def test_views_give_no_tensor() -> None:
    reading = check(lambda x: jnp.exp(x.T.reshape(6, 2)[::2][:, None]), (f32(4, 3),))
    assert [s.name for s in reading.steps if isinstance(s, Stored)] == ["exp"] and reading.views == 4


def test_outputs_that_are_inputs_views_and_literals() -> None:
    reading = check(lambda x: (x, x.T, 1.5, x * 2, x.T), (f32(2, 3),))
    assert reading.outputs[0] is reading.inputs[0] and reading.outputs[1] is reading.outputs[4]


def test_masks_of_positions_give_no_tensor() -> None:
    reading = check(lambda x: jnp.where(jnp.tril(jnp.ones((4, 4), bool), 1), x, 0.0), (f32(4, 4),))
    (step,) = reading.steps
    assert str(step.term) == "where((x0+1) >= x1, x[x0, x1], 0)"  # type: ignore[union-attr]


def test_zero_padding_is_a_load() -> None:
    reading = check(
        lambda x, w: lax.conv_general_dilated(jnp.pad(x, ((0, 0), (0, 0), (1, 1))), w, (1,), "VALID"),
        (f32(1, 2, 5), f32(3, 2, 3)),
    )
    assert len(reading.steps) == 1


def test_sums_of_narrow_floats_accumulate_in_float32() -> None:
    reading = read(Graph.from_jax(lambda x: lax.reduce_sum(x, (0,)), bf16(4)))
    (step,) = reading.steps
    assert str(step.term) == "bfloat16(sum[r0:4](float32(x[r0])))"  # type: ignore[union-attr]


def test_static_positions_are_indices() -> None:
    reading = check(lambda x: x[jnp.arange(3), jnp.arange(3) * 2 + 1], (f32(3, 6),))
    assert str(reading.steps[-1].term) == "x[x0, 2*x0+1]"  # type: ignore[union-attr]


def test_double_precision() -> None:
    with jax.enable_x64(True):
        args = (np.random.default_rng(0).normal(size=(3, 4)), np.arange(3))
        reading = check(lambda x, i: jax.nn.softmax(x[i] @ x.T), args, by_evaluate, tolerance=1e-14)
    assert reading.opaque == 0 and reading.outputs[0].dtype == "float64"
