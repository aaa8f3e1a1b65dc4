"""ONNX's attention, written out: scores, masks, softmax, sum; heads in groups share keys and values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Defined, Node, op


@op("Attention", since=23)
def attention(
    node: Node, q: Array, k: Array, v: Array, mask: Array | None = None, past_k: Array | None = None,
    past_v: Array | None = None, lengths: Array | None = None,
) -> tuple[Array | None, ...]:  # fmt: skip
    """q: [batch, head, query, size], or [batch, query, head size]; likewise k and v.

    A query row that may see no key at all is zero.
    """
    if node.opset < 25 and (node.get("softcap", 0.0) or node.wants(3)):
        raise Defined  # the order of softcap and mask changed
    flat, width = q.ndim == 3, q.dtype
    if flat:
        q = _heads(q, node.get("q_num_heads"))
        k, v = (_heads(x, node.get("kv_num_heads")) for x in (k, v))
    offset: Array | int = 0 if past_k is None else past_k.shape[2]
    k = k if past_k is None else jnp.concatenate([past_k, k], axis=2)
    v = v if past_v is None else jnp.concatenate([past_v, v], axis=2)
    if past_k is None and lengths is not None:
        offset = jnp.reshape(lengths, (-1, 1, 1, 1)) - q.shape[2]
    scores = _scores(node, q, k)
    shown = {0: scores}
    bias = _bias(node, q, k, mask, offset, lengths)
    shown[1] = scores = _softcapped(scores, node.get("softcap", 0.0))
    shown[2] = scores = scores if bias is None else scores + bias
    shown[3] = weights = _weights(node, scores, bias, width)
    groups = q.shape[1] // v.shape[1]
    y = jnp.matmul(weights, jnp.repeat(v, groups, axis=1) if groups > 1 else v)
    if flat:
        y = jnp.reshape(jnp.swapaxes(y, 1, 2), (y.shape[0], y.shape[2], -1))
    seen = shown[node.get("qk_matmul_output_mode", 0)].astype(width) if node.wants(3) else None
    return y, k, v, seen


def _heads(x: Array, count: int) -> Array:
    """[batch, position, head size] to [batch, head, position, size]."""
    return jnp.swapaxes(jnp.reshape(x, (*x.shape[:2], count, x.shape[2] // count)), 1, 2)


def _scores(node: Node, q: Array, k: Array) -> Array:
    scale = node.get("scale")
    root = np.asarray(np.sqrt(1 / np.sqrt(q.shape[-1]) if scale is None else scale), q.dtype)
    groups = q.shape[1] // k.shape[1]
    keys = jnp.repeat(k, groups, axis=1) if groups > 1 else k
    return jnp.matmul(q * root, jnp.swapaxes(keys, 2, 3) * root)


def _softcapped(scores: Array, cap: float) -> Array:
    if not cap:
        return scores
    bound = np.asarray(cap, scores.dtype)
    return jnp.tanh(scores / bound) * bound


def _bias(node: Node, q: Array, k: Array, mask: Array | None, offset: Array | int, lengths: Array | None) -> Array | None:
    """What is added to the scores: the mask, and minus infinity where a key must not be seen."""
    queries, keys = q.shape[2], k.shape[2]
    never = np.asarray(-np.inf, q.dtype)
    seen: Array | None = None
    bias: Array | None = None
    if mask is not None:
        short = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        if mask.dtype == np.dtype(bool):
            seen = jnp.pad(mask, short) if short[-1][1] else mask
        else:
            bias = jnp.pad(mask, short, constant_values=never) if short[-1][1] else mask
    places = np.arange(keys, dtype=np.int32)
    distance = np.arange(queries, dtype=np.int32)[:, None] + offset - places  # of a query from a key before it
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    bounds = [distance >= 0] if node.get("is_causal", 0) else []
    bounds += [distance <= left] if left >= 0 else []
    bounds += [-distance <= right] if right >= 0 else []
    bounds += [places < jnp.reshape(lengths, (-1, 1, 1, 1))] if lengths is not None else []
    for bound in bounds:
        seen = bound if seen is None else seen & bound
    if seen is None:
        return bias
    hidden = jnp.where(seen, np.asarray(0, q.dtype), never)
    return hidden if bias is None else bias + hidden


def _weights(node: Node, scores: Array, bias: Array | None, width: np.dtype) -> Array:
    import onnx

    precision = node.get("softmax_precision", 0)
    scores = scores.astype(onnx.helper.tensor_dtype_to_np_dtype(precision)) if precision else scores
    top = jnp.max(scores, axis=-1, keepdims=True)
    if bias is None:
        powers = jnp.exp(scores - top)
        return (powers / jnp.sum(powers, axis=-1, keepdims=True)).astype(width)
    zero = np.asarray(0, scores.dtype)
    blind = jnp.max(bias, axis=-1, keepdims=True) == -np.inf
    powers = jnp.exp(scores - jnp.where(blind, zero, top))
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return jnp.where(blind, zero, powers / jnp.where(blind, np.asarray(1, scores.dtype), total)).astype(width)
