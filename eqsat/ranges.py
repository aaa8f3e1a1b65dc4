"""Bounds on the values of terms: interval arithmetic with outward rounding, and what is surely finite.

What a side condition of a rule asks (see `eqsat.guard`) is proved here before a rule may fire. Inputs may hold anything,
NaN and infinities included, so that little is finite: literals, positions, truth values, and what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from eqsat.arrays import NUMPY
from eqsat.notation import Stored, Term, const_value
from eqsat.online import finds_place
from eqsat.scalars import DTYPES, SCALARS, is_float

INF = math.inf


class Range(NamedTuple):
    """Every value that is not NaN lies in low..high; if `finite`, none is NaN or infinite."""

    low: float
    high: float
    finite: bool


# What an operation can give at all.
_IMAGES: dict[str, tuple[float, float]] = {
    "exp": (0, INF), "exp2": (0, INF), "expm1": (-1, INF), "tanh": (-1, 1), "logistic": (0, 1), "sqrt": (0, INF),
    "sin": (-1, 1), "cos": (-1, 1), "erf": (-1, 1), "erfc": (0, 2), "abs": (0, INF), "sign": (-1, 1),
    "atan": (-2, 2), "atan2": (-4, 4), "cosh": (0, INF),  # wide, since a rounded angle may be above pi
}  # fmt: skip
_POLES = ("log", "log1p", "sqrt")  # NaN or infinite for some finite operands
_ULPS = 8  # that an implementation of a special function may be off


@lru_cache(maxsize=1 << 16)
def range_of(term: Term) -> Range:
    """Bounds on a term's values, whatever its inputs hold."""
    return _rounded(term, _unrounded(term))


def _everything(dtype: str) -> Range:
    if is_float(dtype):
        return Range(-INF, INF, False)
    if DTYPES[dtype].kind == "bool":
        return Range(0, 1, True)
    info = np.iinfo(dtype)
    return Range(float(info.min), float(info.max), True)


def _rounded(term: Term, found: Range) -> Range:
    """Outward by what rounding may add; integers that might wrap may be anything."""
    if not is_float(term.dtype):
        every = _everything(term.dtype)
        return Range(found.low, found.high, True) if every.low <= found.low and found.high <= every.high else every
    if term.head not in ("load", "max", "min", "where", "neg", "abs"):
        folded = term.data[1].extent if term.head in ("reduce", "online", "scan") else 1
        step = _ULPS * float(jnp.finfo(term.dtype).eps) * folded
        found = Range(found.low - abs(found.low) * step, found.high + abs(found.high) * step, found.finite)
    low, high = _IMAGES.get(term.head, (-INF, INF))
    low, high = max(low, found.low), min(high, found.high)
    normal, largest = float(jnp.finfo(term.dtype).tiny), float(jnp.finfo(term.dtype).max)
    low = 0.0 if 0 < low < normal else low if low >= -largest else -INF  # what is less than normal may round to zero
    high = 0.0 if 0 < -high < normal else high if high <= largest else INF
    return Range(low, high, found.finite and math.isfinite(low) and math.isfinite(high))


def _unrounded(t: Term) -> Range:
    match t.head:
        case "const":
            value = float(const_value(t))
            return Range(value, value, math.isfinite(value)) if value == value else _everything(t.dtype)
        case "pos":
            low, high = t.data.range
            return Range(float(low), float(high), True) if not t.data.slots else _everything(t.dtype)
        case "load":
            return _load(t)
        case "cast":
            return range_of(t.args[0]) if is_float(t.dtype) or not is_float(t.args[0].dtype) else _everything(t.dtype)
        case "reduce" | "scan":
            return _fold(t)
        case "online":
            inner = range_of(t.args[1])
            if finds_place(t):
                return inner
            return Range(0.0 if inner.low >= 0 else -INF, 0.0 if inner.high <= 0 else INF, False)
        case "where":
            a, b = (range_of(x) for x in t.args[1:])
            return Range(min(a.low, b.low), max(a.high, b.high), a.finite and b.finite)
    return _scalar(t)


