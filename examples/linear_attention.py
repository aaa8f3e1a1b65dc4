"""Attention without a softmax: associativity makes it linear in the length of the sequence.

q, k, v: [heads, sequence, depth]; the scores are written out, as in the quadratic form.
"""

import jax
import jax.numpy as jnp

from eqsat.shapes import shapes
from examples import Table, report


def linear_attention(q, k, v):
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    return jnp.einsum("hqk,hke->hqe", scores, v)


def normalised_linear_attention(q, k, v):
    """With the positive feature map elu + 1, and rows that sum to one."""
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    return jnp.einsum("hqk,hke->hqe", scores, v) / jnp.sum(scores, axis=-1, keepdims=True)


PROGRAMS: Table = {
    "linear_attention": (linear_attention, shapes("float32[16,4096,64] float32[16,4096,64] float32[16,4096,64]")),
    "normalised_linear_attention": (
        normalised_linear_attention,
        shapes("float32[16,4096,64] float32[16,4096,64] float32[16,4096,64]"),
    ),
}

RAGGED: Table = {
    "linear_attention": (linear_attention, shapes("float32[2,37,5] float32[2,41,5] float32[2,41,7]")),
    "normalised_linear_attention": (normalised_linear_attention, shapes("float32[2,37,5] float32[2,41,5] float32[2,41,7]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
