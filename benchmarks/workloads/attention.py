"""Attention over FlashAttention-3's grid: 16384 tokens in all, 2048 wide, heads 64 to 256 deep, bfloat16."""

from __future__ import annotations

from benchmarks.workloads import Expected, Table, Workload, case
from examples.attention import attention, biased_attention, causal_attention, grouped_attention

TOKENS, WIDTH = 16384, 2048
FUSED = Expected(launches=1, why="the scores are never written")


def heads(batch: int, number: int, sequence: int, depth: int, dtype: str = "bfloat16", groups: int = 1) -> str:
    q = f"{dtype}[{batch},{number},{sequence},{depth}]"
    kv = f"{dtype}[{batch},{number // groups},{sequence},{depth}]"
    return f"{q} {kv} {kv}"


def grid_point(sequence: int, depth: int, fn=attention) -> Workload:
    full = heads(TOKENS // sequence, WIDTH // depth, sequence, depth)
    return case(fn, full, heads(1, 4, 256, depth // 4, "float32"), FUSED)


PROGRAMS: Table = {
    f"{name} S{sequence} D{depth}": grid_point(sequence, depth, fn)
    for name, fn in (("attention", attention), ("causal attention", causal_attention))
    for sequence, depth in ((512, 64), (2048, 128), (4096, 256), (16384, 128))
}
PROGRAMS |= {
    "grouped causal attention S4096 D128": case(
        grouped_attention, heads(1, 32, 4096, 128, groups=4), heads(1, 8, 128, 32, "float32", groups=4), FUSED
    ),
    "biased attention S768 D64": case(
        biased_attention,
        f"{heads(1, 4, 768, 64)} float32[4,768,768]",
        f"{heads(1, 4, 128, 32, 'float32')} float32[4,128,128]",
        FUSED,
    ),
    "attention B8 H16 S1024 D128": case(attention, heads(8, 16, 1024, 128), heads(1, 4, 128, 32, "float32"), FUSED, quick=True),
}
