"""ONNX operators that multiply matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.table import Array, Node, ints, op


@op("MatMul", folds=True)
def matmul(node: Node, x: Array, y: Array) -> Array:
    return node.xp.matmul(x, y)


@op("Gemm")
def gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    product = jnp.matmul(a, b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    product = product if alpha == 1.0 else product * np.asarray(alpha, product.dtype)
    if c is None or beta == 0.0:
        return product
    return product + (c if beta == 1.0 else c * np.asarray(beta, c.dtype))


@op("Einsum")
def einsum(node: Node, *operands: Array) -> Array:
    return jnp.einsum(node.get("equation"), *operands)


@op("Det")
def det(node: Node, x: Array) -> Array:
    return jnp.linalg.det(x)


@op("FusedMatMul", domain="com.microsoft")
def fused_matmul(node: Node, x: Array, y: Array) -> Array:
    x = jnp.swapaxes(x, -1, -2) if node.get("transA", 0) and x.ndim > 1 else x
    y = jnp.swapaxes(y, -1, -2) if node.get("transB", 0) and y.ndim > 1 else y
    product = jnp.matmul(x, y)
    return product * np.asarray(node.get("alpha", 1.0), product.dtype)


# --- convolutions -----------------------------------------------------------------------------------------------


def dimension_numbers(rank: int) -> tuple[str, str, str]:
    """Batch and channels first, output channels first in the filter."""
    spatial = "".join(chr(ord("0") + n) for n in range(rank - 2))
    return "NC" + spatial, "OI" + spatial, "NC" + spatial


def paddings(node: Node, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list:
    """Zeros before and after each spatial axis."""
    auto = node.get("auto_pad", "NOTSET") or "NOTSET"
    pads = list(node.get("pads", [0] * (2 * len(window))))
    if auto == "VALID":
        return [(0, 0)] * len(window)
    if auto == "NOTSET":
        return [(pads[n], pads[n + len(window)]) for n in range(len(window))]
    widths = []
    for size, w, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (w - 1) * dilation + 1 - size)
        low = total // 2 if auto == "SAME_UPPER" else total - total // 2
        widths.append((low, total - low))
    return widths


def convolve(node: Node, x: Array, w: Array, dtype: np.dtype | None = None) -> Array:
    spatial = x.ndim - 2
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    return lax.conv_general_dilated(
        x, w, strides, paddings(node, x.shape[2:], w.shape[2:], strides, dilations), None, dilations,
        dimension_numbers(x.ndim), node.get("group", 1), preferred_element_type=dtype,
    )  # fmt: skip


def with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + jnp.reshape(bias, (-1, *(1,) * (y.ndim - 2)))


@op("Conv")
def conv(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    return with_bias(convolve(node, x, w), bias)


@op("ConvTranspose")
def conv_transpose(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    """The transposed convolution as a convolution of the input, dilated by the strides, with the filter turned round."""
    spatial, groups = x.ndim - 2, node.get("group", 1)
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    extra = node.get("output_padding", [0] * spatial)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    pads = _transposed_pads(node, x.shape[2:], window, strides, extra)
    widths = [(k - 1 - low, k - 1 - high + e) for (low, high), k, e in zip(pads, window, extra, strict=True)]
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    filters = jnp.reshape(w, (groups, inputs, outputs, *w.shape[2:])).swapaxes(1, 2)
    filters = jnp.reshape(filters, (groups * outputs, inputs, *w.shape[2:]))
    filters = jnp.flip(filters, range(2, x.ndim))
    y = lax.conv_general_dilated(x, filters, [1] * spatial, widths, strides, dilations, dimension_numbers(x.ndim), groups)
    return with_bias(y, bias)


def _transposed_pads(
    node: Node, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], extra: Sequence[int]
) -> list[tuple[int, int]]:
    auto, target = node.get("auto_pad", "NOTSET") or "NOTSET", node.get("output_shape")
    if target is None and auto.startswith("SAME"):
        target = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if target is None:
        pads = node.get("pads", [0] * 2 * len(window)) if auto == "NOTSET" else [0] * 2 * len(window)
        return [(pads[n], pads[n + len(window)]) for n in range(len(window))]
    target = list(target)[-len(window) :]
    widths = []
    for size, k, stride, e, wanted in zip(sizes, window, strides, extra, target, strict=True):
        total = stride * (size - 1) + e + k - wanted
        low = int(total / 2) if auto == "SAME_UPPER" else total - total // 2
        widths.append((low, total - low))
    return widths


@op("Col2Im", static=(1, 2))
def col2im(node: Node, x: Array, image: np.ndarray, block: np.ndarray) -> Array:
    """Blocks added at their places: the transposed convolution with one filter for each position in a block."""
    sizes, window = ints(image), ints(block)
    count = len(sizes)
    strides, dilations = node.get("strides", [1] * count), node.get("dilations", [1] * count)
    pads = node.get("pads", [0] * 2 * count)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    blocks = [(n + pads[a] + pads[a + count] - r) // s + 1 for a, (n, r, s) in enumerate(zip(sizes, reach, strides, strict=True))]
    channels = x.shape[1] // int(np.prod(window))
    parts = jnp.reshape(x, (x.shape[0], channels, *window, *blocks))
    padded = [n + pads[a] + pads[a + count] for a, n in enumerate(sizes)]
    result = jnp.zeros((x.shape[0], channels, *padded), x.dtype)
    for place in np.ndindex(*window):
        where = tuple(
            slice(p * d, p * d + s * (b - 1) + 1, s) for p, d, s, b in zip(place, dilations, strides, blocks, strict=True)
        )
        result = result.at[(slice(None), slice(None), *where)].add(parts[(slice(None), slice(None), *place)])
    return result[(slice(None), slice(None), *(slice(pads[a], pads[a] + n) for a, n in enumerate(sizes)))]
