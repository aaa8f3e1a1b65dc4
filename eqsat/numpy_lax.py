"""NumPy under JAX's names: `jnp` and `lax` with just what the rows of the operation tables use.

Results have JAX's values: narrow floats are summed and approximated in float32 and rounded once, integer division by zero
is -1, conversions to integers saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

Array = Any


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which JAX computes: float32 for narrower floats."""
    return np.dtype(np.float32) if _is_float(dtype) and dtype.itemsize < 4 else dtype


def _rounded_once(function: Any) -> Any:
    """Compute in the wide dtype, then round."""

    def wrapped(*args: Array) -> Array:
        args = tuple(map(np.asarray, args))
        wide = _wide(args[0].dtype)
        return np.asarray(function(*(a.astype(wide) for a in args))).astype(args[0].dtype)

    return wrapped


def _sum(x: Array, axis: Any, dtype: np.dtype) -> Array:
    return np.add.reduce(x, axis=axis, dtype=_wide(dtype)).astype(dtype)


def _prod(x: Array, axis: Any, dtype: np.dtype) -> Array:
    return np.multiply.reduce(x, axis=axis, dtype=_wide(dtype)).astype(dtype)


def _convert(x: Array, dtype: np.dtype) -> Array:
    x, dtype = np.asarray(x), np.dtype(dtype)
    if not _is_float(x.dtype) or dtype.kind not in "iu":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    x = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=float(info.max), neginf=float(info.min))
    inside = (x > float(info.min)) & (x < float(info.max))
    return np.where(inside, np.where(inside, x, 0).astype(dtype), np.where(x > 0, info.max, info.min).astype(dtype))


