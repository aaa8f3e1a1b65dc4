"""ONNX operators that read images at computed positions between pixels."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, op


@op("GridSample")
def grid_sample(node: Node, x: Array, grid: Array) -> Array:
    """x: [batch, channel, *sizes]; grid: [batch, *out, axis], the last axis of x first, from -1 to 1."""
    sizes, mode = x.shape[2:], node.get("mode", "linear")
    corners = node.get("align_corners", 0)
    places = []
    for n, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - n]
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        places.append(_bordered(node, at, size))
    if mode == "nearest":
        return _read(node, x, [jnp.round(p).astype(np.int32) for p in places])
    taps = [_taps(p, mode) for p in places]
    total = jnp.zeros((), x.dtype)
    for choice in itertools.product(*taps):
        weight = 1.0
        for _, part in choice:
            weight = weight * part
        value = _read(node, x, [place for place, _ in choice])
        total = total + value * jnp.expand_dims(jnp.asarray(weight), 1).astype(x.dtype)
    return total


def _taps(place: Array, mode: str) -> list[tuple[Array, Array]]:
    """The pixels that a position reads, with their weights."""
    first = jnp.floor(place)
    part = place - first
    start = first.astype(np.int32)
    if mode in ("linear", "bilinear"):
        return [(start, 1 - part), (start + 1, part)]
    return [(start + k, _cubic(jnp.abs(part - k))) for k in (-1, 0, 1, 2)]


def _cubic(d: Array, a: float = -0.75) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return jnp.where(d <= 1, near, jnp.where(d < 2, far, jnp.zeros_like(d)))


def _bordered(node: Node, place: Array, size: int) -> Array:
    """Positions outside, moved in; bicubic taps are moved one by one when they are read."""
    padding, cubic = node.get("padding_mode", "zeros"), node.get("mode", "linear") in ("cubic", "bicubic")
    if padding == "border" and not cubic:
        return jnp.clip(place, 0, size - 1)
    if padding == "reflection":
        return _reflected(place, size, node.get("align_corners", 0))
    return place


def _reflected(place: Array, size: int, corners: int) -> Array:
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return jnp.zeros_like(place)
    away = jnp.mod(jnp.abs(place - low), 2 * span)
    return jnp.clip(jnp.where(away > span, 2 * span - away, away) + low, 0, size - 1)


def _read(node: Node, x: Array, places: list[Array]) -> Array:
    """[batch, channel, *out]; pixels outside are zero or those of the border."""
    sizes = x.shape[2:]
    inside = jnp.ones((), bool)
    for place, size in zip(places, sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
    clipped = [jnp.clip(place, 0, size - 1) for place, size in zip(places, sizes, strict=True)]
    batch = np.arange(x.shape[0], dtype=np.int32).reshape(-1, *[1] * (clipped[0].ndim - 1))
    values = jnp.moveaxis(jnp.asarray(x), 1, -1)[(batch, *clipped)]
    if node.get("padding_mode", "zeros") == "zeros":
        values = jnp.where(inside[..., None], values, jnp.zeros((), x.dtype))
    return jnp.moveaxis(values, -1, 1)
