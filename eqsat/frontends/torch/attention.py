"""Scaled dot-product attention, written out: scores, masks, softmax, sum; heads in groups share keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.contractions import linear, product
from eqsat.frontends.torch.elementwise import gelu
from eqsat.frontends.torch.normalization import layer_norm, softmax
from eqsat.frontends.torch.table import Array, Node, cast, op, opmath


def _scores(q: Array, k: Array, mask: Array | None, is_causal: bool, scale: float | None) -> tuple[Array, bool]:
    """What is made weights of, and whether a row of it may hide every key.

    A causal row sees the keys up to its own number. Where q is wide the scale goes in before the product, as torch has it.
    """
    k, wide = _for_heads(k, q), opmath(q.dtype)
    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = product(q, jnp.swapaxes(k, -1, -2)) * cast(float(factor), wide)
    hidden = cast(float("-inf"), wide)
    if is_causal:
        seen = lax.iota(np.int32, q.shape[-2])[:, None] >= lax.iota(np.int32, k.shape[-2])[None, :]
        scores = jnp.where(seen, scores, hidden)
    if mask is None:
        return scores, False
    return (jnp.where(mask, scores, hidden) if mask.dtype == bool else scores + cast(mask, wide)), True


def _for_heads(x: Array, q: Array) -> Array:
    """Keys or values for every head of q."""
    return jnp.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) if x.ndim > 2 and x.shape[-3] != q.shape[-3] else x


def _safe_softmax(scores: Array) -> Array:
    """A row without any key is zero."""
    top = jnp.max(scores, axis=-1, keepdims=True)
    blind, zero = top == -np.inf, np.asarray(0, scores.dtype)
    powers = jnp.exp(scores - jnp.where(blind, zero, top))
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return powers / jnp.where(blind, np.asarray(1, scores.dtype), total)


def attend(
    q: Array, k: Array, v: Array, mask: Array | None = None, is_causal: bool = False, scale: float | None = None
) -> Array:  # fmt: skip
    """q: [..., heads, queries, size], k: [..., kv heads, keys, size], v: [..., kv heads, keys, width]; in q's wide dtype."""
    scores, blind = _scores(q, k, mask, is_causal, scale)
    weights = _safe_softmax(scores) if blind else softmax(scores, scores.ndim - 1)
    return product(cast(weights, v.dtype), _for_heads(v, q))


@op("scaled_dot_product_attention")
def attention(
    node: Node, query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    _undropped(node, dropout_p)
    return cast(attend(query, key, value, attn_mask, is_causal, scale), node.dtype)


def _undropped(node: Node, dropout_p: float) -> None:
    if dropout_p:
        raise node.error(f"dropout of 0 required, got {dropout_p}: torch draws it from its own generator; call module.eval()")


@op("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    node: Node, query: Array, key: Array, value: Array, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Array | None = None, scale: float | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Also the logarithm of each row's sum of powers."""
    _undropped(node, dropout_p)
    scores, _ = _scores(query, key, attn_mask, is_causal, scale)
    y = cast(attend(query, key, value, attn_mask, is_causal, scale), node.dtype)
    return y, cast(jax.nn.logsumexp(scores, axis=-1), node.dtypes[1])


@op("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    node: Node, grad_out: Array, query: Array, key: Array, value: Array, out: Array, logsumexp: Array, dropout_p: float,
    is_causal: bool, *, attn_mask: Array | None = None, scale: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    _undropped(node, dropout_p)
    wide = opmath(query.dtype)
    y, back = jax.vjp(lambda q, k, v: attend(q, k, v, attn_mask, is_causal, scale), *(cast(x, wide) for x in (query, key, value)))
    return tuple(cast(g, x.dtype) for g, x in zip(back(cast(grad_out, y.dtype)), (query, key, value), strict=True))


@op("_transformer_encoder_layer_fwd")
def encoder_layer(
    node: Node, src: Array, embed_dim: int, num_heads: int, qkv_weight: Array, qkv_bias: Array, proj_weight: Array,
    proj_bias: Array, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Array, norm_bias_1: Array,
    norm_weight_2: Array, norm_bias_2: Array, ffn_weight_1: Array, ffn_bias_1: Array, ffn_weight_2: Array, ffn_bias_2: Array,
    mask: Array | None = None, mask_type: int | None = None,
) -> Array:  # fmt: skip
    """What nn.TransformerEncoderLayer calls in inference; what is not 0 in a mask hides a key.

    A mask of type 0 has queries and keys, of type 1 batch and keys, of type 2 batch, heads, queries and keys.
    """

    def attended(x: Array) -> Array:
        qkv = linear(node, x, qkv_weight, qkv_bias)
        heads = qkv.reshape(*qkv.shape[:2], 3, num_heads, embed_dim // num_heads).transpose(2, 0, 3, 1, 4)
        seen = None if mask is None else (mask[:, None, None, :] if mask_type == 1 else mask) == 0
        y = cast(attend(heads[0], heads[1], heads[2], seen), node.dtype).transpose(0, 2, 1, 3)
        return linear(node, y.reshape(x.shape), proj_weight, proj_bias)

    def fed(x: Array) -> Array:
        inner = linear(node, x, ffn_weight_1, ffn_bias_1)
        return linear(node, gelu(node, inner) if use_gelu else jnp.maximum(inner, 0), ffn_weight_2, ffn_bias_2)

    first = lambda x: layer_norm(node, x, (embed_dim,), norm_weight_1, norm_bias_1, eps)  # noqa: E731
    second = lambda x: layer_norm(node, x, (embed_dim,), norm_weight_2, norm_bias_2, eps)  # noqa: E731
    if norm_first:
        x = src + attended(first(src))
        return x + fed(second(x))
    x = first(src + attended(src))
    return second(x + fed(x))
