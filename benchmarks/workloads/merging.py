"""Products that share an input: queries, keys and values; gate and up; experts."""

from __future__ import annotations

import jax

from benchmarks.workloads import Expected, Table, case
from examples.mlp import mlp, swiglu


def qkv(x, wq, wk, wv):
    return x @ wq, x @ wk, x @ wv


def qkv_bias(x, wq, wk, wv, bq, bk, bv):
    return x @ wq + bq, x @ wk + bk, x @ wv + bv


def gate_up(x, gate, up):
    return jax.nn.silu(x @ gate) * (x @ up)


def two_inputs(x, y, w):
    """Different inputs and one weight."""
    return x @ w, y @ w


MERGED = Expected(launches=1, why="one launch reads x once")

PROGRAMS: Table = {
    "QKV": case(
        qkv, "bfloat16[1024,1024] bfloat16[1024,1024] bfloat16[1024,1024] bfloat16[1024,1024]",
        "float32[64,256] float32[256,256] float32[256,256] float32[256,256]", MERGED, quick=True,
    ),
    "QKV, grouped, one token": case(
        qkv, "bfloat16[8,4096] bfloat16[4096,4096] bfloat16[4096,1024] bfloat16[4096,1024]",
        "float32[8,512] float32[512,512] float32[512,128] float32[512,128]", MERGED,
    ),
    "QKV with biases": case(
        qkv_bias, "bfloat16[1024,768]" + " bfloat16[768,768]" * 3 + " bfloat16[768]" * 3,
        "float32[64,192]" + " float32[192,192]" * 3 + " float32[192]" * 3, MERGED,
    ),
    "gate/up": case(
        gate_up, "bfloat16[4096,2048] bfloat16[2048,5504] bfloat16[2048,5504]",
        "float32[64,256] float32[256,512] float32[256,512]", MERGED, quick=True,
    ),
    "two inputs, one weight": case(
        two_inputs, "bfloat16[256,1024] bfloat16[256,1024] bfloat16[1024,1024]",
        "float32[64,256] float32[64,256] float32[256,256]", MERGED,
    ),
    "MLP 16x4096": case(
        mlp, "bfloat16[16,4096] bfloat16[4096,16384] bfloat16[16384] bfloat16[16384,4096] bfloat16[4096]",
        "float32[16,256] float32[256,1024] float32[1024] float32[1024,256] float32[256]", Expected(launches=2),
    ),
    "SwiGLU 16x4096": case(
        swiglu, "bfloat16[16,4096] bfloat16[4096,14336] bfloat16[4096,14336] bfloat16[14336,4096]",
        "float32[16,256] float32[256,896] float32[256,896] float32[896,256]", Expected(launches=2),
    ),
}  # fmt: skip
