"""The nine programs of Mirage, in float16, at the shapes of its scripts (batch 1; the first three also at 8)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case

WIDE = jnp.float32


def plain_attention(q, k, v):
    """exp(QK)/sum(exp(QK)) V: no scale, no maximum; k: [batch, depth, keys]."""
    weights = jnp.exp(jnp.einsum("bqd,bdk->bqk", q, k, preferred_element_type=WIDE))
    shares = (weights / jnp.sum(weights, axis=-1, keepdims=True)).astype(v.dtype)
    return jnp.einsum("bqk,bkd->bqd", shares, v)


def rms(x):
    wide = x.astype(WIDE)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype)


def qk_norm(q, k, v):
    """The script's version normalises q and v over their last axis."""
    return plain_attention(rms(q), k, rms(v))


def rms_norm_linear(x, w):
    return rms(x) @ w


def lora(x, w, a, b):
    return x @ w + (x @ a) @ b


def gated_mlp(x, gate, up):
    return jax.nn.silu(x @ gate) * (x @ up)


def normalised_residual(x, h, alpha):
    """nGPT's update, as the script writes it."""
    return rms(x + alpha * (rms(h) + x))


def mixture_block(x, gate, up):
    """x: [experts, tokens, width]."""
    return jax.nn.silu(jnp.einsum("etw,ewf->etf", x, gate)) * jnp.einsum("etw,ewf->etf", x, up)


ONE = Expected(launches=1, why="one pass over k and v with running sums")
SPLIT = Expected(launches=2, why="one pass over k and v with running sums; the keys may be split")


def heads(batch: int, queries: int, keys: int, depth: int = 64, dtype: str = "float16") -> str:
    return f"{dtype}[{batch},{queries},{depth}] {dtype}[{batch},{depth},{keys}] {dtype}[{batch},{keys},{depth}]"


SMALL = heads(2, 64, 256, 32, "float32")

PROGRAMS: Table = {
    "GQA b1": case(plain_attention, heads(2, 256, 4096), SMALL, SPLIT, quick=True),
    "GQA b8": case(plain_attention, heads(16, 256, 4096), SMALL, SPLIT),
    "MHA b1": case(plain_attention, heads(32, 16, 4096), heads(8, 16, 256, 32, "float32"), SPLIT),
    "MHA b8": case(plain_attention, heads(256, 16, 4096), heads(16, 16, 256, 32, "float32"), ONE),
    "MQA b1": case(plain_attention, heads(1, 1024, 4096), heads(1, 256, 512, 32, "float32"), SPLIT),
    "MQA b8": case(plain_attention, heads(8, 1024, 4096), heads(2, 256, 512, 32, "float32"), ONE),
    "QKNorm b1": case(qk_norm, heads(2, 256, 4096), SMALL, Expected(launches=3, why="norms fuse into attention")),
    "RMSNorm + linear": case(
        rms_norm_linear, "float16[16,4096] float16[4096,6144]", "float32[16,512] float32[512,768]",
        Expected(launches=1, why="the norm's scale moves behind the product"), quick=True,
    ),
    "LoRA, Mirage": case(
        lora, "float16[16,256] float16[256,4096] float16[256,16] float16[16,4096]",
        "float32[16,256] float32[256,1024] float32[256,16] float32[16,1024]",
        Expected(launches=2, why="x a, then one product of joined operands"),
    ),
    "GatedMLP": case(
        gated_mlp, "float16[8,4096] float16[4096,4096] float16[4096,4096]", "float32[8,512] float32[512,512] float32[512,512]",
        Expected(launches=1, why="two products with one input in one kernel"), quick=True,
    ),
    "nTrans": case(
        normalised_residual, "float16[8,4096] float16[8,4096] float16[8,4096]", "float32[64,512] float32[64,512] float32[64,512]",
        Expected(launches=1, why="two row reductions and their consumers"),
    ),
    "MoE block": case(
        mixture_block, "float16[8,8,4096] float16[8,4096,4096] float16[8,4096,4096]",
        "float32[4,8,256] float32[4,256,256] float32[4,256,256]",
        Expected(launches=1, why="two batched products with one input in one kernel"),
    ),
}  # fmt: skip
