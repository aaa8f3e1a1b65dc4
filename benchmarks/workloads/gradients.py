"""Gradients, each with the value that it is of, and a step of an optimiser."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case
from benchmarks.workloads.attention import heads
from examples import attention, blocks, norms


def causal_attention(cotangent, q, k, v):
    return with_gradient(attention.causal_attention, cotangent, q, k, v)


def layer_norm(cotangent, x, gain, bias):
    return with_gradient(norms.layer_norm, cotangent, x, gain, bias)


def cross_entropy(x, w, labels):
    return with_gradient(partial(blocks.cross_entropy, labels=labels), jnp.float32(1), x, w)


def with_gradient(fn, cotangent, *args):
    """A function's value and the gradient of its arguments."""
    value, pull = jax.vjp(fn, *args)
    return value, *pull(cotangent)


def adam(step, weights, gradient, mean, square, rate=1e-3, decay1=0.9, decay2=0.999, small=1e-8):
    """A step for one matrix (Kingma and Ba, 2015): the new weights and moments."""
    t = step.astype(jnp.float32)
    mean = decay1 * mean + (1 - decay1) * gradient
    square = decay2 * square + (1 - decay2) * gradient * gradient
    unbiased = square / (1 - decay2**t)
    return weights - rate * mean / (1 - decay1**t) / (jnp.sqrt(unbiased) + small), mean, square


PROGRAMS: Table = {
    "causal attention, gradient": case(
        causal_attention,
        f"bfloat16[4,16,2048,64] {heads(4, 16, 2048, 64)}",
        f"float32[1,4,128,32] {heads(1, 4, 128, 32, 'float32')}",
        Expected(launches=3, nbytes=280e6, why="statistics, then the output with dQ, then dK with dV; no scores are stored"),
    ),
    "layer norm, gradient": case(
        layer_norm,
        "bfloat16[8192,4096] bfloat16[8192,4096] bfloat16[4096] bfloat16[4096]",
        "float32[256,1024] float32[256,1024] float32[1024] float32[1024]",
        Expected(launches=2, nbytes=410e6, why="rows once for y and dx, once more for the sums over rows"),
    ),
    "cross entropy, gradient": case(
        cross_entropy,
        "bfloat16[4096,4096] bfloat16[4096,32000] int32[4096]",
        "float32[128,256] float32[256,2000] int32[128]",
        Expected(launches=5, nbytes=3.6e9, why="the logits and their gradient are stored once each, in the loss's float32"),
    ),
    "one step of Adam": case(
        adam,
        "int32[] float32[4096,4096] float32[4096,4096] float32[4096,4096] float32[4096,4096]",
        "int32[] float32[256,256] float32[256,256] float32[256,256] float32[256,256]",
        Expected(launches=1, nbytes=7 * 4 * 4096**2 * 1.001, why="every tensor once"),
        quick=True,
    ),
}
