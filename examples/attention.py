"""Attention as people write it: no fused call, only products, a mask and a softmax.

q: [batch, heads, queries, depth], k and v: [batch, heads, keys, depth].
"""

import jax
import jax.numpy as jnp

from eqsat.shapes import shapes
from examples import Table, report


def scores_of(q, k):
    return jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)


def weighted(scores, v):
    """The mean of v, weighted by the softmax of the scores."""
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def causal(scores):
    queries, keys = scores.shape[-2:]
    seen = jnp.arange(queries)[:, None] >= jnp.arange(keys)[None, :]
    return jnp.where(seen, scores, -jnp.inf)


def attention(q, k, v):
    return weighted(scores_of(q, k) / jnp.sqrt(q.shape[-1]), v)


def causal_attention(q, k, v):
    return weighted(causal(scores_of(q, k) / jnp.sqrt(q.shape[-1])), v)


def scaled_query_attention(q, k, v):
    """The scale on the query, before the product."""
    return weighted(causal(scores_of(q * q.dtype.type(0.125), k)), v)


def grouped_attention(q, k, v):
    """Several query heads share one head of k and v, which are repeated."""
    groups = q.shape[1] // k.shape[1]
    return causal_attention(q, jnp.repeat(k, groups, axis=1), jnp.repeat(v, groups, axis=1))


def biased_attention(q, k, v, bias):
    """A bias for each head, query and key is added to the scores."""
    return weighted(scores_of(q, k) / jnp.sqrt(q.shape[-1]) + bias, v)


def divided_after_attention(q, k, v):
    """Softmax in the other order: the product with v first, then the division by the sum."""
    scores = causal(scores_of(q, k) / jnp.sqrt(q.shape[-1]))
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    product = jnp.einsum("bhqk,bhkd->bhqd", weights, v.astype(jnp.float32))
    return (product / jnp.sum(weights, axis=-1, keepdims=True)).astype(v.dtype)


SELF = "bfloat16[4,16,2048,64] bfloat16[4,16,2048,64] bfloat16[4,16,2048,64]"
GROUPED = "bfloat16[4,16,2048,64] bfloat16[4,4,2048,64] bfloat16[4,4,2048,64]"

PROGRAMS: Table = {
    "attention": (attention, shapes(SELF)),
    "causal_attention": (causal_attention, shapes(SELF)),
    "scaled_query_attention": (scaled_query_attention, shapes(SELF)),
    "grouped_attention": (grouped_attention, shapes(GROUPED)),
    "biased_attention": (biased_attention, shapes(f"{SELF} float32[16,2048,2048]")),
    "divided_after_attention": (divided_after_attention, shapes(SELF)),
}

SMALL = "float32[2,3,37,24] float32[2,3,37,24] float32[2,3,37,24]"

RAGGED: Table = {
    "attention": (attention, shapes("bfloat16[1,2,19,24] bfloat16[1,2,37,24] bfloat16[1,2,37,24]")),
    "causal_attention": (causal_attention, shapes(SMALL)),
    "scaled_query_attention": (scaled_query_attention, shapes(SMALL)),
    "grouped_attention": (grouped_attention, shapes("float32[1,4,37,16] float32[1,2,37,16] float32[1,2,37,16]")),
    "biased_attention": (biased_attention, shapes(f"{SMALL} float32[3,37,37]")),
    "divided_after_attention": (divided_after_attention, shapes(SMALL)),
}


if __name__ == "__main__":
    report(PROGRAMS)
