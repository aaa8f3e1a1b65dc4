"""ATen pooling: maxima and averages over windows, and over as many windows as there are outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, cast, op, opmath, repeated


class Windows(NamedTuple):
    """Sizes, strides, dilations and paddings of the last axes; where the last window hangs over, so does its padding."""

    sizes: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[tuple[int, int]]


def _windows(shape: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, count: int) -> Windows:
    sizes = repeated(kernel, count)
    strides = repeated(stride, count) if isinstance(stride, int) or stride else sizes
    dilations = repeated(dilation, count)
    pads = [(p, p) for p in repeated(padding, count)]
    if ceil_mode:
        pads = [
            (p, p + _overhang(n, p, (k - 1) * d + 1, s))
            for n, (p, _), k, d, s in zip(shape[-count:], pads, sizes, dilations, strides, strict=True)
        ]
    return Windows(sizes, strides, dilations, pads)


def _overhang(size: int, pad: int, reach: int, stride: int) -> int:
    """What a last window that starts inside the input or its first padding reaches beyond the padded input."""
    count = -(-(size + 2 * pad - reach) // stride) + 1
    count -= (count - 1) * stride >= size + pad
    return max(0, (count - 1) * stride + reach - size - 2 * pad)


def _over(x: Array, start: Any, operation: Callable[..., Any], w: Windows) -> Array:
    lead = x.ndim - len(w.sizes)
    ones = (1,) * lead
    return lax.reduce_window(
        x, np.asarray(start, x.dtype), operation, (*ones, *w.sizes), (*ones, *w.strides), [(0, 0)] * lead + w.pads, None,
        (*ones, *w.dilations),
    )  # fmt: skip


def _lowest(x: Array) -> Any:
    return float("-inf") if jnp.issubdtype(x.dtype, jnp.floating) else int(jnp.iinfo(x.dtype).min)


# --- maxima -----------------------------------------------------------------------------------------------------


@op("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    node: Node, self: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Array, Array]:
    w = _windows(self.shape, kernel_size, stride, padding, dilation, ceil_mode, 2 if "2d" in node.op else 3)
    return _over(self, _lowest(self), lax.max, w), cast(_places(self, w), node.dtypes[1])


def _places(x: Array, w: Windows) -> Array:
    """For each window, where its first maximum (or NaN) lies among the elements of its channel."""
    count = len(w.sizes)
    values, numbers = _taken(x, w, _lowest(x)), _taken(np.arange(int(np.prod(x.shape[-count:]))).reshape(x.shape[-count:]), w, 0)
    best = jnp.argmax(values, axis=-1)
    numbers = np.broadcast_to(np.asarray(numbers, np.int32), values.shape)
    return jnp.take_along_axis(jnp.asarray(numbers), best[..., None], axis=-1, mode="clip")[..., 0]


def _taken(x: Array, w: Windows, fill: Any) -> Array:
    """The elements of each window, along a new last axis."""
    count = len(w.sizes)
    lead = x.ndim - count
    library = np if isinstance(x, np.ndarray) else jnp
    padded = library.pad(x, [(0, 0)] * lead + w.pads, constant_values=fill)
    outs = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded.shape[lead:], w.sizes, w.dilations, w.strides, strict=True)
    ]
    parts = []
    for place in np.ndindex(*w.sizes):
        where = tuple(
            slice(p * d, p * d + s * (o - 1) + 1, s) for p, d, s, o in zip(place, w.dilations, w.strides, outs, strict=True)
        )
        parts.append(padded[(slice(None),) * lead + where])
    return library.stack(parts, axis=-1)


@op("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    node: Node, grad_output: Array, self: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    indices: Array,
) -> Array:  # fmt: skip
    """Each window's gradient goes to the place of its maximum."""
    return _at_places(self.shape, grad_output, indices, 2 if "2d" in node.op else 3)


