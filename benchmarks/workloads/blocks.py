"""The programs on which XLA:GPU and Inductor were measured: launches and bytes side by side."""

from __future__ import annotations

from benchmarks.workloads import Expected, Size, Table, pair, shapes
from examples.blocks import PROGRAMS as FULL
from examples.blocks import transformer_args

HEADS = "float32[2,4,256,32] float32[2,4,256,32] float32[2,4,256,32]"
SMALL = {
    "softmax 8192x4096": shapes("float32[256,1024]"),
    "softmax 64x262144": shapes("float32[4,65536]"),
    "layernorm 8192x4096": shapes("float32[256,1024] float32[1024] float32[1024]"),
    "residual + rmsnorm 8192x4096": shapes("float32[256,1024] float32[256,1024] float32[1024]"),
    "mlp 4096x1024x4096": shapes("float32[128,256] float32[256,1024] float32[1024] float32[1024,256] float32[256]"),
    "swiglu 4096x2048x5504": shapes("float32[128,256] float32[256,688] float32[256,688] float32[688,256]"),
    "attention, plain, 4x16x2048x64": shapes(HEADS),
    "attention, causal, f32 softmax": shapes(HEADS),
    "cross entropy 4096x4096x32000": shapes("float32[128,256] float32[256,2000] int32[128]"),
    "transformer block B4 S1024 E1024": transformer_args(1, 64, 128, "float32"),
    "conv3x3+bias+relu 32x56x56x64": shapes("float32[2,28,28,16] float32[3,3,16,16] float32[16]"),
    "cumsum 1024x8192 f32": shapes("float32[64,2048]"),
    "transpose+add 4096^2": shapes("float32[512,512] float32[512,512]"),
    "concat+pad+slice": shapes("float32[512,512] float32[512,384]"),
}
LAUNCHES = {
    "softmax 8192x4096": 1, "softmax 64x262144": 3, "layernorm 8192x4096": 1, "residual + rmsnorm 8192x4096": 1,
    "mlp 4096x1024x4096": 2, "swiglu 4096x2048x5504": 2, "attention, plain, 4x16x2048x64": 1,
    "attention, causal, f32 softmax": 1, "cross entropy 4096x4096x32000": 3, "transformer block B4 S1024 E1024": 8,
    "conv3x3+bias+relu 32x56x56x64": 1, "cumsum 1024x8192 f32": 1, "transpose+add 4096^2": 1, "concat+pad+slice": 1,
}  # fmt: skip
QUICK = {"softmax 8192x4096", "layernorm 8192x4096", "residual + rmsnorm 8192x4096", "transpose+add 4096^2"}

PROGRAMS: Table = {
    name: pair(Size(fn, args), Size(fn, SMALL[name]), Expected(launches=LAUNCHES[name]), quick=name in QUICK)
    for name, (fn, args) in FULL.items()
}
