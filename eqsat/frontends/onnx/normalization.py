"""ONNX operators that normalise: softmax and the norms over batch, layer, instance and group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.pooling import over_windows
from eqsat.frontends.onnx.table import Array, Node, Unsupported, axis_of, op


def _softmax(x: Array, axis: int) -> Array:
    if 0 in x.shape:
        return x
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    if 0 in x.shape:
        return x
    moved = x - jnp.max(x, axis=axis, keepdims=True)
    return moved - jnp.log(jnp.sum(jnp.exp(moved), axis=axis, keepdims=True))


def _hardmax(x: Array, axis: int) -> Array:
    first = jnp.expand_dims(jnp.argmax(x, axis=axis), axis)
    places = jnp.arange(x.shape[axis]).reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])
    return (places == first).astype(x.dtype)


def _since_13(function: Callable[[Array, int], Array]) -> Callable[..., Array]:
    def softmax(node: Node, x: Array) -> Array:
        return function(x, axis_of(node, node.get("axis", -1), x.ndim))

    return softmax


def _flattened(function: Callable[[Array, int], Array]) -> Callable[..., Array]:
    """Before opset 13 the axes from `axis` on are one."""

    def softmax(node: Node, x: Array) -> Array:
        axis = node.get("axis", 1)
        axis = axis + x.ndim if axis < 0 else axis
        rows = int(np.prod(x.shape[:axis], dtype=np.int64))
        return jnp.reshape(function(jnp.reshape(x, (rows, -1)), 1), x.shape)

    return softmax


for _name, _function in {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}.items():
    op(_name, since=13)(_since_13(_function))
    op(_name)(_flattened(_function))


# --- norms ------------------------------------------------------------------------------------------------------


def _channels(value: Array, rank: int) -> Array:
    return jnp.reshape(value, (-1, *(1,) * (rank - 2)))


def _number(x: Array, value: float) -> np.ndarray:
    return np.asarray(value, x.dtype)


@op("BatchNormalization")
def batch_normalization(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array | tuple[Array, ...]:
    rank = max(x.ndim, 2)
    if not node.get("spatial", 1):
        raise node.error("spatial=1 required, got 0; use opset 9 or later", Unsupported)
    training = node.get("training_mode", 0) if node.opset >= 14 else not node.get("is_test", 1 if node.opset >= 7 else 0)
    if training and node.opset < 14:
        training = node.wants(1)
    if not training:
        return _normalized(node, x, scale, bias, mean, variance, rank)
    axes = (0, *range(2, x.ndim))
    own_mean, own_variance = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
    keep = node.get("momentum", 0.9)
    y = _normalized(node, x, scale, bias, own_mean, own_variance, rank)
    running = tuple(
        old * _number(old, keep) + new.astype(old.dtype) * _number(old, 1 - keep)
        for old, new in ((mean, own_mean), (variance, own_variance))
    )
    return (y, *running)


def _normalized(node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, rank: int) -> Array:
    epsilon = _number(variance, node.get("epsilon", 1e-5))
    factor = scale * lax.rsqrt(variance + epsilon).astype(scale.dtype)
    y = (x - _channels(mean, rank)) * _channels(factor, rank) + _channels(bias, rank)
    return y.astype(x.dtype)


def _centred(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """x without mean and with variance 1, its mean and the inverse of its deviation."""
    mean = jnp.mean(x, axis=tuple(axes), keepdims=True)
    distance = x - mean
    inverse = lax.rsqrt(jnp.mean(distance * distance, axis=tuple(axes), keepdims=True) + _number(x, epsilon))
    return distance * inverse, mean, inverse


@op("InstanceNormalization")
def instance_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    y, _, _ = _centred(x, range(2, x.ndim), node.get("epsilon", 1e-5))
    return y * _channels(scale, x.ndim) + _channels(bias, x.ndim)


@op("LayerNormalization")
def layer_normalization(node: Node, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
    axis = axis_of(node, node.get("axis", -1), x.ndim)
    inside = _stash(node, x)
    y, mean, inverse = _centred(x.astype(inside), range(axis, x.ndim), node.get("epsilon", 1e-5))
    y = y.astype(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def _stash(node: Node, x: Array) -> np.dtype:
    import onnx

    stash = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.get("stash_type", 1)))
    return np.dtype(x.dtype) if np.dtype(x.dtype).itemsize >= stash.itemsize else stash


@op("RMSNormalization")
@op("SimplifiedLayerNormalization")
def rms_normalization(node: Node, x: Array, scale: Array) -> Array:
    axis = axis_of(node, node.get("axis", -1), x.ndim)
    inside = x.astype(_stash(node, x))
    square = jnp.mean(inside * inside, axis=tuple(range(axis, x.ndim)), keepdims=True)
    return (inside * lax.rsqrt(square + _number(inside, node.get("epsilon", 1e-5)))).astype(x.dtype) * scale


@op("GroupNormalization", since=21)
def group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    return _channels(scale, x.ndim) * _grouped(node, x) + _channels(bias, x.ndim)


@op("GroupNormalization", since=18)
def group_normalization_by_group(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    each = x.shape[1] // node.get("num_groups")
    return group_normalization(node, x, jnp.repeat(jnp.asarray(scale), each), jnp.repeat(jnp.asarray(bias), each))


def _grouped(node: Node, x: Array) -> Array:
    parts = jnp.reshape(x, (x.shape[0], node.get("num_groups"), -1)).astype(_stash(node, x))
    y, _, _ = _centred(parts, (2,), node.get("epsilon", 1e-5))
    return jnp.reshape(y.astype(x.dtype), x.shape)


@op("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Array) -> Array:
    axes = tuple(node.get("axes", [0, 2, 3]))
    distance = x - jnp.mean(x, axis=axes, keepdims=True)
    return distance / (jnp.sqrt(jnp.mean(distance * distance, axis=axes, keepdims=True)) + _number(x, 1e-9))


@op("LpNormalization")
def lp_normalization(node: Node, x: Array) -> Array:
    axis = node.get("axis", -1)
    if node.get("p", 2) == 1:
        norm = jnp.sum(jnp.abs(x), axis=axis, keepdims=True)
    else:
        norm = jnp.sqrt(jnp.sum(x * x, axis=axis, keepdims=True))
    return jnp.where(norm == 0, _number(x, 0), x / jnp.where(norm == 0, _number(x, 1), norm))


@op("LRN")
def lrn(node: Node, x: Array) -> Array:
    size = node.get("size")
    ones = [1] * (x.ndim - 2)
    low = (size - 1) // 2
    squares = jnp.expand_dims(jnp.expand_dims(x * x, 0), 0)
    window = ([1, size, *ones], [1] * x.ndim, [1] * x.ndim, [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.ndim - 2)])
    total = over_windows(squares, np.asarray(0, x.dtype), lax.add, window)[0, 0]
    scale = _number(x, node.get("alpha", 1e-4) / size)
    return x / (_number(x, node.get("bias", 1.0)) + scale * total) ** _number(x, node.get("beta", 0.75))
