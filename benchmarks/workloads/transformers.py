"""Layers of GPT-2 and Llama, forward and gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Size, Table, pair
from examples.gpt2 import block

WIDE = jnp.float32


def rms_norm(x, gain):
    wide = x.astype(WIDE)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def rotary(x, positions=None, base: float = 500000.0):
    """x: [batch, heads, sequence, depth]; halves are turned by an angle that grows with the position."""
    sequence, depth = x.shape[-2:]
    positions = jnp.arange(sequence) if positions is None else positions
    angles = positions[:, None] * base ** (-jnp.arange(0, depth, 2) / depth)[None, :]
    cos, sin = jnp.cos(angles).astype(WIDE), jnp.sin(angles).astype(WIDE)
    left, right = jnp.split(x.astype(WIDE), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)


def grouped_attention(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, groups, axis=1), jnp.repeat(v, groups, axis=1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=WIDE) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def llama_layer(layer, x, *, depth: int):
    batch, sequence, width = x.shape

    def split(y):
        return y.reshape(batch, sequence, -1, depth).transpose(0, 2, 1, 3)

    h = rms_norm(x, layer["gain1"])
    q, k, v = (split(h @ layer[name]) for name in ("wq", "wk", "wv"))
    mixed = grouped_attention(rotary(q), rotary(k), v).transpose(0, 2, 1, 3).reshape(batch, sequence, width)
    x = x + mixed @ layer["wo"]
    h = rms_norm(x, layer["gain2"])
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]


def llama_decode_step(layer, x, keys, values, position):
    """One token a sequence: x: [batch, width]; keys, values: [batch, heads, length, depth], which get a row at `position`."""
    batch, heads, length, depth = keys.shape

    def split(y):
        return y.reshape(batch, -1, 1, depth)

    h = rms_norm(x, layer["gain1"])
    q, k, v = (split(h @ layer[name]) for name in ("wq", "wk", "wv"))
    place, turned = (0, 0, position, 0), position[None]
    keys = jax.lax.dynamic_update_slice(keys, rotary(k, turned), place)
    values = jax.lax.dynamic_update_slice(values, v, place)
    q = rotary(q, turned).reshape(batch, heads, -1, depth)
    scores = jnp.einsum("bhgd,bhkd->bhgk", q, keys, preferred_element_type=WIDE) / depth**0.5
    weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= position, scores, -jnp.inf), axis=-1).astype(values.dtype)
    x = x + jnp.einsum("bhgk,bhkd->bhgd", weights, values).reshape(batch, -1) @ layer["wo"]
    h = rms_norm(x, layer["gain2"])
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"], keys, values


def gpt2_layer(layer, x, *, depth: int):
    return block(x, layer, x.shape[-1] // depth)


def square_loss(layer_function, layer, x, *, depth: int):
    y = layer_function(layer, x, depth=depth).astype(WIDE)
    return jnp.mean(y * y)


def llama_gradient(layer, x, *, depth: int):
    return jax.grad(partial(square_loss, llama_layer, depth=depth))(layer, x)


def gpt2_gradient(layer, x, *, depth: int):
    return jax.grad(partial(square_loss, gpt2_layer, depth=depth))(layer, x)


def specs(extents: dict[str, tuple[int, ...]], dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(e, dtype) for name, e in extents.items()}


def llama_weights(width: int, narrow: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "gain1": (width,), "wq": (width, width), "wk": (width, narrow), "wv": (width, narrow), "wo": (width, width),
        "gain2": (width,), "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width),
    }  # fmt: skip


def llama(fn, sequence: int, width: int, depth: int, keys: int, hidden: int, dtype: str = "bfloat16", batch: int = 1) -> Size:
    return sized(fn, llama_weights(width, keys * depth, hidden), (batch, sequence, width), depth, dtype)


def decode_step(batch: int, length: int, width: int, depth: int, keys: int, hidden: int, dtype: str = "bfloat16") -> tuple:
    """Arguments of `llama_decode_step`; positions 2 and 3 are the cache."""
    cache = jax.ShapeDtypeStruct((batch, keys, length, depth), dtype)
    layer = specs(llama_weights(width, keys * depth, hidden), dtype)
    return layer, jax.ShapeDtypeStruct((batch, width), dtype), cache, cache, jax.ShapeDtypeStruct((), "int32")


def gpt2(fn, sequence: int, width: int, depth: int, dtype: str = "bfloat16", batch: int = 1) -> Size:
    w = width
    layer = {
        "gain1": (w,), "bias1": (w,), "w_qkv": (w, 3 * w), "b_qkv": (3 * w,), "w_out": (w, w), "b_out": (w,),
        "gain2": (w,), "bias2": (w,), "w_up": (w, 4 * w), "b_up": (4 * w,), "w_down": (4 * w, w), "b_down": (w,),
    }  # fmt: skip
    return sized(fn, layer, (batch, sequence, w), depth, dtype)


def sized(fn, layer: dict[str, tuple[int, ...]], x: tuple[int, ...], depth: int, dtype: str) -> Size:
    def run(layer, x):
        return fn(layer, x, depth=depth)

    run.__name__ = run.__qualname__ = fn.__name__
    return Size(run, (specs(layer, dtype), jax.ShapeDtypeStruct(x, dtype)))


PROGRAMS: Table = {
    "GPT-2 layer": pair(
        gpt2(gpt2_layer, 1024, 768, 64), gpt2(gpt2_layer, 64, 128, 32, "float32"),
        Expected(launches=7, why="norm, qkv, attention, projection with residual, norm, up, down"), quick=True,
    ),
    "GPT-2 layer, gradient": pair(gpt2(gpt2_gradient, 1024, 768, 64), gpt2(gpt2_gradient, 64, 128, 32, "float32")),
    "Llama-3-8B layer": pair(
        llama(llama_layer, 2048, 4096, 128, 8, 14336), llama(llama_layer, 64, 128, 32, 2, 448, "float32"),
        Expected(launches=9, why="q, k, v and gate, up share a launch"),
    ),
    "Llama layer, gradient": pair(
        llama(llama_gradient, 1024, 2048, 128, 4, 5504), llama(llama_gradient, 64, 128, 32, 2, 448, "float32")
    ),
}  # fmt: skip
