"""How far rounding may take a term: a running error analysis in float64.

Beside each value stands a bound on the error that it has when every operation rounds in its own dtype. Two sides of a true
equation then differ by no more than the sum of their bounds, however ill-conditioned the data; a false one by more.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.arrays import NUMPY, Value, union
from eqsat.evaluate import Evaluator
from eqsat.notation import Tensor, Term, cast, reduce, scalar
from eqsat.online import spelled
from eqsat.scalars import DTYPES, is_float

Array = Any
_EXACT = ("neg", "abs", "max", "min", "where", "sign", "floor", "ceil", "rint")
SLACK = 1.5  # for terms of second order


class Bounds:
    """Values in float64 and error bounds of terms.

    `wide` gives the bounds for evaluation in float64 throughout; `finite` gives none (infinity) where a value overflows.
    """

    def __init__(self, arrays: Mapping[Tensor, Array], wide: bool = False, finite: bool = False) -> None:
        self.wide, self.finite = wide, finite
        self._run = Evaluator(dict(arrays), NUMPY, widen=True)
        self._done: dict[Term, tuple[Value, Value]] = {}

    def over(self, term: Term, axes: tuple[Any, ...]) -> tuple[Array, Array]:
        """Value and error bound as arrays over `axes`."""
        with np.errstate(all="ignore"):
            for t in term.walk():
                if t not in self._done:
                    self._done[t] = self._bound(t)
            value, error = self._done[term]
            return self._run.broadcast(value, axes), self._run.broadcast(error, axes)

    @property
    def leaves_range(self) -> bool:
        """True if a value met on the way overflows, or an exponential underflows."""
        met = [(t.head, value.array) for t, (value, _) in self._done.items() if is_float(t.dtype)]
        return any(np.isinf(array).any() or (head in ("exp", "exp2") and not np.all(array)) for head, array in met)

    def _unit(self, dtype: str) -> float:
        return float(jnp.finfo("float64" if self.wide else dtype).eps)

    def _tiny(self, dtype: str) -> float:
        return float(jnp.finfo("float64" if self.wide else dtype).smallest_subnormal)

    def _bound(self, t: Term) -> tuple[Value, Value]:
        match t.head:
            case "load" | "pos":
                value = self._run.value(t)
                return value, _zero(value)
            case "const":
                value = self._run.value(t)
                return value, self._rounded(t.dtype, value, _zero(value))
            case "cast":
                return self._cast(t)
            case "reduce":
                return self._reduce(t)
            case "online":
                return self._online(t)
        return self._scalar(t)

    def _rounded(self, dtype: str, value: Value, error: Value) -> Value:
        if not is_float(dtype):
            return error
        bound = error.array + self._unit(dtype) * np.abs(value.array) + self._tiny(dtype)
        if self.finite:
            bound = np.where(np.abs(value.array) > float(jnp.finfo(dtype).max), np.inf, bound)
        return Value(bound, error.axes)

    def _cast(self, t: Term) -> tuple[Value, Value]:
        inner, error = self._done[t.args[0]]
        value = self._run.cast(inner, t.args[0].dtype, t.dtype)
        if is_float(t.dtype):
            return value, self._rounded(t.dtype, value, error)
        return value, Value(np.where(error.array > 0, np.ceil(error.array), 0.0), error.axes)

    def _reduce(self, t: Term) -> tuple[Value, Value]:
        name, axis = t.data
        inner, error = self._done[t.args[0]]
        value = self._run.fold(name, inner, (axis,), t.dtype)
        if not is_float(t.dtype):
            return value, Value(np.where(self._folded("max", error, axis).array > 0, np.inf, 0.0), value.axes)
        if name in ("max", "min"):
            return value, self._folded("max", error, axis)
        size = Value(np.abs(inner.array), inner.axes)
        if name == "sum":
            spread = self._folded("sum", error, axis)
            total = self._folded("sum", size, axis)
            return value, self._run.scalar("add", spread, self._scaled(total, axis.extent * self._unit(t.dtype)))
        most = self._folded("prod", self._run.scalar("add", size, error), axis)
        least = self._folded("prod", size, axis)
        grown = self._scaled(most, 1 + axis.extent * self._unit(t.dtype))
        return value, self._run.scalar("sub", grown, least)

    def _folded(self, name: str, value: Value, axis: Any) -> Value:
        return self._run.fold(name, value, (axis,), "float64")

    @staticmethod
    def _scaled(value: Value, factor: float) -> Value:
        return Value(value.array * factor, value.axes)

    def _online(self, t: Term) -> tuple[Value, Value]:
        """By its definition."""
        if t.data[0] == "softmax":  # of a row that is masked altogether, exp(-inf - -inf)
            (s, v), (_, axis, weight) = t.args, t.data
            weights = cast(v.dtype, cast(weight, scalar("exp", scalar("sub", s, reduce("max", axis, s)))))
            whole = reduce("sum", axis, scalar("mul", weights, v))
        else:
            whole = spelled(t)
        for part in whole.walk():
            if part not in self._done:
                self._done[part] = self._bound(part)
        return self._done[whole]

    def _scalar(self, t: Term) -> tuple[Value, Value]:
        """The largest change over the corners of the operands' error bounds, then one rounding."""
        operands = [self._done[a] for a in t.args]
        axes = union([v for v, _ in operands])
        spread = [(self._run.broadcast(v, axes), self._run.broadcast(e, axes)) for v, e in operands]
        value = np.asarray(NUMPY.apply(t.head, *(v for v, _ in spread)))
        error = np.zeros(value.shape)
        unsure = [bool(np.any(e > 0)) for _, e in spread]
        corners = [_corners(a.dtype, v, e) if u else [v] for a, (v, e), u in zip(t.args, spread, unsure, strict=True)]
        for corner in itertools.product(*corners):
            moved = np.asarray(NUMPY.apply(t.head, *corner))
            change = (moved != value).astype(float) if value.dtype == bool else np.abs(moved.astype(float) - value)
            error = np.maximum(error, np.where(moved == value, 0.0, change))
        result = Value(value, axes)
        if t.head in _EXACT or not is_float(t.dtype):
            return result, Value(error, axes)
        return result, self._rounded(t.dtype, result, Value(error, axes))


def _zero(value: Value) -> Value:
    return Value(np.zeros(np.shape(value.array)), value.axes)


def _corners(dtype: str, value: Array, error: Array) -> list[Array]:
    """The values at the ends of the error bound."""
    if DTYPES[dtype].kind == "bool":
        return [value, np.where(error > 0, ~value, value)]
    ends = value + error, value - error
    return [e if is_float(dtype) else np.where(error > 0, e, value).astype(value.dtype) for e in ends]
