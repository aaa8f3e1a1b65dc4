"""Causal attention, forward, as a person writes it in Triton: no mask before the diagonal, weights that are powers of two."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _keys(
    acc, total, m, q, k_ptr, v_ptr, queries, first, last, scale, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr
):
    depth = tl.arange(0, DEPTH)
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + keys[None, :] * DEPTH + depth[:, None])
        scores = tl.dot(q, k)
        if MASKED:
            scores = tl.where(queries[:, None] >= keys[None, :], scores * scale, float("-inf"))
            m_next = tl.maximum(m, tl.max(scores, axis=1))
            p = tl.exp2(scores - m_next[:, None])
        else:
            m_next = tl.maximum(m, tl.max(scores, axis=1) * scale)
            p = tl.exp2(scores * scale - m_next[:, None])
        rescale = tl.exp2(m - m_next)
        total = total * rescale + tl.sum(p, axis=1)
        v = tl.load(v_ptr + keys[:, None] * DEPTH + depth[None, :])
        acc = tl.dot(p.to(tl.bfloat16), v, acc * rescale[:, None])
        m = m_next
    return acc, total, m


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, SEQUENCE: tl.constexpr, DEPTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    blocks = tl.cdiv(SEQUENCE, BLOCK_M)
    pid = tl.program_id(0)
    head, block = pid // blocks * SEQUENCE * DEPTH, pid % blocks
    queries = block * BLOCK_M + tl.arange(0, BLOCK_M)
    depth = tl.arange(0, DEPTH)
    offsets = head + queries[:, None] * DEPTH + depth[None, :]
    q = tl.load(q_ptr + offsets)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, DEPTH), tl.float32)
    scale = LOG2E / DEPTH**0.5
    k_ptr += head
    v_ptr += head
    diagonal = block * BLOCK_M
    acc, total, m = _keys(acc, total, m, q, k_ptr, v_ptr, queries, 0, diagonal, scale, DEPTH, BLOCK_N, False)
    acc, total, m = _keys(acc, total, m, q, k_ptr, v_ptr, queries, diagonal, diagonal + BLOCK_M, scale, DEPTH, BLOCK_N, True)
    tl.store(out_ptr + offsets, (acc / total[:, None]).to(tl.bfloat16))
