"""Fused operators that ONNX Runtime's optimiser and exporters write, in the domain com.microsoft."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.elementwise import gelu
from eqsat.frontends.onnx.normalization import _centred, _number
from eqsat.frontends.onnx.quantization import dynamic_quantize_linear, matmul_integer
from eqsat.frontends.onnx.recurrent import long_short_term
from eqsat.frontends.onnx.table import Array, Node, op

CONTRIB = "com.microsoft"


@op("BiasGelu", domain=CONTRIB)
def bias_gelu(node: Node, x: Array, bias: Array) -> Array:
    return gelu(node, x + bias)


@op("FastGelu", domain=CONTRIB)
def fast_gelu(node: Node, x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    inner = x * (_number(x, 0.035677408136300125) * x * x + _number(x, 0.7978845608028654))
    return x * (_number(x, 0.5) + _number(x, 0.5) * jnp.tanh(inner))


@op("QuickGelu", domain=CONTRIB)
def quick_gelu(node: Node, x: Array) -> Array:
    return x * lax.logistic(_number(x, node.get("alpha", 1.702)) * x)


@op("SkipLayerNormalization", domain=CONTRIB)
def skip_layer_normalization(
    node: Node, x: Array, skip: Array, scale: Array, shift: Array | None = None, bias: Array | None = None
) -> tuple[Array, ...]:
    """The norm of x + skip + bias, then its mean, the inverse of its deviation and the sum."""
    total = x + skip if bias is None else x + skip + bias
    y, mean, inverse = _centred(total.astype(np.float32), (total.ndim - 1,), node.get("epsilon", 1e-12))
    y = y.astype(x.dtype) * scale
    return (y if shift is None else y + shift), mean, inverse, total


@op("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def skip_rms_normalization(
    node: Node, x: Array, skip: Array, scale: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    total = x + skip if bias is None else x + skip + bias
    wide = total.astype(np.float32)
    inverse = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _number(wide, node.get("epsilon", 1e-12)))
    return (wide * inverse).astype(x.dtype) * scale, None, inverse, total


@op("MatMulIntegerToFloat", domain=CONTRIB)
def matmul_integer_to_float(
    node: Node, a: Array, b: Array, a_scale: Array, b_scale: Array, a_zero: Array | None = None, b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    y = matmul_integer(node, a, b, a_zero, b_zero).astype(a_scale.dtype) * (a_scale * b_scale)
    return y if bias is None else y + bias


@op("DynamicQuantizeMatMul", domain=CONTRIB)
def dynamic_quantize_matmul(
    node: Node, x: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    a, scale, zero = dynamic_quantize_linear(node, x)
    return matmul_integer_to_float(node, a, b, scale, b_scale, zero, b_zero, bias)


@op("DynamicQuantizeLSTM", domain=CONTRIB)
def dynamic_quantize_lstm(
    node: Node, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None,
    c: Array | None = None, p: Array | None = None, *quantised: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """Weights [directions, from, 4 hidden] in integers; all inputs together, and each state, are quantised for their product."""
    w_scale, w_zero, r_scale, r_zero = quantised

    def product(weights: Array, scale: Array, zero: Array) -> Callable[[int, Array], Array]:
        def apply(n: int, values: Array) -> Array:
            flat = jnp.reshape(values, (-1, values.shape[-1]))
            y = dynamic_quantize_matmul(node, flat, weights[n], scale[n], zero[n])
            return jnp.reshape(y, (*values.shape[:-1], y.shape[-1]))

        return apply

    return long_short_term(node, x, product(w, w_scale, w_zero), product(r, r_scale, r_zero), w.shape[0], bias, lengths, h, c, p)
