"""ATen operators that reduce, accumulate, sort and rank along axes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, axes_of, axis_of, cast, op, opmath


@op("sum", "sum.dim_IntList")
def total(node: Node, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return cast(jnp.sum(cast(self, opmath(node.dtype)), axes_of(dim, self.ndim), keepdims=keepdim), node.dtype)


@op("mean", "mean.dim")
def mean(node: Node, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return cast(jnp.mean(cast(self, opmath(node.dtype)), axes_of(dim, self.ndim), keepdims=keepdim), node.dtype)


@op("prod", "prod.dim_int")
def product(node: Node, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return cast(jnp.prod(cast(self, opmath(node.dtype)), axes_of(dim, self.ndim), keepdims=keepdim), node.dtype)


@op("amax")
def amax(node: Node, self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return jnp.max(self, axes_of(dim, self.ndim), keepdims=keepdim)


@op("amin")
def amin(node: Node, self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return jnp.min(self, axes_of(dim, self.ndim), keepdims=keepdim)


@op("max", "min")
def extreme(node: Node, self: Array) -> Array:
    return (jnp.max if node.op == "max.default" else jnp.min)(self)


@op("any", "any.dim", "any.dims")
def any_(node: Node, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return cast(jnp.any(cast(self, bool), axes_of(dim, self.ndim), keepdims=keepdim), node.dtype)


@op("all", "all.dim", "all.dims")
def all_(node: Node, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return cast(jnp.all(cast(self, bool), axes_of(dim, self.ndim), keepdims=keepdim), node.dtype)


@op("var", "var.dim", "var.correction")
def variance(
    node: Node, self: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Array:
    if dim is True or dim is False:  # var(self, unbiased)
        dim, unbiased = None, dim
    count = (1 if unbiased else 0) if correction is None else correction
    return cast(_variance(cast(self, opmath(node.dtype)), axes_of(dim, self.ndim), count, keepdim), node.dtype)


def _variance(x: Array, axes: tuple[int, ...], correction: float, keepdim: bool) -> Array:
    centred = x - jnp.mean(x, axes, keepdims=True)
    squares = jnp.real(centred * jnp.conj(centred)) if jnp.iscomplexobj(x) else centred * centred
    total = jnp.sum(squares, axes, keepdims=keepdim)
    count = np.prod([x.shape[a] for a in axes], dtype=np.float64) - correction
    return total / np.asarray(max(count, 0), total.dtype)


@op("var_mean.correction")
def var_mean(node: Node, self: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Array, Array]:
    x, axes = cast(self, opmath(node.dtypes[1])), axes_of(dim, self.ndim)
    spread = _variance(x, axes, 1 if correction is None else correction, keepdim)
    return cast(spread, node.dtypes[0]), cast(jnp.mean(x, axes, keepdims=keepdim), node.dtypes[1])


@op("linalg_vector_norm")
def vector_norm(node: Node, self: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The norm of all elements along the axes, as of one vector."""
    x, axes = jnp.abs(cast(self, opmath(node.dtype))), axes_of(dim, self.ndim)
    if ord == float("inf"):
        y = jnp.max(x, axes, keepdims=keepdim)
    elif ord == float("-inf"):
        y = jnp.min(x, axes, keepdims=keepdim)
    elif ord == 0:
        y = jnp.sum(cast(x != 0, x.dtype), axes, keepdims=keepdim)
    elif ord == 1:
        y = jnp.sum(x, axes, keepdims=keepdim)
    elif ord == 2:
        y = jnp.sqrt(jnp.sum(x * x, axes, keepdims=keepdim))
    else:
        y = jnp.sum(x ** cast(ord, x.dtype), axes, keepdims=keepdim) ** cast(1 / ord, x.dtype)
    return cast(y, node.dtype)


# --- positions of extremes --------------------------------------------------------------------------------------


def _place(function: Any, x: Array, dim: int | None, keepdim: bool) -> Array:
    """The first extreme; not-a-number counts as one."""
    x = cast(x, np.uint8) if x.dtype == bool else x
    if x.ndim == 0:
        return np.zeros((), np.int64)
    if dim is None:
        place = function(jnp.reshape(x, (-1,)), axis=0)
        return jnp.reshape(place, (1,) * x.ndim) if keepdim else place
    return function(x, axis=dim, keepdims=keepdim)


@op("argmax")
def argmax(node: Node, self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return cast(_place(jnp.argmax, self, dim, keepdim), node.dtype)


@op("argmin")
def argmin(node: Node, self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return cast(_place(jnp.argmin, self, dim, keepdim), node.dtype)


@op("max.dim")
def max_dim(node: Node, self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amax(node, self, [dim], keepdim), cast(_place(jnp.argmax, self, dim, keepdim), node.dtypes[1])


@op("min.dim")
def min_dim(node: Node, self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amin(node, self, [dim], keepdim), cast(_place(jnp.argmin, self, dim, keepdim), node.dtypes[1])


# --- running reductions -----------------------------------------------------------------------------------------


@op("cumsum")
def cumsum(node: Node, self: Array, dim: int, *, dtype: Any = None) -> Array:
    x = cast(self, opmath(node.dtype))
    return cast(lax.cumsum(x, axis_of(dim, x.ndim)) if x.ndim else x, node.dtype)


@op("cumprod")
def cumprod(node: Node, self: Array, dim: int, *, dtype: Any = None) -> Array:
    x = cast(self, opmath(node.dtype))
    return cast(lax.cumprod(x, axis_of(dim, x.ndim)) if x.ndim else x, node.dtype)


@op("logcumsumexp")
def logcumsumexp(node: Node, self: Array, dim: int) -> Array:
    x = cast(self, opmath(node.dtype))
    return cast(lax.cumlogsumexp(x, axis_of(dim, x.ndim)) if x.ndim else x, node.dtype)


@op("cummax", "cummin")
def running_extreme(node: Node, self: Array, dim: int) -> tuple[Array, Array]:
    """And the place of each: the last, of several and of not-a-number, which is the extreme from there on."""
    if self.ndim == 0:
        return self, cast(0, node.dtypes[1])
    axis = axis_of(dim, self.ndim)
    values = (lax.cummax if "max" in node.op else lax.cummin)(self, axis)
    places = lax.broadcasted_iota(np.int32, self.shape, axis)
    met = (self == values) | ((self != self) & (values != values))
    return values, cast(lax.cummax(jnp.where(met, places, 0), axis), node.dtypes[1])


# --- order ------------------------------------------------------------------------------------------------------


def _order(x: Array, axis: int, descending: bool) -> Array:
    """The stable order along an axis; not-a-number counts as the largest."""
    if not descending:
        return jnp.argsort(x, axis=axis, stable=True)
    backwards = jnp.argsort(jnp.flip(x, axis), axis=axis, stable=True)
    return jnp.flip(np.asarray(x.shape[axis] - 1, backwards.dtype) - backwards, axis)


@op("sort", "sort.stable")
def sort(
    node: Node, self: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Array, Array]:  # fmt: skip
    if self.ndim == 0:
        return self, np.zeros((), np.int64)
    order = _order(self, axis_of(dim, self.ndim), descending)
    return jnp.take_along_axis(self, order, axis_of(dim, self.ndim), mode="clip"), cast(order, node.dtypes[1])


@op("topk")
def topk(node: Node, self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, np.zeros((), np.int64)
    axis = axis_of(dim, self.ndim)
    order = lax.slice_in_dim(_order(self, axis, largest), 0, k, axis=axis)
    return jnp.take_along_axis(self, order, axis, mode="clip"), cast(order, node.dtypes[1])
