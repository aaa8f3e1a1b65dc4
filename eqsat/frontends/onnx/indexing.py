"""ONNX operators that read and write at computed positions. Positions out of range are undefined in ONNX; here they clamp."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, axis_of, op


def counted(node: Node, places: Array, size: int) -> Array:
    """Positions counted from the front."""
    if isinstance(places, np.ndarray) and (isinstance(size, int) or places.min(initial=0) >= 0):
        return np.where(places < 0, places + size, places) if isinstance(size, int) else places
    return jnp.where(places < 0, places + jnp.asarray(size, places.dtype), places)


@op("Gather", folds=True)
def gather(node: Node, x: Array, places: Array) -> Array:
    axis = axis_of(node, node.get("axis", 0), x.ndim)
    places = counted(node, places, x.shape[axis])
    if isinstance(places, np.ndarray):
        if places.size and isinstance(x.shape[axis], int) and (places.min() < 0 or places.max() >= x.shape[axis]):
            raise node.error(f"positions below {x.shape[axis]} required, got {int(places.min())} to {int(places.max())}")
        if node.xp is np:
            return np.take(x, places, axis)
        if places.ndim == 0:
            return x[(slice(None),) * axis + (int(places),)]
    return jnp.take(x, places, axis, mode="clip")


@op("GatherElements")
def gather_elements(node: Node, x: Array, places: Array) -> Array:
    axis = axis_of(node, node.get("axis", 0), x.ndim)
    return jnp.asarray(x)[_grid(places, axis, counted(node, places, x.shape[axis]))]


def _grid(like: Array, axis: int, places: Array) -> tuple[Array, ...]:
    """For every element of `like`, its own position, but `places` along an axis."""
    own = np.indices(like.shape, sparse=True)
    return tuple(places if n == axis else own[n].astype(np.int32) for n in range(like.ndim))


@op("GatherND")
def gather_nd(node: Node, x: Array, places: Array) -> Array:
    batch = node.get("batch_dims", 0)
    return jnp.asarray(x)[_tuples(node, x, places, batch)]


def _tuples(node: Node, x: Array, places: Array, batch: int) -> tuple[Array, ...]:
    """The positions along each axis that the tuples in the last axis of `places` name, after batch axes."""
    outer = places.shape[:-1]
    own = np.indices(outer, sparse=True)[:batch]
    count = places.shape[-1]
    named = tuple(counted(node, places[..., n], x.shape[batch + n]) for n in range(count))
    return tuple(o.astype(np.int32) for o in own) + named


@op("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Array, places: Array, updates: Array) -> Array:
    axis = axis_of(node, node.get("axis", 0), x.ndim)
    return _written(node, x, _grid(places, axis, counted(node, places, x.shape[axis])), updates)


@op("ScatterND")
def scatter_nd(node: Node, x: Array, places: Array, updates: Array) -> Array:
    return _written(node, x, _tuples(node, x, places, 0), updates)


def _written(node: Node, x: Array, places: tuple[Array, ...], updates: Array) -> Array:
    reduction = node.get("reduction", "none")
    method = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}.get(reduction)
    if method is None:
        raise node.error(f"reduction none, add, mul, max or min required, got {reduction!r}")
    return getattr(jnp.asarray(x).at[places], method)(updates)


@op("TensorScatter")
def tensor_scatter(node: Node, cache: Array, update: Array, start: Array | None = None) -> Array:
    axis = axis_of(node, node.get("axis", -2), cache.ndim)
    first = jnp.zeros(cache.shape[:1], np.int32) if start is None else jnp.asarray(start)
    shape = [update.shape[n] if n in (0, axis) else 1 for n in range(cache.ndim)]
    along = np.arange(update.shape[axis], dtype=np.int32).reshape([-1 if n == axis else 1 for n in range(cache.ndim)])
    places = jnp.reshape(first, [-1, *[1] * (cache.ndim - 1)]) + along
    if node.get("mode", "linear") == "circular":
        places = places % cache.shape[axis]
    grid = list(np.indices(update.shape, sparse=True))
    grid[axis] = jnp.broadcast_to(places, shape)
    return jnp.asarray(cache).at[tuple(grid)].set(update)


@op("OneHot", static=(1,))
def one_hot(node: Node, places: Array, depth: np.ndarray, values: Array) -> Array:
    size = int(depth.item())
    axis = axis_of(node, node.get("axis", -1), places.ndim + 1)
    node.shape((*places.shape, size), values.dtype)
    places = jnp.expand_dims(counted(node, places, size), axis)
    labels = jnp.arange(size, dtype=np.int32).reshape([-1 if n == axis else 1 for n in range(places.ndim)])
    return jnp.where(places == labels.astype(places.dtype), values[1], values[0])


@op("NonZero", folds=True, static=(0,))
def non_zero(node: Node, x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(x)).astype(np.int64) if x.ndim else np.zeros((0, int(bool(x))), np.int64)


@op("Compress", folds=True, static=(1,))
def compress(node: Node, x: Array, condition: np.ndarray) -> Array:
    axis = node.get("axis")
    kept = np.nonzero(condition)[0]
    if axis is None:
        return node.xp.take(node.xp.reshape(x, (-1,)), kept, axis=0)
    return node.xp.take(x, kept, axis=axis_of(node, axis, x.ndim))


@op("Unique", folds=True, static=(0,))
def unique(node: Node, x: np.ndarray) -> tuple[np.ndarray, ...]:
    axis = node.get("axis")
    along = None if axis is None else axis_of(node, axis, x.ndim)
    values, first, inverse, counts = np.unique(x, True, True, True, axis=along)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        values = np.take(values, order, axis=0 if along is None else along)
        first, inverse, counts = first[order], back[inverse], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@op("ReverseSequence")
def reverse_sequence(node: Node, x: Array, lengths: Array) -> Array:
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    steps = np.arange(x.shape[time], dtype=np.int32)[:, None]
    ends = jnp.asarray(lengths)[None, :]
    places = jnp.where(steps < ends, ends - 1 - steps, steps)  # [time, batch]
    places = places if time == 0 else places.T
    places = jnp.reshape(places, (*places.shape, *(1,) * (x.ndim - 2)))
    return jnp.take_along_axis(x, places, axis=time, mode="clip") if {time, batch} == {0, 1} else _refuse(node)


def _refuse(node: Node) -> Any:
    raise node.error("time and batch in the first two axes required")


@op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, x: Array, places: Array) -> Array:
    return jnp.take(x, jnp.reshape(places, (-1,)), axis=-1, mode="clip")


@op("Binarizer", domain="ai.onnx.ml")
def binarizer(node: Node, x: Array) -> Array:
    return (x > np.asarray(node.get("threshold", 0.0), x.dtype)).astype(x.dtype)
