"""Programs where a law of algebra saves arithmetic: order of products, sums of products, shared factors, low rank."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case
from examples.linear_attention import linear_attention, normalised_linear_attention
from examples.lora import lora, lora_unmerged


def product(*matrices):
    """From the left, as written."""
    result = matrices[0]
    for m in matrices[1:]:
        result = result @ m
    return result


def trace_of_product(a, b):
    return jnp.trace(a @ b)


def sum_of_product(a, b):
    return jnp.sum(a @ b)


def row_sums_of_product(a, b):
    return jnp.sum(a @ b, axis=1)


def low_rank(u, v, x):
    """(U V) x for thin U and V, with several columns in x."""
    return (u @ v) @ x


def left_factor(a, b, c):
    return a @ b + a @ c


def right_factor(a, b, c):
    return a @ c + b @ c


def quadratic_form(x, a):
    """The diagonal of x A x^T."""
    return jnp.diagonal(x @ a @ x.T)


def scaled_product(a, b):
    """Scalars on a large operand and on the result."""
    return 3.0 * ((0.5 * a) @ b) * 2.0


def sum_of_scaled(x):
    return jnp.sum(5.0 * x)


def relu_attention(q, k, v):
    """Linear attention with relu features, written with the scores."""
    q, k = jnp.maximum(q, 0), jnp.maximum(k, 0)
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    return jnp.einsum("hqk,hke->hqe", scores, v) / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-6)


def matrices(*sizes: int, vector: bool = False) -> str:
    """A chain of matrices; the last size is left out for a vector."""
    pairs = [f"float32[{m},{n}]" for m, n in zip(sizes, sizes[1:], strict=False)]
    return " ".join([*pairs, f"float32[{sizes[-1]}]"] if vector else pairs)


def less(flops: float, launches: int | None = None, why: str = "") -> Expected:
    return Expected(launches, flops, algebraic=True, why=why)


ORDER = "the cheapest order of products"
SQUARE = "float32[2048,2048] float32[2048,2048] float32[2048,2048]"
SQUARE_SMALL = "float32[512,512] float32[512,512] float32[512,512]"
LINEAR = "float32[16,4096,64] float32[16,4096,64] float32[16,4096,64]"
LINEAR_SMALL = "float32[4,1024,32] float32[4,1024,32] float32[4,1024,32]"

PROGRAMS: Table = {
    "A@B@v": case(
        product, matrices(4096, 4096, 4096, vector=True), matrices(768, 768, 768, vector=True), less(7e7, 2, ORDER), quick=True
    ),
    "A@B@C@v": case(
        product, matrices(2048, 2048, 2048, 2048, vector=True), matrices(512, 512, 512, 512, vector=True), less(3e7, 3, ORDER)
    ),
    "chain of 3, skewed": case(
        product, matrices(2048, 32, 4096, 32), matrices(512, 16, 1024, 16),
        less(2 * 32 * 32 * (4096 + 2048) * 1.1, 2, ORDER), quick=True,
    ),
    "chain of 4, skewed": case(
        product, matrices(2048, 64, 2048, 64, 2048), matrices(512, 16, 512, 16, 512),
        less(2 * 64 * 2048 * (64 + 64 + 2048) * 1.1, 3, ORDER), quick=True,
    ),
    "chain of 5, skewed": case(
        product, matrices(1024, 16, 4096, 64, 4096, 8), matrices(256, 8, 512, 16, 512, 4), less(1e7, 4, ORDER)
    ),
    "chain of 6, skewed": case(
        product, matrices(1500, 100, 3000, 20, 2500, 50, 1000), matrices(300, 20, 600, 8, 500, 10, 200), less(1e8, 5, ORDER)
    ),
    "trace(A@B)": case(
        trace_of_product, matrices(4096, 4096, 4096), matrices(768, 768, 768), less(1e8, 2, "sum_ij A_ij B_ji"), quick=True
    ),
    "sum(A@B)": case(
        sum_of_product, matrices(4096, 4096, 4096), matrices(768, 768, 768), less(1e8, 3, "(sum_i A_i) . (sum_j B_j)"), quick=True
    ),
    "sum(A@B, rows)": case(
        row_sums_of_product, matrices(4096, 4096, 4096), matrices(768, 768, 768), less(1e8, 2, "A (sum_j B_j)")
    ),
    "low rank": case(
        low_rank, "float32[4096,16] float32[16,4096] float32[4096,256]", "float32[768,8] float32[8,768] float32[768,64]",
        less(8e7, 3, "U (V x), the long sum in chunks"), quick=True,
    ),
    "A@B + A@C": case(left_factor, SQUARE, SQUARE_SMALL, less(1.75e10, 2, "A (B + C)"), quick=True),
    "A@C + B@C": case(right_factor, SQUARE, SQUARE_SMALL, less(1.75e10, 2, "(A + B) C")),
    "diagonal of x A x'": case(
        quadratic_form, "float32[4096,1024] float32[1024,1024]", "float32[512,256] float32[256,256]",
        less(1e10, 2, "rows of x A times rows of x"),
    ),
    "scaled product": case(
        scaled_product, matrices(4096, 4096, 4096), matrices(384, 384, 384), Expected(1, why="scalars meet in the epilogue")
    ),
    "sum(5x)": case(sum_of_scaled, "float32[8192,8192]", "float32[512,512]", Expected(2, why="5 sum(x)")),
    "linear attention": case(linear_attention, LINEAR, LINEAR_SMALL, less(1.2e9, 2, "q (k' v)"), quick=True),
    "linear attention, normalised": case(
        normalised_linear_attention, LINEAR, LINEAR_SMALL, less(1.5e9, 3, "q (k' v) / q (k' 1)"), quick=True
    ),
    "linear attention, relu": case(relu_attention, LINEAR, LINEAR_SMALL, less(1.5e9, 3, "q (k' v) / q (k' 1)")),
    "LoRA": case(
        lora, "bfloat16[4096,2048] bfloat16[2048,2048] bfloat16[2048,16] bfloat16[16,2048]",
        "float32[256,256] float32[256,256] float32[256,8] float32[8,256]", Expected(launches=2, why="x a, then one kernel"),
    ),
    "LoRA, unmerged": case(
        lora_unmerged, "float32[64,2048] float32[2048,2048] float32[2048,16] float32[16,2048]",
        "float32[16,512] float32[512,512] float32[512,8] float32[8,512]",
        Expected(flops=5.6e8, launches=2, why="the factors are not multiplied out"),
    ),
}  # fmt: skip
