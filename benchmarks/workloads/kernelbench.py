"""KernelBench, level 2: picks with algebra hidden in them. y = x W + c throughout, float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case


def linear(x, w, c):
    """w: [out, in], as torch keeps it."""
    return x @ w.T + c


def matmul_subtract_multiply_relu(x, w, c):
    return jax.nn.relu((linear(x, w, c) - 2.0) * 1.5)


def gemm_multiply_leaky_relu(x, w, c):
    return jax.nn.leaky_relu(linear(x, w, c) * 2.0, 0.1)


def matmul_divide_sum_scaling(x, w):
    return jnp.sum(x @ w.T / 2, axis=1, keepdims=True) * 1.5


def matmul_sum_max_mean_logsumexp(x, w, c):
    y = jnp.sum(linear(x, w, c), axis=1, keepdims=True)
    y = jnp.mean(jnp.max(y, axis=1, keepdims=True), axis=1, keepdims=True)
    y = jax.nn.logsumexp(y, axis=1, keepdims=True)
    return jax.nn.logsumexp(y, axis=1, keepdims=True)


def matmul_scaling_residual(x, w, c):
    y = linear(x, w, c)
    return y * 0.5 + y


def gemm_subtract_mean_logsumexp_gelu_residual(x, w, c, s):
    y = jnp.mean(linear(x, w, c) - s, axis=1, keepdims=True)
    y = jax.nn.logsumexp(y, axis=1, keepdims=True)
    return jax.nn.gelu(y, approximate=False) + x


def gemm_max_subtract_gelu(x, w, c):
    """Zero whatever the inputs are: the mean over an axis of extent 1 is subtracted."""
    m = jnp.max(linear(x, w, c), axis=1, keepdims=True)
    return jax.nn.gelu(m - jnp.mean(m, axis=1, keepdims=True), approximate=False)


def matmul_divide_gelu(x, w, c):
    return jax.nn.gelu(linear(x, w, c) / 10.0, approximate=False)


def batch_norm_of_the_batch(x, w, c, scale, gain, bias):
    """Level 2 33: the statistics are the batch's, so the norm does not fold into the weight."""
    y = linear(x, w, c) * scale
    centred = y - jnp.mean(y, axis=0)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=0) + 1e-5) * gain + bias


def extents(batch: int, inputs: int, outputs: int, vectors: int = 1) -> str:
    return f"float32[{batch},{inputs}] float32[{outputs},{inputs}]" + f" float32[{outputs}]" * vectors


FULL, SMALL = extents(1024, 8192, 8192), extents(128, 512, 512)
EPILOGUE = Expected(launches=1, why="one product with its epilogue")
MATRIX = 4 * 8192 * 8192

PROGRAMS: Table = {
    "L2 9": case(matmul_subtract_multiply_relu, FULL, SMALL, EPILOGUE, quick=True),
    "L2 12": case(gemm_multiply_leaky_relu, FULL, SMALL, EPILOGUE),
    "L2 14": case(
        matmul_divide_sum_scaling, extents(1024, 8192, 8192, 0), extents(512, 1024, 1024, 0),
        Expected(2, 4e8, 1.3 * MATRIX, algebraic=True, why="x (sum_j W_j): the product is a matrix times a vector"), quick=True,
    ),
    "L2 14, constant weights": case(
        matmul_divide_sum_scaling, extents(1024, 8192, 8192, 0), extents(512, 1024, 1024, 0),
        Expected(1, 4e7, 0.3 * MATRIX, algebraic=True, why="the sum of W is computed once"), constants=(1,),
    ),
    "L2 18": case(
        matmul_sum_max_mean_logsumexp, FULL, extents(512, 1024, 1024),
        Expected(2, 4e8, 1.3 * MATRIX, algebraic=True, why="as 14; reductions over one element are identities"), quick=True,
    ),
    "L2 40": case(matmul_scaling_residual, extents(16384, 4096, 4096), SMALL, EPILOGUE),
    "L2 51": case(
        gemm_subtract_mean_logsumexp_gelu_residual, extents(2048, 8192, 8192, 2), extents(512, 1024, 1024, 2),
        Expected(3, 8e8, 2.0 * MATRIX, algebraic=True, why="the mean moves into the weight"), quick=True,
    ),
    "L2 80": case(
        gemm_max_subtract_gelu, FULL, extents(512, 1024, 1024),
        Expected(1, 1e6, 1e5, algebraic=True, why="m - mean(m) is zero for one element"),
    ),
    "L2 86": case(matmul_divide_gelu, FULL, SMALL, EPILOGUE),
    "L2 33, training": case(
        batch_norm_of_the_batch, extents(1024, 8192, 8192, 4), extents(128, 512, 512, 4),
        Expected(launches=2, why="the product, then one kernel per column"),
    ),
}  # fmt: skip
