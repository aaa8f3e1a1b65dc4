"""ATen operators that normalise: softmax, and the norms over layer, group, batch and root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, axis_of, cast, op, opmath


def softmax(x: Array, axis: int) -> Array:
    if 0 in x.shape:
        return x
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


@op("_softmax", "softmax.int")
def softmax_(node: Node, self: Array, dim: int, half_to_float: Any = False) -> Array:
    x = cast(self, opmath(node.dtype))
    return cast(softmax(x, axis_of(dim, x.ndim)) if x.ndim else jnp.exp(x - x), node.dtype)


@op("_log_softmax", "log_softmax.int")
def log_softmax(node: Node, self: Array, dim: int, half_to_float: Any = False) -> Array:
    x = cast(self, opmath(node.dtype))
    if x.ndim == 0:
        return cast(x - x, node.dtype)
    if 0 in x.shape:
        return cast(x, node.dtype)
    axis = axis_of(dim, x.ndim)
    moved = x - jnp.max(x, axis=axis, keepdims=True)
    return cast(moved - jnp.log(jnp.sum(jnp.exp(moved), axis=axis, keepdims=True)), node.dtype)


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """(x - mean) * rstd, the mean, and 1 / sqrt(variance + eps)."""
    mean = jnp.mean(x, axes, keepdims=True)
    centred = x - mean
    rstd = lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + cast(eps, x.dtype))
    return centred * rstd, mean, rstd


def _affine(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * cast(weight, y.dtype)
    return y if bias is None else y + cast(bias, y.dtype)


@op("native_layer_norm")
def native_layer_norm(
    node: Node, input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, ...]:
    """Over the last axes. Results: [...], mean and 1 / deviation."""
    x = cast(input, opmath(input.dtype))
    y, mean, rstd = _normalised(x, tuple(range(x.ndim - len(normalized_shape), x.ndim)), eps)
    return cast(_affine(y, weight, bias), node.dtype), cast(mean, node.dtypes[1]), cast(rstd, node.dtypes[2])


@op("layer_norm")
def layer_norm(
    node: Node, input: Array, normalized_shape: Sequence[int], weight: Array | None = None, bias: Array | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Array:  # fmt: skip
    x = cast(input, opmath(input.dtype))
    y, _, _ = _normalised(x, tuple(range(x.ndim - len(normalized_shape), x.ndim)), eps)
    return cast(_affine(y, weight, bias), node.dtype)


@op("rms_norm")
def rms_norm(
    node: Node, input: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:  # fmt: skip
    """Without eps, torch takes the unit of the dtype in which it computes."""
    x = cast(input, opmath(input.dtype))
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    small = cast(float(jnp.finfo(x.dtype).eps) if eps is None else eps, x.dtype)
    y = x * lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + small)
    return cast(_affine(y, weight, None), node.dtype)


def _channels(value: Array | None, rank: int) -> Array | None:
    return None if value is None else jnp.reshape(value, (-1, *(1,) * (rank - 2)))


@op("native_group_norm")
def native_group_norm(
    node: Node, input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, ...]:
    x = cast(input, opmath(input.dtype))
    y, mean, rstd = _normalised(jnp.reshape(x, (N, group, C // group * HxW)), (2,), eps)
    y = _affine(jnp.reshape(y, x.shape), _channels(weight, x.ndim), _channels(bias, x.ndim))
    return tuple(cast(v, d) for v, d in zip((y, mean[..., 0], rstd[..., 0]), node.dtypes, strict=True))


@op("_native_batch_norm_legit_no_training")
def batch_norm(
    node: Node, input: Array, weight: Array | None, bias: Array | None, running_mean: Array, running_var: Array,
    momentum: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    x, rank = cast(input, opmath(input.dtype)), max(input.ndim, 2)
    mean, spread = (_channels(cast(v, x.dtype), rank) for v in (running_mean, running_var))
    y = _affine((x - mean) * lax.rsqrt(spread + cast(eps, x.dtype)), _channels(weight, rank), _channels(bias, rank))
    empty = np.zeros((0,), np.float32)
    return cast(y, node.dtype), cast(empty, node.dtypes[1]), cast(empty, node.dtypes[2])


@op("_native_batch_norm_legit.no_stats")
def batch_statistics_norm(
    node: Node, input: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, ...]:
    """By the batch's own mean and variance."""
    x = cast(input, opmath(input.dtype))
    y, mean, rstd = _normalised(x, (0, *range(2, x.ndim)), eps)
    y = _affine(y, _channels(weight, x.ndim), _channels(bias, x.ndim))
    return tuple(cast(v, d) for v, d in zip((y, jnp.reshape(mean, -1), jnp.reshape(rstd, -1)), node.dtypes, strict=True))


# --- gradients --------------------------------------------------------------------------------------------------


@op("_softmax_backward_data")
def softmax_backward(node: Node, grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    y, grad = cast(output, opmath(output.dtype)), cast(grad_output, opmath(output.dtype))
    product = y * grad
    return cast(product - y * jnp.sum(product, axis=dim, keepdims=True), node.dtype)


@op("_log_softmax_backward_data")
def log_softmax_backward(node: Node, grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    y, grad = cast(output, opmath(output.dtype)), cast(grad_output, opmath(output.dtype))
    return cast(grad - jnp.exp(y) * jnp.sum(grad, axis=dim, keepdims=True), node.dtype)
