"""ATen operators that multiply matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from eqsat.frontends.torch.table import Array, Node, cast, op, opmath, repeated


def product(x: Array, y: Array) -> Array:
    """In the accumulator's dtype: float32 for narrow floats."""
    return jnp.matmul(x, y, preferred_element_type=opmath(x.dtype))


@op("mm", "bmm", "matmul", "mv", "dot")
def matmul(node: Node, self: Array, mat2: Array) -> Array:
    return cast(product(self, mat2), node.dtype)


@op("addmm", "baddbmm", "addmv")
def addmm(node: Node, self: Array, mat1: Array, mat2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * mat1 @ mat2; with beta = 0 not even NaN of self counts.

    With alpha = 0 eager reads neither matrix where it calls BLAS: float32 and float64, not batched.
    """
    y = product(mat1, mat2)
    if alpha == 0 and mat1.ndim == 2 and mat1.dtype in (jnp.float32, jnp.float64):
        y = jnp.zeros_like(y)
    elif alpha != 1:
        y = y * cast(alpha, y.dtype)
    if beta == 0:
        return cast(y, node.dtype)
    bias = cast(self, y.dtype)
    return cast((bias if beta == 1 else bias * cast(beta, y.dtype)) + y, node.dtype)


@op("addbmm")
def addbmm(node: Node, self: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """The products of a batch, summed."""
    rows, columns = (jnp.swapaxes(batch1, 0, 1), batch2)
    flat = (jnp.reshape(rows, (rows.shape[0], -1)), jnp.reshape(columns, (-1, columns.shape[-1])))
    return addmm(node, self, *flat, beta=beta, alpha=alpha)


@op("linear")
def linear(node: Node, input: Array, weight: Array, bias: Array | None = None) -> Array:
    """input: [..., in], weight: [out, in]."""
    y = product(input, weight.T)
    return cast(y if bias is None else y + cast(bias, y.dtype), node.dtype)


# --- convolutions -----------------------------------------------------------------------------------------------


def dimension_numbers(rank: int) -> tuple[str, str, str]:
    """Batch and channels first, output channels first in the filter."""
    spatial = "".join(chr(ord("0") + n) for n in range(rank - 2))
    return "NC" + spatial, "OI" + spatial, "NC" + spatial


def _convolved(
    x: Array, weight: Array, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Array:
    spatial = x.ndim - 2
    strides, pads, dilations = repeated(stride, spatial), repeated(padding, spatial), repeated(dilation, spatial)
    wide = opmath(x.dtype)
    if not transposed:
        return lax.conv_general_dilated(
            x, weight, strides, [(p, p) for p in pads], None, dilations, dimension_numbers(x.ndim), groups,
            preferred_element_type=wide,
        )  # fmt: skip
    window = [(k - 1) * d for k, d in zip(weight.shape[2:], dilations, strict=True)]
    widths = [(k - p, k - p + e) for k, p, e in zip(window, pads, repeated(output_padding, spatial), strict=True)]
    return lax.conv_general_dilated(
        x, _turned(weight, groups), [1] * spatial, widths, strides, dilations, dimension_numbers(x.ndim), groups,
        preferred_element_type=wide,
    )  # fmt: skip


def _turned(weight: Array, groups: int) -> Array:
    """The filter of a transposed convolution, [in, out / groups, ...], as one of a convolution of the dilated input."""
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    filters = jnp.reshape(weight, (groups, inputs, outputs, *weight.shape[2:])).swapaxes(1, 2)
    filters = jnp.reshape(filters, (groups * outputs, inputs, *weight.shape[2:]))
    return jnp.flip(filters, range(2, weight.ndim))


@op("convolution")
def convolution(
    node: Node, input: Array, weight: Array, bias: Array | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Array:  # fmt: skip
    y = _convolved(input, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        y = y + jnp.reshape(cast(bias, y.dtype), (-1, *(1,) * (y.ndim - 2)))
    return cast(y, node.dtype)


@op("convolution_backward")
def convolution_backward(
    node: Node, grad_output: Array, input: Array, weight: Array, bias_sizes: Any, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:  # fmt: skip
    def forward(x: Array, w: Array) -> Array:
        return _convolved(x, w, stride, padding, dilation, transposed, output_padding, groups)

    y, back = jax.vjp(forward, cast(input, opmath(input.dtype)), cast(weight, opmath(weight.dtype)))
    grad = cast(grad_output, y.dtype)
    gradients = [*back(grad), jnp.sum(grad, (0, *range(2, grad.ndim)))]
    return tuple(cast(g, input.dtype) if wanted else None for g, wanted in zip(gradients, output_mask, strict=True))
