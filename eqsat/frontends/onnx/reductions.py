"""ONNX operators that reduce or scan along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.table import Array, Node, axis_of, op


def _axes(node: Node, x: Array, axes: np.ndarray | None) -> tuple[int, ...]:
    given = node.get("axes") if axes is None else axes.reshape(-1)
    if given is None or not len(given):
        return () if node.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    return tuple(axis_of(node, axis, x.ndim) for axis in given)


def _lowest(dtype: Any) -> Any:
    if dtype == np.dtype(bool):
        return False
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -np.inf


def _highest(dtype: Any) -> Any:
    if dtype == np.dtype(bool):
        return True
    return np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else np.inf


def _extreme(name: str, start: Callable[[Any], Any]) -> Callable[..., Array]:
    def extreme(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
        empty = any(x.shape[a] == 0 for a in axes)
        initial = {"initial": np.asarray(start(x.dtype), x.dtype)} if empty else {}
        return getattr(xp, name)(x, axis=axes, keepdims=True, **initial)

    return extreme


def _sum(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
    return xp.sum(x, axis=axes, keepdims=True, dtype=x.dtype)


def _mean(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
    if np.issubdtype(x.dtype, np.integer):
        return _sum(xp, x, axes) // np.asarray(max(1, int(np.prod([x.shape[a] for a in axes]))), x.dtype)
    return xp.mean(x, axis=axes, keepdims=True).astype(x.dtype)


def _log_sum_exp(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
    if any(x.shape[a] == 0 for a in axes):
        return xp.log(_sum(xp, x, axes))
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    return xp.log(_sum(xp, xp.exp(x - top), axes)) + top


def _float(function: Callable[[Any, Array], Array]) -> Callable[[Any, Array], Array]:
    """Roots and logarithms of integer sums are taken in float and cut back."""

    def over(xp: Any, x: Array) -> Array:
        return function(xp, x.astype(np.float32)).astype(x.dtype) if np.issubdtype(x.dtype, np.integer) else function(xp, x)

    return over


_root = _float(lambda xp, x: xp.sqrt(x))
_log = _float(lambda xp, x: xp.log(x))

_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme("max", _lowest),
    "ReduceMin": _extreme("min", _highest),
    "ReduceProd": lambda xp, x, axes: xp.prod(x, axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceL1": lambda xp, x, axes: _sum(xp, xp.abs(x), axes),
    "ReduceL2": lambda xp, x, axes: _root(xp, _sum(xp, x * x, axes)),
    "ReduceSumSquare": lambda xp, x, axes: _sum(xp, x * x, axes),
    "ReduceLogSum": lambda xp, x, axes: _log(xp, _sum(xp, x, axes)),
    "ReduceLogSumExp": _log_sum_exp,
}
# What is done to an element before the sum and to the result after it holds where no axis is reduced, too.


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduction(node: Node, x: Array, axes: np.ndarray | None = None) -> Array:
        over = _axes(node, x, axes)
        if not over and x.ndim and node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            return x
        result = function(node.xp, x, over)
        if node.get("keepdims", 1):
            return result
        return node.xp.reshape(result, tuple(n for a, n in enumerate(x.shape) if a not in over))

    return reduction


for _name, _function in _REDUCTIONS.items():
    op(_name, folds=True, static=(1,))(_reduction(_function))


@op("ArgMax", "ArgMin", folds=True)
def arg_extreme(node: Node, x: Array) -> Array:
    xp, axis = node.xp, axis_of(node, node.get("axis", 0), x.ndim)
    find = xp.argmax if node.op == "ArgMax" else xp.argmin
    if node.get("select_last_index", 0):
        place = x.shape[axis] - 1 - find(xp.flip(x, axis), axis=axis)
    else:
        place = find(x, axis=axis)
    place = node.cast(place, np.int64)
    return xp.expand_dims(place, axis) if node.get("keepdims", 1) else place


@op("CumSum", "CumProd", folds=True, static=(1,))
def cumulative(node: Node, x: Array, axis: np.ndarray) -> Array:
    xp, along = node.xp, axis_of(node, axis.item(), x.ndim)
    if node.get("reverse", 0):
        x = xp.flip(x, along)
    total = (xp.cumsum if node.op == "CumSum" else xp.cumprod)(x, axis=along, dtype=x.dtype)
    if node.get("exclusive", 0):
        first = xp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), 0 if node.op == "CumSum" else 1, x.dtype)
        rest = total[(slice(None),) * along + (slice(0, x.shape[along] - 1),)]
        total = xp.concatenate([first, rest], along)
    return xp.flip(total, along) if node.get("reverse", 0) else total


@op("TopK", static=(1,), since=10)
def top_k(node: Node, x: Array, k: np.ndarray) -> tuple[Array, Array]:
    axis = axis_of(node, node.get("axis", -1), x.ndim)
    count = int(k.item())
    if not 0 <= count <= x.shape[axis]:
        raise node.error(f"k of at most {x.shape[axis]} required, got {count}")
    moved = jnp.moveaxis(x, axis, -1)
    if node.get("largest", 1):
        values, places = lax.top_k(moved, count)
    else:  # the order turned round, without overflow
        turned = ~moved if np.issubdtype(x.dtype, np.integer) else -moved
        values, places = lax.top_k(turned, count)
        values = ~values if np.issubdtype(x.dtype, np.integer) else -values
    return jnp.moveaxis(values, -1, axis), node.cast(jnp.moveaxis(places, -1, axis), np.int64)


@op("TopK")
def top_k_by_attribute(node: Node, x: Array) -> tuple[Array, Array]:
    return top_k(node, x, np.asarray(node.get("k")))
