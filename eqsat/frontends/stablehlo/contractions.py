"""Matrix products, convolutions, normalisations, transforms, factorisations, random bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from eqsat.frontends.stablehlo.table import Array, Node, Unsupported, op


def precision(node: Node) -> Any:
    """The precision of each operand; None where it is the default."""
    given = node.attribute("precision_config")
    if given is None:
        return None
    names = [str(stablehlo.PrecisionAttr(a).value) for a in given]
    return None if set(names) <= {"DEFAULT"} else tuple(lax.Precision[n] for n in names)


@op("stablehlo.dot_general")
def dot_general(node: Node, a: Array, b: Array) -> Array:
    if node.attribute("algorithm") is not None:
        raise node.error("no algorithm of its own required, got one; give a precision instead", Unsupported)
    d = stablehlo.DotDimensionNumbers(node.attribute("dot_dimension_numbers"))
    contracted = (tuple(d.lhs_contracting_dimensions), tuple(d.rhs_contracting_dimensions))
    batch = (tuple(d.lhs_batching_dimensions), tuple(d.rhs_batching_dimensions))
    return lax.dot_general(a, b, (contracted, batch), precision(node), node.out().dtype)


@op("stablehlo.dot")
def dot(node: Node, a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (((jnp.ndim(a) - 1,), (0,)), ((), ())), precision(node), node.out().dtype)


@op("stablehlo.einsum")
def einsum(node: Node, a: Array, b: Array) -> Array:
    return jnp.einsum(str(node.attribute("einsum_config").value), a, b, preferred_element_type=node.out().dtype)


@op("stablehlo.convolution")
def convolution(node: Node, x: Array, kernel: Array) -> Array:
    d = stablehlo.ConvDimensionNumbers(node.attribute("dimension_numbers"))
    rank = jnp.ndim(x) - 2
    numbers = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )
    turned = node.integers("window_reversal", (0,) * rank)
    if any(turned):
        kernel = lax.rev(kernel, tuple(n for n, yes in zip(d.kernel_spatial_dimensions, turned, strict=True) if yes))
    return lax.conv_general_dilated(
        x,
        kernel,
        node.integers("window_strides", (1,) * rank),
        node.pairs("padding", rank),
        lhs_dilation=node.integers("lhs_dilation", (1,) * rank),
        rhs_dilation=node.integers("rhs_dilation", (1,) * rank),
        dimension_numbers=numbers,
        feature_group_count=node.integer("feature_group_count", 1),
        batch_group_count=node.integer("batch_group_count", 1),
        precision=precision(node),
        preferred_element_type=node.out().dtype,
    )


def _normalised(node: Node, x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
    feature = node.integer("feature_index")

    def spread(v: Array) -> Array:
        return lax.broadcast_in_dim(v, x.shape, (feature,))

    epsilon = np.asarray(node.attribute("epsilon").value, x.dtype)
    divisor = lax.sqrt(lax.add(variance, jnp.full_like(variance, epsilon)))
    return (x - spread(mean)) / spread(divisor) * spread(scale) + spread(offset)


@op("stablehlo.batch_norm_inference")
def batch_norm_inference(node: Node, x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
    return _normalised(node, x, scale, offset, mean, variance)


@op("stablehlo.batch_norm_training")
def batch_norm_training(node: Node, x: Array, scale: Array, offset: Array) -> tuple[Array, ...]:
    others = tuple(d for d in range(jnp.ndim(x)) if d != node.integer("feature_index"))
    mean, variance = jnp.mean(x, others), jnp.var(x, others)
    return _normalised(node, x, scale, offset, mean, variance), mean, variance


@op("stablehlo.fft")
def fft(node: Node, x: Array) -> Array:
    kind = str(stablehlo.FftTypeAttr(node.attribute("fft_type")).value)
    return lax.fft(x, kind, node.integers("fft_length"))


@op("stablehlo.cholesky")
def cholesky(node: Node, x: Array) -> Array:
    return triangular_factor(x, node.flag("lower"))


def triangular_factor(x: Array, lower: bool) -> Array:
    """L of x = L L*, or its adjoint, from one half of x."""
    if lower:
        return lax.linalg.cholesky(x, symmetrize_input=False)
    turned = jnp.conj(jnp.swapaxes(x, -1, -2))
    return jnp.conj(jnp.swapaxes(lax.linalg.cholesky(turned, symmetrize_input=False), -1, -2))


@op("stablehlo.triangular_solve")
def triangular_solve(node: Node, a: Array, b: Array) -> Array:
    transposed = str(stablehlo.TransposeAttr(node.attribute("transpose_a")).value)
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=node.flag("left_side"),
        lower=node.flag("lower"),
        transpose_a=transposed != "NO_TRANSPOSE",
        conjugate_a=transposed == "ADJOINT",
        unit_diagonal=node.flag("unit_diagonal"),
    )


@op("stablehlo.rng_bit_generator")
def rng_bit_generator(node: Node, state: Array) -> Any:
    algorithm = str(stablehlo.RngAlgorithmAttr(node.attribute("rng_algorithm")).value)
    kind = {
        "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
        "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
        "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
    }
    out = node.out(1)
    return lax.rng_bit_generator(state, out.shape, out.dtype, algorithm=kind[algorithm])