def _slice(x: Array, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    return x[tuple(map(slice, starts, stops, steps))]


def _dot_general(a: Array, b: Array, numbers: Any, precision: Any = None, preferred_element_type: Any = None) -> Array:
    (a_sum, b_sum), (a_batch, b_batch) = numbers
    a_free = [d for d in range(a.ndim) if d not in (*a_sum, *a_batch)]
    b_free = [d for d in range(b.ndim) if d not in (*b_sum, *b_batch)]
    batch = tuple(a.shape[d] for d in a_batch)
    depth = int(np.prod([a.shape[d] for d in a_sum], dtype=np.int64))
    left = a.transpose(*a_batch, *a_free, *a_sum).astype(preferred_element_type)
    right = b.transpose(*b_batch, *b_sum, *b_free).astype(preferred_element_type)
    shape = (*batch, *(a.shape[d] for d in a_free), *(b.shape[d] for d in b_free))
    rows = int(np.prod([a.shape[d] for d in a_free], dtype=np.int64))
    columns = int(np.prod([b.shape[d] for d in b_free], dtype=np.int64))
    return np.matmul(left.reshape(*batch, rows, depth), right.reshape(*batch, depth, columns)).reshape(shape)


def _quotient(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    floor = a // safe
    toward_zero = floor + ((a - floor * safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.asarray(-1).astype(a.dtype), toward_zero)


def _rest(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if _is_float(a.dtype):
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, np.ones((), b.dtype), b)))


def _right_arithmetic(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    last = np.asarray(8 * a.dtype.itemsize - 1, b.dtype)
    return np.right_shift(a, np.where((b < 0) | (b > last), last, b))


def _shifted(shift: Any) -> Any:
    def wrapped(a: Array, b: Array) -> Array:
        a, b = np.asarray(a), np.asarray(b)
        inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
        return np.where(inside, shift(a, np.where(inside, b, np.zeros((), b.dtype))), np.zeros((), a.dtype))

    return wrapped


def _reduce(x: Array, identity: Array, combine: np.ufunc, dims: tuple[int, ...]) -> Array:
    return combine.reduce(x, axis=dims)


def _scan(combine: np.ufunc) -> Any:
    def wrapped(x: Array, axis: int, reverse: bool) -> Array:
        total = combine.accumulate(np.flip(x, axis) if reverse else x, axis=axis, dtype=x.dtype)
        return np.flip(total, axis) if reverse else total

    return wrapped


def scan_softsum(scores: Array, sums: Array, axis: int, reverse: bool) -> tuple[Array, Array]:
    """Running sums of sums * exp(scores - m), m being the running maximum of the scores, which is the second result."""
    s, v = (np.flip(np.moveaxis(x, axis, 0), 0) if reverse else np.moveaxis(x, axis, 0) for x in (scores, sums))
    largest = np.maximum.accumulate(s, axis=0)
    totals = np.array(v, copy=True)
    for n in range(1, len(s)):  # equal maxima, infinite ones too, leave what was summed
        old, new = (np.where(x == largest[n], 0, x - largest[n]) for x in (largest[n - 1], s[n]))
        totals[n] = totals[n - 1] * np.exp(old) + v[n] * np.exp(new)
    totals, largest = (np.moveaxis(np.flip(x, 0) if reverse else x, 0, axis) for x in (totals, largest))
    return totals, largest


def _where(condition: Array, a: Array, b: Array) -> Array:
    """NumPy's, but a Python number has the dtype of the other operand: NumPy makes bfloat16 and NaN float32."""
    return np.where(condition, np.asarray(a, b.dtype) if isinstance(a, float) else a, b)


def _of_two(extreme: Callable[..., Array], lower: Callable[..., Array]) -> Callable[..., Array]:
    """NumPy's, but of two zeros -0 is the less; `lower` is the operand whose sign tells. NumPy has no signs of narrow floats."""

    def run(a: Array, b: Array) -> Array:
        found = extreme(a, b)
        if not _is_float(found.dtype):
            return found
        return np.where(a == b, np.where(np.signbit(lower(a, b).astype(np.float32)), b, a), found)

    return run


def _scatter_sum(shape: tuple[int, ...], dtype: np.dtype, places: Array, updates: Array) -> Array:
    total, inside = np.zeros(shape, dtype), places < shape[0]
    np.add.at(total, places[inside], updates[inside])
    return total


jnp = SimpleNamespace(
    **{n: getattr(np, n) for n in ("arange", "full", "reshape", "transpose", "broadcast_to", "pad", "flip", "take")},
    **{n: getattr(np, n) for n in ("max", "min", "all", "any", "abs", "floor", "ceil")},
    **{n: _rounded_once(getattr(np, n)) for n in ("exp", "exp2", "expm1", "log", "log1p", "tanh", "sqrt", "sin", "cos", "tan")},
    maximum=_of_two(np.maximum, lambda a, b: a),
    minimum=_of_two(np.minimum, lambda a, b: b),
    where=_where,
    isfinite=np.isfinite,
    isnan=np.isnan,
    signbit=np.signbit,
    rint=np.rint,
    nan=np.nan,
    sum=_sum,
    prod=_prod,
)

lax = SimpleNamespace(
    slice=_slice,
    reduce=_reduce,
    scatter_sum=_scatter_sum,
    dot_general=_dot_general,
    convert_element_type=_convert,
    bitwise_and=np.bitwise_and,
    bitwise_or=np.bitwise_or,
    scan_softsum=lambda *operands: scan_softsum(*operands)[0],
    cumsum=_scan(np.add),
    cumprod=_scan(np.multiply),
    cummax=_scan(np.maximum),
    cummin=_scan(np.minimum),
    div=_quotient,
    rem=_rest,
    square=np.square,
    shift_left=_shifted(np.left_shift),
    shift_right_logical=_shifted(np.right_shift),
    shift_right_arithmetic=_right_arithmetic,
    logistic=_rounded_once(special.expit),
    rsqrt=_rounded_once(lambda x: 1 / np.sqrt(x)),
    **{n: _rounded_once(getattr(np, f"arc{n[1:]}")) for n in ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")},
    sinh=_rounded_once(np.sinh),
    cosh=_rounded_once(np.cosh),
    lgamma=_rounded_once(special.gammaln),
    erf=_rounded_once(special.erf),
    erfc=_rounded_once(special.erfc),
    erf_inv=_rounded_once(lambda x: special.erfinv(x.astype(np.float64))),
    optimization_barrier=lambda x: x,
    pow=_rounded_once(np.float_power),  # np.power takes the root of -0 for its half power
    sign=lambda x: np.where(np.asarray(x) == 0, x, np.sign(x)),
)

__all__ = ["jnp", "lax", "ml_dtypes"]
