"""ATen operators that read and write at computed positions. Positions out of range are errors in torch; here they clamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.torch.table import Array, Node, axis_of, cast, is_number, op, opmath


def counted(places: Array, size: int) -> Array:
    """Positions counted from the front."""
    return jnp.where(places < 0, places + np.asarray(size, places.dtype), places)


@op("embedding")
def embedding(
    node: Node, weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    return jnp.take(weight, indices, axis=0, mode="clip")


@op("index_select")
def index_select(node: Node, self: Array, dim: int, index: Array) -> Array:
    if self.ndim == 0:
        return self
    return jnp.take(self, jnp.reshape(index, (-1,)), axis=axis_of(dim, self.ndim), mode="clip")


def _places(node: Node, x: Array, indices: Sequence[Any]) -> tuple[Any, ...]:
    """NumPy's index: a position for each axis, or all of it."""
    if any(i is not None and i.dtype == bool for i in indices):
        raise node.error("indices that are positions required, got a mask, whose result has as many rows as it has ones")
    return tuple(slice(None) if i is None else counted(i, x.shape[n]) for n, i in enumerate(indices))


@op("index.Tensor", "_unsafe_index.Tensor")
def index(node: Node, self: Array, indices: Sequence[Any]) -> Array:
    return jnp.asarray(self).at[_places(node, self, indices)].get(mode="clip")


@op("index_put", "_unsafe_index_put")
def index_put(node: Node, self: Array, indices: Sequence[Any], values: Array, accumulate: bool = False) -> Array:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype == bool and values.size == 1:
        return _masked_put(self, indices, values, accumulate)
    place = jnp.asarray(self).at[_places(node, self, indices)]
    values = cast(values, self.dtype)
    return place.add(values, mode="drop") if accumulate else place.set(values, mode="drop")


def _masked_put(x: Array, indices: Sequence[Any], value: Array, accumulate: bool) -> Array:
    """One number wherever the mask, which covers some axes, is set."""
    first = next(n for n, i in enumerate(indices) if i is not None)
    mask = indices[first]
    mask = jnp.reshape(mask, (*(1,) * first, *mask.shape, *(1,) * (x.ndim - first - mask.ndim)))
    number = jnp.reshape(cast(value, x.dtype), (1,) * x.ndim)
    return jnp.where(mask, x + number if accumulate else number, x)


# --- one axis at computed places --------------------------------------------------------------------------------


def _grid(like: Sequence[int], axis: int, places: Array) -> tuple[Array, ...]:
    """For every element, its own position, but `places` along an axis."""
    own = np.indices(tuple(like), sparse=True)
    return tuple(places if n == axis else own[n].astype(np.int32) for n in range(len(like)))


@op("gather")
def gather(node: Node, self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """The index may be shorter than the tensor along the other axes."""
    if self.ndim == 0 or index.size == 0:
        return jnp.broadcast_to(self, index.shape) if self.ndim == 0 else jnp.zeros(index.shape, self.dtype)
    axis = axis_of(dim, self.ndim)
    index = jnp.reshape(index, (1,) * (self.ndim - index.ndim) + index.shape)
    return jnp.asarray(self).at[_grid(index.shape, axis, counted(index, self.shape[axis]))].get(mode="clip")


def _written(x: Array, dim: int, index: Array, values: Any, method: str) -> Array:
    if index.size == 0:
        return x
    if x.ndim == 0:
        return jnp.reshape(_written(jnp.reshape(x, (1,)), 0, jnp.reshape(index, (1,)), values, method), ())
    axis = axis_of(dim, x.ndim)
    index = jnp.reshape(index, (1,) * (x.ndim - index.ndim) + index.shape)
    if not is_number(values):
        values = jnp.reshape(values, (1,) * (x.ndim - values.ndim) + values.shape)
        values = values[tuple(slice(0, n) for n in index.shape)]
    places = jnp.asarray(x).at[_grid(index.shape, axis, counted(index, x.shape[axis]))]
    return getattr(places, method)(cast(values, x.dtype), mode="drop")


@op("scatter.value", "scatter.src")
def scatter(node: Node, self: Array, dim: int, index: Array, src: Any) -> Array:
    """`src` is a tensor or a number."""
    return _written(self, dim, index, src, "set")


@op("scatter_add")
def scatter_add(node: Node, self: Array, dim: int, index: Array, src: Array) -> Array:
    return _written(self, dim, index, src, "add")


@op("scatter_reduce.two")
def scatter_reduce(
    node: Node, self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    method, start = {
        "sum": ("add", 0), "mean": ("add", 0), "prod": ("multiply", 1),
        "amax": ("max", _bounds(self.dtype)[0]), "amin": ("min", _bounds(self.dtype)[1]),
    }[reduce]  # fmt: skip
    x = cast(self, opmath(self.dtype)) if jnp.issubdtype(self.dtype, jnp.floating) else self
    if not include_self:
        x = _written(x, dim, index, start, "set")
    y = _written(x, dim, index, cast(src, x.dtype), method)
    if reduce == "mean":
        count = _written(jnp.full(x.shape, 1 if include_self else 0, np.int32), dim, index, jnp.ones(src.shape, np.int32), "add")
        count = cast(jnp.maximum(count, 1), y.dtype)
        y = y / count if jnp.issubdtype(y.dtype, jnp.floating) else jnp.floor_divide(y, count)
    if not include_self and reduce == "mean":
        touched = _written(jnp.zeros(x.shape, bool), dim, index, True, "set")
        y = jnp.where(touched, y, cast(self, y.dtype))
    return cast(y, node.dtype)


def _bounds(dtype: Any) -> tuple[Any, Any]:
    if jnp.issubdtype(dtype, jnp.floating):
        return float("-inf"), float("inf")
    return (False, True) if jnp.dtype(dtype) == np.dtype(bool) else (int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max))


@op("masked_scatter")
def masked_scatter(node: Node, self: Array, mask: Array, source: Array) -> Array:
    """The source's elements, in order, wherever the mask is set."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    mask = jnp.reshape(jnp.broadcast_to(mask, shape), (-1,))
    place = jnp.cumsum(mask.astype(np.int32)) - 1
    values = jnp.take(jnp.reshape(source, (-1,)), place, mode="clip") if source.size else jnp.zeros(mask.shape, source.dtype)
    return jnp.where(jnp.reshape(mask, shape), jnp.reshape(values, shape), self)
