"""ONNX pooling: maxima, averages and norms over windows, and over all positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.contractions import paddings
from eqsat.frontends.onnx.table import Array, Node, op

Windows = tuple[list[int], list[int], list[int], list[tuple[int, int]]]


def windows(node: Node, x: Array) -> Windows:
    """Window sizes, strides, dilations and paddings; where the last window may hang over, its padding is the overhang."""
    window = list(node.get("kernel_shape"))
    strides, dilations = node.get("strides", [1] * len(window)), node.get("dilations", [1] * len(window))
    pads = paddings(node, x.shape[2:], window, strides, dilations)
    if node.get("ceil_mode", 0) and (node.get("auto_pad", "NOTSET") or "NOTSET") == "NOTSET":
        pads = [
            (low, high + _overhang(size, low, high, (w - 1) * d + 1, s))
            for size, (low, high), w, d, s in zip(x.shape[2:], pads, window, dilations, strides, strict=True)
        ]
    return window, list(strides), list(dilations), pads


def _overhang(size: int, low: int, high: int, reach: int, stride: int) -> int:
    """What a last window that starts inside the input or its first padding reaches beyond the padded input."""
    count = -(-(size + low + high - reach) // stride) + 1
    count -= (count - 1) * stride >= size + low
    return max(0, (count - 1) * stride + reach - size - low - high)


def over_windows(x: Array, start: Any, operation: Callable[..., Any], w: Windows) -> Array:
    window, strides, dilations, pads = w
    return lax.reduce_window(
        x, start, operation, (1, 1, *window), (1, 1, *strides), [(0, 0), (0, 0), *pads], None, (1, 1, *dilations)
    )  # fmt: skip


def _lowest(x: Array) -> np.ndarray:
    return np.asarray(-np.inf if jnp.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min, x.dtype)


@op("MaxPool")
def max_pool(node: Node, x: Array) -> Array | tuple[Array, Array]:
    w = windows(node, x)
    y = over_windows(x, _lowest(x), lax.max, w)
    return (y, _places(node, x, w)) if node.wants(1) else y


def _places(node: Node, x: Array, w: Windows) -> Array:
    """For each window, where its first maximum lies in the flat input."""
    window, strides, dilations, pads = w
    spatial = x.shape[2:]
    order = spatial if not node.get("storage_order", 0) else spatial
    flat = np.arange(int(np.prod(x.shape[2:])), dtype=np.int32).reshape(order)
    if node.get("storage_order", 0):
        flat = np.arange(flat.size, dtype=np.int32).reshape(spatial[::-1]).transpose()
    widths = [(0, 0), (0, 0), *pads]
    values = jnp.pad(x, widths, constant_values=_lowest(x))
    numbers = np.pad(flat, pads)
    counts = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(numbers.shape, window, dilations, strides, strict=True)]
    seen, named = [], []
    for place in np.ndindex(*window):
        where = tuple(
            slice(p * d, p * d + s * (c - 1) + 1, s) for p, d, s, c in zip(place, dilations, strides, counts, strict=True)
        )
        seen.append(values[(slice(None), slice(None), *where)])
        named.append(numbers[where])
    best = jnp.argmax(jnp.stack(seen), axis=0)
    found = jnp.take_along_axis(jnp.asarray(np.stack(named))[:, None, None], best[None], axis=0)[0]
    image = np.arange(x.shape[0] * x.shape[1], dtype=np.int32).reshape(*x.shape[:2], *(1,) * len(spatial)) * flat.size
    return node.cast(found + image, np.int64)


@op("AveragePool")
def average_pool(node: Node, x: Array) -> Array:
    w = windows(node, x)
    total = over_windows(x, np.asarray(0, x.dtype), lax.add, w)
    return total / _counts(node, x, w).astype(x.dtype)


def _counts(node: Node, x: Array, w: Windows) -> np.ndarray:
    """How many elements each window averages: those of the input, or also those of its padding but not of the overhang."""
    window, strides, dilations, pads = w
    stated = paddings(node, x.shape[2:], window, strides, dilations)
    result = np.ones((), np.float32)
    for size, (low, high), (_, own), k, s, d in zip(x.shape[2:], pads, stated, window, strides, dilations, strict=True):
        count = (size + low + high - (k - 1) * d - 1) // s + 1
        places = np.arange(count)[:, None] * s + np.arange(k) * d - low
        if node.get("count_include_pad", 0):
            inside = places < size + own
        else:
            inside = (places >= 0) & (places < size)
        result = np.multiply.outer(result, np.maximum(inside.sum(1), 1).astype(np.float32))
    return result


@op("LpPool")
def lp_pool(node: Node, x: Array) -> Array:
    p = float(node.get("p", 2))
    powers = jnp.abs(x) ** np.asarray(p, x.dtype)
    total = over_windows(powers, np.asarray(0, x.dtype), lax.add, windows(node, x))
    return total ** np.asarray(1 / p, x.dtype)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("GlobalAveragePool")
def global_average_pool(node: Node, x: Array) -> Array:
    return jnp.mean(x, axis=_spatial(x), keepdims=True)


@op("GlobalMaxPool")
def global_max_pool(node: Node, x: Array) -> Array:
    return jnp.max(x, axis=_spatial(x), keepdims=True)


@op("GlobalLpPool")
def global_lp_pool(node: Node, x: Array) -> Array:
    p = float(node.get("p", 2))
    return jnp.sum(jnp.abs(x) ** np.asarray(p, x.dtype), axis=_spatial(x), keepdims=True) ** np.asarray(1 / p, x.dtype)


@op("MaxUnpool", static=(2,))
def max_unpool(node: Node, x: Array, places: Array, target: np.ndarray | None = None) -> Array:
    shape = _unpooled(node, x)
    result = jnp.zeros(int(np.prod(shape)), x.dtype).at[jnp.reshape(places, (-1,))].set(jnp.reshape(x, (-1,)))
    result = jnp.reshape(result, shape)
    if target is None:
        return result
    return jnp.pad(result, [(0, int(n) - m) for n, m in zip(target, shape, strict=True)])


def _unpooled(node: Node, x: Array) -> Sequence[int]:
    window = node.get("kernel_shape")
    strides, pads = node.get("strides", [1] * len(window)), node.get("pads", [0] * 2 * len(window))
    spatial = [
        (n - 1) * s + k - pads[a] - pads[a + len(window)]
        for a, (n, k, s) in enumerate(zip(x.shape[2:], window, strides, strict=True))
    ]
    return (*x.shape[:2], *spatial)
