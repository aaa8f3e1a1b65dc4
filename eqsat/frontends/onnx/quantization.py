"""ONNX operators over quantised integers; sums are int32."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.contractions import convolve
from eqsat.frontends.onnx.elementwise import _NIBBLES, _is_float, _is_small_float, _to_small_float
from eqsat.frontends.onnx.table import Array, Node, axis_of, op


def limits(dtype: np.dtype) -> tuple[int, int]:
    return _NIBBLES.get(dtype.name) or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _spread(node: Node, value: Array, x: Array) -> Array:
    """A scale or zero point over x: one for all, one for each position of an axis, or one for each block of it."""
    if value.ndim == 0 or value.size == 1:
        return jnp.reshape(value, ())
    axis = axis_of(node, node.get("axis", 1), x.ndim)
    if value.ndim == 1 and not node.get("block_size", 0):
        return jnp.reshape(value, [-1 if n == axis else 1 for n in range(x.ndim)])
    block = node.get("block_size", 0) or -(-x.shape[axis] // value.shape[axis])
    wide = jnp.repeat(jnp.asarray(value), block, axis=axis)
    return wide[(slice(None),) * axis + (slice(0, x.shape[axis]),)]


@op("QuantizeLinear", static=())
def quantize_linear(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    import onnx

    to = node.get("output_dtype", 0)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)) if to else np.dtype(np.uint8 if zero is None else zero.dtype)
    precision = node.get("precision", 0)
    inside = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(precision)) if precision else np.dtype(scale.dtype)
    inside = inside if _is_float(inside) and inside.itemsize > 1 else np.dtype(np.float32)
    wide = x.astype(inside) / _spread(node, scale.astype(inside), x)
    if _is_small_float(dtype):
        return _to_small_float(node, wide, dtype)
    return _rounded(wide, None if zero is None else _spread(node, zero.astype(np.int32), x), dtype)


def _rounded(x: Array, zero: Array | None, dtype: np.dtype) -> Array:
    low, high = limits(dtype)
    wide = jnp.round(x) if zero is None else jnp.round(x).astype(np.float32) + zero.astype(np.float32)
    whole = jnp.clip(wide, low, high).astype(np.int32)
    return whole.astype(np.int8).astype(dtype) if dtype.name in _NIBBLES else whole.astype(dtype)


@op("DequantizeLinear")
def dequantize_linear(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    import onnx

    to = node.get("output_dtype", 0)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)) if to else np.dtype(scale.dtype)
    inside = dtype if dtype.itemsize > 1 else np.dtype(np.float32)
    if _is_float(x.dtype):
        return (x.astype(inside) * _spread(node, scale.astype(inside), x)).astype(dtype)
    whole = x.astype(np.int32)
    if zero is not None:
        whole = whole - _spread(node, zero.astype(np.int32), x)
    return (whole.astype(inside) * _spread(node, scale.astype(inside), x)).astype(dtype)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node, x: Array) -> tuple[Array, Array, Array]:
    zero = np.float32(0)
    low, high = jnp.minimum(jnp.min(x), zero), jnp.maximum(jnp.max(x), zero)
    scale = jnp.where(low < high, high - low, 255) / np.float32(255)  # ONNX leaves open what zeros alone give
    offset = jnp.clip(jnp.round(-low / scale), 0, 255)
    return jnp.clip(jnp.round(x / scale) + offset, 0, 255).astype(np.uint8), scale, offset.astype(np.uint8)


# --- products ---------------------------------------------------------------------------------------------------


def _shifted(x: Array, zero: Array | None, rows: bool) -> Array:
    """int32, without the zero point: one for all, or for each row of the left or column of the right operand."""
    whole = x.astype(np.int32)
    if zero is None:
        return whole
    zero = zero.astype(np.int32)
    if zero.ndim == 1 and zero.size > 1 and rows:
        zero = jnp.reshape(zero, (-1, 1))
    return whole - (jnp.reshape(zero, ()) if zero.size == 1 else zero)


@op("MatMulInteger")
def matmul_integer(node: Node, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return jnp.matmul(_shifted(a, a_zero, True), _shifted(b, b_zero, False))


@op("ConvInteger")
def conv_integer(node: Node, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    filters = w.astype(np.int32)
    if w_zero is not None:
        filters = filters - _filter_wise(w_zero.astype(np.int32), w.ndim)
    return convolve(node, _shifted(x, x_zero, False), filters, np.dtype(np.int32))


def _filter_wise(value: Array, rank: int) -> Array:
    return jnp.reshape(value, ()) if value.size == 1 else jnp.reshape(value, (-1, *(1,) * (rank - 1)))


@op("QLinearMatMul")
def qlinear_matmul(
    node: Node, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, scale: Array, zero: Array
) -> Array:
    total = matmul_integer(node, a, b, a_zero, b_zero).astype(np.float32)
    a_factor = a_scale.astype(np.float32)
    if a_factor.ndim == 1 and a_factor.size > 1:
        a_factor = jnp.reshape(a_factor, (-1, 1))
    factor = a_factor * b_scale.astype(np.float32) / scale.astype(np.float32)
    return _rounded(total * factor, zero.astype(np.int32), np.dtype(zero.dtype))


@op("QLinearConv")
def qlinear_conv(
    node: Node, x: Array, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array, scale: Array, zero: Array,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    total = conv_integer(node, x, w, x_zero, w_zero)
    if bias is not None:
        total = total + jnp.reshape(bias, (-1, *(1,) * (x.ndim - 2)))
    weights = w_scale if w_scale.size == 1 else jnp.reshape(w_scale, (-1, *(1,) * (x.ndim - 2)))
    factor = jnp.reshape(x_scale, ()) * (jnp.reshape(weights, ()) if w_scale.size == 1 else weights) / jnp.reshape(scale, ())
    return _rounded(total.astype(np.float32) * factor, jnp.reshape(zero, ()).astype(np.int32), np.dtype(zero.dtype))


@op("QLinearAdd", "QLinearMul", domain="com.microsoft")
def qlinear_binary(
    node: Node, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, scale: Array,
    zero: Array | None = None,
) -> Array:  # fmt: skip
    x, y = _shifted(a, a_zero, False) * a_scale, _shifted(b, b_zero, False) * b_scale
    result = x + y if node.op == "QLinearAdd" else x * y
    return _rounded(result / scale, None if zero is None else zero.astype(np.int32), np.dtype(a.dtype))


@op("QLinearSigmoid", domain="com.microsoft")
def qlinear_sigmoid(node: Node, x: Array, x_scale: Array, x_zero: Array, scale: Array, zero: Array | None = None) -> Array:
    value = lax.logistic(_shifted(x, x_zero, False) * x_scale)
    return _rounded(value / scale, None if zero is None else zero.astype(np.int32), np.dtype(x.dtype))