def _load(t: Term) -> Range:
    """Of what a definition gives, and of the zero beyond its bounds; a leaf may hold anything."""
    if not isinstance(t.tensor, Stored) or t.tensor.term is None:
        return _everything(t.dtype)
    inner = range_of(t.tensor.term)
    return Range(min(inner.low, 0.0), max(inner.high, 0.0), inner.finite)


def _fold(t: Term) -> Range:
    """Of a reduction, and of the running one, which has folded one element at least."""
    name, axis, inner = t.data[0], t.data[1], range_of(t.args[0])
    if name in ("max", "min"):
        return inner
    if name == "sum":
        counts = (axis.extent, axis.extent if t.head == "reduce" else 1)
        return Range(min(inner.low * n for n in counts), max(inner.high * n for n in counts), inner.finite)
    return Range(0.0, INF, False) if name == "prod" and inner.low >= 0 and is_float(t.dtype) else _everything(t.dtype)


def _scalar(t: Term) -> Range:
    if SCALARS[t.head].result == "bool" or t.dtype == "bool":
        return _everything("bool")
    operands = [range_of(a) for a in t.args]
    finite = all(r.finite for r in operands)
    made = _ARITHMETIC.get(t.head)
    if made is not None:
        low, high = (0.0, _square(operands[0])) if t.head == "mul" and t.args[0] is t.args[1] else made(*operands)
    elif len(operands) == 1 and SCALARS[t.head].increasing and is_float(t.dtype):
        low, high = _image(t.head, operands[0])
    else:
        low, high = _IMAGES.get(t.head, (-INF, INF))
        finite = finite and t.head in _IMAGES
    if t.head == "rsqrt":  # of -0 it is -inf
        low, finite = (0.0 if operands[0].low > 0 else -INF), finite and operands[0].low > 0
    if t.head == "div":
        finite = finite and (operands[1].low > 0 or operands[1].high < 0)
    if t.head in _POLES:
        finite = finite and operands[0].low > 0
    return Range(low, high, finite)


def _image(name: str, r: Range) -> tuple[float, float]:
    """Of an increasing function; where it is not defined, its limit."""
    with np.errstate(all="ignore"):
        low, high = (float(NUMPY.apply(name, np.float64(x))) for x in (r.low, r.high))
    return (low if low == low else -INF), (high if high == high else INF)


def _square(r: Range) -> float:
    return max(r.low * r.low, r.high * r.high)


def _product(a: Range, b: Range) -> tuple[float, float]:
    ends = [0.0 if 0 in (x, y) else x * y for x in a[:2] for y in b[:2]]
    return min(ends), max(ends)


def _quotient(a: Range, b: Range) -> tuple[float, float]:
    """A divisor that may be zero gives anything, of either sign."""
    if b.high < 0:
        a, b = Range(-a.high, -a.low, a.finite), Range(-b.high, -b.low, b.finite)
    if b.low <= 0:
        return -INF, INF
    ends = [x / y for x in a[:2] for y in b[:2] if math.isfinite(x) or math.isfinite(y)]
    return min(ends), max(ends)


_ARITHMETIC: dict[str, Callable[..., tuple[float, float]]] = {
    "add": lambda a, b: (_sum(a.low, b.low, -INF), _sum(a.high, b.high, INF)),
    "sub": lambda a, b: (_sum(a.low, -b.high, -INF), _sum(a.high, -b.low, INF)),
    "mul": _product,
    "div": _quotient,
    "neg": lambda a: (-a.high, -a.low),
    "abs": lambda a: (max(a.low, -a.high, 0.0), max(abs(a.low), abs(a.high))),
    "max": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "min": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
}


def _sum(x: float, y: float, otherwise: float) -> float:
    total = x + y
    return total if total == total else otherwise