def _at_places(shape: Sequence[int], grad: Array, indices: Array, count: int) -> Array:
    """Zeros of a shape to which each element is added at its place among those of the last axes."""
    lead = shape[:-count]
    places, grads = (jnp.reshape(v, (*lead, prod(grad.shape[-count:]))) for v in (indices, grad))
    own = np.indices(places.shape, sparse=True)[:-1]
    zeros = jnp.zeros((*lead, prod(shape[-count:])), grads.dtype)
    return jnp.reshape(zeros.at[(*(o.astype(np.int32) for o in own), places)].add(grads, mode="drop"), shape)


# --- averages ---------------------------------------------------------------------------------------------------


@op("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    node: Node, self: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Array:  # fmt: skip
    count = int(node.op[len("avg_pool")])
    w = _windows(self.shape, kernel_size, stride, padding, 1, ceil_mode, count)
    x = cast(self, opmath(node.dtype))
    counts = _counts(x.shape[-count:], w, repeated(padding, count), count_include_pad)
    divisor = counts if divisor_override is None else np.asarray(divisor_override)
    total = _over(x, 0, lax.add, w)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return cast(lax.div(total, jnp.broadcast_to(cast(jnp.asarray(divisor), x.dtype), total.shape)), node.dtype)
    return cast(total / divisor.astype(x.dtype), node.dtype)


def _counts(sizes: Sequence[int], w: Windows, padding: Sequence[int], with_padding: bool) -> np.ndarray:
    """How many elements each window averages: those of the input, or also those of its padding but not of the overhang."""
    result = np.ones((), np.float64)
    for size, (low, high), own, k, s in zip(sizes, w.pads, padding, w.sizes, w.strides, strict=True):
        count = (size + low + high - k) // s + 1
        places = np.arange(count)[:, None] * s + np.arange(k) - low
        inside = places < size + own if with_padding else (places >= 0) & (places < size)
        result = np.multiply.outer(result, np.maximum(inside.sum(1), 1))
    return result


@op("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(
    node: Node, grad_output: Array, self: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Array:  # fmt: skip
    forward = Node(node.op.replace("_backward", ""), node.name, (opmath(node.dtype),), (None,))
    zero = jnp.zeros(self.shape, opmath(node.dtype))
    y, back = jax.vjp(
        lambda x: avg_pool(forward, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override), zero
    )
    return cast(back(cast(grad_output, y.dtype))[0], node.dtype)


@op("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(node: Node, self: Array, output_size: Sequence[int]) -> Array:
    """Window n of m outputs over N elements: from floor(n N / m) to ceil((n + 1) N / m)."""
    return cast(_adaptive(cast(self, opmath(node.dtype)), repeated(output_size, int(node.op.split("d.")[0][-1]))), node.dtype)


def _adaptive(x: Array, targets: Sequence[int]) -> Array:
    lead = x.ndim - len(targets)
    if all(n % m == 0 for n, m in zip(x.shape[lead:], targets, strict=True)):
        parts = [k for n, m in zip(x.shape[lead:], targets, strict=True) for k in (m, n // m)]
        return jnp.mean(jnp.reshape(x, (*x.shape[:lead], *parts)), tuple(range(lead + 1, lead + 2 * len(targets), 2)))
    for axis, m in enumerate(targets, lead):
        n = x.shape[axis]
        first, last = np.arange(m) * n // m, -(-(np.arange(1, m + 1) * n) // m)
        weights = (np.arange(n) >= first[:, None]) & (np.arange(n) < last[:, None])
        weights = (weights / (last - first)[:, None]).astype(x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, weights.T, axes=((axis,), (0,))), -1, axis)
    return x


@op("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(node: Node, grad_output: Array, self: Array) -> Array:
    zero = jnp.zeros(self.shape, opmath(node.dtype))
    y, back = jax.vjp(lambda x: _adaptive(x, grad_output.shape[-2 if "2d" in node.op else -3 :]), zero)
    return cast(back(cast(grad_output, y.dtype))[0], node.dtype)
