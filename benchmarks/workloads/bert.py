"""BERT: as TASO and TENSAT build it (no softmax; the layers are joined by the outer product), and an honest encoder."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, network, pair


def heads_of(x, heads: int):
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def published(w, x, *, layers: int, heads: int):
    """Each layer's output joins the result; the next layer's input is the layer input times a matrix."""
    width = x.shape[1]
    x = jax.nn.relu(x)
    outputs = []
    for _ in range(layers):
        q, k, v = (heads_of(x @ w(width, width), heads) for _ in range(3))
        mixed = (q @ k.transpose(0, 2, 1)) @ v if k.shape[1] != k.shape[2] else (q @ k) @ v
        outputs.append(mixed.transpose(1, 0, 2).reshape(x.shape))
        x = x @ w(width, width)
    return tuple(outputs)


def layer_norm(x, gain, bias):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-12) * gain + bias


def encoder(w, x, *, layers: int, heads: int):
    """Scaled softmax, residuals, layer norms after them, feed-forward of four widths."""
    width = x.shape[1]
    for _ in range(layers):
        q, k, v = (heads_of(x @ w(width, width) + w(width), heads) for _ in range(3))
        weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / (width // heads) ** 0.5, axis=-1)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(x.shape)
        x = layer_norm(x + mixed @ w(width, width) + w(width), w(width), w(width))
        hidden = jax.nn.gelu(x @ w(width, 4 * width) + w(4 * width), approximate=False)
        x = layer_norm(x + hidden @ w(4 * width, width) + w(width), w(width), w(width))
    return x


PROGRAMS: Table = {
    "BERT, TENSAT": pair(
        network(published, "float32[64,1024]", layers=8, heads=16),
        network(published, "float32[64,256]", layers=2, heads=4),
        Expected(why="q, k, v and the next input are one product"),
        constants=(1,),
    ),
    "BERT encoder": pair(
        network(encoder, "float32[64,1024]", layers=8, heads=16),
        network(encoder, "float32[64,256]", layers=2, heads=4),
        Expected(launches=8 * 7, why="q, k, v are one product; softmax and norms fuse"),
        constants=(1,),
    ),
}
