"""Every row of the primitive table means what JAX computes: a row without an example fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.random import threefry2x32_p
from meaning import Example, bf16, bools, check, f32, ints, naive, same

from eqsat.graph import Graph
from eqsat.index import Axis
from eqsat.notation import Tensor
from eqsat.primitives import TABLE, Out, View


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


WORDS = ints(5, low=0, dtype=np.uint32)
BYTES = ints(3, 9, low=-127, high=127, dtype=np.int8)
NHWC = ("NHWC", "HWIO", "NHWC")
ANGLES = np.array([-np.inf, -4.0, -1.0, -0.3, -0.0, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan], np.float32)
REVERSED_NAN = np.array([[1, np.nan, 3], [3, 3, 1], [-np.inf, -np.inf, -np.inf]], np.float32)

EXAMPLES: dict[str, list[Example]] = {
    **{name: binary(getattr(lax, name)) for name in ("add", "sub", "mul", "max", "min")},
    **{name: compare(getattr(lax, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: bits(getattr(lax, f"bitwise_{name}")) for name in ("and", "or", "xor")},
    "not": [(lax.bitwise_not, (bools(5),)), (lax.bitwise_not, (ints(5),))],
    **{name: unary(getattr(lax, name)) for name in ("exp", "exp2", "expm1", "tanh", "logistic", "sin", "cos")},
    **{name: unary(getattr(lax, name)) for name in ("erf", "erfc", "floor", "ceil")},
    **{name: unary(getattr(lax, name), 0.1) for name in ("log", "log1p", "sqrt", "rsqrt")},
    **{name: [*unary(getattr(lax, name)), (getattr(lax, name), (ints(9),))] for name in ("neg", "abs", "square")},
    "sign": [*unary(lax.sign), (lax.sign, (ints(9),)), (lax.sign, (ints(9, low=0, dtype=np.uint8),))],
    "is_finite": unary(lax.is_finite),
    "round": [(jnp.round, (np.array([0.5, 1.5, -0.5, 2.4, np.nan], np.float32),))],
    "add_any": [(jax.grad(lambda x: (jnp.sin(x) * jnp.cos(x)).sum()), (f32(5),))],
    "div": [
        (lax.div, (f32(3, 5), f32(3, 5)[::-1])),
        (lax.div, (ints(9), ints(9, low=1))),
        (lambda x, y: x / y, (f32(2, 3), f32())),
    ],
    "rem": [
        (lax.rem, (ints(9), ints(9, low=1))),
        (lax.rem, (f32(9), f32(9)[::-1])),
        (lambda x, y: jnp.mod(x, y), (f32(4, 3), f32())),
        (lax.rem, (np.array([1, -0.0, np.inf, 5, np.nan, 7], np.float32), np.array([0, 3, 2, np.inf, 1, -2.5], np.float32))),
    ],
    "reduce_precision": [
        (lambda x: lax.reduce_precision(x, 8, 23) * 2, (f32(5),)),
        (lambda x: lax.reduce_precision(x, 8, 7), (f32(9) * 1e38,)),
        (lambda x: lax.reduce_precision(x, 11, 52), (f32(4),)),
    ],
    "pow": [(lax.pow, (f32(5, low=0.1), f32(5))), (lax.pow, (f32(5), ints(5)))],
    **{n: [(getattr(lax, n), (ANGLES,))] for n in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
    "atan2": [(lax.atan2, (ANGLES, ANGLES[::-1])), (lambda x, y: lax.atan2(x, y[..., None]), (f32(3, 4), f32(3)))],
    "lgamma": [(lax.lgamma, (np.array([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 40.0, np.inf, np.nan], np.float32),))],
    "erf_inv": [(lax.erf_inv, (np.array([-1.0, -0.9, -0.0, 0.0, 0.3, 1.0, 2.0, np.nan], np.float32),))],
    "threefry2x32": [(lambda a, b: threefry2x32_p.bind(a[0], a[1], b, b + 1), (WORDS[:2], WORDS))],
    "bitcast_convert_type": [
        (lambda x: lax.bitcast_convert_type(x, jnp.uint32), (ints(9),)),
        (lambda x: lax.bitcast_convert_type(x + 1, jnp.int8), (ints(9, low=0, dtype=np.uint8),)),
        (lambda x: lax.bitcast_convert_type(x >> 9 | np.uint32(0x3F800000), jnp.float32), (WORDS * 0x9E3779B1,)),
        (lambda x: lax.bitcast_convert_type(x.astype("uint16") >> 1 | np.uint16(0x3F80), "bfloat16"), (WORDS.astype(np.uint8),)),
    ],
    "integer_pow": [
        *((lambda x, y=y: lax.integer_pow(x, y), (f32(3, 4),)) for y in (-3, -1, 2, 3, 7)),
        (lambda x: lax.integer_pow(x, 5), (ints(4),)),
    ],
    "shift_left": [(lax.shift_left, (ints(7), ints(7, low=0)))],
    "shift_right_logical": [
        (lax.shift_right_logical, (ints(7), ints(7, low=0))),
        (lax.shift_right_logical, (ints(7, low=0, dtype=np.uint32), ints(7, low=0, dtype=np.uint32))),
    ],
    "shift_right_arithmetic": [
        (lax.shift_right_arithmetic, (ints(7, low=-9), ints(7, low=0))),
        (lax.shift_right_arithmetic, (~ints(7, low=0, dtype=np.uint32), ints(7, low=0, dtype=np.uint32))),
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
    "split": [
        (lambda x: [a * 2 for a in jnp.split(x, (2, 3), axis=1)], (f32(3, 7),)),
        (lambda x: jnp.split(x, 7, axis=1), (f32(3, 7),)),
    ],
    "iota": [
        (lambda x: x + lax.broadcasted_iota(jnp.int32, (3, 4), 1), (ints(3, 4),)),
        (lambda: lax.broadcasted_iota(jnp.float32, (3, 1), 1), ()),
    ],
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
    **{
        f"cum{name}": [
            (lambda x, f=f: f(x, 1), (f32(3, 5),)),
            (lambda x, f=f: f(x.T, 0, reverse=True)[1:], (f32(3, 5),)),
            (lambda x, f=f: f(x, 0) + f(x, 1), (ints(4, 1, low=-3, high=3),)),
            (lambda x, f=f: f(x, 1), (REVERSED_NAN,)),
        ]
        for name, f in (("sum", lax.cumsum), ("prod", lax.cumprod), ("max", lax.cummax), ("min", lax.cummin))
    },
    "cumlogsumexp": [
        (lambda x: lax.cumlogsumexp(x, 1), (f32(3, 5),)),
        (lambda x: lax.cumlogsumexp(x.T, 0, reverse=True)[1:], (f32(3, 5),)),
        (lambda x: lax.cumlogsumexp(x, 1), (REVERSED_NAN,)),
    ],
    "reduce_window_sum": [(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "SAME"), (f32(2, 7),))],
    "reduce_window_max": [
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3, 2), (1, 2, 2), "SAME"), (f32(2, 7, 5) - 9,)),
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), ((1, 0),), (2,), (2,)), (f32(5),)),
    ],
    "reduce_window_min": [(lambda x: lax.reduce_window(x, np.inf, lax.min, (3,), (1,), "VALID"), (f32(7),))],
    "ragged_dot_general": [
        (lax.ragged_dot, (f32(9, 5), f32(3, 5, 4), np.array([2, 0, 4], np.int32))),
        (lax.ragged_dot, (bf16(9, 40), bf16(1, 40, 2), np.array([7], np.int32))),
        (lax.ragged_dot, (f32(1, 5), f32(2, 5, 4), np.array([0, 1], np.int32))),
    ],
    "dot_general": [
        (lambda x, y: x @ y, (f32(3, 5), f32(5, 4))),
        (lambda x, y: lax.dot_general(x, y, (((0, 3), (2, 1)), ((1,), (0,)))), (f32(3, 2, 5, 4), f32(2, 4, 3, 6))),
        (lambda x, y: x @ y, (bf16(3, 40), bf16(40, 2))),
        (lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32), (bf16(3, 40), bf16(40, 2))),
        (lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32), (BYTES, BYTES.T)),
        (lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32), tuple(bf16(3, 3).astype("float8_e5m2") for _ in "xy")),
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
        *(
            (lambda x, i, m=m: jnp.take(x, i, axis=1, mode=m), (f32(2, 5, 3), ints(2, 2, low=-3, high=8)))
            for m in ("clip", "fill", "wrap")
        ),
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
    "scatter": [
        *((lambda x, v, i: x.at[i].set(v), (f32(5, 3), f32(3), np.int32(i))) for i in (2, -1, 7)),
        (lambda x: x.at[1:3, 1].set(7.0), (f32(5, 3),)),
        (lambda x, v, i, j: x.at[i, :, j].set(v, mode="clip"), (f32(5, 3, 4), f32(3), np.int32(-9), np.int32(9))),
        (
            jax.vmap(lambda x, v, i: lax.dynamic_update_slice(x, v, (i, 0))),
            (f32(3, 6, 2), f32(3, 2, 2), np.array([-2, 3, 9], np.int32)),
        ),
        (jax.vmap(lambda x, v, i: x.at[i].set(v)), (f32(3, 6), f32(3), np.array([2, -1, 9], np.int32))),
    ],
    "scatter-add": [
        (lambda x: x.at[1:3].add(x[:2]), (f32(5, 3),)),
        (jax.grad(lambda x, i: (x[i] ** 2).sum()), (f32(5, 3), np.int32(3))),
        (jax.vmap(lambda x, v, i: x.at[i].add(v)), (f32(3, 6), f32(3), np.array([2, -1, 9], np.int32))),
        (jax.grad(lambda x, i: (jnp.take_along_axis(x, i, 1) ** 2).sum()), (f32(4, 5), ints(4, 1, low=0, high=5))),
    ],
}  # fmt: skip

# Rows for primitives of other JAX releases, or of sharded parts: their operands, parameters and result.
X = f32(3, 4)
COEFFICIENTS = tuple(np.float32(c) * np.ones((), np.float32) for c in (-1, 2, 3))
ELSEWHERE: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any], tuple[np.ndarray, ...]]] = {
    "copy_p": ((X,), {}, (X,)),
    "pvary": ((X,), {"axes": ("data",)}, (X,)),
    "empty": ((), {"shape": (3, 4), "dtype": "float32"}, (np.zeros((3, 4), np.float32),)),
    "polynomial": ((X, *COEFFICIENTS), {}, (X * X * 3 + X * 2 - 1,)),
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
